"""The fixtures of other folders that the tests of alerts use."""

from tests.end_to_end.service.conftest import shop
from tests.integration.cli.conftest import here, run, spawn
from tests.integration.subscriptions.conftest import place, raw_producer

__all__ = ["here", "place", "raw_producer", "run", "shop", "spawn"]
