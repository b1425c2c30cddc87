"""Fixtures for the tests of subscriptions: a place on the run's stack, and workers to kill."""

from collections.abc import Callable, Iterator

import confluent_kafka
import pytest

from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.subscriptions.helpers import Place, ordered_producer
from tests.integration.subscriptions.workers import Worker


@pytest.fixture(scope="session")
def raw_producer(kafkadur_stack: Stack) -> confluent_kafka.Producer:
    """Provide a plain producer for messages whose headers do not matter."""
    return ordered_producer(kafkadur_stack.kafka)


@pytest.fixture
def place(
    kafkadur_stack: Stack,
    kafkadur_topic: TopicFactory,
    kafkadur_namespace: str,
    raw_producer: confluent_kafka.Producer,
) -> Place:
    """Provide a namespace and topics of the test's own on the run's stack."""
    return Place(
        stack=kafkadur_stack, make_topic=kafkadur_topic, namespace=kafkadur_namespace, raw=raw_producer
    )


@pytest.fixture
def start_worker(place: Place) -> Iterator[Callable[..., Worker]]:
    """Provide a starter of worker processes: ``start(topic, durable=, type=, **settings)``."""
    started: list[Worker] = []

    def start(topic: str, **options: object) -> Worker:
        worker = Worker(place.settings(), topic, options)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.end()
