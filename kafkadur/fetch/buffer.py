"""The records that were read from one partition and wait for a lease, and how far the partition was read.

Pure bookkeeping over offsets. The readers read; `consumer/router.py` gives records to leases.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, overload

from confluent_kafka import Message


class Records(Protocol):
    """Records in order: a list, or what the compiled client reads, which makes each when it is used."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Message]: ...

    @overload
    def __getitem__(self, index: int, /) -> Message: ...
    @overload
    def __getitem__(self, index: slice, /) -> Records: ...

    def __delitem__(self, index: slice, /) -> None:
        """Delete the first or the last ones."""


#: Records, the offset of the first, and all offsets if they do not follow one another.
Piece = tuple[Records, int, list[int] | None]


class Mark(NamedTuple):
    """How far a log was read, and under which leader: a log that disagrees has lost its end meanwhile."""

    #: everything before this offset may have been read
    offset: int = 0
    #: leader epoch of the last record before it; -1: not known
    epoch: int = -1


#: It is not known how far the log was read.
NOWHERE = Mark()


class ReadBatch:
    """Records of one partition in offset order."""

    __slots__ = ("first", "last", "messages", "offsets", "size")

    def __init__(self, messages: Records, size: int) -> None:
        """`messages` is not empty, of one partition, sorted by offset, without error events.

        `size`: bytes of their payloads.
        """
        self.messages = messages
        self.size = size
        self.first: int = messages[0].offset()  # type: ignore[assignment]  # a record has an offset
        self.last: int = messages[-1].offset()  # type: ignore[assignment]  # a record has an offset
        #: None when no offset is missing between first and last
        self.offsets: list[int] | None = None
        if self.last - self.first + 1 != len(messages):
            self.offsets = [message.offset() for message in messages]  # type: ignore[misc]  # as above

    def index(self, offset: int) -> int:
        """Index of the first record at or after `offset`."""
        if self.offsets is None:
            return min(max(offset - self.first, 0), len(self.messages))
        return bisect_left(self.offsets, offset)

    def cut(self, index: int) -> int:
        """Drop the records before `index`; at least one must stay.

        Returns their bytes, as if all records of the batch were alike.
        """
        gone = self.size * index // len(self.messages)
        self.size -= gone
        del self.messages[:index]
        if self.offsets is None:
            self.first += index
        else:
            del self.offsets[:index]
            self.first = self.offsets[0]
            if self.last - self.first + 1 == len(self.messages):
                self.offsets = None
        return gone


@dataclass(slots=True, eq=False)
class FetchBuffer:
    """The records of one partition that were read and not yet given to a lease."""

    #: reading began at this offset
    start: int
    #: tells this start of following from earlier ones of the partition
    number: int = 0
    batches: deque[ReadBatch] = field(default_factory=deque[ReadBatch])
    #: records in `batches`, and bytes of their payloads
    buffered: int = 0
    size: int = 0
    #: every record at or after this offset that was read is still here
    kept_from: int = field(init=False)
    #: everything before this offset was read (records) or is known to hold no record
    position: int = field(init=False)
    #: the position that the coordinator knows
    reported: int = -1
    #: leader epoch of the last record that was read; -1: not known
    epoch: int = -1
    #: end of the log when Kafka last reported it; -1: not known yet
    end: int = -1
    #: offset at which there was nothing more to read, the last time that was so; -1: never
    stop: int = -1

    def __post_init__(self) -> None:
        """Nothing was read."""
        self.kept_from = self.position = self.start

    @property
    def unread(self) -> int | None:
        """Number of offsets up to the end of the log that were not read; None: not known yet.

        Messages behind the begin of an open transaction cannot be read: they do not count once that begin was
        reached.
        """
        if self.stop >= self.position:
            return 0
        return None if self.end < 0 else max(self.end - self.position, 0)

    def add(self, batch: ReadBatch) -> None:
        """Take in records; those before the position are dropped: a reader that was moved repeats some."""
        if batch.last < self.position:
            return
        if batch.first < self.position:
            batch.cut(batch.index(self.position))
        self.batches.append(batch)
        self._count(batch, 1)
        self.position = batch.last + 1

    def put_back(self, batch: ReadBatch, first: int) -> None:
        """Take back records that were taken last, the first of them at offset `first`."""
        self.batches.appendleft(batch)
        self._count(batch, 1)
        self.kept_from = first

    def _count(self, batch: ReadBatch, sign: int) -> None:
        self.buffered += sign * len(batch.messages)
        self.size += sign * batch.size

    def reach(self, offset: int) -> None:
        """The partition was read up to `offset`: offsets below it without a record here hold none."""
        self.position = max(self.position, offset)

    def drop_before(self, offset: int) -> None:
        """Forget records before `offset`: they belong to another member, or are settled."""
        while self.batches and self.batches[0].last < offset:
            self._count(self.batches.popleft(), -1)
        if self.batches and self.batches[0].first < offset:
            batch = self.batches[0]
            index = batch.index(offset)
            self.size -= batch.cut(index)
            self.buffered -= index
        self.kept_from = max(self.kept_from, min(offset, self.position))

    def take(self, start: int, end: int) -> tuple[list[Piece], int]:
        """Take the records in [start, end): pieces (records, first offset, offsets or None), and how far.

        Every record before the offset reached is in the pieces or does not exist. Records before `start` are
        dropped.
        """
        self.drop_before(start)
        pieces: list[Piece] = []
        while self.batches:
            batch = self.batches[0]
            if batch.first >= end:
                self.kept_from = max(self.kept_from, end)
                return pieces, end
            stop = batch.index(end)
            if stop >= len(batch.messages):
                self._count(self.batches.popleft(), -1)
                pieces.append((batch.messages, batch.first, batch.offsets))
                self.kept_from = batch.last + 1
                continue
            offsets = None if batch.offsets is None else batch.offsets[:stop]
            pieces.append((batch.messages[:stop], batch.first, offsets))
            self.size -= batch.cut(stop)
            self.buffered -= stop
            self.kept_from = end
            return pieces, end
        reached = min(end, self.position)
        self.kept_from = max(self.kept_from, reached)
        return pieces, max(reached, start)
