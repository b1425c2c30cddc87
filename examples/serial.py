"""In turns: two consumers of a serial subscription, one at a time has a message in its hands, all in order.

Start servers with `kafkadur up` before.
"""

import asyncio

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
from kafkadur.stack import up


async def work(name: str, subscription: kafkadur.Subscription, done: asyncio.Semaphore) -> None:
    """Print and acknowledge what comes."""
    async for message in subscription:
        print(f"{name}: {message.value!r}")
        await message.ack()
        done.release()


async def main() -> None:
    """Publish six steps and let two consumers take turns at them."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "steps" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("steps", num_partitions=1)])["steps"].result()

    done = asyncio.Semaphore(0)
    async with kafkadur.connect(kafka=stack.kafka, redis=stack.redis) as connection:
        members = {
            name: await connection.subscribe("steps", durable="recipe", type="serial", window=1, name=name)
            for name in ("Ada", "Bob")
        }
        workers = [asyncio.create_task(work(name, member, done)) for name, member in members.items()]
        with connection.producer() as producer:
            for number in range(6):
                producer.publish("steps", f"step {number}".encode())
        for _ in range(6):
            await done.acquire()
        for member in members.values():
            member.stop()
        await asyncio.gather(*workers)


if __name__ == "__main__":
    asyncio.run(main())
