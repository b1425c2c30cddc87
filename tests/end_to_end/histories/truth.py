"""The truth that a history is compared with: what Kafka holds at the end, read by a consumer of its own."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kafkadur.runtime.dead_letters import ATTEMPTS, CAUSE, ORIGIN
from tests.end_to_end.histories.recording import Recorder
from tests.end_to_end.histories.working import digest

_ORIGIN = re.compile(r"(.*)\[(\d+)\]@(\d+)")
_SILENT_S = 30.0


def scan(kafka: str, topic: str) -> Iterator[Message]:
    """All committed messages of a topic; nothing if there is no such topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": f"truth-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        },
        logger=None,
    )
    try:
        metadata = consumer.list_topics(topic, timeout=_SILENT_S).topics[topic]
        if metadata.error is not None:
            return
        open_partitions = set(metadata.partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in open_partitions])
        while open_partitions:
            message = consumer.poll(_SILENT_S)
            assert message is not None, f"{topic} cannot be read to its end"
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's name
                open_partitions.discard(message.partition() or 0)
            else:
                raise KafkaException(error)
    finally:
        consumer.close()


def write_truth(kafka: str, topics: Iterable[str], path: Path) -> None:
    """Write what the topics hold into a file."""
    with Recorder(path) as recorder:
        for topic in topics:
            for message in scan(kafka, topic):
                recorder.note(
                    "message",
                    subscription=topic,
                    partition=message.partition(),
                    offset=message.offset(),
                    digest=digest(message.value() or b""),
                    key=(message.key() or b"").decode(),
                )


def write_dead(kafka: str, topics: Iterable[str], path: Path) -> None:
    """Write what the dead-letter topics hold into a file."""
    with Recorder(path) as recorder:
        for topic in topics:
            for message in scan(kafka, f"{topic}.dead"):
                listed: list[Any] = list(message.headers() or ())
                headers: dict[str, str] = {name: (value or b"").decode() for name, value in listed}
                origin = _ORIGIN.fullmatch(headers[ORIGIN])
                assert origin is not None, headers
                recorder.note(
                    "dead",
                    subscription=origin[1],
                    partition=int(origin[2]),
                    offset=int(origin[3]),
                    digest=digest(message.value() or b""),
                    cause=headers[CAUSE],
                    attempts=int(headers[ATTEMPTS]),
                )
