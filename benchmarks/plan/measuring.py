"""Measures the costs of a plan, on real servers of this machine."""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from rich.console import Console
from rich.progress import Progress

import kafkadur.sync
from benchmarks import growth, source
from benchmarks.exchanges import Taker, lay, new_address, server_cpu_s
from benchmarks.plan.costs import Costs
from benchmarks.systems.base import Store
from kafkadur.stack import embedded
from kafkadur_coordinators.redis.coordinator import RedisCoordinator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection

    from kafkadur.stack import Stack

#: Exchanges and renewals that are timed.
_ROUNDS, _RENEWALS = 500, 2_000
#: Messages that such an exchange grants or settles, and partitions of the subscription.
_FEW, _PARTITIONS = 10, 12
#: Bytes of a message, and how many are written and read.
_SIZE, _MESSAGES = 500, 400_000
#: Messages that are batches of their own.
_SINGLE = 50_000
#: Readers that wait, for so long (s).
_READERS, _IDLE_S = 20, 10.0
#: Messages a second that come alone, and for how long (s); the first second does not count.
_LIVE_RATE, _LIVE_S = 200, 15.0
_WINDOW = 10_000
_HOLES = 1_000
_SUBSCRIPTIONS = 100
_TICK = 1 / os.sysconf("SC_CLK_TCK")


class _Consumed(NamedTuple):
    """What it cost to consume."""

    #: CPU s
    message: float
    messages_an_exchange: float


def measured() -> Costs:
    """Measure all costs; shows what it does on standard error. Raises `StackError` without servers."""
    # it is drawn at each step only: drawing takes CPU of this process, which is measured
    progress = Progress(console=Console(stderr=True), transient=True, auto_refresh=False)
    with embedded(users=True) as stack, progress:
        steps = progress.add_task("Redis", total=5)
        server = _redis(stack)
        empty, full = (growth.memory(stack, count)["KiB"] * 1024 for count in (0, _HOLES))
        progress.update(steps, advance=1, refresh=True, description="brokers")
        topic = _topic(stack)
        megabytes = _MESSAGES * _SIZE / 1e6
        before = _cpu_s(stack)
        _write(stack, topic)
        written = (_cpu_s(stack) - before) / megabytes
        before = _cpu_s(stack)
        _read(stack, topic)
        read = (_cpu_s(stack) - before) / megabytes
        alone = _alone(stack)
        progress.update(steps, advance=1, refresh=True, description="readers that wait")
        idle_reader = _idle_readers(stack, topic)
        progress.update(steps, advance=1, refresh=True, description="consumers")
        backlog, live = _backlog(stack, topic), _live(stack)
        process = _process_bytes(stack)
        progress.update(steps, advance=1, refresh=True, description="subscriptions that wait")
        idle = growth.idle(stack, _SUBSCRIPTIONS)["CPU, %"] / 100 / _SUBSCRIPTIONS
    return Costs(
        exchange_ms=server.exchange,
        partition_ms=server.partition,
        renewal_ms=server.renewal,
        inspection_ms=server.inspection,
        partition_bytes=empty,
        waiting_bytes=(full - empty) / _HOLES,
        written_mb_s=written,
        read_mb_s=read,
        batch_s=max(alone - (written + read) * _SIZE / 1e6, 0.0),
        idle_reader_cores=idle_reader,
        backlog_message_s=backlog.message,
        live_message_s=live.message,
        messages_an_exchange=backlog.messages_an_exchange,
        idle_subscription_cores=idle,
        process_bytes=process,
    )


# -- servers


class _Redis(NamedTuple):
    """CPU of the server, ms."""

    exchange: float
    partition: float
    renewal: float
    inspection: float


def _redis(stack: Stack) -> _Redis:
    """Measure calls of a member that is not alone: else some of its exchanges are short ones."""
    coordinator = RedisCoordinator(stack.redis)
    with redis.Redis.from_url(stack.admin_redis) as admin:

        def used_ms(act: Callable[[], int]) -> float:
            """CPU of the server for each of the calls that `act` makes."""
            before = server_cpu_s(admin)
            made = act()
            return (server_cpu_s(admin) - before) / made * 1_000

        def exchanges(besides: int) -> tuple[Taker, float]:
            address = new_address()
            lay(coordinator, address, partitions=_PARTITIONS)
            Taker(coordinator, address, name="other")
            member = Taker(coordinator, address, besides=besides)
            return member, used_ms(lambda: sum(1 for _ in member.exchanges(_ROUNDS, _FEW)))

        member, one = exchanges(0)
        _, all_of_them = exchanges(_PARTITIONS - 1)

        def renew() -> int:
            for _ in range(_RENEWALS):
                member.renew()
            return _RENEWALS

        def inspect() -> int:
            for _ in range(_ROUNDS):
                member.inspect(_PARTITIONS)
            return _ROUNDS

        found = _Redis(
            one, max((all_of_them - one) / (_PARTITIONS - 1), 0.0), used_ms(renew), used_ms(inspect)
        )
    coordinator.close()
    return found


def _cpu_s(stack: Stack) -> float:
    """CPU of the broker until now, s."""
    (broker,) = stack.brokers
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


def _topic(stack: Stack) -> str:
    name = f"plan-{uuid.uuid4().hex[:8]}"
    source.create(stack.kafka, name, 4)
    return name


