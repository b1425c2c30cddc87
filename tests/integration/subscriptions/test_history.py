"""The delivery history: which member had each message, when, and what became of it."""

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
import redis
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

import kafkadur.sync
from kafkadur import IllegalState, InvalidDestination, Redelivery
from kafkadur.admin.changes import Admin
from kafkadur.admin.history import History, HistoryAdmin
from kafkadur.history.entries import Outcome, topic_of
from kafkadur.settings import settings
from kafkadur.stack import as_administrator
from kafkadur.stack.kafka import quiet_admin
from kafkadur_sharing.definition import TypeName
from kafkadur_sharing.keys import SubscriptionKey
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    PRIORITY_TOO,
    SERIAL_TOO,
    Place,
    remove,
    wait_until,
)
from tests.integration.subscriptions.workers import Worker

KINDS = ("shared", "exclusive", PRIORITY_TOO, SERIAL_TOO, "key-ordered")
DAY_S = 86_400
all_kinds = pytest.mark.parametrize("kind", KINDS)


def history(place: Place, *, number: int = 1_000, **asked: object) -> History:
    chosen = settings(place.settings(), environment={})
    with Admin(chosen) as admin:
        return HistoryAdmin(chosen, admin).last(admin.key("d"), number, **asked)  # type: ignore[arg-type]


def by_offset(found: History) -> dict[int, list[tuple[int | None, Outcome]]]:
    """Attempt and outcome of each delivery, by offset, in their order."""
    told: dict[int, list[tuple[int | None, Outcome]]] = {}
    for each in found.deliveries:
        for offset in range(each.start, each.end):
            told.setdefault(offset, []).append((each.attempt, each.outcome))
    return told


def receive(subscription: kafkadur.sync.Subscription, count: int) -> list[kafkadur.sync.Delivery]:
    found = list[kafkadur.sync.Delivery]()
    while len(found) < count:
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        found.append(delivery)
    return found


@all_kinds
def test_each_verdict_is_recorded(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(6))
    before = time.time() * 1000
    with (
        place.connect_sync() as connection,
        connection.subscribe(
            topic, durable="d", type=kind, start="earliest", history=DAY_S, name="ann",
            redelivery=Redelivery(max_attempts=3),
        ) as subscription,
    ):  # fmt: skip
        for delivery in receive(subscription, 5):
            match delivery.offset:
                case 0 | 1:
                    delivery.ack()
                case 2:
                    delivery.reject("no good")
                case 3:
                    delivery.ack_nowait()
                case _:
                    delivery.rollback()
        again = {each.offset: each for each in receive(subscription, 2)}
        assert again.keys() == {4, 5}
        again[4].ack()
        again[5].release()
        member = subscription.member_id
    found = history(place)
    told = by_offset(found)
    assert {offset: told[offset] for offset in range(5)} == {
        0: [(1, Outcome.ACKNOWLEDGED)],
        1: [(1, Outcome.ACKNOWLEDGED)],
        2: [(1, Outcome.DEAD)],
        3: [(1, Outcome.ACKNOWLEDGED)],
        4: [(1, Outcome.ROLLED_BACK), (2, Outcome.ACKNOWLEDGED)],
    }
    assert set(told[5]) == {(1, Outcome.RELEASED)}
    assert (found.missing, found.unread, found.more) == (0, 0, False)
    for each in found.deliveries:
        assert (each.partition, each.member, each.name) == (0, member, "ann")
        assert each.handed is not None
        assert before - 1 <= each.handed <= each.at <= time.time() * 1000
        assert each.held == each.at - each.handed
    assert next(each for each in found.deliveries if each.outcome is Outcome.DEAD).cause == "rejected"


