"""Reading single records of a topic without touching any subscription: for people who look."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.kafka_refusal import refused
from kafkadur_sharing.errors import StateLost

_AT_ONCE = 500
_WAIT = 0.1


def records(
    kafka: Mapping[str, Any],
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    namespace: str,
    timeout: float,
) -> Iterator[Message]:
    """The records of a topic in [start, end) of each partition, partition by partition, in order.

    `namespace` is the reader's. Raises `StateLost` when nothing comes for `timeout` seconds, and
    `KafkaRefused`.
    """
    stretches = [(partition, start, end) for partition, (start, end) in sorted(ranges.items())]
    return records_of(kafka, topic, stretches, namespace=namespace, timeout=timeout)


def records_of(
    kafka: Mapping[str, Any],
    topic: str,
    stretches: Iterable[tuple[int, int, int]],
    *,
    namespace: str,
    timeout: float,
) -> Iterator[Message]:
    """The records of a topic in stretches (partition, start, end), one after the other; as `records`."""
    config = {
        **{name: value for name, value in kafka.items() if not callable(value)},
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
            raise StateLost(
                "Kafka does not answer.",
                state=f"no record of {start.topic}[{start.partition}] came within {timeout:g} s",
                owner=f"topic {start.topic}",
                remedy="check that Kafka runs and can be reached",
            )
