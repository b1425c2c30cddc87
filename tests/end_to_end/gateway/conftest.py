"""Fixtures: gateways on the run's stack, and programs with Qpid JMS."""

import pytest

from kafkadur.stack.java import find_java
from tests.end_to_end.gateway.jms import Jms
from tests.integration.gateway.conftest import gateway, place, port

__all__ = ["gateway", "place", "port"]


@pytest.fixture(scope="session")
def jms(tmp_path_factory: pytest.TempPathFactory) -> Jms:
    """Provide what runs scenarios."""
    return Jms(find_java(), tmp_path_factory.mktemp("classes"))
