"""Subscriptions that end with their last consumer: rules N1-N5 and V1-V3."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis

from kafkadur import IllegalState, SubscriptionActive
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    ack_all,
    next_of,
    nothing,
    number,
    numbers,
    take,
    wait_until,
)
from tests.integration.subscriptions.workers import Worker


def state_of(place: Place) -> list[bytes]:
    """Keys of the namespace in Redis."""
    client: Any = redis.Redis.from_url(place.stack.admin_redis)
    with client:
        return list(client.scan_iter(match=f"kafkadur:{place.namespace}:*", count=1000))


async def test_v1_each_consumer_has_its_own(place: Place) -> None:
    topic = place.topic([1])
    async with place.connect() as connection:
        first = await connection.subscribe(topic)
        second = await connection.subscribe(topic, type="exclusive")
        place.publish(topic, [2, 3])
        for subscription in (first, second):
            deliveries = await take(subscription, 2)
            assert numbers(deliveries) == [2, 3], "from now on, and each a copy"
            await ack_all(deliveries)


async def test_n1_n2_consumers_of_one_name_share(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as one, place.connect() as other:
        members = [
            await one.subscribe(topic, shared="s", window=1),
            await other.subscribe(topic, shared="s", window=1),
        ]
        place.publish(topic, range(1, 21))
        seen: list[int] = []
        async with asyncio.timeout(LIMIT_S):
            while len(seen) < 20:
                for member in members:
                    delivery = await member.receive(timeout=0.05)
                    if delivery is not None:
                        seen.append(number(delivery))
                        await delivery.ack()
        assert sorted(seen) == list(range(1, 21))


async def test_n3_other_details_are_refused_while_active(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        subscription = await connection.subscribe(topic, shared="s", selector="a = 1")
        with pytest.raises(SubscriptionActive):
            await connection.subscribe(topic, shared="s", selector="a = 2")
        await subscription.close()
        async with await connection.subscribe(topic, shared="s", selector="a = 2"):
            pass


@pytest.mark.parametrize("name", [None, "s"])
async def test_n4_v3_the_last_close_drops_all(place: Place, name: str | None) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        first = await connection.subscribe(topic, shared=name)
        second = await connection.subscribe(topic, shared=name)
        place.publish(topic, [1, 2])
        await next_of(first)
        await first.close()
        if name is not None:
            assert sorted(numbers(await take(second, 2))) == [1, 2]
        await second.close()
        assert state_of(place) == []
        place.publish(topic, [3])
        async with await connection.subscribe(topic, shared=name) as third:
            await nothing(third)
            place.publish(topic, [4])
            assert number(await next_of(third)) == 4


async def test_n5_a_durable_one_of_the_same_name_is_another(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        durable = await connection.subscribe(topic, durable="s")
        passing = await connection.subscribe(topic, shared="s")
        place.publish(topic, [1])
        assert number(await next_of(durable)) == 1
        assert number(await next_of(passing)) == 1
        await passing.close()
        assert await connection.known("s") is not None
        with pytest.raises(IllegalState, match="durable or not"):
            await connection.subscribe(topic, durable="s", shared="s")


async def test_v2_no_local_excludes_the_own_connection_only(place: Place) -> None:
    topic = place.topic()
    async with place.connect(client_id="me") as mine, place.connect(client_id="me") as other:
        subscription = await mine.subscribe(topic, type="exclusive", no_local=True)
        for connection, value in ((mine, b"1"), (other, b"2")):
            with connection.producer() as producer:
                producer.publish(topic, value)
        assert number(await next_of(subscription)) == 2
        await nothing(subscription)


async def test_nothing_of_it_is_written_to_kafka(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        async with await connection.subscribe(topic, shared="s") as subscription:
            place.publish(topic, [1])
            await (await next_of(subscription)).ack()
        keys = await asyncio.to_thread(connection._opened.lifecycle.all_keys)  # type: ignore[union-attr]  # noqa: SLF001
        assert keys == []


@pytest.mark.parametrize("restart", ["member", "everybody"])
def test_killed_consumers_leave_nothing_for_long(
    place: Place, start_worker: Callable[..., Worker], restart: str
) -> None:
    """What a killed consumer left goes on with the others, or is swept by whoever comes next."""
    topic = place.topic()
    name = f"s-{uuid.uuid4().hex[:6]}"
    worker = start_worker(topic, shared=name, type="shared", window=5)
    with place.connect_sync() as connection:
        if restart == "member":
            with connection.subscribe(topic, shared=name, window=5) as other:
                worker.kill()
                place.publish(topic, [1, 2, 3])
                seen = {
                    int((other.receive(timeout=LIMIT_S) or pytest.fail("nothing")).value or 0)
                    for _ in range(3)
                }
                assert seen == {1, 2, 3}
        else:
            worker.kill()

            def swept() -> bool:
                with connection.subscribe(topic):  # any other
                    pass
                return not any(b"}:def" in key for key in state_of(place))

            wait_until(swept, "the end of what the killed consumer left")


@pytest.mark.parametrize(
    "entry", [b"no JSON", b"[1]", b"{}", b'{"namespace": "n", "name": "", "durable": false}']
)
def test_i13_a_stray_entry_in_the_list_of_non_durable_ones_is_removed(place: Place, entry: bytes) -> None:
    topic, index = place.topic(), f"kafkadur:{place.namespace}:nondurable"
    with redis.Redis.from_url(place.stack.admin_redis) as client, place.connect_sync() as connection:
        client.zadd(index, {entry: 1})
        with connection.subscribe(topic):
            pass
        assert client.zscore(index, entry) is None


def test_i13_a_key_of_another_type_in_place_of_that_list_is_removed(place: Place) -> None:
    topic, index = place.topic(), f"kafkadur:{place.namespace}:nondurable"
    with redis.Redis.from_url(place.stack.admin_redis) as client, place.connect_sync() as connection:
        client.set(index, "something else")
        with connection.subscribe(topic):
            assert client.type(index) == b"zset"
