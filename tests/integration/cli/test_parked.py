"""`kafkadur sub parked`: the keys that are stuck, and what waits behind them."""

from pathlib import Path

import pytest

import kafkadur.sync
from kafkadur.settings import settings
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.cli.conftest import Run

LIMIT_S = 180.0


@pytest.fixture
def topic(here: Path, kafkadur_topic: TopicFactory) -> str:
    """Provide a topic with five messages of each of four keys."""
    del here
    name = kafkadur_topic(2)
    with kafkadur.sync.Connection(settings({})) as connection, connection.producer() as producer:
        for n in range(20):
            producer.publish(name, str(n), key=f"k{n % 4}")
    return name


def test_a_key_that_is_stuck_is_named_and_goes_on_in_order(run: Run, topic: str) -> None:
    found: dict[bytes, list[int]] = {}
    where = (-1, -1)
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(topic, durable="d", type="key-ordered", start="earliest") as subscription,
    ):
        for _ in range(1 + 3 * 5):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            assert delivery.key is not None
            if delivery.key == b"k1":
                where = (delivery.partition, delivery.offset)
                delivery.rollback(delay=3600)
            else:
                found.setdefault(delivery.key, []).append(int(delivery.value or b"-1"))
                delivery.ack()
        assert sorted(found) == [b"k0", b"k2", b"k3"]
        stuck = run("sub", "parked", "d", "--json").data
        assert [(item["partition"], item["offset"]) for item in stuck] == [where]
        assert [(item["key"], item["attempts"], item["behind"]) for item in stuck] == [("k1", 1, 4)]
        assert stuck[0]["due"] is not None
        shown = run("sub", "parked", "d").out
        assert "k1" in shown
        assert "in 59 min" in shown or "in 60 min" in shown or "in 1 h" in shown
    stuck = run("sub", "parked", "d", "--json").data
    assert [(item["key"], item["offset"]) for item in stuck] == [("k1", where[1])], "also with nobody there"


def test_nothing_is_stuck(run: Run, topic: str) -> None:
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(topic, durable="d", type="key-ordered", start="earliest") as subscription,
    ):
        for _ in range(20):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            delivery.ack()
    assert "No key" in run("sub", "parked", "d").err


def test_other_types_park_no_keys(run: Run, topic: str) -> None:
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(topic, durable="d", type="shared"),
    ):
        pass
    assert "Only a key-ordered" in run("sub", "parked", "d").err
