"""Read records of a topic, and its ends, without changing any subscription."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from kafkadur.fetch.filtering import Takes, taking
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.client_settings import for_own_messages
from kafkadur_coordinators.kafka_refusal import refused
from kafkadur_coordinators.topics import TopicInfo, Topics
from kafkadur_sharing.definition import Definition
from kafkadur_sharing.errors import InvalidDestination, KafkaUnavailable
from kafkadur_sharing.keys import SLOTS, key_slot

_AT_ONCE = 500
_WAIT = 0.1


def records_of(
    kafka: Mapping[str, Any],
    topic: str,
    stretches: Iterable[tuple[int, int, int]],
    *,
    namespace: str,
    timeout: float,
) -> Iterator[Message]:
    """Yield the records of a topic in stretches (partition, start, end), one stretch after the other.

    `namespace` is the reader's. Raises `KafkaUnavailable` when no record comes for `timeout` seconds, and
    `KafkaRefused`.
    """
    config = {
        **for_own_messages(kafka),
        "queued.max.messages.kbytes": 8_192,  # several may read at a time
        "group.id": f"kafkadur:{namespace}:browse",  # the client needs one; nothing is committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(config, logger=client_log)
    try:
        for partition, start, end in stretches:
            if start < end:
                yield from _partition(consumer, TopicPartition(topic, partition, start), end, timeout)
    finally:
        consumer.close()


class Some:
    """Passes on records until there were enough of them, by number or bytes of their values.

    Whoever reads for somebody who waits must not read a whole topic.
    """

    def __init__(self, records: int, size: int) -> None:
        """Pass on so many records, and so many bytes."""
        self._records = records
        self._size = size
        #: Whether there were more.
        self.cut = False

    def __call__(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield the first of these messages."""
        for message in messages:
            if self._records <= 0 or self._size <= 0:
                self.cut = True
                return
            self._records -= 1
            self._size -= len(message.value() or b"")
            yield message


def everything(messages: Iterable[Message]) -> Iterable[Message]:
    """Return the messages as they are."""
    return messages


def _partition(consumer: Consumer, start: TopicPartition, end: int, timeout: float) -> Iterator[Message]:
    consumer.assign([start])
    deadline = time.monotonic() + timeout
    while True:
        for message in consumer.consume(_AT_ONCE, _WAIT):
            error = message.error()
            offset = message.offset() or 0
            if error is None and offset < end:
                yield message
            if offset >= end - 1 and (error is None or error.code() == KafkaError._PARTITION_EOF):  # noqa: SLF001 - the library's name
                return
            if error is not None and (refusal := refused(error, f"topic {start.topic}")) is not None:
                raise refusal
            deadline = time.monotonic() + timeout
        if time.monotonic() > deadline:
            raise KafkaUnavailable(
                "Kafka does not answer.",
                state=f"no record of {start.topic}[{start.partition}] came within {timeout:g} s",
                owner=f"topic {start.topic}",
                remedy="check that Kafka runs and can be reached",
            )


def bounds(topics: Topics, topic: TopicInfo) -> dict[int, tuple[int, int]]:
    """Return the first offset and the readable end of each partition. Raises `KafkaUnavailable`."""
    starts = topics.offsets(topic.name, topic.partitions, "earliest")
    ends = topics.offsets(topic.name, topic.partitions, "latest")
    return {partition: (start, ends[partition]) for partition, start in starts.items()}


def bounds_if_any(topics: Topics, name: str) -> dict[int, tuple[int, int]]:
    """Return the bounds of each partition of a topic; empty if there is no such topic."""
    try:
        topic = topics.describe(name)
    except InvalidDestination:
        return {}
    return bounds(topics, topic)


def lane_of(message: Message, lanes: int) -> int:
    """Return the number of the lane that a record is in."""
    slot = key_slot(message.key(), message.offset() or 0)
    return (message.partition() or 0) * lanes + slot * lanes // SLOTS


def selected_by(definition: Definition) -> Takes | None:
    """Return what the selector of a definition takes, without regard to noLocal; None: everything."""
    return taking(replace(definition, no_local=False), client_id=None, connection_id="")
