"""Fixtures of the gateway: a place on the run's stack, and gateways in it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import confluent_kafka
import pytest

from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.subscriptions.helpers import Place, ordered_producer


@pytest.fixture
def place(kafkadur_stack: Stack, kafkadur_topic: TopicFactory, kafkadur_namespace: str) -> Place:
    """Provide a namespace and topics of the test's own on the run's stack."""
    raw: confluent_kafka.Producer = ordered_producer(kafkadur_stack.kafka)
    return Place(stack=kafkadur_stack, make_topic=kafkadur_topic, namespace=kafkadur_namespace, raw=raw)


@pytest.fixture
def gateway(place: Place) -> Iterator[Callable[..., int]]:
    """Provide a starter of gateways, which gives the port; options are those of `GatewaySettings`."""
    from tests.integration.gateway.running import running

    with ExitStack() as stack:

        def start(**options: Any) -> int:
            started: AbstractContextManager[int] = running(place, **options)
            return stack.enter_context(started)

        yield start


@pytest.fixture
def port(gateway: Callable[..., int]) -> int:
    """Provide the port of a gateway."""
    return gateway()
