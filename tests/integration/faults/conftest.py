"""Fixtures for the faults that take more than one server: a place for each test on a module's own stack."""

import socket
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.cimpl import NewTopic

from kafkadur.stack import Stack
from kafkadur.stack.kafka import quiet_admin
from tests.integration.subscriptions.helpers import LIMIT_S, Place


@pytest.fixture
def place_on() -> Iterator[Callable[[Stack], Place]]:
    """Provide a maker of places on a stack: a namespace, topics (removed by nobody) and a producer."""
    producers: list[confluent_kafka.Producer] = []

    def on(stack: Stack) -> Place:
        # one message at a time, so that each is its offset; who loses them is the test's business
        raw = confluent_kafka.Producer({"bootstrap.servers": stack.kafka, "linger.ms": 0, "log_level": 0})
        producers.append(raw)
        admin: Any = quiet_admin(stack.kafka)

        def make(partitions: int = 1, **config: object) -> str:
            name = f"t-{uuid.uuid4().hex}"
            settings = {key.replace("_", "."): str(value) for key, value in config.items()}
            admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(LIMIT_S)
            return name

        return Place(stack=stack, make_topic=make, namespace=f"n-{uuid.uuid4().hex}", raw=raw)

    yield on
    for raw in producers:
        raw.flush(LIMIT_S)


@pytest.fixture
def closed_port() -> int:
    """Provide a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
