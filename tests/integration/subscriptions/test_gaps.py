"""Offsets without a record: markers, aborted transactions, compaction; and what open transactions delay."""

import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from kafkadur import Connection
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    ack_all,
    both_types,
    next_of,
    nothing,
    number,
    numbers,
    take,
    wait_until,
)


@pytest.fixture
def transactions(place: Place) -> Iterator[confluent_kafka.Producer]:
    """Provide a transactional producer, initialised."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": place.stack.kafka, "transactional.id": place.namespace, "linger.ms": 0}
    )
    producer.init_transactions(LIMIT_S)
    yield producer
    producer.purge()


def put(producer: confluent_kafka.Producer, topic: str, values: range, partition: int = 0) -> None:
    """Produce numbers and wait until Kafka has them."""
    for n in values:
        producer.produce(topic, str(n), partition=partition)
    assert producer.flush(LIMIT_S) == 0


def mirrored(admin: AdminClient, connection: Connection, topic: str) -> int:
    """The floor of partition 0 as ordinary lag tools see it."""
    group = connection.key("d").group
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    found = admin.list_consumer_group_offsets([request])[group].result(LIMIT_S).topic_partitions
    assert found
    return int(found[0].offset)


@both_types
async def test_markers_and_aborted_transactions_are_gaps(
    place: Place, kind: TypeName, transactions: confluent_kafka.Producer, kafkadur_admin: AdminClient
) -> None:
    topic = place.topic()
    for start in range(0, 60, 10):
        transactions.begin_transaction()
        put(transactions, topic, range(start, start + 10))
        if start % 20:
            transactions.abort_transaction(LIMIT_S)
        else:
            transactions.commit_transaction(LIMIT_S)
    expected = [n for n in range(60) if n // 10 % 2 == 0]
    end = 60 + 6
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest"
        ) as subscription:
            deliveries = await take(subscription, 30)
            assert numbers(deliveries) == expected
            await ack_all(deliveries)
            await nothing(subscription)
            # The markers and the aborted records at the end are settled too.
            wait_until(
                lambda: mirrored(kafkadur_admin, connection, topic) == end, f"the floor at {end}, the end"
            )
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            await nothing(subscription)
            place.publish(topic, [100])
            assert number(await next_of(subscription)) == 100


@both_types
async def test_a_gap_of_many_windows_takes_no_time_of_its_own(
    place: Place, kind: TypeName, transactions: confluent_kafka.Producer
) -> None:
    """While nothing can be dispatched, each grant of gaps is settled at once, not with the next heartbeat."""
    topic = place.topic()
    for values, ends in ((range(1), True), (range(1, 400), False), (range(400, 401), True)):
        transactions.begin_transaction()
        put(transactions, topic, values)
        (transactions.commit_transaction if ends else transactions.abort_transaction)(LIMIT_S)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest", window=2) as subscription,
    ):
        await (await next_of(subscription)).ack()
        assert number(await next_of(subscription)) == 400


@both_types
async def test_redelivery_among_gaps(
    place: Place, kind: TypeName, transactions: confluent_kafka.Producer
) -> None:
    """Every transaction holds one record: half of all offsets are markers."""
    topic = place.topic()
    for n in range(20):
        transactions.begin_transaction()
        put(transactions, topic, range(n, n + 1))
        transactions.commit_transaction(LIMIT_S)
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest"
        ) as subscription:
            held = await take(subscription, 20)
            assert [d.offset for d in held] == list(range(0, 40, 2))
            for delivery in held[::2]:
                await delivery.ack()
            for delivery in held[1:10:2]:
                await delivery.rollback()
            again = await take(subscription, 5)
            assert [(number(d), d.attempt) for d in again] == [(n, 2) for n in range(1, 10, 2)]
            await ack_all(again)
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            rest = await take(subscription, 5)
            assert [(number(d), d.attempt) for d in rest] == [(n, 1) for n in range(11, 20, 2)]
            await ack_all(rest)
            await nothing(subscription)


@both_types
async def test_open_transaction_holds_delivery_back(
    place: Place, kind: TypeName, transactions: confluent_kafka.Producer
) -> None:
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        await (await next_of(subscription)).ack()
        transactions.begin_transaction()
        put(transactions, topic, range(2, 4))
        place.publish(topic, [4])  # committed by itself, but behind the open transaction
        await nothing(subscription)
        transactions.commit_transaction(LIMIT_S)
        held = await take(subscription, 3)
        assert numbers(held) == [2, 3, 4]
        await ack_all(held)
        transactions.begin_transaction()
        put(transactions, topic, range(5, 7))
        place.publish(topic, [7])
        await nothing(subscription)
        transactions.abort_transaction(LIMIT_S)
        assert number(await next_of(subscription)) == 7


@both_types
async def test_created_while_a_transaction_is_open_loses_nothing_of_it(
    place: Place, kind: TypeName, transactions: confluent_kafka.Producer
) -> None:
    """`latest` is the end of what can be read: what is committed later is later."""
    topic = place.topic([1])
    transactions.begin_transaction()
    put(transactions, topic, range(2, 4))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind) as subscription,
    ):
        transactions.commit_transaction(LIMIT_S)
        assert numbers(await take(subscription, 2)) == [2, 3]


@pytest.mark.long
@both_types
async def test_compacted_topic(place: Place, kind: TypeName) -> None:
    topic = place.topic(
        cleanup_policy="compact",
        segment_ms=100,
        min_cleanable_dirty_ratio=0.001,
        max_compaction_lag_ms=1,
        min_compaction_lag_ms=0,
    )
    for n in range(200):
        place.raw.produce(topic, str(n), key=str(n % 20))
        if n % 40 == 39:
            assert place.raw.flush(LIMIT_S) == 0
    _wait_for_compaction(place, topic)
    expected = {str(key).encode(): str(180 + key).encode() for key in range(20)}
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest"
        ) as subscription:
            latest: dict[bytes | None, bytes | None] = {}
            offsets: list[int] = []
            while not expected.items() <= latest.items():
                delivery = await next_of(subscription)
                latest[delivery.key] = delivery.value
                offsets.append(delivery.offset)
                await delivery.ack()
            assert offsets == sorted(set(offsets))
            assert len(offsets) < 200
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            while (later := await subscription.receive(timeout=0.5)) is not None:
                assert later.offset > offsets[-1]


def _wait_for_compaction(place: Place, topic: str) -> None:
    """Go on writing, which closes segments, until records are missing."""
    deadline = time.monotonic() + 120
    while True:
        place.raw.produce(topic, b"x", key=b"more")
        assert place.raw.flush(LIMIT_S) == 0
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": place.stack.kafka,
                "group.id": place.namespace,
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        offsets: list[int] = []
        while True:
            message = consumer.poll(LIMIT_S)
            assert message is not None
            if message.error() is not None:
                break
            offsets.append(message.offset() or 0)
        consumer.close()
        if len(offsets) < offsets[-1]:
            return
        assert time.monotonic() < deadline, "nothing was compacted"
        time.sleep(0.2)  # polls for a condition, with a deadline
