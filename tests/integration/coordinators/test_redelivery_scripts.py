"""Redelivery in single exchanges: attempts, back-off, suspects, what is kept back, lanes of keys passed on.

What all of it means together, over random lives, is compared in `test_model.py`.
"""

from collections.abc import Callable

import pytest

from kafkadur_coordinators.interface import ExchangeReply, PartitionReport, Run
from tests.integration.coordinators.world import (
    Member,
    World,
    released,
    report,
    rolled_back,
    settled,
    unread,
)

Make = Callable[..., World]

#: Most attempts, first and longest back-off (ms), strict order, lanes.
TWO_ATTEMPTS = (2, 0, 0, 0, 1)


def die(member: Member) -> Member:
    """End what a member holds uncleanly: its process begins anew under the same name."""
    return member.world.attach(member.id)


def runs(world: World, partition: int = 0) -> list[tuple[int, int, int, bool]]:
    """Start, end, attempts and suspicion of the exceptions of a partition."""
    return [(run.start, run.end, run.attempts, run.suspect) for run in world.partition(partition).runs]


def told(reply: ExchangeReply) -> list[tuple[str, int, int, int]]:
    """Kind, start, horizon and attempts of the leases that a reply brings."""
    return [(grant.kind, grant.start, grant.horizon, grant.attempts) for grant in reply.grants]


def offer(member: Member, *parts: PartitionReport, span: int = 10) -> ExchangeReply:
    """Offer the lanes."""
    return member.send(member.build(*parts, credit=5, span=span)._replace(handover=True))


# -- how many attempts


def test_suspects_come_again_in_halves_and_the_last_attempt_alone(make: Make) -> None:
    world = make(policy=(4, 0, 0, 0, 1))
    member = world.attach()
    member.say(report(readable_end=16), credit=16)
    seen: list[tuple[str, int, int, int]] = []
    for _ in range(3):
        member = die(member)
        seen += told(member.say(report(), credit=16))
    assert seen == [("runs", 0, 4, 1), ("runs", 0, 2, 2), ("runs", 0, 1, 3)]
    assert [grant.isolated for grant in member.grants.values()] == [True]
    die(member).say(report(), credit=0)
    assert runs(world) == [(0, 1, 4, False), (1, 2, 3, True), (2, 4, 2, True), (4, 16, 1, True)]


def test_without_a_limit_suspects_are_halved_from_1024_down_to_one(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=2_000), credit=2_000)
    sizes: list[int] = []
    for _ in range(12):
        member = die(member)
        sizes += [grant.records for grant in member.say(report(), credit=2_000).grants]
    assert sizes == [512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1, 1]
    assert not any(grant.isolated for grant in member.grants.values())


@pytest.mark.parametrize("most", [1, 2, 3])
def test_only_the_last_attempt_alone_uses_an_offset_up(make: Make, most: int) -> None:
    world = make(policy=(most, 0, 0, 0, 1))
    member = world.attach()
    member.say(report(readable_end=1), credit=1)
    counted: list[tuple[int, bool]] = []
    for _ in range(most + 1):
        member = die(member)
        reply = member.say(report(), credit=1)
        counted += [(grant.attempts, grant.isolated) for grant in reply.grants]
    # the first lease of an offset is no suspect's: it may count one attempt, unless that would be the last
    assert counted == [
        *((attempt, attempt == most - 1) for attempt in range(min(1, most - 1), most)),
        *((most, False) for _ in range(most + 1 - (most - min(1, most - 1)))),
    ]


def test_who_had_more_attempts_than_are_allowed_keeps_their_number(make: Make) -> None:
    world = make(policy=TWO_ATTEMPTS)
    member = world.attach()
    member.say(report(readable_end=1), credit=1)
    for token in (1, 2):
        member.say(report(returned=[rolled_back(token, 0, 1)], done=[token]), credit=1)
    assert runs(world) == [(0, 1, 2, False)]
    reply = die(member).say(report(), credit=1)
    assert told(reply) == [("runs", 0, 1, 2)]
    assert not reply.grants[0].isolated


