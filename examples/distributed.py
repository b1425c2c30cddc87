"""A distributed topic: orders are spread over two Kafka topics, each with a subscription of its own.

The topics may lie on different Kafka clusters (`TopicMember(kafka=...)`); here they share one. Start servers
with `kafkadur up` before.
"""

import asyncio

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
from kafkadur.stack import up

ORDERS = kafkadur.DistributedTopic(
    name="all-orders",
    members=(
        kafkadur.TopicMember(name="north", topic="orders-north"),
        kafkadur.TopicMember(name="south", topic="orders-south"),
    ),
    forwarding="partitioned",  # each message to one of them; "replicated": to all
)


async def main() -> None:
    """Send four orders, and take those of each member."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    for member in ORDERS.members:
        if member.topic not in admin.list_topics().topics:
            admin.create_topics([NewTopic(member.topic, num_partitions=1)])[member.topic].result()

    async with (
        kafkadur.connect(
            kafka=stack.kafka, redis=stack.redis, client_id="office", client_id_policy="unrestricted"
        ) as connection,
        connection.distributed(ORDERS) as orders,
    ):
        consumers = {m.name: await orders.subscribe(m.name, durable="invoices") for m in ORDERS.members}
        with await orders.producer() as producer:
            for number in range(4):
                producer.publish(f"order {number}")
        for name, consumer in consumers.items():
            while (message := await consumer.receive(timeout=1)) is not None:
                print(f"{name}: {(message.value or b'').decode()}")
                await message.ack()
            await consumer.close()
        try:
            await orders.unsubscribe("invoices")
        except kafkadur.InvalidDestination as refused:
            print(refused.remedy)  # rule X7: with an unrestricted client id one is named
        for name in consumers:
            await orders.unsubscribe("invoices", name)


if __name__ == "__main__":
    asyncio.run(main())
