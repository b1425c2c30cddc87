"""What is remembered of the last hour: samples of each subscription, and ends of each partition.

From the ends follows how old the oldest unsettled message is, without reading it: a message lies before the
end of its partition since it was written. No I/O; times are passed in.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

#: Milliseconds that samples are kept.
SPAN_MS: Final = 3_600_000
#: Milliseconds between two ends of a partition that are kept, so that a busy one costs no more than others.
_SPACING_MS: Final = 10_000
#: Stands for a number that is not known.
_UNKNOWN: Final = -1


class Sample(NamedTuple):
    """The numbers of a subscription at one moment."""

    #: server time, ms since 1970
    at: int
    backlog: int | None
    in_flight: int
    #: messages that came back and are unsettled
    came_back: int
    #: offsets a second, in thousandths; None: not known
    arrived: int | None
    settled: int | None


class Series:
    """The samples of one subscription, oldest first. 48 bytes each."""

    def __init__(self) -> None:
        """There is none yet."""
        self._numbers = array("q")

    def add(self, sample: Sample) -> None:
        """Add a sample that is later than the others; forget those that are too old."""
        added = array("q", (_UNKNOWN if number is None else number for number in sample))
        width, first = len(sample), 0
        while first < len(self._numbers) and self._numbers[first] < sample.at - SPAN_MS:
            first += width
        self._numbers = self._numbers[first:] + added  # a reader in another thread has the old ones, or these

    @property
    def last(self) -> int | None:
        """When the last sample was taken; None: there is none."""
        return self._numbers[-len(Sample._fields)] if self._numbers else None

    def samples(self) -> list[Sample]:
        """Return all of them."""
        numbers, width = self._numbers, len(Sample._fields)
        rows = (numbers[n : n + width] for n in range(0, len(numbers), width))
        return [Sample(*(None if number == _UNKNOWN else number for number in row)) for row in rows]  # type: ignore[arg-type]  # those that can be unknown


@dataclass(frozen=True, slots=True)
class Age:
    """How long ago something happened."""

    ms: int
    #: Whether it is longer ago than this: it happened before the first look.
    at_least: bool


class Ends:
    """The ends of one partition, and when each was seen first."""

    def __init__(self) -> None:
        """None was seen yet."""
        self._seen: deque[tuple[int, int]] = deque()

    def add(self, end: int, at: int) -> None:
        """Take the end of the partition at a time, ms since 1970."""
        if self._seen and end < self._seen[-1][1]:  # the end of the log was lost
            self._seen.clear()
        new = not self._seen or (self._seen[-1][1] != end and at >= self._seen[-1][0] + _SPACING_MS)
        if new:
            self._seen.append((at, end))
        # the last one that is too old stays: it says how old the messages before it are at least
        while len(self._seen) > 1 and self._seen[1][0] < at - SPAN_MS:
            self._seen.popleft()

    def age_of(self, offset: int, now: int) -> Age | None:
        """Return how long ago an offset was written, to some seconds; None: it was just written, or never."""
        for number, (at, end) in enumerate(self._seen):
            if end > offset:
                return Age(now - at, at_least=number == 0)
        return None
