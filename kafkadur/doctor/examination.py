"""Runs all checks, and finds the subscriptions that need attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kafkadur.admin.changes import Admin
from kafkadur.admin.subscription_info import SubscriptionInfo, without_records
from kafkadur.doctor.finding import Finding, Level, counted, failed, good, problem, warning
from kafkadur.doctor.of_kafka import look_at_kafka
from kafkadur.doctor.of_redis import look_at_redis
from kafkadur.native.choice import client_name
from kafkadur.settings import Settings
from kafkadur_sharing.errors import KafkadurError

#: Checks that must pass before the subscriptions can be checked.
_NEEDED = {
    *(f"redis {part}" for part in ("connection", "version", "role", "eviction", "rights")),
    "kafka connection",
}


def examine(settings: Settings, topics: Sequence[str] = ()) -> Iterator[Finding]:
    """Name the client, and check Redis, Kafka and the subscriptions of the namespace; yield each finding."""
    yield good("client", f"Kafka is read and written with {client_name()}")
    works = True
    for look in (look_at_redis(settings), look_at_kafka(settings, topics)):
        for finding in look:
            works = works and not (finding.check in _NEEDED and finding.level is Level.PROBLEM)
            yield finding
    if works:
        yield from _subscriptions(settings)


def _subscriptions(settings: Settings) -> Iterator[Finding]:
    check = "subscriptions"
    try:
        with Admin(settings, on_warning=lambda _: None) as admin:
            found = admin.list()
    except KafkadurError as error:
        yield failed(check, error)
        return
    # what only records handled dead letters is needed as long as there are dead letters
    troubled = [finding for each in without_records(found) for finding in judge_subscription(each)]
    yield from troubled
    if not troubled:
        yield good(check, f"{len(found)} in namespace {settings.namespace}")


def judge_subscription(info: SubscriptionInfo) -> Iterator[Finding]:
    """Yield findings on expiring messages, messages without a member, and state of the version before."""
    check = f"subscription {info.key}"
    if info.expiring:
        yield problem(
            check,
            f"Kafka is about to remove {counted(info.expiring, 'unsettled message')}",
            "start its consumers, keep messages longer, or rescue them (Redelivery(rescue=True))",
        )
    if info.unattended_since is not None and info.backlog:
        yield warning(
            check,
            f"unsettled: {counted(info.backlog, 'message')}; nobody is attached",
            "start its consumers; if nobody needs it, look at what waits (kafkadur sub peek), "
            "then kafkadur sub unsubscribe",
        )
    if info.is_stored_as_before:
        yield warning(
            check,
            "its state is stored as the version before stores it: the loss of a part may not be noticed",
            "when no process of the version before runs: kafkadur sub alter --upgrade",
        )
