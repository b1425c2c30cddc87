"""What the processes of a soak do: members that stay, a visitor that comes and goes, and the producer.

A member appends the offsets that it was handed to a file before it acknowledges them, so that they are known
when it is killed. Once a second each process reports through its pipe.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import resource
import struct
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, TypeVar

import kafkadur.sync
from benchmarks import payload
from benchmarks.worker import Failure
from kafkadur.producer.producer import Producer
from kafkadur_sharing.definition import SubscriptionType, TypeName
from kafkadur_sharing.errors import CoordinatorUnavailable, KafkadurError, KafkaUnavailable, LeaseLost

#: The types of the subscriptions that get every message; their order is that of the numbers in the files.
TYPES: tuple[TypeName, ...] = ("shared", "priority", "key-ordered")
#: Type, partition, first offset and the one behind the last.
HANDED = struct.Struct("<BHqq")
#: Messages of one batch at most.
_BATCH = 500
_WAIT_S = 0.2
_REPORT_S = 1.0
#: Times a second that the producer publishes.
_BEATS = 100
#: Seconds that a visitor stays.
_VISIT_S = 5.0
#: Different keys.
_KEYS = 50
#: Seconds for which calls are repeated that no server answers.
_PATIENCE_S = 60.0
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the messages are."""

    kafka: str
    redis: str
    namespace: str
    topic: str

    def connect(self) -> kafkadur.sync.Connection:
        """Return a new connection."""
        return kafkadur.sync.connect(
            kafka=self.kafka,
            redis=self.redis,
            namespace=self.namespace,
            client_id="soak",
            client_id_policy="unrestricted",
        )

    def subscribe(
        self, connection: kafkadur.sync.Connection, kind: TypeName, durable: str = ""
    ) -> kafkadur.sync.Subscription:
        """Attach a member; without ``durable`` to the subscription of this type that gets every message."""
        return connection.subscribe(
            self.topic,
            durable=durable or kind,
            type=SubscriptionType(kind),
            start="latest" if durable else "earliest",
            window=2_000,
        )


class Warned(NamedTuple):
    """A line of the log at level WARNING or above."""

    #: CLOCK_MONOTONIC, seconds
    at: float
    text: str


class Report(NamedTuple):
    """What one process did since its last report."""

    #: CLOCK_MONOTONIC, seconds
    at: float
    #: messages handled, or published
    messages: int
    #: age of the first message of each batch, ms
    latencies_ms: list[float]
    #: memory of the process, bytes
    rss: int
    warnings: list[Warned]


@contextlib.contextmanager
def _failing(pipe: Connection) -> Generator[None]:
    """Tell the parent what went wrong."""
    try:
        yield
    except BaseException:  # noqa: BLE001 - the parent raises it
        pipe.send(Failure(text=traceback.format_exc()))


def rss(pid: int | None = None) -> int:
    """Return the resident memory of a process, bytes; None: of this one."""
    return (
        int(Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1])
        * resource.getpagesize()
    )


@dataclass
class _Tally(logging.Handler):
    """Counts what the threads of a process did; safe to be used by all of them."""

    pipe: Connection
    messages: int = 0
    latencies_ms: list[float] = field(default_factory=list[float])
    warnings: list[Warned] = field(default_factory=list[Warned])

    def __post_init__(self) -> None:
        super().__init__(logging.WARNING)
        self._guard = threading.Lock()
        logging.getLogger("kafkadur").addHandler(self)

    def __hash__(self) -> int:
        return id(self)

    def emit(self, record: logging.LogRecord) -> None:
        with self._guard:
            self.warnings.append(Warned(time.monotonic(), f"{record.name}: {record.getMessage()}"))

    def add(self, messages: int, latency_ms: float | None = None) -> None:
        with self._guard:
            self.messages += messages
            if latency_ms is not None:
                self.latencies_ms.append(latency_ms)

    def report(self) -> None:
        with self._guard:
            said = Report(time.monotonic(), self.messages, self.latencies_ms, rss(), self.warnings)
            self.messages, self.latencies_ms, self.warnings = 0, [], []
        self.pipe.send(said)

    def until_stopped(self) -> Iterator[None]:
        """Report once a second until the parent says something or has ended."""
        while not self.pipe.poll(_REPORT_S):
            self.report()
            yield


def runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of rising offsets without gaps: first, and the one behind the last."""
    for _, stretch in itertools.groupby(enumerate(offsets), lambda pair: pair[1] - pair[0]):
        members = [offset for _, offset in stretch]
        yield members[0], members[-1] + 1


class _Handler:
    """Handles the messages of one subscription in a thread of its own."""

    def __init__(self, place: Place, connection: kafkadur.sync.Connection, kind: TypeName) -> None:
        self.kind = kind
        self.ending = threading.Event()
        self._subscription = place.subscribe(connection, kind)

    def work(self, tally: _Tally, file: int) -> None:
        """Handle batches until `ending`."""
        number = TYPES.index(self.kind)
        while not self.ending.is_set():
            batch = self._subscription.receive_batch(_BATCH, timeout=_WAIT_S)
            if batch is None:
                continue
            messages = batch.messages()
            age = time.monotonic_ns() - payload.stamp_ns(messages[0].value() or b"")
            handed = [
                HANDED.pack(number, partition or 0, *run)
                for partition, some in itertools.groupby(messages, lambda message: message.partition())
                for run in runs(message.offset() or 0 for message in some)
            ]
            os.write(file, b"".join(handed))
            with contextlib.suppress(LeaseLost):  # of all or some, by a fault: these come again
                batch.ack_nowait()
            tally.add(len(messages), age / 1e6)

    def close(self) -> None:
        """Leave."""
        with contextlib.suppress(LeaseLost):  # what a fault kept from being confirmed comes again
            self._subscription.close()


def member(pipe: Connection, place: Place, file: Path) -> None:
    """Be a member of all subscriptions until told to end."""
    with _failing(pipe):
        tally = _Tally(pipe)
        out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        connection = place.connect()
        patiently(connection.open)
        with connection:
            handlers = [patiently(partial(_Handler, place, connection, kind)) for kind in TYPES]
            threads = [threading.Thread(target=each.work, args=(tally, out)) for each in handlers]
            for thread in threads:
                thread.start()
            for _ in tally.until_stopped():
                if not all(thread.is_alive() for thread in threads):
                    message = "a thread that handles messages has ended"
                    raise RuntimeError(message)
            for each in handlers:
                each.ending.set()
            for thread in threads:
                thread.join()
            for each in handlers:
                each.close()
        tally.report()
        os.close(out)
        pipe.send("ended")


def patiently(act: Callable[[], T]) -> T:
    """Do something once more while a server does not answer, for a while."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return act()
        except (CoordinatorUnavailable, KafkaUnavailable):
            if time.monotonic() > deadline:
                raise
            time.sleep(_WAIT_S)  # until it is tried again


def visitor(pipe: Connection, place: Place, file: Path) -> None:
    """Connect, help for a while, have a subscription of one's own, remove it, disconnect; again and again."""
    with _failing(pipe):
        tally = _Tally(pipe)
        out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        reports = tally.until_stopped()
        for number in itertools.count():
            connection = place.connect()
            patiently(connection.open)
            with connection:
                handler = patiently(partial(_Handler, place, connection, "shared"))
                thread = threading.Thread(target=handler.work, args=(tally, out))
                thread.start()
                going = _visit(place, connection, f"visit-{number}", reports, tally)
                handler.ending.set()
                thread.join()
                handler.close()
            if not going:
                break
        os.close(out)
        pipe.send("ended")


def _visit(
    place: Place,
    connection: kafkadur.sync.Connection,
    own: str,
    reports: Iterator[None],
    tally: _Tally,
) -> bool:
    """Have a subscription of one's own for a while; returns whether to go on."""
    subscription = patiently(lambda: place.subscribe(connection, "shared", own))
    until = time.monotonic() + _VISIT_S
    going = True
    while going and time.monotonic() < until:
        batch = subscription.receive_batch(_BATCH, timeout=_WAIT_S)
        if batch is not None:
            tally.add(len(batch))
            with contextlib.suppress(LeaseLost):
                batch.ack_nowait()
        # wait for the next report; none comes when the parent has told to end
        going = next(reports, reports) is None
    with contextlib.suppress(LeaseLost):  # as above
        subscription.close()
    patiently(lambda: connection.unsubscribe(own))
    return going


def producer(pipe: Connection, place: Place) -> None:
    """Publish at the rate that the parent says, messages a second, until it says None."""
    with _failing(pipe):
        tally = _Tally(pipe)
        rate, numbers, owed = 0.0, itertools.count(), 0.0
        last = reported = time.monotonic()
        with place.connect() as connection, connection.producer({"linger.ms": 5}) as out:
            while True:
                if pipe.poll(1 / _BEATS):
                    said = pipe.recv()
                    if said is None:
                        break
                    rate = said
                now = time.monotonic()
                owed += rate * min(now - last, 1.0)  # what a fault kept from being published is left out
                last = now
                sent = _publish(out, place.topic, int(owed), numbers)
                owed -= int(owed)
                tally.add(sent)
                if now - reported >= _REPORT_S:
                    reported = now
                    tally.report()
            out.flush(60)
        tally.report()
        pipe.send("ended")


def _publish(out: Producer, topic: str, count: int, numbers: Iterator[int]) -> int:
    """Publish so many messages; fewer if the producer's buffer is full."""
    for done in range(count):
        number = next(numbers)
        try:
            out.publish(
                topic, payload.encode(number, stamp_ns=time.monotonic_ns()), key=b"%d" % (number % _KEYS)
            )
        except (KafkadurError, BufferError):
            return done
    return count
