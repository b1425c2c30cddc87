"""By key: two consumers in parallel, each account's bookings in order - also when one is rolled back.

Start servers with `kafkadur up` before.
"""

import asyncio
from functools import partial

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
from kafkadur.stack import up

ACCOUNTS = [f"account-{n}" for n in range(8)]


async def main() -> None:
    """Publish bookings of eight accounts and let two consumers share a topic of one partition."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "bookings" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("bookings", num_partitions=1)])["bookings"].result()

    done: dict[str, list[int]] = {account: [] for account in ACCOUNTS}
    workers: set[str] = set()
    left = asyncio.Semaphore(0)

    def book(worker: str, message: kafkadur.Delivery) -> None:
        """Book one; the third of each account fails at the first attempt."""
        number = int(message.value or b"0")
        if number == 3 and message.attempt == 1:
            raise ConnectionError(number)
        done[(message.key or b"").decode()].append(number)
        workers.add(worker)
        left.release()

    async with kafkadur.connect(kafka=stack.kafka, redis=stack.redis) as connection:
        members = {
            name: await connection.subscribe("bookings", durable="ledger", type="key-ordered", window=10)
            for name in ("Ada", "Bob")
        }
        running = [
            asyncio.create_task(member.run(partial(book, name), concurrency=4, retry_delay=0.1))
            for name, member in members.items()
        ]
        with connection.producer() as producer:
            for number in range(1, 6):
                for account in ACCOUNTS:
                    producer.publish("bookings", str(number).encode(), key=account)
        for _ in range(5 * len(ACCOUNTS)):
            await left.acquire()
        for member in members.values():
            member.stop()
        await asyncio.gather(*running)

    for account in ACCOUNTS:
        print(f"{account}: {done[account]}")
    print(f"worked: {', '.join(sorted(workers))}")


if __name__ == "__main__":
    asyncio.run(main())
