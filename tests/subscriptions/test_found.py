"""Defects that histories have shown, as small as they can be made."""

from datetime import timedelta

import pytest
import redis

import kafkadur
from tests.subscriptions.helpers import Place, number, take, LIMIT_S, wait_until

SESSION = timedelta(seconds=1)


@pytest.mark.parametrize("kind", ["priority", "serial"])
async def test_a_single_messages_then_a_batch(place: Place, kind: str) -> None:
    topic = place.topic(range(1, 9))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, window=4, start="earliest") as sub,
    ):
        held = await take(sub, 1)
        got: list[int] = [number(held[0])]
        await held[0].ack()
        while len(got) < 8:
            one = await sub.receive(timeout=5)
            assert one is not None
            got.append(number(one))
            one.ack_nowait()
            batch = await sub.receive_batch(2, timeout=5)
            if batch is None:
                break
            assert len(batch) > 0
            got += [number(each) for each in batch]
            batch.ack_nowait()
        assert got == list(range(1, 9))


async def test_a_window_with_batches(place: Place) -> None:
    topic = place.topic(range(1, 20))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="serial", window=4, start="earliest") as sub,
    ):
        held = await take(sub, 3)
        batch = await sub.receive_batch(10, timeout=5)
        assert batch is not None
        assert len(held) + len(batch) <= 4


async def test_b_strict_order_among_what_was_rolled_back(place: Place) -> None:
    topic = place.topic(range(1, 6))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="exclusive", window=5, start="earliest", strict_order=True
        ) as sub,
    ):
        one, two, three = await take(sub, 3)
        await two.rollback(delay=0.3)
        await one.rollback(delay=0.6)
        await three.rollback(delay=0.6)
        got = []
        while (delivery := await sub.receive(timeout=1.5)) is not None:
            got.append(number(delivery))
            await delivery.ack()
        assert got == [1, 2, 3, 4, 5]


async def test_d_acks_without_waiting_that_a_wipe_refused(place: Place) -> None:
    """The wipe is noticed by the exchange that carries the acknowledgement."""
    topic = place.topic([1])
    async with place.connect(session_timeout=SESSION) as connection:
        sub = await connection.subscribe(topic, durable="d", type="shared", start="earliest")
        (one,) = await take(sub, 1)
        with redis.Redis.from_url(place.stack.redis) as client:
            client.flushall()
        one.ack_nowait()
        again = await sub.receive(timeout=LIMIT_S)
        assert again is not None  # the acknowledgement was refused
        await again.ack()
        with pytest.raises(kafkadur.LeaseLost):
            await sub.close()
