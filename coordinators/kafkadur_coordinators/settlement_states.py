"""The settlement state of a subscription in a partition: settled offsets, and the attempts of the others.

It is read from the shared state, joined where a partition has several lanes of keys, and written back when
the type changes, and for a seek or a copy. Pure; `changes.py` reads and writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from kafkadur_coordinators.interface import PartitionView

#: Marks of offsets (lua/include/redelivery.lua): this, if it is a suspect, + 2 * attempts + redelivered.
SUSPECT = 32_768
#: Records that a run holds at most.
_LONGEST_RUN = 2**32 - 1
_ZEROS = re.compile("0+")


class Waiting(NamedTuple):
    """Unsettled offsets below `SettlementState.next`."""

    start: int
    #: exclusive
    end: int
    #: counted attempts
    attempts: int = 0
    #: whether they may have been delivered before
    redelivered: bool = False
    #: ms since the epoch until which they wait; 0: they do not
    due: int = 0
    #: their last holder ended uncleanly
    suspect: bool = False


class SettlementState(NamedTuple):
    """Where a subscription stands in a partition."""

    #: all offsets before it are settled or waiting; none from here on is settled
    next: int
    #: offsets below this one may have been delivered before
    seen: int = 0
    #: sorted, without overlap, all before `next`
    waiting: Sequence[Waiting] = ()

    @property
    def floor(self) -> int:
        """Lowest unsettled offset."""
        return min(self.next, self.waiting[0].start) if self.waiting else self.next

    @property
    def unsettled(self) -> int:
        """How many offsets wait."""
        return sum(item.end - item.start for item in self.waiting)


def settlement_of(view: PartitionView) -> SettlementState:
    """Read the settlement state from the state of a partition, or of one lane of it.

    Leased offsets may have been delivered: they wait, and are redelivered. Offsets that were leased before
    they are written are left out.
    """
    end = max(view.base, min(view.next, view.readable_end))
    if view.runs and view.runs[-1].end > view.readable_end:  # base lies beyond reserved offsets
        end = min(view.next, view.readable_end)
    waiting = [
        Waiting(
            run.start,
            min(run.end, end),
            run.attempts,
            run.redelivered or run.token != 0,
            run.due,
            run.suspect,
        )
        for run in view.runs
        if run.start < end
    ]
    waiting += _undecided(view, end)
    return SettlementState(next=end, seen=view.seen, waiting=tuple(sorted(waiting)))


def _undecided(view: PartitionView, end: int) -> list[Waiting]:
    """Ranges from base to `end` that are neither settled nor listed as exceptions; there may be thousands."""
    base = view.base
    if base >= end:
        return []
    known = int.from_bytes(view.bits, "big")
    digits = f"{known:b}".zfill(len(view.bits) * 8)[base - view.origin : end - view.origin]
    zeros = map(re.Match[str].span, _ZEROS.finditer(digits.ljust(end - base, "0")))
    return [Waiting(base + start, base + stop, 0, True) for start, stop in zeros]


def join(settlements: Sequence[SettlementState]) -> SettlementState:
    """Join the settlement states of the lanes of a partition: settled are offsets settled in each lane.

    Each lane settles the offsets of other lanes' keys, too, as far as it has read. So offsets beyond the
    position of a slower lane wait, and those that a faster one settled there are delivered again.
    """
    end = max(settlement.next for settlement in settlements)
    waiting = [item for settlement in settlements for item in settlement.waiting]
    waiting += [
        Waiting(settlement.next, end, redelivered=True) for settlement in settlements if settlement.next < end
    ]
    return SettlementState(
        next=end, seen=max(settlement.seen for settlement in settlements), waiting=tuple(_merged(waiting))
    )


def by_partition(views: Mapping[int, PartitionView], lanes: int) -> dict[int, SettlementState]:
    """Read the settlement state of each partition from the states of its lanes, by number of the lane."""
    found: dict[int, list[SettlementState]] = {}
    for number, view in sorted(views.items()):
        found.setdefault(number // lanes, []).append(settlement_of(view))
    return {partition: join(settlements) for partition, settlements in found.items()}


def unite(one: SettlementState, other: SettlementState) -> SettlementState:
    """Unite two settlement states of the same offsets: an offset is settled if it is settled in either.

    Offsets that wait in both keep the marks of both.
    """
    if one.next < other.next:
        one, other = other, one
    if not other.waiting and other.next <= one.floor:  # all that the other knows of, as of a mirrored floor
        return (
            one
            if other.seen <= one.seen
            else SettlementState(next=one.next, seen=other.seen, waiting=one.waiting)
        )
    waiting: list[Waiting] = []
    at = 0
    behind = Waiting(other.next, one.next)
    others = [*other.waiting, behind] if behind.start < behind.end else list(other.waiting)
    for item in one.waiting:
        while at < len(others) and others[at].end <= item.start:
            at += 1
        beside = at
        while beside < len(others) and others[beside].start < item.end:
            waiting.append(_both(item, others[beside]))
            beside += 1
    return SettlementState(next=one.next, seen=max(one.seen, other.seen), waiting=tuple(waiting))


def _both(one: Waiting, other: Waiting) -> Waiting:
    """The offsets that wait in both, with the marks of both."""
    return Waiting(
        max(one.start, other.start),
        min(one.end, other.end),
        max(one.attempts, other.attempts),
        one.redelivered or other.redelivered,
        max(one.due, other.due),
        one.suspect or other.suspect,
    )


def unsettled_within(settlement: SettlementState, start: int, end: int) -> int:
    """How many offsets from `start` to before `end` are not settled."""
    waiting = sum(max(min(item.end, end) - max(item.start, start), 0) for item in settlement.waiting)
    return waiting + max(end - max(settlement.next, start), 0)


def difference(before: SettlementState, after: SettlementState, start: int, end: int) -> tuple[int, int]:
    """Return how many offsets are settled only before, and how many only after, from `start` to `end`.

    The first are delivered again after a change from `before` to `after`, the second are skipped.
    """
    both = unsettled_within(unite(before, after), start, end)
    return unsettled_within(after, start, end) - both, unsettled_within(before, start, end) - both


def cut_off(settlement: SettlementState, end: int) -> SettlementState:
    """The settlement state without settled or seen offsets at or beyond `end`."""
    if max(settlement.next, settlement.seen) <= end:
        return settlement
    waiting = tuple(w._replace(end=min(w.end, end)) for w in settlement.waiting if w.start < end)
    return SettlementState(next=min(settlement.next, end), seen=min(settlement.seen, end), waiting=waiting)


def covers(one: SettlementState, other: SettlementState) -> bool:
    """Whether all that is settled in `other` is settled in `one`."""
    both = unite(one, other)
    return both.next == one.next and both.unsettled == one.unsettled


def _merged(items: Iterable[Waiting]) -> list[Waiting]:
    """Sort ranges that may overlap; of overlapping ones, that with the most attempts counts."""
    items = sorted(items)
    cuts = sorted({cut for item in items for cut in (item.start, item.end)})
    current: list[Waiting] = []
    merged: list[Waiting] = []
    at = 0
    for start, end in pairwise(cuts):
        while at < len(items) and items[at].start <= start:
            current.append(items[at])
            at += 1
        current = [item for item in current if item.end > start]
        if not current:
            continue
        best = max(current, key=lambda item: (item.attempts, item.suspect, item.redelivered, item.due))
        piece = best._replace(start=start, end=end)
        if merged and merged[-1].end == start and merged[-1][2:] == piece[2:]:
            piece = piece._replace(start=merged.pop().start)
        merged.append(piece)
    return merged


def unsettle(settlement: SettlementState, offsets: Iterable[int]) -> SettlementState:
    """Let settled offsets before `next` wait again, as if they had never been delivered."""
    more = [Waiting(offset, offset + 1) for offset in offsets]
    return settlement._replace(waiting=tuple(_merged([*settlement.waiting, *more])))


def moved_from(settlement: SettlementState, before: SettlementState | None) -> SettlementState:
    """The settlement state with `seen` covering the offsets that were delivered before the move to it."""
    return (
        settlement
        if before is None
        else settlement._replace(seen=max(settlement.seen, before.next, before.seen))
    )


def packed(settlement: SettlementState) -> bytes:
    """The waiting offsets, as runs of the shared state without a lease."""
    runs = bytearray()
    for item in settlement.waiting:
        marks = SUSPECT * item.suspect + 2 * item.attempts + item.redelivered
        for start in range(item.start, item.end, _LONGEST_RUN):
            length = min(item.end - start, _LONGEST_RUN)
            runs += start.to_bytes(6, "big") + length.to_bytes(4, "big") + marks.to_bytes(2, "big")
            runs += item.due.to_bytes(6, "big") + bytes(6)
    return bytes(runs)


def earliest(settlement: SettlementState) -> int:
    """When the first waiting offset is due, ms since the epoch; -1: none waits."""
    return min((item.due for item in settlement.waiting), default=-1)
