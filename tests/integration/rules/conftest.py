"""The fixtures of `tests/integration/subscriptions`: a place on the run's stack, and workers to kill."""

from tests.integration.subscriptions.conftest import place, raw_producer, start_worker

__all__ = ["place", "raw_producer", "start_worker"]
