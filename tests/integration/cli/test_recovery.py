"""`kafkadur recovery`: what it says after a loss, and bringing everything back."""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from confluent_kafka.admin import AdminClient

import kafkadur.sync
from kafkadur.settings import settings
from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.cli.conftest import Run
from tests.integration.subscriptions.helpers import remove

COUNT = 20


@pytest.fixture
def topic(here: Path, kafkadur_topic: TopicFactory) -> str:
    """Provide a topic of two partitions with twenty messages."""
    del here
    name = kafkadur_topic(2)
    with kafkadur.sync.Connection(settings({})) as connection, connection.producer() as producer:
        for n in range(COUNT):
            producer.publish(name, str(n), partition=n % 2)
    return name


@pytest.fixture
def lose(kafkadur_stack: Stack, kafkadur_namespace: str) -> Callable[[], None]:
    """Provide what leaves Redis without anything of the namespace."""

    def lose() -> None:
        with redis.Redis.from_url(kafkadur_stack.admin_redis) as server:
            keys = list(server.scan_iter(match=f"kafkadur:{kafkadur_namespace}:*", count=1000))
            assert keys
            server.delete(*keys)

    return lose


def test_nothing_was_recovered(run: Run, topic: str) -> None:
    assert "Nothing was ever recovered" in run("recovery", "report").err
    with kafkadur.sync.Connection(settings({})) as connection:
        connection.subscribe(topic, durable="d", type="shared").close()
    assert "Nothing was ever recovered" in run("recovery", "report").err
    assert run("recovery", "report", "--json").data == []
    assert "1 were there" in run("recovery", "run").err


def test_the_report_states_exact_offsets(run: Run, topic: str, lose: Callable[[], None]) -> None:
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(
            topic, durable="orders", type="shared", start="earliest", window=COUNT
        ) as subscription,
    ):
        kept = set()
        for _ in range(COUNT):
            delivery = subscription.receive(timeout=10)
            assert delivery is not None
            place = (delivery.partition, delivery.offset)
            if place in {(0, 2), (0, 3), (1, 7)}:
                kept.add(place)
            else:
                delivery.ack_nowait()
    assert len(kept) == 3
    lose()
    brought = run("recovery", "run", "--json").data
    assert brought == {"rebuilt": 1, "intact": 0, "busy": 0, "failed": {}}
    shown = run("recovery", "report", "orders")
    assert shown.code == 0
    assert "orders" in shown.out
    assert "Redis had lost it" in shown.out
    assert "2-3" in shown.out
    (found,) = run("recovery", "report", "--json").data
    assert found["offsets"] == 3
    assert [(p["partition"], p["floor"], p["ranges"]) for p in found["partitions"]] == [
        (0, 2, [[2, 4]]),
        (1, 7, [[7, 8]]),
    ]
    assert run("recovery", "report", "another", "--json").data == []


def test_what_cannot_be_brought_back_is_named(
    run: Run, topic: str, lose: Callable[[], None], kafkadur_admin: AdminClient
) -> None:
    with kafkadur.sync.Connection(settings({})) as connection:
        connection.subscribe(topic, durable="d", type="shared").close()
    remove(kafkadur_admin, topic)
    lose()
    ended = run("recovery", "run")
    assert ended.code == 1
    assert "0 subscriptions were brought back" in ended.err
    assert "The topic does not exist" in ended.err
    assert "1 subscription could not be brought back" in ended.err
