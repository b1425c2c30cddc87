"""`sub create` and `sub alter`: every part of a definition, and `sub info` that shows all of it."""

import re

import pytest

import kafkadur.sync
from kafkadur.settings import settings
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.cli.conftest import Run

LIMIT_S = 180.0

#: An option for every part, and what `sub info` shows of it.
PARTS = (
    ("--type serial", "type serial, several consumers"),
    ("--selector", "selector n > 1"),
    ("--header-type n=int --header-type raw=bytes", "header types n: int, raw: bytes"),
    ("--strict-order", "order strict: later messages wait for one that was rolled back"),
    ("--scope partition", "turns on each partition by itself"),
    ("--ack-level journal", "ack level journal"),
    ("--max-consumers 4", "most consumers 4"),
    ("--max-attempts 7", "attempts at most 7"),
    ("--backoff 0.5 --max-backoff 90", "back-off 0.5 s, doubled up to 2 min"),
    ("--max-hold 30", "longest hold 30.0 s"),
    ("--dead-letter-topic graves", "dead letters topic graves"),
    ("--rescue", "rescue expiring messages become dead letters"),
)


def options() -> list[str]:
    """All options of `PARTS`."""
    given = " ".join(option for option, _ in PARTS if option != "--selector").split()
    return [*given, "--selector", "n > 1"]


def shown(output: str) -> list[str]:
    """The lines of a table of facts, without the layout."""
    return [re.sub(r"\s+", " ", line).strip() for line in output.splitlines()]


@pytest.fixture
def topic(kafkadur_topic: TopicFactory) -> str:
    """Provide a topic of two partitions."""
    return kafkadur_topic(2)


def test_messages_wait_in_a_created_subscription(run: Run, topic: str) -> None:
    assert run("publish", topic, "before").code == 0
    created = run("sub", "create", "d", topic)
    assert created.code == 0
    assert f"topic {topic}" in shown(created.out)
    assert run("publish", topic, "after").code == 0
    with (
        kafkadur.sync.connect(**dict(settings({}))) as connection,
        connection.subscribe(topic, durable="d") as subscription,
    ):
        delivery = subscription.receive(LIMIT_S)
        assert delivery is not None
        assert delivery.value == b"after"
    assert run("sub", "create", "d", topic).code == 1, "there is one"
    assert "already" in run("sub", "create", "d", topic).err


def test_one_can_start_at_the_beginning(run: Run, topic: str) -> None:
    assert run("publish", topic, "before").code == 0
    assert run("sub", "create", "d", topic, "--start", "earliest").code == 0
    assert run("sub", "info", "d", "--json").data["backlog"] == 1


def test_every_part_can_be_given_and_is_shown(run: Run, topic: str) -> None:
    assert run("sub", "create", "d", topic, *options()).code == 0
    facts = shown(run("sub", "info", "d").out)
    assert [expected for _, expected in PARTS if expected not in facts] == []
    # the other way: a plain one becomes the same
    assert run("sub", "create", "e", topic).code == 0
    altered = run("sub", "alter", "e", *options(), "--json").data["definition"]
    assert altered == run("sub", "info", "d", "--json").data["definition"]
    # and back
    nothing = "--type shared --max-consumers 0 --max-attempts 0 --backoff 0 --max-backoff 300 --max-hold 0"
    nothing += " --no-rescue --ack-level redis --json"
    cleared = run("sub", "alter", "e", *nothing.split(), "--selector", "", "--dead-letter-topic", "")
    types = "--header-type n=int --header-type raw=bytes --json"
    plain = run("sub", "create", "f", topic, *types.split())
    assert cleared.data["definition"] == plain.data["definition"]


def test_it_is_created_for_a_client_id(run: Run, topic: str) -> None:
    refused = run("sub", "create", "d", topic, "--type", "exclusive")
    assert refused.code == 1
    assert "needs a client id" in refused.err
    assert run("sub", "create", "shop/d", topic, "--type", "exclusive").code == 0
    assert [info["client_id"] for info in run("sub", "ls", "--json").data] == ["shop"]


def test_a_subscription_without_a_client_id_does_not_become_exclusive(run: Run, topic: str) -> None:
    assert run("sub", "create", "d", topic).code == 0
    refused = run("sub", "alter", "d", "--type", "exclusive")
    assert refused.code == 1
    assert "kafkadur sub fork d CLIENT_ID/d" in refused.err
    assert run("sub", "info", "d", "--json").data["type"] == "shared"
    # the remedy
    assert run("sub", "fork", "d", "shop/d").code == 0
    assert run("sub", "alter", "shop/d", "--type", "exclusive").code == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--type", "turns"], "turns"),
        (["--header-type", "n"], "NAME=TYPE"),
        (["--header-type", "n=number"], "NAME=TYPE"),
        (["--backoff", "-1"], "backoff cannot be -1.0"),
        (["--max-attempts", "-1"], "--max-attempts cannot be -1"),
        (["--key-lanes", "3"], "shared has no --key-lanes"),
        (["--selector", "n >"], "selector"),
    ],
)
def test_wrong_parts_are_refused_and_create_nothing(
    run: Run, topic: str, wrong: list[str], words: str
) -> None:
    refused = run("sub", "create", "d", topic, *wrong)
    assert refused.code in (1, 2)
    assert words in re.sub(r"[\s│]+", " ", refused.err)
    assert run("sub", "ls", "--json").data == []


def test_there_must_be_such_a_topic(run: Run) -> None:
    refused = run("sub", "create", "d", "none-such")
    assert refused.code == 1
    assert "none-such" in refused.err
