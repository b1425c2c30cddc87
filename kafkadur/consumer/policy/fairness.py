"""How a member shares its window between the partitions of a shared subscription.

Each exchange carries the verdicts on a few partitions, and records that were never granted come from those
first: that costs least. So the member would take one partition to its end before the next one. Here one
partition at a time comes first, for `IN_A_ROW` records or until it has no more. Rules over numbers, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: Records that are granted of the first partition, at least, before all others come before it.
IN_A_ROW = 1000


class Fairness:
    """Which partition comes first."""

    def __init__(self) -> None:
        """Nothing was granted."""
        #: the partition that comes first, or last if its turn is over; None: nothing was granted
        self.first: int | None = None
        self._records = 0
        #: partition -> number of the last turn in which it came first
        self._turns: dict[int, int] = {}
        self._turn = 0

    def granted(self, records: Mapping[int, int]) -> None:
        """Count what an answer granted: partition -> records that were never granted before."""
        others = [partition for partition in records if partition != self.first]
        if others and (self.is_over() or self.first not in records):
            self.first = min(others, key=self._last_turn)
            self._records = 0
            self._turn += 1
            self._turns[self.first] = self._turn
        if self.first is not None:
            self._records += records.get(self.first, 0)

    def is_over(self) -> bool:
        """Whether all other partitions come before `first` from now on."""
        return self._records >= IN_A_ROW

    def order(self, partitions: Iterable[int]) -> list[int]:
        """Return partitions in the order in which their records are to be granted.

        First or last comes `first`; the others are in the order of their last turns.
        """
        first_is_last = self.is_over()
        return sorted(partitions, key=lambda p: ((p == self.first) is first_is_last, self._last_turn(p)))

    def _last_turn(self, partition: int) -> int:
        return self._turns.get(partition, 0)
