"""The facts that a reader takes from the log lines of librdkafka, and the lines that are passed on."""

import logging

import pytest

from kafkadur.fetch.reader_log import ReaderLog
from kafkadur_sharing.errors import TopicChanged


def line(log: ReaderLog, level: int, text: str) -> None:
    """Log as confluent-kafka does."""
    log.log(level, "%s [%s] %s", "FAC", "rdkafka#consumer-1", f"[thrd:main]: {text}")


def test_another_topic_id_is_an_error() -> None:
    log = ReaderLog("t", "old", {})
    line(log, logging.DEBUG, "Topic t changed id from AAAAAAAAAAAAAAAAAAAAAA to old")
    line(log, logging.DEBUG, "Topic tt changed id from old to new")
    log.check_topic("s")
    line(log, logging.DEBUG, "Topic t changed id from old to new")
    with pytest.raises(TopicChanged, match="topic id is new, the subscription was made for old"):
        log.check_topic("s")


def test_partitions_and_open_files() -> None:
    log = ReaderLog("t", "id", {})
    line(log, logging.INFO, "Topic t (id x/+) partition count changed from 1 to 2")
    line(
        log, logging.ERROR, "localhost:9/bootstrap: Failed to create socket: Too many open files (after 0ms)"
    )
    assert log.partitions == 2
    assert log.no_files == "localhost:9/bootstrap: Failed to create socket: Too many open files (after 0ms)"


@pytest.mark.parametrize(
    ("word", "config", "debug", "passed"),
    [
        ("usual", {}, "topic", [logging.INFO, logging.WARNING, logging.ERROR]),
        ("errors", {"log_level": 3}, "topic", [logging.ERROR]),
        ("warnings", {"log_level": "4"}, "topic", [logging.WARNING, logging.ERROR]),
        ("nothing", {"log_level": 0}, "topic", []),
        ("all", {"log_level": 7}, "topic", [logging.INFO, logging.WARNING, logging.ERROR]),
        (
            "debug",
            {"debug": "broker"},
            "broker,topic",
            [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR],
        ),
    ],
)
def test_lines_that_the_settings_ask_for_are_passed_on(
    caplog: pytest.LogCaptureFixture, word: str, config: dict[str, object], debug: str, passed: list[int]
) -> None:
    """`word` makes the lines of each case different: equal ones are logged once (`client_log.py`)."""
    log = ReaderLog("t", "id", config)
    assert log.config == {**config, "debug": debug}
    with caplog.at_level(logging.DEBUG, "kafkadur.kafka"):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            line(log, level, f"a line of {word} {logging.getLevelName(level)}")
    assert [record.levelno for record in caplog.records] == passed
