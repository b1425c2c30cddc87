"""The records in flight: their number and size, how long they may be held, and which are not received yet.

This is bookkeeping only: `composer.py` rolls back records that were held too long.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import length_hint

from kafkadur.consumer.chunk import HANDED, Chunk
from kafkadur.consumer.confirmations import Pending
from kafkadur.consumer.schedule import Schedule
from kafkadur.consumer.terms import Terms
from kafkadur.fetch.native import detach
from kafkadur.history.notes import Notes

#: Seconds in flight after which a record is detached.
_LONG = 2.0


class MaxHold:
    """The times until which an application may hold records without a verdict (`Redelivery.max_hold`)."""

    def __init__(self, longest: float, monotonic: Callable[[], float]) -> None:
        """`longest` in seconds."""
        self._longest = longest
        self._monotonic = monotonic
        #: end of the time, chunk, first index, end index: in the order of these times
        self._handed: deque[tuple[float, Chunk, int, int]] = deque()
        #: end of the time of records whose time began anew, by chunk (id) and index
        self._extended: dict[tuple[int, int], float] = {}

    def hand_out(self, chunk: Chunk, start: int, end: int) -> None:
        """Records [start, end) of a chunk are dispatched now."""
        self._handed.append((self._monotonic() + self._longest, chunk, start, end))

    def extend(self, chunk: Chunk, index: int) -> None:
        """The time of a record begins anew."""
        until = self._monotonic() + self._longest
        self._extended[id(chunk), index] = until
        self._handed.append((until, chunk, index, index + 1))

    @property
    def next_at(self) -> float | None:
        """When the next time ends, monotonic seconds; None: nothing is held."""
        while self._handed:
            until, chunk, start, end = self._handed[0]
            if chunk.verdicts.count(HANDED, start, min(end, chunk.handed)):
                return until
            self._forget()
        return None

    def overdue(self) -> Iterator[tuple[Chunk, int]]:
        """Take out the records whose time is over and that have no verdict."""
        now = self._monotonic()
        while self._handed and self._handed[0][0] <= now:
            until, chunk, start, end = self._handed[0]
            for index in range(start, min(end, chunk.handed)):
                if chunk.verdicts[index] == HANDED and self._extended.get((id(chunk), index), until) <= now:
                    yield chunk, index
            self._forget()

    def _forget(self) -> None:
        until, chunk, start, end = self._handed.popleft()
        for index in range(start, end):
            if self._extended.get((id(chunk), index), until + 1) <= until:
                del self._extended[id(chunk), index]

    def clear(self) -> None:
        """Nothing is held."""
        self._handed.clear()
        self._extended.clear()


class Unreceived:
    """Records that the iterator of a subscription took and the application has not received.

    The iterator adds blocks; any thread may count.
    """

    def __init__(self) -> None:
        """No block."""
        self.clear()

    def clear(self) -> None:
        """Forget the blocks: they were given back."""
        self._blocks: list[tuple[Chunk, int, Iterator[int]]] = []

    def add(self, chunk: Chunk, end: int, indices: Iterator[int]) -> bool:
        """Note a block that ends before index `end`; return whether there are records of earlier blocks.

        `indices` yields an index with each record that is received.
        """
        before = [block for block in self._blocks if length_hint(block[2])]
        self._blocks = [*before, (chunk, end, indices)]
        return bool(before)

    def count(self) -> int:
        """Return the number of records."""
        return sum(length_hint(indices) for _, _, indices in self._blocks)

    def records(self) -> list[tuple[Chunk, int]]:
        """Return the records, as indices of their chunks."""
        return [
            (chunk, index)
            for chunk, end, indices in self._blocks
            for index in range(end - length_hint(indices), end)
        ]


class InFlight:
    """The chunks of which records were dispatched, until exchanges have carried all their verdicts."""

    def __init__(
        self,
        terms: Terms,
        *,
        budget: int | None,
        max_hold: MaxHold | None,
        pending: Pending,
        schedule: Schedule,
        notes: Notes | None,
    ) -> None:
        """`budget`: offsets with a verdict that may be unconfirmed; None: any number.

        `max_hold`: times of dispatched records; None: the application may hold messages for ever. `notes`:
        those for the delivery history; None: there is none.
        """
        self._terms = terms
        self._budget = budget
        self._pending = pending
        self._schedule = schedule
        self.max_hold = max_hold
        self._notes = notes
        #: records whose lease ended while they were in flight, and that were not reported yet
        self.lost = 0
        self.clear()

    def clear(self) -> None:
        """Nothing is in flight."""
        if self.max_hold is not None:
            self.max_hold.clear()
        self.chunks: list[Chunk] = []
        self.records = 0
        self.bytes = 0.0
        #: offsets that have a verdict, carried or not, and that the coordinator has not confirmed
        self.unconfirmed = 0
        #: records dispatched since the last exchange
        self.handed_since = 0
        #: records that were rolled back, for which new ones of their lane wait: partition and offset
        self.holding_back: set[tuple[int, int]] = set()

    def __iter__(self) -> Iterator[Chunk]:
        """All chunks."""
        return iter(self.chunks)

    def has_verdicts(self) -> bool:
        """Whether there is a verdict that no exchange has carried."""
        return any(chunk.has_verdicts() for chunk in self.chunks)

    def gives_back(self) -> bool:
        """Whether records go back with the next exchange, to be delivered again."""
        return any(chunk.returns and chunk.gives_back() for chunk in self.chunks)

    def add(self, chunk: Chunk) -> None:
        """Records of a chunk are dispatched from now on."""
        self.chunks.append(chunk)
        chunk.detach_at = self._terms.monotonic() + _LONG

    def let_go(self, now: float) -> None:
        """Detach records that are in flight for long from the answers of Kafka that they came in."""
        for chunk in self.chunks:
            if chunk.detach_at <= now:
                chunk.detach_at = math.inf
                detach(chunk.messages)

    def count(self, chunk: Chunk, start: int, end: int) -> None:
        """Records [start, end) of a chunk were dispatched."""
        self.records += end - start
        self.bytes += chunk.weight * (end - start)
        self.handed_since += end - start
        self.note_hold(chunk, start, end)
        if self._notes is not None:
            self._notes.handed(chunk, start, end)

    def note_hold(self, chunk: Chunk, start: int, end: int) -> None:
        """The time for which records may be held begins."""
        if self.max_hold is not None:
            self.max_hold.hand_out(chunk, start, end)

    def recount(self) -> None:
        """Count again: records with a verdict leave the window before an exchange carries the verdict."""
        records, size, settled = 0, 0.0, 0
        for chunk in self.chunks:
            count = chunk.in_flight()
            records += count
            size += count * chunk.weight
            settled += chunk.settled_unsaid()
        self.records, self.bytes = records, size
        self.unconfirmed = settled + self._pending.settling
        self._schedule.request(when=settled > 0 and self._pending.is_answered)

    def keep(self, chunks: list[Chunk], settling: int) -> None:
        """An exchange that settles so many offsets carries the verdicts: `chunks` have records left."""
        self.chunks = chunks
        counts = [(chunk.in_flight(), chunk.weight) for chunk in chunks]
        self.records = sum(count for count, _ in counts)
        self.bytes = sum(count * weight for count, weight in counts)
        self.unconfirmed = settling

    def room(self, weight: float, wanted: int) -> int:
        """Records of this mean size (bytes) for which the window has room, at most `wanted`."""
        room = self._room_as_counted(weight)
        if room < wanted:  # verdicts given since the last count free the window, and use up the budget
            self.recount()
            room = self._room_as_counted(weight)
        return min(room, wanted)

    def _room_as_counted(self, weight: float) -> int:
        room = self._terms.window - self.records
        if self.bytes > 0:
            room = min(room, int((self._terms.window_bytes - self.bytes) / weight) if weight else room)
        elif room > 0 and weight:
            room = max(1, min(room, int(self._terms.window_bytes / weight)))
        if self._budget is not None:
            room = min(room, self._budget + 1 - self.unconfirmed)
        return room

    def hold_back(self, chunk: Chunk, index: int) -> None:
        """A record was rolled back: new ones of its lane wait for it."""
        self.holding_back.add((chunk.lease.partition, chunk.offset(index)))
        chunk.lease.group.withheld = True

    def stop_holding_back(self, records: Iterable[tuple[int, int]]) -> None:
        """These records (partition, offset) came again, or are settled by another member."""
        self.holding_back -= set(records)