def _write(stack: Stack, topic: str) -> None:
    queue = {"queue.buffering.max.messages": source.QUEUE}
    producer = Producer({"bootstrap.servers": stack.kafka, "linger.ms": 20, "acks": "all", **queue})
    value = os.urandom(_SIZE)
    for _ in range(_MESSAGES):
        while len(producer) > source.QUEUE // 2:
            producer.poll(0.05)
        producer.produce(topic, value)
    if left := producer.flush(60):
        message = f"{left} messages were not written"
        raise RuntimeError(message)


def _consumer(stack: Stack, topic: str, offset: int) -> Consumer:
    consumer = Consumer({"bootstrap.servers": stack.kafka, "group.id": topic, "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition(topic, partition, offset) for partition in range(4)])
    return consumer


def _read(stack: Stack, topic: str, count: int = _MESSAGES) -> None:
    consumer, found = _consumer(stack, topic, 0), 0
    deadline = time.monotonic() + 120
    while found < count:
        found += len(consumer.consume(10_000, 0.2))
        if time.monotonic() > deadline:
            message = f"{found:,} of {count:,} messages came within 120 s"
            raise RuntimeError(message)
    consumer.close()


def _alone(stack: Stack) -> float:
    """CPU of the broker for a message that is a batch of its own, written and read, s."""
    topic = _topic(stack)
    single = source.Backlog(
        store=Store.KAFKA, name=topic, shape=source.Shape.SINGLE, partitions=4, messages=_SINGLE
    )
    before = _cpu_s(stack)
    source.append(single, stack.kafka)
    _read(stack, topic, _SINGLE)
    return (_cpu_s(stack) - before) / _SINGLE


def _idle_readers(stack: Stack, topic: str) -> float:
    """Cores of the broker for one reader to which nothing comes."""

    def cores() -> float:
        before = _cpu_s(stack)
        time.sleep(_IDLE_S)  # what is measured
        return (_cpu_s(stack) - before) / _IDLE_S

    without = cores()
    readers = [_consumer(stack, topic, OFFSET_END) for _ in range(_READERS)]
    for reader in readers:
        reader.consume(1, 0.5)
    found = (cores() - without) / _READERS
    for reader in readers:
        reader.close()
    return max(found, 0.0)


# -- consumers


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _backlog(stack: Stack, topic: str) -> _Consumed:
    """Drain the messages that were written."""
    with (
        kafkadur.sync.connect(kafka=stack.kafka, redis=stack.redis, namespace=topic) as connection,
        connection.subscribe(topic, durable="backlog", start="earliest", window=_WINDOW) as subscription,
    ):
        return _consume(subscription, _MESSAGES)


def _consume(subscription: kafkadur.sync.Subscription, count: int, skip: int = 0) -> _Consumed:
    """Consume and acknowledge `count` messages, and `skip` before that do not count."""
    before, exchanges, found = _used(), 0, 0
    deliveries: Iterable[Any] = subscription
    for found, delivery in enumerate(deliveries, 1):
        delivery.ack_nowait()
        if found == skip:
            before, exchanges = _used(), subscription.statistics()["exchanges"]
        if found == skip + count:
            break
    if found < skip + count:
        message = f"{found:,} of {skip + count:,} messages came"
        raise RuntimeError(message)
    subscription.flush()
    made = subscription.statistics()["exchanges"] - exchanges
    return _Consumed((_used() - before) / count, count / max(made, 1))


def _live(stack: Stack) -> _Consumed:
    """Consume messages that come one by one, from a process of its own."""
    topic, count = _topic(stack), int(_LIVE_RATE * _LIVE_S)
    with (
        kafkadur.sync.connect(kafka=stack.kafka, redis=stack.redis, namespace=topic) as connection,
        connection.subscribe(topic, durable="live") as subscription,
    ):
        context = multiprocessing.get_context("spawn")
        producer = context.Process(
            target=_publish, args=(stack.kafka, topic, count + _LIVE_RATE), daemon=True
        )
        producer.start()
        watchdog = threading.Timer(_LIVE_S + 60, subscription.stop)
        watchdog.start()
        try:
            return _consume(subscription, count, skip=_LIVE_RATE)
        finally:
            watchdog.cancel()
            producer.join(10)


def _process_bytes(stack: Stack) -> float:
    """Memory of a process with one subscription."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_reside, args=(stack.kafka, stack.redis, _topic(stack), theirs), daemon=True
    )
    process.start()
    found = float(ours.recv()) if ours.poll(60) else 0.0
    process.join(10)
    if not found:
        message = "the process with a subscription did not answer within 60 s"
        raise RuntimeError(message)
    return found


def _reside(kafka: str, redis_at: str, topic: str, pipe: Connection) -> None:
    with (
        kafkadur.sync.connect(kafka=kafka, redis=redis_at, namespace=topic) as connection,
        connection.subscribe(topic, durable="d") as subscription,
    ):
        subscription.receive(timeout=1)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        pipe.send(pages * os.sysconf("SC_PAGE_SIZE"))


def _publish(kafka: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})
    for _ in _paced(count):
        producer.produce(topic, b"x" * _SIZE)
        producer.poll(0)
    producer.flush(10)


def _paced(count: int) -> Iterator[int]:
    began = time.monotonic()
    for number in range(count):
        if (left := began + number / _LIVE_RATE - time.monotonic()) > 0:
            time.sleep(left)
        yield number
