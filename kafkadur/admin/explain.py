"""Pure functions over the state of one partition: they explain one offset, and count offsets.

The states are those of `docs/internals/state-machine.md`. `inspector.py` reads the state of the partition;
the command line formats an explanation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kafkadur.message.times import Times
from kafkadur_coordinators.interface import LeaseView, MemberInfo, PartitionView, Run

#: Kinds of leases whose offsets are listed as runs with the lease's token: exceptions and reservations.
RUNS = ("runs", "ahead")


class OffsetState(StrEnum):
    """The state of an offset in a subscription."""

    #: A member holds it.
    LEASED = "leased"
    #: No member has a lease on it; it is delivered next, or when its due time has come.
    READY = "ready"
    #: It has its verdict and is never delivered again.
    SETTLED = "settled"
    #: No readable record has this offset yet.
    BEYOND_END = "beyond the end"
    #: Kafka has deleted it before it was settled.
    BEFORE_LOG = "before the start of the log"
    #: It is older than the first offset of the subscription.
    BEFORE_START = "before the subscription's start"


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """Where a partition of a topic begins and ends in Kafka now, and where the subscription began."""

    #: First offset that Kafka still keeps.
    start: int
    #: First offset that cannot be read yet (the last stable offset).
    end: int
    #: First offset of the subscription; 0 for a partition added later.
    subscribed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The state of an offset, and why it is delivered or not."""

    partition: int
    offset: int
    state: OffsetState
    #: Counted attempts so far; None in a state without delivery.
    attempts: int | None = None
    #: Whether it may have been delivered before.
    redelivered: bool = False
    #: Server time from which it may be delivered, ms since 1970; None: now.
    due: int | None = None
    #: The lease that covers it.
    lease: LeaseView | None = None
    #: Whether the lease only reserves it: it is not known to be readable, so no member has delivered it.
    reserved: bool = False
    #: The holder of the lease; None without a lease, or if the holder is no longer attached.
    holder: MemberInfo | None = None
    #: Whether the holder is no longer attached, or its session has ended: then the lease ends soon.
    holder_gone: bool = False
    #: How it was settled, if known (`reasons.py`).
    verdict: str | None = None
    #: Further remarks, one sentence each.
    notes: tuple[str, ...] = ()

    @property
    def attempt(self) -> int | None:
        """Number of the attempt in progress, or of the next one."""
        return None if self.attempts is None else self.attempts + 1


def explain(
    offset: int,
    *,
    partition: int,
    view: PartitionView | None,
    leases: Sequence[LeaseView],
    members: Sequence[MemberInfo],
    log: Log,
    now: int,
) -> Explanation:
    """Explain one offset of `partition`.

    `view` is None for a partition that the subscription does not know yet. `leases` and `members` are those
    of the subscription, `now` is server time in ms since 1970.
    """
    leases = [lease for lease in leases if lease.partition == partition]
    # A lease of exceptions does not cover an undecided offset: its runs carry its token.
    covering = next(
        (lease for lease in leases if lease.kind not in RUNS and lease.start <= offset < lease.horizon), None
    )
    found = Explanation(partition=partition, offset=offset, state=OffsetState.READY, attempts=0)
    if offset < log.subscribed:
        return replace(found, state=OffsetState.BEFORE_START, attempts=None)
    if offset >= log.end:
        reserved = covering is not None
        found = replace(found, state=OffsetState.BEYOND_END, attempts=None, lease=covering, reserved=reserved)
    elif view is None:
        found = replace(found, notes=("The subscription learns of this partition when a member attaches.",))
    elif (run := view.run_of(offset)) is not None:
        holding = next((lease for lease in leases if lease.token == run.token), None) if run.token else None
        due = run.due if holding is None and run.due > now else None
        found = replace(found, lease=holding, attempts=run.attempts, redelivered=run.redelivered, due=due)
    elif view.is_decided(offset):
        gone = ("Kafka does not keep it any more.",) if offset < log.start else ()
        return replace(found, state=OffsetState.SETTLED, attempts=None, notes=gone)
    else:
        lease = covering if offset < view.next else None
        reserved = lease is not None and offset >= view.readable_end
        notes = ("The lease only reserves it: no member has read so far yet.",) if reserved else ()
        seen = offset < view.seen
        found = replace(found, lease=lease, redelivered=seen, reserved=reserved, notes=notes)
    if found.lease is not None:
        return _leased(found, found.lease, members, now)
    if found.state is OffsetState.READY and offset < log.start:
        deleted = ("Kafka deleted it before it was settled; members pass over it.",)
        return replace(found, state=OffsetState.BEFORE_LOG, notes=deleted)
    return found