@pytest.mark.parametrize(
    ("verdict", "after"),
    [
        (rolled_back(2, 0, 2), (0, 2, 2, False)),
        (released(2, 0, 2), (0, 2, 1, False)),
        (unread(2, 0, 2), (0, 2, 1, True)),
    ],
)
def test_what_is_said_of_a_suspect_clears_it(
    make: Make, verdict: object, after: tuple[int, int, int, bool]
) -> None:
    world = make(policy=(4, 0, 0, 0, 1))
    member = world.attach()
    member.say(report(readable_end=2), credit=2)
    member = die(member)
    assert told(member.say(report(), credit=2)) == [("runs", 0, 2, 1)]
    member.say(report(returned=[verdict], done=[2]), credit=0)
    assert runs(world) == [after]


def test_who_holds_the_whole_makes_no_suspects(make: Make) -> None:
    world = make("exclusive", policy=(3, 0, 0, 0, 1))
    member = world.attach(kind="whole")
    member.say(report(readable_end=9), credit=9)
    counted: list[tuple[str, int, int, int]] = []
    for _ in range(4):
        member = world.attach(member.id, kind="whole")
        counted += told(member.say(report(), credit=9))
    assert counted == [("runs", 0, 9, attempts) for attempts in (1, 2, 2, 2)]
    assert not world.partition().runs[0].suspect


# -- who gets suspects


def test_a_member_holds_one_lease_of_suspects(make: Make) -> None:
    world = make(policy=(3, 0, 0, 0, 1))
    first, second = world.attach(), world.attach()
    first.say(report(readable_end=6), credit=6)
    first = die(first)
    second.say(report(readable_end=8), credit=9)
    assert told(second.say(report(), credit=9)) == []
    held = [(v.kind, v.start, v.horizon) for v in world.leases().values()]
    assert held == [("runs", 0, 2), ("range", 6, 8)]
    assert told(first.say(report(), credit=9)) == [("runs", 2, 4, 1)]
    done = min(second.grants)
    second.say(report(settled=[settled(done, 0, 2)], done=[done]), credit=9)
    assert {v.start: v.member for v in world.leases().values()}[4] == second.id


def kept_free(make: Make) -> tuple[World, Member, Member]:
    """Make offset 0 wait for its last attempt, while `busy` holds offset 1 and `free` has no credit."""
    world = make(policy=TWO_ATTEMPTS)
    free, busy = world.attach(), world.attach()
    free.say(report(readable_end=1), credit=1)
    busy.say(report(readable_end=2), credit=1)
    free = die(free)
    busy.say(report(), credit=5)
    assert runs(world) == [(0, 1, 1, True)]
    assert [v.start for v in world.leases().values()] == [1]
    return world, free, busy


def test_a_busy_member_is_kept_free_for_a_last_attempt(make: Make) -> None:
    world, free, busy = kept_free(make)
    assert told(busy.say(report(readable_end=9), credit=5)) == [], "it is kept free"
    assert told(free.say(report(), credit=3)) == [("range", 2, 5, 0)]
    reply = busy.say(report(settled=[settled(2, 1, 2)], done=[2]), credit=5)
    assert told(reply) == [("runs", 0, 1, 1)]
    assert reply.grants[0].isolated
    assert told(busy.say(report(readable_end=12), credit=5)) == [], "nothing beside a last attempt"
    token = reply.grants[0].token
    reply = busy.say(report(settled=[settled(token, 0, 1)], done=[token]), credit=5)
    assert told(reply) == [("range", 5, 10, 0)]
    assert world.partition().floor == 2


def test_a_member_kept_free_is_sent_where_the_last_attempt_is(make: Make) -> None:
    world = make(partitions=2, policy=TWO_ATTEMPTS)
    free, busy = world.attach(), world.attach()
    free.say(report(0, readable_end=1), credit=1)
    busy.say(report(1, readable_end=1), credit=1)
    die(free)
    busy.say(report(0), credit=5)
    reply = busy.say(report(1, settled=[settled(2, 0, 1)], done=[2]), credit=5)
    assert (told(reply), reply.orphaned) == ([], [0])
    reply = busy.say(report(0), credit=5)
    assert (told(reply), reply.orphaned) == ([("runs", 0, 1, 1)], [])


