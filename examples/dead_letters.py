"""What cannot be processed: rejected at once, or given up after three attempts, and kept as dead letters.

Start servers with `kafkadur up` before. `kafkadur sub dead ls mailing` shows them afterwards.
"""

import asyncio
from datetime import timedelta

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
from kafkadur.stack import up


async def send(message: kafkadur.Delivery) -> None:
    """Send a mail - or not."""
    address = str(message.properties["to"])
    if address == "nobody":
        raise kafkadur.Reject("there is no such address")
    if address == "away":
        raise TimeoutError(address)
    print(f"sent to {address}")


async def main() -> None:
    """Send four mails; two of them cannot be sent."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    for topic in {"mails", "mails.dead"} - set(admin.list_topics().topics):
        admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result()

    policy = kafkadur.Redelivery(max_attempts=3, backoff=timedelta(milliseconds=50))
    async with kafkadur.connect(kafka=stack.kafka, redis=stack.redis) as connection:
        mailing = await connection.subscribe("mails", durable="mailing", redelivery=policy)
        with connection.producer() as producer:
            for address in ("Ada", "nobody", "away", "Bob"):
                producer.publish("mails", b"hello", properties={"to": address})
        working = asyncio.create_task(mailing.run(send, concurrency=2))
        letters: list[str] = []
        async with await connection.subscribe("mails.dead", durable="undertaker", start="earliest") as dead:
            while len(letters) < 2:
                letter = await dead.receive(timeout=30)
                if letter is None:
                    raise SystemExit("no dead letter came within 30 s")
                told = dict(letter.headers)
                cause, attempts = told["kafkadur-dead-cause"] or b"", told["kafkadur-dead-attempts"] or b""
                letters.append(
                    f"{letter.properties['to']!s}: {cause.decode()}, attempts: {attempts.decode()}"
                )
                await letter.ack()
        mailing.stop()
        await working
    for line in sorted(letters):
        print(line)


if __name__ == "__main__":
    asyncio.run(main())
