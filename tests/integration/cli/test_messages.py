"""`publish` and `consume` against real servers."""

import json
import signal

from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.cli.conftest import Run, Spawn


def test_what_is_published_is_consumed_with_key_and_properties(
    run: Run, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    published = run("publish", topic, "grüße", "--key", "k", "-p", "n=5", "-p", "s:str=5", "--json")
    assert published.data == {
        "topic": topic,
        "published": 1,
        "partitions": [{"partition": 0, "first": 0, "last": 0}],
    }
    consume = "consume", topic, "--durable", "d", "--start", "earliest", "--count", 1
    first = run(*consume, "--rollback", "--json")
    assert first.code == 0
    message = first.data
    assert (message["value"], message["key"]) == ("grüße", "k")
    assert message["properties"] == {"n": 5, "s": "5"}
    assert (message["partition"], message["offset"], message["attempt"]) == (0, 0, 1)
    second = run(*consume)
    assert second.out == '0@0  attempt=2  key=k  n=5  s="5"  grüße\n'
    assert "1 acknowledged" in second.err
    third = run("consume", topic, "--durable", "d", "--timeout", 0.3)
    assert (third.code, third.out) == (0, "")


def test_lines_of_stdin_are_messages(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    published = run("publish", topic, "-", stdin="one\n\nthree\n")
    assert published.out == ""
    assert f"Published 3 to {topic}[0]@0..2." in published.err
    found = run("consume", topic, "--durable", "d", "--start", "earliest", "--count", 3, "--json")
    assert [json.loads(line)["value"] for line in found.out.splitlines()] == ["one", "", "three"]


def test_bytes_that_are_no_text_are_published_as_they_are(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    assert run("publish", topic, "-", stdin=b"\xff\xfe\n").code == 0
    assert run("publish", topic, b"\xfd".decode(errors="surrogateescape")).code == 0
    found = run("consume", topic, "--durable", "d", "--start", "earliest", "--count", 2, "--json")
    assert [json.loads(line)["value"] for line in found.out.splitlines()] == [
        {"base64": "//4="},
        {"base64": "/Q=="},
    ]


def test_a_command_without_a_terminal_says_nothing_on_standard_error(
    run: Run, kafkadur_topic: TopicFactory
) -> None:
    run("sub", "create", "d", kafkadur_topic())
    for command in (
        ("sub", "info", "d"),
        ("sub", "alter", "d", "--max-attempts", "5", "--json"),
        ("doctor",),
    ):
        assert run(*command).err == ""


def test_delayed_rollback_waits(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run("publish", topic, "one")
    consume = "consume", topic, "--durable", "d", "--start", "earliest", "--json"
    run(*consume, "--count", 1, "--rollback", "--delay", 60)
    assert run(*consume, "--timeout", 0.3).out == ""
    explained = run("sub", "explain", "d", 0, 0, "--json").data
    assert (explained["state"], explained["attempt"]) == ("ready", 2)
    assert explained["due"] is not None


def test_interrupted_consume_ends_in_order(spawn: Spawn, run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run("publish", topic, "one")
    process = spawn("consume", topic, "--durable", "d", "--start", "earliest")
    assert process.stdout is not None
    assert process.stdout.readline().endswith("one\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines() == [f"Subscription d was created: shared, topic {topic}.", "1 acknowledged."]
    found = run("sub", "info", "d", "--json").data
    assert (found["members"], found["backlog"]) == ([], 0)


def test_exclusive_needs_a_client_id_and_refuses_a_second_one(
    spawn: Spawn, run: Run, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    run("publish", topic, "one")
    consume = "consume", topic, "--durable", "d", "--type", "exclusive", "--start", "earliest"
    refused = run(*consume)
    assert refused.code == 1
    assert "client id" in refused.err
    process = spawn("--client-id", "c", *consume)
    assert process.stdout is not None
    process.stdout.readline()
    second = run(*consume, "--client-id", "c")
    assert second.code == 1
    assert f"/{process.pid}" in second.err


def test_a_subscription_that_exists_is_read_by_its_name_alone(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    definition = "--type", "exclusive", "--selector", "n = 1", "--no-local", "--start", "earliest"
    assert run("sub", "create", "c/d", topic, *definition).code == 0
    run("publish", topic, "other", "-p", "n=2")
    run("publish", topic, "taken", "-p", "n=1")
    found = run("consume", topic, "--durable", "c/d", "--count", 1)
    assert found.code == 0, found.err
    assert found.out.endswith("taken\n")
    assert run("sub", "info", "c/d", "--json").data["definition"]["selector"] == "n = 1"
    refused = run("consume", topic, "--durable", "c/d", "--type", "priority", "--timeout", 0)
    assert refused.code == 1
    assert "exclusive" in refused.err


def test_topic_that_is_not_there_and_wrong_command_lines(run: Run) -> None:
    missing = run("publish", "no-such-topic", "x")
    assert missing.code == 1
    assert "does not exist" in missing.err
    assert run("publish", "t", "x", "-p", "nothing").code == 2
    assert run("publish", "t", "x", "--delay", "-1").code == 2
    assert run("consume", "t", "--durable", "d", "--start", "middle").code == 2
    assert run("consume", "t").code == 2