def test_who_was_kept_free_for_nothing_gets_other_work_at_once(make: Make) -> None:
    world, free, busy = kept_free(make)
    busy.say(report(), credit=0)
    assert told(free.say(report(readable_end=4), credit=1)) == [("runs", 0, 1, 1)], "who had nothing got it"
    reply = busy.say(report(settled=[settled(2, 1, 2)], done=[2]), credit=5)
    assert told(reply) == [("range", 2, 4, 0)], "nobody else would come for it"
    assert world.partition().next == 4


def test_a_kept_member_that_fell_silent_is_passed_over(make: Make) -> None:
    world = make(partitions=2, policy=TWO_ATTEMPTS)
    free, busy = world.attach(), world.attach()
    free.say(report(0, readable_end=1), credit=1)
    busy.say(report(1, readable_end=1), credit=1)
    free = die(free)
    busy.say(report(0), credit=5)
    busy.say(report(1, settled=[settled(2, 0, 1)], done=[2]), credit=5)  # it is to look at partition 0 now
    world.ears.forget(busy.channel)
    assert told(free.say(report(0), credit=1)) == [("runs", 0, 1, 1)]
    assert {v.member for v in world.leases().values()} == {free.id}


# -- when it comes again


def test_the_back_off_doubles_up_to_the_longest_and_is_spread(make: Make) -> None:
    world = make(policy=(0, 100, 700, 0, 1))
    member = world.attach()
    member.say(report(readable_end=50), credit=50)
    for attempts, longest in enumerate((100, 200, 400, 700, 700), start=1):
        tokens = sorted(token for token, v in world.leases().items() if v.member == member.id)
        parts = [
            rolled_back(token, offset, offset + 1, delay=-1)
            for token in tokens
            for offset in range(member.grants[token].start, member.grants[token].horizon)
        ]
        now = world.clock.now
        member.say(report(returned=parts, done=tokens), credit=0)
        found = world.partition().runs
        assert {run.attempts for run in found} == {attempts}
        waits = {run.start: run.due - now for run in found}
        assert all(longest // 2 <= wait <= longest for wait in waits.values())
        assert len(set(waits.values())) > 10, "what failed together comes again apart"
        assert member.say(report(), credit=50).grants == []
        first = min(waits.values())
        assert member.say(report(), credit=0).partitions[0].due_ms == first
        world.clock.advance(first - 1)
        assert member.say(report(), credit=50).grants == []
        world.clock.advance(1)
        due = {offset for offset, wait in waits.items() if wait == first}
        assert {grant.start for grant in member.say(report(), credit=50).grants} == due
        world.clock.advance(longest - first)
        while member.say(report(), credit=50).grants:
            pass


def test_the_same_place_waits_the_same_time(make: Make) -> None:
    waits: list[list[int]] = []
    for _ in range(2):
        world = make(policy=(0, 1_000, 1_000, 0, 1))
        member = world.attach()
        member.say(report(readable_end=9), credit=9)
        member.say(report(returned=[rolled_back(1, o, o + 1, delay=-1) for o in range(9)]), credit=0)
        waits.append([run.due - world.clock.now for run in world.partition().runs])
    assert waits[0] == waits[1]


def test_a_release_after_no_attempt_waits_for_nothing(make: Make) -> None:
    world = make(policy=(0, 1_000, 1_000, 0, 1))
    member = world.attach()
    member.say(report(readable_end=1), credit=1)
    member.say(report(returned=[released(1, 0, 1)._replace(delay=-1)], done=[1]), credit=0)
    assert world.partition().runs == (Run(0, 1, 0, True, 0, 0),)


@pytest.mark.parametrize(
    ("type_", "strict", "waits"),
    [
        ("shared", 0, True),
        ("key-ordered", 0, True),
        ("exclusive", 0, False),
        ("serial", 0, False),
        ("priority", 0, False),
        ("exclusive", 1, True),
        ("serial", 1, True),
    ],
)
def test_after_an_unclean_end_what_is_in_order_comes_at_once(
    make: Make, type_: str, strict: int, waits: bool
) -> None:
    world = make(type_, policy=(5, 1_000, 8_000, strict, 1))
    member = world.attach()
    member.say(report(readable_end=4), credit=4)
    die(member).say(report(), credit=0, span=0)
    found = world.partition().runs
    assert [(run.start, run.end, run.attempts, run.suspect) for run in found] == [(0, 4, 1, True)]
    assert [500 <= run.due - world.clock.now <= 1_000 if waits else run.due == 0 for run in found] == [True]


# -- what is kept back


def test_on_a_lane_nothing_new_comes_before_a_ready_exception(make: Make) -> None:
    world = make("exclusive", policy=(4, 0, 0, 0, 1))
    member = world.attach()
    member.say(report(readable_end=8), span=8)
    member = die(member)
    assert told(member.say(report(readable_end=20), span=8)) == [("runs", 0, 4, 1)]
    assert world.partition().next == 8
    token = max(member.grants)
    reply = member.say(report(settled=[settled(token, 0, 4)], done=[token]), span=8)
    assert told(reply) == [("runs", 4, 8, 1), ("lane", 8, 16, 0)]


def test_a_lane_is_not_extended_while_more_exceptions_wait_than_may_be_read(make: Make) -> None:
    world = make("exclusive")
    member = world.attach()
    member.say(report(readable_end=9), span=9)
    back = [rolled_back(1, 0, 9)]
    reply = member.say(report(position=9, returned=back), span=4)
    assert told(reply) == [("runs", 0, 4, 1)]
    assert reply.horizons == {1: 9}


@pytest.mark.parametrize("strict", [0, 1])
def test_in_strict_order_nothing_new_comes_while_an_exception_waits(make: Make, strict: int) -> None:
    world = make("priority", policy=(0, 0, 0, strict, 1))
    first, second = world.attach(), world.attach()
    first.say(report(readable_end=9), span=9)
    back = [rolled_back(1, 3, 4, delay=9_000)]
    reply = first.say(report(position=4, settled=[settled(1, 0, 3)], returned=back), span=9)
    assert reply.horizons == {1: 9 if strict else 13}
    first.say(report(position=4, returned=[unread(1, 4, reply.horizons[1])]), span=0)
    first.detach(0)
    reply = second.say(report(), span=9)  # the next holder waits, too
    assert told(reply) == ([] if strict else [("lane", 4, 13, 0)])
    world.clock.advance(9_000)
    reply = second.say(report(), span=9)
    assert told(reply) == [("runs", 3, 4, 1), *([("lane", 4, 13, 0)] if strict else [])]


@pytest.mark.parametrize("strict", [0, 1])
def test_in_strict_order_an_exception_waits_for_earlier_ones(make: Make, strict: int) -> None:
    world = make("priority", policy=(0, 0, 0, strict, 1))
    first = world.attach()
    first.say(report(readable_end=9), span=9)
    back = [rolled_back(1, 3, 4, delay=9_000), rolled_back(1, 5, 6, delay=1_000)]
    first.say(report(position=6, settled=[settled(1, 0, 3, 4, 5)], returned=back), span=9)
    world.clock.advance(1_000)
    reply = first.say(report(position=6), span=9)
    assert [each[:3] for each in told(reply)] == ([] if strict else [("runs", 5, 6)])
    assert reply.partitions[0].due_ms == 8_000  # when it is worth while to come again
    world.clock.advance(8_000)
    reply = first.say(report(position=6), span=9)
    assert [each[:3] for each in told(reply)] == ([("runs", 3, 6)] if strict else [("runs", 3, 4)])


def test_in_strict_order_a_turn_does_not_pass_on_for_what_is_kept_back(make: Make) -> None:
    world = make("serial", policy=(0, 0, 0, 1, 1))
    first, second = world.attach(), world.attach()
    second.say(credit=5)
    first.say(report(readable_end=4), credit=5, span=9)
    first.say(report(position=1, returned=[rolled_back(1, 0, 1, delay=9_000)]), credit=5)
    assert world.field("holder") == first.id
    offer(first, report(position=1))
    assert world.field("holder") == first.id, "there is nothing for the next one yet"
    world.clock.advance(9_000)
    second.say(credit=5)
    offer(first, report(position=1))
    assert world.field("holder") == second.id


def test_who_passed_suspects_on_may_get_suspects_again(make: Make) -> None:
    world = make("serial", policy=(4, 0, 0, 0, 1))
    first, second = world.attach(), world.attach()
    first.say(report(readable_end=5), credit=5)
    first = die(first)
    second.say(credit=5)
    assert told(first.say(report(), credit=5)) == [("runs", 0, 4, 1)]
    for holder, waiting in ((first, second), (second, first)):  # it was not handed out yet
        offer(holder, report())
        assert world.field("holder") == waiting.id
        assert told(waiting.say(report(), credit=5)) == [("runs", 0, 4, 1)]


def test_what_was_set_aside_under_a_lane_is_not_lost_when_it_is_offered(make: Make) -> None:
    world = make("serial")
    first, second = world.attach(), world.attach()
    span = 70_000
    first.say(report(readable_end=span), credit=span, span=span)
    second.say(report(), credit=span, span=span)
    first.say(report(position=0), credit=span, span=span)
    assert world.partition().base > 0, "the bitmap was cut short, and what it held set aside"
    offer(first, report(position=10, settled=[settled(1, 0, 10)]), span=span)
    assert world.field("holder") == second.id
    known = {0, *world.leases()}
    assert all(run.token in known for run in world.partition().runs), "held under a token that is no more"
    reply = second.say(report(position=-1), credit=span, span=span)
    assert (reply.grants[0].start, world.partition().floor) == (10, 10)


def test_what_is_not_written_yet_is_not_set_aside(make: Make) -> None:
    world = make("exclusive")
    member = world.attach()
    member.say(report(readable_end=3), span=100_000)
    member.say(report(readable_end=4, position=0), span=100_000)
    assert (world.partition().base, world.partition().runs) == (0, ())
    member.say(report(readable_end=80_000, position=0), span=100_000)
    assert world.partition().base == 32_768


# -- lanes of keys


def test_lanes_of_keys_are_spread_over_members(make: Make) -> None:
    world = make("key-ordered", partitions=6, policy=(0, 0, 0, 0, 3))  # two partitions of three lanes
    expected = [
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 1],
        [0, 0, 2, 1, 1, 1],
        [0, 0, 2, 1, 1, 3],
        [0, 2, 4, 1, 1, 3],
    ]
    members: list[Member] = []
    for keepers in expected:
        members.append(world.attach())
        for _ in range(2):  # what is asked for is given up, then taken
            for member in members:
                asked = member.say(*(report(p) for p in range(6))).asked
                member.say(*(report(p, drained=1) for p in asked))
                assert not member.say(*(report(p) for p in range(6))).asked
        held = {v.partition: v.member for v in world.leases().values()}
        assert [held[p] for p in range(6)] == [members[rank].id for rank in keepers]


