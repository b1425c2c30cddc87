"""Several topics: one subscription each, and one handler for all of them.

Start servers with `kafkadur up` before.
"""

import asyncio

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
from kafkadur.stack import up

TOPICS = ["parcels-north", "parcels-south"]


async def main() -> None:
    """Be refused a pattern, then subscribe to each topic by its name."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    for topic in set(TOPICS) - set(admin.list_topics().topics):
        admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result()

    async with kafkadur.connect(kafka=stack.kafka, redis=stack.redis) as connection:
        try:
            await connection.subscribe("^parcels-.*", durable="depot")
        except kafkadur.InvalidDestination as error:
            print(error.args[0].partition(" State")[0])
        subscriptions = [await connection.subscribe(topic, durable=f"depot-{topic}") for topic in TOPICS]
        with connection.producer() as producer:
            for topic in TOPICS:
                producer.publish(topic, b"a parcel")

        seen: list[str] = []

        def take_in(message: kafkadur.Delivery) -> None:
            """One parcel of any topic."""
            seen.append(message.topic)
            if len(seen) == len(TOPICS):
                for subscription in subscriptions:
                    subscription.stop()

        await asyncio.gather(*(subscription.run(take_in) for subscription in subscriptions))
    for topic in sorted(seen):
        print(topic)


if __name__ == "__main__":
    asyncio.run(main())
