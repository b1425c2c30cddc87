"""The state of a subscription in a few words: whether it works, or what it waits for. Pure."""

from __future__ import annotations

from kafkadur.admin.subscription_info import SubscriptionInfo


def words(info: SubscriptionInfo) -> str:
    """Return the state of a subscription, for people."""
    if info.problem is not None:
        return info.problem
    if info.paused:
        return "paused: nothing is handed out until it is resumed"
    if info.grace_ms > 0:
        return f"waits: leases are granted again in {info.grace_ms / 1000:.1f} s"
    return _of_backlog(info) if info.backlog else "all settled"


def _of_backlog(info: SubscriptionInfo) -> str:
    if not info.attached:
        return "waits: no member is attached"
    if info.in_flight:
        return f"works: {_messages(info.in_flight)} in flight"
    if info.exceptions:
        return f"waits: {_messages(info.exceptions)} came back and are not due yet, or wait for a member"
    return "waits: no message is in flight"


def _messages(number: int) -> str:
    return f"{number:,} message" if number == 1 else f"{number:,} messages"