def test_a_lane_of_keys_passes_on_with_an_exception_that_is_not_due(make: Make) -> None:
    world = make("key-ordered", partitions=2, policy=(0, 0, 0, 0, 2))
    first = world.attach()
    first.say(report(0, readable_end=9), report(1, readable_end=9), span=9)
    lane = next(token for token, grant in first.grants.items() if grant.partition == 1)
    reply = first.say(
        report(1, position=3, settled=[settled(lane, 0, 2)], returned=[rolled_back(lane, 2, 3, delay=5_000)]),
        span=9,
    )
    assert [(g.kind, g.start, g.attempts, g.due_ms) for g in reply.grants] == [("runs", 2, 1, 5_000)]
    assert reply.partitions[0].due_ms == -1, "who holds it knows when it is due"
    second = world.attach()
    assert second.say(report(1), span=9).grants == []
    reply = first.say(report(1, position=4), span=9)
    assert (reply.asked, reply.horizons) == ([1], {lane: 12})
    assert second.say(report(1), span=9).grants == [], "it is not given up yet"
    world.clock.advance(1_000)
    reply = first.say(report(1, position=4, settled=[settled(lane, 3, 4)], drained=1), span=9)
    assert reply.held == frozenset(t for t, grant in first.grants.items() if grant.partition == 0)
    reply = second.say(report(1), span=9)
    assert [(g.kind, g.start, g.horizon, g.attempts, g.due_ms) for g in reply.grants] == [
        ("runs", 2, 3, 1, 4_000),
        ("lane", 4, 13, 0, 0),
    ]
    assert first.say(report(0), report(1), span=9).asked == []


