"""`kafkadur sub dead`: list, show, redrive, purge, on a real topic of dead letters."""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur.sync
from kafkadur import Redelivery
from kafkadur.settings import settings
from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.cli.conftest import Run
from tests.integration.subscriptions.helpers import wait_until

LIMIT_S = 180.0


@pytest.fixture
def topic(here: Path, kafkadur_topic: TopicFactory) -> str:
    """Provide a topic with a subscription `d` and three dead letters: one rejected, two out of attempts."""
    del here
    name = kafkadur_topic(2)
    connection = kafkadur.sync.Connection(settings({}))
    with connection:
        with connection.producer() as producer:
            for n in range(5):
                producer.publish(name, f"secret {n}", key=f"k{n}", properties={"n": n})
        with connection.subscribe(
            name, durable="d", start="earliest", redelivery=Redelivery(max_attempts=1)
        ) as subscription:
            for _ in range(5):
                delivery = subscription.receive(timeout=LIMIT_S)
                assert delivery is not None
                if delivery.properties["n"] == 0:
                    delivery.reject("bad address")
                elif delivery.properties["n"] in (1, 2):
                    delivery.rollback()
                else:
                    delivery.ack()
    return name


def test_list_show_redrive_and_purge(run: Run, topic: str) -> None:
    listed = run("sub", "dead", "ls", "d", "--json").data
    assert sorted(letter["cause"] for letter in listed) == ["attempts", "attempts", "rejected"]
    assert {letter["origin"].partition("[")[0] for letter in listed} == {topic}
    rejected = next(letter for letter in listed if letter["cause"] == "rejected")
    assert rejected["reason"] == "bad address"

    shown = run("sub", "dead", "show", "d", rejected["letter"])
    assert "bad address" in shown.out
    assert "secret" not in shown.out
    shown = run("sub", "dead", "show", "d", rejected["letter"], "--payload", "--json")
    assert (shown.data["value"], shown.data["key"], shown.data["properties"]) == ("secret 0", "k0", {"n": 0})

    assert run("sub", "dead", "redrive", "d", "--where", "n = 1", "--json").data["done"] == 0, "a dry run"
    dry = run("sub", "dead", "redrive", "d").err
    assert "Would redrive 3 dead letters" in dry
    assert "Every subscription of the topic gets them again" in dry
    done = run("sub", "dead", "redrive", "d", "--where", "n = 1 AND _cause = 'attempts'", "--yes", "--json")
    assert (done.data["letters"], done.data["done"]) == (1, 1)
    connection = kafkadur.sync.Connection(settings({}))
    with connection, connection.subscribe(topic, durable="d") as subscription:
        again = subscription.receive(timeout=LIMIT_S)
        assert again is not None
        assert (again.value, again.key, again.properties) == (b"secret 1", b"k1", {"n": 1})
        assert (again.attempt, again.redelivered) == (1, False), "a new message"
        assert [name for name, _ in again.headers if name.startswith("kafkadur-dead")] == []
        again.ack()

    assert len(run("sub", "dead", "ls", "d", "--json").data) == 2
    assert (
        run("sub", "dead", "purge", "d", "--where", "_cause = 'rejected'", "--yes", "--json").data["done"]
        == 1
    )
    assert [letter["cause"] for letter in run("sub", "dead", "ls", "d", "--json").data] == ["attempts"]
    assert run("sub", "dead", "purge", "d", "--yes", "--json").data["done"] == 1
    assert run("sub", "dead", "ls", "d", "--json").data == []
    assert "no dead letters" in run("sub", "dead", "ls", "d").err
    assert [each["name"] for each in run("sub", "ls", "--json").data] == ["d"]
    assert [each["name"] for each in run("sub", "ls", "--all", "--json").data] == ["d", "d.dead"]


def test_a_redriven_message_comes_to_the_partition_of_its_key(run: Run, topic: str) -> None:
    """On another partition it would overtake messages of its key, or fall behind them."""
    letters = run("sub", "dead", "ls", "d", "--json").data
    run("sub", "dead", "redrive", "d", "--yes")
    connection = kafkadur.sync.Connection(settings({}))
    with connection, connection.subscribe(topic, durable="d") as subscription:
        found = [subscription.receive(timeout=LIMIT_S) for _ in range(3)]
        places = {f"{delivery.topic}[{delivery.partition}]" for delivery in found if delivery is not None}
    assert places == {letter["origin"].partition("@")[0] for letter in letters}


