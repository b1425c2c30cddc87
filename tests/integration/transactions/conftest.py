"""The fixtures of the tests of subscriptions, a stack that may be wiped, and processes with transactions."""

from collections.abc import Callable, Iterator

import pytest

from kafkadur.stack import Stack, embedded
from tests.integration.subscriptions.conftest import place, raw_producer
from tests.integration.subscriptions.helpers import Place, place_on
from tests.integration.transactions.workers import Transacting

__all__ = ["place", "raw_producer"]

Start = Callable[..., Transacting]


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    """Provide a stack that may be wiped."""
    with embedded(users=True) as stack:
        yield stack


@pytest.fixture
def own_place(own_stack: Stack) -> Iterator[Place]:
    """Provide a place on it."""
    with place_on(own_stack) as place:
        yield place


@pytest.fixture
def start() -> Iterator[Start]:
    """Provide a starter of processes: `start(place, topic, out, **options)`."""
    started: list[Transacting] = []

    def begin(place: Place, topic: str, out: str, **options: object) -> Transacting:
        started.append(Transacting(place.settings(), topic, out, options))
        started[-1].attached()
        return started[-1]

    yield begin
    for each in started:
        each.end()
