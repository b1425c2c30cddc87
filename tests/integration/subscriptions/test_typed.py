"""Serializers and deserializers on real servers: types, raw bytes, what cannot be deserialized.

`assert_type` is for mypy and pyright, which read the tests as strictly as the sources.
"""

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import Any, assert_type

import pytest
from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.serialization import (
    DoubleDeserializer,
    DoubleSerializer,
    IntegerDeserializer,
    IntegerSerializer,
    MessageField,
    SerializationContext,
    StringDeserializer,
    StringSerializer,
)
from pydantic import BaseModel

import kafkadur
import kafkadur.sync
from kafkadur import IllegalState, Redelivery, Undecodable, Unencodable
from kafkadur.runtime.dead_letters import ATTEMPTS, CAUSE, REASON
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, dead_letters, next_of, nothing, speaks
from tests.integration.subscriptions.test_redelivery import headers


@dataclass(frozen=True)
class Order:
    """What the messages of these tests mean."""

    number: int
    amount: float


def to_order(data: bytes | None, _context: SerializationContext) -> Order:
    return Order(**json.loads(data or b""))


def from_order(order: Order, _context: SerializationContext) -> bytes:
    return json.dumps(asdict(order)).encode()


def to_maybe(data: bytes | None, context: SerializationContext) -> Order | None:
    return None if data is None else to_order(data, context)


