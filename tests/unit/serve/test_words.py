"""The state of a subscription in words: a table of cases."""

from typing import Any

import pytest

from kafkadur.admin.subscription_info import PartitionInfo, SubscriptionInfo
from kafkadur.service.state_words import words
from kafkadur_coordinators.interface import MemberInfo
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.keys import SubscriptionKey

NOW = 1_000_000
MEMBER = MemberInfo(
    id="m1", name="one", kind="", heard=True, leases=1, since=0, expires=NOW + 9_000, credit=5
)


def info(
    *, backlog: int | None = 3, in_flight: int = 0, exceptions: int = 0, **changed: Any
) -> SubscriptionInfo:
    partition = PartitionInfo(
        partition=0, floor=0, base=0, next=0, avail=0, in_flight=in_flight, expired=0, truncated=0,
        expiring=0, exceptions=exceptions, backlog=backlog, lag=backlog, log_start=0, log_end=backlog,
    )  # fmt: skip
    usual: dict[str, Any] = {
        "key": SubscriptionKey(namespace="n", name="d"), "id": "0.1", "version": 1,
        "definition": Definition(type=SubscriptionType.SHARED, topic="t"), "topic_id": "", "incarnation": 1,
        "members": (MEMBER,), "progress": {}, "partitions": (partition,), "grace_ms": 0, "paused": False,
        "now": NOW, "problem": None, "last_verdict": None, "unattended_since": None, "state_version": 3,
    }  # fmt: skip
    return SubscriptionInfo(**usual | changed)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (info(problem="There is no topic t."), "There is no topic t."),
        (info(paused=True), "paused: nothing is handed out until it is resumed"),
        (info(grace_ms=2_500), "waits: leases are granted again in 2.5 s"),
        (info(backlog=0), "all settled"),
        (info(backlog=None), "all settled"),
        (info(members=()), "waits: no member is attached"),
        (info(in_flight=1), "works: 1 message in flight"),
        (info(in_flight=1_200), "works: 1,200 messages in flight"),
        (info(exceptions=2), "waits: 2 messages came back and are not due yet, or wait for a member"),
        (info(), "waits: no message is in flight"),
    ],
)
def test_words(found: SubscriptionInfo, told: str) -> None:
    assert words(found) == told
