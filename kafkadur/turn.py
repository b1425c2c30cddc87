"""The turn of a member on serial lanes: how many records it was handed, all partitions together.

When a turn is over and to whom it goes is `member.py` and the coordinator's `lane.lua`.
"""

from __future__ import annotations

from kafkadur.delivery import Chunk


class Turn:
    """Counts what was handed out since a turn began."""

    def __init__(self) -> None:
        """A turn begins."""
        self._before = 0
        self._run: tuple[Chunk, int] | None = None

    @property
    def handed(self) -> int:
        """Records handed out in this turn."""
        if self._run is None:
            return self._before
        chunk, first = self._run
        return self._before + max(chunk.handed - first, 0)

    def hand_out(self, records: int) -> None:
        """So many were handed out at once."""
        self._before += records

    def run(self, chunk: Chunk) -> None:
        """From here on the records of `chunk` are handed out one by one."""
        self._before, self._run = self.handed, (chunk, chunk.handed)
