"""What a member and the coordinator send each other: the contents of one exchange, and the attached members.

These are plain values. How they travel is `redis/wire.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

#: How a member takes its work: record by record, the whole alone, or stretches at once beside others.
MemberKind = Literal["", "whole", "claims"]


class How(IntEnum):
    """In which way offsets are given back without being settled."""

    #: They never came into the application's hands.
    UNREAD = 0
    #: They did, but it does not count as an attempt (cancellation, close).
    RELEASED = 1
    #: Rolled back: counted as an attempt.
    ROLLED_BACK = 2


class Standing(IntEnum):
    """A member's place on a lane."""

    #: another member holds it; also: the subscription has no lanes
    STANDBY = 0
    ACTIVE = 1
    #: it holds the lane and is asked to hand out nothing more, and to offer it
    ASKED = 2


class Settled(NamedTuple):
    """Offsets of one lease that are settled."""

    token: int
    #: start, end (exclusive), start, end, ... : few, long ranges
    ranges: Sequence[int] = ()
    #: offset of the first bit of `blob`, a multiple of 8
    blob_from: int = 0
    #: one bit an offset, most significant first: many short ranges
    blob: bytes = b""


class Returned(NamedTuple):
    """Offsets of one lease that are given back."""

    token: int
    start: int
    #: exclusive
    end: int
    how: int
    #: ms until they may be delivered again; -1: as the redelivery policy says
    delay: int = 0


class PartitionReport(NamedTuple):
    """What a member has to say of one partition."""

    partition: int
    #: offset up to which the partition was really read (last record + 1, or the partition's end); -1:
    #: nothing new
    readable_end: int = -1
    #: first offset of the lane that was not handed out; -1: no lane
    position: int = -1
    settled: Sequence[Settled] = ()
    returned: Sequence[Returned] = ()
    #: tokens of leases that are finished
    done: Sequence[int] = ()
    #: 1: a lane that has a keeper of its own is given up (key-ordered) or offered (serial): nothing of it is
    #: in hands, nor will be until the reply is there
    drained: int = 0
    #: unsettled offsets, settled with this report, that Kafka does not keep any more
    expired: int = 0
    #: offsets that are not written yet and that the member can be promised, those it has included (shared)
    ahead: int = 0
    #: leader epoch of what was read before `readable_end`; -1: not known, or nothing new
    epoch: int = -1
    #: where the log ended when Kafka was asked because the state says `log_end_unknown`; -1: was not asked
    log_end: int = -1


class Claim(NamedTuple):
    """What a member still has in hands of a lease of an earlier incarnation."""

    incarnation: int
    token: int
    #: attempts that were counted before it, twice, and 1 if it may have been delivered before
    marks: int
    #: start, end, start, end, ...
    held: Sequence[int]


class Claimed(NamedTuple):
    """What became of a claim."""

    #: of its new lease; 0: there is none
    token: int
    #: what that holds: start, end, start, end, ...
    held: Sequence[int]
    #: what of the claim is settled already: start, end, start, end, ...
    settled: Sequence[int]


class Exchange(NamedTuple):
    """One exchange of a member, from its side. A repeat of it is the same value again."""

    number: int
    #: free credit, records
    credit: int
    #: highest token the member has seen
    have: int
    ask_presence: bool
    #: window + unconfirmed budget, records: how far a lane may be handed out ahead
    span: int
    #: at most `MAX_PARTITIONS`
    parts: Sequence[PartitionReport]
    #: a lane's holder has nothing in the application's hands, and hands out nothing until it has the reply
    offer: bool = False


#: Partitions that one exchange may touch.
MAX_PARTITIONS = 16


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
    #: what it holds, start, end, start, end, ...; empty: all of [start, horizon)
    stretch: Sequence[int] = ()
    #: the last attempt of what may have ended its holders: it is handed out while nothing else is in hands
    isolated: bool = False
    #: ms until it may be handed out: its keeper waits (key-ordered)
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
    #: nothing is granted until a member says where the log ends now: up to there it may have been delivered
    #: before the state was lost
    log_end_unknown: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """What a member of a priority subscription is worth."""

    #: higher is better; equals rank by the time of attaching
    priority: int = 0
    #: whether it takes the lane from a holder of lower priority, which drains first
    preempt: bool = False


#: A member that is worth as much as any other.
UNRANKED = Rank()


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """A member's place among the members."""

    rank: int
    members: int
    #: the member this one looks after: whose silence it reports
    neighbour: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeReply:
    """What an exchange brings."""

    sequence: int
    incarnation: int
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
    #: on a lane: whether this member holds it; of a shared subscription ASKED: it is to give back what was
    #: promised to it
    standing: Standing
    #: tokens held, as the answer to an offer; None: nothing was offered
    held: frozenset[int] | None
    #: nothing is to be handed out until it goes on
    paused: bool
    #: ms until a session may have ended; None: there is no other member
    expiry_ms: int | None = None
    #: nothing is granted until it was looked up in Kafka what members that are gone committed
    outcome_unknown: bool = False

    @property
    def asked(self) -> list[int]:
        """Lanes with a keeper of their own that this member is to drain."""
        return [state.partition for state in self.partitions if state.standing is Standing.ASKED]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """A member is attached."""

    sequence: int
    incarnation: int
    role: Role
    #: partitions the shared state knows
    partitions: int
    grace_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberInfo:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What the shared state knows of a subscription."""

    id: str
    version: int
    #: JSON text of the journal record in force
    definition: str
    incarnation: int
    #: ms until the deadline of a change in progress (0: past); None: no change
    changing_ms: int | None
    #: version that the change in progress expects
    changing_from: int
    members: Sequence[MemberInfo]
    partitions: int
    grace_ms: int
    #: nothing is handed out until it goes on
    paused: bool
    #: server time, ms since the epoch
    now: int
    #: since when this server knows it, server time, ms since the epoch (0: not known)
    begun: int = 0
    #: when its last member left, and when the last verdict came, likewise (0: never since then)
    left: int = 0
    last_verdict: int = 0


class Run(NamedTuple):
    """Offsets listed as exceptions: decided as a place, not settled."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionView:
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
        return [
            run._replace(end=min(run.end, self.readable_end))
            for run in self.runs
            if run.start < self.readable_end
        ]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """State of some partitions and all leases, of one moment."""

    now: int
    sequence: int
    incarnation: int
    #: of the definition on this server: what is settled was settled since it began
    epoch: int
    partitions: Sequence[PartitionView] = field(default_factory=tuple)
    leases: Sequence[LeaseView] = field(default_factory=tuple)
