"""`kafkadur --version` says which client reads Kafka."""

from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from kafkadur.cli.application import app
from kafkadur.native import choice


@pytest.mark.parametrize("compiled", [True, False])
def test_the_reader_is_named(monkeypatch: pytest.MonkeyPatch, *, compiled: bool) -> None:
    monkeypatch.setattr(choice, "is_native", lambda: compiled)
    reader = "the compiled client" if compiled else "confluent-kafka's client"
    ended = CliRunner().invoke(app, ["--version"])
    assert ended.stdout == f"kafkadur {version('kafkadur')}, which reads and writes Kafka with {reader}\n"
    assert ended.exit_code == 0
