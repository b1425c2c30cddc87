"""The story of the demo: load the flights, `audit` with a killed process, `billing` with another one, the verification.

Each part is a function over the same stage. What the workers do is in `worker.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from confluent_kafka import KafkaError, TopicPartition

import kafkadur.sync
from kafkadur.demo.crew import Crew, DemoError, News, Worker
from kafkadur.demo.display import Display
from kafkadur.demo.flights import digest, flights
from kafkadur.demo.ledger import Ledger
from kafkadur.demo.verification import KILLED, ROLLED_BACK, Proof, verify
from kafkadur.demo.watch import View, Watch
from kafkadur.demo.worker import (
    AGAIN,
    AUDIT,
    BILLING,
    ROLLBACK_DELAY,
    TOPIC,
    TYPES,
    UNCONFIRMED,
    WINDOW,
    client_id,
    rolls_back,
)

PARTITIONS: Final = 6
BILLING_WORKERS: Final = 4

#: Seconds between two looks at the coordinator.
_LOOK_EVERY: Final = 0.1
#: Seconds one administrative request to Kafka may take.
_KAFKA_S: Final = 30.0
#: Seconds in which nothing is settled before the demo gives up.
_STUCK_S: Final = 30.0
#: Progress is drawn after so many messages.
_DRAW_EVERY: Final = 2_000
#: The producer's settings: large batches, for the rows are all there.
_PRODUCER: Final = {"linger.ms": 20, "compression.type": "lz4", "batch.size": 500_000}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What all parts of the story need."""

    kafka: str
    redis: str
    #: Folder for ledgers and logs.
    output: Path
    #: Number of flights.
    total: int
    display: Display
    #: Part of the story -> seconds it took.
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def connect(self, subscription: str) -> kafkadur.sync.Connection:
        """A connection as the subscription needs it."""
        return kafkadur.sync.connect(kafka=self.kafka, redis=self.redis, client_id=client_id(subscription))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure a part of the story."""
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the demo ended."""

    total: int
    proofs: tuple[Proof, ...]
    #: What is wrong, in sentences; empty when all is well.
    defects: tuple[str, ...]
    #: Seconds from the kill to the first message of the next process, for `audit`.
    takeover: float

    @property
    def ok(self) -> bool:
        """Whether everything was settled exactly once."""
        return not self.defects

    @property
    def line(self) -> str:
        """The last line of the demo."""
        if not self.ok:
            return f"demo: FAILED {self.defects[0]}"
        redelivered = sum(proof.redelivered for proof in self.proofs)
        lost = sum(len(proof.lost) for proof in self.proofs)
        return (
            f"demo: ok, {self.total} messages, {len(self.proofs)} subscriptions, {lost} lost, "
            f"{redelivered} redelivered"
        )


def play(stage: Stage) -> Outcome:
    """Play the whole story; raises `KafkadurError` when it cannot go on."""
    with stage.part("load"):
        create(stage)
        load(stage)
    ends = end_offsets(stage.kafka)
    with stage.part("audit"):
        audit_ledgers, takeover, defects = audit(stage, ends)
    with stage.part("billing"):
        billing_ledgers = billing(stage, ends)
    with stage.part("verification"):
        proofs, more = verification(stage, ends, {AUDIT: audit_ledgers, BILLING: billing_ledgers})
    return Outcome(total=stage.total, proofs=proofs, defects=(*defects, *more), takeover=takeover)


# --- loading ------------------------------------------------------------------------------------------------


