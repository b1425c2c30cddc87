"""The partitions that only one member of a shared subscription prefers, and whether they keep it busy."""

from __future__ import annotations

from kafkadur.consumer.state import Part, State

#: A reader that found no new record for so long does not keep its member busy, seconds.
READS_ON_S = 0.25


class OwnPartitions(Part):
    """The preferred partitions of one member; none, if other members prefer them, too."""

    def __init__(self, state: State) -> None:
        """Nothing was read."""
        super().__init__(state)
        self.clear()

    def clear(self) -> None:
        """Nothing was read."""
        #: how far they were read, a sum of offsets, and since when (monotonic seconds)
        self._read_to = -1
        self._read_at = float("-inf")

    def keep_busy(self) -> bool:
        """Whether the member reads these partitions, and a window of messages or more is unread there."""
        fetch, partitions = self._fetch, self._schedule.partitions
        if not 1 < fetch.role.members <= partitions or not self._selection.is_all:
            return False
        followed = [fetch.buffers[p] for p in fetch.preferred if p in fetch.buffers]
        now, window = self._terms.monotonic(), self._terms.window
        read_to = sum(each.position for each in followed)
        if read_to != self._read_to:
            self._read_to, self._read_at = read_to, now
        return (
            now < self._read_at + READS_ON_S
            and self._schedule.unserved.isdisjoint(fetch.preferred)
            and sum(window if each.unread is None else each.unread for each in followed) >= window
        )

    def look_again(self) -> None:
        """Have another exchange made as soon as they do not keep the member busy any more."""
        schedule = self._schedule
        schedule.request(when=not self.keep_busy())
        at = self._read_at + READS_ON_S
        schedule.wake_at = at if schedule.wake_at is None else min(at, schedule.wake_at)
