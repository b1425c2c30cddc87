"""A lease, and the chunk of its records: one verdict byte per record.

A chunk holds consecutive records of one lease. A verdict is given by writing the record's byte; the next
exchange carries whole runs of them (`composer.py`). Only this module, and the compiled acknowledgement in
`native/deliveries.pxi`, write verdict bytes. The application's thread acknowledges and
releases without the member's lock: no other code runs between reading the byte and changing it. It holds the
lock to roll back and to reject (`verdicts.py`).
"""

from __future__ import annotations

import contextlib
import math
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Protocol, TypeVar

from confluent_kafka import Message

from kafkadur.consumer.gate import Gate
from kafkadur.consumer.turn import LaneGroup
from kafkadur.fetch.buffer import Records
from kafkadur.history.recorded import Recorded, add_ranges
from kafkadur.message.serialization import Decoding
from kafkadur.message.times import NONE, TimesByIndex
from kafkadur.message.tracing import Tracing
from kafkadur.runtime.dead_letters import Cause
from kafkadur_coordinators.interface import How
from kafkadur_sharing.definition import AckLevel, Definition
from kafkadur_sharing.errors import KafkadurError

D = TypeVar("D")

#: Verdict bytes. SENT (an acknowledgement), RETURNED (a rollback) and RELEASE_SENT travel in an exchange, or
#: were confirmed. REJECTED waits until its dead letter is written. DEAD: settled without an
#: acknowledgement, because its dead letter is written or it has expired. OVERDUE: held too long. PUT_OFF: not
#: due yet, when it was to be dispatched.
(
    FRESH, HANDED, ACKED, ROLLED_BACK, RELEASED, SENT, LOST, RETURNED, RELEASE_SENT, REJECTED, DEAD, OVERDUE,
    PUT_OFF,
) = range(13)  # fmt: skip

#: It was given back, and is delivered again.
GIVEN_BACK = (ROLLED_BACK, RELEASED, RETURNED, RELEASE_SENT, OVERDUE)
#: `Delivery.settled` is False for these verdicts. A record that was released, by the application or at the
#: end of its subscription, counts as never delivered. OVERDUE is a rollback by the time limit, not by the
#: application.
UNSETTLED = (HANDED, LOST, OVERDUE, RELEASED, RELEASE_SENT)
#: The exchange that carried it is under way, or nothing is left to say.
_SAID = (SENT, RETURNED, RELEASE_SENT, LOST)
#: Nothing more is expected for it in this lease: settled, lost, or sent back.
_PAST = (ACKED, SENT, DEAD, LOST, RETURNED, RELEASE_SENT)
#: Verdicts of records that a member leases again after a loss of the shared state.
_KEPT = (HANDED, ACKED, REJECTED, DEAD, ROLLED_BACK, RELEASED, OVERDUE, PUT_OFF)
_KEPT_RUNS = re.compile(b"[" + bytes(_KEPT) + b"]+")
_ACK_RUNS = re.compile(b"[" + bytes((ACKED, DEAD)) + b"]+")
_RETURNS = re.compile(b"[" + bytes((ROLLED_BACK, RELEASED, OVERDUE, PUT_OFF)) + b"]")
#: How a record with one of these verdicts goes back; the others were rolled back.
_HOW = {RELEASED: How.RELEASED, PUT_OFF: How.UNREAD}
#: For a lost lease: all that no exchange has carried is lost.
_LOSE = bytes.maketrans(bytes(_KEPT), bytes((LOST,)) * len(_KEPT))


class Confirmation(Protocol):
    """A caller that waits until a verdict is confirmed. Called once, from any thread."""

    def resolve(self, error: KafkadurError | None) -> None:
        """The verdict is confirmed, or failed with `error`."""


class Settling(Protocol):
    """The verdicts of a member that need more than writing a byte (`verdicts.py`)."""

    def roll_back(self, chunk: Chunk, index: int, delay: int, reason: str = ...) -> bool:
        """Give a record back, counted as an attempt; whether it was still in flight."""
        ...

    def reject(self, chunk: Chunk, index: int, reason: str, cause: Cause = ...) -> bool:
        """Give a record up; whether it was still in flight."""
        ...

    def extend(self, chunk: Chunk, index: int) -> None:
        """The time for which the application may hold a record begins anew."""

    def when_written(self, chunk: Chunk, index: int, confirmation: Confirmation) -> None:
        """Tell `confirmation` when the dead letter of a rejected record is written."""

    def confirm(self, chunk: Chunk, confirmation: Confirmation, acks: int = 0) -> None:
        """Tell `confirmation` when the verdicts given so far in a chunk are confirmed."""

    def level(self, level: str | None) -> AckLevel:
        """The level of an acknowledgement."""
        ...

    def above(self, level: AckLevel, chunk: Chunk, confirmation: Confirmation) -> Confirmation:
        """The confirmation to pass to `confirm`, so that `confirmation` is resolved at `level`."""
        ...


