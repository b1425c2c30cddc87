"""Following a partition or reading ranges of it: what a member does is shown in its statistics."""

import asyncio
import time
from typing import Any

import pytest

import kafkadur
from kafkadur.fetch import tail_fetcher
from tests.integration.subscriptions.helpers import LIMIT_S, Place, tail_of, wait_until

COUNT = 40_000


async def all_of(place: Place, members: int, window: int) -> list[kafkadur.Subscription]:
    """Members of one subscription that have received all messages of a partition, each exactly once."""
    topic = place.topic()
    seen: list[int] = []
    async with place.connect() as connection:
        subscriptions = [
            await connection.subscribe(topic, durable="d", window=window, start="earliest")
            for _ in range(members)
        ]

        async def work(subscription: kafkadur.Subscription) -> None:
            async for delivery in subscription:
                seen.append(delivery.offset)
                delivery.ack_nowait()

        tasks = [asyncio.create_task(work(subscription)) for subscription in subscriptions]
        await asyncio.to_thread(place.publish_values, topic, [b"x" * 100] * COUNT)
        await asyncio.to_thread(wait_until, lambda: len(seen) >= COUNT, "all messages")
        for subscription in subscriptions:
            subscription.stop()
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*tasks)
        assert sorted(seen) == list(range(COUNT))
        return subscriptions


async def test_many_members_of_one_partition_do_not_all_read_it(place: Place) -> None:
    """Each uses a sixteenth: most of them read what they are granted, and no message is missed by that."""
    statistics = [s.statistics() for s in await all_of(place, 16, 200)]
    # what is given back, as its member was short of time, is used by another one, too
    assert COUNT <= sum(each["records_used"] for each in statistics) < COUNT * 1.1
    assert sum(each["records_read"] for each in statistics) < 16 * COUNT * 3 // 4
    assert sum(each["ranges_read"] for each in statistics) > 50


async def test_few_members_of_one_partition_follow_it(place: Place) -> None:
    statistics = [s.statistics() for s in await all_of(place, 3, 200)]
    # a range is read where a promise was given back after others had come past it: a few, at the live end
    assert sum(each["ranges_read"] for each in statistics) < 400
    # each reads all; who was still beginning when the first ones were handed out needs those no more
    assert 3 * COUNT - 2_000 < sum(each["records_read"] for each in statistics) < 3 * COUNT + 10_000


async def test_a_reader_rests_while_the_member_has_records_enough(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = place.topic()
    await asyncio.to_thread(place.publish_values, topic, [b"x" * 10] * COUNT)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", window=100, start="earliest") as subscription,
    ):
        tail = tail_of(connection, subscription)
        # a window of them is granted already
        await asyncio.to_thread(
            wait_until, lambda: subscription.statistics()["buffered"] >= 10_000 - 100, "records enough"
        )
        step, steps = tail._step, 0  # noqa: SLF001 - nothing else shows how often it looks

        def counted() -> Any:
            nonlocal steps
            steps += 1
            return step()

        monkeypatch.setattr(tail, "_step", counted)
        began = time.monotonic()
        await asyncio.to_thread(wait_until, lambda: steps >= 10, "ten looks for room")
        assert time.monotonic() - began > 1.0, "it looks every 0.2 s"


async def test_a_reader_is_told_of_room(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads on as soon as records were dispatched, and not only when it looks by itself."""
    monkeypatch.setattr(tail_fetcher, "_FOR_ROOM", 10 * LIMIT_S)
    (subscription,) = await all_of(place, 1, 200)
    assert subscription.statistics()["records_used"] == COUNT