@all_kinds
def test_a_delivery_of_a_killed_member_is_recorded(
    place: Place, start_worker: Callable[..., Worker], kind: TypeName
) -> None:
    topic = place.topic([1])
    worker = start_worker(
        topic, durable="d", type=kind, start="earliest", history=DAY_S, name="bob", session_timeout=3.0
    )
    assert worker.receive(1) == [(1, 1)]

    def held() -> bool:
        try:
            return by_offset(history(place)) == {0: [(1, Outcome.HANDED)]}
        except InvalidDestination:  # there is no topic yet
            return False

    wait_until(held, "the delivery in the history")
    worker.kill()
    with (
        place.connect_sync(session_timeout=3.0) as connection,
        connection.subscribe(topic, durable="d", type=kind, name="eve") as subscription,
    ):
        (delivery,) = receive(subscription, 1)
        delivery.ack()
    first, second = sorted(history(place).deliveries, key=lambda each: each.attempt or 0)
    assert (first.name, first.attempt, first.outcome, first.held) == ("bob", 1, Outcome.HANDED, None)
    assert (second.name, second.attempt, second.outcome) == ("eve", 2, Outcome.ACKNOWLEDGED)
    assert [each.name for each in history(place, member="eve").deliveries] == ["eve"]
    assert [each.name for each in history(place, member=first.member).deliveries] == ["bob"]
    newest = history(place, number=1)
    assert ([each.name for each in newest.deliveries], newest.more) == (["eve"], True)


def test_many_messages_are_few_entries(place: Place) -> None:
    topic = place.topic(range(20_000))
    with (
        place.connect_sync() as connection,
        connection.subscribe(
            topic, durable="d", type="exclusive", start="earliest", history=DAY_S
        ) as messages,
    ):
        for number, delivery in enumerate(messages, 1):
            delivery.ack_nowait()
            if number == 20_000:
                break
    found = history(place, number=100_000)
    assert len(found.deliveries) < 1_000
    spans = sorted((each.start, each.end) for each in found.deliveries)
    assert spans[0][0] == 0
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert spans[-1][1] == 20_000
    assert {each.outcome for each in found.deliveries} == {Outcome.ACKNOWLEDGED}
    assert history(place, offset=(0, 777)).deliveries[0].start == 777
    assert history(place, number=3).deliveries == found.deliveries[-3:]


def test_the_history_of_a_key(place: Place) -> None:
    topic = place.topic([], partitions=2)
    with place.connect_sync() as connection, connection.producer() as producer:
        for number in range(10):
            producer.publish(topic, str(number), key=f"k{number % 3}")
        with connection.subscribe(
            topic, durable="d", type="key-ordered", start="earliest", history=DAY_S
        ) as subscription:
            wanted = set[tuple[int, int]]()
            for _ in range(10):
                (delivery,) = receive(subscription, 1)
                delivery.ack()
                if delivery.key == b"k1":
                    wanted.add((delivery.partition, delivery.offset))
    found = history(place, message_key=b"k1")
    assert {(each.partition, each.start) for each in found.deliveries} == wanted
    assert len(wanted) == 3
    some = min(wanted)
    assert len(history(place, message_key=b"k1", offset=some).deliveries) == 1
    assert not history(place, message_key=b"k2", offset=some).deliveries


@pytest.mark.parametrize(("kind", "outcome"), [("key-ordered", Outcome.LOST), ("shared", None)])
def test_a_loss_of_the_state_is_in_the_history(place: Place, kind: TypeName, outcome: Outcome | None) -> None:
    topic = place.topic(range(3))
    with (
        place.connect_sync(session_timeout=3.0) as connection,
        connection.subscribe(topic, durable="d", type=kind, start="earliest", history=DAY_S) as subscription,
    ):
        first = receive(subscription, 1)[0]
        incarnation = first.fencing_token[0]
        wipe(place, connection.key("d"))
        wait_until(lambda: first.lost or first.fencing_token[0] > incarnation, "the loss noticed")
        assert first.lost is (outcome is not None)
        if outcome is None:
            first.ack()
        for delivery in receive(subscription, 3 if outcome is not None else 2):
            delivery.ack()
    told = by_offset(history(place))
    assert [each for _, each in told.pop(first.offset)] == [
        *([] if outcome is None else [outcome]),
        Outcome.ACKNOWLEDGED,
    ]
    assert {each for (each,) in told.values()} == {(1, Outcome.ACKNOWLEDGED)}


