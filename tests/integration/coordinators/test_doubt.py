"""Members that settle by transactions: when one has gone, nothing is granted until that is known."""

from collections.abc import Callable

import pytest

from kafkadur_coordinators.redis.coordinator import STATE_VERSION_BEFORE
from tests.integration.coordinators.world import SESSION_MS, Member, World, refusal, report, settled

Make = Callable[..., World]

every_type = pytest.mark.parametrize("kind", ["shared", "exclusive", "serial", "priority"])


def transacted(world: World, member: str = "t") -> Member:
    """Attach a member that settles by transactions."""
    return world.attach(member, transacted=True)


def doubt(world: World) -> str:
    """What the subscription's record says."""
    found = world.field("doubt")
    return "" if found == "0" else found


def look_up(world: World, incarnation: int = 5) -> None:
    """Do what a rebuild does that finds nothing new in Kafka."""
    assert world.run("rebuild", "r", 20_000).code == "OK"
    assert world.run("reincarnate", "r", incarnation).code == "OK"


@every_type
def test_nothing_is_granted_until_it_was_looked_up(make: Make, kind: str) -> None:
    world = make(kind)
    gone = transacted(world)
    assert gone.say(report(readable_end=10), credit=10).grants
    world.clock.advance(SESSION_MS + 1)
    other = world.attach("plain")
    reply = other.say(report(log_end=10), credit=10)
    while reply.orphaned:  # first what the lost leases tried is counted
        assert not reply.outcome_unknown
        reply = other.say(*(report(partition) for partition in reply.orphaned), credit=10)
    assert reply.outcome_unknown
    assert reply.grants == []
    world.clock.advance(SESSION_MS - 1)
    assert other.say(report(log_end=10), credit=10).grants == [], "time does not help"

    look_up(world)
    refused = refusal(lambda: other.say(report(), credit=10))
    assert refused is not None
    assert refused.code == "INCARNATION"
    again = world.attach("plain")
    assert not again.say(report(readable_end=10), credit=10).outcome_unknown
    grants = again.say(report(log_end=10), credit=10).grants
    assert [(grant.start, grant.attempts) for grant in grants if grant.kind != "lane"] == [(0, 1)]


def test_who_leaves_in_order_leaves_no_doubt(make: Make) -> None:
    world = make()
    first = transacted(world)
    first.say(report(readable_end=10), credit=10)
    first.detach(0)
    other = world.attach("plain")
    reply = other.say(report(log_end=10), credit=10)
    assert not reply.outcome_unknown
    assert reply.grants


def test_an_ordinary_member_leaves_no_doubt(make: Make) -> None:
    world = make()
    world.attach("plain").say(report(readable_end=10), credit=10)
    world.clock.advance(SESSION_MS + 1)
    reply = world.attach("other").say(report(log_end=10), credit=10)
    assert not reply.outcome_unknown
    assert reply.grants


def test_who_attaches_again_leaves_doubt(make: Make) -> None:
    """The same member attaches once more: what it had before may have been committed."""
    world = make()
    transacted(world).say(report(readable_end=10), credit=10)
    again = transacted(world)
    reply = again.say(report(log_end=10), credit=10)
    while reply.orphaned:
        reply = again.say(*(report(partition) for partition in reply.orphaned), credit=10)
    assert reply.outcome_unknown
    assert reply.grants == []


def test_while_it_is_looked_up_nothing_is_settled(make: Make) -> None:
    world = make(partitions=2)
    gone, stays = transacted(world), world.attach("plain")
    gone.say(report(readable_end=10), credit=10)
    stays.say(report(1, readable_end=10), credit=10)
    (token,) = stays.grants
    world.clock.advance(SESSION_MS - 1)
    stays.say(report(), credit=0)
    world.clock.advance(2)
    assert refusal(lambda: stays.say(report(), credit=0)) is None
    assert doubt(world) == "1"
    assert world.run("rebuild", "r", 20_000).code == "OK"
    assert doubt(world) == "2"
    refused = refusal(lambda: stays.say(report(1, settled=[settled(token, 0, 10)]), credit=0))
    assert refused is not None
    assert refused.code == "RESTARTED"
    assert world.run("rebuild", "other", 20_000).code == "BUSY"
    assert world.run("reincarnate", "other", 6).code == "CHANGED"
    assert world.run("reincarnate", "r", 5).code == "OK"
    assert doubt(world) == ""


def test_no_change_begins_before_it_was_looked_up(make: Make) -> None:
    world = make()
    transacted(world).say(report(readable_end=10), credit=10)
    world.clock.advance(SESSION_MS + 1)
    assert world.run("change", 1, "token", 20_000).code == "DOUBT"
    look_up(world)
    assert world.run("change", 1, "token", 20_000).code == "OK"


def test_a_log_that_was_cut_off_leaves_doubt(make: Make) -> None:
    """All have to attach again, and one that settles by transactions may not come back."""
    world = make()
    gone = transacted(world)
    gone.say(report(readable_end=10), credit=10)
    gone.session.truncate({0: 5}, incarnation=7)
    other = world.attach("plain")
    assert other.say(report(readable_end=5), credit=10).grants == []
    world.clock.advance(SESSION_MS + 1)
    assert other.say(report(log_end=5), credit=10).outcome_unknown


def test_the_state_is_marked_as_one_that_older_versions_refuse(make: Make) -> None:
    """They would give away what such a member has committed; they know version 1 alone."""
    world = make(version=STATE_VERSION_BEFORE)

    def written() -> object:
        return world.coordinator.command("HGET", world.state, "state_version")

    assert written() == b"1"
    transacted(world)
    assert written() == b"2"
