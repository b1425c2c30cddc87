"""The table of windows, for the types that are there: W1-W3b, W6-W8, and the window by count and bytes (I7).

The rows of serial and priority (W4, W5, W9) come with those types; W10 is in test_verdicts.py.
"""

import asyncio
import random

import pytest

from kafkadur import SubscriptionActive
from kafkadur.consumer.policy.fairness import IN_A_ROW
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    Place,
    ack_all,
    both_types,
    next_of,
    nothing,
    number,
    numbers,
    speaks,
    take,
)


async def test_w1_window_1_on_a_lane(place: Place) -> None:
    topic = place.topic(range(1, 7))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="exclusive", window=1, start="earliest"
        ) as subscription,
    ):
        seen: list[int] = []
        for _ in range(4):
            delivery = await next_of(subscription)
            seen.append(number(delivery))
            await delivery.ack()
        fifth = await next_of(subscription)
        await nothing(subscription)  # one in flight
        await fifth.rollback()
        again = await next_of(subscription)
        await nothing(subscription)  # e6 only after 5' is acknowledged
        seen += [number(fifth), number(again)]
        assert (again.attempt, again.redelivered) == (2, True)
        await again.ack()
        seen.append(number(await next_of(subscription)))
        assert seen == [1, 2, 3, 4, 5, 5, 6]


async def test_w2_rollback_behind_what_was_sent(place: Place) -> None:
    topic = place.topic(range(1, 7))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="exclusive", window=6, start="earliest"
        ) as subscription,
    ):
        sent = await take(subscription, 6)
        await ack_all(sent[:4])
        await sent[4].rollback()
        await sent[5].ack()
        again = await next_of(subscription)
        assert numbers([*sent, again]) == [1, 2, 3, 4, 5, 6, 5]
        await again.ack()
        await nothing(subscription)


async def test_w2b_rolled_back_comes_before_what_was_not_sent(place: Place) -> None:
    topic = place.topic(range(1, 6))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="exclusive", window=6, start="earliest"
        ) as subscription,
    ):
        sent = await take(subscription, 5)
        await ack_all(sent[:4])
        sent[4].rollback_nowait()
        place.publish(topic, [6])
        assert numbers(await take(subscription, 2)) == [5, 6]


@both_types
async def test_w3_acks_in_any_order(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 5))
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, window=6, start="earliest"
        ) as subscription:
            sent = await take(subscription, 4)
            for index in (3, 0, 2, 1):
                await sent[index].ack()
        async with await connection.subscribe(topic, durable="d", type=kind, window=6) as subscription:
            await nothing(subscription)


@both_types
async def test_w3b_only_the_unacknowledged_come_again(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 5))
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, window=6, start="earliest"
        ) as subscription:
            sent = await take(subscription, 4)
            await sent[3].ack()
        async with await connection.subscribe(topic, durable="d", type=kind, window=6) as subscription:
            assert numbers(await take(subscription, 3)) == [1, 2, 3]
            await nothing(subscription)


async def test_w6_windows_of_two_members_side_by_side(place: Place) -> None:
    window = 5
    topic = place.topic(range(1, 2 * window + 1))
    async with place.connect() as first, place.connect() as second:
        one = await first.subscribe(topic, durable="d", type="shared", window=window, start="earliest")
        held = await take(one, window)
        two = await second.subscribe(topic, durable="d", type="shared", window=window)
        others = await take(two, window)  # while the first member holds its window
        await ack_all(others)
        await ack_all(held)
        assert numbers(held) == list(range(1, window + 1))
        assert numbers(others) == list(range(window + 1, 2 * window + 1))
        await asyncio.gather(nothing(one), nothing(two))


async def test_w7_second_exclusive_subscriber_is_refused(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as first,
        place.connect() as second,
        await first.subscribe(topic, durable="d", type="exclusive", name="the-holder"),
    ):
        with pytest.raises(SubscriptionActive) as caught:
            await second.subscribe(topic, durable="d", type="exclusive")
        assert caught.value.holder == "the-holder"
        speaks(caught.value, "the-holder")


async def test_w8_next_subscriber_starts_at_the_first_unsettled(place: Place) -> None:
    topic = place.topic(range(1, 7))
    async with place.connect() as first, place.connect() as second:
        async with await first.subscribe(
            topic, durable="d", type="exclusive", window=1, start="earliest"
        ) as subscription:
            for _ in range(2):
                await (await next_of(subscription)).ack()
            assert number(await next_of(subscription)) == 3
        async with await second.subscribe(topic, durable="d", type="exclusive", window=1) as subscription:
            seen: list[int] = []
            for _ in range(4):
                delivery = await next_of(subscription)
                seen.append(number(delivery))
                assert delivery.attempt == 1
                await delivery.ack()
            assert seen == [3, 4, 5, 6]


