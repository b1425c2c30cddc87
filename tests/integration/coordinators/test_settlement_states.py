"""Places as values: read from the shared state, joined, unsettled and written; against sets of offsets."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from kafkadur_coordinators.interface import PartitionView, Run
from kafkadur_coordinators.redis.replies import parse_runs
from kafkadur_coordinators.settlement_states import (
    SettlementState,
    Waiting,
    difference,
    earliest,
    join,
    moved_from,
    packed,
    settlement_of,
    unsettle,
)
from tests.integration.coordinators.world import World, report, rolled_back, settled

END = 24


@st.composite
def settlements(draw: st.DrawFn) -> SettlementState:
    """A settlement state below `END`, from the state of each offset."""
    end = draw(st.integers(0, END))
    waiting: list[Waiting] = []
    at = 0
    while at < end:
        length = draw(st.integers(1, 6))
        if draw(st.booleans()):
            waiting.append(
                Waiting(
                    at,
                    min(at + length, end),
                    draw(st.integers(0, 3)),
                    draw(st.booleans()),
                    draw(st.sampled_from([0, 7])),
                    draw(st.booleans()),
                )
            )
        at += length
    return SettlementState(next=end, seen=draw(st.integers(0, END)), waiting=tuple(waiting))


def unsettled(settlement: SettlementState) -> dict[int, Waiting]:
    """What waits, offset by offset."""
    return {
        offset: item._replace(start=offset, end=offset + 1)
        for item in settlement.waiting
        for offset in range(item.start, item.end)
    }


def in_order(settlement: SettlementState) -> bool:
    """Whether what waits is sorted, does not overlap and lies before the settlement state."""
    edges = [edge for item in settlement.waiting for edge in (item.start, item.end)]
    return edges == sorted(edges) and all(
        item.start < item.end <= settlement.next for item in settlement.waiting
    )


@given(st.lists(settlements(), min_size=1, max_size=4))
def test_settled_in_all_lanes_is_settled(lanes: list[SettlementState]) -> None:
    joined = join(lanes)
    assert in_order(joined)
    assert joined.next == max(lane.next for lane in lanes)
    found = unsettled(joined)
    for offset in range(joined.next):
        tried = [unsettled(lane).get(offset) for lane in lanes]
        behind = any(offset >= lane.next for lane in lanes)
        assert (offset in found) == (behind or any(tried))
        if offset in found:
            assert found[offset].attempts == max(item.attempts if item else 0 for item in tried)
    assert joined.floor == min([lane.floor for lane in lanes])


@given(settlements(), st.sets(st.integers(0, END)))
def test_what_is_unsettled_again_waits_as_new(settlement: SettlementState, offsets: set[int]) -> None:
    offsets = {offset for offset in offsets if offset < settlement.next}
    after = unsettle(settlement, sorted(offsets))
    assert in_order(after)
    expected = {offset: Waiting(offset, offset + 1) for offset in offsets} | unsettled(settlement)
    assert unsettled(after) == expected
    assert after.unsettled == len(expected)


@given(settlements())
def test_what_is_written_is_what_is_read(settlement: SettlementState) -> None:
    runs = parse_runs(packed(settlement))
    view = PartitionView(
        partition=0,
        base=settlement.next,
        next=settlement.next,
        readable_end=settlement.next,
        origin=settlement.next - settlement.next % 8,
        decided=0,
        runs=runs,
        seen=settlement.seen,
        bits=b"",
    )
    assert unsettled(settlement_of(view)) == unsettled(settlement)
    assert earliest(settlement) == min((run.due for run in runs), default=-1)


def test_what_is_held_waits_and_was_perhaps_delivered() -> None:
    view = PartitionView(
        partition=0,
        base=3,
        next=30,
        readable_end=10,
        origin=0,
        decided=2,
        runs=(Run(start=1, end=2, attempts=2, redelivered=False, due=5, token=9),),
        seen=4,
        bits=bytes([0b00000110, 0]),  # 5 and 6 are settled
    )
    settlement = settlement_of(view)
    assert settlement.waiting == (
        Waiting(1, 2, 2, redelivered=True, due=5),
        Waiting(3, 5, redelivered=True),
        Waiting(7, 10, redelivered=True),
    )
    assert (settlement.next, settlement.seen, settlement.floor, settlement.unsettled) == (10, 4, 1, 6)


def test_after_a_move_what_was_handed_out_is_known() -> None:
    before = SettlementState(next=9, seen=3)
    assert moved_from(SettlementState(next=2), before).seen == 9
    assert moved_from(SettlementState(next=2, seen=12), before).seen == 12
    assert moved_from(SettlementState(next=2), None).seen == 0


def test_read_from_what_the_scripts_wrote(make: Callable[..., World]) -> None:
    """Settle some, roll one back, hold some: the settlement state says what is left."""
    world = make("shared")
    member = world.attach()
    reply = member.say(report(readable_end=12), credit=8)
    token = reply.grants[0].token
    member.say(
        report(settled=[settled(token, 0, 2, 4, 6)], returned=[rolled_back(token, 2, 3, 50)]), credit=0
    )
    settlement = settlement_of(world.partition())
    assert settlement.next == 8
    found = unsettled(settlement)
    assert set(found) == {2, 3, 6, 7}
    assert found[2].attempts == 1
    assert found[2].due == world.clock.now + 50
    assert all(found[offset].redelivered for offset in (3, 6, 7))


@given(before=settlements(), after=settlements(), start=st.integers(0, 40), end=st.integers(0, 60))
def test_what_comes_again_and_what_is_skipped_is_counted(
    before: SettlementState, after: SettlementState, start: int, end: int
) -> None:
    """As counted one by one."""
    offsets = set(range(start, end))
    first, second = (
        offsets & (unsettled(each).keys() | set(range(each.next, end))) for each in (before, after)
    )
    assert difference(before, after, start, end) == (len(second - first), len(first - second))
