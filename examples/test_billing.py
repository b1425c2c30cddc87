"""Tests of an application, with the pytest plugin: `python -m pytest examples/test_billing.py`.

`docs/how-to/test-your-code.md` explains the fixtures.
"""

import pytest

import kafkadur
import kafkadur.sync
from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory


def bill(order: kafkadur.sync.Delivery, paid: list[str]) -> None:
    """The code under test: it rejects an order without a customer."""
    if order.key is None:
        raise kafkadur.Reject("no customer")
    paid.append(order.key.decode())


@pytest.fixture
def connection(kafkadur_stack: Stack, kafkadur_namespace: str) -> kafkadur.sync.Connection:
    """Provide a connection that shares nothing with other tests."""
    return kafkadur.sync.connect(
        kafka=kafkadur_stack.kafka, redis=kafkadur_stack.redis, namespace=kafkadur_namespace
    )


def test_orders_are_billed_and_rejected(
    connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    """The order without a customer is a dead letter; the other one is paid."""
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
