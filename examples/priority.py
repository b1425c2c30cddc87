"""By priority: one consumer works, another one stands by and goes on at the first unsettled message.

Start servers with `kafkadur up` before. Synchronous, with the same names as the asynchronous surface.
"""

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur.sync
from kafkadur.stack import up


def tell(event: kafkadur.Event) -> None:
    """Say whether the spare site is at work; there are other events, too.

    It is called in another thread, so the first message may be printed before it.
    """
    if event in (kafkadur.Event.BECAME_ACTIVE, kafkadur.Event.BECAME_STANDBY):
        print(f"spare site: {event}")


def main() -> None:
    """Two consumers of different priority; the better one leaves in the middle of its work."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "orders-by-priority" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("orders-by-priority", num_partitions=1)])["orders-by-priority"].result()

    with kafkadur.sync.connect(kafka=stack.kafka, redis=stack.redis) as connection:
        main_site = connection.subscribe(
            "orders-by-priority", durable="billing", type="priority", priority=2, window=1
        )
        spare_site = connection.subscribe(
            "orders-by-priority",
            durable="billing",
            type="priority",
            priority=1,
            window=1,
            on_event=tell,
        )
        with connection.producer() as producer:
            for number in range(4):
                producer.publish("orders-by-priority", f"order {number}".encode())
        for _ in range(2):
            message = main_site.receive(timeout=30)
            if message is None:
                raise SystemExit("no message came within 30 s")
            print(f"main site: {message.value!r}")
            message.ack()
        main_site.close()
        for _ in range(2):
            message = spare_site.receive(timeout=30)
            if message is None:
                raise SystemExit("no message came within 30 s")
            print(f"spare site: {message.value!r}")
            message.ack()


if __name__ == "__main__":
    main()
