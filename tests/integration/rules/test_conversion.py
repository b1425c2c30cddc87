"""Rules L3, P3 to P8: who may attach with another type, and what becomes of what waits."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import kafkadur.sync
from kafkadur import InvalidSubscriptionSharing, KafkadurError, SubscriptionActive, SubscriptionTypeMismatch
from kafkadur.admin.changes import Admin
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until
from tests.integration.subscriptions.workers import Worker

COUNT = 6
TYPES = ("exclusive", "shared", "serial", "priority", "key-ordered")
#: Every type to every other one, with what belongs to it.
WAYS = [(one, other) for one in TYPES for other in TYPES if one != other]


def rest(subscription: kafkadur.sync.Subscription) -> list[int]:
    """The numbers of all that waits."""
    found: list[int] = []
    while (delivery := subscription.receive(timeout=LIMIT_S if len(found) < COUNT - 2 else 0.3)) is not None:
        delivery.ack()
        found.append(int(delivery.value or b"0"))
    return sorted(found)


def settle_two(connection: kafkadur.sync.Connection, topic: str, kind: TypeName, **options: Any) -> None:
    """Create it, settle e1 and e2, and leave the others waiting."""
    with connection.subscribe(topic, durable="d", type=kind, start="earliest", **options) as subscription:
        for _ in range(2):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            delivery.ack()


@pytest.mark.parametrize(("one", "other"), WAYS)
def test_d1_l3_with_allow_conversion_what_waits_is_kept(place: Place, one: TypeName, other: TypeName) -> None:
    topic = place.topic(range(1, COUNT + 1))
    with place.connect_sync() as connection:
        settle_two(connection, topic, one)
        with connection.subscribe(topic, durable="d", type=other, allow_conversion=True) as subscription:
            assert subscription.definition.definition.type == other
            assert rest(subscription) == [3, 4, 5, 6]
        with pytest.raises((SubscriptionTypeMismatch, InvalidSubscriptionSharing)):
            connection.subscribe(topic, durable="d", type=one)


def test_l3_what_belongs_to_a_type_comes_with_it(place: Place) -> None:
    topic = place.topic(range(1, COUNT + 1), partitions=2)
    with place.connect_sync() as connection:
        settle_two(connection, topic, "serial", scope="partition")
        with connection.subscribe(
            topic, durable="d", type="exclusive", strict_order=True, allow_conversion=True
        ) as subscription:
            assert (
                subscription.definition.definition.scope,
                subscription.definition.definition.strict_order,
            ) == (
                "subscription",
                True,
            )
            assert rest(subscription) == [3, 4, 5, 6]
        with connection.subscribe(topic, durable="d", type="shared", allow_conversion=True) as subscription:
            assert not subscription.definition.definition.strict_order


@pytest.mark.parametrize("details", [{"selector": "n = 1"}, {"topic": "another"}])
def test_l3_other_details_are_not_converted(place: Place, details: dict[str, str]) -> None:
    topic, other = place.topic(range(1, COUNT + 1)), place.topic([])
    with place.connect_sync() as connection:
        settle_two(connection, topic, "exclusive")
        wanted = other if "topic" in details else topic
        with pytest.raises(InvalidSubscriptionSharing):
            connection.subscribe(
                wanted, durable="d", type="shared", selector=details.get("selector"), allow_conversion=True
            )
        with connection.subscribe(topic, durable="d", type="exclusive") as subscription:
            assert rest(subscription) == [3, 4, 5, 6]


def test_l3_not_while_another_process_is_attached(place: Place, start_worker: Callable[..., Worker]) -> None:
    topic = place.topic(range(1, COUNT + 1))
    worker = start_worker(topic, durable="d", type="shared", start="earliest")
    with place.connect_sync() as connection:
        with pytest.raises(InvalidSubscriptionSharing):
            connection.subscribe(topic, durable="d", type="exclusive", allow_conversion=True)
        assert worker.close() == "closed"
        with connection.subscribe(
            topic, durable="d", type="exclusive", allow_conversion=True
        ) as subscription:
            assert subscription.definition.definition.type == "exclusive"


def test_l3_a_killed_process_is_not_attached(place: Place, start_worker: Callable[..., Worker]) -> None:
    """Refusals do not count it, and the conversion does not wait for it."""
    topic = place.topic(range(1, COUNT + 1))
    with place.connect_sync() as connection, Admin(connection.settings) as admin:
        settle_two(connection, topic, "shared")
        start_worker(topic, durable="d", type="shared").kill()
        wait_until(lambda: len(admin.abandoned(timedelta(0))) == 1, "the killed worker is not heard")
        with pytest.raises(SubscriptionTypeMismatch) as refused:
            connection.subscribe(topic, durable="d", type="serial")
        assert refused.value.state == f"shared, topic {topic}, inactive"
        with connection.subscribe(topic, durable="d", type="serial", allow_conversion=True) as subscription:
            assert rest(subscription) == [3, 4, 5, 6]


@pytest.mark.parametrize(("one", "other"), [("exclusive", "shared"), ("shared", "exclusive")])
def test_p7_in_weblogic_mode_the_policy_changes_without_being_asked(
    place: Place, one: TypeName, other: TypeName
) -> None:
    topic = place.topic(range(1, COUNT + 1))
    with place.connect_sync(mode="weblogic") as connection:
        settle_two(connection, topic, one)
        with connection.subscribe(topic, durable="d", type=other) as subscription:
            assert rest(subscription) == [3, 4, 5, 6]


def test_p8_in_weblogic_mode_other_details_replace(place: Place) -> None:
    topic = place.topic(range(1, COUNT + 1))
    with place.connect_sync(mode="weblogic") as connection:
        settle_two(connection, topic, "shared")
        with connection.subscribe(
            topic,
            durable="d",
            type="exclusive",
            selector="n = 1",
            start="earliest",
            on_change="replace",
        ) as subscription:
            assert subscription.definition.definition.selector == "n = 1"
            assert subscription.receive(timeout=0.5) is None


@pytest.mark.parametrize(
    ("rule", "held", "wanted"),
    [
        ("P3", {"type": "exclusive"}, {"type": "shared"}),
        ("P3", {"type": "exclusive"}, {"type": "exclusive"}),
        ("P4", {"type": "shared"}, {"type": "exclusive"}),
        ("P5", {"type": "shared"}, {"type": "shared", "no_local": True}),
    ],
)
def test_d3_p3_p4_p5_in_weblogic_mode_newcomers_are_refused(
    place: Place, start_worker: Callable[..., Worker], rule: str, held: dict[str, Any], wanted: dict[str, Any]
) -> None:
    topic = place.topic(range(1, COUNT + 1))
    worker = start_worker(topic, durable="d", start="earliest", **held)
    with (
        place.connect_sync(mode="weblogic") as connection,
        pytest.raises(InvalidSubscriptionSharing) as refused,
    ):
        connection.subscribe(topic, durable="d", **wanted)
    assert refused.value.owner, rule
    assert len(worker.receive(COUNT)) == COUNT


def test_l3_two_who_convert_at_once(place: Place) -> None:
    """One has its way; the other is told what it is now, or that somebody is attached; nothing is lost."""
    topic = place.topic(range(1, COUNT + 1))
    with place.connect_sync() as connection:
        settle_two(connection, topic, "exclusive")

    def convert(kind: TypeName) -> list[int] | KafkadurError:
        with place.connect_sync() as own:
            try:
                with own.subscribe(topic, durable="d", type=kind, allow_conversion=True) as subscription:
                    return rest(subscription)
            except KafkadurError as error:
                return error

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(convert, ["shared", "serial"]))
    refused = [each for each in found if not isinstance(each, list)]
    numbers = sorted(n for each in found if isinstance(each, list) for n in each)
    assert numbers == [3, 4, 5, 6]
    assert len(refused) <= 1
    assert all(isinstance(each, (SubscriptionTypeMismatch, SubscriptionActive)) for each in refused)
