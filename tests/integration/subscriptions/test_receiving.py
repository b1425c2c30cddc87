"""Every way to receive, asynchronous and synchronous: one by one, iterating, in batches, by handlers."""

import asyncio
import threading
from datetime import timedelta

import pytest

import kafkadur
import kafkadur.sync
from kafkadur import ConnectionClosed
from kafkadur.message.headers import Property
from kafkadur_sharing.definition import SubscriptionType, TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    SILENCE_S,
    Place,
    ack_all,
    both_types,
    next_of,
    nothing,
    number,
    numbers,
    take,
)


@both_types
async def test_receive(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 11))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        deliveries = await take(subscription, 10)
        assert numbers(deliveries) == list(range(1, 11))
        assert [delivery.offset for delivery in deliveries] == list(range(10))
        assert {(delivery.topic, delivery.partition, delivery.attempt) for delivery in deliveries} == {
            (topic, 0, 1)
        }
        assert not any(delivery.redelivered or delivery.settled for delivery in deliveries)
        await ack_all(deliveries)
        assert all(delivery.settled for delivery in deliveries)
        assert await subscription.receive(timeout=timedelta(milliseconds=50)) is None
        assert await subscription.receive(timeout=0) is None


@both_types
async def test_iterate_until_stopped(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 51))
    seen: list[int] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        async for delivery in subscription:
            seen.append(number(delivery))
            delivery.ack_nowait()
            if len(seen) == 50:
                subscription.stop()
    assert seen == list(range(1, 51))


@both_types
async def test_receive_batch(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 101))
    async with place.connect() as connection:
        seen: list[bytes | None] = []
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest"
        ) as subscription:
            while len(seen) < 100:
                batch = await subscription.receive_batch(30, timeout=LIMIT_S)
                assert batch is not None
                assert 1 <= len(batch) <= 30
                assert [delivery.value for delivery in batch] == batch.values()
                assert batch[0].value == batch.values()[0]
                seen += batch.values()
                batch.ack_nowait()
        assert seen == [str(n).encode() for n in range(1, 101)]
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            await nothing(subscription)


@both_types
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_run_settles_by_outcome(place: Place, kind: TypeName, concurrency: int) -> None:
    topic = place.topic(range(1, 21))
    tries: list[tuple[int, int]] = []
    running = most = 0

    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):

        async def handle(delivery: kafkadur.Delivery) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)  # lets others in
            running -= 1
            tries.append((number(delivery), delivery.attempt))
            if number(delivery) % 7 == 0 and delivery.attempt == 1:
                message = "not yet"
                raise ValueError(message)
            if len({n for n, a in tries if n % 7 or a == 2}) == 20:
                subscription.stop()

        await asyncio.wait_for(
            subscription.run(handle, concurrency=concurrency, retry_delay=0.05), timeout=LIMIT_S
        )
    assert most <= concurrency
    assert sorted(tries) == sorted([(n, 1) for n in range(1, 21)] + [(7, 2), (14, 2)])


async def test_run_cancelled_releases_what_its_handlers_hold(place: Place) -> None:
    """Cancellation releases, uncounted: the message comes again to the open subscription."""
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        entered = asyncio.Event()

        async def handle(_: kafkadur.Delivery) -> None:
            entered.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(subscription.run(handle))
        await asyncio.wait_for(entered.wait(), LIMIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        delivery = await subscription.receive(timeout=3)
        assert delivery is not None, "what a cancelled handler held was not released"
        assert delivery.attempt == 1


@both_types
async def test_leaving_the_loop_releases_uncounted(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 9))
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, window=8, start="earliest"
        ) as subscription:
            async for delivery in subscription:
                if number(delivery) == 3:
                    break
                await delivery.ack()
        async with await connection.subscribe(topic, durable="d", type=kind, window=8) as subscription:
            rest = await take(subscription, 6)
            assert [(number(d), d.attempt) for d in rest] == [(n, 1) for n in range(3, 9)]
            assert rest[0].redelivered  # it was in the application's hands


