"""How fast messages arrive in a topic and are settled, from two looks at a subscription. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kafkadur.admin.subscription_info import SubscriptionInfo


class Rates(NamedTuple):
    """Offsets a second."""

    arrived: float
    settled: float


def rates(before: SubscriptionInfo | None, now: SubscriptionInfo) -> Rates | None:
    """Return the rates between two looks; None: they are not known, as after a move or another change.

    What Kafka removed while no member was attached counts as settled.
    """
    if before is None or before.backlog is None or now.backlog is None or now.now <= before.now:
        return None
    if (before.id, before.version, before.topic_id) != (now.id, now.version, now.topic_id):
        return None
    ends = [sum(each.log_end or 0 for each in info.partitions) for info in (before, now)]
    seconds = (now.now - before.now) / 1_000
    arrived, expired = ends[1] - ends[0], now.expired - before.expired
    settled = arrived - (now.backlog - before.backlog) - expired
    return Rates(max(arrived, 0) / seconds, max(settled, 0) / seconds)
