"""A replica takes over with a clock of its own: time goes on from where it was, and nobody is two holders."""

from collections.abc import Iterator

import pytest

from kafkadur.stack import Stack, Valkey, embedded
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from tests.integration.coordinators.world import (
    BEGIN_MS,
    SESSION_MS,
    Clock,
    Ears,
    World,
    refusal,
    report,
    settled,
)

HOUR = 3_600_000


@pytest.fixture(scope="module")
def servers() -> Iterator[Stack]:
    """Provide two servers, of which one copies the other."""
    with embedded(kafka=False, replica=True, users=True) as stack:
        yield stack


@pytest.fixture
def pair(servers: Stack) -> tuple[Valkey, Valkey]:
    """Provide the master and its replica, in step."""
    first, second = servers.valkey, servers.replica
    assert first is not None
    assert second is not None
    second.copy(first)
    return first, second


def take_over(world: World, server: Valkey, skew: int) -> Clock:
    """The replica becomes the master of this world, its clock off by so many ms."""
    world.coordinator.command("WAIT", 1, 2_000)
    server.promote()
    there = Clock()
    there.now = world.clock.now + skew
    world.coordinator.close()
    world.ears.close()
    world.clock, world.url, world.ears = there, server.url, Ears(server.url)
    world.coordinator = RedisCoordinator(server.url, clock=there)
    return there


@pytest.mark.parametrize("skew", [-HOUR, -500, 0, HOUR])
def test_time_goes_on_under_another_clock(pair: tuple[Valkey, Valkey], skew: int) -> None:
    first, second = pair
    world = World(first.url).create()
    member = world.attach()
    member.say(report(readable_end=10), credit=10)
    (token,) = member.grants
    before = world.inspect().now
    clock = take_over(world, second, skew)

    late = world.session(member.id)
    late.incarnation, late.attachment = member.session.incarnation, member.session.attachment
    member.session = late
    said = member.build(report(settled=[settled(token, 0, 10)], done=[token]))
    refused = refusal(lambda: late.exchange(said))
    assert refused is not None
    assert refused.code == "RESTARTED"
    assert refused.reply.now >= before, "time never steps back"

    assert world.run("rebuild", "r", 20_000).code == "OK"
    assert world.run("reincarnate", "r", 5).code == "OK"
    again = world.attach(member.id)
    assert again.attached.incarnation == 5
    assert again.attached.incarnation > late.incarnation
    # all who were attached are back: what was in hands comes again, and its session runs by the new clock
    assert again.say(report(readable_end=10), credit=10).partitions[0].log_end_unknown
    (grant,) = again.say(report(log_end=10), credit=10).grants
    assert (grant.start, grant.horizon, grant.redelivered) == (0, 10, True)
    clock.advance(SESSION_MS - 1)
    other = world.attach()
    assert other.say(report(), credit=10).grants == []
    clock.advance(2)
    (taken,) = other.say(report(), credit=10).grants
    assert taken.start == 0
    assert world.inspect().now >= before + SESSION_MS
    world.close()


def test_nobody_waits_longer_than_a_session_for_who_does_not_come_back(
    pair: tuple[Valkey, Valkey],
) -> None:
    """The end of a session that the old clock stored, an hour ahead, does not count."""
    first, second = pair
    world = World(first.url).create()
    world.clock.now = BEGIN_MS + HOUR
    gone, stays = world.attach(), world.attach()
    gone.say(report(readable_end=10), credit=10)
    clock = take_over(world, second, -HOUR)
    assert world.run("rebuild", "r", 20_000).code == "OK"
    assert world.run("reincarnate", "r", 5).code == "OK"
    again = world.attach(stays.id)
    assert again.say(report(readable_end=10), credit=10).grants == []
    clock.advance(SESSION_MS + 1)
    assert again.say(report(log_end=10), credit=10).grants, "the session of who is gone is over"
    world.close()
