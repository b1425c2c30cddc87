"""The lanes of keys that one member keeps: their records, sorted in by key, and lanes that are given up.

`key_queue.py` decides which record of a key may be dispatched. Called with the member's lock held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import repeat

from confluent_kafka import Message

from kafkadur.consumer.chunk import Lease
from kafkadur.consumer.key_queue import Key, Keys, Parked, Record
from kafkadur.fetch.buffer import Piece, Records
from kafkadur.fetch.native import times
from kafkadur_sharing.keys import SLOTS, key_slot

#: Records that wait for another one of their key or are due later: with so many a member reads no further.
MOST_BEHIND = 100_000
#: Most offsets over which parked records are read again at once.
_READ_SPAN = 5_000

#: A range to be read again: lane, first offset, end, token.
Again = tuple[int, int, int, int]


class KeyShares:
    """Records of lanes of keys, from reading to dispatch."""

    def __init__(
        self,
        *,
        lanes: int,
        monotonic: Callable[[], float],
        now_ms: Callable[[], int],
        gap: Callable[[Lease, int, int], None],
        tokens: Iterator[int],
    ) -> None:
        """`lanes` of each partition; `gap` settles offsets of a lease that hold no record (any more).

        `tokens`: negative numbers that this member has not used before, for ranges that are read again.
        """
        self._lanes = lanes
        self._gap = gap
        #: the records that wait for their turn
        self.keys = Keys(monotonic, now_ms)
        #: records that were read for a lane and not yet sorted in
        self._arrived: dict[int, list[Record]] = {}
        #: parked records that are being read again, and messages read so far, by offset; by (negative) token
        self._readings: dict[int, tuple[Mapping[int, Parked], dict[int, Message]]] = {}
        self._tokens = tokens
        #: lanes that another member is to keep: none of their records is dispatched any more
        self.draining: set[int] = set()

    # -- records come in

    def of_lane(self, pieces: Iterable[Piece], lane: int) -> Iterable[Piece]:
        """Yield the records whose keys belong to a lane."""
        share = lane % self._lanes
        for messages, first, offsets in pieces:
            where = list(range(first, first + len(messages))) if offsets is None else offsets
            kept = [
                index
                for index, message in enumerate(messages)
                if key_slot(message.key(), where[index]) * self._lanes // SLOTS == share
            ]
            if kept:
                at = [where[index] for index in kept]
                yield [messages[index] for index in kept], at[0], at

    def arrive(self, lease: Lease, messages: Records, where: Iterable[int]) -> None:
        """Records of a lease were read; `where`: their offsets."""
        found = times(messages)
        each = map(found.get, range(len(messages))) if found else repeat(None)
        self._arrived.setdefault(lease.partition, []).extend(
            map(Record, repeat(lease), where, messages, each)
        )

    def sort_in(self, lane: int, leases: Iterable[Lease]) -> None:
        """Sort in records of a lane by key, in the order of offsets, once no earlier record is missing."""
        arrived = self._arrived.get(lane, [])
        exceptions = [lease for lease in leases if lease.partition == lane and not lease.lane]
        fresh = [lease for lease in exceptions if not lease.sorted]
        if not (arrived or fresh) or any(lease.fill < lease.end for lease in exceptions):
            return
        self.keys.look()
        for record in sorted(arrived, key=lambda record: record.offset):
            self.keys.add(record)
        self._arrived.pop(lane, None)
        there = {record.offset for record in arrived}
        for lease in fresh:
            lease.sorted = True
            self.keys.give_up_expected(
                lambda key, offset, lease=lease: (
                    self._is_of(key, lane)  # type: ignore[misc]  # a bound argument
                    and offset not in there
                    and any(start <= offset < end for start, end in lease.spans)
                )
            )

    # -- parked records

    def to_read_again(self) -> Iterable[Again]:
        """Yield ranges that contain the parked records that come next of their keys.

        All parked records in a range are read again together, whatever their keys and lanes.
        """
        for first in sorted(self.keys.take_wanted(), key=lambda parked: parked.offset):
            if any(parked.get(first.offset) is first for parked, _ in self._readings.values()):
                continue
            span = range(first.offset, first.offset + _READ_SPAN)
            parked = self.keys.parked_in(first.key[0], span)
            token = next(self._tokens)
            self._readings[token] = (parked, {})
            yield first.lease.partition, first.offset, max(parked) + 1, token

    def take_again(self, token: int, messages: Iterable[Message], reached: int) -> bool:
        """Take records read for a (negative) token, up to offset `reached`; whether reading is to go on."""
        found = self._readings.get(token)
        if found is None:
            return False
        parked, read = found
        read |= {m.offset() or 0: m for m in messages if m.offset() in parked}
        if reached <= max(parked):
            return True
        del self._readings[token]
        for item in self.keys.supply(parked, read):
            if not item.lease.lost:
                self._gap(item.lease, item.offset, item.offset + 1)
        return False

    # -- lanes that go

    def drain(self, asked: Collection[int], leases: Mapping[int, Lease]) -> None:
        """Another member is to keep these lanes: drop their records that were not dispatched."""
        for lane in set(asked) - self.draining:
            self.draining.add(lane)
            for lease in [lease for lease in leases.values() if lease.partition == lane]:
                self.drop(lease)

    def drop(self, lease: Lease) -> None:
        """Drop the waiting records of a lease."""
        self._arrived.pop(lease.partition, None)
        self.keys.drop_waiting(lease)

    def close(self, lane: int) -> None:
        """A lane was given up, or lost: forget its keys."""
        self.draining.discard(lane)
        self._arrived.pop(lane, None)
        self.keys.close_lane(lambda key: self._is_of(key, lane))

    def _is_of(self, key: Key, lane: int) -> bool:
        """Whether a key belongs to a lane."""
        partition, place = key
        offset, name = (place, None) if isinstance(place, int) else (0, place)
        return bool((partition, key_slot(name, offset) * self._lanes // SLOTS) == divmod(lane, self._lanes))

    # -- how many records wait

    @property
    def waiting(self) -> int:
        """Records that were read and not dispatched."""
        return self.keys.free + self.keys.behind + sum(map(len, self._arrived.values()))

    def is_full(self, window: int) -> bool:
        """Whether no more records of the lanes need to be read now."""
        return self.keys.free >= window or self.keys.behind + self.keys.timed >= MOST_BEHIND