def create(stage: Stage) -> None:
    """Create the topic, and both subscriptions while nobody listens and nothing is there yet."""
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS)
    try:
        AdminClient({"bootstrap.servers": stage.kafka}).create_topics([topic])[TOPIC].result(_KAFKA_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            raise DemoError(
                f"The topic {TOPIC} is there already, from an earlier run.",
                remedy="stop that stack with `kafkadur down`, then run the demo again",
            ) from error
        raise DemoError(f"The topic {TOPIC} was not created: {error.args[0].str()}.", owner="Kafka") from error
    for durable, kind in TYPES.items():
        with stage.connect(durable) as connection:
            connection.subscribe(TOPIC, durable=durable, type=kind, start="earliest").close()
    stage.display.say(f"   topic {TOPIC} with {PARTITIONS} partitions, subscriptions {' and '.join(TYPES)}")


def load(stage: Stage) -> None:
    """Send every flight."""
    started = time.monotonic()
    with (
        stage.display.bar(f"loading {stage.total:,} flights") as bar,
        stage.connect(BILLING) as connection,
        connection.producer(_PRODUCER) as producer,
    ):
        for flight in flights(stage.total):
            producer.publish(TOPIC, flight.value, key=flight.key, properties=flight.properties)
            if flight.row % _DRAW_EVERY == 0:
                bar.update(flight.row, stage.total)
        producer.flush()
    took = time.monotonic() - started
    stage.display.say(f"   loaded {stage.total:,} flights in {took:.1f} s, {stage.total / took:,.0f} a second")


def end_offsets(kafka: str) -> dict[int, int]:
    """Partition -> end offset, asked of Kafka itself."""
    wanted = {TopicPartition(TOPIC, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
    answers = AdminClient({"bootstrap.servers": kafka}).list_offsets(wanted, request_timeout=_KAFKA_S)
    return {place.partition: answer.result(_KAFKA_S).offset for place, answer in answers.items()}


# --- audit --------------------------------------------------------------------------------------------------


def audit(stage: Stage, ends: Mapping[int, int]) -> tuple[list[Ledger], float, list[str]]:
    """An exclusive subscription whose holder is killed after a third; returns ledgers, take-over (s) and defects."""
    say, total = stage.display.say, stage.total
    stage.display.head("1. audit: exclusive, one process at a time")
    with ExitStack() as running:
        crew = running.enter_context(Crew(kafka=stage.kafka, redis=stage.redis, output=stage.output, total=total))
        connection = running.enter_context(stage.connect(AUDIT))
        watch = running.enter_context(Watch(connection, AUDIT, ends))
        first = crew.start(AUDIT, 1, last_stand=2 * total // 3)
        crew.wait_for("attached", first)
        second = crew.start(AUDIT, 2)
        refused = crew.wait_for("refused", second)[0]
        say(f"   {first.job.name} holds the subscription; a second process is refused:")
        say(f"   {refused.more['text']}")
        with stage.display.bar("audit-1 works") as bar:
            crew.go(first)
            while first.done < total // 3:
                _hear(crew, first)
                bar.update(first.done, total)
            killed_at = time.monotonic()
            first.kill()
        floors = _floors_after(watch, first)
        second.order(AGAIN)
        crew.wait_for("attached", second)
        crew.go(second)
        taken = crew.wait_for("first", second)[0]
        takeover = float(taken.more["at"]) - killed_at
        say(f"   {first.job.name} was killed (SIGKILL) after {sum(floors.values()):,} confirmed messages; "
            f"{second.job.name} had its first one {takeover:.2f} s after the kill")  # fmt: skip
        with stage.display.bar("audit-2 works") as bar:
            _drain(crew, watch, lambda view: bar.update(total - view.backlog, total))
            crew.stop(second)
        say(f"   {second.job.name} settled the rest, {second.done:,} messages")
        return [first.ledger, second.ledger], takeover, _resumed(second.ledger, floors, ends)


def _hear(crew: Crew, worker: Worker) -> News:
    news = crew.hear(_STUCK_S)
    if news is None:
        raise DemoError(f"{worker.job.name} settled nothing for {_STUCK_S:.0f} s.")
    return news


def _floors_after(watch: Watch, killed: Worker) -> Mapping[int, int]:
    """The first unsettled offsets, read when Redis has noticed the death: what the dead one had sent is in by then."""
    deadline = time.monotonic() + _STUCK_S
    while any(member.heard for member in watch.members() if member.name == killed.job.name):
        if time.monotonic() > deadline:
            raise DemoError(f"Redis still hears {killed.job.name} {_STUCK_S:.0f} s after its death.")
    return watch.view().floors


def _resumed(ledger: Ledger, floors: Mapping[int, int], ends: Mapping[int, int]) -> list[str]:
    """Whether the next process began at the first unsettled message of every partition, by its ledger."""
    begun: dict[int, int] = {}
    for line in ledger.lines():
        begun.setdefault(line.partition, line.offset)
    return [
        f"{ledger.worker} began partition {partition} at offset {begun.get(partition)}, not at the first unsettled "
        f"one, {floor}"
        for partition, floor in floors.items()
        if floor < ends[partition] and begun.get(partition) != floor
    ]


# --- billing ------------------------------------------------------------------------------------------------


def billing(stage: Stage, ends: Mapping[int, int]) -> list[Ledger]:
    """A shared subscription with four processes, one of which is killed; returns the ledgers."""
    say, total = stage.display.say, stage.total
    stage.display.head(f"2. billing: shared, {BILLING_WORKERS} processes, each message acknowledged by itself")
    with ExitStack() as running:
        crew = running.enter_context(Crew(kafka=stage.kafka, redis=stage.redis, output=stage.output, total=total))
        connection = running.enter_context(stage.connect(BILLING))
        watch = running.enter_context(Watch(connection, BILLING, ends))
        # Half of what is one worker's share when all get the same.
        kill_after = total // (2 * BILLING_WORKERS)
        workers = [
            crew.start(BILLING, number, last_stand=2 * kill_after if number == 1 else 0)
            for number in range(1, BILLING_WORKERS + 1)
        ]
        victim = workers[0]
        crew.wait_for("attached", *workers)
        board = running.enter_context(stage.display.board())
        tables = _Tables(crew)
        crew.go(*workers)
        started = time.monotonic()

        def look(view: View) -> None:
            board.show(*tables.draw(view))

        def kill() -> None:
            if not victim.killed and victim.done >= kill_after:
                victim.kill()

        _drain(crew, watch, look, kill)
        took = time.monotonic() - started
        crew.stop(*workers[1:])
    if not victim.killed:
        raise DemoError(f"{victim.job.name} got {victim.done} messages only, so it was never killed.")
    say(f"   {victim.job.name} was killed (SIGKILL) after {victim.done:,} messages; the others settled the rest")
    say(f"   {total:,} messages in {took:.1f} s, {total / took:,.0f} a second; about 1 % was rolled back once and "
        f"came again after {ROLLBACK_DELAY} s")  # fmt: skip
    return [worker.ledger for worker in workers]
