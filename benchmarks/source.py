"""Where messages come from: backlogs in three batch shapes, and the open-loop producers.

Topics and streams are made, filled and deleted here; nobody else writes to them.
"""

# pyright: reportUnknownMemberType=false
# The admin client and redis-py are only partly typed.

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, cast

import redis
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import payload
from benchmarks.systems.base import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from multiprocessing.connection import Connection

#: Entries of one pipeline while a stream is filled.
_PIPELINE = 2_000
#: Messages that wait in the producer while a topic is filled.
QUEUE = 200_000


class Shape(StrEnum):
    """How many records the producer put into one batch."""

    BIG = "big"
    SMALL = "small"
    SINGLE = "single"


_PRODUCER: dict[Shape, dict[str, str | int | float | bool | object | None]] = {
    # A record batch is limited to 1 MB by the broker's default: 10,000 records of 100 bytes hardly reach it.
    Shape.BIG: {"linger.ms": 200, "batch.num.messages": 10_000, "batch.size": 1_000_000},
    Shape.SMALL: {"linger.ms": 20, "batch.num.messages": 20},
    Shape.SINGLE: {"linger.ms": 0, "batch.num.messages": 1},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Backlog:
    """A filled topic or stream that every system of that store reads, each run in a group of its own."""

    store: Store
    #: Topic or stream key.
    name: str
    shape: Shape
    partitions: int
    messages: int
    #: Different keys, a multiple of the partitions so that each is in one of them; 0: messages without keys.
    keys: int = 0
    #: Different values of the header `region`; 0: messages without it.
    regions: int = 0

    def headers(self, sequence: int) -> list[tuple[str, str | bytes | None]]:
        """Return the headers of a message."""
        return [("region", b"region-%d" % (sequence % self.regions))] if self.regions else []

    def key(self, sequence: int) -> bytes | None:
        """Return the key of a message."""
        return b"key-%d" % (sequence % self.keys) if self.keys else None


def _payloads(messages: int, work: Callable[[int], int] | None) -> Iterator[bytes]:
    for sequence in range(messages):
        yield payload.encode(sequence, work_us=work(sequence) if work else 0)


def check(kafka: str, redis_at: str) -> None:
    """Ask both servers for a sign of life.

    Raises:
        KafkaException: Kafka does not answer within 10 s.
        redis.RedisError: Redis does not answer.
    """
    with redis.Redis.from_url(redis_at, socket_timeout=10) as client:
        client.ping()
    AdminClient({"bootstrap.servers": kafka, "log_level": 2}).list_topics(timeout=10)


def create(kafka: str, topic: str, partitions: int) -> None:
    """Create a topic and wait until the broker leads all its partitions."""
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 2})
    wanted = NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})
    for done in cast("dict[str, Future[None]]", admin.create_topics([wanted])).values():
        done.result(30)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        known = admin.list_topics(topic, timeout=10).topics[topic]
        if known.error is None and len(known.partitions) == partitions:
            return
    message = f"topic {topic} has no leaders after 30 s: look at the broker's log"
    raise TimeoutError(message)


def fill(backlog: Backlog, *, kafka: str, redis_at: str, work: Callable[[int], int] | None = None) -> None:
    """Write the backlog; ``work`` gives the work time in microseconds of a sequence number.

    Raises:
        RuntimeError: the broker refused a message.
    """
    values = _payloads(backlog.messages, work)
    if backlog.store is Store.REDIS:
        _fill_stream(backlog, redis_at, values)
    else:
        create(kafka, backlog.name, backlog.partitions)
        append(backlog, kafka, values)


def _fill_stream(backlog: Backlog, redis_at: str, values: Iterator[bytes]) -> None:
    with redis.Redis.from_url(redis_at) as client:
        pipe = client.pipeline(transaction=False)
        for value in values:
            pipe.xadd(backlog.name, {"v": value})
            if len(pipe) == _PIPELINE:
                pipe.execute()
        pipe.execute()


