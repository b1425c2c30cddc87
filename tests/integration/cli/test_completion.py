"""The shell completes commands, options, and the names of subscriptions and topics."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.cli.conftest import Run

PROGRAM = "from kafkadur.cli import main; main()"
#: Seconds a completion may take where servers do not answer: they have one each, and Python has to start.
SOON_S = 30.0


def completed(here: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """Return what bash is offered after these words, the last of which has been begun."""
    monkeypatch.setenv("_KAFKADUR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(("kafkadur", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=here, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def subscriptions(run: Run, kafkadur_topic: TopicFactory) -> None:
    """Create three subscriptions, one of them of a client id."""
    topic = kafkadur_topic()
    for name in ("billing", "bills", "shipping"):
        client = ("--client-id", "shop") if name == "bills" else ()
        assert run("sub", "create", name, topic, *client).code == 0


@pytest.mark.usefixtures("subscriptions")
def test_names_are_completed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(here, monkeypatch, "sub", "info", "bill") == ["billing"]
    assert completed(here, monkeypatch, "sub", "info", "sh") == ["shipping", "shop/bills"]
    assert completed(here, monkeypatch, "sub", "dead", "ls", "shi") == ["shipping"]
    assert completed(here, monkeypatch, "sub", "info", "--client-id", "shop", "bil") == ["bills"]
    assert completed(here, monkeypatch, "--client-id", "shop", "sub", "info", "bil") == ["bills"]
    monkeypatch.setenv("KAFKADUR_CLIENT_ID", "shop")
    assert completed(here, monkeypatch, "sub", "info", "bil") == ["bills"]


def test_topics_are_completed(
    here: Path, monkeypatch: pytest.MonkeyPatch, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    for words in (("publish",), ("consume",), ("sub", "create", "name")):
        until = time.monotonic() + SOON_S
        found: list[str] = []
        while not found and time.monotonic() < until:  # a busy Kafka may take longer than a completion waits
            found = completed(here, monkeypatch, *words, topic[:-1])
        assert found == [topic]


def test_nothing_is_offered_without_servers(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.monotonic()
    assert completed(here, monkeypatch, "sub", "info", "--kafka", "127.0.0.1:1", "b") == []
    monkeypatch.setenv("KAFKADUR_REDIS", "redis://127.0.0.1:1")
    assert completed(here, monkeypatch, "sub", "info", "b") == []
    assert completed(here, monkeypatch, "publish", "--kafka", "127.0.0.1:1", "b") == []
    assert time.monotonic() - begun < SOON_S
    monkeypatch.delenv("KAFKADUR_KAFKA")
    monkeypatch.delenv("KAFKADUR_REDIS")
    assert completed(here, monkeypatch, "sub", "info", "b") == []


def test_commands_and_options_are_completed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(here, monkeypatch, "sub", "al") == ["alter"]
    assert completed(here, monkeypatch, "sub", "alter", "--max-con") == ["--max-consumers"]