async def test_orders_there_and_back(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        subscription = await connection.subscribe(
            topic,
            durable="d",
            start="earliest",
            value_deserializer=to_order,
            key_deserializer=StringDeserializer(),
        )
        assert_type(subscription, kafkadur.Subscription[Order, str | None])
        async with connection.producer(
            value_serializer=from_order, key_serializer=StringSerializer()
        ) as producer:
            assert_type(producer, kafkadur.Producer[Order, str | None])
            await producer.send(topic, Order(1, 2.5), key="\u00e9")
            producer.publish(topic, Order(2, 0.5), properties={"color": "red"})
        first, second = await next_of(subscription), await next_of(subscription)
        assert_type(first, kafkadur.Delivery[Order, str | None])
        assert_type(first.value, Order)
        assert_type(first.key, str | None)
        assert_type(first.raw_value, bytes | None)
        assert (first.value, first.key) == (Order(1, 2.5), "\u00e9")
        assert (first.raw_value, first.raw_key) == (b'{"number": 1, "amount": 2.5}', "\u00e9".encode())
        assert (second.value, second.key, second.raw_key) == (Order(2, 0.5), None, None)
        assert second.properties == {"color": "red"}
        assert first.value is first.value, "deserialized once"
        assert isinstance(first, kafkadur.Delivery)
        await first.ack()
        await second.ack()
        await subscription.close()


def test_orders_there_and_back_synchronously(place: Place) -> None:
    topic = place.topic()
    with (
        place.connect_sync() as connection,
        connection.subscribe(
            topic,
            durable="d",
            start="earliest",
            value_deserializer=to_maybe,
            key_deserializer=IntegerDeserializer(),
        ) as subscription,
    ):
        assert_type(subscription, kafkadur.sync.Subscription[Order | None, int | None])
        with connection.producer(value_serializer=from_order, key_serializer=IntegerSerializer()) as producer:
            assert_type(producer, kafkadur.Producer[Order, int | None])
            producer.publish(topic, Order(1, 2.5), key=7)
            producer.publish(topic, None, key=7)
        seen: list[tuple[Order | None, int | None]] = []

        def handle(delivery: kafkadur.sync.Delivery[Order | None, int | None]) -> None:
            seen.append((delivery.value, delivery.key))
            if len(seen) == 2:
                subscription.stop()

        subscription.run(handle)
        assert seen == [(Order(1, 2.5), 7), (None, 7)]


async def test_without_a_deserializer_a_delivery_is_of_bytes(place: Place) -> None:
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        assert_type(subscription, kafkadur.Subscription)
        delivery = await next_of(subscription)
        assert_type(delivery, kafkadur.Delivery[bytes | None])
        assert_type(delivery.value, bytes | None)
        assert type(delivery) is kafkadur.Delivery, "the class without any of it"
        assert (delivery.value, delivery.raw_value, delivery.key, delivery.raw_key) == (
            b"1",
            b"1",
            None,
            None,
        )
        assert_type(connection.producer(), kafkadur.Producer)
        delivery.ack_nowait()


@pytest.mark.parametrize("window", [1, 100])
@pytest.mark.parametrize("kind", ["shared", "exclusive", "serial", "key-ordered"])
async def test_every_way_to_receive_deserializes(place: Place, kind: TypeName, window: int) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        subscription = await connection.subscribe(
            topic,
            durable="d",
            type=kind,
            window=window,
            start="earliest",
            value_deserializer=DoubleDeserializer(),
        )
        async with connection.producer(value_serializer=DoubleSerializer()) as producer:
            for n in range(9):
                producer.publish(topic, n / 2, key=str(n))
        seen: list[float | None] = []
        delivery = await next_of(subscription)
        seen.append(delivery.value)
        await delivery.ack()
        batch = await subscription.receive_batch(2, timeout=LIMIT_S)
        assert batch is not None
        assert_type(batch, kafkadur.Batch[float | None])
        assert [item.value for item in batch] == batch.values()
        assert all(isinstance(raw, bytes) and len(raw) == 8 for raw in batch.raw_values())
        seen += batch.values()
        batch.ack_nowait()
        async for delivery in subscription:
            seen.append(delivery.value)
            delivery.ack_nowait()
            if len(seen) == 9:
                break
        assert sorted(value for value in seen if value is not None) == [n / 2 for n in range(9)]
        await subscription.close()


class Recorder:
    """A serializer and deserializer that passes bytes on and notes how it is called."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, type, str, object, object]] = []

    def __call__(self, data: bytes | None, context: SerializationContext) -> bytes | None:
        own: Any = [item for item in context.headers or () if not item[0].startswith(("kafkadur", "JMS"))]
        self.seen.append((data, type(context), context.topic, context.field, own))
        return data


async def test_they_are_called_exactly_as_the_clients_of_confluent_call_them(place: Place) -> None:
    """One message through SerializingProducer and DeserializingConsumer, the same one through kafkadur."""
    topic = place.topic()
    theirs, ours = Recorder(), Recorder()
    servers = {"bootstrap.servers": place.stack.kafka}
    own: Any = [("h", b"1")]
    serializing: Any = SerializingProducer({**servers, "key.serializer": theirs, "value.serializer": theirs})
    serializing.produce(topic, key=b"k", value=b"v", headers=own)
    assert serializing.flush(LIMIT_S) == 0
    serializing.close()
    async with place.connect() as connection:
        with connection.producer(key_serializer=ours, value_serializer=ours) as producer:
            producer.publish(topic, b"v", key=b"k", properties={"h": "1"})
        assert ours.seen == theirs.seen
        assert [call[3] for call in ours.seen] == [MessageField.KEY, MessageField.VALUE]
        ours.seen.clear()
        theirs.seen.clear()
        settings = {"group.id": place.namespace, "auto.offset.reset": "earliest"}
        consumer: Any = DeserializingConsumer(
            {**servers, **settings, "key.deserializer": theirs, "value.deserializer": theirs}
        )
        consumer.subscribe([topic])
        for _ in range(2):
            assert consumer.poll(LIMIT_S) is not None
        consumer.close()
        async with await connection.subscribe(
            topic, durable="d", start="earliest", key_deserializer=ours, value_deserializer=ours
        ) as subscription:
            for _ in range(2):
                delivery = await next_of(subscription)
                assert (delivery.key, delivery.value) == (b"k", b"v")
                await delivery.ack()
        assert ours.seen == theirs.seen
        assert len(ours.seen) == 4


async def test_a_serializer_may_add_headers(place: Place) -> None:
    """A schema id may travel in a header: the list of the context is the one that is sent."""
    topic = place.topic()

    def stamp(data: str, context: SerializationContext) -> bytes:
        assert isinstance(context.headers, list)
        context.headers.append((f"__{context.field}_schema_id", b"\x01\xff"))
        return data.encode()

    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        async with connection.producer(key_serializer=stamp, value_serializer=stamp) as producer:
            await producer.send(topic, "v", key="k", properties={"color": "red"})
        delivery = await next_of(subscription)
        sent = dict(delivery.headers)
        assert (sent["__key_schema_id"], sent["__value_schema_id"]) == (b"\x01\xff", b"\x01\xff")
        assert delivery.properties["color"] == "red"
        await delivery.ack()


async def test_what_cannot_be_serialized_is_not_sent(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        async with connection.producer(value_serializer=IntegerSerializer()) as producer:
            wrong: Any = "no number"
            with pytest.raises(Unencodable) as caught:
                producer.publish(topic, wrong)
            speaks(caught.value, topic)
            with pytest.raises(Unencodable):
                producer.send(topic, wrong)
            producer.publish(topic, 5)
        delivery = await next_of(subscription)
        assert IntegerDeserializer()(delivery.value) == 5
        await delivery.ack()
        await nothing(subscription)


async def test_a_closed_producer_does_not_serialize(place: Place) -> None:
    calls = Recorder()
    async with place.connect() as connection:
        producer = connection.producer(value_serializer=calls)
        producer.close()
        with pytest.raises(kafkadur.ConnectionClosed):
            producer.publish("t", b"v")
    assert calls.seen == []


async def test_undecodable_is_raised_where_it_is_touched_and_nothing_is_lost(place: Place) -> None:
    topic = place.topic()
    place.publish_values(topic, [b"no json", b'{"number": 1, "amount": 2}'])
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="exclusive", start="earliest", value_deserializer=to_order
        ) as subscription,
    ):
        bad, good = await next_of(subscription), await next_of(subscription)
        assert good.value == Order(1, 2)
        with pytest.raises(Undecodable) as caught:
            bad.value  # noqa: B018 - touched
        with pytest.raises(Undecodable):
            bad.value  # noqa: B018 - touched again
        speaks(caught.value, f"{topic}[0]@0")
        assert isinstance(caught.value.__cause__, json.JSONDecodeError)
        assert bad.raw_value == b"no json"
        await good.ack()
        await bad.rollback()
        again = await next_of(subscription)
        assert (again.raw_value, again.attempt) == (b"no json", 2)
        await again.reject("not json")
        batch_of_bad = dead_letters(place, topic, 1)
        assert [letter.value() for letter in batch_of_bad] == [b"no json"]


@pytest.mark.parametrize("kind", ["shared", "exclusive", "key-ordered"])
async def test_run_rejects_what_cannot_be_deserialized(place: Place, kind: TypeName) -> None:
    topic = place.topic()
    place.publish_values(topic, [b"no json", b'{"number": 1, "amount": 2}'])
    seen: list[Order] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", value_deserializer=to_order
        ) as subscription,
    ):

        def handle(delivery: kafkadur.Delivery[Order]) -> None:
            seen.append(delivery.value)
            subscription.stop()

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, on_undecodable="reject")
    assert seen == [Order(1, 2)]
    (letter,) = dead_letters(place, topic, 1)
    told = headers(letter)
    assert letter.value() == b"no json"
    assert (told[CAUSE], told[ATTEMPTS]) == ("undecodable", "1")
    assert told[REASON].startswith(
        "The value of the message cannot be deserialized: JSONDecodeError: Expecting"
    )


async def test_run_rolls_back_what_cannot_be_deserialized_unless_told(place: Place) -> None:
    topic = place.topic()
    place.publish_values(topic, [b"no json"])
    attempts: list[int] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic,
            durable="d",
            start="earliest",
            value_deserializer=to_order,
            redelivery=Redelivery(max_attempts=2),
        ) as subscription,
    ):

        def handle(delivery: kafkadur.Delivery[Order]) -> None:
            attempts.append(delivery.attempt)
            if delivery.attempt == 2:
                subscription.stop()
            delivery.value  # noqa: B018 - touched

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, retry_delay=0)
    assert attempts == [1, 2]
    assert headers(dead_letters(place, topic, 1)[0])[CAUSE] == "attempts"


async def test_an_outage_makes_no_dead_letters(place: Place) -> None:
    """What the deserializer needs does not answer at first: the messages are not at fault."""
    topic = place.topic([1])
    asked = 0

    def ask(data: bytes | None, _context: SerializationContext) -> int:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise ConnectionRefusedError
        return int(data or b"")

    seen: list[tuple[int, int]] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", start="earliest", value_deserializer=ask
        ) as subscription,
    ):

        def handle(delivery: kafkadur.Delivery[int]) -> None:
            seen.append((delivery.value, delivery.attempt))
            subscription.stop()

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, on_undecodable="reject", retry_delay=0.01)
    assert seen == [(1, 3)]


async def test_undecodable_of_another_message_is_an_exception_like_any_other(place: Place) -> None:
    """A handler that fails because of a message it looked up elsewhere does not lose its own."""
    topic = place.topic([1])
    attempts: list[int] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):

        def handle(delivery: kafkadur.Delivery) -> None:
            attempts.append(delivery.attempt)
            if delivery.attempt == 2:
                subscription.stop()
                return
            raise Undecodable(topic="elsewhere", partition=0, offset=0)

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, on_undecodable="reject", retry_delay=0.01)
    assert attempts == [1, 2]


async def test_wrong_ones_are_refused_before_anything_is_made(place: Place) -> None:
    topic = place.topic()
    wrong: Any = IntegerDeserializer  # the class
    async with place.connect() as connection:
        with pytest.raises(IllegalState) as caught:
            await connection.subscribe(topic, durable="d", value_deserializer=wrong)
        speaks(caught.value, "value_deserializer")
        assert await connection.known("d") is None
        with pytest.raises(IllegalState):
            connection.producer(key_serializer=wrong)


async def test_each_consumer_may_deserialize_in_its_own_way(place: Place) -> None:
    """Deserializers are the consumer's, not the subscription's: nothing of them is in the definition."""
    topic = place.topic([1])
    async with place.connect() as connection:
        text = await connection.subscribe(
            topic, durable="d", start="earliest", value_deserializer=StringDeserializer()
        )
        plain = await connection.subscribe(topic, durable="d", start="earliest")
        assert text.definition.id == plain.definition.id
        assert text.definition.version == plain.definition.version
        await plain.close()
        delivery = await next_of(text)
        assert delivery.value == "1"
        await delivery.ack()
        await text.close()


class Invoice(BaseModel):
    """What a handler takes."""

    number: int


async def test_a_handler_gets_what_its_parameters_ask_for(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """What does not fit is undecodable: a dead letter that names the place, and nothing of it in the log."""
    topic = place.topic()
    place.raw.produce(topic, b'{"number": 7}', key=b"k1", partition=0)
    place.raw.produce(topic, b'{"number": "secret"}', key=b"k2", partition=0)
    assert place.raw.flush(LIMIT_S) == 0
    got: list[tuple[int, str, int]] = []

    async def handle(invoice: Invoice, key: str, delivery: kafkadur.Delivery) -> None:
        got.append((invoice.number, key, delivery.offset))

    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        running = asyncio.create_task(subscription.run(handle, on_undecodable="reject"))
        (letter,) = await asyncio.to_thread(dead_letters, place, topic, 1)
        subscription.stop()
        await running
    assert got == [(7, "k1", 0)]
    told = headers(letter)
    assert told[CAUSE] == "undecodable"
    assert "number: Input should be a valid integer" in told[REASON]
    assert "secret" not in caplog.text + told[REASON]
