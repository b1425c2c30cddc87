"""Fixtures for the tests of the coordinator: one real Valkey a run, subscriptions that no other test sees."""

from collections.abc import Callable, Iterator

import pytest

from kafkadur.stack import Stack, Valkey, embedded
from kafkadur_coordinators.interface import MemberKind
from kafkadur_coordinators.redis.coordinator import STATE_VERSION, STATE_VERSION_BEFORE
from tests.integration.coordinators.deaf import Deaf
from tests.integration.coordinators.party import Party
from tests.integration.coordinators.world import Clock, World


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    """Provide a running Valkey without Kafka, for the whole run."""
    with embedded(kafka=False, users=True) as stack:
        assert stack.valkey is not None
        yield stack.valkey


@pytest.fixture(
    params=[STATE_VERSION, pytest.param(STATE_VERSION_BEFORE, marks=pytest.mark.long, id="before")]
)
def state_version(request: pytest.FixtureRequest) -> int:
    """Provide the version of the state: all tests are done with that of the version before, too."""
    version: int = request.param
    return version


@pytest.fixture
def make(valkey: Valkey, state_version: int) -> Iterator[Callable[..., World]]:
    """Provide a maker of subscriptions: `make("shared", partitions=1)`; they are created already.

    `policy` is the redelivery policy as the scripts take it: most attempts, first and longest back-off (ms),
    strict order, lanes a partition.
    """
    made: list[World] = []

    def create(
        type_: str = "shared",
        partitions: int = 1,
        *,
        starts: tuple[int, ...] = (),
        policy: tuple[int, int, int, int, int] = (0, 0, 0, 0, 1),
        version: int = state_version,
    ) -> World:
        world = World(valkey.url, type_=type_, partitions=partitions, state_version=version)
        world.policy = policy
        made.append(world)
        return world.create(starts=starts)

    yield create
    for world in made:
        world.close()


@pytest.fixture
def clock() -> Clock:
    """Provide a clock that tests move."""
    return Clock()


@pytest.fixture
def party(
    valkey: Valkey, kafkadur_stack: Stack, kafkadur_namespace: str, clock: Clock
) -> Iterator[Callable[..., Party]]:
    """Provide a maker of processes on one clock; `real=True`: on the server's."""
    made: list[Party] = []

    def make(*, real: bool = False, version: int = STATE_VERSION) -> Party:
        one = Party(
            valkey.url,
            kafkadur_stack.kafka,
            kafkadur_namespace,
            None if real else clock,
            state_version=version,
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


@pytest.fixture
def alone(party: Callable[..., Party]) -> Party:
    """Provide one process."""
    return party()


@pytest.fixture
def deaf() -> Iterator[Callable[..., Deaf]]:
    """Provide a maker of those who claim and whose answers can be lost: `deaf(world, kind="whole")`."""
    made: list[Deaf] = []

    def make(world: World, kind: MemberKind = "whole") -> Deaf:
        made.append(Deaf(world, kind))
        return made[-1]

    yield make
    for one in made:
        one.coordinator.close()
