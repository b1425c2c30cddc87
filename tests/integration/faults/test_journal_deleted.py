"""Somebody deletes the journal topic: consumers go on, say so, and the remedy that they name works."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis
from confluent_kafka.admin import AdminClient

import kafkadur.sync
from kafkadur.admin.changes import Admin
from kafkadur.runtime import checkpoint_thread
from kafkadur.settings import settings
from kafkadur.stack import Stack, as_administrator
from kafkadur_sharing.errors import LevelNotReached
from tests.integration.subscriptions.helpers import LIMIT_S, Place, number, wait_until


@pytest.fixture
def place(kafkadur_stack: Stack, place_on: Callable[[Stack], Place]) -> Place:
    """Provide a place on the run's stack."""
    return place_on(kafkadur_stack)


def receive(subscription: kafkadur.sync.Subscription, count: int) -> list[int]:
    found = []
    for _ in range(count):
        delivery = subscription.receive(LIMIT_S)
        assert delivery is not None
        found.append(number(delivery))
        delivery.ack()
    return found


def test_it_is_made_anew_and_the_remedy_works(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_thread, "LOOK_EVERY", 0.1)
    topic = place.topic(range(30))
    journal = f"kafkadur.journal.{place.namespace}"
    admin: Any = AdminClient({"bootstrap.servers": place.stack.kafka})
    said = "A subscription is not in the journal"
    with (
        caplog.at_level(logging.ERROR, "kafkadur.checkpoints"),
        place.connect_sync(kafka_timeout=2.0, level_timeout=2.0) as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        assert receive(subscription, 10) == list(range(10))
        admin.delete_topics([journal])[journal].result(LIMIT_S)
        wait_until(lambda: journal not in admin.list_topics(timeout=LIMIT_S).topics, "it is deleted")
        assert receive(subscription, 10) == list(range(10, 20))
        wait_until(lambda: said in caplog.text, "it is told")
        delivery = subscription.receive(LIMIT_S)
        assert delivery is not None
        with pytest.raises(LevelNotReached):  # the checkpoint is of no use without the definition
            delivery.ack(level="journal")
    assert journal in admin.list_topics(timeout=LIMIT_S).topics
    assert "Remedy: close its consumers, and write it anew with `kafkadur sub alter" in caplog.text

    with Admin(settings(place.settings())) as changes:
        changes.alter(changes.key("d"))
    caplog.clear()
    with (
        caplog.at_level(logging.ERROR, "kafkadur.checkpoints"),
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d") as subscription,
    ):
        assert receive(subscription, 1) == [21]
    with redis.Redis.from_url(as_administrator(place.stack.redis)) as client:
        for key in client.scan_iter(match=f"kafkadur:{place.namespace}:*", count=1000):
            client.delete(key)
    with place.connect_sync() as connection, connection.subscribe(topic, durable="d") as subscription:
        assert receive(subscription, 1) == [22], "from the journal: a new subscription would begin at the end"
    assert said not in caplog.text
