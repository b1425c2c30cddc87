"""The process that writes messages: each with an id of its own, some in transactions, some of those aborted.

Some have a delivery time, some a time to live.

It is started and told to end as members are (`working.py`).
"""

from __future__ import annotations

import contextlib
import json
import queue
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kafkadur.message.headers import DELIVERY_TIME_HEADER, EXPIRATION_HEADER
from kafkadur.message.times import now_ms
from tests.end_to_end.histories.plan import KEYS
from tests.end_to_end.histories.recording import FAIL, OK, UNKNOWN, Recorder
from tests.end_to_end.histories.working import POISON, Orders, digest, follow_parent

#: Orders: write nothing more to a topic; write to it (again), and it has so many partitions.
HOLD, WRITE = "hold", "write"
#: What is recorded when everything written to a topic on hold has its outcome.
HELD = "held"
#: Of so many messages one is rolled back whatever happens.
_POISON_EVERY = 80
#: Of the batches: in a transaction, and of those: aborted.
_TRANSACTIONS, _ABORTED = 0.15, 0.3
#: Of the messages: with a delivery time, and with a time to live; and the longest of both (ms).
_DELAYED, _SHORT_LIVED = 0.05, 0.05
_LONGEST_DELAY_MS, _LONGEST_LIFE_MS = 2_500, 4_000
_FLUSH_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """What it is to do; travels as JSON in its arguments."""

    seed: str
    kafka: str
    record: str
    #: subscriptions, which are also topics: partitions, and share of the messages
    topics: dict[str, tuple[int, float]]
    #: messages a second and topic
    rate: float

    def argument(self) -> str:
        """The job as an argument."""
        return json.dumps(asdict(self))