@both_types
@pytest.mark.parametrize("window", [1, 3, 10])
async def test_i7_window_by_count(place: Place, kind: TypeName, window: int) -> None:
    total = 3 * window + 5
    topic = place.topic(range(1, total + 1))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, window=window, start="earliest"
        ) as subscription,
    ):
        held = await take(subscription, window)
        await nothing(subscription)
        seen = numbers(held)
        # Each verdict makes room for exactly one more.
        while len(seen) < total:
            await held.pop(0).ack()
            held.append(await next_of(subscription))
            seen.append(number(held[-1]))
            assert subscription.statistics()["in_hands"] <= window
        assert seen == list(range(1, total + 1))
        await nothing(subscription)


@both_types
async def test_i7_window_by_count_in_batches(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 21))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, window=8, start="earliest") as subscription,
    ):
        held = 0
        while held < 8:
            batch = await subscription.receive_batch(100, timeout=20)
            assert batch is not None
            held += len(batch)
        assert held == 8
        assert await subscription.receive_batch(100, timeout=0.3) is None


@both_types
async def test_i7_window_by_bytes(place: Place, kind: TypeName) -> None:
    topic = place.topic()
    place.publish_values(topic, [bytes([65 + index]) * 4_000 for index in range(6)])
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, window_bytes=10_000, start="earliest"
        ) as subscription,
    ):
        seen = b""
        for _ in range(3):
            held = await take(subscription, 2)
            await nothing(subscription)
            seen += b"".join((delivery.value or b"")[:1] for delivery in held)
            await ack_all(held)
        assert seen == b"ABCDEF"


@both_types
async def test_i7_message_larger_than_the_window_is_alone(place: Place, kind: TypeName) -> None:
    topic = place.topic()
    place.publish_values(topic, [b"a" * 100, b"b" * 100, b"C" * 50_000, b"d" * 100, b"e" * 100])
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, window_bytes=10_000, start="earliest"
        ) as subscription,
    ):
        first = await take(subscription, 2)
        await nothing(subscription)
        await ack_all(first)
        large = await next_of(subscription)
        assert len(large.value or b"") == 50_000
        await nothing(subscription)
        await large.ack()
        assert [delivery.value for delivery in await take(subscription, 2)] == [b"d" * 100, b"e" * 100]


@both_types
async def test_i7_window_by_bytes_with_messages_of_all_sizes(place: Place, kind: TypeName) -> None:
    rng = random.Random(7)
    limit, count = 20_000, 120
    sizes = [rng.choice((1, 50, 300, 2_000, 2_400, 9_000, 30_000)) for _ in range(count)]
    topic = place.topic()
    place.publish_values(topic, [b"x" * size for size in sizes])
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, window_bytes=limit, start="earliest"
        ) as subscription,
    ):
        seen: list[int] = []
        most = 0
        while len(seen) < count:
            held = [await next_of(subscription)]
            while (delivery := await subscription.receive(timeout=0.05)) is not None:
                held.append(delivery)
            here = [len(delivery.value or b"") for delivery in held]
            if len(here) > 1:
                most = max(most, sum(here))
            seen += here
            await ack_all(held)
        assert seen == sizes
        assert most <= limit


async def test_what_comes_one_by_one_fills_a_window_of_a_hundred(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", window=100, start="earliest") as subscription,
    ):
        for n in range(100):
            place.publish(topic, [n])
            delivery = await subscription.receive(timeout=5)
            assert delivery is not None, (n, subscription.statistics())
            assert number(delivery) == n


async def test_a_long_backlog_of_one_partition_does_not_keep_the_others_waiting(place: Place) -> None:
    """One member, each message acknowledged at once: what was served last would always be served next."""
    window, few = 50, 100
    topic = place.topic(range(1, 3 * IN_A_ROW), partitions=3)
    for partition in (1, 2):
        place.publish(topic, range(few), partition=partition)
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="shared", window=window, start="earliest"
        ) as subscription,
    ):
        left = {1: few, 2: few}
        received = 0
        while any(left.values()):
            delivery = await next_of(subscription)
            await delivery.ack()
            received += 1
            if delivery.partition:
                left[delivery.partition] -= 1
        assert received <= 2 * few + IN_A_ROW + 2 * window
