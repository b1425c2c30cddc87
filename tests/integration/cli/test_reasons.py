"""`kafkadur sub explain` for every reason there is, each really brought about."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

import kafkadur.sync
from kafkadur.settings import settings
from kafkadur.sync import Subscription
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_sharing.definition import SubscriptionType, TypeName
from tests.integration.cli.conftest import Run

LIMIT_S = 180.0


@pytest.fixture
def topic(here: Path, kafkadur_topic: TopicFactory) -> str:
    """Provide a topic of one partition with six messages that are numbered."""
    del here
    name = kafkadur_topic(1)
    with kafkadur.sync.Connection(settings({})) as connection, connection.producer() as producer:
        for n in range(6):
            producer.publish(name, str(n), properties={"n": n})
    return name


@contextmanager
def subscribed(
    topic: str,
    *,
    kind: TypeName = "shared",
    window: int = 1_000,
    selector: str | None = None,
    strict: bool = False,
) -> Generator[Subscription]:
    """Provide a consumer of the subscription d that starts at the beginning."""
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(
            topic,
            durable="d",
            type=SubscriptionType(kind),
            start="earliest",
            window=window,
            selector=selector,
            strict_order=strict,
        ) as subscription,
    ):
        yield subscription


def take(subscription: Subscription) -> kafkadur.sync.Delivery:
    delivery = subscription.receive(timeout=LIMIT_S)
    assert delivery is not None
    return delivery


def said(run: Run, offset: int) -> tuple[str, str | None, str]:
    """State, verdict and all notes of an offset."""
    found = run("sub", "explain", "d", "0", str(offset), "--json").data
    return found["state"], found["verdict"], " ".join(found["notes"])


def test_how_it_was_settled(run: Run, topic: str) -> None:
    with subscribed(topic, selector="n <> 2") as subscription:
        for n in (0, 1, 3, 4, 5):
            delivery = take(subscription)
            assert delivery.value == str(n).encode()
            if n == 3:
                delivery.reject("no such account")
            else:
                delivery.ack()
    assert said(run, 0)[:2] == ("settled", "acknowledged")
    assert said(run, 2)[:2] == ("settled", "filtered")
    assert "n <> 2" in said(run, 2)[2]
    assert said(run, 3)[:2] == ("settled", "rejected")
    assert f"{topic}.dead[0]@0" in said(run, 3)[2]
    assert "settled: rejected" in run("sub", "explain", "d", "0", "3").out


def test_where_no_message_lies_and_what_an_open_transaction_holds(run: Run, topic: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": str(settings({}).kafka["bootstrap.servers"]), "transactional.id": topic}
    )
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"6", partition=0)
    producer.commit_transaction(LIMIT_S)  # its marker is offset 7
    with kafkadur.sync.Connection(settings({})) as connection, connection.producer() as plain:
        plain.publish(topic, "8", partition=0)
    producer.begin_transaction()
    producer.produce(topic, b"9", partition=0)
    assert producer.flush(LIMIT_S) == 0
    try:
        with subscribed(topic) as subscription:
            for _ in range(8):
                take(subscription).ack()
        assert said(run, 6)[:2] == ("settled", "acknowledged")
        assert said(run, 7)[:2] == ("settled", "gap")
        state, _, notes = said(run, 9)
        assert state == "beyond_end"
        assert "still open" in notes
        assert "from 9 on" in notes
        assert "Nothing is written there yet" in said(run, 20)[2]
    finally:
        producer.abort_transaction(LIMIT_S)


def test_what_waits_with_nobody_there_or_while_it_is_paused(run: Run, topic: str) -> None:
    with subscribed(topic) as subscription:
        take(subscription).ack()
    state, _, notes = said(run, 3)
    assert state == "ready"
    assert "Nobody is attached" in notes
    assert "2 unsettled messages of its partition come before it" in notes
    assert run("sub", "pause", "d").code == 0
    assert "paused" in said(run, 3)[2]
    assert "paused" not in said(run, 0)[2], "a pause says nothing of what is settled"


def test_what_waits_for_room_in_a_window(run: Run, topic: str) -> None:
    with subscribed(topic, window=2) as subscription:
        held = [take(subscription), take(subscription)]
        state, _, notes = said(run, 5)
        assert (state, len(held)) == ("ready", 2)
        assert "windows of all members are full" in notes


def test_what_waits_in_strict_order(run: Run, topic: str) -> None:
    with subscribed(topic, kind="serial", strict=True) as subscription:
        take(subscription).rollback(delay=600)
    state, _, notes = said(run, 4)
    assert state == "ready"
    assert "waits for offset 0" in notes
    assert said(run, 0)[0] == "ready"
    assert "delayed" in run("sub", "explain", "d", "0", "0").out


def test_what_is_not_due_yet_and_what_has_expired(run: Run, topic: str) -> None:
    run("publish", topic, "late", "--delay", "3600")
    run("publish", topic, "short", "--ttl", "0.001")
    with subscribed(topic):
        pass  # nothing was received: no consumer has looked at the messages
    assert "delivery time has not come" in said(run, 6)[2]
    assert "time to live has ended" in said(run, 7)[2]
    with subscribed(topic) as subscription:
        for _ in range(6):
            take(subscription).ack()
        assert subscription.receive(timeout=0.5) is None
        state, _, notes = said(run, 6)
        assert state == "ready"
        assert "delivery time has not come" in notes
        shown = run("sub", "explain", "d", "0", "6").out
        assert "in 59 min" in shown or "in 60 min" in shown, shown
        peeked = run("sub", "peek", "d").out
        assert "due in" in peeked
        state, verdict, notes = said(run, 7)
        assert (state, verdict) == ("settled", "acknowledged, or expired")
        assert "time to live has ended" in notes
    assert run("sub", "info", "d", "--json").data["backlog"] == 1