class Publisher:
    """Writes, and records what became of it."""

    def __init__(self, job: Job, recorder: Recorder) -> None:
        """Nothing is written yet."""
        self._job = job
        self._recorder = recorder
        self._chance = random.Random(job.seed)
        self._count = 0
        self._transactions = 0
        #: partitions of each topic
        self._partitions = {name: partitions for name, (partitions, _) in job.topics.items()}
        self._held: set[str] = set()
        #: orders that wait
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._plain = self._new_plain()
        self._transactional: Producer | None = None

    def order(self, verb: Callable[..., None], *arguments: object) -> None:
        """Have the main thread call something. Any thread."""
        self._orders.put(partial(verb, *arguments))

    def hold(self, topic: str) -> None:
        """Write nothing more to a topic; all that was written has its outcome when this returns."""
        self._held.add(topic)
        self._settle()
        self._recorder.note(HELD, subscription=topic)

    def write(self, topic: str, partitions: str) -> None:
        """Write to a topic that has so many partitions now."""
        self._settle()
        self._partitions[topic] = int(partitions)
        self._held.discard(topic)
        # those from before know neither an added partition nor a topic made anew
        self._plain, self._transactional = self._new_plain(), None

    def _settle(self) -> None:
        while self._plain.flush(_FLUSH_S):
            pass
        while self._transactional is None:
            with contextlib.suppress(KafkaException):  # a transaction may have been left open
                self._new()

    def due(self) -> Sequence[str]:
        """Do what was ordered, and return the topics that can be written to."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._orders.get_nowait()()
        return [topic for topic in self._partitions if topic not in self._held]

    def _new_plain(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._job.kafka,
                "enable.idempotence": True,
                "max.in.flight": 1,
                "linger.ms": 5,
            },
            logger=None,
        )

    def _message(self, topic: str) -> tuple[bytes, bytes, int]:
        """Value, key and partition of the next message of a topic."""
        self._count += 1
        first, _ = self._job.topics[topic]
        #: each added partition has keys of its own, so that no key moves
        share = KEYS // first
        key = self._chance.randrange(KEYS + share * (self._partitions[topic] - first))
        partition = key % first if key < KEYS else first + (key - KEYS) // share
        kind = POISON if self._chance.randrange(_POISON_EVERY) == 0 else b"order"
        value = b"%b:%d:%016x" % (kind, self._count, self._chance.getrandbits(64))
        return value, b"k%d" % key, partition

    def _times(self) -> tuple[list[tuple[str, str | bytes | None]], dict[str, int]]:
        """Headers with the times of a message, as its producer's clock says them; and both for the record."""
        chosen = self._chance.random()
        if chosen < _DELAYED:
            header, name, ms = DELIVERY_TIME_HEADER, "due", self._chance.randint(50, _LONGEST_DELAY_MS)
        elif chosen < _DELAYED + _SHORT_LIVED:
            header, name, ms = EXPIRATION_HEADER, "over", self._chance.randint(50, _LONGEST_LIFE_MS)
        else:
            return [], {}
        return [(header, b"%d" % (now_ms() + ms))], {name: time.monotonic_ns() + ms * 1_000_000}

    def _send(
        self, producer: Producer, topic: str, told: Callable[[int, object], None], **facts: object
    ) -> int:
        value, key, partition = self._message(topic)
        headers, times = self._times()
        number = self._recorder.call(
            "publish", subscription=topic, partition=partition, digest=digest(value), **facts, **times
        )

        def report(error: KafkaError | None, message: Message) -> None:
            told(number, message.offset() if error is None else None)

        producer.produce(topic, value, key, partition=partition, headers=headers, on_delivery=report)
        producer.poll(0)
        return number

    def plain(self, topics: Sequence[str]) -> None:
        """One message for each topic."""

        def told(number: int, offset: object) -> None:
            if offset is None:
                self._recorder.done(number, UNKNOWN)
            else:
                self._recorder.done(number, OK, offset=offset)

        for topic in topics:
            self._send(self._plain, topic, told)

    def transaction(self, topics: Sequence[str]) -> None:
        """One message for each topic, all or none of them."""
        offsets: dict[int, object] = {}
        numbers: list[int] = []
        outcome = UNKNOWN
        try:
            producer = self._transactional or self._new()
            producer.begin_transaction()
            self._transactions += 1
            numbers += [
                self._send(producer, topic, offsets.__setitem__, transaction=self._transactions)
                for topic in topics
            ]
            producer.flush(_FLUSH_S)
            if self._chance.random() < _ABORTED:
                outcome = FAIL  # whatever becomes of the abort: it can never be committed
                producer.abort_transaction(_FLUSH_S)
            else:
                producer.commit_transaction(_FLUSH_S)
                outcome = OK
        except KafkaException:
            self._transactional = None  # the next one of the same id ends what this one left open
        for number in numbers:
            offset = offsets.get(number)
            if outcome == OK and offset is None:
                self._recorder.done(number, UNKNOWN)
            else:
                self._recorder.done(number, outcome, offset=offset)

    def _new(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._job.kafka,
                "transactional.id": f"histories-{self._job.seed}",
                "transaction.timeout.ms": 10_000,
                "linger.ms": 1,
            },
            logger=None,
        )
        producer.init_transactions(_FLUSH_S)
        self._transactional = producer
        return producer

    def end(self) -> None:
        """Have everything written that is on its way."""
        if self._transactional is None:  # a transaction may have been left open
            with contextlib.suppress(KafkaException):
                self._new()
        self._plain.flush(_FLUSH_S)


def main(argument: str) -> None:
    """Write until the order to end."""
    follow_parent()
    job = Job(**json.loads(argument))
    chance = random.Random(f"{job.seed}-batches")
    with Recorder(Path(job.record)) as recorder:
        publisher = Publisher(job, recorder)
        orders = Orders(
            {
                HOLD: partial(publisher.order, publisher.hold),
                WRITE: partial(publisher.order, publisher.write),
            }
        )
        began, rounds = time.monotonic(), 0
        while not orders.ending and not orders.draining:
            rounds += 1
            topics = [name for name in publisher.due() if chance.random() < job.topics[name][1]]
            if chance.random() < _TRANSACTIONS:
                publisher.transaction(topics)
            else:
                publisher.plain(topics)
            late = began + rounds / job.rate - time.monotonic()
            if late < -1:  # what could not be written during a fault is not made up for
                began, rounds = time.monotonic(), 0
            orders.pause(max(late, 0))
        publisher.end()


if __name__ == "__main__":
    main(sys.argv[1])
