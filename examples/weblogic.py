"""For who comes from WebLogic: its rules where they differ from Jakarta Messaging's.

Start servers with `kafkadur up` before.
"""

from functools import partial

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
import kafkadur.sync
from kafkadur.stack import up


def main() -> None:
    """A durable subscription changes from shared to exclusive and keeps what waits."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "rates" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("rates", num_partitions=1)])["rates"].result()

    connect = partial(
        kafkadur.sync.connect,
        kafka=stack.kafka,
        redis=stack.redis,
        client_id="desk",
        client_id_policy="unrestricted",
        mode="weblogic",
    )
    with connect() as one, connect() as other:  # both have the client id
        with one.subscribe("rates", durable="d", type="shared"), other.producer() as producer:
            producer.publish("rates", b"EUR 1.08")
            producer.flush()
            try:  # the first consumer has decided how it is shared (rule P4)
                other.subscribe("rates", durable="d", type="exclusive")
            except kafkadur.InvalidSubscriptionSharing as refused:
                print(type(refused).__name__)
        with other.subscribe("rates", durable="d", type="exclusive") as subscription:  # nobody is there (P7)
            message = subscription.receive(timeout=30)
            if message is None:
                raise SystemExit("no message came within 30 s")
            print("exclusive now, and kept:", (message.value or b"").decode())
            message.ack()


if __name__ == "__main__":
    main()
