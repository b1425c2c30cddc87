"""Two instances of a shop: prices go to each of them, orders to one of them.

Start servers with `kafkadur up` before.
"""

import asyncio
from functools import partial

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
from kafkadur.one_copy import one_copy_per_application, one_copy_per_instance
from kafkadur.stack import up

TOPICS = ("prices", "shop-orders")


async def drained(subscription: kafkadur.Subscription) -> list[str]:
    """Acknowledge what comes until a second is quiet."""
    found: list[str] = []
    while (message := await subscription.receive(timeout=1)) is not None:
        await message.ack()
        found.append((message.value or b"").decode())
    return found


async def main() -> None:
    """Publish two prices and four orders, and show who got what."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    for topic in TOPICS:
        if topic not in admin.list_topics().topics:
            admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result()

    connect = partial(kafkadur.connect, kafka=stack.kafka, redis=stack.redis)
    each = [one_copy_per_instance("shop", name, durable="prices") for name in ("north", "south")]
    together = one_copy_per_application("shop", durable="orders")
    async with (
        connect(**each[0].connection) as north,
        connect(**each[1].connection) as south,
        connect(**together.connection) as first,
        connect(**together.connection) as second,
    ):
        prices = [
            await connection.subscribe("prices", **copies.subscription)
            for connection, copies in zip((north, south), each, strict=True)
        ]
        orders = [
            await connection.subscribe("shop-orders", window=1, **together.subscription)
            for connection in (first, second)
        ]
        with north.producer() as producer:
            for topic, messages in zip(TOPICS, (("tea 3", "milk 1"), ("o1", "o2", "o3", "o4")), strict=True):
                for message in messages:
                    producer.publish(topic, message)
        print("prices:", await asyncio.gather(*map(drained, prices)))
        got = await asyncio.gather(*map(drained, orders))
        print("orders, together:", sorted(order for some in got for order in some))


if __name__ == "__main__":
    asyncio.run(main())