def test_a_keeper_holds_all_suspects_and_may_dispatch_one_lease_of_them(make: Make) -> None:
    world = make("key-ordered", partitions=2, policy=(3, 0, 0, 0, 1))
    member = world.attach()
    member.say(report(0, readable_end=6), report(1, readable_end=2), span=6)
    member = die(member)
    reply = member.say(report(0), report(1), span=6)
    assert [(g.partition, g.kind, g.start, g.horizon, g.due_ms) for g in reply.grants] == [
        (0, "runs", 0, 2, 0),
        (0, "runs", 2, 4, -1),
        (0, "runs", 4, 6, -1),
        (0, "lane", 6, 12, 0),
        (1, "runs", 0, 2, -1),
        (1, "lane", 2, 8, 0),
    ]
    first, second, third, _, other, _ = [grant.token for grant in reply.grants]
    assert (reply.armed, [state.due_ms for state in reply.partitions]) == (first, [0, 0])
    reply = member.say(report(0, settled=[settled(first, 0, 1)]), report(1), span=6)
    assert (reply.grants, reply.armed) == ([], first)
    reply = member.say(report(1), report(0, settled=[settled(first, 1, 2)], done=[first]), span=6)
    assert (reply.grants, reply.armed) == ([], other), "the first lane that is served after it has ended"
    reply = member.say(report(1, settled=[settled(other, 0, 2)], done=[other]), report(0), span=6)
    assert (reply.armed, [state.due_ms for state in reply.partitions]) == (second, [-1, 0])
    reply = member.say(report(0, settled=[settled(second, 2, 4)], done=[second]), span=6)
    assert (reply.armed, reply.partitions[0].due_ms) == (third, -1)
    member = die(member)
    reply = member.say(report(0), span=6)
    assert [(g.start, g.horizon, g.attempts, g.isolated) for g in reply.grants if g.kind == "runs"] == [
        (4, 5, 2, True),
        (5, 6, 2, True),
    ]


