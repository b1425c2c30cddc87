"""The wake of the next holder of a serial subscription brings its lease; lost or late, it does no harm."""

from collections.abc import Callable

import pytest

from kafkadur.fetch.filtering import Takes
from kafkadur_coordinators.interface import Pushed, Standing
from kafkadur_coordinators.redis.replies import WAKE, pushed
from tests.integration.coordinators.together import SERIAL, Peer, Together
from tests.integration.coordinators.world import Member, World, report, rolled_back, settled

Make = Callable[..., World]


def pass_on(world: World) -> tuple[Member, list[tuple[str, bytes]]]:
    """The first member settles two messages and hands over; returns the second one, and what it heard."""
    first, second = world.attach(), world.attach()
    second.say(credit=3)
    (grant,) = first.say(report(readable_end=6), credit=3, span=2).grants
    world.ears.messages()
    said = first.build(report(position=2, settled=[settled(grant.token, 0, 2)]), credit=3, span=2)
    assert first.send(said._replace(handover=True)).standing is Standing.STANDBY
    return second, world.ears.messages()


def with_turns(
    make: Make, messages: int, *, window: int = 1, takes: Takes | None = None
) -> tuple[Together, Peer, Peer]:
    """Two members that take turns; the one that has the turn is returned first."""
    together = Together(make("serial"), SERIAL)
    together.takes = takes
    first, second = (together.join(name, window=window) for name in ("first", "second"))
    together.settle()
    together.write(0, messages)
    together.settle()
    return (together, first, second) if first.member.statistics()["leases"] else (together, second, first)


def hand_over(together: Together, one: Peer) -> Pushed:
    """The member that has the turn settles all, and hands over; returns what the other one is to hear."""
    assert one.take_all() == list(range(one.member.window))
    one.ack_all()
    exchange = one.member.build(together.now())
    assert exchange is not None
    assert exchange.handover
    one.member.apply(one.session.exchange(exchange), together.now())
    (push,) = [push for _, message in together.world.ears.messages() if (push := pushed(message))]
    return push


def test_the_wake_of_the_next_holder_brings_what_its_exchange_would(make: Make) -> None:
    world = make("serial")
    second, messages = pass_on(world)
    ((channel, message),) = messages
    assert channel == second.channel
    push = pushed(message)
    assert push is not None
    session = second.session
    assert (push.incarnation, push.attachment, push.number) == (session.incarnation, session.attachment, 1)
    assert [(grant.start, grant.horizon) for grant in push.reply.grants] == [(2, 5)], (
        "as much as it has room for"
    )
    found = second.say(report(), credit=3, span=3)  # it has not heard it
    assert found.grants == push.reply.grants
    assert (found.token, found.standing, found.partitions) == (
        push.reply.token, push.reply.standing, push.reply.partitions,
    )  # fmt: skip
    assert not second.say(report(), credit=3, span=3).grants, "once is enough"


def test_a_lane_is_told_together_with_what_comes_before_it(make: Make) -> None:
    """A push was lost, and the next exchange touches no partition."""
    world = make("serial")
    first, second = world.attach(), world.attach()
    second.say(credit=3)
    (grant,) = first.say(report(readable_end=6), credit=3, span=2).grants
    part = report(position=2, settled=[settled(grant.token, 0, 1)], returned=[rolled_back(grant.token, 1, 2)])
    said = first.build(part, credit=3, span=2)
    assert first.send(said._replace(handover=True)).standing is Standing.STANDBY
    found = second.say(credit=3, span=3)
    assert not found.grants, "its offsets come after the one that was rolled back"
    assert list(found.orphaned) == [0], "it is to touch the partition"
    told = second.say(report(), credit=3, span=3)
    assert [(grant.kind, grant.start) for grant in told.grants] == [("runs", 1), ("lane", 2)]


