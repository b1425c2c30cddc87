"""What can go wrong with the set-up, in words: turns the output of a tool that failed into one sentence."""

import re
import shutil
import tempfile

from tools.places import LOCK, ROOT

#: Free bytes under which a failure is blamed on the disk: pip, whose log is on it, cannot always say so.
NEARLY_FULL = 20_000_000

NO_SPACE = re.compile(r"No space left on device|Errno 28|Disk quota exceeded")

NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|"
    r"Max retries exceeded|name resolution|Name or service not known|nodename nor servname|"
    r"Network is unreachable|Connection (?:refused|reset|aborted)|timed out"
)

WRONG_HASH = re.compile(r"DO NOT MATCH THE HASHES|Hash mismatch", re.IGNORECASE)


class SetupError(Exception):
    """The set-up cannot go on; the text says why and what to do, without a full stop."""


def failure(what: str, said: str) -> SetupError:
    """Return the error for a tool that failed, so that `what` is the case, and said `said`."""
    if NO_SPACE.search(said) or shutil.disk_usage(ROOT).free < NEARLY_FULL:
        return disk_full()
    if WRONG_HASH.search(said):
        return SetupError(
            f"{what}: the package index in use serves a file that is not the one named in {LOCK.name}; "
            "nothing of it was installed, check that index"
        )
    if NO_NETWORK.search(said):
        return SetupError(
            f"{what}: the package index cannot be reached; connect to the network "
            "(or configure a proxy or mirror for pip) and run this again"
        )
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")] or lines
    reason = " ".join(errors[-1].split()).rstrip(".") if errors else "no reason was given"
    return SetupError(f"{what} ({reason}); settle that and run this again")


def disk_full() -> SetupError:
    """Return the error for a full disk."""
    places = f"{ROOT} or of {tempfile.gettempdir()}"
    return SetupError(f"no space left on the disk of {places}: free about 1 GB there and run this again")
