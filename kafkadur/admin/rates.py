"""How fast messages arrive in a topic and are settled, from two looks at a subscription. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kafkadur.admin.subscription_info import SubscriptionInfo


class Rates(NamedTuple):
    """Offsets a second."""

    arrived: float
    settled: float


def rates(before: SubscriptionInfo | None, now: SubscriptionInfo) -> Rates | None:
    """Return the rates between two looks; None: they are not known."""
    if before is None or before.backlog is None or now.backlog is None or now.now <= before.now:
        return None
    ends = [sum(each.log_end or 0 for each in info.partitions) for info in (before, now)]
    seconds = (now.now - before.now) / 1_000
    arrived, expired = ends[1] - ends[0], now.expired - before.expired
    return Rates(arrived / seconds, (arrived - (now.backlog - before.backlog) - expired) / seconds)