def test_retention_follows_the_definition(place: Place) -> None:
    topic = place.topic([1, 2])
    admin = quiet_admin(place.stack.kafka)
    with place.connect_sync() as connection:
        with connection.subscribe(topic, durable="d", start="earliest", history=DAY_S) as subscription:
            receive(subscription, 1)[0].ack()
        name = topic_of(connection.key("d"))
        wait_until(lambda: is_there(place, 0), "the first delivery in the history")
        assert config_of(admin, name) == {"retention.ms": "86400000", "segment.ms": "21600000"}
        with Admin(connection.settings) as changing:
            changing.alter(connection.key("d"), history=3_600)
        with connection.subscribe(topic, durable="d") as subscription:
            receive(subscription, 1)[0].ack()
        wait_until(lambda: is_there(place, 1), "the second delivery in the history")
        assert config_of(admin, name) == {"retention.ms": "3600000", "segment.ms": "900000"}


def test_a_deleted_topic_is_created_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    topic = place.topic([1, 2])
    admin = quiet_admin(place.stack.kafka)
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest", history=DAY_S) as subscription,
    ):
        receive(subscription, 1)[0].ack()
        wait_until(lambda: is_there(place, 0), "the first delivery in the history")
        remove(admin, topic_of(connection.key("d")))
        receive(subscription, 1)[0].ack()
        wait_until(lambda: is_there(place, 1), "the second delivery in the history")
    told = [message for message in caplog.messages if "delivery history of" in message]
    assert len(told) <= 1, "an outage is told once"


def test_a_new_subscription_of_the_same_name_has_its_own_history(place: Place) -> None:
    topic = place.topic(range(3))
    with place.connect_sync() as connection:
        with connection.subscribe(topic, durable="d", start="earliest", history=DAY_S) as subscription:
            receive(subscription, 1)[0].ack()
        connection.unsubscribe("d")
        with connection.subscribe(topic, durable="d", start="earliest", history=DAY_S) as subscription:
            for delivery in receive(subscription, 2):
                delivery.rollback(delay=60)
    told = by_offset(history(place))
    assert (told[0], told[1]) == ([(1, Outcome.ROLLED_BACK)], [(1, Outcome.ROLLED_BACK)])


def test_a_subscription_that_is_not_durable_has_none(place: Place) -> None:
    topic = place.topic([])
    with place.connect_sync() as connection, pytest.raises(IllegalState, match="no delivery history"):
        connection.subscribe(topic, history=DAY_S)


def test_without_a_history_an_error_says_how_to_have_one(place: Place) -> None:
    topic = place.topic([])
    with place.connect_sync() as connection:
        connection.subscribe(topic, durable="d").close()
        with pytest.raises(InvalidDestination, match="sub alter"):
            history(place)
        with Admin(connection.settings) as admin:
            admin.alter(connection.key("d"), history=DAY_S)
        with pytest.raises(InvalidDestination, match="nothing was delivered"):
            history(place)


def wipe(place: Place, key: SubscriptionKey) -> None:
    """Delete all that Redis has of a subscription."""
    with redis.Redis.from_url(as_administrator(place.stack.redis)) as client:
        found = list(client.scan_iter(f"*{{{key.tag}}}*", count=1_000))
        assert found
        client.delete(*found)


def is_there(place: Place, offset: int) -> bool:
    try:
        return offset in by_offset(history(place))
    except InvalidDestination:
        return False


def config_of(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(LIMIT_S)
    return {name: str(found[name].value) for name in ("retention.ms", "segment.ms")}
