"""Fixtures for the tests of workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.end_to_end.service.helpers import Shop
from tests.integration.subscriptions.helpers import Place, ordered_producer


@pytest.fixture
def shop(
    kafkadur_stack: Stack, kafkadur_topic: TopicFactory, kafkadur_namespace: str, tmp_path: Path
) -> Iterator[Shop]:
    """Provide a topic of two partitions, and a folder for a module and its workers."""
    raw = ordered_producer(kafkadur_stack.kafka)
    place = Place(stack=kafkadur_stack, make_topic=kafkadur_topic, namespace=kafkadur_namespace, raw=raw)
    shop = Shop(place, tmp_path, place.topic(partitions=2))
    yield shop
    for process in shop.started:
        process.kill()
