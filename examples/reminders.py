"""Delayed messages, and messages with a time to live: a reminder for later, and a price that soon is none.

Start servers with `kafkadur up` before. Synchronous, with the same names as the asynchronous surface.
"""

from datetime import timedelta

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur.sync
from kafkadur.stack import up


def main() -> None:
    """Publish a reminder, a price and an order; receive those whose time has come."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "desk" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("desk", num_partitions=1)])["desk"].result()

    with kafkadur.sync.connect(kafka=stack.kafka, redis=stack.redis) as connection:
        with connection.subscribe("desk", durable="clerk", type="shared") as clerk:
            with connection.producer() as producer:
                producer.publish("desk", b"remind me", delay=timedelta(seconds=5))
                producer.publish("desk", b"price of the last millisecond", time_to_live=0.001)
                producer.publish("desk", b"order")
            for _ in range(2):
                message = clerk.receive(timeout=30)
                if message is None:
                    raise SystemExit("no message came within 30 s")
                print(f"{message.value!r}, attempt {message.attempt}")
                message.ack()
            print(f"expired: {clerk.statistics()['outdated']}")


if __name__ == "__main__":
    main()
