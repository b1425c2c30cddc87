"""Retention against subscriptions: unsettled messages that Kafka has removed, or is about to remove.

A message is removed some time after it became as old as the topic's retention; it is said to expire soon in
the last tenth of that time (an hour at most). `retention_watch.py` looks for members, `inspector.py` for
people, the service for subscriptions without members.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kafkadur_coordinators.topics import Topics

#: Seconds between two warnings about the same subscription.
WARN_EVERY_S = 600.0
#: Longest time before its end in which a message expires soon, ms.
_LONGEST_MARGIN = 3_600_000


def expiring(topics: Topics, topic: str, partitions: int, now: int) -> dict[int, int]:
    """Offset of each partition before which messages expire soon; empty: the topic keeps them.

    `now` is ms since the epoch. Raises `StateLost`.
    """
    retention = topics.retention(topic)
    if retention is None:
        return {}
    margin = min(retention // 10, _LONGEST_MARGIN)
    return topics.offsets_at(topic, partitions, now - retention + margin)


def warn_of_expiring(log: logging.Logger, soon: int, *, topic: str, subscription: str) -> None:
    """Log that up to `soon` unsettled messages are about to be removed."""
    log.warning(
        "Kafka is about to remove unsettled messages. State: up to %d of topic %s come to the end of its "
        "retention. Owner: subscription %s. Remedy: let more consumers work on it, keep messages longer "
        "(retention.ms), or have them rescued (Redelivery(rescue=True)).",
        soon,
        topic,
        subscription,
    )


class Expiry:
    """The offsets of one member that retention has removed, or is about to remove, by partition.

    The readers report where partitions begin, `retention_watch.py` reports what expires soon.
    """

    def __init__(self) -> None:
        """Nothing was removed."""
        self._kept: dict[int, int] = {}
        self._lost: dict[int, tuple[int, int]] = {}
        self._soon: dict[int, int] = {}

    def keeps_from(self, partition: int, offset: int) -> None:
        """Kafka keeps nothing before `offset`."""
        self._kept[partition] = max(offset, self._kept.get(partition, 0))

    def lose(self, partition: int, start: int, end: int, *, read: bool) -> int:
        """Unsettled offsets [start, end) hold no record; returns the end of those that Kafka has removed.

        `read`: whether a member had read their records before.
        """
        end = max(min(end, self._kept.get(partition, 0)), start)
        if end > start:
            lost, before = self._lost.get(partition, (0, 0))
            self._lost[partition] = (lost + end - start, before + (end - start if read else 0))
        return end

    def take_lost(self, partition: int) -> tuple[int, int]:
        """Number of offsets that were lost since the last call, and of those that had been read before."""
        return self._lost.pop(partition, (0, 0))

    def rescue(self, until: Mapping[int, int]) -> None:
        """Records before these offsets expire soon, and are to be rescued."""
        self._soon = dict(until)

    def rescued_before(self, partition: int) -> int:
        """Records before this offset are to be rescued."""
        return self._soon.get(partition, 0)
