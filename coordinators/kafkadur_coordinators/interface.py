"""Values that members and the coordinator send each other: one exchange, and the attached members.

These are plain values. How they travel is `redis/wire.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Literal, NamedTuple

from kafkadur_coordinators.bounds import (
    Bounds,
    Count,
    Delay,
    Flag,
    Marks,
    MaybeEpoch,
    MaybeOffset,
    Offset,
    Partition,
    Records,
    Serial,
)

#: "": an ordinary consumer; "whole": the only holder of a subscription (Spark); "claims": takes large ranges,
#: beside other members.
MemberKind = Literal["", "whole", "claims"]


class How(IntEnum):
    """In which way offsets are given back without being settled."""

    #: They were never in flight.
    UNREAD = 0
    #: They were in flight, but it does not count as an attempt (cancellation, close).
    RELEASED = 1
    #: Rolled back: counted as an attempt.
    ROLLED_BACK = 2


class Standing(IntEnum):
    """A member's place on a lane."""

    #: another member holds it; also: the subscription has no lanes
    STANDBY = 0
    ACTIVE = 1
    #: it holds the lane and is asked to dispatch no more, and to offer it
    ASKED = 2


class Settled(NamedTuple):
    """Offsets of one lease that are settled."""

    token: Serial
    #: start, end (exclusive), start, end, ... : few, long ranges
    ranges: Sequence[Offset] = ()
    #: offset of the first bit of `blob`, a multiple of 8
    blob_from: Offset = 0
    #: one bit per offset, most significant first: many short ranges
    blob: bytes = b""


class Returned(NamedTuple):
    """Offsets of one lease that are given back."""

    token: Serial
    start: Offset
    #: exclusive
    end: Offset
    how: Annotated[int, Bounds(How.UNREAD, How.ROLLED_BACK)]
    #: ms until they may be delivered again; -1: as the redelivery policy says
    delay: Delay = 0


class PartitionReport(NamedTuple):
    """The report of a member on one partition."""

    partition: Partition
    #: offset up to which the partition was really read (last record + 1, or the partition's end); -1:
    #: nothing new
    readable_end: MaybeOffset = -1
    #: first offset of the lane that was not dispatched; -1: no lane
    position: MaybeOffset = -1
    settled: Sequence[Settled] = ()
    returned: Sequence[Returned] = ()
    #: tokens of leases that are finished
    done: Sequence[Serial] = ()
    #: 1: a lane that has a keeper of its own is given up (key-ordered) or offered (serial): no message of
    #: it is in flight, nor will be until the reply is there
    drained: Flag = 0
    #: unsettled offsets, settled with this report, that Kafka does not keep any more
    expired: Records = 0
    #: most offsets that may be reserved for the member, including those that are (shared)
    reserve: Count = 0
    #: leader epoch of the records before `readable_end`; -1: not known, or nothing new
    epoch: MaybeEpoch = -1
    #: where the log ended when Kafka was asked because the state says `log_end_unknown`; -1: was not asked
    log_end: MaybeOffset = -1
    #: those of `expired` whose messages a member had read: of a lane of keys they are its own
    expired_read: Records = 0


class Claim(NamedTuple):
    """Offsets of a lease of an earlier incarnation that a member still has in flight."""

    incarnation: Serial
    token: Serial
    #: attempts that were counted before it, twice, and 1 if it may have been delivered before
    marks: Marks
    #: start, end, start, end, ...
    held: Sequence[Offset]


class Claimed(NamedTuple):
    """The result of a claim."""

    #: of its new lease; 0: there is none
    token: int
    #: offsets of the new lease: start, end, start, end, ...
    held: Sequence[int]
    #: claimed offsets that are settled already: start, end, start, end, ...
    settled: Sequence[int]
    #: 1: the member was attached until the loss: no other member can have settled its messages; 0: not known
    attached: int


class Exchange(NamedTuple):
    """One exchange of a member, from its side. A repeat of it is the same value again."""

    number: int
    #: free credit, records
    credit: int
    #: highest token the member has seen
    have: int
    ask_presence: bool
    #: window + unconfirmed budget, records: how far a lane may be leased ahead
    span: int
    #: at most `MAX_PARTITIONS`
    parts: Sequence[PartitionReport]
    #: the holder of the lanes has no message in flight, and dispatches none until it has the reply
    handover: bool = False
    #: of a shared subscription: the member has a window of messages or more to read in the partitions that it
    #: prefers. It is granted no messages of other partitions, and its credit ends with this exchange
    reads_on: bool = False


