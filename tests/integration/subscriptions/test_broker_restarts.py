"""A broker that restarts under members that stay attached: delivery, dead letters and acknowledgements go on.

These tests restart the broker, so they have a stack of their own. A broker that shuts down in order may tell
clients that there are no brokers; one that then forgets where Kafka is must be made anew. By chance that
happens seldom: here clients are told not to look for Kafka again by themselves, so that it happens each time.
"""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

import kafkadur
from kafkadur.stack import Stack, embedded
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, number, ordered_producer, place_on

#: Seconds after which a client that has lost Kafka must have been replaced: 5 of silence, and what it takes
#: to ask twice, for each of the clients that a delivery needs one after the other.
ON_S = 40.0
#: Clients that hear that there are no brokers do not look for them again.
FORGETFUL = {
    "metadata.recovery.strategy": "none",
    "topic.metadata.refresh.fast.interval.ms": 10,
    "retry.backoff.ms": 10,
}
PARTITIONS = 2


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    """Provide a stack whose broker may be restarted."""
    with embedded(users=True) as stack:
        yield stack


@pytest.fixture
def fragile(own_stack: Stack) -> Iterator[Place]:
    """Provide a place on it."""
    with place_on(own_stack) as place:
        yield place


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_all_goes_on_after_each_restart(fragile: Place, kind: TypeName) -> None:
    topic = fragile.topic(partitions=PARTITIONS)
    kafka = {"bootstrap.servers": fragile.stack.kafka, **FORGETFUL}
    async with (
        fragile.connect(kafka=kafka, session_timeout=timedelta(seconds=5)) as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        await use_all(fragile, subscription, topic, 0)
        for turn in (1, 2):
            await restart(fragile.stack)
            await asyncio.wait_for(use_all(fragile, subscription, topic, turn), ON_S)


@pytest.mark.long
async def test_a_producer_sends_on_after_each_restart(fragile: Place) -> None:
    topic = fragile.topic()
    async with fragile.connect() as connection:
        producer = connection.producer(FORGETFUL)
        await producer.send(topic, b"first")
        for turn in range(2):
            restarted = asyncio.create_task(restart(fragile.stack))
            failed = 0
            while not restarted.done():  # what is sent meanwhile is what makes the client look for leaders
                failed += await sent(producer, topic) is None
            await restarted
            deadline = time.monotonic() + ON_S
            while await sent(producer, topic) is None:
                assert time.monotonic() < deadline, f"restart {turn}, {failed} failed"


async def sent(producer: kafkadur.Producer, topic: str) -> kafkadur.Receipt | None:
    """Send a message; None if that failed, or took long."""
    receipt = producer.send(topic, b"message")
    try:
        return await asyncio.wait_for(receipt, 1)
    except (kafkadur.DeliveryFailed, TimeoutError):
        return None


async def restart(stack: Stack) -> None:
    """Shut the broker down in order and start it again."""
    (broker,) = stack.brokers
    await asyncio.to_thread(broker.stop)
    await asyncio.to_thread(broker.start)


async def use_all(place: Place, subscription: kafkadur.Subscription, topic: str, turn: int) -> None:
    """Have a message rolled back and delivered again, one rejected, and one settled in the journal."""
    send = ordered_producer(place.stack.kafka)
    for partition in range(PARTITIONS):
        send.produce(topic, str(turn * PARTITIONS + partition).encode(), partition=partition)
    assert await asyncio.to_thread(send.flush, LIMIT_S) == 0
    first, second = await received(subscription), await received(subscription)
    assert {number(first), number(second)} == set(range(turn * PARTITIONS, (turn + 1) * PARTITIONS))
    await second.rollback()
    again = await received(subscription)
    assert number(again) == number(second)
    await first.reject("to be a dead letter")
    await again.ack(level="journal")


async def received(subscription: kafkadur.Subscription) -> kafkadur.Delivery:
    """The next delivery, as long as it takes."""
    while (delivery := await subscription.receive(timeout=LIMIT_S)) is None:
        pass
    return delivery
