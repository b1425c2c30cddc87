"""Values with a type: serializers for the producer, deserializers for the consumer, and what is no order.

Start servers with `kafkadur up` before. A serializer is any callable `(data, SerializationContext)`: those of
confluent-kafka, with a schema registry or without, fit as they are.
"""

import asyncio
import json
from dataclasses import asdict, dataclass

from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.serialization import SerializationContext, StringDeserializer, StringSerializer

import kafkadur
from kafkadur.stack import up


@dataclass(frozen=True)
class Order:
    """What travels."""

    number: int
    amount: float


def to_json(order: Order, _context: SerializationContext) -> bytes:
    """An order as bytes."""
    return json.dumps(asdict(order)).encode()


def from_json(data: bytes | None, _context: SerializationContext) -> Order:
    """An order of bytes; whatever this raises makes the message undecodable."""
    return Order(**json.loads(data or b""))


async def main() -> None:
    """Publish two orders, and something else between them."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    for topic in {"typed-orders", "typed-orders.dead"} - set(admin.list_topics().topics):
        admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result()

    async with kafkadur.connect(kafka=stack.kafka, redis=stack.redis) as connection:
        subscription = await connection.subscribe(
            "typed-orders",
            durable="typed-invoices",
            value_deserializer=from_json,
            key_deserializer=StringDeserializer(),
        )
        async with connection.producer(
            value_serializer=to_json, key_serializer=StringSerializer()
        ) as producer:
            await producer.send("typed-orders", Order(1, 9.5), key="Ada")
            async with connection.producer() as plain:
                await plain.send("typed-orders", "this is no order")
            await producer.send("typed-orders", Order(2, 0.5), key="Bob")

        def invoice(message: kafkadur.Delivery[Order, str | None]) -> None:
            """`message.value` is an Order: it is made when it is touched."""
            print(f"{message.key} pays {message.value.amount}")
            if message.value.number == 2:
                subscription.stop()

        await subscription.run(invoice, on_undecodable="reject")
        async with await connection.subscribe(
            "typed-orders.dead", durable="typed-undertaker", start="earliest"
        ) as dead:
            letter = await dead.receive(timeout=30)
            if letter is None:
                raise SystemExit("no dead letter came within 30 s")
            print(f"{dict(letter.headers)['kafkadur-dead-cause']!r}: {letter.value!r}")
            await letter.ack()


if __name__ == "__main__":
    asyncio.run(main())
