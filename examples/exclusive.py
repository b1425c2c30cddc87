"""One at a time: a second consumer of an exclusive subscription is refused and told who holds it.

Start servers with `kafkadur up` before. Synchronous, with the same names as the asynchronous surface.
"""

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
import kafkadur.sync
from kafkadur.stack import up


def main() -> None:
    """Hold the subscription, try to hold it twice, and work through three messages in order."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "ledger" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("ledger", num_partitions=1)])["ledger"].result()

    # rule U1: an unshared durable subscription belongs to a client id
    with kafkadur.sync.connect(kafka=stack.kafka, redis=stack.redis, client_id="books") as connection:
        with connection.subscribe(
            "ledger", durable="audit", type="exclusive", window=1, name="the first"
        ) as subscription:
            try:
                connection.subscribe("ledger", durable="audit", type="exclusive", name="the second")
            except kafkadur.SubscriptionActive as refused:
                print(f"refused: {refused.holder} holds it")
            with connection.producer() as producer:
                for number in range(3):
                    producer.publish("ledger", f"entry {number}".encode())
            for _ in range(3):
                message = subscription.receive(timeout=30)
                if message is None:
                    raise SystemExit("no message came within 30 s")
                print(f"{message.value!r}, fencing token {message.fencing_token}")
                message.ack()


if __name__ == "__main__":
    main()