def append(backlog: Backlog, kafka: str, values: Iterator[bytes] | None = None) -> None:
    """Write the messages of a backlog into its topic, which is there.

    Raises:
        RuntimeError: the broker refused a message.
    """
    failed: list[str] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error.str())

    producer = Producer(
        {
            "bootstrap.servers": kafka,
            "acks": "all",
            "queue.buffering.max.messages": QUEUE,
            "log_level": 2,
            **_PRODUCER[backlog.shape],
        }
    )
    for sequence, value in enumerate(values or _payloads(backlog.messages, None)):
        while len(producer) >= QUEUE - 1:
            producer.poll(0.05)
        producer.produce(
            backlog.name,
            value,
            backlog.key(sequence),
            partition=sequence % backlog.partitions,
            headers=backlog.headers(sequence),
            on_delivery=delivered,
        )
        if not sequence % 1_000:
            producer.poll(0)
    if producer.flush(120) or failed:
        message = f"{backlog.name} could not be filled: {failed[:1] or 'time-out'}"
        raise RuntimeError(message)


def remove(store: Store, name: str, *, kafka: str, redis_at: str) -> None:
    """Delete a topic or stream; one that is not there is fine."""
    if store is Store.REDIS:
        with redis.Redis.from_url(redis_at) as client:
            client.delete(name)
        return
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 2})
    for done in cast("dict[str, Future[None]]", admin.delete_topics([name])).values():
        try:
            done.result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise


def produce_open_loop(  # noqa: PLR0917 - the entry point of a process
    pipe: Connection, store: Store, name: str, partitions: int, at: str, rate: float, messages: int
) -> None:
    """Send ``messages`` at ``rate`` a second whatever the consumers do; entry point of a child process.

    The stamp is the time at which a message was *due*: when the producer is late the wait counts (no
    coordinated omission). Sends "ready", waits for "go", answers the 99th percentile of its lateness in ms.
    """
    send, finish = _redis_sender(name, at) if store is Store.REDIS else _kafka_sender(name, partitions, at)
    pipe.send("ready")
    pipe.recv()
    late: list[float] = []
    started = time.monotonic_ns() + 10_000_000
    for sequence in range(messages):
        due = started + int(sequence * 1e9 / rate)
        while (wait := due - time.monotonic_ns()) > 0:
            time.sleep(wait / 1e9)
        late.append(-wait / 1e6)
        send(sequence, payload.encode(sequence, stamp_ns=due))
    finish()
    late.sort()
    pipe.send(late[int(len(late) * 0.99)])


def produce_until_told(  # noqa: PLR0917 - the entry point of a process
    pipe: Connection, name: str, partitions: int, at: str, rate: float, most: int
) -> None:
    """Send at ``rate`` a second until it is told to stop; entry point of a child process.

    Sends "ready", waits for "go", then for anything else or ``most`` messages; answers how many it sent.
    """
    send, finish = _kafka_sender(name, partitions, at)
    pipe.send("ready")
    pipe.recv()
    started = time.monotonic()
    sent = 0
    while sent < most and not pipe.poll(max(0.0, started + sent / rate - time.monotonic())):
        send(sent, payload.encode(sent))
        sent += 1
    finish()
    pipe.send(sent)


def _redis_sender(name: str, at: str) -> tuple[Callable[[int, bytes], None], Callable[[], None]]:
    client = redis.Redis.from_url(at)
    client.ping()

    def send(_: int, value: bytes) -> None:
        client.xadd(name, {"v": value})

    return send, client.close


def _kafka_sender(
    name: str, partitions: int, at: str
) -> tuple[Callable[[int, bytes], None], Callable[[], None]]:
    producer = Producer({"bootstrap.servers": at, "linger.ms": 0, "acks": "all", "log_level": 2})
    producer.list_topics(name, timeout=10)

    def send(sequence: int, value: bytes) -> None:
        producer.produce(name, value, partition=sequence % partitions)
        producer.poll(0)

    def finish() -> None:
        producer.flush(30)

    return send, finish
