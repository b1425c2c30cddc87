"""Chunks that can be dispatched: those that come again first, then the new ones, in order of offsets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.fetch.buffer import Records


class ReadyQueue:
    """The chunks of one member that wait to be dispatched."""

    def __init__(self) -> None:
        """Nothing waits."""
        self.clear()

    def clear(self) -> None:
        """Nothing waits."""
        self.ready: deque[Chunk] = deque()
        self.urgent: deque[Chunk] = deque()
        #: records of these chunks that count as waiting
        self.records = 0
        #: mean size of a record, bytes
        self.mean_size = 100.0

    def __iter__(self) -> Iterator[Chunk]:
        """All chunks, the urgent ones last."""
        yield from self.ready
        yield from self.urgent

    def __bool__(self) -> bool:
        """Whether a chunk waits."""
        return bool(self.ready or self.urgent)

    @property
    def waiting(self) -> int:
        """Records that were not dispatched."""
        return sum(len(chunk.messages) - chunk.handed for chunk in self)

    def has_unhanded(self) -> bool:
        """Whether a record waits."""
        return any(chunk.handed < len(chunk.messages) for chunk in self)

    def note_size(self, size: int, records: int) -> None:
        """So many records of `size` bytes came."""
        self.mean_size += (size / records - self.mean_size) * 0.1

    def put(self, chunks: Iterable[Chunk], *, urgent: bool) -> None:
        """Chunks came, in order."""
        (self.urgent if urgent else self.ready).extend(chunks)

    def sort_urgent(self) -> None:
        """Bring chunks that come again into the order of partitions and offsets."""
        if len(self.urgent) > 1:
            self.urgent = deque(sorted(self.urgent, key=lambda chunk: (chunk.lease.partition, chunk.first)))

    def count_out(self, chunk: Chunk, end: int) -> None:
        """Records of a chunk before index `end` do not wait any more."""
        self.records -= end - chunk.taken
        chunk.taken = end

    def remove(self, chunk: Chunk) -> None:
        """A chunk was dispatched."""
        (self.urgent if chunk in self.urgent else self.ready).remove(chunk)

    def cut(self, chunk: Chunk, index: int) -> tuple[Records, int]:
        """Remove the records of a chunk from `index` on, as `Chunk.cut`; a chunk without any left goes."""
        messages, first = chunk.cut(index)
        self.records -= len(messages)
        if chunk.handed == len(chunk.messages):
            self.remove(chunk)
            self.count_out(chunk, chunk.handed)
        return messages, first

    def drop(self, lease: Lease) -> None:
        """Drop the chunks of a lease."""
        for queue in (self.ready, self.urgent):
            for chunk in [chunk for chunk in queue if chunk.lease is lease]:
                queue.remove(chunk)
                self.count_out(chunk, len(chunk.messages))

    def drop_handed(self, *, anywhere: bool) -> None:
        """Drop chunks whose records were all dispatched one by one; `anywhere`: not only the first ones."""
        for queue in (self.urgent, self.ready):
            while queue and queue[0].handed == len(queue[0].messages):
                self.count_out(queue[0], len(queue.popleft().messages))
            if anywhere:
                for chunk in [chunk for chunk in queue if chunk.handed == len(chunk.messages)]:
                    self.count_out(chunk, len(chunk.messages))
                    queue.remove(chunk)

    def first_unhanded(self, lease: Lease) -> int | None:
        """Offset of the first record of a lease that waits here; records that come again are first."""
        for queue in (self.urgent, self.ready):
            for chunk in queue:
                if chunk.lease is lease and chunk.handed < len(chunk.messages):
                    return chunk.offset(chunk.handed)
        return None

    def take_all(self) -> list[Chunk]:
        """Take every chunk out, the urgent ones first."""
        chunks = [*self.urgent, *self.ready]
        for chunk in chunks:
            self.count_out(chunk, len(chunk.messages))
        self.urgent.clear()
        self.ready.clear()
        return chunks
