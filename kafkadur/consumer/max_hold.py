"""How long an application may hold a message without a verdict (`Redelivery.max_hold`).

Only bookkeeping over times: what is overdue is rolled back by the member (`member.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from kafkadur.consumer.chunk import HANDED, Chunk


class MaxHold:
    """The records in an application's hands by the time until which it may hold them."""

    def __init__(self, longest: float, monotonic: Callable[[], float]) -> None:
        """`longest` in seconds."""
        self._longest = longest
        self._monotonic = monotonic
        #: until, chunk, first index, end index: in the order of `until`
        self._handed: deque[tuple[float, Chunk, int, int]] = deque()
        #: until when records are held whose time began anew, by chunk (id) and index
        self._extended: dict[tuple[int, int], float] = {}

    def hand_out(self, chunk: Chunk, start: int, end: int) -> None:
        """Records [start, end) of a chunk come into the application's hands now."""
        self._handed.append((self._monotonic() + self._longest, chunk, start, end))

    def extend(self, chunk: Chunk, index: int) -> None:
        """The time of a record begins anew."""
        until = self._monotonic() + self._longest
        self._extended[id(chunk), index] = until
        self._handed.append((until, chunk, index, index + 1))

    @property
    def next_at(self) -> float | None:
        """When to look again, monotonic seconds; None: nothing is held."""
        while self._handed:
            until, chunk, start, end = self._handed[0]
            if chunk.verdicts.count(HANDED, start, min(end, chunk.handed)):
                return until
            self._forget()
        return None

    def overdue(self) -> Iterator[tuple[Chunk, int]]:
        """Take out the records whose time is over and that have no verdict."""
        now = self._monotonic()
        while self._handed and self._handed[0][0] <= now:
            until, chunk, start, end = self._handed[0]
            for index in range(start, min(end, chunk.handed)):
                if chunk.verdicts[index] == HANDED and self._extended.get((id(chunk), index), until) <= now:
                    yield chunk, index
            self._forget()

    def _forget(self) -> None:
        until, chunk, start, end = self._handed.popleft()
        for index in range(start, end):
            if self._extended.get((id(chunk), index), until + 1) <= until:
                del self._extended[id(chunk), index]

    def clear(self) -> None:
        """Nothing is held any more."""
        self._handed.clear()
        self._extended.clear()
