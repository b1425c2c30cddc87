"""Chooses the client with which readers read Kafka: the compiled one, else confluent-kafka's.

Both have the same methods, and so have their records; what follows calls either a `Message`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, cast

from confluent_kafka import Consumer, Message

from kafkadur.fetch.buffer import Records
from kafkadur.fetch.reader_log import ReaderLog
from kafkadur.message import times as times_of_messages
from kafkadur.message.headers import DELIVERY_TIME_HEADER, EXPIRATION_HEADER
from kafkadur.native.choice import client, module

_NATIVE = module()
#: Most objects that confluent-kafka makes in one call: more would outlive the garbage collector's youngest
#: generations.
_OBJECTS = 2_000
_DELIVERY_TIME, _EXPIRATION = DELIVERY_TIME_HEADER.encode(), EXPIRATION_HEADER.encode()


def new_consumer(config: Mapping[str, Any], *, logger: ReaderLog, topic: str) -> Consumer:
    """Return a client that reads `topic`; `config` is confluent-kafka configuration.

    Raises `KafkaException` for a setting that librdkafka refuses.
    """
    compiled = client(config, lambda: _NATIVE.Consumer(config, logger=logger, topic=topic), "read")
    return Consumer(dict(config), logger=logger) if compiled is None else cast("Consumer", compiled)


def read(consumer: Consumer, most: int, timeout: float, into: list[Message]) -> None:
    """Add the records and events that are there, about `most` at most; wait `timeout` seconds for one.

    An exception of a signal handler loses none: the compiled client adds all of them before a handler can
    run, and confluent-kafka's is never used in the main thread.
    """
    compiled: Any = consumer
    if not isinstance(compiled, Consumer):
        compiled.read(most, timeout, into)
        return
    some = min(most, _OBJECTS)
    messages = consumer.consume(some, 0)  # with a time-out it would wait until there are so many
    if not messages:
        message = consumer.poll(timeout)
        messages = [] if message is None else [message, *consumer.consume(some, 0)]
    into += messages


def waker(consumer: Consumer) -> Callable[[], None] | None:
    """Return what ends the waiting of a client for records, from any thread; None: it cannot be ended."""
    compiled: Any = consumer
    return None if isinstance(compiled, Consumer) else compiled.wake


def rest(consumer: Consumer) -> None:
    """Have a client that reads nothing for a while keep no message of a record that is dropped meanwhile."""
    compiled: Any = consumer
    if not isinstance(compiled, Consumer):
        compiled.rest()


def by_partition(messages: list[Message]) -> list[tuple[int, Records, bool]]:
    """Split records and events that `read` has added by partition; the order within a partition is kept.

    A partition may come several times. Third: whether there are events among the records.
    """
    if _are_compiled(messages):
        return cast("list[tuple[int, Records, bool]]", _NATIVE.by_partition(messages))
    partitions = list(map(Message.partition, messages))
    first = partitions[0]
    found: dict[int, list[Message]] = {}
    if partitions.count(first) == len(partitions):
        found[first or 0] = messages
    else:  # Kafka's client brings them in runs of one partition
        start = 0
        for partition, run in groupby(partitions):
            end = start + len(list(run))
            found.setdefault(partition or 0, []).extend(messages[start:end])
            start = end
    return [(partition, some, any(map(Message.error, some))) for partition, some in found.items()]


def detach(messages: Records) -> None:
    """Let go of the answers of Kafka that records came in: each may be a megabyte.

    Records of confluent-kafka have copies of their parts anyway.
    """
    if _are_compiled(messages):
        _NATIVE.detach(messages)


def kept() -> int:
    """Return how many messages of librdkafka are kept by records of the compiled client: for tests."""
    return int(_NATIVE.kept())


def as_message(message: Message) -> Message:
    """Return a record as a `Message` of confluent-kafka."""
    record: Any = message
    return message if isinstance(record, Message) else cast("Message", record.as_message())


def values(messages: Records) -> list[bytes | None]:
    """Return the payloads of records."""
    if _are_compiled(messages):
        return cast("list[bytes | None]", _NATIVE.values(messages))
    return [message.value() for message in messages]


def size_of(messages: Records) -> int:
    """Return the bytes of the payloads of records."""
    if _are_compiled(messages):
        return int(_NATIVE.size_of(messages))
    return sum(map(len, messages))


def times(messages: Records) -> times_of_messages.TimesByIndex:
    """Return the delivery times and expirations of those records that have any, by index."""
    if not _are_compiled(messages):
        return times_of_messages.of_messages(messages)
    raw = _NATIVE.with_headers(messages, _DELIVERY_TIME, _EXPIRATION)
    if not raw:  # as nearly always
        return times_of_messages.NONE
    made = ((index, times_of_messages.of_raw(*values)) for index, values in raw.items())
    return {index: found for index, found in made if found is not None}


def _are_compiled(messages: Records) -> bool:
    if not isinstance(messages, list):
        return True
    first: Any = messages[0] if messages else None
    return first is not None and not isinstance(first, Message)
