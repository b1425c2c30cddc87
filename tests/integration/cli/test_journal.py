"""`kafkadur journal inspect | verify`, on the records of subscriptions that were used."""

from typing import Any

import pytest
from confluent_kafka import Producer

import kafkadur.sync
from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_coordinators.journal.topic import journal_topic
from tests.integration.cli.conftest import Run


@pytest.fixture
def used(run: Run, kafkadur_topic: TopicFactory) -> str:
    """Provide a topic with a subscription that was created, altered, and left with something settled."""
    topic = kafkadur_topic()
    with kafkadur.sync.connect() as connection:
        with connection.producer() as producer:
            producer.publish(topic, b"one")
        with connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription:
            held = subscription.receive(timeout=60)
            assert held is not None
            held.ack()
    assert run("sub", "alter", "d", "--max-attempts", 3).code == 0
    return topic


def test_records_are_shown_with_what_they_say(run: Run, used: str) -> None:
    found = run("journal", "inspect", "--json").data
    changes = [each for each in found if each["kind"] == "change"]
    assert [each["subscription"] for each in changes] == ["d", "d"]
    assert changes[0]["text"].endswith(f"created: shared on {used}")
    assert "replaces version" in changes[1]["text"]
    assert {each["kind"] for each in found} >= {"change", "checkpoint", "shards"}
    assert not [each for each in found if each["damage"]]
    table = run("journal", "inspect").out
    assert "settled to 1" in table
    assert run("journal", "inspect", "--kind", "change", "--limit", 1, "--json").data == changes[1:]
    assert run("journal", "inspect", "--name", "other", "--json").data == []


@pytest.mark.usefixtures("used")
def test_a_journal_without_damage_passes(run: Run) -> None:
    verified = run("journal", "verify", "--json")
    assert verified.code == 0
    assert verified.data["damaged"] == []
    assert verified.data["kinds"]["change"] == 2


DAMAGED = (
    (b"change/x/0/y", b'{"body":{},"sum":1}', "left out"),
    (b"incarnation/x", b"nonsense", "left out"),
    (b"settled/0.0:0:x:0:w:1", b"KC", "settles nothing"),
    (b"recovery/x", b"{}", "left out"),
    (b"stranger", b"value", "not known"),
)


@pytest.mark.usefixtures("used")
def test_records_that_cannot_be_read_are_named(
    run: Run, kafkadur_stack: Stack, kafkadur_namespace: str
) -> None:
    producer = Producer({"bootstrap.servers": kafkadur_stack.kafka})
    places: list[Any] = []
    for key, value, _ in DAMAGED:
        topic = journal_topic(kafkadur_namespace)
        producer.produce(topic, value, key, partition=1, on_delivery=lambda _, m: places.append(m.offset()))
    producer.flush(60)
    verified = run("journal", "verify")
    assert verified.code == 1
    told = verified.err.splitlines()
    for place, (_, _, what) in zip(places, DAMAGED, strict=True):
        (line,) = [each for each in told if each.startswith(f"1@{place}, ")]
        assert what in line
    damaged = run("journal", "verify", "--json").data["damaged"]
    assert [(each["shard"], each["offset"]) for each in damaged] == [(1, place) for place in places]
    assert run("sub", "info", "d").code == 0  # the others count as before


def test_a_namespace_without_a_journal(run: Run) -> None:
    assert run("journal", "inspect", "--json").data == []
    assert run("journal", "verify").code == 0
