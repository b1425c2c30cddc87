"""`kafkadur context`, and which of the places that can say where the servers are wins."""

import stat
from pathlib import Path

import pytest

from kafkadur.cli import context_file
from kafkadur.cli.call import Call
from kafkadur.cli.options import Options
from kafkadur.cli.output import Output
from kafkadur.settings import Settings
from kafkadur.stack import Stack
from kafkadur_sharing.errors import IllegalState
from tests.integration.cli.conftest import Run

#: Nothing listens there.
NOWHERE = ("--kafka", "127.0.0.1:1", "--redis", "redis://127.0.0.1:1")


def settings(context: str | None = None, redis: str | None = None, namespace: str | None = None) -> Settings:
    return Call(options=Options(context=context, redis=redis, namespace=namespace), out=Output()).settings()


@pytest.fixture
def silent(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the environment say nothing of the servers."""
    for name in ("KAFKA", "REDIS", "NAMESPACE"):
        monkeypatch.delenv(f"KAFKADUR_{name}")
    return here


@pytest.mark.usefixtures("silent")
def test_a_context_is_added_listed_used_left_and_removed(run: Run) -> None:
    assert run("context", "ls", "--json").data == []
    assert "There are no contexts" in run("context", "ls").err
    added = run(
        "context", "add", "prod", "--kafka", "kafka:9092", "--redis", "rediss://shop:secret@redis:6379/0",
        "--client-id", "billing", "--json",
    )  # fmt: skip
    assert added.data == {"context": "prod", "file": str(context_file.place())}
    assert run("context", "add", "test", *NOWHERE, "--namespace", "trial").code == 0
    assert run("context", "use", "prod").code == 0
    listed = run("context", "ls", "--json")
    assert [(row["context"], row["in_use"], row["namespace"], row["client_id"]) for row in listed.data] == [
        ("prod", True, "default", "billing"),
        ("test", False, "trial", None),
    ]
    table = run("context", "ls").out
    assert "kafka:9092" in table
    assert "secret" not in listed.out + table
    assert settings().client_id == "billing"
    assert run("context", "leave").code == 0
    assert not any(row["in_use"] for row in run("context", "ls", "--json").data)
    assert run("context", "rm", "prod", "--json").data == {"removed": "prod"}
    assert [row["context"] for row in run("context", "ls", "--json").data] == ["test"]


@pytest.mark.usefixtures("silent")
def test_a_context_that_is_removed_is_not_in_use_any_more(run: Run) -> None:
    run("context", "add", "old", *NOWHERE)
    run("context", "use", "old")
    run("context", "rm", "old")
    assert context_file.read().in_use is None
    assert "It is not said where Kafka is" in run("sub", "ls").err


def test_only_its_owner_can_read_the_file(run: Run) -> None:
    run("context", "add", "prod", *NOWHERE)
    assert stat.S_IMODE(context_file.place().stat().st_mode) == 0o600
    assert [file.name for file in context_file.place().parent.iterdir()] == ["contexts.json"]


def test_a_context_of_the_same_name_is_replaced_only_when_asked(run: Run) -> None:
    run("context", "add", "prod", "--kafka", "one:1")
    refused = run("context", "add", "prod", "--kafka", "two:2")
    assert (refused.code, context_file.read().named("prod").kafka) == (1, "one:1")
    assert "--replace" in refused.err
    assert run("context", "add", "prod", "--kafka", "two:2", "--replace").code == 0
    assert context_file.read().named("prod").kafka == "two:2"


def test_a_file_of_kafka_settings_says_where_kafka_is(run: Run, silent: Path) -> None:
    (silent / "client.properties").write_text("bootstrap.servers=kafka:9093\nsecurity.protocol=SSL\n")
    assert run("context", "add", "prod", "--kafka-config", "client.properties").code == 0
    kept = context_file.read().named("prod")
    assert (kept.kafka, kept.kafka_config) == ("kafka:9093", str(silent / "client.properties"))
    kafka = settings(context="prod").kafka
    assert (kafka["bootstrap.servers"], kafka["security.protocol"]) == ("kafka:9093", "SSL")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("prod",), "give --kafka HOST:PORT"),
        (("prod", "--kafka", "a:1", "--redis", "http://b"), "The setting redis is wrong"),
        (("a/b", "--kafka", "a:1"), "The name of a context 'a/b' contains '/'"),
    ],
)
def test_a_wrong_context_is_refused(run: Run, arguments: tuple[str, ...], told: str) -> None:
    refused = run("context", "add", *arguments)
    assert refused.code == 1
    assert told in refused.err
    assert not context_file.place().exists()


@pytest.mark.parametrize("name", ["use", "rm"])
def test_a_context_that_is_not_there(run: Run, name: str) -> None:
    run("context", "add", "prod", *NOWHERE)
    refused = run("context", name, "prot")
    assert refused.code == 1
    assert "There is no context 'prot'" in refused.err
    assert "contexts: prod" in refused.err


@pytest.mark.parametrize("content", ["", "[]", "{", '{"contexts": {"prod": {}}}', '{"more": 1}'])
def test_a_file_that_was_spoilt_is_one_message(run: Run, content: str) -> None:
    file = context_file.place()
    file.parent.mkdir(parents=True)
    file.write_text(content)
    refused = run("context", "ls")
    assert refused.code == 1
    assert "The contexts cannot be read" in refused.err
    assert str(file) in refused.err.replace("\n", "")
    assert file.read_text() == content


# --- which place wins -----------------------------------------------------------------------------------


def test_options_win_over_the_named_context_and_this_over_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("context", "add", "prod", "--kafka", "prod:1", "--redis", "redis://prod:1")
    named = settings(context="prod")
    assert (named.kafka["bootstrap.servers"], named.redis, named.namespace) == (
        "prod:1",
        "redis://prod:1",
        "default",
    )
    mixed = settings(context="prod", redis="redis://other:1", namespace="mine")
    assert (mixed.kafka["bootstrap.servers"], mixed.redis, mixed.namespace) == (
        "prod:1",
        "redis://other:1",
        "mine",
    )
    monkeypatch.setenv(context_file.VARIABLE, "prod")
    assert settings().redis == "redis://prod:1"
    monkeypatch.setenv(context_file.VARIABLE, "gone")
    refused = run("sub", "ls")
    assert refused.code == 1
    assert "There is no context 'gone'" in refused.err


def test_a_named_context_leaves_out_the_password_of_another_kafka(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "prod.properties").write_text("sasl.password=secret\n")
    monkeypatch.setenv("KAFKADUR_KAFKA_CONFIG", str(here / "prod.properties"))
    run("context", "add", "test", *NOWHERE)
    assert "sasl.password" not in settings(context="test").kafka
    assert settings().kafka["sasl.password"] == "secret"


def test_the_environment_wins_over_the_context_in_use(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("context", "add", "other", *NOWHERE)
    run("context", "use", "other")
    assert run("sub", "ls", "--json").data == []
    monkeypatch.delenv("KAFKADUR_KAFKA")
    with pytest.raises(IllegalState, match="where Kafka is"):  # no half of a context: Redis is said
        settings()
    monkeypatch.delenv("KAFKADUR_REDIS")
    monkeypatch.setenv("KAFKADUR_NAMESPACE", "mine")
    assert (settings().redis, settings().namespace) == ("redis://127.0.0.1:1", "mine")


@pytest.mark.usefixtures("silent")
def test_a_context_in_use_reaches_the_servers(
    run: Run, kafkadur_stack: Stack, kafkadur_namespace: str
) -> None:
    run(
        "context", "add", "here", "--kafka", kafkadur_stack.kafka, "--redis", kafkadur_stack.redis,
        "--namespace", kafkadur_namespace,
    )  # fmt: skip
    run("context", "use", "here")
    assert run("sub", "create", "d", "no-such-topic").code == 1
    assert run("sub", "ls", "--json").data == []
    assert f"n={kafkadur_namespace}" not in run("acl", "redis").out
    assert kafkadur_namespace in run("acl", "redis", "--context", "here").out
