"""A window that changes while the consumer is attached, and the certainty that no message waits."""

import asyncio

import pytest

import kafkadur
from kafkadur import IllegalState, Subscription
from kafkadur_sharing.definition import SubscriptionType
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    PRIORITY_TOO,
    SERIAL_TOO,
    SOON_S,
    TYPES,
    Place,
    nothing,
    number,
    numbers,
    take,
)

all_types = pytest.mark.parametrize(
    "kind", [*map(SubscriptionType, TYPES), SubscriptionType.KEY_ORDERED, PRIORITY_TOO, SERIAL_TOO]
)


async def available(subscription: Subscription, most: int = 1_000) -> list[int]:
    """Receive and acknowledge until it is certain that nothing waits; returns the numbers."""
    seen: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        while (batch := await subscription.receive_available(most)) is not None:
            seen += [int(value or 0) for value in batch.values()]
            batch.ack_nowait()
            await subscription.flush()
    return seen


@all_types
async def test_all_that_waits_is_received_and_then_it_is_certain_that_nothing_does(
    place: Place, kind: SubscriptionType
) -> None:
    topic = place.topic(range(1, 101), partitions=3)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        assert sorted(await available(subscription)) == list(range(1, 101))
        assert await available(subscription) == []
        for round_ in range(1, 6):  # a message that Kafka has confirmed is never missed
            numbers_now = range(1000 * round_, 1000 * round_ + 3)
            place.publish(topic, numbers_now, partition=round_ % 3)
            assert sorted(await available(subscription)) == list(numbers_now)


async def test_messages_of_another_consumer_and_delayed_ones_do_not_wait(place: Place) -> None:
    topic = place.topic(range(1, 11))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", window=10) as first,
    ):
        held = await take(first, 10)
        async with await connection.subscribe(topic, durable="d") as second:
            assert await available(second) == []
            held[0].rollback_nowait(delay=3600)
            await first.flush()
            assert await available(second) == []
            first.set_window(0)
            held[1].rollback_nowait()
            await first.flush()
            assert await available(second) == [number(held[1])]


async def test_a_member_that_stands_by_knows_that_nothing_is_for_it(place: Place) -> None:
    topic = place.topic(range(1, 11))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="priority", start="earliest") as first,
        await connection.subscribe(topic, durable="d", type="priority") as second,
    ):
        await take(first, 1)
        assert await available(second) == []


async def test_waiting_for_certainty_ends_with_the_timeout_and_with_stop(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d") as subscription,
    ):
        assert await subscription.receive_available(timeout=0) is None
        subscription.stop()
        assert await subscription.receive_available() is None


async def test_the_window_grows_and_shrinks(place: Place) -> None:
    topic = place.topic(range(1, 101))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", window=5) as subscription,
    ):
        first = await take(subscription, 5)
        await nothing(subscription)
        subscription.set_window(8)
        more = await take(subscription, 3)
        await nothing(subscription)
        subscription.set_window(2)
        for delivery in (*first, *more[:1]):
            await delivery.ack()
        await nothing(subscription)  # two are in flight
        await more[1].ack()
        assert numbers(await take(subscription, 1)) == [9]


async def test_without_a_window_a_consumer_leaves_everything_to_others(place: Place) -> None:
    topic = place.topic(range(1, 101))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", window=50) as first,
        await connection.subscribe(topic, durable="d", window=100) as second,
    ):
        await take(first, 1)
        first.set_window(0)
        async with asyncio.timeout(SOON_S):
            assert len({number(each) for each in await take(second, 99)}) == 99
        await nothing(first)
        first.set_window(50)
        place.publish(topic, [200])
        assert numbers(await take(first, 1)) == [200]


async def test_a_window_of_one_cannot_change(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", window=1) as subscription,
    ):
        with pytest.raises(IllegalState, match="subscribe with a larger window"):
            subscription.set_window(10)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d") as subscription,
    ):
        with pytest.raises(IllegalState):
            subscription.set_window(-1)


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_the_window_of_a_lane_becomes_one(place: Place, kind: SubscriptionType) -> None:
    topic = place.topic(range(1, 11))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest", window=4) as subscription,
    ):
        subscription.set_window(1)
        for expected in range(1, 11):
            (delivery,) = await take(subscription, 1)
            assert number(delivery) == expected
            await nothing(subscription)
            await delivery.ack()


async def test_connections_of_several_clients_share_threads(place: Place) -> None:
    topic = place.topic()
    restricted = {"client_id_policy": "restricted"}
    async with place.connect(client_id=None, **restricted) as host:
        one, two = await host.for_client("a"), await host.for_client("b")
        async with (
            await one.subscribe(topic, durable="d") as first,
            await two.subscribe(topic, durable="d", type="exclusive") as second,
        ):
            place.publish(topic, [1])
            assert (numbers(await take(first, 1)), numbers(await take(second, 1))) == ([1], [1])
            with pytest.raises(kafkadur.InvalidClientId):
                await host.for_client("a")
        await one.close()
        again = await host.for_client("a")
        assert again.id != one.id
        await again.close()
        await two.close()


async def test_a_client_id_that_is_taken_away_ends_its_connection_only(place: Place) -> None:
    topic = place.topic()
    async with place.connect(client_id=None, client_id_policy="restricted") as host:
        one, two = await host.for_client("a"), await host.for_client("b")
        async with (
            await one.subscribe(topic, durable="d") as first,
            await two.subscribe(topic, durable="d") as second,
        ):
            one._displaced(kafkadur.InvalidClientId("another one has it"))  # noqa: SLF001 - as its keeper does
            with pytest.raises(kafkadur.InvalidClientId):
                await first.receive(SOON_S)
            with pytest.raises(kafkadur.InvalidClientId):
                await one.subscribe(topic, durable="e")
            place.publish(topic, [1])
            assert numbers(await take(second, 1)) == [1]
        await one.close()
        await two.close()
