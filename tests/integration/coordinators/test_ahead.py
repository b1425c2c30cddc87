"""What is not written yet, promised to members of a shared subscription: who gets which, what of it."""

from collections.abc import Callable

import pytest

from kafkadur_coordinators.interface import Standing
from tests.integration.coordinators.world import Member, World, report, settled, unread

Make = Callable[..., World]


def promised(world: World, member: Member) -> list[int]:
    """Offsets at or beyond the readable end that a member holds."""
    view = world.partition()
    tokens = {token for token, lease in world.leases().items() if lease.member == member.id}
    runs = [run for run in view.runs if run.token in tokens and run.end > view.readable_end]
    return [offset for run in runs for offset in range(max(run.start, view.readable_end), run.end)]


def test_one_member_is_promised_what_comes_next(make: Make) -> None:
    world = make()
    member = world.attach()
    reply = member.say(report(readable_end=7, reserve=4), credit=10)
    kinds = [(grant.kind, list(grant.stretch) or [grant.start, grant.horizon]) for grant in reply.grants]
    assert kinds == [("range", [0, 7]), ("ahead", [7, 11])]
    assert (reply.partitions[0].free_from, reply.partitions[0].due_ms) == (11, -1)


def test_nothing_is_promised_while_something_waits(make: Make) -> None:
    world = make()
    member = world.attach()
    reply = member.say(report(readable_end=7, reserve=4), credit=5)
    assert [(grant.kind, grant.horizon) for grant in reply.grants] == [("range", 5)]
    assert reply.partitions[0].free_from == 5


def test_members_are_promised_every_nth_offset(make: Make) -> None:
    world = make()
    members = [world.attach() for _ in range(3)]
    for member in members:
        member.say(report(), credit=5)
    for member in members:
        member.say(report(reserve=3), credit=5)
    assert [promised(world, member) for member in members] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert members[0].say(report(reserve=3), credit=5).partitions[0].free_from == 9


def test_a_promise_takes_up_no_credit(make: Make) -> None:
    world = make(partitions=2)
    member = world.attach()
    member.say(report(0, reserve=2), credit=3)
    reply = member.say(report(1, readable_end=3), credit=3)
    assert [(grant.kind, grant.records) for grant in reply.grants] == [("range", 3)]


def test_what_comes_is_settled_by_whom_it_was_promised(make: Make) -> None:
    world = make()
    first, second = world.attach(), world.attach()
    for member in (first, second):
        member.say(report(), credit=5)
    tokens: list[int] = []
    for member in (first, second):
        tokens += [grant.token for grant in member.say(report(reserve=2), credit=5).grants]
    # 0 and 2 are the first one's, 1 and 3 the second one's: the later one is acknowledged first
    second.say(report(settled=[settled(tokens[1], 1, 2)]), credit=5)
    view = world.partition()
    assert (view.readable_end, view.floor, view.backlog) == (2, 0, 1)
    first.say(report(settled=[settled(tokens[0], 0, 1)]), credit=5)
    assert (world.partition().floor, world.partition().backlog) == (2, 0)
    assert promised(world, first) == [2]


def test_what_is_given_back_at_the_end_was_never_promised(make: Make) -> None:
    world = make()
    member = world.attach()
    token = member.say(report(readable_end=3, reserve=4), credit=5).grants[1].token
    member.say(report(returned=[unread(token, 5, 7)]), credit=0)
    assert world.partition().next == 5
    member.say(report(returned=[unread(token, 3, 5)], done=[token]), credit=0)
    assert (world.partition().next, list(world.partition().runs)) == (3, [])


def test_what_is_given_back_in_between_is_anybodys_when_it_comes(make: Make) -> None:
    world = make()
    first, second = world.attach(), world.attach()
    for member in (first, second):
        member.say(report(), credit=5)
    token = first.say(report(reserve=2), credit=5).grants[0].token
    second.say(report(reserve=2), credit=5)
    reply = first.say(report(returned=[unread(token, 0, 1)]), credit=0)
    assert reply.partitions[0].free_from == 0
    assert second.say(report(), credit=5).grants == [], "it is not there yet"
    grants = second.say(report(readable_end=1), credit=5).grants
    assert [(grant.kind, grant.start, grant.attempts, grant.redelivered) for grant in grants] == [
        ("runs", 0, 0, False)
    ]


def test_whoever_watches_is_told_of_what_is_given_back(make: Make) -> None:
    world = make()
    first, second = world.attach(), world.attach()
    first.say(report(), credit=5)
    token = first.say(report(reserve=2), credit=5).grants[0].token
    second.say(report(), credit=5)
    assert world.watcher(0) == first.id
    world.ears.heard()
    # the watcher has no room any more: the other one watches from now on, and is woken for that
    first.say(report(returned=[unread(token, 0, 3)]), credit=0)
    assert second.channel in world.ears.heard()


def test_what_was_promised_to_the_dead_is_no_attempt(make: Make) -> None:
    world = make(policy=(3, 0, 0, 0, 1))
    first, second = world.attach(), world.attach()
    for member in (first, second):
        member.say(report(), credit=5)
    first.say(report(reserve=2), credit=5)
    second.say(report(reserve=2), credit=5)
    world.ears.forget(first.channel)
    second.say(ask=True, credit=5)
    world.clock.advance(600)
    reply = second.say(report(), ask=True, credit=5)
    assert reply.role.members == 1
    assert world.partition().runs[0].token == 0
    grants = second.say(report(readable_end=4), credit=5).grants
    assert [(grant.start, grant.attempts, grant.seen) for grant in grants] == [(0, 0, 3)]


def test_a_last_attempt_has_promises_given_back(make: Make) -> None:
    world = make(policy=(2, 0, 0, 0, 1))
    doomed = world.attach()
    doomed.say(report(readable_end=1), credit=1)
    other = world.attach()
    other.say(report(), credit=5)
    token = other.say(report(reserve=4), credit=5).grants[0].token
    world.ears.forget(doomed.channel)
    other.say(ask=True, credit=5)
    world.clock.advance(600)
    reply = other.say(report(), ask=True, credit=5)
    # what ended its holder may be the reason: it comes alone, to a member that has nothing else
    assert (reply.standing, reply.grants) == (Standing.ASKED, [])
    reply = other.say(report(returned=[unread(token, 1, 5)], done=[token]), credit=5)
    assert [(grant.start, grant.attempts, grant.isolated) for grant in reply.grants] == [(0, 1, True)]


@pytest.mark.parametrize("kind", ["exclusive", "priority", "serial", "key-ordered"])
def test_other_types_promise_nothing(make: Make, kind: str) -> None:
    world = make(kind)
    member = world.attach()
    reply = member.say(report(reserve=4), credit=5, span=10)
    assert {grant.kind for grant in reply.grants} <= {"lane"}
