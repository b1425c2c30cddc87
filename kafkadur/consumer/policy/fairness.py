"""How a member shares its window between the partitions of a shared subscription.

Each exchange carries the verdicts on a few partitions, and new records are granted from those first: that
costs least. So the member would read one partition to its end before the next one. After `IN_A_ROW` records
from the same partitions, or when these have no more, the others come first. Rules over numbers, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: Records granted in a row from the same partitions, at least, before others come first.
IN_A_ROW = 1000


class Fairness:
    """The partitions from which records were granted last."""

    def __init__(self) -> None:
        """Nothing was granted."""
        #: the partitions of the current row: they come first until `others_first`
        self.partitions: set[int] = set()
        self._records = 0
        #: partition -> number of the last row that it was in
        self._rows: dict[int, int] = {}
        self._row = 0

    def granted(self, records: Mapping[int, int]) -> None:
        """Count what an answer granted: partition -> records that were never granted before."""
        if not records:
            return
        if not self.partitions.issuperset(records):
            self.partitions, self._records = set(records), 0
            self._row += 1
            self._rows.update(dict.fromkeys(records, self._row))
        self._records += sum(records.values())

    def others_first(self) -> bool:
        """Whether the other partitions come first from now on."""
        return self._records >= IN_A_ROW

    def order(self, partitions: Iterable[int]) -> list[int]:
        """Return the partitions of an exchange in the order in which records are to be granted.

        After the current row comes the partition that was served least recently.
        """
        over = self.others_first()
        return sorted(partitions, key=lambda p: ((p in self.partitions) is over, self._rows.get(p, 0)))
