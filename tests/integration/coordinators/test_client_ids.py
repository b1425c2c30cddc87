"""The lease of a client id on a clock that stands still: who gets it when, and who is taken for gone."""

import uuid
from collections.abc import Callable, Iterator

import pytest
import redis

from kafkadur.stack import Stack
from kafkadur_coordinators.client_ids import LEAST_MS, ClientIdLease
from kafkadur_coordinators.redis.coordinator import RedisCoordinator, Refusal
from kafkadur_sharing.errors import CoordinatorRefused, InvalidClientId
from tests.integration.coordinators.world import Clock, Ears

SILENT_MS = 500


class Party:
    """Connections that want one client id, and what they hear."""

    def __init__(self, url: str) -> None:
        self.clock = Clock()
        self.coordinator = RedisCoordinator(url, clock=self.clock)
        self.ears = Ears(url)
        self.namespace = f"n-{uuid.uuid4().hex}"
        #: what happens while somebody waits
        self.meanwhile: Callable[[], None] = lambda: None

    def lease(self, connection: str, *, listening: bool = False, ttl_ms: int = 1_000) -> ClientIdLease:
        lease = ClientIdLease(
            self.coordinator,
            prefix="kafkadur",
            namespace=self.namespace,
            client_id="me",
            connection=connection,
            name=f"name of {connection}",
            ttl_ms=ttl_ms,
            monotonic=lambda: self.clock.now / 1000,
            wait=self._wait,
        )
        if listening:
            self.ears.listen(lease.channel)
        return lease

    def _wait(self, seconds: float) -> None:
        self.clock.advance(round(seconds * 1000))
        self.meanwhile()

    def key(self, administrator: redis.Redis) -> bytes:
        (key,) = administrator.keys(f"kafkadur:{self.namespace}:*:client")
        assert isinstance(key, bytes)
        return key


@pytest.fixture
def party(kafkadur_stack: Stack) -> Iterator[Party]:
    """Provide a client id that nobody has yet."""
    party = Party(kafkadur_stack.redis)
    yield party
    party.coordinator.close()


def test_one_has_it_until_it_lets_go(party: Party) -> None:
    one, other = party.lease("one", listening=True), party.lease("other")
    assert one.renew() is None
    assert one.renew() is None
    assert other.renew() is not None
    other.drop()  # it is not its own
    assert other.renew() is not None
    one.drop()
    assert other.renew() is None


def test_who_is_not_heard_is_gone_after_half_a_second(party: Party) -> None:
    one, other = party.lease("one"), party.lease("other")
    assert one.renew() is None
    for passed in (0, SILENT_MS - 1):
        party.clock.advance(passed)
        refusal = other.renew()
        assert refusal is not None
        assert refusal.held.left == SILENT_MS - passed
    party.clock.advance(1)
    assert other.renew() is None
    assert one.renew() is not None


def test_who_is_heard_again_is_not_gone(party: Party) -> None:
    one, other = party.lease("one"), party.lease("other")
    assert one.renew() is None
    assert other.renew() is not None
    party.clock.advance(SILENT_MS)
    party.ears.listen(one.channel)
    refusal = other.renew()
    assert refusal is not None
    assert refusal.held.left == LEAST_MS - SILENT_MS
    party.ears.forget(one.channel)
    assert other.renew() is not None


def test_who_is_heard_and_does_not_renew_has_one_time_out(party: Party) -> None:
    one, other = party.lease("one", listening=True), party.lease("other")
    assert one.renew() is None
    party.clock.advance(LEAST_MS - 1)
    assert other.renew() is not None
    party.clock.advance(1)
    assert other.renew() is None
    assert one.renew() is not None


def test_a_longer_session_has_a_longer_time_out(party: Party) -> None:
    one, other = party.lease("one", listening=True, ttl_ms=60_000), party.lease("other")
    assert one.renew() is None
    assert one.renew_every == 20
    party.clock.advance(59_999)
    assert other.renew() is not None
    party.clock.advance(1)
    assert other.renew() is None


def test_taking_asks_the_holder_and_gives_up_when_it_shows_itself(party: Party) -> None:
    one, other = party.lease("one", listening=True), party.lease("other")
    assert one.renew() is None
    asked: list[str] = []

    def show() -> None:
        asked.extend(party.ears.heard())
        assert one.renew() is None

    party.meanwhile = show
    began = party.clock.now
    with pytest.raises(InvalidClientId, match="name of one"):
        other.take()
    assert asked == [one.channel]
    assert party.clock.now - began < 100


def test_taking_waits_for_a_holder_that_does_not_show_itself(party: Party) -> None:
    one, other = party.lease("one", listening=True), party.lease("other")
    assert one.renew() is None
    began = party.clock.now
    other.take()
    assert LEAST_MS <= party.clock.now - began < LEAST_MS + 100


def test_taking_gives_up_when_a_third_one_was_faster(party: Party) -> None:
    one, other, third = (party.lease(name, listening=name != "one") for name in ("one", "other", "third"))
    assert one.renew() is None

    def take() -> None:
        third.renew()

    party.meanwhile = take
    with pytest.raises(InvalidClientId, match="name of third"):
        other.take()


def test_after_a_change_of_server_everybody_has_time_to_be_back(party: Party, kafkadur_stack: Stack) -> None:
    one, other = party.lease("one"), party.lease("other")
    assert one.renew() is None
    with redis.Redis.from_url(kafkadur_stack.admin_redis) as administrator:
        administrator.hset(party.key(administrator), "server", "another one")
    party.clock.advance(2 * LEAST_MS)  # the server was away for long
    assert other.renew() is not None
    party.clock.advance(SILENT_MS)
    assert other.renew() is not None  # its silence says nothing yet
    assert one.renew() is None
    party.clock.advance(LEAST_MS - SILENT_MS)
    assert other.renew() is not None
    party.clock.advance(SILENT_MS)
    assert other.renew() is None


def test_a_clock_that_steps_back_makes_nobody_wait_longer(party: Party) -> None:
    one, other = party.lease("one", listening=True), party.lease("other")
    assert one.renew() is None
    party.clock.advance(-1_000_000)
    assert other.renew() is not None
    party.clock.advance(LEAST_MS)
    assert other.renew() is None


def test_another_version_of_the_state_is_left_alone(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    one = party.lease("one")
    monkeypatch.setattr(party.coordinator, "state_version", 99)
    with pytest.raises(CoordinatorRefused, match="version"):
        one.renew()
    monkeypatch.undo()
    assert party.lease("other").renew() is None


@pytest.mark.parametrize("wrong", [["one", None], [[], 1_000], ["one", "soon"]])
def test_what_is_wrong_changes_nothing(party: Party, wrong: list[object]) -> None:
    one = party.lease("one", listening=True)
    keys = [f"{one._address.root}client"]  # noqa: SLF001 - where it lies
    with pytest.raises(Refusal, match="INVALID"):
        party.coordinator.call("holdid", keys, [*party.coordinator.common(member="wrong"), *wrong])
    assert one.renew() is None
