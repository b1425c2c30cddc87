"""Kafka lost the end of a partition: what the script forgets, what it keeps, and that nothing new is skipped.

The model is a set of settled offsets: below the cut it stays as it was, beyond it there is none.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkadur_coordinators.redis.coordinator import Refusal
from tests.integration.coordinators.world import (
    SESSION_MS,
    Member,
    World,
    refusal,
    released,
    report,
    rolled_back,
    settled,
)

Make = Callable[..., World]
END = 40
TYPES = ("shared", "exclusive", "priority", "serial")


def is_settled(world: World, offset: int) -> bool:
    """Whether an offset is settled: decided, and no exception."""
    view = world.partition()
    return view.is_decided(offset) and view.run_of(offset) is None


def deliver_all(member: Member, readable_end: int) -> set[int]:
    """Settle whatever a member gets until it gets nothing more; returns the offsets."""
    got: set[int] = set()
    reply = member.say(report(readable_end=readable_end), credit=1_000, span=1_000)
    for _ in range(50):
        verdicts, done = [], []
        for grant in member.grants.values():
            pieces = [grant.start, min(grant.horizon, readable_end)]
            if grant.stretch:
                pieces = list(grant.stretch)
            if pieces[0] >= pieces[-1]:  # a lane of what is not written yet
                continue
            got |= {
                o
                for at in range(0, len(pieces), 2)
                for o in range(pieces[at], min(pieces[at + 1], readable_end))
            }
            verdicts.append(settled(grant.token, *pieces))
            if grant.kind != "lane":
                done.append(grant.token)
        lanes = {token: grant for token, grant in member.grants.items() if grant.kind == "lane"}
        if not verdicts:
            return got
        member.grants.clear()
        reply = member.say(
            report(settled=verdicts, done=done, position=readable_end), credit=1_000, span=1_000
        )
        for token, grant in lanes.items():
            if reply.horizons.get(token, 0) > grant.horizon:
                member.grants[token] = grant._replace(start=grant.horizon, horizon=reply.horizons[token])
    return got


def back(world: World, member: Member) -> Member:
    """Attach a member again after its state was cut."""
    again = world.attach(member.id)
    world.clock.advance(SESSION_MS + 1)
    again.session.exchange(again.build())
    return again


@pytest.mark.parametrize("kind", TYPES)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # a world for each example
@given(
    verdicts=st.lists(st.sampled_from("apprk"), min_size=END, max_size=END),
    cut=st.integers(0, END + 5),
    grown=st.integers(0, 30),
)
def test_all_that_comes_after_the_cut_is_delivered(
    make: Make, kind: str, verdicts: list[str], cut: int, grown: int
) -> None:
    """Verdicts: a and p acknowledged, r rolled back with a delay, k kept in hands."""
    world = make(kind)
    first = world.attach()
    reply = first.say(report(readable_end=END, epoch=3), credit=END, span=END)
    (grant,) = reply.grants
    parts: dict[str, Any] = {
        "settled": [
            settled(grant.token, *(x for o, v in enumerate(verdicts) if v in "ap" for x in (o, o + 1)))
        ],
        "returned": [rolled_back(grant.token, o, o + 1, 5_000) for o, v in enumerate(verdicts) if v == "r"],
    }
    first.say(report(**parts), span=END)
    before = {o for o in range(END) if is_settled(world, o)}
    assert before == {o for o, v in enumerate(verdicts) if v in "ap"}

    lost = first.session.truncate({0: cut}, incarnation=0)

    view = world.partition()
    assert lost == {0: max(END - cut, 0)}
    assert view.truncated == max(END - cut, 0)
    assert {o for o in range(END + 50) if is_settled(world, o)} == {o for o in before if o < cut}
    assert view.readable_end == min(END, cut)
    assert view.next <= cut
    assert all(run.end <= cut for run in view.runs)
    assert world.leases() == {}
    assert view.floor == min((o for o in range(cut) if o not in before), default=cut) or view.floor <= cut

    member = back(world, first)
    end = max(cut, 1) + grown
    got = deliver_all(member, end)
    assert got == {o for o in range(end) if o >= cut or o not in before}
    assert world.partition().floor == max(end, view.readable_end)


def test_all_members_begin_anew_and_none_counts_an_attempt(make: Make) -> None:
    world = make(partitions=2)
    members = [world.attach(), world.attach()]
    for member in members:
        member.say(report(0, readable_end=10, epoch=1), report(1, readable_end=10, epoch=1), credit=5)
    members[0].session.truncate({0: 2}, incarnation=9)
    assert sorted(world.ears.heard())[-2:] == sorted(member.channel for member in members)
    for member in members[1:]:
        assert code(member) == "INCARNATION"
    again = [world.attach(member.id) for member in members]
    assert again[0].attached.incarnation == 9
    for member in again:
        member.say(report(0), report(1))
    # all are back: leases are granted at once, what was in hands again, without an attempt
    grants = [g for member in again for g in member.say(report(0), report(1), credit=50).grants]
    assert {(grant.partition, grant.attempts) for grant in grants} == {(0, 0), (1, 0)}
    assert {grant.horizon for grant in grants if grant.partition == 0} <= {1, 2}


def code(member: Member) -> str:
    refused = refusal(member.say)
    assert refused is not None
    return refused.code


def test_who_comes_second_is_told(make: Make) -> None:
    world = make()
    one, other = world.attach(), world.attach()
    one.say(report(readable_end=10), credit=10)
    one.session.truncate({0: 5}, incarnation=0)
    with pytest.raises(Refusal, match="INCARNATION"):
        other.session.truncate({0: 3}, incarnation=0)
    assert world.partition().readable_end == 5


def test_a_partition_that_is_not_known_changes_nothing(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=10), credit=10)
    before = world.dump()
    with pytest.raises(Refusal, match="MISSING"):
        member.session.truncate({0: 5, 7: 5}, incarnation=0)
    assert world.dump() == before


def test_what_is_not_there_yet_is_no_longer_promised(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=10), credit=10)
    (token,) = member.grants
    member.say(report(settled=[settled(token, 0, 10)], done=[token], reserve=4), credit=10)
    assert world.partition().next > 10
    member.session.truncate({0: 8}, incarnation=0)
    view = world.partition()
    assert (view.base, view.next, view.readable_end, view.runs) == (8, 8, 8, ())


def test_the_epoch_rises_and_stays_with_what_was_read(make: Make) -> None:
    world = make()
    member = world.attach()
    reply = member.say(report(readable_end=5, epoch=3))
    assert reply.partitions[0].epoch == 3
    member.say(report(readable_end=5, epoch=2))
    assert world.partition().epoch == 3
    member.say(report(readable_end=6))
    assert world.partition().epoch == 3
    member.session.truncate({0: 2}, incarnation=0)
    # what lies before the cut was written under this epoch or an earlier one
    assert world.partition().epoch == 3


def test_leases_of_members_who_went_do_not_reach_beyond_the_cut(make: Make) -> None:
    """An orphan on the cut partition, and one on another partition."""
    world = make(partitions=2)
    gone, stays = world.attach(), world.attach()
    gone.say(report(0, readable_end=10), report(1, readable_end=10), credit=20)
    gone_holds = {(lease.partition, lease.member) for lease in world.leases().values()}
    assert (0, gone.id) in gone_holds or (1, gone.id) in gone_holds
    world.clock.advance(SESSION_MS // 2)
    stays.say()
    world.clock.advance(SESSION_MS // 2 + 1)
    stays.say()
    stays.session.truncate({0: 4}, incarnation=0)
    assert world.partition(0).next <= 4
    member = back(world, stays)
    got: dict[int, set[int]] = {0: set(), 1: set()}
    for _ in range(10):
        reply = member.say(report(0), report(1), credit=50)
        for grant in reply.grants:
            pieces = grant.stretch or (grant.start, grant.horizon)
            got[grant.partition] |= {
                o for at in range(0, len(pieces), 2) for o in range(pieces[at], pieces[at + 1])
            }
    assert got == {0: set(range(4)), 1: set(range(10))}


def test_released_after_the_cut_is_refused(make: Make) -> None:
    world = make()
    member = world.attach()
    member.say(report(readable_end=10), credit=10)
    (token,) = member.grants
    member.session.truncate({0: 5}, incarnation=0)
    late = world.attach(member.id)
    late.session.exchange(late.build(report(returned=[released(token, 0, 10)])))
    assert world.partition().next <= 5
