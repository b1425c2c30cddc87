"""Renewals of sessions: they succeed where nothing has changed since the member's last exchange."""

from collections.abc import Iterator

import pytest

from kafkadur.stack import Valkey
from kafkadur_coordinators.redis.coordinator import STATE_VERSION_BEFORE
from kafkadur_coordinators.redis.wire import Reply
from tests.integration.coordinators.world import SESSION_MS, Member, World, refusal, report, settled


def renew(member: Member) -> str:
    """Renew the session of a member; the code of the reply."""
    call = member.session.renewing()
    assert call is not None
    reply: Reply = member.world.coordinator.run(*call)
    return reply.code


@pytest.fixture
def world(valkey: Valkey) -> Iterator[World]:
    world = World(valkey.url).create()
    yield world
    world.close()


@pytest.fixture
def member(world: World) -> Member:
    """A member that has said what it has to say."""
    found = world.attach("m")
    found.say(report(readable_end=10), credit=5)
    return found


def is_attached(world: World, member: Member) -> bool:
    """Whether an exchange of another member leaves the session of this one as it is."""
    other = world.attach("other")
    other.say(report(readable_end=10), credit=5)
    return refusal(lambda: member.say(report())) is None


def test_a_session_lasts_while_it_is_renewed(world: World, member: Member) -> None:
    before = world.dump()
    for _ in range(5):
        world.clock.advance(SESSION_MS - 1)
        assert renew(member) == "OK"
    after = world.dump()
    assert before.keys() == after.keys()
    world.clock.advance(SESSION_MS - 1)
    assert is_attached(world, member)


def test_without_renewal_it_ends(world: World, member: Member) -> None:
    world.clock.advance(SESSION_MS - 1)
    assert renew(member) == "OK"
    world.clock.advance(SESSION_MS + 1)
    assert renew(member) == "SLOW", "an exchange has to look for sessions that are over"
    assert not is_attached(world, member)


def test_a_member_that_made_no_exchange_is_not_renewed(world: World) -> None:
    assert world.attach("m").session.renewing() is None


def test_its_leases_are_what_they_were(world: World, member: Member) -> None:
    world.clock.advance(1)
    assert renew(member) == "OK"
    reply = member.say(report(settled=[settled(1, 0, 5)]), credit=5)
    assert not reply.refused
    assert world.partition().floor == 5


@pytest.mark.parametrize("act", ["attach", "exchange", "pause", "detach"])
def test_after_any_change_an_exchange_is_needed(world: World, member: Member, act: str) -> None:
    other = world.attach("other")
    other.say(report(readable_end=10))
    member.say(report())
    assert renew(member) == "OK"
    if act == "attach":
        world.attach("third")
    elif act == "exchange":
        other.say(report(readable_end=11))
    elif act == "pause":
        assert world.run("pause", 1).code == "OK"
    else:
        other.detach(0)
    stored = world.dump()
    assert renew(member) == "SLOW"
    assert world.dump() == stored
    member.say(report())
    assert renew(member) == "OK", "it knows the change by now"


def test_two_members_may_be_renewed_in_turns(world: World, member: Member) -> None:
    """What one renewal writes is no change for the other member."""
    other = world.attach("other")
    other.say(report(readable_end=10))
    member.say(report())
    assert renew(other) == "SLOW"
    other.session._sequence = int(world.field("sequence"))  # noqa: SLF001 - as if both had heard the last change
    for _ in range(3):
        world.clock.advance(SESSION_MS // 4)
        assert (renew(member), renew(other)) == ("OK", "OK")


@pytest.mark.parametrize("field", ["server", "grace", "doubt", "id", "incarnation"])
def test_where_something_is_unusual_an_exchange_is_needed(world: World, member: Member, field: str) -> None:
    other: dict[str, object] = {"server": "other:0", "grace": world.clock.now + 5, "id": "x"}
    world.change(**{field: other.get(field, 2)})
    stored = world.dump()
    assert renew(member) == "SLOW"
    assert world.dump() == stored


def test_an_earlier_attachment_is_not_renewed(world: World, member: Member) -> None:
    call = member.session.renewing()
    assert call is not None
    again = world.attach("m")
    again.say(report())
    sequence = int(world.field("sequence"))
    name, keys, request = call
    assert world.coordinator.run(name, keys, [*request[:-1], sequence]).code == "SLOW"
    assert renew(again) == "OK"


@pytest.mark.parametrize("key", [0, 1])
def test_a_damaged_state_is_not_renewed(world: World, member: Member, key: int) -> None:
    world.coordinator.command("SET", world.address.fixed()[key], "damaged")
    assert renew(member) == "SLOW"


def test_state_of_the_version_before_needs_exchanges(valkey: Valkey) -> None:
    world = World(valkey.url, state_version=STATE_VERSION_BEFORE).create()
    try:
        member = world.attach("m")
        member.say(report(readable_end=10), credit=5)
        assert renew(member) == "SLOW"
    finally:
        world.close()
