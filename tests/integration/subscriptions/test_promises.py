"""What is promised to members of a shared subscription comes without a question; nothing hangs on it."""

import asyncio
from collections import Counter

import confluent_kafka

import kafkadur
from kafkadur.admin.changes import Admin
from kafkadur.consumer.reservations import MOST_ALONE
from kafkadur.settings import settings
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    next_of,
    number,
    numbers,
    promised,
    take,
    wait_until,
)


async def test_what_was_promised_comes_without_an_exchange(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        await promised(subscription, MOST_ALONE)
        before = subscription.statistics()["exchanges"]
        place.publish(topic, [1])
        assert number(await next_of(subscription)) == 1
        assert subscription.statistics()["exchanges"] == before


async def test_acknowledgements_that_nobody_waits_for_share_an_exchange(place: Place) -> None:
    """Also while the application waits for messages: they are confirmed within 50 ms."""
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", window=100) as subscription,
    ):
        await promised(subscription, MOST_ALONE)
        before = subscription.statistics()["exchanges"]
        for n in range(200):
            place.publish(topic, [n])
            delivery = await next_of(subscription)
            assert number(delivery) == n
            delivery.ack_nowait()
        assert subscription.statistics()["exchanges"] - before < 100
        assert await subscription.receive(timeout=0.0) is None
        with Admin(settings(place.settings())) as admin:
            key = admin.key("d")
            await asyncio.to_thread(wait_until, lambda: admin.info(key).backlog == 0, "the confirmation")


async def test_a_message_that_is_rolled_back_does_not_wait_for_others(place: Place) -> None:
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", window=100) as subscription,
    ):
        before = subscription.statistics()["exchanges"]
        for attempt in range(1, 20):
            delivery = await next_of(subscription)
            assert delivery.attempt == attempt
            delivery.rollback_nowait(delay=0)
        assert subscription.statistics()["exchanges"] - before >= 18


async def test_members_get_what_comes_in_turn(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        members = [await connection.subscribe(topic, durable="d", start="earliest") for _ in range(3)]
        for member in members:
            await promised(member, 4)
        # who came first was promised what lies side by side; from then on it is every third
        place.publish(topic, range(120))
        got = Counter[int]()

        async def work(me: int, subscription: kafkadur.Subscription) -> None:
            async for delivery in subscription:
                got[me] += 1
                await delivery.ack()

        tasks = [asyncio.create_task(work(me, member)) for me, member in enumerate(members)]
        await asyncio.to_thread(wait_until, lambda: got.total() == 120, "all messages")
        for member in members:
            member.stop()
        await asyncio.gather(*tasks)
        assert min(got.values()) >= 20, got
        for member in members:
            await member.close()


async def test_a_member_that_leaves_gives_its_promises_to_the_others(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as stays,
    ):
        async with await connection.subscribe(topic, durable="d") as leaves:
            await promised(leaves, 4)
        place.publish(topic, range(10))
        assert sorted(numbers(await take(stays, 10))) == list(range(10))


async def test_a_full_window_keeps_no_promises(place: Place) -> None:
    """With a window of one only what is in hands counts: what comes goes to who has room."""
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", window=1) as first,
        await connection.subscribe(topic, durable="d", window=1) as second,
    ):
        await promised(first, 1)
        await promised(second, 1)
        place.publish(topic, [1, 2])
        one, two = await asyncio.gather(next_of(first), next_of(second))
        assert {number(one), number(two)} == {1, 2}
        place.publish(topic, [3])
        assert await first.receive(timeout=0.2) is None
        assert [member.statistics()["promised"] for member in (first, second)] == [0, 0]
        await two.ack()
        assert number(await next_of(second)) == 3


async def test_markers_of_transactions_use_promises_up_and_hold_nothing_up(place: Place) -> None:
    topic = place.topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": place.stack.kafka, "transactional.id": topic})
    await asyncio.to_thread(producer.init_transactions, LIMIT_S)

    def publish(first: int) -> None:
        producer.begin_transaction()
        for n in range(first, first + 2):
            producer.produce(topic, str(n).encode())
        producer.commit_transaction(LIMIT_S)

    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        await promised(subscription, MOST_ALONE)
        for first in range(0, 20, 2):
            await asyncio.to_thread(publish, first)
            for delivery in await take(subscription, 2):
                assert number(delivery) in {first, first + 1}
                await delivery.ack()
        # how many are left depends on when the last exchange was made: it asks for more from half of them on
        await asyncio.to_thread(
            wait_until, lambda: subscription.statistics()["promised"] >= MOST_ALONE // 2, "promised again"
        )


async def test_what_is_promised_is_given_back_when_paused(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        await promised(subscription, MOST_ALONE)
        async with await connection.subscribe(topic, durable="d") as other:
            await promised(other, 4)
            subscription._member.rest()  # noqa: SLF001  # as an open circuit breaker does
            await promised(subscription, 0)
            place.publish(topic, range(8))
            assert sorted(numbers(await take(other, 8))) == list(range(8))
            subscription._member.wake_up()  # noqa: SLF001  # as above
            await promised(subscription, 4)
