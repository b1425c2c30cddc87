"""What is told of Kafka's client library's own log lines."""

import logging

import pytest

from kafkadur_coordinators.client_log import QUIET_S, Repeats


@pytest.fixture
def now() -> list[float]:
    """Provide the time, to be changed."""
    return [1000.0]


@pytest.fixture
def log(now: list[float], caplog: pytest.LogCaptureFixture) -> logging.Logger:
    """Provide a logger with the filter, captured from INFO on."""
    logger = logging.getLogger("tests.client_log")
    for old in list(logger.filters):
        logger.removeFilter(old)
    logger.addFilter(Repeats(monotonic=lambda: now[0]))
    caplog.set_level(logging.INFO, logger.name)
    return logger


def tell(log: logging.Logger, text: str, client: str = "rdkafka#consumer-1") -> None:
    """Log as librdkafka does."""
    log.error("%s [%s] %s", "FAIL", client, text)


def test_repeats_are_told_once_in_a_while(
    log: logging.Logger, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    for wait in range(20):
        tell(log, f"connection refused (after {wait}ms in state CONNECT)")
    assert len(caplog.messages) == 1
    now[0] += QUIET_S
    tell(log, "connection refused (after 7ms in state CONNECT)")
    assert len(caplog.messages) == 2


def test_other_lines_and_other_kinds_of_clients_are_told(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    tell(log, "refused")
    tell(log, "refused", "rdkafka#consumer-2")
    tell(log, "refused", "rdkafka#producer-3")
    tell(log, "disconnected")
    log.warning("a line of our own")
    log.warning("a line of our own")
    assert [message.partition("] ")[2] for message in caplog.messages[:3]] == [
        "refused",
        "refused",
        "disconnected",
    ]
    assert caplog.messages[3:] == ["a line of our own"] * 2


def test_what_is_tried_again_is_no_error(log: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    tell(log, "Failed to acquire idempotence PID: Coordinator load in progress: retrying")
    assert [record.levelname for record in caplog.records] == ["INFO"]
    caplog.clear()
    log.setLevel(logging.WARNING)
    tell(log, "Failed to do something else: retrying")
    assert caplog.records == []


def test_only_so_many_lines_are_remembered(log: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    tell(log, "first")
    for index in range(300):
        tell(log, "other" + "x" * index)
    tell(log, "first")
    assert [message.partition("] ")[2] for message in caplog.messages].count("first") == 2
