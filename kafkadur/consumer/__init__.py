"""One member: its leases, windows and verdicts, and what its next exchange carries. No I/O."""
