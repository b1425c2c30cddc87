"""The queue of a key-ordered subscription: which record of each key may be dispatched now.

Of each key one record at a time is in flight, or rolled back and not settled yet; the others wait here. Which
lanes a member keeps is decided in `policy/keyed.py`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, islice, takewhile
from typing import NamedTuple, cast

from confluent_kafka import Message

from kafkadur.consumer.chunk import ACKED, DEAD, GIVEN_BACK, LOST, SENT, Chunk, Lease
from kafkadur.fetch.native import times
from kafkadur.message.times import Times

#: The record is settled or lost: the next one of its key may come.
_DONE = (ACKED, SENT, DEAD, LOST)
#: Messages of one key that are kept in memory; of the rest only offsets are kept: they are parked.
LOADED = 100
#: Most offsets over which parked records are read again at once.
_READ_SPAN = 5_000


class Record(NamedTuple):
    """A record that was granted and read."""

    lease: Lease
    offset: int
    message: Message
    times: Times | None = None

    @property
    def key(self) -> object:
        """The key that orders it: its partition and key, or its partition and offset if it has no key."""
        key = self.message.key()
        partition = self.message.partition()
        return (partition, self.offset) if key is None else (partition, key)


class Parked(NamedTuple):
    """A record that was granted and read, and of which only the offset is kept: too many of its key wait."""

    lease: Lease
    offset: int


class Keys:
    """The keys of one member, and the records that wait for their turn."""

    def __init__(self, monotonic: Callable[[], float], now_ms: Callable[[], int]) -> None:
        """Nothing waits. `now_ms` is the clock for the times of messages, ms since 1970."""
        self._monotonic = monotonic
        self._now_ms = now_ms
        #: may be dispatched, at most one of a key
        self._free: deque[Record] = deque()
        #: wait for the record before them, by key
        self._behind: dict[object, deque[Record | Parked]] = {}
        #: keys whose next record is parked and has to be read again, and those that are not being read yet
        self._stalled: dict[object, Parked] = {}
        self._wanted: list[object] = []
        #: in flight, by key
        self._handed: dict[object, tuple[Chunk, int]] = {}
        #: rolled back and expected again: offset by key
        self._expected: dict[object, int] = {}
        #: may be dispatched later: (monotonic seconds, number, record)
        self._timed: list[tuple[float, int, Record]] = []
        self._numbers = count()

    def add(self, record: Record) -> None:
        """Take in a record; those of one key come in the order of offsets, except rolled back ones."""
        key = record.key
        if key in self._expected:
            if self._expected[key] == record.offset:
                del self._expected[key]
                self._let_go(record)
            else:
                self._wait(key, record)
        elif key in self._behind:
            self._wait(key, record)
        else:
            self._behind[key] = deque()
            self._let_go(record)

    def _wait(self, key: object, record: Record) -> None:
        behind = self._behind.setdefault(key, deque())
        behind.append(record if len(behind) < LOADED else Parked(record.lease, record.offset))

    def _let_go(self, record: Record) -> None:
        """The record is the first of its key."""
        now, due = self._monotonic(), record.lease.not_before
        if record.times is not None:
            due = max(due, now + record.times.wait(self._now_ms()) / 1000)
        if due > now:
            heapq.heappush(self._timed, (due, next(self._numbers), record))
        else:
            self._free.append(record)

    def look(self) -> None:
        """Look which records have a verdict, and which have become due."""
        now = self._monotonic()
        while self._timed and self._timed[0][0] <= now:
            self._free.append(heapq.heappop(self._timed)[2])
        for key, (chunk, index) in list(self._handed.items()):
            verdict = chunk.verdicts[index]
            if verdict in _DONE:
                del self._handed[key]
                self._next(key)
            elif verdict in GIVEN_BACK:
                del self._handed[key]
                self._expected[key] = chunk.offset(index)

    def _next(self, key: object) -> None:
        behind = self._behind.get(key)
        first = behind[0] if behind else None
        if isinstance(first, Parked):
            self._stalled[key] = first
            self._wanted.append(key)
        elif behind:
            self._let_go(cast("Record", behind.popleft()))
        elif behind is not None:
            del self._behind[key]

    def take_wanted(self) -> list[tuple[object, list[Parked]]]:
        """Keys whose next records have to be read again, and these records in the order of offsets."""
        wanted, self._wanted = self._wanted, []
        found: list[tuple[object, list[Parked]]] = []
        for key in wanted:
            behind = self._behind.get(key, ())
            parked = list(takewhile(lambda item: isinstance(item, Parked), islice(behind, LOADED)))
            first = parked[0].offset if parked else 0
            found.append((key, [Parked(*item[:2]) for item in parked if item.offset < first + _READ_SPAN]))
        return [(key, parked) for key, parked in found if parked]

    def supply(self, key: object, parked: Sequence[Parked], messages: Mapping[int, Message]) -> None:
        """Parked records were read again; those that are not among `messages` do not exist any more."""
        behind = self._behind.get(key)
        if behind is None or not parked or self._stalled.get(key) != parked[0]:
            return  # the lane went to another member meanwhile
        del self._stalled[key]
        again = {item.offset for item in parked}
        rest = deque(item for item in behind if item.offset not in again)
        back = [item for item in behind if item.offset in again and item.offset in messages]
        read = [messages[item.offset] for item in back]
        found = times(read)
        rest.extendleft(
            Record(back[index].lease, back[index].offset, read[index], found.get(index))
            for index in reversed(range(len(back)))
        )
        self._behind[key] = rest
        self._next(key)

    @property
    def next_at(self) -> float | None:
        """When the next record becomes due, monotonic seconds."""
        return self._timed[0][0] if self._timed else None

    @property
    def free(self) -> int:
        """Number of records that may be dispatched now."""
        return len(self._free)

    @property
    def parked(self) -> int:
        """Number of records of which only the offsets are kept."""
        return sum(isinstance(item, Parked) for behind in self._behind.values() for item in behind)

    @property
    def behind(self) -> int:
        """Number of records that wait for another one of their key."""
        return sum(map(len, self._behind.values()))

    @property
    def timed(self) -> int:
        """Number of records that are due later."""
        return len(self._timed)

    def first(self, *, isolated: bool) -> Record | None:
        """The record that is dispatched next; `isolated`: an isolated one comes first."""
        if isolated:
            for record in self._free:
                if record.lease.isolated:
                    self._free.remove(record)
                    self._free.appendleft(record)
                    break
        return self._free[0] if self._free else None

    def take(self, limit: int) -> list[Record]:
        """Take records to be dispatched now: of one lease, in the order of offsets."""
        if not self._free:
            return []
        lease = self._free[0].lease
        taken: list[Record] = []
        while self._free and len(taken) < limit and self._free[0].lease is lease:
            if taken and (self._free[0].offset <= taken[-1].offset or self._free[0].times is not None):
                break  # one with times is the first: it may have expired
            taken.append(self._free.popleft())
        return taken

    def hand_out(self, records: Iterable[Record], chunk: Chunk) -> None:
        """The records of a new chunk are in flight."""
        for index, record in enumerate(records):
            self._handed[record.key] = (chunk, index)

    def drop_waiting(self, lease: Lease) -> None:
        """Drop the waiting records of a lease: its lane goes to another member."""
        self._free = deque(record for record in self._free if record.lease is not lease)
        self._timed = [item for item in self._timed if item[2].lease is not lease]
        heapq.heapify(self._timed)
        for key, behind in self._behind.items():
            self._behind[key] = deque(record for record in behind if record.lease is not lease)
        for key in [key for key, first in self._stalled.items() if first.lease is lease]:
            del self._stalled[key]
            self._next(key)

    def give_up_expected(self, is_gone: Callable[[object, int], bool]) -> None:
        """Stop expecting records that do not exist any more: compaction has removed them."""
        for key in [key for key, offset in self._expected.items() if is_gone(key, offset)]:
            del self._expected[key]
            self._next(key)

    def close_lane(self, is_of: Callable[[object], bool]) -> None:
        """Forget the keys of a lane that is gone."""
        for key in [key for key in self._behind if is_of(key)]:
            del self._behind[key]
            self._expected.pop(key, None)
            self._handed.pop(key, None)
            self._stalled.pop(key, None)
