"""A holder of the whole subscription settles stretches as it has done with them; a replay changes nothing."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kafkadur.stack import Valkey
from kafkadur_coordinators.claims import Claims
from kafkadur_coordinators.exclusive_settlement import ExclusiveSettlement, Verdicts
from kafkadur_sharing.errors import CoordinatorUnavailable
from tests.integration.coordinators.deaf import Deaf
from tests.integration.coordinators.world import (
    SESSION_MS,
    World,
    refusal,
    report,
    rolled_back,
    settled,
    views,
)

Make = Callable[..., World]


def hold(world: World, member: str = "spark") -> ExclusiveSettlement:
    """Attach somebody who holds the whole subscription."""
    return ExclusiveSettlement(Claims(world.attach(member, most=1, kind="whole").session))


@pytest.mark.parametrize("kind", ["shared", "exclusive", "serial", "priority"])
def test_what_is_done_with_is_settled(make: Make, kind: str) -> None:
    world = make(kind, partitions=2)
    holder = hold(world)
    assert holder.settle({0: Verdicts([(0, 5)]), 1: Verdicts([(0, 3)])}).settled == 8
    assert [view.floor for view in world.inspect().partitions] == [5, 3]
    assert holder.settle({0: Verdicts([(5, 9)])}).settled == 4
    assert world.partition().floor == 9
    assert world.leases() == {}


def test_replaying_a_batch_changes_nothing(make: Make) -> None:
    world = make()
    holder = hold(world)
    batch = {0: Verdicts([(0, 4), (5, 8)], [(4, 5)])}
    assert holder.settle(batch).settled == 7
    before = world.partition().floor, world.partition().unsettled
    assert holder.settle(batch).settled == 0
    assert (world.partition().floor, world.partition().unsettled) == before == (4, 1)


def test_what_was_settled_before_is_left_alone(make: Make) -> None:
    world = make()
    first = world.attach("ordinary")
    first.say(report(readable_end=10), credit=10)
    (token,) = first.grants
    first.say(report(settled=[settled(token, 2, 4)], returned=[rolled_back(token, 6, 7)], done=[token]))
    first.detach(0)
    assert hold(world).settle({0: Verdicts([(0, 10)])}).settled == 8
    assert world.partition().floor == 10


def test_more_partitions_than_one_exchange_carries(make: Make) -> None:
    world = make(partitions=40)
    assert hold(world).settle({p: Verdicts([(0, p + 1)]) for p in range(40)}).settled == sum(range(1, 41))


def test_what_is_rolled_back_comes_again_in_a_later_generation(make: Make) -> None:
    world = make()
    holder = hold(world)
    assert holder.settle({0: Verdicts([(0, 3), (4, 6)], [(3, 4)])}).settled == 5
    assert world.partition().floor == 3
    assert holder.settle({0: Verdicts([(3, 4)])}).settled == 1
    assert world.partition().floor == 6


def test_nothing_is_settled_under_a_session_that_is_over(make: Make) -> None:
    world = make()
    holder = hold(world)
    holder.settle({0: Verdicts([(0, 3)])})
    world.clock.advance(SESSION_MS + 1)
    other = hold(world, "other")
    refused = refusal(lambda: holder.settle({0: Verdicts([(3, 5)])}))
    assert refused is not None
    assert refused.code == "FENCED"
    assert world.partition().floor == 3
    assert other.settle({0: Verdicts([(3, 5)])}).settled == 2


@given(
    batches=st.lists(
        st.tuples(st.integers(1, 12), st.lists(st.booleans(), min_size=12, max_size=12)),
        min_size=1,
        max_size=6,
    ),
    replay=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_batches(valkey: Valkey, batches: list[tuple[int, list[bool]]], replay: bool) -> None:
    """Against a set: what was said to be settled is, and nothing else; batches follow each other."""
    world = World(valkey.url).create()
    holder = hold(world)
    start, done = 0, set[int]()
    for size, keeps in batches:
        offsets = range(start, start + size)
        kept = [(o, o + 1) for o in offsets if keeps[o - start]]
        back = [(o, o + 1) for o in offsets if not keeps[o - start]]
        for _ in range(1 + replay):
            holder.settle({0: Verdicts(kept, back)})
        done |= {o for o, _ in kept}
        start += size
    view = world.partition()
    assert view.unsettled == start - len(done)
    assert view.floor == min((o for o in range(start) if o not in done), default=start)
    world.close()


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
def test_a_call_that_was_not_answered_is_made_again(
    make: Make, deaf: Callable[..., Deaf], after: int
) -> None:
    """Wherever the answer is lost: of 20 partitions, claims and reports are several exchanges."""
    world = make(partitions=20)
    one = deaf(world)
    holder = ExclusiveSettlement(one.claims)
    said = {p: Verdicts([(0, 3), (4, 6)], [(3, 4)]) for p in range(20)}
    one.lose(after)
    settled_, back = 0, 0
    while True:
        try:
            given = holder.settle(said)
        except CoordinatorUnavailable:
            one.claims.renew()
            continue
        settled_ += given.settled
        back += sum(end - start for some in given.rolled_back.values() for start, end in some)
        said = {p: each._replace(rolled_back=()) for p, each in said.items()}
        if not given.again:
            break
    assert (settled_, back) == (100, 20)
    assert [view.floor for view in views(world)] == [3] * 20
    assert world.leases() == {}
    assert {run.attempts for view in views(world) for run in view.runs} == {1}, "counted once"


def test_suspects_are_settled_and_rolled_back_as_all_others(make: Make) -> None:
    """Few of them would come at a time to who works on them one by one."""
    world = make(policy=(3, 0, 0, 0, 1))
    first = world.attach("ordinary")
    first.say(report(readable_end=200), credit=200)
    world.clock.advance(SESSION_MS + 1)
    holder = hold(world)
    given = holder.settle({0: Verdicts([(100, 200)], [(0, 100)])})
    assert given.settled == 100
    assert given.rolled_back == {0: [(0, 100)]}
    assert [(run.start, run.end, run.attempts) for run in world.partition().runs] == [(0, 100, 2)]
