"""A first program: five orders, one of which is rolled back once. Start servers with `kafkadur up` before."""

import asyncio

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
from kafkadur.stack import up


async def main() -> None:
    """Publish five orders and work through them; one is rolled back once."""
    stack = up()  # what `kafkadur up` started here; with servers of your own, write their addresses
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "orders" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("orders", num_partitions=3)])["orders"].result()

    async with kafkadur.connect(kafka=stack.kafka, redis=stack.redis) as connection:
        subscription = await connection.subscribe("orders", durable="invoices", type="shared", window=10)
        with connection.producer() as producer:
            for number in range(5):
                producer.publish("orders", f"order {number}".encode(), properties={"amount": number * 10})

        async with subscription:
            for _ in range(6):
                message = await subscription.receive(timeout=30)
                if message is None:
                    break
                if message.properties["amount"] == 20 and message.attempt == 1:
                    print(f"{message.value!r}: not now")
                    await message.rollback(delay=0.5)
                else:
                    print(f"{message.value!r}: done, attempt {message.attempt}")
                    await message.ack()


asyncio.run(main())