def test_a_suspect_that_was_not_to_be_dispatched_yet_counts_no_attempt(make: Make) -> None:
    world = make("key-ordered", policy=(3, 0, 0, 0, 1))
    member = world.attach()
    member.say(report(readable_end=4), span=4)
    die(member).say(report(), span=4)
    member = die(member)
    reply = member.say(report(), span=4)
    assert [(g.start, g.horizon, g.attempts) for g in reply.grants if g.kind == "runs"] == [
        (0, 1, 2),
        (1, 2, 2),
        (2, 4, 1),
    ]


def test_suspects_are_armed_in_order_when_they_are_due(make: Make) -> None:
    """A later one may have the key of an earlier one, which its keeper would wait for."""
    world = make("key-ordered", policy=(3, 4_000, 4_000, 0, 1))
    member = world.attach()
    member.say(report(readable_end=4), span=4)
    member = die(member)
    reply = member.say(report(), span=4)
    assert {g.due_ms for g in reply.grants if g.kind == "runs"} == {-1}
    assert (reply.armed, reply.partitions[0].due_ms > 0) == (0, True)
    world.clock.advance(4_000)
    reply = member.say(report(), span=4)
    assert member.grants[reply.armed].start == 0
    member = die(member)  # the armed one is delayed again, the others are due
    reply = member.say(report(), span=4)
    assert (reply.armed, reply.partitions[0].due_ms > 0) == (0, True)
    world.clock.advance(reply.partitions[0].due_ms)
    reply = member.say(report(), span=4)
    assert member.grants[reply.armed].start == 0


