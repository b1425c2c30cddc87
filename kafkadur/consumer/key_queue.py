"""The queue of a key-ordered subscription: which record of each key may be dispatched now.

Of each key one record at a time is in flight, or rolled back and not settled yet; the others wait here. Which
lanes a member keeps is decided in `policy/keyed.py`.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

from confluent_kafka import Message

from kafkadur.consumer.chunk import ACKED, DEAD, GIVEN_BACK, LOST, NEVER, SENT, Chunk, Lease
from kafkadur.fetch.native import times
from kafkadur.message.times import Times

#: The record is settled or lost: the next one of its key may come.
_DONE = (ACKED, SENT, DEAD, LOST)
#: Records that are kept in memory while they wait, and the bytes of their values. Of further ones only the
#: offsets are kept: they are parked, and read again when their turn comes.
MOST_LOADED = 20_000
MOST_BYTES = 64 * 2**20
#: Records of one key that are kept beyond that.
LOADED = 100
#: Records that are read again at once even if there is no room: only the next ones of their keys are kept.
_FEW = 1_000

#: What orders records: their partition and key, or their partition and offset if they have no key.
Key = tuple[int, bytes | int]


class Record(NamedTuple):
    """A record that was granted and read."""

    lease: Lease
    offset: int
    message: Message
    times: Times | None = None

    @property
    def key(self) -> Key:
        """The key that orders it."""
        key = self.message.key()
        return self.message.partition() or 0, self.offset if key is None else key


@dataclass(slots=True, eq=False)
class Parked:
    """A record that was granted and read, and of which only the offset was kept: too many wait."""

    lease: Lease
    offset: int
    key: Key
    #: the record, after it was read again
    record: Record | None = None
    #: whether it was not found then: it does not exist any more
    gone: bool = False


class Keys:
    """The keys of one member, and the records that wait for their turn."""

    def __init__(self, monotonic: Callable[[], float], now_ms: Callable[[], int]) -> None:
        """Nothing waits. `now_ms` is the clock for the times of messages, ms since 1970."""
        self._monotonic = monotonic
        self._now_ms = now_ms
        #: may be dispatched, at most one of a key
        self._free: deque[Record] = deque()
        #: wait for the record before them, by key
        self._behind: dict[Key, deque[Record | Parked]] = {}
        #: how many they are; how many of them are in memory, and the bytes of their values
        self._waiting = self._loaded = self._bytes = 0
        #: parked records that were not read again, by partition and offset
        self._parked: dict[int, dict[int, Parked]] = {}
        #: keys whose next record is one of these, and those that are not being read yet
        self._stalled: dict[Key, Parked] = {}
        self._wanted: list[Key] = []
        #: in flight, by key
        self._handed: dict[Key, tuple[Chunk, int]] = {}
        #: rolled back and expected again: offset by key
        self._expected: dict[Key, int] = {}
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

    def _wait(self, key: Key, record: Record) -> None:
        behind = self._behind.get(key)
        if behind is None:
            behind = self._behind[key] = deque()
        self._waiting += 1
        if self._has_room(1) or len(behind) < LOADED:
            behind.append(record)
            self._note_loaded(record, 1)
        else:
            parked = Parked(record.lease, record.offset, key)
            behind.append(parked)
            self._parked.setdefault(key[0], {})[record.offset] = parked

    def _has_room(self, share: int) -> bool:
        """Whether fewer records are kept than `share` times the limits."""
        return self._loaded < share * MOST_LOADED and self._bytes < share * MOST_BYTES

    def _note_loaded(self, record: Record, sign: int) -> None:
        self._loaded += sign
        self._bytes += sign * len(record.message)

    def _let_go(self, record: Record) -> None:
        """The record is the first of its key."""
        now = self._monotonic()
        due = self._due(record, now)
        if due > now:
            heapq.heappush(self._timed, (due, next(self._numbers), record))
        else:
            self._free.append(record)

    def _due(self, record: Record, now: float) -> float:
        """When a record may be dispatched, monotonic seconds."""
        due = record.lease.not_before
        if record.times is not None:
            due = max(due, now + record.times.wait(self._now_ms()) / 1000)
        return due

    def arm(self, lease: Lease) -> None:
        """The records of a lease may be dispatched at another time than was known."""
        now = self._monotonic()
        self._timed = [
            (self._due(record, now), number, record) if record.lease is lease else (due, number, record)
            for due, number, record in self._timed
        ]
        heapq.heapify(self._timed)

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

    def _next(self, key: Key) -> None:
        behind = self._behind.get(key)
        if behind is None:
            return
        while behind:
            first = behind[0]
            record = first.record if isinstance(first, Parked) else first
            if isinstance(first, Parked) and record is None and not first.gone:
                self._stalled[key] = first
                self._wanted.append(key)
                return
            behind.popleft()
            self._waiting -= 1
            if record is not None:
                self._note_loaded(record, -1)
                self._let_go(record)
                return
        del self._behind[key]

    # -- parked records

    def take_wanted(self) -> list[Parked]:
        """Return the parked records that come next of their keys and are not being read again yet."""
        wanted, self._wanted = self._wanted, []
        return [self._stalled[key] for key in wanted if key in self._stalled]

    def parked_in(self, partition: int, span: range) -> dict[int, Parked]:
        """Return the first parked records of a partition in a range of offsets, by offset in order.

        They are at most as many as there is room for, or `_FEW`, and fewer if records are large.
        """
        there = self._parked.get(partition, {})
        large = MOST_BYTES * self._loaded // self._bytes if self._bytes else _FEW
        most = max(min(max(2 * MOST_LOADED - self._loaded, _FEW), large), 1)
        return {offset: there[offset] for offset in islice((o for o in span if o in there), most)}

    def supply(self, parked: Mapping[int, Parked], messages: Mapping[int, Message]) -> list[Parked]:
        """Parked records of a partition were read again; both by offset, `parked` in order.

        Returns those that are not among the messages: they do not exist any more. Those for which there is no
        room stay parked, except the next ones of keys that have no other records.
        """
        read = [messages[offset] for offset in parked if offset in messages]
        found = dict(zip((message.offset() for message in read), map(times(read).get, count()), strict=False))
        gone: list[Parked] = []
        of_key: Counter[Key] = Counter()
        for offset, item in parked.items():
            there = self._parked.get(item.key[0], {})
            if there.get(offset) is not item:
                continue  # its lane went to another member meanwhile
            message = messages.get(offset)
            if message is None:
                item.gone = True
                gone.append(item)
            elif self._has_room(2) or (item.key in self._stalled and of_key[item.key] < LOADED):
                of_key[item.key] += 1
                item.record = Record(item.lease, offset, message, found[offset])
                self._note_loaded(item.record, 1)
            else:
                continue
            del there[offset]
        for key, first in list(self._stalled.items()):
            if first.gone or first.record is not None:
                del self._stalled[key]
                self._next(key)
        return gone

    @property
    def next_at(self) -> float | None:
        """When the next record becomes due, monotonic seconds; None: none does before its lease is armed."""
        at = self._timed[0][0] if self._timed else NEVER
        return None if at == NEVER else at

    @property
    def free(self) -> int:
        """Number of records that may be dispatched now."""
        return len(self._free)

    @property
    def parked(self) -> int:
        """Number of records of which only the offsets are kept."""
        return sum(map(len, self._parked.values()))

    @property
    def behind(self) -> int:
        """Number of records that wait for another one of their key."""
        return self._waiting

    @property
    def timed(self) -> int:
        """Number of records that are due later."""
        return len(self._timed)

    @property
    def has_isolated(self) -> bool:
        """Whether an isolated record may be dispatched now."""
        return any(record.lease.isolated for record in self._free)

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
        self._count()
        for key in [key for key, first in self._stalled.items() if first.lease is lease]:
            del self._stalled[key]
            self._next(key)

    def give_up_expected(self, is_gone: Callable[[Key, int], bool]) -> None:
        """Stop expecting records that do not exist any more: compaction has removed them."""
        for key in [key for key, offset in self._expected.items() if is_gone(key, offset)]:
            del self._expected[key]
            self._next(key)

    def close_lane(self, is_of: Callable[[Key], bool]) -> None:
        """Forget the keys of a lane that is gone."""
        for key in [key for key in self._behind if is_of(key)]:
            del self._behind[key]
            self._expected.pop(key, None)
            self._handed.pop(key, None)
            self._stalled.pop(key, None)
        self._count()

    def _count(self) -> None:
        """Count anew what waits, after records of many keys were dropped."""
        self._waiting = self._loaded = self._bytes = 0
        self._parked.clear()
        for behind in self._behind.values():
            self._waiting += len(behind)
            for item in behind:
                record = item.record if isinstance(item, Parked) else item
                if record is not None:
                    self._note_loaded(record, 1)
                elif isinstance(item, Parked) and not item.gone:
                    self._parked.setdefault(item.key[0], {})[item.offset] = item
