"""Which of the records read a subscription takes, and how many have to be read to find some."""

from __future__ import annotations

from collections.abc import Iterable

from kafkadur.fetch.buffer import Piece
from kafkadur.fetch.filtering import Takes

#: Offsets that are read ahead at most for the sake of a selector.
MOST_SCANNED = 50_000
#: Records over which the part that a selector takes is averaged.
_LATELY = 100_000


class Selection:
    """The selector of one member, and the share of the records that it takes."""

    def __init__(self, takes: Takes | None) -> None:
        """`takes` says which records the subscription takes; None: all of them."""
        self._takes = takes
        #: records read, and how many of them the subscription takes: lately
        self._seen = 0
        self._taken = 0

    @property
    def is_all(self) -> bool:
        """Whether every record is taken."""
        return self._takes is None

    def filtered(self, pieces: Iterable[Piece]) -> Iterable[Piece]:
        """Those of the records that the subscription takes; what lies between them becomes gaps."""
        takes = self._takes
        if takes is None:
            yield from pieces
            return
        for messages, first, offsets in pieces:
            kept = [index for index, message in enumerate(messages) if takes(message)]
            self._seen += len(messages)
            self._taken += len(kept)
            if self._seen > _LATELY:
                self._seen, self._taken = self._seen // 2, self._taken // 2
            if len(kept) == len(messages):
                yield messages, first, offsets
            elif kept:
                where = [first + index if offsets is None else offsets[index] for index in kept]
                yield [messages[index] for index in kept], where[0], where

    def scan(self, records: int) -> int:
        """Offsets to be read to find so many records that are taken."""
        if self._takes is None or self._seen == 0:
            return records
        density = max(self._taken, 0.5) / self._seen
        return max(records, min(int(records / density), MOST_SCANNED))