def test_a_member_without_room_is_not_next_and_is_sent_nothing(make: Make) -> None:
    world = make("serial")
    first, second = world.attach(), world.attach()
    second.say(credit=0)
    (grant,) = first.say(report(readable_end=6), credit=3, span=2).grants
    said = first.build(report(position=2, settled=[settled(grant.token, 0, 2)]), credit=3, span=2)
    assert first.send(said._replace(handover=True)).standing is Standing.ACTIVE
    assert not [message for _, message in world.ears.messages() if message != WAKE]


@pytest.mark.parametrize(
    "message", [b"", b"x", b"\xc1", b"\x93\x01\x02", b"\x93\x01\x02\x90", b"\x93\x01\x02\x94\x01\x02\x03\x04"]
)
def test_what_cannot_be_read_only_wakes(message: bytes) -> None:
    assert pushed(message) is None


def test_members_that_take_turns_make_one_exchange_a_message(make: Make) -> None:
    together, *peers = with_turns(make, 40)
    before = together.exchanges()
    for place in range(40):
        peer = peers[place % 2]
        assert peer.take() == place
        peer.ack()
        together.settle()
    assert together.exchanges() - before <= 44


def test_a_push_that_is_lost_is_told_again(make: Make) -> None:
    together, *peers = with_turns(make, 10)
    together.pushes = False
    for place in range(10):
        peer = peers[place % 2]
        assert peer.take() == place
        peer.ack()
        together.settle()


def test_who_was_told_dispatches_without_an_exchange(make: Make) -> None:
    together, one, two = with_turns(make, 6, window=3)
    push = hand_over(together, one)
    exchanges = two.member.statistics()["exchanges"]
    two.member.wake(push)
    assert two.take_all() == [3, 4, 5]
    assert two.member.statistics()["exchanges"] == exchanges


def test_a_push_of_records_that_do_not_match_leads_to_an_exchange(make: Make) -> None:
    together, one, two = with_turns(make, 41, takes=lambda message: message.offset() in {0, 40})
    push = hand_over(together, one)
    two.member.wake(push)
    assert two.take() is None
    assert two.member.due(together.now()) <= together.now(), (
        "nothing would come before the session is renewed"
    )
    together.settle()
    assert 40 in {one.take(), two.take()}, "the turns pass on until there is a message that matches"


def test_a_push_of_less_than_was_read_leads_to_an_exchange(make: Make) -> None:
    together, one, two = with_turns(make, 4, window=3)
    push = hand_over(together, one)
    together.write(0, 2)
    two.read()
    two.member.wake(push)
    assert two.take_all() == [3]
    assert two.member.due(together.now()) <= together.now(), "there is more for this turn"
    together.settle()
    assert two.take_all() == [4, 5]


def test_a_push_is_left_alone_while_an_exchange_is_under_way(make: Make) -> None:
    together, one, two = with_turns(make, 6)
    two.member.request_exchange()
    exchange = two.member.build(together.now())
    assert exchange is not None
    push = hand_over(together, one)
    two.member.wake(push)
    assert two.take() is None
    two.member.apply(two.session.exchange(exchange), together.now())
    together.settle()
    assert two.take() == 1


def test_a_push_that_comes_after_a_later_exchange_is_left_alone(make: Make) -> None:
    together, one, two = with_turns(make, 6)
    push = hand_over(together, one)
    together.settle()
    two.member.request_exchange()
    together.settle()
    assert two.take() == 1
    two.ack()
    together.settle()
    assert one.take() == 2
    two.member.wake(push)
    assert two.take() is None, "1 is settled, and it is the other one's turn"
    assert two.member.statistics()["leases"] == 0


def test_a_push_for_an_earlier_attachment_is_left_alone(make: Make) -> None:
    together, one, two = with_turns(make, 6)
    push = hand_over(together, one)
    two.member.lose("a test")
    two.member.wake(push)
    assert two.take() is None
    assert two.member.statistics()["leases"] == 0


def test_a_large_push_is_left_to_an_exchange(make: Make) -> None:
    """The thread that listens answers for the process: it must not be busy for long."""
    together, one, two = with_turns(make, 6_000, window=2_000)
    push = hand_over(together, one)
    two.member.wake(push)
    assert two.take() is None
    together.settle()
    assert two.take_all() == list(range(2_000, 4_000))