def with_times(found: Explanation, times: Times | None, now: int) -> Explanation:
    """Add what delivery time and expiration of its message say about an offset that is not settled.

    `now` is the time, ms since 1970.
    """
    if times is None or found.state not in (OffsetState.READY, OffsetState.LEASED):
        return found
    if times.is_over(now):
        note = "Its time to live has ended: the member that comes to it settles it without delivering it."
        return replace(found, notes=(*found.notes, note))
    if times.wait(now):
        due = times.delivery_time if found.lease is None else found.due
        note = "It was sent with a delay, and its delivery time has not come."
        return replace(found, due=due, notes=(*found.notes, note))
    return found


def _leased(found: Explanation, lease: LeaseView, members: Sequence[MemberInfo], now: int) -> Explanation:
    """Add the holder of the lease, and a note if the offset is not delivered by it."""
    holder = next((member for member in members if member.id == lease.member), None)
    gone = holder is None or holder.expires <= now
    state, notes = OffsetState.LEASED, found.notes
    if found.state is OffsetState.BEYOND_END:
        state = found.state
        notes = (f"It is reserved for member {lease.member if holder is None else holder.name}.",)
    elif gone:
        notes = (*notes, "Its holder is gone; it comes back as soon as a member looks at this partition.")
    elif holder is not None and not holder.heard:
        notes = (*notes, "The holder's process is not heard; unless it comes back, the lease ends early.")
    return replace(found, state=state, holder=holder, holder_gone=gone, notes=notes)


def is_settled(view: PartitionView | None, offset: int) -> bool:
    """Tell whether an offset is settled: decided, and no exception."""
    return view is not None and view.is_decided(offset) and view.run_of(offset) is None


# --- counting


def undecided(view: PartitionView, start: int, end: int) -> int:
    """Count the offsets in [start, end) that are neither settled nor exceptions."""
    start = max(start, view.base)
    if end <= start:
        return 0
    # The bits of the range as one number: bytes that reach over its ends are cut by shifting and masking.
    first, last = (start - view.origin) // 8, (end - view.origin + 7) // 8
    field = view.bits[first:last]
    number = int.from_bytes(field.ljust(last - first, b"\0"), "big")
    number >>= last * 8 - (end - view.origin)
    number &= (1 << (end - start)) - 1
    return end - start - number.bit_count()


def in_flight(view: PartitionView, leases: Sequence[LeaseView], members: Mapping[str, MemberInfo]) -> int:
    """Count the unsettled, readable offsets in leases of these members."""
    held = [lease for lease in leases if lease.partition == view.partition and lease.member in members]
    tokens = {lease.token for lease in held}
    return sum(
        undecided(view, lease.start, min(lease.horizon, view.next, view.readable_end))
        for lease in held
        if lease.kind not in RUNS
    ) + sum(run.end - run.start for run in view.exceptions if run.token in tokens)


def backlog(view: PartitionView, log: Log) -> int:
    """Count the unsettled offsets that Kafka holds, including those in flight."""
    waiting = undecided(view, max(view.base, log.start), min(view.next, log.end))
    fresh = max(log.end - max(view.next, log.start), 0)
    return waiting + fresh + count_within(view.runs, log.start, log.end)


def count_within(runs: Sequence[Run], start: int, end: int) -> int:
    """Count the offsets in [start, end) of runs, which are in the order of offsets."""
    first = bisect_right(runs, start, key=lambda run: run.end)
    inside = runs[first : max(bisect_left(runs, end, key=lambda run: run.start), first)]
    if not inside or start >= end:
        return 0
    whole = sum(run.end - run.start for run in inside)
    return whole - max(start - inside[0].start, 0) - max(inside[-1].end - end, 0)


def unsettled_before(view: PartitionView, log: Log, until: int) -> int:
    """Count the unsettled offsets below `until` that Kafka holds."""
    return backlog(view, Log(start=log.start, end=min(log.end, until)))


def lag(view: PartitionView, log: Log) -> int:
    """Count the offsets from the floor to the end, as lag tools do for the mirrored floor."""
    return max(log.end - max(view.floor, log.start), 0)
