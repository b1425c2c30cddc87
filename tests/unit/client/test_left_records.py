"""Records that a thread of the application has read, and leaves to the reader's thread.

No later record of their partition overtakes them.
"""

# ruff: noqa: SLF001 - one step of a reader that is not started

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from kafkadur.fetch import tail_fetcher
from kafkadur.fetch.tail_fetcher import TailFetcher


class Given:
    """Takes what the reader brings: partitions with offsets, in order."""

    display = "d"

    def __init__(self) -> None:
        self.records = list[tuple[int, list[int | None]]]()

    def add_records(self, partition: int, messages: list[Message], _number: int) -> None:
        self.records.append((partition, [message.offset() for message in messages]))

    def fail(self, error: Exception) -> None:
        raise error

    def lead(self, *_: int) -> None:
        """Leader epochs do not count here."""


class Log:
    """A client that does not know where logs end."""

    def get_watermark_offsets(self, _place: TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached
        return 0, -1


def run(partition: int, *offsets: int, event: bool = False) -> tuple[int, list[Message], bool]:
    """Return what one read brings of a partition in a row, perhaps with an event that is no end before it."""
    read = [Message(topic="t", partition=partition, offset=offset, value=b"") for offset in offsets]
    if event:
        broken: Any = KafkaError(KafkaError._TRANSPORT)
        read.insert(0, Message(topic="t", partition=partition, offset=offsets[0], error=broken))
    return partition, read, event


def test_a_later_run_of_a_partition_waits_for_the_one_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given before the run that was left, it would make that look like records that are known already."""
    runs = [run(0, 1, 2, event=True), run(1, 7), run(0, 3, 4), run(1, 8)]
    monkeypatch.setattr(tail_fetcher, "by_partition", lambda _read: runs)
    given, log = Given(), Log()
    member: Any = given
    reader: Any = TailFetcher(
        member=member, kafka={"bootstrap.servers": "127.0.0.1:1"}, topic="t", topic_id="", group="g",
        floor_metadata="",
    )  # fmt: skip
    reader._followed = {0: 1, 1: 1}
    reader._arrived = ["what was read"]
    reader._take(log, inline=True)
    assert given.records == [(1, [7]), (1, [8])]
    for partition, messages in reader._left:
        reader._give(log, partition, messages, eventful=True)
    assert given.records[2:] == [(0, [1, 2]), (0, [3, 4])]
