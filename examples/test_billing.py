"""Tests of an application, with the pytest plugin: `python -m pytest examples/test_billing.py`.

`docs/how-to/test-your-code.md` explains the fixtures.
"""

from functools import partial

import pytest

import kafkadur
import kafkadur.sync
from kafkadur.stack import Stack
from kafkadur.testing.in_memory import InMemoryKafka
from kafkadur.testing.pytest_plugin import TopicFactory


def bill(order: kafkadur.sync.Delivery, paid: list[str]) -> None:
    """The code under test: it rejects an order without a customer."""
    if order.key is None:
        raise kafkadur.Reject("no customer")
    paid.append(order.key.decode())


def test_the_handler(kafkadur_in_memory: InMemoryKafka) -> None:
    """In memory, in milliseconds: one order is paid, the order without a customer is a dead letter."""
    kafkadur_in_memory.create_topic("orders")
    paid = list[str]()
    with kafkadur_in_memory.connect_sync() as connection:
        with connection.producer() as producer:
            producer.publish("orders", b"10 EUR", key=b"ada")
            producer.publish("orders", b"20 EUR")
        redelivery = kafkadur.Redelivery(dead_letter_topic="orders-dead")
        with (
            connection.subscribe(
                "orders", durable="billing", start="earliest", redelivery=redelivery
            ) as subscription,
            kafkadur_in_memory.until_settled(subscription),
        ):
            subscription.run(partial(bill, paid=paid))
    assert paid == ["ada"]  # noqa: S101 - this is a test
    assert [letter.value() for letter in kafkadur_in_memory.messages("orders-dead")] == [b"20 EUR"]  # noqa: S101 - as above


@pytest.fixture
def connection(kafkadur_stack: Stack, kafkadur_namespace: str) -> kafkadur.sync.Connection:
    """Provide a connection to real servers that shares nothing with other tests."""
    return kafkadur.sync.connect(
        kafka=kafkadur_stack.kafka, redis=kafkadur_stack.redis, namespace=kafkadur_namespace
    )


def test_with_real_servers(connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory) -> None:
    """The same with a real Kafka."""
    topic, paid = kafkadur_topic(partitions=2), list[str]()
    with connection:
        with connection.producer() as producer:
            producer.publish(topic, b"10 EUR", key=b"ada")
            producer.publish(topic, b"20 EUR")
        with connection.subscribe(topic, durable="billing", start="earliest") as subscription:
            left = 2

            def handle(order: kafkadur.sync.Delivery) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    subscription.stop()
                bill(order, paid)

            subscription.run(handle)
    assert paid == ["ada"]  # noqa: S101 - this is a test
