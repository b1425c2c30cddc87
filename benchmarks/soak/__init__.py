"""A run of an hour and more under load, restarts and small faults: ``python -m benchmarks.soak``."""
