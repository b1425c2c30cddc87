"""Chunks that can be handed out: what comes again first, then what is new, each in order of offsets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from kafkadur.consumer.chunk import Chunk, Lease


class ReadyQueue:
    """The chunks of one member that wait to be handed out."""

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
        """Records that were not handed out."""
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
        """Bring what was set aside into the order of partitions and offsets."""
        if len(self.urgent) > 1:
            self.urgent = deque(sorted(self.urgent, key=_place))

    def count_in(self, records: int) -> None:
        """So many records wait from now on."""
        self.records += records

    def count_out(self, chunk: Chunk, end: int) -> None:
        """Records of a chunk before index `end` do not wait any more."""
        self.records -= end - chunk.taken
        chunk.taken = end

    def remove(self, chunk: Chunk) -> None:
        """A chunk was handed out."""
        (self.urgent if chunk in self.urgent else self.ready).remove(chunk)

    def drop(self, lease: Lease) -> None:
        """Nothing of a lease is handed out."""
        for queue in (self.ready, self.urgent):
            for chunk in [chunk for chunk in queue if chunk.lease is lease]:
                queue.remove(chunk)
                self.count_out(chunk, len(chunk.messages))

    def drop_handed(self, *, anywhere: bool) -> None:
        """Forget chunks of which all was handed out one by one; `anywhere`: not only the first ones."""
        for queue in (self.urgent, self.ready):
            while queue and queue[0].handed == len(queue[0].messages):
                self.count_out(queue[0], len(queue.popleft().messages))
            if anywhere:
                for chunk in [chunk for chunk in queue if chunk.handed == len(chunk.messages)]:
                    self.count_out(chunk, len(chunk.messages))
                    queue.remove(chunk)

    def first_unhanded(self, lease: Lease) -> int | None:
        """Offset of the first record of a lease that waits here; what was set aside comes first."""
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


def _place(chunk: Chunk) -> tuple[int, int]:
    return chunk.lease.partition, chunk.first
