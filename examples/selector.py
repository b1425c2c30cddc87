"""By selector: a consumer that takes only what it asks for; and a consumer that is not durable.

Start servers with `kafkadur up` before. Synchronous, with the same names as the asynchronous surface.
"""

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur.sync
from kafkadur.stack import up


def main() -> None:
    """Publish ten offers; one consumer wants large ones from Europe, another one listens to all of them."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "offers" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("offers", num_partitions=1)])["offers"].result()

    with kafkadur.sync.connect(kafka=stack.kafka, redis=stack.redis) as connection:
        buyer = connection.subscribe("offers", durable="buyer", selector="region = 'EU' AND amount >= 50")
        listener = connection.subscribe("offers")  # not durable: from now on, until it is closed
        with connection.producer() as producer:
            for number in range(10):
                properties = {"region": "EU" if number % 2 else "US", "amount": number * 10}
                producer.publish("offers", f"offer {number}".encode(), properties=properties)
        heard = 0
        while heard < 10:
            message = listener.receive(timeout=30)
            if message is None:
                raise SystemExit("no message came within 30 s")
            message.ack()
            heard += 1
        print(f"the listener heard {heard}")
        for _ in range(3):
            message = buyer.receive(timeout=30)
            if message is None:
                raise SystemExit("no message came within 30 s")
            print(f"the buyer takes {message.value!r}: {message.properties}")
            message.ack()


if __name__ == "__main__":
    main()
