"""Where the command line looks for Kafka and Redis, and what it says when they are not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kafkadur.cli.call import Call, Options
from kafkadur.cli.output import Output
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
    assert refused.err.count("\n") == 1


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
    assert len(ended.stderr.splitlines()) == 1
    assert "Remedy: " in ended.stderr
