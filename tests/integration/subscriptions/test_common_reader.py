"""Many subscriptions of a connection to one topic: those that have read all of it share one reader."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis
from confluent_kafka.admin import AdminClient, NewPartitions

import kafkadur
from kafkadur.fetch import tail_fetcher
from kafkadur.fetch.common_tail import OWN_FETCHERS
from kafkadur.testing.pytest_plugin import takes_messages
from kafkadur_coordinators.topics import Topics
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    ack_all,
    make_anew,
    next_of,
    number,
    numbers,
    ordered_producer,
    take,
    wait_until,
)

MANY = OWN_FETCHERS + 4
TYPES = ("shared", "exclusive", "serial", "key-ordered", "priority")
SESSION = timedelta(seconds=5)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have members share a reader after a moment of quiet."""
    monkeypatch.setattr(tail_fetcher, "_QUIET_S", 0.3)


@asynccontextmanager
async def many(
    connection: kafkadur.Connection, topic: str, **more: Any
) -> AsyncGenerator[list[kafkadur.Subscription]]:
    """Attach many subscriptions of all types to one topic."""
    async with AsyncExitStack() as stack:
        subscriptions: list[kafkadur.Subscription] = []
        for at in range(MANY):
            options: Any = {"durable": f"s{at}", "type": TYPES[at % len(TYPES)], "start": "earliest", **more}
            subscriptions.append(
                await stack.enter_async_context(await connection.subscribe(topic, **options))
            )
        yield subscriptions


def readers(topic: str) -> int:
    """How many threads of this process follow a topic."""
    return sum(thread.name == f"kafkadur-tail-{topic}" for thread in threading.enumerate())


async def one_reader(topic: str) -> None:
    await asyncio.to_thread(wait_until, lambda: readers(topic) == 1, "one reader for all")


async def received(subscriptions: list[kafkadur.Subscription], wanted: list[int]) -> None:
    """Check that all subscriptions get exactly these messages, and acknowledge them."""
    for subscription in subscriptions:
        taken = await take(subscription, len(wanted))
        assert sorted(numbers(taken)) == wanted
        await ack_all(taken)


def forget(place: Place) -> None:
    """Delete what Redis has of the subscriptions of a place."""
    with redis.Redis.from_url(place.stack.admin_redis) as client:
        for key in client.scan_iter(match=f"kafkadur:{place.namespace}:*", count=1000):
            client.delete(key)


async def test_all_receive_everything_through_one_reader(place: Place) -> None:
    topic = place.topic(range(20), partitions=2)
    async with place.connect() as connection, many(connection, topic) as subscriptions:
        await received(subscriptions, list(range(20)))
        await one_reader(topic)
        for first in (20, 30):
            for partition in range(2):
                place.publish(
                    topic, range(first + 5 * partition, first + 5 * partition + 5), partition=partition
                )
            await received(subscriptions, list(range(first, first + 10)))
        assert readers(topic) == 1
        again = await connection.subscribe(topic, durable="another", start="earliest")
        await received([again], list(range(40)))
        await again.close()
    assert readers(topic) == 0


async def test_attached_anew_they_begin_with_one_reader(place: Place) -> None:
    topic = place.topic(range(4))
    async with place.connect() as connection, many(connection, topic) as subscriptions:
        await received(subscriptions, list(range(4)))
    async with place.connect() as connection, many(connection, topic) as subscriptions:
        assert readers(topic) <= OWN_FETCHERS + 1
        place.publish(topic, range(4, 8))
        await received(subscriptions, list(range(4, 8)))


async def test_a_slow_one_holds_up_no_other(place: Place) -> None:
    topic = place.topic()
    count = 600
    async with place.connect() as connection, many(connection, topic, window=10) as subscriptions:
        await one_reader(topic)
        place.publish(topic, range(count))
        for subscription in reversed(subscriptions):  # the first one comes last
            found: list[int] = []
            while len(found) < count:
                delivery = await next_of(subscription)
                found.append(number(delivery))
                delivery.ack_nowait()
            assert sorted(found) == list(range(count))
        await one_reader(topic)


async def test_their_floors_are_mirrored_to_their_groups(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as connection, many(connection, topic) as subscriptions:
        await one_reader(topic)
        place.publish(topic, range(3))
        await received(subscriptions, [0, 1, 2])
        groups = [connection.key(f"s{at}").group for at in range(MANY)]
        with closing(Topics({"bootstrap.servers": place.stack.kafka})) as topics:
            await asyncio.to_thread(
                wait_until,
                lambda: all(topics.committed(group, topic, 1) == {0: 3} for group in groups),
                "the floors of all",
            )
        place.publish(topic, [3])
        await received(subscriptions, [3])
    with closing(Topics({"bootstrap.servers": place.stack.kafka})) as topics:
        assert all(topics.committed(group, topic, 1) == {0: 4} for group in groups), "the last ones, too"


async def test_each_is_told_that_the_topic_was_replaced(place: Place, kafkadur_admin: AdminClient) -> None:
    topic = place.topic(range(2))
    async with place.connect() as connection, many(connection, topic) as subscriptions:
        await received(subscriptions, [0, 1])
        await one_reader(topic)
        await asyncio.to_thread(make_anew, kafkadur_admin, topic)
        place.publish(topic, range(3))
        for at, subscription in enumerate(subscriptions):
            with pytest.raises(kafkadur.TopicChanged, match=f"c1/s{at} "):
                await asyncio.wait_for(anext(aiter(subscription)), LIMIT_S)


async def test_partitions_are_added(place: Place, kafkadur_admin: AdminClient) -> None:
    topic = place.topic(range(2))
    async with place.connect() as connection, many(connection, topic) as subscriptions:
        await received(subscriptions, [0, 1])
        await one_reader(topic)
        kafkadur_admin.create_partitions([NewPartitions(topic, 2)])[topic].result(LIMIT_S)
        await asyncio.to_thread(
            wait_until, lambda: takes_messages(kafkadur_admin, topic, 2), "two partitions"
        )
        # a producer from before knows of one partition
        replace(place, raw=ordered_producer(place.stack.kafka)).publish(topic, (2, 3, 4), partition=1)
        await received(subscriptions, [2, 3, 4])


async def test_all_are_recovered_after_a_loss_of_the_state(place: Place) -> None:
    """Each asks where the log ends, before anything is granted."""
    topic = place.topic(range(2))
    async with (
        place.connect(session_timeout=SESSION) as connection,
        many(connection, topic) as subscriptions,
    ):
        await received(subscriptions, [0, 1])
        for delivery in [await subscription.receive(timeout=0) for subscription in subscriptions]:
            assert delivery is None
        await one_reader(topic)
        await asyncio.to_thread(forget, place)
        place.publish(topic, [2, 3])
        for subscription in subscriptions:
            found: set[int] = set()
            while found < {2, 3}:
                delivery = await next_of(subscription)
                found |= set(numbers([delivery]))
                await delivery.ack()