class HoldTimes(Protocol):
    """How long records are held (`MaxHold`)."""

    def hand_out(self, chunk: Chunk, start: int, end: int) -> None:
        """Records [start, end) of a chunk are dispatched now."""


class Owner(Protocol):
    """The member that a chunk belongs to, as its deliveries and the levels of acknowledgement see it."""

    #: name of the subscription for people
    display: str
    definition: Definition
    #: records are dispatched one at a time: its window is one
    single: bool
    #: the lane of each partition passes to other members by itself
    lanes_apart: bool
    #: a transacted session settles messages; the commits of a session are the only verdicts
    transacted: bool
    judged_by_session: bool
    decoding: Decoding
    tracing: Tracing | None
    gate: Gate

    @property
    def max_hold(self) -> HoldTimes | None:
        """How long records are held; None: they may be held for ever."""
        ...

    @property
    def verdicts(self) -> Settling:
        """The verdicts that need more than writing a byte."""
        ...

    def request_exchange(self) -> None:
        """Have an exchange made soon."""

    def exchange_inline(self) -> bool:
        """Have the exchange made that is due; whether it has been made already."""
        ...

    def filled(self) -> None:
        """The records in flight may fill the window."""

    def take_settled(self) -> set[int]:
        """Partitions on which verdicts were confirmed since the last call."""
        ...


#: `not_before` of an unarmed lease.
NEVER = float("inf")


@dataclass(slots=True, kw_only=True, eq=False)
class Lease:
    """A lease as its holder keeps it.

    It holds the offsets [start, end), or those of `pairs`: start, end, start, end, ...
    """

    token: int
    incarnation: int
    partition: int
    start: int
    end: int
    attempts: int
    redelivered: bool
    #: whether it holds the new messages of a lane
    lane: bool
    #: the lanes that pass to another member together with its lane
    group: LaneGroup
    #: offsets before this one may have been delivered before
    seen: int
    pairs: InitVar[Sequence[int]] = ()
    #: its record is dispatched only while no other one is in flight
    isolated: bool = False
    #: a reservation: its offsets were not written yet when it was granted
    reserved: bool = False
    #: of a reservation, as far as this member knows: offsets before this one are written
    written: int = 0
    #: the rest of the reservation is to be given back
    withdrawn: bool = False
    #: given up in order: none of its records was in flight
    retired: bool = False
    lost: bool = False
    #: the range fetcher reads its records
    point: bool = False
    #: its records are sorted in by key (key-ordered)
    sorted: bool = False
    #: its records may be dispatched from then on (monotonic seconds); NEVER: not before it is armed
    not_before: float = float("-inf")
    #: offsets without a record, still to be settled: start, end, start, end, ...
    gaps: list[int] = field(default_factory=list[int])
    #: all that it held when it was granted, as pairs
    spans: tuple[tuple[int, int], ...] = field(init=False)
    #: pairs still to be filled, for a lease that does not hold all of [start, end)
    stretch: deque[tuple[int, int]] = field(init=False)
    #: next offset to be filled with a record
    fill: int = field(init=False)
    #: offsets without a decision; those of a lane are not counted
    open: int = field(init=False)

    def __post_init__(self, pairs: Sequence[int]) -> None:
        """Nothing is filled yet."""
        spans = tuple(zip(pairs[::2], pairs[1::2], strict=True))
        self.stretch = deque(spans)
        self.spans = spans or ((self.start, self.end),)
        self.fill = self.start
        self.open = 0 if self.lane and not spans else sum(end - start for start, end in self.spans)


