"""Topics that change under attached members: removed records, a topic made anew, more partitions."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from kafkadur import Delivery, Event, Subscription, TopicChanged
from kafkadur.admin.changes import Admin
from kafkadur.settings import settings
from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import takes_messages
from kafkadur_sharing.definition import TypeName
from tests.integration.faults.crew import SESSION
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    PRIORITY_TOO,
    Place,
    make_anew,
    number,
    numbers,
    take,
    wait_until,
)
from tests.integration.subscriptions.workers import Worker

#: Seconds within which added partitions are to be found.
FOUND_S = 30.0
BOTH = pytest.mark.parametrize("kind", ["shared", "exclusive"])


@pytest.fixture
def place(kafkadur_stack: Stack, place_on: Callable[[Stack], Place]) -> Place:
    """Provide a place on the run's stack whose topics nobody else removes."""
    return place_on(kafkadur_stack)


@BOTH
async def test_records_are_removed_past_what_members_hold(
    place: Place, kafkadur_admin: AdminClient, kind: TypeName
) -> None:
    """What is in hands can still be acknowledged; what was neither read nor settled is told of."""
    topic = place.topic(range(200))
    events: list[Event] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", window=10, on_event=events.append
        ) as subscription,
    ):
        held = await take(subscription, 10)
        for future in kafkadur_admin.delete_records([TopicPartition(topic, 0, 200)]).values():
            future.result(LIMIT_S)
        place.publish(topic, [200])
        for delivery in held:
            await delivery.ack()
        found = numbers(held)
        while found[-1] != 200:
            delivery = (await take(subscription, 1))[0]
            found.append(number(delivery))
            await delivery.ack()
        # what was read ahead is still delivered, in order; the rest is counted
        assert found[:-1] == list(range(len(found) - 1))
        if len(found) < 201:
            await asyncio.to_thread(wait_until, lambda: Event.EXPIRED in events, "a word about what expires")


@BOTH
async def test_the_topic_is_made_anew_under_a_member(
    place: Place, kafkadur_admin: AdminClient, kind: TypeName
) -> None:
    """The member is stopped with a clear error: settled offsets mean nothing in the new topic."""
    topic = place.topic(range(5))
    async with (
        place.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        for delivery in await take(subscription, 5):
            await delivery.ack()
        await asyncio.to_thread(make_anew, kafkadur_admin, topic)
        place.publish(topic, range(3))
        with pytest.raises(TopicChanged, match="topic id"):
            await asyncio.wait_for(anext(aiter(subscription)), LIMIT_S)


@pytest.mark.parametrize("kind", ["exclusive", PRIORITY_TOO, "serial", "shared", "key-ordered"])
def test_the_topic_is_made_anew_while_the_process_is_stopped(
    place: Place, kafkadur_admin: AdminClient, kind: str
) -> None:
    """Kafka's client would go on at the old offset and skip the messages before it."""
    _stop_while_the_topic_is_made_anew(place, kafkadur_admin, kind, place.settings())


def test_the_topic_is_made_anew_although_the_client_logs_errors_only(
    place: Place, kafkadur_admin: AdminClient
) -> None:
    """The topic id is noticed at any log level of the application's settings."""
    quiet = {"bootstrap.servers": place.stack.kafka, "log_level": 3}
    _stop_while_the_topic_is_made_anew(place, kafkadur_admin, "shared", place.settings(kafka=quiet))


def _stop_while_the_topic_is_made_anew(
    place: Place, admin: AdminClient, kind: str, settings_: dict[str, Any]
) -> None:
    topic = place.topic(range(50))
    worker = Worker(settings_, topic, {"durable": "d", "type": kind, "start": "earliest"})
    try:
        assert len(worker.receive(50)) == 50
        assert worker.ack() == "acked"
        worker.freeze()
        make_anew(admin, topic)
        place.publish(topic, range(200))
        worker.thaw()
        assert worker.trouble() == "TopicChanged"
    finally:
        worker.end()


@pytest.mark.parametrize("kind", ["exclusive", PRIORITY_TOO, "serial", "shared", "key-ordered"])
async def test_partitions_are_added_under_members(
    place: Place, kafkadur_admin: AdminClient, kind: TypeName
) -> None:
    """The attached members read them from their beginning, without a new one."""
    topic = place.topic(range(3))
    often = {"bootstrap.servers": place.stack.kafka, "topic.metadata.refresh.interval.ms": 500}
    async with (
        place.connect(kafka=often) as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as first,
    ):
        for delivery in await take(first, 3):
            await delivery.ack()
        await asyncio.to_thread(_add_partitions, place, kafkadur_admin, topic)
        found = await take(first, 3)
        assert sorted(numbers(found)) == [3, 4, 5]
        for delivery in found:
            await delivery.ack()
        async with await connection.subscribe(topic, durable="e", type=kind, start="earliest") as second:
            assert sorted(numbers(await take(second, 6))) == list(range(6))


async def test_partitions_are_added_under_members_that_refresh_as_usual(
    place: Place, kafkadur_admin: AdminClient
) -> None:
    """Each of them gets a share of the partitions."""
    topic = place.topic(range(3))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", type="shared") as one,
        await connection.subscribe(topic, durable="d", start="earliest", type="shared") as other,
    ):
        for _ in range(3):
            await (await _first_of(one, other)).ack()
        await asyncio.to_thread(_add_partitions, place, kafkadur_admin, topic)
        began = asyncio.get_running_loop().time()
        found = [await _first_of(one, other) for _ in range(3)]
        assert sorted(numbers(found)) == [3, 4, 5]
        assert asyncio.get_running_loop().time() - began < FOUND_S
        for delivery in found:
            await delivery.ack()


async def test_added_partitions_are_backlog_while_nobody_is_attached(
    place: Place, kafkadur_admin: AdminClient
) -> None:
    topic = place.topic(range(3))
    async with place.connect() as connection, await connection.subscribe(topic, durable="d") as first:
        assert await first.receive(timeout=0.1) is None
    await asyncio.to_thread(_add_partitions, place, kafkadur_admin, topic)
    with Admin(settings(place.settings())) as admin:
        found = admin.info(admin.key("d"))
    assert (found.backlog, [p.backlog for p in found.partitions]) == (3, [1, 2])


async def _first_of(*subscriptions: Subscription) -> Delivery:
    """The next message that any of them gets."""
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while asyncio.get_running_loop().time() < deadline:
        for subscription in subscriptions:
            if (delivery := await subscription.receive(timeout=0.05)) is not None:
                return delivery
    raise AssertionError("no message came")


def _add_partitions(place: Place, admin: Any, topic: str) -> None:
    """Add a second partition, with 3 and 4 in it; 5 is written to the first one."""
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(LIMIT_S)
    wait_until(lambda: takes_messages(admin, topic, 2), "two partitions")
    # the producer from before would find the new partition only minutes later
    late = replace(place, raw=Producer({"bootstrap.servers": place.stack.kafka, "linger.ms": 0}))
    late.publish(topic, [3, 4], partition=1)
    place.publish(topic, [5])