#: A member whose process has not listened for this time (seconds) loses its session.
PRESENCE_GRACE = 0.5

#: Partitions that one script call may touch.
MAX_PARTITIONS = 16


def in_groups(partitions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split partitions into groups that one script call may touch."""
    return (partitions[at : at + MAX_PARTITIONS] for at in range(0, len(partitions), MAX_PARTITIONS))


class Grant(NamedTuple):
    """A lease, as its holder learns of it."""

    token: int
    partition: int
    start: int
    #: exclusive
    horizon: int
    #: counted attempts before this lease
    attempts: int
    #: whether all of it may have been delivered before
    redelivered: bool
    #: "range", "lane" (the horizon moves on while it is held), "runs" (exceptions) or "ahead" (single offsets
    #: that are not written yet)
    kind: str
    #: offsets below this one may have been delivered before
    seen: int
    #: leased offsets: start, end, start, end, ...; empty: all of [start, horizon)
    stretch: Sequence[int] = ()
    #: the last attempt of a crash suspect: it is dispatched while no other message is in flight
    isolated: bool = False
    #: ms until it may be dispatched: its keeper waits (key-ordered); -1: not before it is armed
    due_ms: int = 0

    @property
    def records(self) -> int:
        """Offsets it holds."""
        if not self.stretch:
            return self.horizon - self.start
        return sum(self.stretch[1::2]) - sum(self.stretch[::2])


class PartitionState(NamedTuple):
    """Where a partition stands."""

    partition: int
    base: int
    next: int
    readable_end: int
    floor: int
    #: ms until the next exception without a lease is due (0: now); -1: there is none
    due_ms: int
    #: of a lane that has a keeper of its own: whether this member is it
    standing: Standing = Standing.STANDBY
    #: first offset at or beyond the readable end that is not reserved
    free_from: int = 0
    #: leader epoch of what lies before the readable end; -1: not known
    epoch: int = -1
    #: nothing is granted until a member reports the end of the log: offsets before it may have been
    #: delivered before the state was lost
    log_end_unknown: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """The rank of a member of a priority subscription."""

    #: higher is better; equals rank by the time of attaching
    priority: int = 0
    #: whether it takes the lane from a holder of lower priority, which drains first
    preempt: bool = False


#: The rank of members without a priority.
UNRANKED = Rank()


class Role(NamedTuple):
    """A member's place among the members."""

    rank: int
    members: int
    #: the member whose silence this one reports
    neighbour: str
    #: partitions, or lanes of keys, that the subscription has by now
    partitions: int


class ExchangeReply(NamedTuple):
    """The reply to an exchange."""

    #: highest token given out so far
    token: int
    #: a member seems to be gone: ask for presence again in so many ms; None: all are heard
    silent_ms: int | None
    role: Role
    grants: Sequence[Grant]
    #: token -> horizon of lanes held
    horizons: dict[int, int]
    #: tokens that are not (any more) this member's; nothing was changed for them
    refused: Sequence[int]
    partitions: Sequence[PartitionState]
    watches: Sequence[int]
    #: partitions to touch next: leases of members that are gone, or new ones of this member, wait there
    orphaned: Sequence[int]
    #: ms until leases are granted again
    grace_ms: int
    #: on a lane: whether this member holds it; of a shared subscription ASKED: it is to give back its
    #: reservations
    standing: Standing
    #: tokens held, as the answer to an offer; None: nothing was offered
    held: frozenset[int] | None
    #: nothing is dispatched while the subscription is paused
    paused: bool
    #: ms until a session may have ended; None: there is no other member
    expiry_ms: int | None = None
    #: nothing is granted until the commits of dead members in Kafka are known
    outcome_unknown: bool = False
    #: token of the lease of crash suspects that a keeper may dispatch (key-ordered); 0: there is none
    armed: int = 0

    @property
    def asked(self) -> list[int]:
        """Lanes with a keeper of their own that this member is to drain."""
        return [state.partition for state in self.partitions if state.standing is Standing.ASKED]


class Pushed(NamedTuple):
    """Grants that another member's exchange made to this one, as a reply to its own next exchange."""

    incarnation: int
    #: of this member
    attachment: int
    #: of this member's last exchange at that time: the push is ignored after a later one
    number: int
    reply: ExchangeReply


class Attached(NamedTuple):
    """A member is attached."""

    role: Role
    #: ms until leases are granted
    grace_ms: int
    #: number of this attachment: exchanges of an earlier one are refused
    attachment: int
    #: as the head of the reply says
    incarnation: int


class MemberInfo(NamedTuple):
    """An attached member, for people and for decisions."""

    id: str
    name: str
    kind: str
    #: whether its process listens on its channel now
    heard: bool
    leases: int
    #: ms since the epoch, server time
    since: int
    #: ms since the epoch, server time
    expires: int
    credit: int


class Known(NamedTuple):
    """What the shared state knows of a subscription; version 0: there is none."""

    #: JSON text of the journal record in force; empty: none
    definition: str = ""
    version: int = 0
    id: str = ""
    #: ms until the deadline of a change in progress (0: past); None: no change
    changing_ms: int | None = None
    #: version that the change in progress expects
    changing_from: int = 0
    members: Sequence[MemberInfo] = ()
    partitions: int = 0
    #: ms until leases are granted
    grace_ms: int = 0
    #: nothing is dispatched while the subscription is paused
    paused: bool = False
    #: server time, ms since the epoch, since when this server knows the subscription (0: not known)
    begun: int = 0
    #: server time at which the last member left, and of the last verdict (0: never, or not known)
    left: int = 0
    last_verdict: int = 0
    #: names the change in progress; empty: none
    changing: str = ""
    #: version of the state (`redis/coordinator.py`)
    state_version: int = 0
    #: as the head of the reply says; server time, ms since the epoch
    incarnation: int = 0
    now: int = 0


class Run(NamedTuple):
    """Offsets listed as exceptions: decided, but not settled."""

    start: int
    end: int
    #: counted attempts
    attempts: int
    redelivered: bool
    #: ms since the epoch; 0: at once
    due: int
    #: 0: no lease
    token: int
    #: their last holder ended uncleanly: they are granted few at a time
    suspect: bool = False


class PartitionView(NamedTuple):
    """The whole state of a partition, for people and for checks."""

    partition: int
    base: int
    next: int
    readable_end: int
    origin: int
    #: offsets at or above base that are decided
    decided: int
    runs: Sequence[Run]
    seen: int
    bits: bytes
    #: offsets that Kafka removed before they were settled
    expired: int = 0
    #: leader epoch of what lies before the readable end; -1: not known
    epoch: int = -1
    #: offsets that were known, and that Kafka lost with the end of its log
    truncated: int = 0
    #: those of `expired` whose messages a member had read
    expired_read: int = 0

    @property
    def floor(self) -> int:
        """Lowest unsettled offset."""
        return min(self.base, self.runs[0].start) if self.runs else self.base

    def is_decided(self, offset: int) -> bool:
        """Whether an offset is settled or an exception."""
        if offset < self.base:
            return True
        at = offset - self.origin
        return at // 8 < len(self.bits) and bool(self.bits[at // 8] & (128 >> at % 8))

    def run_of(self, offset: int) -> Run | None:
        """The exception an offset belongs to, if any."""
        return next((run for run in self.runs if run.start <= offset < run.end), None)

    @property
    def exceptions(self) -> list[Run]:
        """Exceptions below the readable end; those beyond it are reserved, or without a lease."""
        end = self.readable_end
        return [run if run.end <= end else run._replace(end=end) for run in self.runs if run.start < end]

    @property
    def unsettled(self) -> int:
        """Offsets below next that are not settled (leased or ready)."""
        return self.next - self.base - self.decided + sum(run.end - run.start for run in self.runs)

    @property
    def backlog(self) -> int:
        """Offsets known to be readable that are not settled."""
        return max(self.readable_end - self.next, 0) + self.unsettled - max(self.next - self.readable_end, 0)


class LeaseView(NamedTuple):
    """A lease, for people and for checks."""

    token: int
    partition: int
    start: int
    horizon: int
    member: str
    marks: int
    kind: str
    #: its keeper may not dispatch it yet: another lease of crash suspects comes before (key-ordered)
    unarmed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """State of some partitions and all leases, of one moment."""

    now: int
    sequence: int
    incarnation: int
    #: epoch of the definition in force; the settled offsets belong to it
    epoch: int
    partitions: Sequence[PartitionView] = field(default_factory=tuple)
    leases: Sequence[LeaseView] = field(default_factory=tuple)
