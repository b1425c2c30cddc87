"""The log of a worker or gateway: one line for each record, whatever a client has written into it."""

import json
import logging
from collections.abc import Iterator

import pytest

from kafkadur.monitoring.logs import LogFormat, LogLevel, announce, log_to_stderr


@pytest.fixture(autouse=True)
def _root() -> Iterator[None]:
    """Restore the root logger."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_a_record_is_one_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogFormat.TEXT, LogLevel.INFO)
    logging.getLogger("kafkadur.test").warning("no topic a\n2026 WARNING forged", extra={"user": "ada"})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING kafkadur.test: no topic a\\u000a2026 WARNING forged (user ada)")


@pytest.mark.parametrize("level", LogLevel)
def test_where_a_process_is_reached_is_told_at_every_level(
    capsys: pytest.CaptureFixture[str], level: LogLevel
) -> None:
    log_to_stderr(LogFormat.JSON, level)
    announce(logging.getLogger("kafkadur.test"), "The gateway is at 1:2")
    logging.getLogger("kafkadur.test").debug("more")
    first, *rest = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["message"], first["level"]) == ("The gateway is at 1:2", "INFO")
    assert [each["message"] for each in rest] == (["more"] if level is LogLevel.DEBUG else [])