@pytest.mark.parametrize("rate", [(), ("--rate", "100")], ids=["together", "one by one"])
def test_a_partition_that_is_gone_is_an_error_and_the_letter_stays(
    run: Run, kafkadur_stack: Stack, kafkadur_topic: TopicFactory, rate: tuple[str, ...]
) -> None:
    topic = kafkadur_topic(partitions=2)
    connection = kafkadur.sync.Connection(settings({}))
    with connection, connection.subscribe(topic, durable="gone", start="earliest") as subscription:
        for n, partition in enumerate((0, 0, 0, 0, 0, 0, 1)):  # the last letter is not the first to be sent
            with connection.producer() as producer:
                producer.publish(topic, f"{partition}", key=f"k{n}", partition=partition)
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            delivery.reject("no")
    admin = AdminClient({"bootstrap.servers": kafkadur_stack.kafka})
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in admin.list_topics().topics, "the topic to be gone")
    admin.create_topics([NewTopic(topic, 1)])[topic].result()
    refused = run("sub", "dead", "redrive", "gone", "--yes", *rate)
    assert refused.code == 1
    assert "Unknown partition" in refused.err
    assert "still a dead letter" in refused.err
    left = run("sub", "dead", "ls", "gone", "--json").data
    assert f"{topic}[1]" in {letter["origin"].partition("@")[0] for letter in left}


def test_the_record_of_handled_letters_is_not_deleted_by_mistake(run: Run, topic: str) -> None:
    del topic
    assert run("sub", "dead", "purge", "d", "--where", "n = 0", "--yes", "--json").data["done"] == 1
    refused = run("sub", "unsubscribe", "d.dead", "--yes")
    assert refused.code == 1
    assert "kafkadur sub dead ls d" in refused.err
    assert len(run("sub", "dead", "ls", "d", "--json").data) == 2
    assert "d.dead" not in run("doctor").out
    abandoned = run("sub", "abandoned", "--older-than", "0s", "--json").data
    assert [each["name"] for each in abandoned] == ["d"], "what records letters never has a consumer"
    run("sub", "unsubscribe", "d", "--yes")
    assert run("sub", "unsubscribe", "d.dead", "--yes").code == 0, "what it was for is gone"


def test_no_such_letter_or_subscription_or_filter(run: Run, topic: str) -> None:
    del topic
    assert run("sub", "dead", "show", "d", "9:9").code == 1
    missing = run("sub", "dead", "ls", "nobody")
    assert missing.code == 1
    assert "nobody" in missing.err
    wrong = run("sub", "dead", "ls", "d", "--where", "a = ")
    assert wrong.code == 1
    assert "Column" in wrong.err
    unknown = run("sub", "dead", "redrive", "d", "--where", "_casue = 'attempts'")
    assert unknown.code == 2
    assert "_cause" in unknown.err


def test_a_filter_that_tests_a_property_instead_of_the_letter_is_pointed_out(run: Run, topic: str) -> None:
    del topic
    for command in ("ls", "purge"):
        found = run("sub", "dead", command, "d", "--where", "cause = 'rejected'")
        assert found.code == 0
        assert "cause is a property of the message; that of the dead letter is _cause." in found.err
    assert "property" not in run("sub", "dead", "ls", "d", "--where", "other = 1").err


def test_a_table_for_people(run: Run, topic: str) -> None:
    shown = run("sub", "dead", "ls", "d", "--limit", "2")
    assert "cause" in shown.out
    assert topic in shown.out.replace("\n", "")
    assert "more than 2" in shown.err


def test_letters_of_a_redrive_that_was_killed_are_all_redriven_by_the_next(
    run: Run, here: Path, kafkadur_topic: TopicFactory
) -> None:
    """After an unclean end they come few at a time, so that the pass has to settle those before it waits."""
    del here
    name, count = kafkadur_topic(), 1_500
    with kafkadur.sync.Connection(settings({})) as connection:
        with connection.producer() as producer:
            for n in range(count):
                producer.publish(name, b"%d" % n)
        with connection.subscribe(name, durable="d", start="earliest", type="shared", window=count) as worker:
            for _ in range(count):
                delivery = worker.receive(timeout=LIMIT_S)
                assert delivery is not None
                delivery.reject_nowait("no")
            worker.flush()
    with kafkadur.sync.Connection(settings({}), guest=True) as connection:
        killed = connection.subscribe(
            f"{name}.dead", durable="d.dead", start="earliest", type="shared", window=10 * count
        )
        for _ in range(count):
            assert killed.receive(timeout=LIMIT_S) is not None
        (member,) = run("member", "ls", "d.dead", "--json").data
        assert run("member", "evict", "d.dead", member["id"], "--yes").code == 0
        killed.close()
    assert run("sub", "dead", "redrive", "d", "--yes", "--json").data["done"] == count
    assert run("sub", "dead", "ls", "d", "--json").data == []
