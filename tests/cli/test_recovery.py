"""`kafkadur recovery`: what it says after a loss, and bringing everything back."""

from collections.abc import Iterator

import pytest
import redis
from confluent_kafka import Producer

import kafkadur
from kafkadur.stack import Stack

COUNT, HELD = 40, 6


@pytest.fixture
def topic(kafkadur_stack: Stack, kafkadur_topic: "kafkadur.pytest_plugin.TopicFactory") -> str:
    name = kafkadur_topic(2)
    producer = Producer({"bootstrap.servers": kafkadur_stack.kafka})
    for number in range(COUNT):
        producer.produce(name, str(number).encode(), partition=number % 2)
    assert producer.flush(10) == 0
    return name


@pytest.fixture
def lose(kafkadur_stack: Stack, kafkadur_namespace: str) -> Iterator["object"]:
    """Provide what removes everything of the namespace from Redis, as a wiped server has nothing of it."""
    server = redis.Redis.from_url(kafkadur_stack.redis)

    def lose() -> None:
        keys = list(server.scan_iter(f"kafkadur:{kafkadur_namespace}:*", count=1000))
        assert keys
        server.delete(*keys)

    yield lose
    server.close()
