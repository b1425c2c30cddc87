"""How processes that run for long are watched: probes and metrics at a port, and logs."""
