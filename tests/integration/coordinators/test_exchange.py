"""Single exchanges against the raw state: refusals, who is served, wake-ups, edges of bitmaps and runs."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import redis

from kafkadur.stack import Valkey, as_administrator
from kafkadur_coordinators.interface import Exchange, PartitionReport, Run
from kafkadur_coordinators.redis import scripts
from kafkadur_sharing.errors import CoordinatorUnavailable
from tests.integration.coordinators.world import (
    SESSION_MS,
    Member,
    World,
    blob,
    refusal,
    released,
    report,
    rolled_back,
    settled,
    unread,
)

Make = Callable[..., World]


def code(call: Callable[[], object]) -> str:
    """The code a call is refused with; OK if it is not."""
    refused = refusal(call)
    return "OK" if refused is None else refused.code


def refused_unchanged(
    world: World, member: Member, *parts: PartitionReport, number: int | None = None
) -> str:
    """Send an exchange that must change nothing; returns its code."""
    before = world.dump()
    said = Exchange(
        number=member.number + 1 if number is None else number,
        credit=5,
        have=member.have,
        ask_presence=True,
        span=10,
        parts=parts,
    )
    answer = code(lambda: member.session.exchange(said))
    assert world.dump() == before
    return answer


# -- refusals


def test_an_older_exchange_is_stale(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say()
    member.say()
    assert refused_unchanged(world, member, number=1) == "STALE"


def test_who_is_not_attached_is_fenced(make: Make) -> None:
    world = make()
    member = world.attach()
    member.detach()
    assert refused_unchanged(world, member, report(readable_end=5)) == "FENCED"


def test_an_exchange_of_an_earlier_attachment_is_refused(make: Make) -> None:
    """It was under way for long: its member has attached again meanwhile, and counts from one."""
    world = make("serial")
    member = world.attach("m")
    late = member.build(report(readable_end=5), credit=5)._replace(number=9, handover=True)
    again = world.attach("m")
    again.say(report(readable_end=5), credit=5)
    assert again.session.attachment > member.session.attachment
    before = world.dump()
    assert code(lambda: member.session.exchange(late)) == "FENCED"
    assert world.dump() == before


def test_a_member_holds_a_thousand_leases_at_most(make: Make) -> None:
    world = make()
    member = world.attach()
    for avail in range(1, 1_002):
        member.say(report(readable_end=avail), credit=5_000)
    assert len(world.leases()) == 1_000
    assert member.say(report(readable_end=1_002), credit=5_000).grants == []
    reply = member.say(report(settled=[settled(1, 0, 1)], done=[1]), credit=5_000)
    assert [(grant.start, grant.horizon) for grant in reply.grants] == [(1_000, 1_002)]


def test_an_exchange_of_another_incarnation_is_refused(make: Make) -> None:
    world = make()
    member = world.attach()
    session = world.session("another")
    session.truncate({0: 0}, incarnation=7)
    assert session.incarnation == 7
    assert refused_unchanged(world, member, report(readable_end=5)) == "INCARNATION"


def test_a_member_of_a_later_incarnation_shows_that_this_is_an_old_copy(make: Make) -> None:
    """As after the return to a master that another one had replaced."""
    world = make()
    member = world.attach()
    member.session.incarnation += 1
    assert refused_unchanged(world, member, report(readable_end=5)) == "RESTARTED"


def test_an_exchange_of_another_subscription_is_refused(make: Make) -> None:
    world = make()
    member = world.attach()
    other = make()
    other.address = world.address
    stranger = Member(world=other, id=member.id, session=other.session(member.id), attached=member.attached)
    stranger.session.incarnation = member.session.incarnation
    stranger.session.attachment = member.session.attachment
    assert refused_unchanged(world, stranger) == "GONE"


def test_a_state_of_another_version_is_refused(make: Make) -> None:
    world = make()
    member = world.attach()
    world.coordinator.command("HSET", world.address.fixed()[0], "state_version", "4")
    assert refused_unchanged(world, member) == "VERSION"
    assert code(lambda: world.coordinator.peek(world.address)) == "VERSION"


def test_a_partition_nobody_knows_is_refused(make: Make) -> None:
    world = make()
    member = world.attach()
    assert refused_unchanged(world, member, report(0), report(1)) == "MISSING"


@pytest.mark.parametrize(
    "verdict",
    [
        {"settled": [settled(1, 7, 9)]},
        {"settled": [settled(1, 9, 14)]},
        {"settled": [settled(1, 10, 9)]},
        {"settled": [settled(1, 9)]},
        {"settled": [blob(1, [7])]},
        {"settled": [blob(1, [13])]},
        {"settled": [blob(1, [8, 13])]},
        {"settled": [blob(1, [8])._replace(blob_from=4)]},
        {"settled": [blob(1, [0, 8])]},
        {"settled": [blob(1, [8, 24])]},
        {"returned": [rolled_back(1, 7, 9)]},
        {"returned": [unread(1, 12, 14)]},
    ],
)
def test_a_verdict_outside_its_lease_changes_nothing(make: Make, verdict: dict[str, Any]) -> None:
    world = make(starts=(8,))
    member = world.attach()
    member.say(report(readable_end=13), credit=5)
    assert [(g.token, g.start, g.horizon) for g in member.grants.values()] == [(1, 8, 13)]
    assert refused_unchanged(world, member, report(**verdict)) == "INVALID"


def test_a_blob_may_end_with_the_last_byte_of_its_lease(make: Make) -> None:
    world = make(starts=(10,))
    member = world.attach()
    member.say(report(readable_end=21), credit=20)
    member.say(report(settled=[blob(1, [10, 20])]))
    view = world.partition()
    assert [o for o in range(10, 21) if view.is_decided(o)] == [10, 20]


def test_a_partition_named_twice_changes_nothing(make: Make) -> None:
    world = make()
    member = world.attach()
    assert refused_unchanged(world, member, report(0, readable_end=5), report(0, readable_end=7)) == "INVALID"


def test_seventeen_partitions_are_too_many(make: Make) -> None:
    world = make(partitions=17)
    member = world.attach()
    assert refused_unchanged(world, member, *(report(p) for p in range(17))) == "INVALID"
    assert len(member.say(*(report(p) for p in range(16))).partitions) == 16


def test_a_lease_named_under_another_partition_changes_nothing(make: Make) -> None:
    world = make(partitions=2)
    member = world.attach()
    member.say(report(0, readable_end=5), report(1, readable_end=5), credit=20)
    assert refused_unchanged(world, member, report(0, done=[1]), report(1, done=[1])) == "INVALID"


def test_a_token_of_somebody_else_is_refused_and_the_rest_is_applied(make: Make) -> None:
    world = make(partitions=2)
    first, second = world.attach(), world.attach()
    first.say(report(0, readable_end=4), credit=4)
    second.say(report(1, readable_end=4), credit=4)
    reply = second.say(report(0, settled=[settled(1, 0, 4)]), report(1, settled=[settled(2, 0, 2)]))
    assert reply.refused == [1]
    assert [view.floor for view in world.inspect().partitions] == [0, 2]


def test_a_lease_of_an_earlier_attachment_is_refused(make: Make) -> None:
    world = make()
    member = world.attach("m")
    member.say(report(readable_end=4), credit=4)
    again = world.attach("m")
    reply = again.say(report(settled=[settled(1, 0, 4)]))
    assert reply.refused == [1]
    assert [(run.start, run.end, run.attempts) for run in world.partition().runs] == [(0, 4, 1)]


# -- repeats


def test_a_repeat_brings_the_same_grants_and_changes_nothing(make: Make) -> None:
    world = make(partitions=2)
    member = world.attach()
    first = member.say(report(0, readable_end=3), report(1, readable_end=3), credit=4)
    before = world.dump()
    assert member.last is not None
    again = member.session.exchange(member.last)
    assert world.dump() == before
    assert (again.grants, again.refused, again.horizons) == (first.grants, first.refused, first.horizons)


def test_a_repeat_names_the_tokens_that_were_refused(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(done=[77]))
    assert member.last is not None
    assert member.session.exchange(member.last).refused == [77]


# -- who is served


def test_single_messages_go_round_beginning_with_the_first_attached(make: Make) -> None:
    world = make()
    members = [world.attach() for _ in range(3)]
    for member in reversed(members):
        member.say(credit=10)
    got: list[str] = []
    for avail in range(1, 8):
        members[0].say(report(readable_end=avail), credit=10)
        lease = world.leases()[avail]
        got.append(lease.member)
    assert got == [members[i % 3].id for i in range(7)]


def test_a_backlog_is_divided_by_those_who_want_it(make: Make) -> None:
    world = make()
    members = [world.attach() for _ in range(3)]
    for member in members:
        member.say(credit=100)
    members[0].say(report(readable_end=90), credit=100)
    assert [(v.start, v.horizon, v.member) for v in world.leases().values()] == [
        (0, 30, members[0].id),
        (30, 60, members[1].id),
        (60, 90, members[2].id),
    ]


def test_nobody_gets_more_than_its_credit(make: Make) -> None:
    world = make(partitions=3)
    member = world.attach()
    reply = member.say(*(report(p, readable_end=50) for p in range(3)), credit=60)
    assert sum(grant.records for grant in reply.grants) == 60


def test_what_was_granted_meanwhile_is_taken_off_the_credit_reported(make: Make) -> None:
    world = make()
    first, second = world.attach(), world.attach()
    second.say(credit=4)
    first.say(report(readable_end=8), credit=4)
    assert sum(v.horizon - v.start for v in world.leases().values() if v.member == second.id) == 4
    second.say(report(readable_end=20), credit=4)  # written before it learned of the four
    assert sum(v.horizon - v.start for v in world.leases().values() if v.member == second.id) == 4


def test_a_member_nobody_hears_is_not_served_by_others(make: Make) -> None:
    world = make()
    first, second = world.attach(), world.attach()
    second.say(credit=10)
    world.ears.forget(second.channel)
    first.say(report(readable_end=4), credit=10)
    assert {v.member for v in world.leases().values()} == {first.id}


def test_an_idle_member_gets_work_of_partitions_it_is_not_at_home_with(make: Make) -> None:
    world = make(partitions=2)
    first, second = world.attach(), world.attach()
    second.say(credit=5)
    first.say(report(0, readable_end=3), credit=0)
    assert {v.member for v in world.leases().values()} == {second.id}


def test_a_lane_with_more_partitions_than_leases_gets_its_exceptions(make: Make) -> None:
    world = make("exclusive", partitions=80)
    member = world.attach()
    for first in range(0, 80, 16):
        member.say(*(report(p, readable_end=1) for p in range(first, first + 16)))
    lanes = {grant.partition: token for token, grant in member.grants.items()}
    assert len(lanes) == 80
    reply = member.say(report(3, returned=[rolled_back(lanes[3], 0, 1)]))
    assert [(g.partition, g.kind, g.attempts) for g in reply.grants] == [(3, "runs", 1)]


def test_a_horizon_never_falls_and_runs_ahead_by_at_most_span(make: Make) -> None:
    world = make("exclusive")
    member = world.attach()
    member.say(report(readable_end=5, position=-1), span=10)
    horizons = [world.leases()[1].horizon]
    for position, avail in ((3, 5), (0, 5), (5, 9), (-1, 9), (9, 9), (4, 30)):
        member.say(report(readable_end=avail, position=position), span=10)
        horizons.append(world.leases()[1].horizon)
    assert horizons == [10, 13, 13, 15, 15, 19, 19]
    assert world.partition().next == 19


def test_a_lane_takes_up_again_what_it_gave_back_unread(make: Make) -> None:
    world = make("exclusive")
    member = world.attach()
    member.say(report(readable_end=8), span=10)
    member.say(report(position=4, settled=[settled(1, 0, 4)], returned=[unread(1, 4, 10)]), span=0)
    assert world.partition().next == 4
    member.detach(0)
    other = world.attach()
    grant = other.say(report(), span=10).grants[0]
    assert (grant.start, grant.horizon, grant.attempts, grant.redelivered) == (4, 14, 0, False)


# -- how the unread comes back, and what counts as an attempt


def test_the_unread_tail_is_as_if_it_had_never_been_granted(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=10), credit=10)
    member.say(report(settled=[settled(1, 0, 4)], returned=[unread(1, 4, 10)], done=[1]), credit=0)
    view = world.partition()
    assert (view.base, view.next, view.runs) == (4, 4, ())


def test_the_unread_tail_is_given_back_below_what_another_lease_holds(make: Make) -> None:
    world = make()
    first, second = world.attach(), world.attach()
    first.say(report(readable_end=5), credit=5)
    second.say(report(readable_end=10), credit=5)
    first.say(report(returned=[unread(1, 2, 5)]), credit=0)
    view = world.partition()
    assert (view.next, view.runs) == (10, (Run(2, 5, 0, False, 0, 0),))


def test_what_lies_beyond_avail_never_becomes_an_exception(make: Make) -> None:
    world = make("exclusive")
    member = world.attach()
    member.say(report(readable_end=8), span=20)
    # offset 6 was a gap: settled before 5 was handed out
    member.say(report(settled=[settled(1, 0, 5, 6, 7)], returned=[unread(1, 5, 20)]), span=0)
    view = world.partition()
    assert (view.next, [(run.start, run.end) for run in view.runs]) == (8, [(5, 6), (7, 8)])


def test_a_blob_tells_how_far_a_partition_is_readable(make: Make) -> None:
    world = make("exclusive")
    member = world.attach()
    member.say(report(), span=20)
    member.say(report(settled=[blob(1, [0, 2, 11])]), span=20)
    assert world.partition().readable_end == 12


def test_only_what_may_have_been_delivered_counts_after_a_death(make: Make) -> None:
    world = make("exclusive")
    member = world.attach()
    member.say(report(readable_end=6), span=10)
    member.say(report(settled=[settled(1, 0, 2)], returned=[rolled_back(1, 3, 4, delay=60_000)]), span=10)
    world.clock.advance(SESSION_MS + 1)
    other = world.attach()
    reply = other.say(report(), span=10)
    runs = [(r.start, r.end, r.attempts, r.token > 0) for r in world.partition().runs]
    assert runs == [(2, 3, 1, True), (3, 4, 1, False), (4, 6, 1, True)]
    assert [(g.kind, g.start, g.attempts) for g in reply.grants] == [("runs", 2, 1), ("lane", 6, 0)]
    assert reply.grants[1].seen == 10, "the reservation may have been delivered"


def test_leaving_in_order_counts_nothing(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=6), credit=6)
    member.say(report(returned=[released(1, 0, 2)]), credit=0)
    member.detach(0)
    assert [(r.start, r.end, r.attempts) for r in world.partition().runs] == [(0, 2, 0), (2, 6, 0)] or [
        (r.start, r.end, r.attempts) for r in world.partition().runs
    ] == [(0, 6, 0)]


def test_a_message_rolled_back_for_ever_keeps_its_mark(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=1), credit=1)
    member.say(report(returned=[rolled_back(1, 0, 1)], done=[1]), credit=0)
    world.change_runs(0, 0, lambda block: block[:10] + (32_767).to_bytes(2, "big") + block[12:])
    token = member.say(report(), credit=1).grants[0].token
    member.say(report(returned=[rolled_back(token, 0, 1)]), credit=0)
    assert world.partition().runs[0].attempts == 16_383


def test_a_lease_granted_by_another_members_exchange_knows_what_was_seen(make: Make) -> None:
    world = make(partitions=2)
    world.run("partitions", [], "", 2)
    world.change_partition(1, seen=3)
    first, second = world.attach(), world.attach()
    second.say(credit=5)
    first.say(report(1, readable_end=4), credit=0)
    grants = second.say(report(0), credit=0).grants
    assert [(g.partition, g.seen) for g in grants] == [(1, 3)]


# -- watching


def test_the_list_of_watched_partitions_does_not_grow(make: Make) -> None:
    world = make()
    first, second = world.attach(), world.attach()
    for _ in range(4):
        watched = [*first.say(report(), credit=5).watches, *second.say(report(), credit=5).watches]
        assert watched == [0]


def test_a_full_watcher_hands_on(make: Make) -> None:
    world = make(partitions=2)
    first, second = world.attach(), world.attach()
    second.say(credit=5)
    first.say(report(0), credit=5)
    assert first.say(report(0), credit=5).watches == [0]
    world.ears.heard()
    assert first.say(report(0), credit=0).watches == []
    assert world.ears.heard() == [second.channel]
    assert second.say(credit=5).watches == [0]


def test_who_is_at_home_takes_the_watch_back(make: Make) -> None:
    world = make(partitions=2)
    first, second = world.attach(), world.attach()
    second.say(credit=5)
    first.say(report(0), credit=5)
    first.say(report(0), credit=0)
    assert second.say(credit=5).watches == [0]
    assert first.say(report(0), credit=5).watches == [0]
    assert second.say(credit=5).watches == []


def test_what_a_dead_member_watched_is_watched_again(make: Make) -> None:
    world = make(partitions=2)
    first, second = world.attach(), world.attach()
    first.say(report(0), credit=5)
    second.say(report(1), credit=5)
    first.detach()
    assert sorted(second.say(credit=5).watches) == [0, 1]


# -- waking


def test_a_grant_wakes_its_holder_and_nobody_else(make: Make) -> None:
    world = make(partitions=3)
    members = [world.attach() for _ in range(3)]
    for p, member in enumerate(members):
        member.say(report(p), credit=5)
    world.ears.heard()
    members[0].say(report(1, readable_end=1), credit=5)
    assert world.ears.heard() == [members[1].channel]


def test_what_is_given_back_wakes_who_gets_it(make: Make) -> None:
    world = make()
    first, second = world.attach(), world.attach()
    first.say(report(readable_end=3), credit=3)
    second.say(credit=5)
    world.ears.heard()
    first.say(report(returned=[rolled_back(1, 1, 2)]), credit=0)
    assert world.ears.heard() == [second.channel]
    assert [v.member for v in world.leases().values() if v.kind == "runs"] == [second.id]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_member_that_leaves_wakes_the_others(make: Make, in_order: bool) -> None:
    world = make(partitions=20)
    first, second, third = world.attach(), world.attach(), world.attach()
    first.say(*(report(p, readable_end=2) for p in range(16)), credit=100)
    first.say(*(report(p, readable_end=2) for p in range(16, 20)), credit=100)
    world.ears.heard()
    if in_order:
        first.detach(*range(16))
        gone = {18}  # it was at home with every third
    else:
        world.clock.advance(SESSION_MS - 1)
        second.say()
        third.say()
        world.clock.advance(2)
        third.say()
        gone = set(range(0, 20, 3))
    heard = set(world.ears.heard())
    assert heard >= {second.channel} | ({third.channel} if in_order else set())
    reply = second.say(credit=0)
    assert set(reply.orphaned) == gone
    second.say(*(report(p) for p in reply.orphaned), credit=100)  # touching them ends those leases
    assert not second.say(credit=0).orphaned
    assert {v.member for v in world.leases().values()} == {second.id}


def test_a_killed_process_is_given_up_half_a_second_later(make: Make) -> None:
    world = make()
    first, second = world.attach(), world.attach()
    first.say(report(readable_end=4), credit=4)
    world.ears.forget(first.channel)
    assert second.say(credit=4, ask=True).silent_ms == 500
    world.clock.advance(499)
    assert second.say(report(), credit=4, ask=True).silent_ms == 1
    assert not [v for v in world.leases().values() if v.member == second.id]
    world.clock.advance(1)
    reply = second.say(report(), credit=4, ask=True)
    assert reply.silent_ms is None
    assert [(g.start, g.horizon, g.attempts) for g in reply.grants] == [(0, 4, 1)]
    assert reply.role.members == 1


def test_a_process_that_comes_back_in_time_keeps_its_leases(make: Make) -> None:
    world = make()
    first, second = world.attach(), world.attach()
    first.say(report(readable_end=4), credit=4)
    world.ears.forget(first.channel)
    second.say(ask=True)
    world.clock.advance(400)
    world.ears.listen(first.channel)
    assert second.say(ask=True).silent_ms is None
    world.ears.forget(first.channel)
    world.clock.advance(400)
    assert second.say(ask=True).silent_ms == 500
    assert world.leases()[1].member == first.id


# -- the clock


def test_time_goes_on_when_the_servers_clock_steps_back(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=1), credit=1)
    member.say(report(returned=[rolled_back(1, 0, 1, delay=1_000)], done=[1]), credit=0)
    times = [world.inspect().now]
    world.clock.advance(-3_600_000)
    assert member.say(report(), credit=1).grants == []
    times.append(world.inspect().now)
    world.clock.advance(600)
    member.say(report(), credit=1)
    times.append(world.inspect().now)
    world.clock.advance(400)
    assert [g.start for g in member.say(report(), credit=1).grants] == [0]
    times.append(world.inspect().now)
    assert [t - times[0] for t in times] == [0, 0, 600, 1_000]


def test_without_a_test_clock_the_server_tells_the_time(valkey: Valkey) -> None:
    world = World(valkey.url)
    world.coordinator._clock = None  # noqa: SLF001 # as an application's coordinator has none
    try:
        world.create()
        client: Any = redis.Redis.from_url(as_administrator(valkey.url))
        with client:
            seconds, micros = client.time()
        assert 0 <= world.inspect().now - (seconds * 1000 + micros // 1000) < 5_000
        assert world.attach().say(credit=1).grace_ms == 0
    finally:
        world.close()


# -- bitmaps and runs


def test_the_bitmap_is_cut_below_base(make: Make) -> None:
    world = make()
    member = world.attach()
    total = 60_000
    member.say(report(readable_end=total), credit=total)
    member.say(report(settled=[settled(1, 1, 50_000)]), credit=0)
    assert (world.partition().base, len(world.partition().bits)) == (0, 6_250)
    member.say(report(settled=[settled(1, 0, 1, 50_001, 50_002)]), credit=0)
    view = world.partition()
    assert (view.base, view.origin) == (50_000, 50_000)
    assert len(view.bits) == 1
    assert view.unsettled == total - 50_001


def test_an_old_lease_is_set_aside_when_the_bitmap_grows_long(make: Make) -> None:
    world = make()
    stuck, busy = world.attach(), world.attach()
    stuck.say(report(readable_end=2), credit=2)
    for avail in range(20_002, 140_002, 20_000):
        reply = busy.say(report(readable_end=avail), credit=20_000)
        token, start, end = reply.grants[-1].token, reply.grants[-1].start, reply.grants[-1].horizon
        busy.say(report(settled=[settled(token, start, end)], done=[token]), credit=0)
    view = world.partition()
    assert view.base > 2
    assert [(r.start, r.end, r.attempts, r.redelivered, r.token) for r in view.runs] == [(0, 2, 0, False, 1)]
    assert (view.floor, len(view.bits)) == (0, 0)
    stuck.say(report(settled=[blob(1, [1])]), credit=0)
    assert [(r.start, r.end) for r in world.partition().runs] == [(0, 1)]
    stuck.say(report(returned=[rolled_back(1, 0, 1)], done=[1]), credit=0)
    assert [(r.start, r.attempts, r.token) for r in world.partition().runs] == [(0, 1, 0)]


def test_setting_many_holes_aside_is_done_in_steps(make: Make) -> None:
    world = make()
    member = world.attach()
    total = 70_000
    member.say(report(readable_end=total), credit=total)
    member.say(report(settled=[blob(1, range(1, 4_000, 2))]), credit=0)
    counts = []
    for _ in range(9):
        counts.append(len(world.partition().runs))
        member.say(report(), credit=0)
    assert counts[0] <= 256
    assert all(b - a <= 256 for a, b in pairwise(counts))
    view = world.partition()
    assert view.next - view.base <= 65_536
    member.say(report(settled=[settled(1, 0, total)], done=[1]), credit=0)
    view = world.partition()
    assert (view.base, view.floor, view.runs) == (total, total, ())


def test_large_numbers_survive_packing(make: Make) -> None:
    start = 2**40 + 5
    world = make(starts=(start,))
    member = world.attach()
    world.change(token=2**33)
    grant = member.say(report(readable_end=start + 300), credit=300).grants[0]
    assert (grant.token, grant.start, grant.horizon) == (2**33 + 1, start, start + 300)
    member.say(
        report(
            settled=[blob(grant.token, range(start, start + 100, 2))],
            returned=[rolled_back(grant.token, start + 150, start + 151, delay=604_800_000)],
        ),
        credit=0,
    )
    view = world.partition()
    assert view.floor == start + 1
    assert view.runs == (Run(start + 150, start + 151, 1, True, world.clock.now + 604_800_000, 0),)


def test_more_messages_expire_at_once_than_32_bits_can_count(make: Make) -> None:
    world = make()
    world.attach().say(report(readable_end=1, expired=2**33, expired_read=2**33))
    view = world.partition()
    assert (view.expired, view.expired_read) == (2**33, 2**33)


def test_many_ranges_in_one_exchange(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=20_000), credit=20_000)
    bounds = [b for o in range(0, 20_000, 2) for b in (o, o + 1)]
    member.say(report(settled=[settled(1, *bounds)]), credit=0)
    assert world.partition().unsettled == 10_000


# -- the server


def test_full_memory_is_told_and_changes_nothing(make: Make, valkey: Valkey) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=5), credit=5)
    client: Any = redis.Redis.from_url(as_administrator(valkey.url))
    with client:
        before = world.dump()
        client.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(CoordinatorUnavailable, match="OutOfMemory"):
                member.say(report(settled=[settled(1, 0, 1)]), credit=5)
            assert world.dump() == before
        finally:
            client.config_set("maxmemory", "0")
    assert member.last is not None
    member.send(member.last)
    assert world.partition().floor == 1


def test_every_script_names_its_keys_in_its_file_name() -> None:
    kept = {
        name: (scripts.load(name).fixed_keys, scripts.load(name).partition_keys) for name in scripts.names()
    }
    with_partitions = {"exchange", "detach", "inspect", "partitions", "reclaim", "truncate"}
    of_client_ids = {"holdid", "dropid"}
    fixed = {"confirm": 2, "renew": 2} | dict.fromkeys(of_client_ids, 1)
    assert kept == {name: (fixed.get(name, 7), 3 if name in with_partitions else 0) for name in kept}
    assert with_partitions < set(kept)