def test_a_keeper_holds_a_bounded_number_of_suspects_and_always_one_of_each_lane(make: Make) -> None:
    world = make("key-ordered", partitions=2, policy=(2, 0, 0, 0, 1))
    member = world.attach()
    member.say(report(0, readable_end=300), report(1, readable_end=3), span=300)
    member = die(member)
    reply = member.say(report(0), report(1), span=300)
    held = [(g.partition, g.start) for g in reply.grants]
    assert held[-1] == (1, 0)
    assert held[:-1] == [(0, n) for n in range(len(held) - 1)]
    assert 100 <= len(held) <= 103
    assert not any(g.kind == "lane" for g in reply.grants)
    token = reply.armed
    assert member.grants[token].start == 0
    # one that was rolled back is granted beside them
    reply = member.say(report(0, returned=[rolled_back(token, 0, 1)], done=[token]), span=300)
    assert [(g.start, g.attempts) for g in reply.grants] == [(0, 2)]
    assert member.grants[reply.armed].start == 1
    kinds: list[str] = []
    for n in range(1, 300):
        verdict = settled(reply.armed, n, n + 1)
        reply = member.say(report(0, settled=[verdict], done=[reply.armed]), span=300)
        assert n == 299 or member.grants[reply.armed][1:3] == (0, n + 1)
        kinds += [grant.kind for grant in reply.grants]
    assert kinds.count("lane") == 1


def test_what_was_not_due_when_its_keeper_died_counts_no_attempt(make: Make) -> None:
    world = make("key-ordered", policy=TWO_ATTEMPTS)
    member = world.attach()
    member.say(report(readable_end=2), span=2)
    member.say(report(position=2, returned=[rolled_back(1, 0, 1, delay=5_000)]), span=2)
    due = world.clock.now + 5_000
    member = die(member)
    reply = member.say(report(), span=2)
    assert [(g.start, g.attempts, g.due_ms, g.isolated) for g in reply.grants] == [
        (0, 1, 5_000, False),
        (1, 1, 0, True),
        (2, 0, 0, False),
    ]
    assert world.partition().runs[0].due == due
    world.clock.advance(5_000)
    die(member).say(report(), span=0)
    assert runs(world)[0] == (0, 1, 1, True), "it may have been handed out since"


def test_a_lane_of_keys_asks_nobody_to_come_for_what_is_held(make: Make) -> None:
    world = make("key-ordered")
    member = world.attach()
    member.say(report(readable_end=2), span=2)
    reply = member.say(report(position=1, returned=[rolled_back(1, 0, 1, delay=50)]), span=2)
    token = reply.grants[0].token
    world.clock.advance(60)
    reply = member.say(report(position=1), span=2)
    assert reply.partitions[0].due_ms == -1
    reply = member.say(report(position=1, settled=[settled(token, 0, 1)], done=[token]), span=2)
    assert reply.partitions[0].due_ms == -1


def test_a_lane_whose_keeper_is_gone_needs_nobody_to_give_it_up(make: Make) -> None:
    world = make("key-ordered", partitions=2)
    first, second = world.attach(), world.attach()
    first.say(report(0, readable_end=4), span=4)
    second.say(report(1), span=4)
    assert second.say(report(0), span=4).grants == []
    first.detach()
    reply = second.say(report(0), span=4)
    assert [(g.kind, g.start, g.horizon, g.redelivered) for g in reply.grants] == [
        ("runs", 0, 4, True),
        ("lane", 4, 8, False),
    ]
