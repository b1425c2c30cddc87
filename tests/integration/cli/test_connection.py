"""Where the command line looks for Kafka and Redis, and what it says when they are not there."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kafkadur.cli import application
from kafkadur.cli.call import Call
from kafkadur.cli.options import Options
from kafkadur.cli.output import Output
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_sharing.errors import IllegalState
from tests.integration.cli.conftest import Run


def test_options_win_over_the_environment_and_the_inner_ones_over_the_outer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKADUR_KAFKA", "environment:1")
    monkeypatch.setenv("KAFKADUR_NAMESPACE", "environment")
    options = Options(kafka="inner:1").over(Options(kafka="outer:1", redis="redis://outer:1"))
    settings = Call(options=options, out=Output()).settings()
    assert settings.kafka["bootstrap.servers"] == "inner:1"
    assert settings.redis == "redis://outer:1"
    assert settings.namespace == "environment"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("KAFKADUR_REDIS", "nonsense", "redis://"),
        ("KAFKADUR_SESSION_TIMEOUT", "soon", "soon"),
        ("KAFKADUR_SESSION_TIMEOUT", "0", "session_timeout"),
        ("KAFKADUR_NAMESPACE", "a b", "namespace"),
    ],
)
def test_wrong_settings_are_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    refused = run("sub", "ls")
    assert refused.code == 1
    assert said in refused.err
    message, *parts = refused.err.splitlines()
    assert message.endswith(".")
    assert [part.partition(":")[0].strip() for part in parts] == ["state", "remedy"][-len(parts) :]


@pytest.mark.parametrize(
    ("arguments", "said", "path"),
    [
        (("sub", "info", "--json"), "NAME", "kafkadur sub info"),
        (("sub", "info", "d", "--jsno", "--json"), "--jsno", "kafkadur sub info"),
        (("--json", "sbu"), "sbu", "kafkadur"),
        (("consume", "t", "--durable", "d", "--start", "middle", "--json"), "middle", "kafkadur consume"),
    ],
)
def test_a_wrong_command_line_is_json_as_well(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str, path: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        application.run(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    told = json.loads(err)
    assert said in told.pop("message")
    assert told == {"error": "UsageError", "state": None, "owner": None, "remedy": f"see `{path} --help`"}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_are_as_they_are_without_json(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    shown: list[str] = []
    for arguments in ([option], [option, "--json"]):
        with pytest.raises(SystemExit) as ended:
            application.run(arguments)
        assert ended.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


def test_the_exit_status_is_that_of_the_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del here
    with pytest.raises(SystemExit) as ended:
        application.run(["sub", "info", "nobody", "--json"])
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().err)["error"] == "InvalidDestination"
    with pytest.raises(SystemExit) as ended:
        application.run(["sub", "ls", "--json"])
    assert (ended.value.code, capsys.readouterr().out) == (0, "[]\n")


def test_nothing_says_where_kafka_is(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KAFKADUR_KAFKA")
    monkeypatch.delenv("KAFKADUR_REDIS")
    with pytest.raises(IllegalState):
        Call(options=Options(), out=Output()).settings()
    refused = run("sub", "ls")
    assert refused.code == 1
    assert "kafkadur up" in refused.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("sub", "ls", "--redis", "redis://127.0.0.1:1"),
        ("sub", "ls", "--kafka", "127.0.0.1:1"),
        ("sub", "info", "d", "--kafka", "127.0.0.1:1"),
        ("publish", "topic", "value", "--kafka", "127.0.0.1:1"),
        ("consume", "topic", "--durable", "d", "--kafka", "127.0.0.1:1"),
    ],
)
def test_server_that_is_not_there_is_one_message_and_no_chatter(
    here: Path, arguments: tuple[str, ...]
) -> None:
    # A process of its own: what librdkafka writes goes past Python's standard error.
    ended = subprocess.run(
        [sys.executable, "-m", "kafkadur.cli", *arguments],
        check=False, capture_output=True, text=True, cwd=here,
        env={**os.environ, "KAFKADUR_KAFKA_TIMEOUT": "1"}, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n  remedy: ") == 1
    assert "127.0.0.1:1" in ended.stderr
    assert "Connection refused" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "StateLost" not in ended.stderr


def test_the_remedy_asks_where_redis_is_if_nothing_says_so(here: Path) -> None:
    with socket.socket() as usual:
        if usual.connect_ex(("127.0.0.1", 6379)) == 0:
            pytest.skip("there is a Redis where it usually is")
    ended = subprocess.run(
        [sys.executable, "-m", "kafkadur.cli", "sub", "ls", "--kafka", "127.0.0.1:1"],
        check=False, capture_output=True, text=True, cwd=here,
        env={name: value for name, value in os.environ.items() if name != "KAFKADUR_REDIS"}, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "  remedy: give --redis URL, or set KAFKADUR_REDIS, if it is not there; check that" in ended.stderr


def test_an_error_speaks_of_options_and_has_a_line_for_each_part(
    run: Run, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    assert run("sub", "create", "d", topic, "--selector", "n = 1").code == 0
    refused = run("consume", topic, "--durable", "d", "--selector", "n = 2", "--timeout", "0")
    assert refused.code == 1
    message, *parts = refused.err.splitlines()
    remedy = "attach with --selector 'n = 1', or change it with `kafkadur sub alter`, "
    remedy += "which keeps what is settled, and of what waits all that the new selector takes"
    assert message == "Subscription d has another definition than asked for."
    assert parts == [
        "  state: selector is 'n = 1', asked for is 'n = 2'; 0 messages wait",
        "  owner: subscription d",
        f"  remedy: {remedy}",
    ]
    refused = run("consume", topic, "--durable", "e", "--type", "exclusive", "--timeout", "0")
    assert "give --client-id ID" in refused.err
    assert run("sub", "create", "e", topic).code == 0
    refused = run("consume", topic, "--durable", "e", "--selector", "n = 2", "--timeout", "0")
    assert "  remedy: attach with no --selector, or change it with `kafkadur sub alter`" in refused.err


def test_a_warning_speaks_of_options(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    assert run("sub", "create", "d", topic, "--start", "earliest").code == 0
    warned = run("consume", topic, "--durable", "d", "--start", "latest", "--timeout", "0")
    assert warned.code == 0
    state = "State: start is 'earliest', asked for is 'latest'."
    remedy = "Remedy: attach with the same, or move it: `kafkadur sub seek`."
    assert warned.err.splitlines() == [
        f"Subscription d stays as it was created. {state} {remedy}",
        "0 acknowledged.",
    ]


def test_an_error_is_json_where_data_is(run: Run) -> None:
    refused = run("sub", "info", "d", "--json")
    assert (refused.code, refused.out) == (1, "")
    told = json.loads(refused.err)
    assert told["error"] == "InvalidDestination"
    assert told["message"].startswith("There is no durable subscription d")
    assert "kafkadur sub ls" in told["remedy"]
    assert (told["state"], told["owner"]) == (None, None)


@pytest.mark.parametrize("option", ["--kafka", "--redis"])
def test_an_address_that_does_not_answer_is_named_within_seconds(here: Path, option: str) -> None:
    """It takes connections and never answers, as behind a firewall or a wrong port."""
    silent = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_TIMEOUT")}
    with silent:
        ended = subprocess.run(
            [sys.executable, "-m", "kafkadur.cli", "sub", "ls", option,
             f"redis://{address}" if option == "--redis" else address],
            check=False, capture_output=True, text=True, cwd=here, env=environment, timeout=60,
        )  # fmt: skip
    assert ended.returncode == 1
    assert address in ended.stderr
    assert "  remedy: " in ended.stderr
    assert "Traceback" not in ended.stderr
