"""Records that an iterator took from a member and has not passed to the application yet."""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint

from kafkadur.consumer.chunk import Chunk


class Unreceived:
    """The blocks of one subscription's iterator. The iterator adds them; any thread may count."""

    def __init__(self) -> None:
        """No block."""
        self._blocks: list[tuple[Chunk, int, Iterator[int]]] = []

    def add(self, chunk: Chunk, end: int, indices: Iterator[int]) -> bool:
        """Note a block that ends before index `end`; return whether there are records of earlier blocks.

        `indices` yields an index with each record that is received.
        """
        before = [block for block in self._blocks if length_hint(block[2])]
        self._blocks = [*before, (chunk, end, indices)]
        return bool(before)

    def clear(self) -> None:
        """The blocks were given back."""
        self._blocks = []

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
