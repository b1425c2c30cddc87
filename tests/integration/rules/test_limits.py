"""Rules L1, L2 and C5: how many consumers a shared subscription may have."""

from collections.abc import Callable

import pytest

from kafkadur import IllegalState, ResourceLimit
from kafkadur.admin.changes import Admin
from kafkadur_sharing.definition import Definition, SubscriptionType, TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place
from tests.integration.subscriptions.workers import Worker

KINDS = ("shared", "serial", "priority", "key-ordered")


@pytest.mark.parametrize("kind", KINDS)
def test_l1_any_number_unless_there_is_a_limit(place: Place, kind: TypeName) -> None:
    topic = place.topic([])
    with place.connect_sync() as connection:
        for _ in range(6):
            connection.subscribe(topic, durable="d", type=kind)
        assert connection.subscribe(topic, durable="d", type=kind).definition.definition.max_consumers is None


@pytest.mark.parametrize("kind", KINDS)
def test_l2_c5_one_more_is_refused_and_nobody_put_out(
    place: Place, start_worker: Callable[..., Worker], kind: TypeName
) -> None:
    topic = place.topic(range(1, 5))
    workers = [
        start_worker(topic, durable="d", type=kind, start="earliest", max_consumers=2, name=f"w{n}")
        for n in (1, 2)
    ]
    with place.connect_sync() as connection:
        with pytest.raises(ResourceLimit, match="max_consumers 2") as refused:
            connection.subscribe(topic, durable="d", type=kind)
        assert refused.value.owner == "w1, w2"
        assert workers[0].close() == "closed"
        with connection.subscribe(topic, durable="d", type=kind) as subscription:
            assert subscription.definition.definition.max_consumers == 2
    for worker in workers[1:]:
        worker.work()
        assert sorted(worker.answer()) == [1, 2, 3, 4]


def test_l2_the_place_of_a_killed_consumer_is_free_again(
    place: Place, start_worker: Callable[..., Worker]
) -> None:
    topic = place.topic([1])
    worker = start_worker(topic, durable="d", type="shared", start="earliest", max_consumers=1)
    assert worker.receive(1) == [(1, 1)]
    worker.kill()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="shared") as subscription,
    ):
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        assert delivery.attempt == 2
        delivery.ack()


def test_l1_a_limit_is_raised_while_nobody_is_attached(place: Place) -> None:
    topic = place.topic([])
    with place.connect_sync() as connection:
        connection.subscribe(topic, durable="d", type="shared", max_consumers=1).close()
        with Admin(connection.settings) as admin:
            assert admin.alter(connection.key("d"), max_consumers=None).max_consumers is None
        for _ in range(2):
            connection.subscribe(topic, durable="d", type="shared")


@pytest.mark.parametrize("wrong", [0, -1])
def test_l1_a_limit_is_one_or_more(wrong: int) -> None:
    with pytest.raises(IllegalState, match="max_consumers"):
        Definition(type=SubscriptionType.SHARED, topic="t", max_consumers=wrong)