@both_types
async def test_cancelled_task_releases_uncounted(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 4))
    async with place.connect() as connection:
        entered = asyncio.Event()

        async def consume() -> None:
            async with await connection.subscribe(
                topic, durable="d", type=kind, start="earliest"
            ) as subscription:
                async for _ in subscription:
                    entered.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(consume())
        await asyncio.wait_for(entered.wait(), LIMIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            rest = await take(subscription, 3)
            assert [(number(d), d.attempt) for d in rest] == [(1, 1), (2, 1), (3, 1)]


async def test_cancelled_receive_loses_nothing(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="shared") as subscription,
    ):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(subscription.receive(), 0.05)
        place.publish(topic, [1])
        assert number(await next_of(subscription)) == 1


async def test_receive_after_close_raises(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        subscription = await connection.subscribe(topic, durable="d", type="shared")
        await subscription.close()
        await subscription.close()
        with pytest.raises(ConnectionClosed):
            await subscription.receive()
    with pytest.raises(ConnectionClosed):
        await connection.subscribe(topic, durable="d", type="shared")


@both_types
async def test_properties_and_fields_arrive_typed(place: Place, kind: TypeName) -> None:
    topic = place.topic(retention_ms=-1)
    given: dict[str, Property] = {
        "text": "grüße",
        "empty": "",
        "int": -(2**63),
        "float": 0.1,
        "infinite": float("-inf"),
        "yes": True,
        "no": False,
        "nothing": None,
        "raw": b"\xff\x00",
        "digits": "17",
    }
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind) as subscription,
    ):
        receipt = await connection.producer().send(
            topic,
            b"1",
            key=b"k",
            properties=given,
            correlation_id="c",
            type="t",
            priority=7,
            delivery_mode="NON_PERSISTENT",
            timestamp=1_700_000_000_123,
        )
        delivery = await next_of(subscription)
        assert delivery.properties == given
        assert {name: type(value) for name, value in delivery.properties.items()} == {
            name: type(value) for name, value in given.items()
        }
        fields = delivery.fields
        assert fields.message_id == receipt.message_id
        assert (fields.correlation_id, fields.type, fields.priority) == ("c", "t", 7)
        assert (fields.client_id, fields.connection_id) == ("c1", connection.id)
        assert (delivery.key, delivery.timestamp, delivery.offset) == (
            b"k",
            1_700_000_000_123,
            receipt.offset,
        )
        await delivery.ack()


async def test_header_types_of_plain_producers(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="shared", header_types={"amount": "int"}
        ) as subscription,
    ):
        place.raw.produce(topic, b"1", headers=[("amount", b"17"), ("other", b"17"), ("other", b"18")])
        assert place.raw.flush(LIMIT_S) == 0
        delivery = await next_of(subscription)
        assert delivery.properties == {"amount": 17, "other": "18"}
        assert list(delivery.headers) == [("amount", b"17"), ("other", b"17"), ("other", b"18")]


async def test_tombstones_and_empty_values(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="shared") as subscription,
    ):
        producer = connection.producer()
        await producer.send(topic, None, key=b"k")
        await producer.send(topic, b"")
        deliveries = await take(subscription, 2)
        assert [(delivery.value, delivery.key) for delivery in deliveries] == [(None, b"k"), (b"", None)]


@both_types
async def test_more_partitions_than_one_exchange_touches(place: Place, kind: TypeName) -> None:
    partitions = 40
    topic = place.topic(partitions=partitions)
    expected: list[int] = []
    for partition in range(partitions):
        here = [partition * 10 + n for n in range(3)]
        place.publish(topic, here, partition=partition)
        expected += here
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest"
        ) as subscription:
            deliveries = await take(subscription, 3 * partitions)
            assert sorted(numbers(deliveries)) == expected
            for partition in range(partitions):
                assert [d.offset for d in deliveries if d.partition == partition] == [0, 1, 2]
            await ack_all(deliveries)
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            await nothing(subscription)


