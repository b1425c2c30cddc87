"""A broker that restarts under members that stay attached: delivery, dead letters and acknowledgements go on.

These tests restart the broker, so they have a stack of their own. A broker that shuts down in order may tell
clients that there are no brokers; one that then forgets where Kafka is must be made anew. By chance that
happens seldom: here clients are told not to look for Kafka again by themselves, so that it happens each time.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer

import kafkadur
from kafkadur.fetch import kafka_thread, tail_fetcher
from kafkadur.fetch.native import new_consumer
from kafkadur.fetch.reader_log import ReaderLog
from kafkadur.stack import Stack, embedded
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_coordinators.topics import Topics, mirror_floors
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    number,
    ordered_producer,
    place_on,
    ready,
    wait_until,
)

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
    """Provide a stack whose broker may be restarted, or silenced."""
    with embedded(users=True, proxy=True) as stack:
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


async def test_a_reader_that_only_asks_where_the_log_ends_finds_kafka_again(
    fragile: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a loss of Redis's state nothing is read before that is known, and the client has lost Kafka."""
    made: list[str] = []

    def lost_at_first(config: Mapping[str, Any], *, logger: ReaderLog, topic: str) -> Consumer:
        made.append(topic)
        lost = {"bootstrap.servers": "127.0.0.1:1"} if len(made) == 1 else {}
        return new_consumer({**config, **lost}, logger=logger, topic=topic)

    topic = fragile.topic(range(2))
    exclusive: Any = {"durable": "d", "type": "exclusive", "start": "earliest"}
    async with fragile.connect(session_timeout=timedelta(seconds=2)) as connection:
        await (await connection.subscribe(topic, **exclusive)).close()
    assert fragile.stack.valkey is not None
    fragile.stack.valkey.ask("FLUSHALL")
    monkeypatch.setattr(kafka_thread, "new_consumer", lost_at_first)
    monkeypatch.setattr(kafka_thread, "SILENT_S", 0.5)
    monkeypatch.setattr(tail_fetcher, "WATERMARKS", 0.5)
    async with (
        fragile.connect(session_timeout=timedelta(seconds=2)) as connection,
        await connection.subscribe(topic, **exclusive) as subscription,
    ):
        assert [number(await received(subscription)) for _ in range(2)] == [0, 1]
    assert made == [topic, topic]


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


async def test_closing_a_subscription_does_not_keep_others_waiting(
    fragile: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's client ends when its last commit is answered; the connection serves its other subscriptions."""
    mirrored: set[int] = set()

    def mirror(consumer: Consumer, topic: str, floors: Mapping[int, int], metadata: str) -> None:
        mirror_floors(consumer, topic, floors, metadata)
        mirrored.update(floors.values())

    monkeypatch.setattr(tail_fetcher, "mirror_floors", mirror)
    (proxy,) = fragile.stack.kafka_proxies
    topic = fragile.topic(range(2))
    async with (
        fragile.connect() as connection,
        fragile.connect() as observer,
        await connection.subscribe(topic, durable="b", start="earliest") as other,
    ):
        closed = await connection.subscribe(topic, durable="a", start="earliest")
        first, last, held = [await received(each) for each in (closed, closed, other)]
        with closing(Topics({"bootstrap.servers": fragile.stack.kafka})) as topics:
            await first.ack()
            group = connection.key("a").group
            await asyncio.to_thread(
                wait_until,
                lambda: topics.committed(group, topic, 1) == {0: 1},
                "the client knows its coordinator",
            )
        proxy.pause()
        try:
            await last.ack()
            await asyncio.to_thread(wait_until, lambda: 2 in mirrored, "a commit without an answer")
            leaving = asyncio.create_task(closed.close())
            await ready(observer, "a", 0)
            settling = asyncio.create_task(held.ack())
            done, _ = await asyncio.wait(
                {leaving, settling}, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            proxy.resume()
        assert done == {settling}, "served while the client waits for Kafka"
        await asyncio.wait_for(leaving, LIMIT_S)


@pytest.mark.parametrize("aborted", [False, True])
async def test_no_records_of_an_epoch_are_no_loss(
    fragile: Place, caplog: pytest.LogCaptureFixture, aborted: bool
) -> None:
    """A leader may have written nothing so far but markers of transactions, and records of aborted ones."""
    topic = fragile.topic(range(3))
    transacted = confluent_kafka.Producer(
        {"bootstrap.servers": fragile.stack.kafka, "transactional.id": topic}
    )
    await asyncio.to_thread(transacted.init_transactions, LIMIT_S)
    transacted.begin_transaction()
    if aborted:
        await restart(fragile.stack)
    transacted.produce(topic, b"3", partition=0)
    assert await asyncio.to_thread(transacted.flush, LIMIT_S) == 0
    if aborted:
        await asyncio.to_thread(transacted.abort_transaction, LIMIT_S)
    else:
        await restart(fragile.stack)
        await asyncio.to_thread(transacted.commit_transaction, LIMIT_S)
    async with (
        fragile.connect() as connection,
        await connection.subscribe(topic, durable="a", start="earliest") as subscription,
    ):
        for wanted in range(3 if aborted else 4):
            delivery = await received(subscription)
            assert number(delivery) == wanted
            await delivery.ack()
        await read_to(fragile, subscription, 5)
    caplog.clear()
    async with (
        fragile.connect() as connection,
        await connection.subscribe(topic, durable="a") as subscription,
    ):
        fragile.publish(topic, [5, 6])
        assert [number(await received(subscription)) for _ in range(2)] == [5, 6]
    assert "lost the end" not in caplog.text
    assert "delivers nothing" not in caplog.text


async def read_to(place: Place, subscription: kafkadur.Subscription, end: int) -> None:
    """Wait until the coordinator knows that the only partition can be read up to an offset."""
    known = subscription.definition
    with closing(RedisCoordinator(place.stack.redis)) as coordinator:

        def has_it() -> bool:
            (view,) = coordinator.inspect(known.address, known.id, known.topic.id, [0]).partitions
            return view.readable_end == end

        await asyncio.to_thread(wait_until, has_it, f"read up to {end}")


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
