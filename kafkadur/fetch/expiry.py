"""What retention took from a member, or is about to take: offsets by partition, and how many were lost.

Where partitions begin is told by the readers, what expires soon by the watch (`watch.py`).
"""

from __future__ import annotations

from collections.abc import Mapping


class Expiry:
    """The offsets that matter to one member."""

    def __init__(self) -> None:
        """Nothing was removed."""
        self._kept: dict[int, int] = {}
        self._lost: dict[int, int] = {}
        self._soon: dict[int, int] = {}

    def keeps_from(self, partition: int, offset: int) -> None:
        """Kafka keeps nothing before `offset`."""
        self._kept[partition] = max(offset, self._kept.get(partition, 0))

    def lose(self, partition: int, start: int, end: int) -> int:
        """Unsettled offsets [start, end) hold no record: up to where they were removed, if they were."""
        end = max(min(end, self._kept.get(partition, 0)), start)
        if end > start:
            self._lost[partition] = self._lost.get(partition, 0) + end - start
        return end

    def take_lost(self, partition: int) -> int:
        """Offsets that were lost since this was asked the last time."""
        return self._lost.pop(partition, 0)

    def rescue(self, until: Mapping[int, int]) -> None:
        """What lies before these offsets expires soon, and is to be rescued."""
        self._soon = dict(until)

    def rescued_before(self, partition: int) -> int:
        """Records before this offset are to be rescued."""
        return self._soon.get(partition, 0)
