"""Numbers that no subscription can have: the call is refused, and its neighbours get every message."""

import math
from typing import Any

import pytest

import kafkadur
from kafkadur_sharing.definition import TypeName
from kafkadur_sharing.errors import IllegalState
from tests.integration.subscriptions.helpers import PRIORITY_TOO, Place, next_of, number

COUNT = 60
WRONG: dict[str, tuple[Any, ...]] = {
    "window": (2.5, 2**70, 0, math.nan, "10", True),
    "window_bytes": (math.nan, 2.5, 2**70, 0),
    "unconfirmed": (2.5, 2**70, -1, "1"),
    "priority": ("high", 1.5, 2**70, math.inf),
}


@pytest.mark.parametrize("kind", ["shared", PRIORITY_TOO, "serial", "key-ordered"])
async def test_a_refused_member_does_not_disturb_its_neighbour(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(COUNT))
    async with (
        place.connect() as connection,
        place.connect() as others,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest", window=4) as neighbour,
    ):
        seen: list[int] = []
        for name, values in WRONG.items():
            for value in values:
                words = f"{name} cannot be |has no {name}"  # or the type does not know it at all
                with pytest.raises(IllegalState, match=words):
                    await others.subscribe(topic, durable="d", type=kind, **{name: value})
                delivery = await next_of(neighbour)
                seen.append(number(delivery))
                await delivery.ack()
        while len(seen) < COUNT:
            delivery = await next_of(neighbour)
            seen.append(number(delivery))
            await delivery.ack()
        assert seen == [*range(COUNT)]


@pytest.mark.parametrize("delay", [1e17, -1.0, math.nan, math.inf, "1", True])
async def test_a_refused_delay_changes_nothing(place: Place, delay: Any) -> None:
    topic = place.topic([1, 2])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        delivery = await next_of(subscription)
        with pytest.raises(IllegalState, match="delay cannot be "):
            await delivery.rollback(delay=delay)
        with pytest.raises(IllegalState, match="delay cannot be "):
            delivery.rollback_nowait(delay)
        assert not delivery.settled
        await delivery.ack()
        other = await next_of(subscription)
        assert (number(other), other.attempt) == (2, 1)
        await other.ack()


async def test_a_reason_and_a_callback_of_a_wrong_type_are_refused(place: Place) -> None:
    topic = place.topic([1])
    wrong: Any = 5
    async with place.connect() as connection:
        with pytest.raises(IllegalState, match="on_event cannot be 5"):
            await connection.subscribe(topic, durable="d", on_event=wrong)
        async with await connection.subscribe(topic, durable="d", start="earliest") as subscription:
            delivery = await next_of(subscription)
            with pytest.raises(IllegalState, match="reason cannot be 5"):
                await delivery.reject(wrong)
            with pytest.raises(IllegalState, match="reason cannot be 5"):
                delivery.reject_nowait(wrong)
            assert not delivery.settled
            await delivery.ack()


async def test_refused_numbers_of_calls_change_nothing(place: Place) -> None:
    topic = place.topic([1])

    async def handle(_: kafkadur.Delivery) -> None:
        raise AssertionError("nothing is to be handled")

    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        for most in (2.5, -1, "1", 2**70):
            with pytest.raises(IllegalState, match="most cannot be "):
                await subscription.receive_batch(most)  # type: ignore[arg-type]  # that is the test
        refused: tuple[dict[str, Any], ...] = (
            {"concurrency": 0},
            {"concurrency": 1.5},
            {"retry_delay": math.nan},
            {"rate_limit": 5},
            {"breaker": 3},
        )
        for wrong in refused:
            with pytest.raises(IllegalState, match=f"{next(iter(wrong))} cannot be "):
                await subscription.run(handle, **wrong)
        with pytest.raises(ValueError, match="duration"):
            await subscription.receive(timeout=math.nan)
        with pytest.raises(TypeError, match="a number of seconds, not '5'"):
            await subscription.receive(timeout="5")  # type: ignore[arg-type]  # that is the test
        delivery = await subscription.receive(timeout=math.inf)
        assert delivery is not None
        await delivery.ack()


async def test_a_message_can_be_of_1970(place: Place) -> None:
    """Kafka's client takes the timestamp 0 for now, so it is written as 1."""
    topic = place.make_topic(1, retention_ms=-1)
    async with place.connect() as connection, connection.producer() as producer:
        await producer.send(topic, b"1", timestamp=0)
        for wrong in (-1, 1.5, 2**70):
            with pytest.raises(IllegalState, match="timestamp cannot be "):
                producer.publish(topic, b"2", timestamp=wrong)  # type: ignore[arg-type]  # that is the test
        with pytest.raises(IllegalState, match="partition cannot be "):
            producer.publish(topic, b"2", partition=2**40)
        async with await connection.subscribe(topic, durable="d", start="earliest") as subscription:
            delivery = await next_of(subscription)
            assert delivery.timestamp == 1
            await delivery.ack()