class Chunk:
    """Records of one lease in offset order, with one verdict byte each."""

    __slots__ = (
        "_recorded",
        "delays",
        "detach_at",
        "first",
        "handed",
        "lease",
        "low",
        "member",
        "messages",
        "offsets",
        "outcome_unknown",
        "overdue",
        "returns",
        "taken",
        "times",
        "verdicts",
        "weight",
    )

    def __init__(
        self,
        member: Owner,
        lease: Lease,
        messages: Records,
        first: int,
        offsets: list[int] | None,
        *,
        size: int,
        times: TimesByIndex = NONE,
    ) -> None:
        """`offsets` is None when they follow one another without a gap; `size` in bytes."""
        self.member = member
        self.lease = lease
        self.messages = messages
        self.first = first
        self.offsets = offsets
        #: mean size of a record, bytes
        self.weight = size / len(messages)
        self.verdicts = bytearray(len(messages))
        #: delivery times and expirations of records, by index
        self.times = times
        #: when its records are detached from what Kafka's client keeps (monotonic seconds)
        self.detach_at = math.inf
        #: records before this index were dispatched
        self.handed = 0
        #: records before this index are not counted as waiting any more
        self.taken = 0
        #: records before this index have a verdict that was sent
        self.low = 0
        #: whether a record of it was ever given back: set before the verdict is written, and never reset
        self.returns = False
        self.delays: dict[int, int] = {}
        #: records that were held too long and have been rolled back
        self.overdue: set[int] = set()
        #: records whose acknowledgement was sent before a loss, and never answered
        self.outcome_unknown: set[int] = set()
        self._recorded: Recorded | None = None

    # -- offsets

    def offset(self, index: int) -> int:
        """Offset of a record."""
        return self.first + index if self.offsets is None else self.offsets[index]

    def index(self, offset: int) -> int:
        """Index of the first record at or after `offset`."""
        if self.offsets is None:
            return min(max(offset - self.first, 0), len(self.messages))
        return bisect_left(self.offsets, offset)

    def recorded(self) -> Recorded:
        """What is kept for the delivery history."""
        if self._recorded is None:
            lease = self.lease
            self._recorded = Recorded(
                id(self), lease.partition, lease.attempts, self.first, self.offsets, self.overdue
            )
        return self._recorded

    def add_ranges(self, pairs: list[int], start: int, end: int) -> None:
        """Add the offsets of records [start, end) to a list start, end, start, end, ..."""
        add_ranges(pairs, self.first, self.offsets, start, end)

    # -- counting verdicts

    def in_flight(self) -> int:
        """Records that take up the window: in flight, or waiting for their dead letter."""
        verdicts, low, handed = self.verdicts, self.low, self.handed
        return verdicts.count(HANDED, low, handed) + verdicts.count(REJECTED, low, handed)

    def has_verdicts(self) -> bool:
        """Whether records have a verdict that no exchange has carried yet."""
        find, low, handed = self.verdicts.find, self.low, self.handed  # it finds a byte faster than it counts
        return find(ACKED, low, handed) >= 0 or find(DEAD, low, handed) >= 0 or self.gives_back()

    def gives_back(self) -> bool:
        """Whether records go back with the next exchange, to be delivered again."""
        if not self.returns:
            return False
        find, low, handed = self.verdicts.find, self.low, self.handed
        return any(find(verdict, low, handed) >= 0 for verdict in (ROLLED_BACK, RELEASED, OVERDUE, PUT_OFF))

    def holds_any(self) -> bool:
        """Whether a record is in flight, also one that is being dispatched just now (`one_by_one`)."""
        verdicts, low = self.verdicts, self.low
        return bool(verdicts.count(HANDED, low) or verdicts.count(REJECTED, low))

    def unsettled_before(self, offset: int) -> bool:
        """Whether it holds a record before `offset` that the application has not settled."""
        index = self.index(offset)
        return sum(self.verdicts.count(verdict, 0, index) for verdict in _PAST) < index

    def handed_indices(self) -> list[int]:
        """Indices of the records in flight."""
        verdicts = self.verdicts
        return [index for index in range(self.low, self.handed) if verdicts[index] == HANDED]

    def rejected_indices(self) -> list[int]:
        """Indices of the records that wait for their dead letters."""
        verdicts = self.verdicts
        return [index for index in range(self.low, self.handed) if verdicts[index] == REJECTED]

    def handed_out(self) -> int:
        """Number of records in flight."""
        return self.verdicts.count(HANDED, self.low, self.handed)

    def comes_again(self, index: int) -> bool:
        """Whether a record was given back: rolled back, released, or held too long."""
        return self.verdicts[index] in GIVEN_BACK

    def acks(self) -> int:
        """Acknowledgements that no exchange has carried yet."""
        return self.verdicts.count(ACKED)

    def settled_unsaid(self) -> int:
        """Records that are settled, dead letters included, and that no exchange has carried yet."""
        verdicts, low, handed = self.verdicts, self.low, self.handed
        return verdicts.count(ACKED, low, handed) + verdicts.count(DEAD, low, handed)

    # -- writing verdicts

    def hand_out(self, start: int, end: int) -> None:
        """Records [start, end) go to the application."""
        self.verdicts[start:end] = bytes((HANDED,)) * (end - start)
        self.handed = end

    def acknowledge(self, index: int) -> bool:
        """Acknowledge a record; whether it was in flight."""
        verdicts = self.verdicts
        if verdicts[index] != HANDED:
            return False
        verdicts[index] = ACKED
        return True

    def acknowledge_range(self, start: int, end: int) -> bool:
        """Acknowledge records [start, end) if all of them are in flight; whether they are."""
        if self.verdicts.count(HANDED, start, end) != end - start:
            return False
        self.verdicts[start:end] = bytes((ACKED,)) * (end - start)
        return True

    def release(self, index: int, delay: int = 0) -> bool:
        """Give a record back, uncounted, to come again in `delay` ms; whether it was in flight."""
        if self.verdicts[index] != HANDED:
            return False
        if delay:
            self.delays[index] = delay  # before the verdict: an exchange may take that at once
        self.returns = True
        self.verdicts[index] = RELEASED
        return True

    def release_handed(self) -> None:
        """Give back, uncounted, the records in flight and those that wait for their dead letters."""
        verdicts, self.returns = self.verdicts, True
        for index in range(self.handed):
            if verdicts[index] == HANDED or verdicts[index] == REJECTED:
                verdicts[index] = RELEASED

    def release_rest(self) -> None:
        """Give back, uncounted, the records that were not dispatched."""
        end, self.returns = len(self.messages), True
        self.verdicts[self.handed :] = bytes((RELEASED,)) * (end - self.handed)
        self.handed = end

    def roll_back(self, index: int, delay: int = 0) -> None:
        """Give a record back, counted, to come again in `delay` ms (-1: as the policy says)."""
        self.delays[index] = delay
        self.returns = True
        self.verdicts[index] = ROLLED_BACK

    def hold_too_long(self, index: int) -> bool:
        """Roll back a record that was held too long; whether it had no verdict."""
        self.overdue.add(index)
        verdicts, self.returns = self.verdicts, True
        if verdicts[index] == HANDED:
            verdicts[index] = OVERDUE
        if verdicts[index] == OVERDUE:
            return True
        self.overdue.discard(index)
        return False

    def put_off(self, delay: int) -> None:
        """Give the next record back, which was not dispatched and is due in `delay` ms."""
        self.delays[self.handed] = delay  # before the verdict, as in `release`
        self.returns = True
        self._pass_over(PUT_OFF)

    def expire(self) -> None:
        """Settle the next record, which was not dispatched and has expired."""
        self.recorded().expired.add(self.handed)
        self._pass_over(DEAD)

    def expire_dispatched(self, index: int) -> bool:
        """Settle a record that has expired before the application received it; whether it had no verdict."""
        if self.verdicts[index] != HANDED:
            return False
        self.recorded().expired.add(index)
        self.verdicts[index] = DEAD
        return True

    def _pass_over(self, verdict: int) -> None:
        self.verdicts[self.handed] = verdict
        self.handed += 1

    def reject(self, index: int) -> None:
        """Give a record up: it is settled when its dead letter is written."""
        self.verdicts[index] = REJECTED

    def reject_all(self) -> None:
        """Give every record up; none of them was dispatched."""
        self.verdicts[:] = bytes((REJECTED,)) * len(self.verdicts)
        self.handed = len(self.verdicts)

    def dead_letter_written(self, index: int) -> None:
        """The dead letter of a record is written."""
        if self.verdicts[index] == REJECTED:
            self.verdicts[index] = DEAD

    def lose(self) -> None:
        """The lease has ended: verdicts that no exchange has carried are lost."""
        self.verdicts[:] = self.verdicts.translate(_LOSE)

    # -- verdicts for an exchange

    def send(self) -> tuple[list[tuple[int, int]], list[tuple[int, How, int]], int]:
        """Take the verdicts that the next exchange carries.

        Returns the runs of settled records (first index, end index), the records that are given back (index,
        how, delay in ms), and the number of acknowledgements among the settled records.
        """
        verdicts, low, handed = self.verdicts, self.low, self.handed
        count = handed - low
        if verdicts.count(ACKED, low, handed) == count:  # all acknowledged: the common case
            verdicts[low:handed] = bytes((SENT,)) * count
            self.low = handed
            return [(low, handed)], [], count
        acked = verdicts.count(ACKED, low, handed)
        settled = [match.span() for match in _ACK_RUNS.finditer(bytes(verdicts), low, handed)]
        for a, b in settled:
            verdicts[a:b] = bytes((SENT,)) * (b - a)
        returned: list[tuple[int, How, int]] = []
        for match in _RETURNS.finditer(bytes(verdicts), low, handed):
            index = match.start()
            how = _HOW.get(verdicts[index], How.ROLLED_BACK)
            returned.append((index, how, self.delays.pop(index, 0)))
            verdicts[index] = RETURNED if how is How.ROLLED_BACK else RELEASE_SENT
        while low < handed and verdicts[low] in _SAID:
            low += 1
        self.low = low
        return settled, returned, acked

    # -- a loss of the shared state

    def unsend(self, index: int) -> bool:
        """Send a settled record again, because it was not answered; whether it was settled."""
        if self.verdicts[index] != SENT:
            return False
        self.verdicts[index] = ACKED
        self.outcome_unknown.add(index)
        return True

    def take_back(self, index: int, *, released: bool, delay: int) -> None:
        """Give a record back again, because that was not answered; nothing if it was not given back."""
        if self.verdicts[index] not in (RETURNED, RELEASE_SENT):
            return
        self.returns = True
        if released:
            self.verdicts[index] = RELEASED
        else:
            self.verdicts[index] = OVERDUE if index in self.overdue else ROLLED_BACK
        if delay:
            self.delays[index] = delay

    def keep_open(self) -> bool:
        """Skip the records before the first one that can be leased again; whether there is one."""
        self.low = next((i for i, verdict in enumerate(self.verdicts) if verdict in _KEPT), self.handed)
        return self.low < self.handed

    def kept_runs(self) -> list[tuple[int, int]]:
        """Runs of records that can be leased again: first index, end index."""
        return [match.span() for match in _KEPT_RUNS.finditer(bytes(self.verdicts), self.low, self.handed)]

    def take_over(self, *, held: Callable[[int], bool], arrived: Callable[[int], bool]) -> tuple[int, int]:
        """Keep the records whose offset was leased again; returns how many deliveries and acks are lost.

        `arrived` says whether an unanswered acknowledgement is known to have been applied.
        """
        deliveries = acks = 0
        for index in range(self.low, self.handed):
            verdict, offset = self.verdicts[index], self.offset(index)
            if verdict in {ACKED, DEAD} and index in self.outcome_unknown and arrived(offset):
                self.verdicts[index] = SENT
            elif verdict in _KEPT and not held(offset):
                deliveries += verdict == HANDED
                acks += verdict == ACKED
                self.verdicts[index] = LOST
        return deliveries, acks

    # -- records

    def cut(self, index: int) -> tuple[Records, int]:
        """Remove the records from `index` on, which were not dispatched; returns them and their offset."""
        first = self.offset(index) if index < len(self.messages) else 0
        taken = self.messages[index:]
        del self.messages[index:], self.verdicts[index:]
        if self.offsets is not None:
            del self.offsets[index:]
        return taken, first


def one_by_one(make: Callable[[Chunk, int, Message], D], chunk: Chunk, start: int, end: int) -> Iterator[D]:
    """Yield deliveries that count as dispatched one by one; ends early when the lane is asked for.

    With a window of one it also ends at a record that was not acknowledged before the next one was asked for.
    """
    member, verdicts, messages = chunk.member, chunk.verdicts, chunk.messages
    group, lane = chunk.lease.group, chunk.lease.lane
    single, max_hold, gate = member.single, member.max_hold, member.gate
    filling = range(start if single else end - 1, end if member.lanes_apart else 0)
    for index in range(start, end):
        try:
            verdicts[index] = HANDED
        except IndexError:  # the rest was taken back
            return
        # other threads set `frozen` before they look at the marks, or they took the rest back just now
        stops = group.frozen or gate.closing or gate.paused or (group.withheld and lane)
        if stops or index >= len(messages):
            with contextlib.suppress(IndexError):
                verdicts[index] = FRESH
            return
        chunk.handed = index + 1
        if max_hold is not None:
            max_hold.hand_out(chunk, index, index + 1)
        if index in filling:
            member.filled()
        yield make(chunk, index, messages[index])
        if single and verdicts[index] not in (ACKED, SENT):
            return
