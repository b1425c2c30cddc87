"""The records in the application's hands: their number and size, and the room that the window has left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kafkadur.consumer.chunk import Chunk
from kafkadur.consumer.max_hold import MaxHold
from kafkadur.consumer.pending import Pending
from kafkadur.consumer.schedule import Schedule
from kafkadur.consumer.terms import Terms


class InFlight:
    """The chunks of which records were handed out, until an exchange has carried all verdicts."""

    def __init__(
        self,
        terms: Terms,
        *,
        budget: int | None,
        max_hold: MaxHold | None,
        pending: Pending,
        schedule: Schedule,
    ) -> None:
        """`budget`: offsets with a verdict that may be unconfirmed; None: any number.

        `max_hold`: times of dispatched records; None: the application may hold messages for ever.
        """
        self._terms = terms
        self._budget = budget
        self._pending = pending
        self._schedule = schedule
        self.max_hold = max_hold
        #: records whose lease went while they were in the application's hands, not told to it yet
        self.lost = 0
        self.clear()

    def clear(self) -> None:
        """Nothing is in the application's hands."""
        if self.max_hold is not None:
            self.max_hold.clear()
        self.chunks: list[Chunk] = []
        self.records = 0
        self.bytes = 0.0
        #: offsets that have a verdict, carried or not, and that the coordinator has not confirmed
        self.unconfirmed = 0
        #: records handed out since the last exchange
        self.handed_since = 0
        #: records that were rolled back, for which new ones of their lane wait: partition and offset
        self.holding_back: set[tuple[int, int]] = set()

    def __iter__(self) -> Iterator[Chunk]:
        """All chunks."""
        return iter(self.chunks)

    def has_verdicts(self) -> bool:
        """Whether there is a verdict that no exchange has carried."""
        return any(chunk.has_verdicts() for chunk in self.chunks)

    def add(self, chunk: Chunk) -> None:
        """Records of a chunk come into the application's hands."""
        self.chunks.append(chunk)

    def count(self, chunk: Chunk, start: int, end: int) -> None:
        """Records [start, end) of a chunk were handed out."""
        self.records += end - start
        self.bytes += chunk.weight * (end - start)
        self.handed_since += end - start
        self.note_hold(chunk, start, end)

    def note_hold(self, chunk: Chunk, start: int, end: int) -> None:
        """The time for which records may be held begins."""
        if self.max_hold is not None:
            self.max_hold.hand_out(chunk, start, end)

    def recount(self) -> None:
        """Count again: verdicts given since the last exchange leave the window as soon as they are sent."""
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
        """An exchange carries the verdicts: these chunks have records left; it settles so many offsets."""
        self.chunks = chunks
        hands = [(chunk.in_flight(), chunk.weight) for chunk in chunks]
        self.records = sum(count for count, _ in hands)
        self.bytes = sum(count * weight for count, weight in hands)
        self.unconfirmed = settling

    def room(self, weight: float) -> int:
        """Records of this mean size (bytes) for which the window has room."""
        room = self._room_as_counted(weight)
        if room <= 0:
            self.recount()
            room = self._room_as_counted(weight)
        return room

    def _room_as_counted(self, weight: float) -> int:
        room = self._terms.window - self.records
        if self.bytes > 0:
            room = min(room, int((self._terms.window_bytes - self.bytes) / weight) if weight else room)
        elif room > 0 and weight:
            room = max(1, min(room, int(self._terms.window_bytes / weight)))
        if self._budget is not None:
            room = min(room, self._budget + 1 - self.unconfirmed)
        return room

    def settled_unsaid(self) -> int:
        """Acknowledgements that no exchange has carried yet."""
        return sum(chunk.acks_handed() for chunk in self.chunks)

    def hold_back(self, chunk: Chunk, index: int) -> None:
        """A record was rolled back: new ones of its lane wait for it."""
        self.holding_back.add((chunk.lease.partition, chunk.offset(index)))
        chunk.lease.group.withheld = True

    def stop_holding_back(self, records: Iterable[tuple[int, int]]) -> None:
        """These records (partition, offset) came again, or are settled by another member."""
        self.holding_back -= set(records)
