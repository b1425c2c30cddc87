"""For who comes from Jakarta Messaging: the same names, over Kafka.

Start servers with `kafkadur up` before.
"""

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur
from kafkadur.jms import AcknowledgeMode, ConnectionFactory
from kafkadur.stack import up


def main() -> None:
    """Send three orders, acknowledge two, and have the third come again."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "jms-orders" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("jms-orders", num_partitions=1)])["jms-orders"].result()

    factory = ConnectionFactory(kafka=stack.kafka, redis=stack.redis, client_id="office")
    with factory.create_connection() as connection:
        connection.start()
        try:
            factory.create_connection()
        except kafkadur.InvalidClientId as refused:
            print(type(refused).__name__)  # one connection has a client id

        session = connection.create_session(AcknowledgeMode.CLIENT_ACKNOWLEDGE)
        consumer = session.create_durable_consumer("jms-orders", "orders", "amount > 10")
        with session.create_producer("jms-orders") as producer:
            for amount in (5, 20, 30, 40):
                producer.send(f"order of {amount}", properties={"amount": amount})

        first, second = consumer.receive(timeout=30), consumer.receive(timeout=30)
        if first is None or second is None:
            raise SystemExit("no message came within 30 s")
        second.acknowledge()  # everything the session delivered so far
        print("acknowledged:", first.text, "and", second.text)
        third = consumer.receive(timeout=30)
        session.recover()  # the third was not
        again = consumer.receive(timeout=30)
        if third is None or again is None:
            raise SystemExit("no message came within 30 s")
        print(f"again: {again.text}, delivery {again.jmsx_delivery_count}")
        again.acknowledge()
        consumer.close()
        session.unsubscribe("orders")


if __name__ == "__main__":
    main()
