"""Delayed messages and messages with a time to live, on a real Kafka: every type, and every way to receive.

What happens at which moment is tested with time moved by hand, in `tests/integration/coordinators`.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import kafkadur
import kafkadur.jms
from kafkadur.native.choice import is_native
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, dead_letters, nothing, take, wait_until

TYPES = ("shared", "exclusive", "priority", "serial", "key-ordered")
each_type = pytest.mark.parametrize("kind", TYPES)

#: Seconds that a delayed message waits: long enough for what comes before, on a slow machine, too.
DELAY_S = 5.0


async def publish(connection: kafkadur.Connection, topic: str, *messages: tuple[str, dict[str, Any]]) -> None:
    """Publish messages, each with its parameters."""
    async with connection.producer() as producer:
        for receipt in [producer.send(topic, value, **more) for value, more in messages]:
            await receipt


@each_type
async def test_a_delayed_message_is_delivered_when_it_is_due(place: Place, kind: TypeName) -> None:
    topic = place.make_topic(1)
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest"
        ) as subscription:
            sent_at = time.time()
            await publish(connection, topic, ("later", {"key": "a", "delay": DELAY_S}), ("now", {"key": "b"}))
            first, second = await take(subscription, 2)
            assert time.time() >= sent_at + DELAY_S
            assert (first.raw_value, second.raw_value) == (b"now", b"later")
            assert (second.attempt, second.redelivered) == (1, False)
            due = second.fields.delivery_time
            assert due is not None
            assert sent_at + DELAY_S <= due / 1000 + 0.001
            await first.ack()
            await second.ack()
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            await nothing(subscription)


@each_type
async def test_an_expired_message_is_not_delivered(place: Place, kind: TypeName) -> None:
    topic = place.make_topic(1)
    async with place.connect() as connection:
        short, long = {"time_to_live": 0.001}, {"time_to_live": timedelta(days=1)}
        await publish(connection, topic, ("short", {"key": "a", **short}), ("long", {"key": "a", **long}))
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest"
        ) as subscription:
            (delivery,) = await take(subscription, 1)
            assert delivery.raw_value == b"long"
            assert delivery.fields.expiration is not None
            await delivery.ack()
            await nothing(subscription)
            assert subscription.statistics()["outdated"] == 1


async def test_a_key_waits_for_its_delayed_message(place: Place) -> None:
    """The order of a key stands; other keys go on."""
    topic = place.make_topic(1)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="key-ordered", start="earliest") as subscription,
    ):
        keys = (("1", "a", None), ("2", "a", DELAY_S), ("3", "a", None), ("4", "b", None))
        await publish(connection, topic, *((value, {"key": k, "delay": d}) for value, k, d in keys))
        taken: list[bytes | None] = []
        for _ in range(4):
            delivery = await subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            taken.append(delivery.raw_value)
            await delivery.ack()
        assert set(taken[:2]) == {b"1", b"4"}
        assert taken[2:] == [b"2", b"3"]


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_every_way_to_receive(
    place: Place, kind: TypeName, monkeypatch: pytest.MonkeyPatch, *, pure: bool
) -> None:
    if pure:
        monkeypatch.setenv("KAFKADUR_PURE", "1")
    elif not is_native():
        pytest.skip("the compiled reader was not built")
    topic = place.make_topic(1)
    handled: list[bytes | None] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        more: tuple[dict[str, Any], ...] = ({}, {"time_to_live": 0.001}, {"delay": DELAY_S})
        await publish(connection, topic, *((str(n), more[n % 3]) for n in range(9)))
        batch = await subscription.receive_batch(2, timeout=LIMIT_S)
        assert batch is not None
        handled += batch.raw_values()
        batch.ack_nowait()
        async for delivery in subscription:
            handled.append(delivery.raw_value)
            await delivery.ack()
            if len(handled) == 3:
                break

        async def handle(delivery: kafkadur.Delivery) -> None:
            handled.append(delivery.raw_value)
            if len(handled) == 6:
                subscription.stop()

        await subscription.run(handle)
    assert handled[:3] == [b"0", b"3", b"6"]
    assert sorted(handled[3:], key=str) == [b"2", b"5", b"8"]


@each_type
async def test_what_was_taken_in_advance_may_expire(place: Place, kind: TypeName) -> None:
    """An application that is slow with its first message does not get the others too late."""
    topic = place.make_topic(1)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        short = {"key": "a", "time_to_live": DELAY_S}
        await publish(connection, topic, *((str(n), short) for n in range(3)), ("last", {"key": "a"}))
        (first,) = await take(subscription, 1)
        over = (first.fields.expiration or 0) / 1000
        await asyncio.to_thread(wait_until, lambda: time.time() > over + 1, "the others have expired")
        await first.ack()
        (last,) = await take(subscription, 1)
        assert last.raw_value == b"last"
        await last.ack()
        await nothing(subscription)
        assert subscription.statistics()["outdated"] == 2


async def test_not_before_a_time(place: Place) -> None:
    topic = place.make_topic(1)
    async with place.connect() as connection:
        when = datetime.now(UTC) + timedelta(seconds=DELAY_S)
        await publish(connection, topic, ("later", {"not_before": when}))
        async with await connection.subscribe(topic, start="earliest", type="shared") as subscription:
            (delivery,) = await take(subscription, 1)
            assert datetime.now(UTC) >= when - timedelta(milliseconds=1)
            await delivery.ack()


async def test_a_dead_letter_has_no_times(place: Place) -> None:
    """It is to be looked at whenever somebody has time for it."""
    topic = place.make_topic(1)
    async with place.connect() as connection:
        await publish(connection, topic, ("bad", {"time_to_live": 3_600, "properties": {"color": "red"}}))
        async with await connection.subscribe(
            topic, durable="d", type="shared", start="earliest"
        ) as subscription:
            (delivery,) = await take(subscription, 1)
            await delivery.reject("it is bad")
    (letter,) = dead_letters(place, topic, 1)
    headers: Any = letter.headers() or ()
    names = {name for name, _ in headers}
    assert "color" in names
    assert not names & {"JMSExpiration", "JMSDeliveryTime"}


async def test_a_message_of_a_transaction_may_be_delayed_and_taken_in_one(place: Place) -> None:
    topic = place.make_topic(1)
    async with place.connect() as connection, connection.session(transacted=True) as session:
        subscription = await connection.subscribe(topic, durable="d", start="earliest", session=session)
        later: dict[str, Any] = {"delay": DELAY_S}
        await publish(connection, topic, ("1", {"time_to_live": 0.001}), ("2", later), ("3", {}))
        taken: list[bytes | None] = []
        for _ in range(2):
            delivery = await subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            taken.append(delivery.raw_value)
            await session.commit()
        assert taken == [b"3", b"2"]


def test_times_in_the_names_of_jakarta_messaging(place: Place) -> None:
    topic = place.make_topic(1)
    connection = kafkadur.jms.ConnectionFactory(**place.settings()).create_connection()
    try:
        connection.start()
        session = connection.create_session()
        consumer = session.create_durable_consumer(topic, "d")
        producer = session.create_producer(topic)
        producer.send("lost", time_to_live=1, delivery_delay=0)
        producer.send("late", delivery_delay=round(DELAY_S * 1000), time_to_live=3_600_000)
        producer.send("plain")
        first, second = consumer.receive(LIMIT_S), consumer.receive(LIMIT_S)
        assert first is not None
        assert second is not None
        assert (first.text, second.text) == ("plain", "late")
        assert (first.jms_expiration, first.jms_delivery_time) == (0, first.jms_timestamp)
        assert second.jms_delivery_time == pytest.approx(second.jms_timestamp + DELAY_S * 1000, abs=1_000)
        assert second.jms_expiration == pytest.approx(second.jms_timestamp + 3_600_000, abs=1_000)
    finally:
        connection.close()
