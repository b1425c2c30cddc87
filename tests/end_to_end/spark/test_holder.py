"""Holding a subscription as a whole, and settling for it: no Spark, but all else is real."""

import contextlib
import time
from collections.abc import Generator
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.cimpl import TopicPartition

import kafkadur_spark
from kafkadur.admin.changes import Admin
from kafkadur.settings import settings
from kafkadur.stack import as_administrator
from kafkadur_coordinators.exclusive_settlement import Verdicts
from kafkadur_sharing.errors import ConnectionClosed, IllegalState, LeaseLost, StateLost, TopicChanged
from tests.integration.subscriptions.helpers import LIMIT_S, Place, make_anew, number, wait_until
from tests.integration.subscriptions.workers import Worker


@contextlib.contextmanager
def hold(place: Place, topic: str, **connection: object) -> Generator[kafkadur_spark.Holder]:
    with (
        place.connect_sync(**connection) as one,
        kafkadur_spark.hold(one, topic, durable="d", start="earliest") as holder,
    ):
        yield holder


def waiting(holder: kafkadur_spark.Holder, partition: int = 0) -> list[tuple[int, int]]:
    return [(item.start, item.end) for item in holder.whereabouts().settlements[partition].waiting]


def received(place: Place, topic: str, count: int, **options: object) -> list[tuple[int, int]]:
    """Receive and acknowledge as an ordinary consumer: (number, attempt)."""
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest", **options) as subscription,  # type: ignore[call-overload]  # as given
    ):
        found: list[tuple[int, int]] = []
        for _ in range(count):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            found.append((number(delivery), delivery.attempt))
            delivery.ack()
        return sorted(found)


def forget_state(place: Place) -> None:
    with redis.Redis.from_url(as_administrator(place.stack.redis)) as client:
        for key in client.scan_iter(match=f"kafkadur:{place.namespace}:*", count=1000):
            client.delete(key)


@pytest.mark.long
def test_suspects_are_settled_although_they_are_granted_few_at_a_time(place: Place) -> None:
    """A consumer with much in hand died, and attempts are bounded."""
    topic = place.topic(range(100))
    options = {"durable": "d", "start": "earliest", "max_attempts": 3, "window": 100}
    worker = Worker(place.settings(), topic, options)
    try:
        assert len(worker.receive(100)) == 100
    finally:
        worker.end()
    with hold(place, topic) as holder:
        assert waiting(holder) == [(0, 100)]
        assert holder.settle({0: Verdicts([(0, 100)])}) == 100
        assert waiting(holder) == []


def test_a_driver_that_left_does_not_attach_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is lost while it leaves, and by then its session has to be renewed."""
    topic = place.topic(range(10))
    with hold(place, topic, session_timeout=1.0) as holder:
        mirror = holder._floors.mirror_last  # noqa: SLF001 - leaving begins with it

        def lose(*arguments: Any) -> None:
            forget_state(place)
            leaving = time.monotonic()
            wait_until(lambda: time.monotonic() > leaving + 0.4, "a third of the session is over")
            mirror(*arguments)

        monkeypatch.setattr(holder._floors, "mirror_last", lose)  # noqa: SLF001 - as above
    with hold(place, topic):  # it is attached: SubscriptionActive otherwise
        pass


def test_what_waits_for_its_time_does_not_hold_up_a_batch(place: Place) -> None:
    topic = place.topic(range(10))
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        delivery.rollback(delay=3600)
    with hold(place, topic) as holder:
        assert holder.settle({0: Verdicts([(0, 10)])}) == 9
        assert waiting(holder) == [(0, 1)]


def test_what_no_verdict_names_goes_back_uncounted(place: Place) -> None:
    topic = place.topic(range(10))
    with hold(place, topic) as holder:
        assert holder.settle({0: Verdicts([(5, 10)], [(4, 5)])}) == 5
    assert received(place, topic, 5) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2)]


@pytest.mark.long
def test_many_roll_backs(place: Place) -> None:
    topic = place.topic(range(200))
    with hold(place, topic) as holder:
        for offset in range(0, 200, 2):
            batch = {0: Verdicts([(offset, offset + 1)], [(offset + 1, offset + 2)])}
            assert holder.settle(batch) == 1
        assert len(waiting(holder)) == 100


def test_partitions_that_were_added_are_seen(place: Place) -> None:
    topic = place.topic(range(3))
    admin = AdminClient({"bootstrap.servers": place.stack.kafka})
    with hold(place, topic) as holder:
        assert set(holder.whereabouts().settlements) == {0}
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(LIMIT_S)
        wait_until(lambda: set(holder.whereabouts().settlements) == {0, 1}, "both partitions")


def test_nothing_is_settled_after_the_topic_was_made_anew(place: Place) -> None:
    topic = place.topic(range(3))
    admin = AdminClient({"bootstrap.servers": place.stack.kafka})
    with hold(place, topic) as holder:
        assert holder.settle({0: Verdicts([(0, 1)])}) == 1
        make_anew(admin, topic)
        with pytest.raises(TopicChanged, match="topic id"):
            holder.settle({0: Verdicts([(1, 2)])})
        with pytest.raises(LeaseLost, match="topic id"):
            holder.settle({0: Verdicts([(1, 2)])})


@pytest.mark.long
def test_who_was_silent_while_the_state_was_lost_is_out(place: Place) -> None:
    """Somebody else may have had the subscription, for all it knows."""
    topic = place.topic(range(3))
    told: list[str] = []
    with hold(place, topic) as holder:
        holder.at_end(lambda: told.append("lost"))
        holder._heard_at -= 60  # noqa: SLF001 - a minute without an answer
        forget_state(place)
        with pytest.raises(LeaseLost, match="nothing was heard of it"):
            holder.settle({0: Verdicts([(0, 3)])})
        wait_until(lambda: told == ["lost"], "the queries are told")
        with pytest.raises(LeaseLost):
            holder.whereabouts()
    assert told == ["lost"]
    assert [value for value, _ in received(place, topic, 3)] == [0, 1, 2]


def test_while_it_is_paused_nothing_is_settled(place: Place) -> None:
    topic = place.topic(range(3))
    with hold(place, topic, session_timeout=1.0) as holder, Admin(settings(place.settings())) as admin:
        admin.pause(admin.key("d"))
        with pytest.raises(StateLost, match="paused"):
            holder.settle({0: Verdicts([(0, 3)])})
        admin.pause(admin.key("d"), paused=False)
        assert holder.settle({0: Verdicts([(0, 3)])}) == 3


def test_the_consumer_group_follows(place: Place) -> None:
    topic = place.topic(range(10))
    with hold(place, topic) as holder:
        holder.settle({0: Verdicts([(0, 7)])})
        group = holder.definition.key.group
    consumer = Consumer({"bootstrap.servers": place.stack.kafka, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], LIMIT_S)
    consumer.close()
    assert found.offset == 7


def test_a_holder_is_entered_once_and_closed_for_good(place: Place) -> None:
    topic = place.topic(range(3))
    with hold(place, topic) as holder, pytest.raises(IllegalState, match="entered once"):
        holder.__enter__()
    holder.close()
    with pytest.raises(ConnectionClosed):
        holder.settle({0: Verdicts([(0, 3)])})
    with pytest.raises(IllegalState, match="entered once"):
        holder.__enter__()
    with place.connect_sync() as connection, pytest.raises(ConnectionClosed):
        _ = kafkadur_spark.hold(connection, topic, durable="d").definition
