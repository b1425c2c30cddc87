"""Handlers in parallel: each account in order, not too fast, and not while the bank does not answer.

Start servers with `kafkadur up` before.
"""

import asyncio
from datetime import timedelta

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
from kafkadur.stack import up

ACCOUNTS = [f"account-{n}" for n in range(4)]


async def main() -> None:
    """Book 20 transfers of four accounts with up to four handlers; the bank is closed at first."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "transfers" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("transfers", num_partitions=1)])["transfers"].result()

    events: list[kafkadur.Event] = []
    booked: dict[str, list[int]] = {account: [] for account in ACCOUNTS}

    async with kafkadur.connect(kafka=stack.kafka, redis=stack.redis, client_id="bank") as connection:
        transfers = await connection.subscribe(
            "transfers", durable="transfers", type="exclusive", on_event=events.append
        )
        async with connection.producer() as producer:
            for number in range(1, 6):
                for account in ACCOUNTS:
                    producer.publish("transfers", str(number), key=account)

        async def book(message: kafkadur.Delivery) -> None:
            """Book one transfer. The bank opens when the breaker tries again."""
            await asyncio.sleep(0)  # here the bank would be called
            if kafkadur.Event.BREAKER_HALF_OPENED not in events:
                raise ConnectionError("the bank is closed")
            booked[(message.key or b"").decode()].append(int(message.value or b"0"))
            if sum(map(len, booked.values())) == 5 * len(ACCOUNTS):
                transfers.stop()

        await transfers.run(
            book,
            concurrency=4,
            ordered_by_key=True,
            rate_limit=kafkadur.RateLimit(per_second=100, burst=10),
            breaker=kafkadur.CircuitBreaker(failures=3, pause=timedelta(milliseconds=500)),
            retry_delay=0.1,
        )
        await transfers.close()

    print(", ".join(event for event in events if event.startswith("breaker")))
    for account in ACCOUNTS:
        print(f"{account}: {booked[account]}")


if __name__ == "__main__":
    asyncio.run(main())
