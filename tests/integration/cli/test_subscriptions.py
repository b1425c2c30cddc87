"""`sub ls | info | explain | unsubscribe` against real servers, with members that hold messages."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

import kafkadur.sync
from kafkadur.settings import settings
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_sharing.keys import PolicyName
from tests.integration.cli.conftest import Run
from tests.integration.subscriptions.helpers import remove


@contextmanager
def held(topic: str, durable: str = "d", **options: Any) -> Generator[kafkadur.sync.Subscription]:
    client_id = options.pop("client_id", None)
    with (
        kafkadur.sync.connect(client_id=client_id) as connection,
        connection.subscribe(topic, durable=durable, start="earliest", name="worker", **options) as sub,
    ):
        yield sub


def explained(run: Run, name: str, offset: int) -> Any:
    return run("sub", "explain", name, 0, offset, "--json").data


def test_namespace_without_subscriptions_gets_no_journal(
    run: Run, kafkadur_admin: AdminClient, kafkadur_namespace: str
) -> None:
    listed = run("sub", "ls", "--json")
    assert (listed.code, listed.data) == (0, [])
    assert "no durable subscriptions" in run("sub", "ls").err
    missing = run("sub", "info", "d")
    assert missing.code == 1
    assert "There is no durable subscription d" in missing.err
    assert run("sub", "unsubscribe", "d", "--yes").code == 1
    assert f"kafkadur.journal.{kafkadur_namespace}" not in kafkadur_admin.list_topics(timeout=10).topics


def test_ls_and_info_count_what_a_member_holds(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run("publish", topic, "-", stdin="m\n" * 10)
    with held(topic, window=4) as sub:
        deliveries = [sub.receive(10) for _ in range(4)]
        assert all(deliveries)
        # Confirmed before anything is asked: the window is full, so nothing follows.
        listed = run("sub", "ls", "--json").data
        assert [(row["name"], row["type"], row["topic"], row["attached"]) for row in listed] == [
            ("d", "shared", topic, 1)
        ]
        assert (listed[0]["in_flight"], listed[0]["lag"], listed[0]["backlog"]) == (4, 10, 10)
        info = run("sub", "info", "d", "--json").data
        assert [(member["name"], member["heard"]) for member in info["members"]] == [("worker", True)]
        assert info["partitions"][0]["floor"] == 0
        assert info["partitions"][0]["log_end"] == 10
        text = run("sub", "info", "d").out
        assert "worker" in text
        assert "came back" in text
        assert f"no, {10 - info['partitions'][0]['next']} offsets not granted" in text
        assert info["behind"] == 10 - info["partitions"][0]["next"] > 0
    after = run("sub", "info", "d", "--json").data
    assert (after["attached"], after["in_flight"], after["backlog"]) == (0, 0, 10)


def test_explain_tells_leased_settled_ready_and_beyond(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run("publish", topic, "-", stdin="m\n" * 10)
    with held(topic, window=4) as sub:
        first, second, third = (sub.receive(10) for _ in range(3))
        assert first is not None
        assert second is not None
        assert third is not None
        first.ack()
        second.rollback(delay=60)
        assert explained(run, "d", first.offset)["state"] == "settled"
        delayed = explained(run, "d", second.offset)
        assert (delayed["state"], delayed["attempt"], delayed["lease"]) == ("ready", 2, None)
        leased = explained(run, "d", third.offset)
        assert (leased["state"], leased["attempt"]) == ("leased", 1)
        assert (leased["lease"]["name"], leased["lease"]["member"]) == ("worker", sub.member_id)
        assert leased["lease"]["token"] == third.fencing_token[1]
        assert explained(run, "d", 9)["state"] == "ready"
        assert explained(run, "d", 10)["state"] == "beyond_end"
        text = run("sub", "explain", "d", 0, third.offset).out
        assert text.startswith(f"d: {topic}[0]@{third.offset} is leased, attempt 1\n")
        assert "worker" in text
    assert explained(run, "d", 2)["state"] == "ready"
    wrong = run("sub", "explain", "d", 1, 0)
    assert wrong.code == 1
    assert "no partition 1" in wrong.err


def test_lane_beyond_the_end_is_reserved(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run("publish", topic, "-", stdin="m\n" * 3)
    with held(topic, type="exclusive", client_id="c", window=10) as sub:
        delivery = sub.receive(10)
        assert delivery
        leased = explained(run, "c/d", delivery.offset)
        assert (leased["state"], leased["lease"]["kind"]) == ("leased", "lane")
        beyond = explained(run, "c/d", 3)
        assert (beyond["state"], beyond["reserved"]) == ("beyond_end", True)
    hint = run("sub", "info", "d")
    assert hint.code == 1
    assert "of this name there is c/d" in hint.err
    assert run("sub", "info", "d", "--client-id", "c", "--json").data["client_id"] == "c"
    assert run("--client-id", "c", "--json", "sub", "info", "d").data["type"] == "exclusive"


def test_before_the_start(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run("publish", topic, "old")
    run("consume", topic, "--durable", "d", "--timeout", 0.1)
    assert explained(run, "d", 0)["state"] == "before_start"
    assert run("sub", "info", "d", "--json").data["backlog"] == 0


def test_unsubscribe_looks_first(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run("publish", topic, "-", stdin="m\n" * 3)
    with held(topic):
        for arguments in ((), ("--yes",)):
            refused = run("sub", "unsubscribe", "d", *arguments)
            assert refused.code == 1
            assert "worker" in refused.err
    dry = run("sub", "unsubscribe", "d")
    assert (dry.code, dry.out) == (0, "")
    assert "messages waiting: 3" in dry.err
    assert run("sub", "info", "d").code == 0
    done = run("sub", "unsubscribe", "d", "--yes", "--json")
    assert done.data == {"subscription": "d", "deleted": True, "backlog": 3}
    assert run("sub", "info", "d").code == 1
    assert run("sub", "ls", "--json").data == []


def test_topic_that_was_deleted_is_said_and_the_rest_listed(
    run: Run, kafkadur_topic: TopicFactory, kafkadur_admin: AdminClient
) -> None:
    gone, stays = kafkadur_topic(), kafkadur_topic()
    run("consume", gone, "--durable", "a", "--timeout", 0)
    run("consume", stays, "--durable", "b", "--timeout", 0)
    remove(kafkadur_admin, gone)
    listed = run("sub", "ls", "--json").data
    assert [(row["name"], row["backlog"]) for row in listed] == [("a", None), ("b", 0)]
    assert "does not exist" in listed[0]["problem"]
    table = run("sub", "ls")
    assert (table.code, "does not exist" in table.err) == (0, True)


def test_ls_tells_subscriptions_of_one_name_apart(
    run: Run, kafkadur_topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    topic = kafkadur_topic()
    ways: tuple[tuple[PolicyName, str | None], ...] = (
        ("restricted", None),
        ("unrestricted", None),
        ("restricted", "east"),
    )
    for policy, member in ways:
        with kafkadur.sync.connect(client_id="office", client_id_policy=policy) as connection:
            connection.subscribe(topic, durable="d", topic_member=member).close()
    lines = run("sub", "ls").out.splitlines()[1:]
    assert len({line.split("shared")[0].strip() for line in lines if "office" in line}) == 2
    assert [line for line in lines if "office (unrestricted)" in line]
    assert [line for line in lines if f"{topic} (member east)" in line]
    found = {(row["policy"], row["topic_member"]) for row in run("sub", "ls", "--json").data}
    assert found == {("restricted", None), ("unrestricted", None), ("restricted", "east")}


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(
    run: Run, kafkadur_topic: TopicFactory, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    topic = kafkadur_topic(3)
    with held(topic):
        listed = run("sub", "ls").out.splitlines()
        lines = run("sub", "info", "d").out.splitlines()
        assert max(map(len, listed + lines)) <= width
        assert listed[0].startswith("name")
        assert "client id" in listed[0]
        # No title was broken.
        assert [line for line in lines if line.startswith("partition ") and line.endswith("backlog")]


def test_info_says_what_its_numbers_count(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run("sub", "create", "all", topic)
    run("sub", "create", "some", topic, "--selector", "n = 1")
    assert "The backlog counts" not in run("sub", "info", "all").out
    assert "The backlog counts messages that the subscription leaves out" in run("sub", "info", "some").out
    with (
        kafkadur.sync.connect() as connection,
        connection.subscribe(topic, durable="lane", type="priority") as subscription,
    ):
        assert subscription.receive(timeout=0.5) is None
        assert "offsets beyond the end" in run("sub", "info", "lane").out


def test_json_is_one_line_where_nobody_reads_it(run: Run) -> None:
    assert json.loads(run("--json", "sub", "ls").out.removesuffix("\n")) == []


def test_key_ordered_subscription_is_shown_by_partition(
    run: Run, here: Path, kafkadur_topic: TopicFactory
) -> None:
    del here
    topic = kafkadur_topic(2)
    with kafkadur.sync.Connection(settings({})) as connection:
        with connection.producer() as producer:
            for n in range(20):
                producer.publish(topic, str(n), key=f"k{n}", partition=0)
        with connection.subscribe(topic, durable="d", type="key-ordered", start="earliest") as subscription:
            first = None
            for _ in range(20):
                delivery = subscription.receive(timeout=20)
                assert delivery is not None
                if delivery.offset == 7:
                    first = delivery
                else:
                    delivery.ack()
            assert first is not None
            leased = run("sub", "explain", "d", "0", "7", "--json").data
            assert (leased["state"], leased["attempt"]) == ("leased", 1)
            first.rollback(delay=60)
        found = run("sub", "info", "d", "--json").data
        assert [partition["partition"] for partition in found["partitions"]] == [0, 1]
        assert (found["partitions"][0]["floor"], found["partitions"][0]["backlog"]) == (7, 1)
        assert (found["backlog"], found["exceptions"]) == (1, 1)
        assert run("sub", "explain", "d", "0", "7", "--json").data["state"] == "ready"
        assert run("sub", "explain", "d", "0", "8", "--json").data["state"] == "settled"
