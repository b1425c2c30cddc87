"""Serial subscriptions whose partitions have a turn each (scope `partition`): W1-W5, in parallel."""

import asyncio
import time
from collections import defaultdict
from datetime import timedelta
from itertools import groupby

import pytest

import kafkadur
from kafkadur_sharing.definition import SubscriptionType
from kafkadur_sharing.errors import IllegalState
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    ack_all,
    next_of,
    nothing,
    number,
    ready,
    take,
)


async def subscribe(
    connection: kafkadur.Connection, topic: str, *, window: int = 1, strict: bool = False
) -> kafkadur.Subscription:
    return await connection.subscribe(
        topic,
        durable="d",
        type="serial",
        scope="partition",
        window=window,
        start="earliest",
        strict_order=strict,
    )


def two_partitions(place: Place, each: int) -> str:
    """Numbers below 1000 on partition 0, from 1000 on on partition 1."""
    topic = place.topic(range(each), partitions=2)
    place.publish(topic, range(1000, 1000 + each), partition=1)
    return topic


async def test_partitions_are_worked_on_in_parallel(place: Place) -> None:
    topic = two_partitions(place, 3)
    async with (
        place.connect() as connection,
        await subscribe(connection, topic) as first,
        await subscribe(connection, topic) as second,
    ):
        await ready(connection, "d", 2)
        one, two = await asyncio.gather(next_of(first), next_of(second))
        assert {number(one), number(two)} == {0, 1000}
        await asyncio.gather(
            nothing(first), nothing(second)
        )  # one in flight a partition, and the window is one


@pytest.mark.long
async def test_the_second_member_does_not_wait_for_a_renewal(place: Place) -> None:
    """A renewal comes after half a session, 5 s: whoever waits so long was forgotten."""
    for _ in range(30):
        topic = two_partitions(place, 1)
        async with (
            place.connect(namespace=topic) as connection,
            await subscribe(connection, topic) as first,
            await subscribe(connection, topic) as second,
        ):
            await ready(connection, "d", 2)
            began = time.monotonic()
            await asyncio.gather(next_of(first), next_of(second))
            assert time.monotonic() - began < 3, (first.statistics(), second.statistics())


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("window", [1, 5])
async def test_w4_each_partition_has_its_turns(place: Place, window: int, *, confirmed: bool) -> None:
    """Three members, two partitions: in order, one holder of each at a time, a window's worth a turn."""
    topic = two_partitions(place, 150)
    in_hands: dict[int, dict[int, int]] = {0: {}, 1: {}}
    seen: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    together = 0

    async def work(subscription: kafkadur.Subscription, me: int) -> None:
        nonlocal together
        deadline = time.monotonic() + LIMIT_S
        while sum(map(len, seen.values())) < 300:
            assert time.monotonic() < deadline, (seen, subscription.statistics())
            delivery = await subscription.receive(timeout=0.05)
            if delivery is None:
                continue
            partition, value = divmod(number(delivery), 1000)
            held = in_hands[partition]
            held[me] = held.get(me, 0) + 1
            assert [who for who, count in held.items() if count] == [me]
            together += all(any(others.values()) for others in in_hands.values())
            seen[partition].append((me, value))
            await asyncio.sleep(0.002)  # the work
            held[me] -= 1
            if confirmed:
                await delivery.ack()
            else:
                delivery.ack_nowait()

    async with (
        place.connect() as connection,
        await subscribe(connection, topic, window=window) as first,
        await subscribe(connection, topic, window=window) as second,
        await subscribe(connection, topic, window=window) as third,
    ):
        await ready(connection, "d", 3)
        await asyncio.gather(*(work(s, i) for i, s in enumerate((first, second, third))))
    assert together > 0, "both partitions were in hands at the same time"
    for turns in seen.values():
        assert [value for _, value in turns] == list(range(150))
        lengths = [len(list(turn)) for _, turn in groupby(who for who, _ in turns)]
        # in the first one nobody else may have been ready; later who has no room is passed over
        longer = [length for length in lengths[1:] if length > window]
        assert len(longer) <= len(lengths) // 5, lengths
        share = defaultdict[int, int](int)
        for who, _ in turns:
            share[who] += 1
        assert min(share.values()) > 15, share  # of 150: nobody is left out
        assert len(share) == 3, share


async def test_w1_what_was_rolled_back_comes_before_the_rest_of_its_partition(place: Place) -> None:
    topic = two_partitions(place, 3)
    async with place.connect() as connection, await subscribe(connection, topic) as only:
        seen: list[int] = []
        for _ in range(7):
            delivery = await next_of(only)
            seen.append(number(delivery))
            if number(delivery) == 1 and delivery.attempt == 1:
                await delivery.rollback()
            else:
                await delivery.ack()
        assert [n for n in seen if n < 1000] == [0, 1, 1, 2]
        assert [n for n in seen if n >= 1000] == [1000, 1001, 1002]


async def test_w5_a_free_seat_is_the_holders_of_that_partition(place: Place) -> None:
    topic = place.topic(range(6), partitions=2)
    async with place.connect() as connection, await subscribe(connection, topic, window=6) as first:
        sent = await take(first, 6)
        async with await subscribe(connection, topic, window=6) as second:
            await ready(connection, "d", 1)
            await sent[0].ack()
            place.publish(topic, [6])
            seventh = await next_of(first)
            assert number(seventh) == 6
            await nothing(second)
            # W5b: only now is the other one eligible
            await ack_all([*sent[1:], seventh])
            place.publish(topic, [7])
            assert number(await next_of(second)) == 7
            await nothing(first)


async def test_strict_order_holds_back_one_partition_only(place: Place) -> None:
    topic = two_partitions(place, 3)
    async with (
        place.connect() as connection,
        await subscribe(connection, topic, window=6, strict=True) as only,
    ):
        seen: list[int] = []
        for _ in range(4):
            delivery = await next_of(only)
            seen.append(number(delivery))
            if number(delivery) == 0:
                await delivery.rollback(delay=timedelta(hours=1))
            else:
                await delivery.ack()
            if [n for n in seen if n >= 1000] == [1000, 1001, 1002]:
                break
        assert [n for n in seen if n >= 1000] == [1000, 1001, 1002]
        await nothing(only)


async def test_a_member_that_leaves_gives_its_partitions_away(place: Place) -> None:
    topic = two_partitions(place, 3)
    async with place.connect() as connection, await subscribe(connection, topic) as first:
        async with await subscribe(connection, topic) as second:
            await ready(connection, "d", 2)
            kept, gone = await asyncio.gather(next_of(first), next_of(second))
        assert {number(kept), number(gone)} == {0, 1000}
        await kept.ack()
        rest = [await next_of(first)]
        for _ in range(4):
            await rest[-1].ack()
            rest.append(await next_of(first))
        assert sorted(number(delivery) for delivery in rest) == sorted(
            {0, 1, 2, 1000, 1001, 1002} - {number(kept)}
        )
        back = next(delivery for delivery in rest if number(delivery) == number(gone))
        assert (back.redelivered, back.attempt) == (True, 1)


async def test_other_types_have_no_scope(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        with pytest.raises(IllegalState, match="shared has no scope"):
            await connection.subscribe(topic, durable="d", type=SubscriptionType.SHARED, scope="partition")
