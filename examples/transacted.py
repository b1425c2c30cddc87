"""Exactly once from topic to topic: what is received and what is sent hold together, or not at all.

Start servers with `kafkadur up` before.
"""

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur.sync
from kafkadur.stack import up


def next_of(subscription: kafkadur.sync.Subscription) -> kafkadur.sync.Delivery:
    """The next message, which has to be there soon."""
    delivery = subscription.receive(timeout=30)
    if delivery is None:
        raise SystemExit("no message came within 30 s")
    return delivery


def book(session: kafkadur.sync.Session, payments: kafkadur.sync.Subscription) -> None:
    """Book two payments in one transaction."""
    for _ in range(2):
        payment = next_of(payments)
        session.producer().publish("tx-bookings", b"booked " + (payment.value or b""))
        if payment.value == b"payment 3" and payment.attempt == 1:
            raise ConnectionError  # what a real one would call has failed
    session.commit()


def main() -> None:
    """Turn four payments into bookings; the second transaction needs a second try."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    for topic in {"tx-payments", "tx-bookings"} - admin.list_topics().topics.keys():
        admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result()

    with kafkadur.sync.connect(kafka=stack.kafka, redis=stack.redis) as connection:
        with connection.session(transacted=True) as session:
            payments = connection.subscribe(
                "tx-payments", durable="tx-bookkeeping", type="serial", session=session
            )
            bookings = connection.subscribe("tx-bookings", shared="tx-readers")
            with connection.producer() as producer:
                for number in range(4):
                    producer.publish("tx-payments", f"payment {number}")

            for _ in range(3):
                try:
                    book(session, payments)
                except ConnectionError:
                    session.rollback()  # also its booking of payment 2 is never seen
                    print("rolled back")

            for _ in range(4):
                booking = next_of(bookings)
                print((booking.value or b"").decode())
                booking.ack()
        connection.unsubscribe("tx-bookkeeping")


if __name__ == "__main__":
    main()