@both_types
async def test_rollback_on_many_partitions(place: Place, kind: TypeName) -> None:
    """What comes again is a lease of its own on each partition, beside its lane."""
    partitions = 70
    topic = place.topic(partitions=partitions)
    for partition in range(partitions):
        place.publish(topic, [partition], partition=partition)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        first: list[int] = []
        again: list[int] = []
        while len(again) < partitions:
            delivery = await subscription.receive(timeout=5)
            assert delivery is not None, (len(first), len(again), subscription.statistics())
            if delivery.attempt == 1:
                first.append(number(delivery))
                await delivery.rollback()
            else:
                again.append(number(delivery))
                await delivery.ack()
        assert sorted(first) == sorted(again) == list(range(partitions))


@both_types
def test_sync_receive_iterate_and_batch(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 31))
    with place.connect_sync() as connection:
        with connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription:
            first = subscription.receive(timeout=LIMIT_S)
            assert first is not None
            assert number(first) == 1
            first.ack()
            seen = [1]
            for delivery in subscription:
                seen.append(number(delivery))
                delivery.ack_nowait()
                if len(seen) == 10:
                    break
            while len(seen) < 30:
                batch = subscription.receive_batch(8, timeout=LIMIT_S)
                assert batch is not None
                seen += [int(value or b"0") for value in batch.values()]
                batch.ack_nowait()
            assert seen == list(range(1, 31))
            assert subscription.receive(timeout=0.05) is None
        with connection.subscribe(topic, durable="d", type=kind) as subscription:
            assert subscription.receive(timeout=0.3) is None


@both_types
@pytest.mark.parametrize("concurrency", [1, 4])
def test_sync_run_settles_by_outcome(place: Place, kind: TypeName, concurrency: int) -> None:
    topic = place.topic(range(1, 21))
    tries: list[tuple[int, int]] = []
    lock = threading.Lock()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):

        def handle(delivery: kafkadur.sync.Delivery) -> None:
            with lock:
                tries.append((number(delivery), delivery.attempt))
                done = len({n for n, a in tries if n % 7 or a == 2}) == 20
            if number(delivery) % 7 == 0 and delivery.attempt == 1:
                message = "not yet"
                raise ValueError(message)
            if done:
                subscription.stop()

        subscription.run(handle, concurrency=concurrency, retry_delay=0.05)
    assert sorted(tries) == sorted([(n, 1) for n in range(1, 21)] + [(7, 2), (14, 2)])


def test_sync_stop_from_another_thread_ends_the_iteration(place: Place) -> None:
    topic = place.topic([1])
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        seen: list[int] = []
        received = threading.Event()

        def consume() -> None:
            for delivery in subscription:
                seen.append(number(delivery))
                delivery.ack()
                received.set()

        thread = threading.Thread(target=consume)
        thread.start()
        assert received.wait(LIMIT_S)
        subscription.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert seen == [1]


@pytest.mark.parametrize("kind", ["priority", "serial"])
async def test_single_messages_and_batches_in_turn(place: Place, kind: TypeName) -> None:
    """On a lane that may pass both count as handed out one after the other."""
    topic = place.topic(range(1, 13))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, window=4, start="earliest") as subscription,
    ):
        got: list[int] = []
        while len(got) < 12:
            delivery = await next_of(subscription)
            got.append(number(delivery))
            delivery.ack_nowait()
            batch = await subscription.receive_batch(2, timeout=LIMIT_S if len(got) < 12 else SILENCE_S)
            if batch is not None:
                assert len(batch) > 0
                got += [int(value or b"0") for value in batch.values()]
                batch.ack_nowait()
        assert got == list(range(1, 13))


@pytest.mark.parametrize("kind", ["priority", "serial", "exclusive"])
async def test_window_counts_single_messages_and_batches(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 21))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic,
            durable="d",
            type=SubscriptionType(kind),
            window=4,
            start="earliest",
            strict_order=kind == "exclusive",
        ) as subscription,
    ):
        held = await take(subscription, 3)
        batch = await subscription.receive_batch(10, timeout=LIMIT_S)
        assert batch is not None
        assert [*numbers(held), *(int(value or b"0") for value in batch.values())] == [1, 2, 3, 4]
        assert await subscription.receive_batch(10, timeout=SILENCE_S) is None
