"""Retention against subscriptions: which unsettled messages Kafka is about to remove.

A message is removed some time after it became as old as the topic's retention; what is a tenth of that away
(an hour at most) is said to expire soon. `retention_watch.py` looks for members, `inspector.py` for people.
"""

from __future__ import annotations

from kafkadur_coordinators.topics import Topics

#: Longest time before its end in which a message expires soon, ms.
_LONGEST_MARGIN = 3_600_000


def margin(retention: int) -> int:
    """How long before its end a message expires soon, ms; `retention` in ms."""
    return min(retention // 10, _LONGEST_MARGIN)


def expiring(topics: Topics, topic: str, partitions: int, now: int) -> dict[int, int]:
    """Offset of each partition before which messages expire soon; empty: the topic keeps them.

    `now` is ms since the epoch. Raises `StateLost`.
    """
    retention = topics.retention(topic)
    if retention is None:
        return {}
    return topics.offsets_at(topic, partitions, now - retention + margin(retention))
