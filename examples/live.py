"""Live or not: an application that warms up with the backlog and opens its doors once it has caught up.

Start servers with `kafkadur up` before.
"""

import asyncio

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
from kafkadur import Event
from kafkadur.stack import up


async def main() -> None:
    """Build a table of prices from a backlog, and say when it is complete."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "prices" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("prices", num_partitions=1)])["prices"].result()
    loop, caught_up = asyncio.get_running_loop(), asyncio.Event()
    prices: dict[bytes | None, bytes | None] = {}

    def told(event: Event) -> None:  # called in another thread
        if event is Event.CAUGHT_UP:
            loop.call_soon_threadsafe(caught_up.set)

    async def keep(message: kafkadur.Delivery) -> None:
        prices[message.key] = message.value

    async with kafkadur.connect(kafka=stack.kafka, redis=stack.redis, client_id="shop") as connection:
        with connection.producer() as producer:
            for number in range(300):
                producer.publish("prices", f"{number}".encode(), key=f"article {number % 30}".encode())
        async with await connection.subscribe(
            "prices", durable="table", type="exclusive", start="earliest", on_event=told
        ) as subscription:
            running = asyncio.create_task(subscription.run(keep, confirm=False))
            await asyncio.wait_for(caught_up.wait(), 10)
            print(
                f"caught up: {len(prices)} prices, article 7 costs {(prices[b'article 7'] or b'').decode()}"
            )
            subscription.stop()
            await running


if __name__ == "__main__":
    asyncio.run(main())
