"""What the state of one partition says about its offsets: explain one of them, count many. Pure functions.

The words are those of `docs/internals/state-machine.md`. The state is read by `inspector.py`; how an
explanation is shown to people is the command line's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kafkadur_coordinators.interface import LeaseView, MemberInfo, PartitionView, Run

#: Kinds of leases that hold runs with their token: exceptions, and what is promised.
RUNS = ("runs", "ahead")


class OffsetState(StrEnum):
    """What an offset is to a subscription."""

    #: A member holds it.
    LEASED = "leased"
    #: No member has a lease on it; it is delivered next, or when its due time has come.
    READY = "ready"
    #: It has its verdict and is never delivered again.
    SETTLED = "settled"
    #: Nothing that could be read lies there yet.
    BEYOND_END = "beyond the end"
    #: Kafka has deleted it before it was settled.
    BEFORE_LOG = "before the start of the log"
    #: It was there before the subscription, which started behind it.
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
    """Why an offset is delivered, or not, or to whom."""

    partition: int
    offset: int
    state: OffsetState
    #: Attempts that counted so far; None where there is nothing to attempt.
    attempts: int | None = None
    #: Whether it may have been delivered before.
    redelivered: bool = False
    #: Server time from which it may be delivered, ms since 1970; None: at once.
    due: int | None = None
    #: The lease that covers it.
    lease: LeaseView | None = None
    #: Whether the lease only reserves it: it is not known to be readable, so it was not handed out.
    reserved: bool = False
    #: The holder of the lease; None without a lease, or when the holder is attached no more.
    holder: MemberInfo | None = None
    #: How it was settled, if that is known (`reasons.py`).
    verdict: str | None = None
    #: What else is worth knowing, one sentence each.
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
    where = _Where(
        partition=partition,
        offset=offset,
        leases=[lease for lease in leases if lease.partition == partition],
        members=members,
        log=log,
    )
    if offset < log.subscribed:
        return Explanation(partition=partition, offset=offset, state=OffsetState.BEFORE_START)
    if offset >= log.end:
        return _beyond(where)
    if view is None:
        note = "The subscription learns of this partition when a member attaches."
        return _undelivered(where, notes=(note,))
    run = view.run_of(offset)
    return _undecided(where, view) if run is None else _exception(where, run, now)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Where:
    """The offset in question and what lies around it."""

    partition: int
    offset: int
    #: Those of the partition.
    leases: Sequence[LeaseView]
    members: Sequence[MemberInfo]
    log: Log


def _beyond(where: _Where) -> Explanation:
    notes: list[str] = []
    lease = _covering(where)
    holder = None if lease is None else _holder(where, lease)
    if lease is not None:
        notes.append(f"It is reserved for member {lease.member if holder is None else holder.name}.")
    return Explanation(
        partition=where.partition,
        offset=where.offset,
        state=OffsetState.BEYOND_END,
        lease=lease,
        reserved=lease is not None,
        holder=holder,
        notes=tuple(notes),
    )


def _exception(where: _Where, run: Run, now: int) -> Explanation:
    """Explain an offset that is set aside: decided as a place, not settled."""
    lease = next((lease for lease in where.leases if lease.token == run.token), None) if run.token else None
    if lease is not None:
        return _leased(where, lease, attempts=run.attempts, redelivered=run.redelivered)
    due = run.due if run.due > now else None
    return _undelivered(where, attempts=run.attempts, redelivered=run.redelivered, due=due)


def _undecided(where: _Where, view: PartitionView) -> Explanation:
    """Explain an offset that is no exception: settled, covered by a lease, or waiting for one."""
    offset = where.offset
    if view.is_decided(offset):
        gone = ("Kafka does not keep it any more.",) if offset < where.log.start else ()
        return Explanation(partition=where.partition, offset=offset, state=OffsetState.SETTLED, notes=gone)
    lease = _covering(where) if offset < view.next else None
    if lease is None:
        return _undelivered(where, redelivered=offset < view.seen)
    reserved = offset >= view.readable_end
    notes = ("The lease only reserves it: no member has read so far yet.",) if reserved else ()
    return _leased(where, lease, attempts=0, redelivered=offset < view.seen, reserved=reserved, notes=notes)


def _undelivered(
    where: _Where,
    *,
    attempts: int = 0,
    redelivered: bool = False,
    due: int | None = None,
    notes: tuple[str, ...] = (),
) -> Explanation:
    """No member has a lease on it: it is ready, unless Kafka has deleted it."""
    state = OffsetState.READY
    if where.offset < where.log.start:
        state = OffsetState.BEFORE_LOG
        notes = ("Kafka deleted it before it was settled; members pass over it.",)
    return Explanation(
        partition=where.partition,
        offset=where.offset,
        state=state,
        attempts=attempts,
        redelivered=redelivered,
        due=due,
        notes=notes,
    )


def _leased(
    where: _Where,
    lease: LeaseView,
    *,
    attempts: int,
    redelivered: bool,
    reserved: bool = False,
    notes: tuple[str, ...] = (),
) -> Explanation:
    holder = _holder(where, lease)
    if holder is None:
        notes = (*notes, "Its holder is gone; it comes back as soon as a member looks at this partition.")
    elif not holder.heard:
        notes = (*notes, "The holder's process is not heard; unless it comes back, the lease ends early.")
    return Explanation(
        partition=where.partition,
        offset=where.offset,
        state=OffsetState.LEASED,
        attempts=attempts,
        redelivered=redelivered,
        lease=lease,
        reserved=reserved,
        holder=holder,
        notes=notes,
    )


def _covering(where: _Where) -> LeaseView | None:
    """Return the lease over an undecided offset: not one of exceptions, which has the runs with its token."""
    return next(
        (
            lease
            for lease in where.leases
            if lease.kind not in RUNS and lease.start <= where.offset < lease.horizon
        ),
        None,
    )


def _holder(where: _Where, lease: LeaseView) -> MemberInfo | None:
    return next((member for member in where.members if member.id == lease.member), None)


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
    """Count the unsettled offsets, known to be readable, in leases of attached members."""
    held = [lease for lease in leases if lease.partition == view.partition and lease.member in members]
    tokens = {lease.token for lease in held}
    return sum(
        undecided(view, lease.start, min(lease.horizon, view.next, view.readable_end))
        for lease in held
        if lease.kind not in RUNS
    ) + sum(run.end - run.start for run in view.exceptions if run.token in tokens)


def backlog(view: PartitionView, log: Log) -> int:
    """Count the offsets that Kafka holds and that are not settled, those in flight among them."""
    waiting = undecided(view, max(view.base, log.start), min(view.next, log.end))
    fresh = max(log.end - max(view.next, log.start), 0)
    aside = sum(max(min(run.end, log.end) - max(run.start, log.start), 0) for run in view.runs)
    return waiting + fresh + aside


def unsettled_before(view: PartitionView, log: Log, until: int) -> int:
    """Count the offsets below `until` that Kafka holds and that are not settled."""
    return backlog(view, Log(start=log.start, end=min(log.end, until)))


def lag(view: PartitionView, log: Log) -> int:
    """Count the offsets from the floor to the end: what lag tools show for the mirrored floor."""
    return max(log.end - max(view.floor, log.start), 0)
