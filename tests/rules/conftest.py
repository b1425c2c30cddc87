"""The fixtures of `tests/subscriptions`: a place on the run's stack, and workers to kill."""

from tests.subscriptions.conftest import place, raw_producer, start_worker

__all__ = ["place", "raw_producer", "start_worker"]
