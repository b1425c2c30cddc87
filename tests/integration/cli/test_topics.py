"""`topic create` and `topic ls`."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.cli.conftest import Run
from tests.integration.subscriptions.helpers import LIMIT_S, remove


@pytest.fixture
def name(kafkadur_admin: AdminClient) -> Iterator[str]:
    """Provide the name of a topic that does not exist yet, and remove it."""
    name = f"made-{uuid4().hex[:12]}"
    yield name
    if name in kafkadur_admin.list_topics(timeout=10).topics:
        remove(kafkadur_admin, name)


def test_a_created_topic_takes_messages_and_is_listed(run: Run, name: str) -> None:
    created = run("topic", "create", name, "--partitions", "3", "--config", "retention.ms=60000")
    assert (created.code, created.err) == (0, f"Created topic {name} with 3 partitions.\n")
    assert run("publish", name, "-", stdin="m\n" * 4).code == 0
    (found,) = [each for each in run("topic", "ls", "--json").data if each["name"] == name]
    assert found == {"name": name, "partitions": 3, "replicas": 1, "messages": 4}
    (line,) = [line for line in run("topic", "ls").out.splitlines() if line.startswith(name)]
    assert line.split() == [name, "3", "1", "4"]


def test_kafkas_own_topics_are_not_listed(run: Run, name: str) -> None:
    assert run("topic", "create", name, "--json").data == {"topic": name, "partitions": 1}
    assert [each["name"] for each in run("topic", "ls", "--json").data if each["name"].startswith("__")] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--config", "retention.ms=soon"], "retention.ms"),
        (["--config", "no.such.setting=1"], "no.such.setting"),
        (["--replicas", "9"], "cannot be created"),
        (["--config", "retention"], "NAME=VALUE"),
    ],
)
def test_what_kafka_refuses_is_said(run: Run, name: str, options: list[str], words: str) -> None:
    refused = run("topic", "create", name, *options)
    assert refused.code in (1, 2)
    assert words in refused.err
    assert name not in [each["name"] for each in run("topic", "ls", "--json").data]


def test_a_topic_is_created_once(run: Run, name: str) -> None:
    assert run("topic", "create", name).code == 0
    refused = run("topic", "create", name)
    assert refused.code == 1
    assert f"There is a topic {name} already" in refused.err
    refused = run("topic", "create", "a b")
    assert refused.code == 1
    assert "subscription" not in refused.err
    assert "  remedy: use 1 to 249 letters" in refused.err


def test_topics_that_come_and_go_do_not_disturb_the_list(run: Run, kafkadur_admin: AdminClient) -> None:
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            topic = f"passing-{uuid4().hex[:12]}"
            kafkadur_admin.create_topics([NewTopic(topic, 8)])[topic].result(LIMIT_S)
            remove(kafkadur_admin, topic)

    with ThreadPoolExecutor(1) as pool:
        passing = pool.submit(come_and_go)
        ended = [run("topic", "ls", "--json") for _ in range(15)]
        over.set()
        passing.result(LIMIT_S)
    assert {each.code for each in ended} == {0}, [each.err for each in ended if each.code]
