"""Selectors and noLocal on a subscription: what is delivered, what is settled as filtered, at what cost."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta

import pytest

import kafkadur
from kafkadur import InvalidSelector
from kafkadur.message.headers import Property
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    PRIORITY_TOO,
    Place,
    ack_all,
    next_of,
    nothing,
    number,
    numbers,
    ready,
    speaks,
    take,
    wait_until,
)

TYPES = ("shared", "exclusive", PRIORITY_TOO, "serial")
each_type = pytest.mark.parametrize("kind", TYPES)


def publish(
    connection: kafkadur.Connection, topic: str, messages: Iterable[tuple[int, Mapping[str, Property]]]
) -> None:
    """Publish numbers with properties."""
    with connection.producer() as producer:
        for value, properties in messages:
            producer.publish(topic, str(value).encode(), properties=properties)


async def settled_up_to(subscription: kafkadur.Subscription, offset: int) -> None:
    """Wait until the floor of partition 0 is there."""

    def there() -> bool:
        return subscription._member.intake.floors().get(0) == offset  # noqa: SLF001 - there is no public way yet

    await asyncio.to_thread(wait_until, there, f"a floor of {offset}")


@each_type
async def test_only_what_matches_is_delivered_and_the_rest_is_settled(place: Place, kind: TypeName) -> None:
    topic = place.make_topic(1)
    async with place.connect() as connection:
        subscription = await connection.subscribe(
            topic, durable="d", type=kind, selector="amount > 100 AND region = 'EU'", start="earliest"
        )
        colors = ("EU", "US")
        publish(connection, topic, ((n, {"amount": n, "region": colors[n % 2]}) for n in range(90, 130)))
        expected = list(range(102, 130, 2))
        deliveries = await take(subscription, len(expected))
        assert numbers(deliveries) == expected
        assert deliveries[0].properties == {"amount": 102, "region": "EU"}
        await ack_all(deliveries)
        await settled_up_to(subscription, 40)
        await nothing(subscription)
        await subscription.close()


@each_type
async def test_jms_fields_can_be_selected(place: Place, kind: TypeName) -> None:
    topic = place.make_topic(1)
    async with place.connect() as connection, connection.producer() as producer:
        producer.publish(topic, b"1", type="note", priority=3)
        producer.publish(topic, b"2", type="order", priority=8)
        producer.publish(topic, b"3", type="order", priority=2)
        producer.publish(topic, b"4", type="order", correlation_id="c-7")
        producer.flush()
        async with await connection.subscribe(
            topic,
            durable="d",
            type=kind,
            selector="JMSType = 'order' AND (JMSPriority > 4 OR JMSCorrelationID LIKE 'c-%')",
            start="earliest",
        ) as subscription:
            assert numbers(await take(subscription, 2)) == [2, 4]


async def test_a_wrong_selector_creates_nothing(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        with pytest.raises(InvalidSelector) as caught:
            await connection.subscribe(topic, durable="d", selector="a = 1 AMD b = 2")
        assert caught.value.position == 6
        assert await connection.known("d") is None


@each_type
async def test_u4_s3_another_selector_replaces(place: Place, kind: TypeName) -> None:
    topic = place.make_topic(1)
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, selector="a = 1", start="earliest"
        ):
            publish(connection, topic, [(1, {"a": 1}), (2, {"a": 2})])
        async with await connection.subscribe(
            topic, durable="d", type=kind, selector="a = 2", on_change="replace"
        ) as subscription:
            publish(connection, topic, [(3, {"a": 1}), (4, {"a": 2})])
            assert number(await next_of(subscription)) == 4


@each_type
async def test_a_rolled_back_match_comes_again(place: Place, kind: TypeName) -> None:
    topic = place.make_topic(1)
    async with place.connect() as connection:
        publish(connection, topic, ((n, {"even": n % 2 == 0}) for n in range(1, 9)))
        async with await connection.subscribe(
            topic, durable="d", type=kind, selector="even", start="earliest", window=2
        ) as subscription:
            first, second = await take(subscription, 2)
            assert numbers([first, second]) == [2, 4]
            await first.rollback()
            await second.ack()
            rest: list[tuple[int, int]] = []
            for _ in range(3):
                delivery = await next_of(subscription)
                rest.append((number(delivery), delivery.attempt))
                await delivery.ack()
            if kind == "shared":  # it promises no order
                rest.sort()
            assert rest == [(2, 2), (6, 1), (8, 1)]


@each_type
async def test_a_rare_match_costs_no_exchange_a_message(place: Place, kind: TypeName) -> None:
    """One match in 10,000 records: the floor moves on, in few exchanges."""
    count, every = 100_000, 10_000
    topic = place.make_topic(1)
    for n in range(1, count + 1):
        place.raw.produce(topic, str(n), headers={"rare": b"yes" if n % every == 0 else b"no"})
        if n % 10_000 == 0:
            place.raw.flush(LIMIT_S)
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, selector="rare = 'yes'", start="earliest", window=10
        ) as subscription,
    ):
        deliveries = []
        for _ in range(count // every):
            delivery = await next_of(subscription)
            await delivery.ack()
            deliveries.append(delivery)
        assert numbers(deliveries) == list(range(every, count + 1, every))
        await settled_up_to(subscription, count)
        assert subscription.statistics()["exchanges"] < 200


@pytest.mark.parametrize("count", [1, 2])
async def test_selectors_of_shared_members_split_the_matches(place: Place, count: int) -> None:
    """What is not taken is settled at once, and makes room: nothing waits until a session is renewed."""
    topic = place.make_topic(2)
    async with place.connect(session_timeout=timedelta(minutes=2)) as connection:
        members = [
            await connection.subscribe(topic, durable="d", selector="keep", window=1, start="earliest")
            for _ in range(count)
        ]
        await ready(connection, "d", count)
        with connection.producer() as producer:
            for n in range(200):
                producer.publish(topic, str(n).encode(), key=str(n).encode(), properties={"keep": n % 5 == 0})
        seen: list[int] = []

        async def work(member: kafkadur.Subscription) -> None:
            while len(seen) < 40:
                delivery = await member.receive(timeout=0.05)
                if delivery is not None:
                    seen.append(number(delivery))
                    await delivery.ack()

        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*map(work, members))
        assert sorted(seen) == list(range(0, 200, 5))
        await asyncio.gather(*map(nothing, members))


async def test_u7_no_local_leaves_out_the_own_client_id(place: Place) -> None:
    topic = place.make_topic(1)
    async with place.connect(client_id="me") as mine, place.connect(client_id="you") as yours:
        subscription = await mine.subscribe(topic, durable="d", type="exclusive", no_local=True)
        async with place.connect(client_id="me", client_id_policy="unrestricted") as also_mine:
            publish(mine, topic, [(1, {})])
            publish(also_mine, topic, [(2, {})])
        publish(yours, topic, [(3, {})])
        place.publish(topic, [4])
        assert numbers(await take(subscription, 2)) == [3, 4]


async def test_d4_a_shared_subscription_has_no_no_local(place: Place) -> None:
    topic = place.make_topic(1)
    async with place.connect() as connection:
        with pytest.raises(kafkadur.IllegalState, match="the type shared has no no_local") as refused:
            await connection.subscribe(topic, durable="d", type="shared", no_local=True)
        speaks(refused.value, "type='exclusive'")
        assert await connection.known("d") is None
