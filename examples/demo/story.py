"""The story of the demo: the flights, `audit` and `billing` with a killed process each, the verification.

Each part is a function over the same stage. What the workers do is in `worker.py`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur.sync
from examples.demo.chaos import Chaos, missing
from examples.demo.crew import Crew, DemoError, News, Worker
from examples.demo.display import Display
from examples.demo.flights import digest, flights
from examples.demo.ledger import Ledger
from examples.demo.outcome import Outcome, Report
from examples.demo.verification import BROKEN, KILLED, ROLLED_BACK, Proof, verify
from examples.demo.watch import View, Watch
from examples.demo.worker import (
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
from kafkadur_coordinators.client_log import client_log
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.keys import ClientIdPolicy

PARTITIONS: Final = 6
BILLING_WORKERS: Final = 4

#: Seconds between two looks at the coordinator.
_LOOK_EVERY: Final = 0.1
#: Seconds one administrative request to Kafka may take.
_KAFKA_S: Final = 30.0
#: Seconds in which nothing is settled before the demo gives up.
_STUCK_S: Final = 30.0
#: Views over which a rate is taken: about a second.
_RATE_OVER: Final = 10
#: Seconds a fresh consumer is listened to after the ledgers were checked.
_LISTEN_S: Final = 0.5
#: Progress is drawn after so many messages.
_DRAW_EVERY: Final = 2_000
#: The producer's settings: large batches, for the rows are all there.
_PRODUCER: Final = {
    "linger.ms": 20,
    "compression.type": "lz4",
    "batch.size": 500_000,
    "delivery.timeout.ms": 20_000,  # a broker that is gone is noticed soon
}


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
    #: What breaks things; None: nobody does.
    chaos: Chaos | None = None
    #: Part of the story -> seconds it took.
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def connect(self, subscription: str) -> kafkadur.sync.Connection:
        """A connection as the subscription needs it."""
        return kafkadur.sync.connect(
            kafka=self.kafka,
            redis=self.redis,
            client_id=client_id(subscription),
            client_id_policy=ClientIdPolicy.UNRESTRICTED,  # its workers and who watches them have it together
        )

    @contextmanager
    def part(self, name: str) -> Generator[None, None, None]:
        """Measure a part of the story."""
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started


def play(stage: Stage, handover: Callable[[], None], report: Callable[[], Report]) -> Outcome:
    """Play the whole story, with the parts about handing over and with Spark.

    Raises `KafkadurError` when it cannot go on.
    """
    with stage.part("load"):
        create(stage)
        load(stage)
    ends = end_offsets(stage.kafka)
    with stage.part("audit"):
        audit_ledgers, takeover, defects = audit(stage, ends)
    with stage.part("billing"):
        billing_ledgers = billing(stage, ends)
        defects += missing(stage.chaos)
    with stage.part("handover"):
        stage.display.head("3. dispatch, by turns, and control, by priority: one holder at a time")
        handover()
    with stage.part("verification"):
        proofs, more = verification(stage, ends, {AUDIT: audit_ledgers, BILLING: billing_ledgers})
    with stage.part("report"):
        reported = report()
    return Outcome(
        total=stage.total,
        proofs=proofs,
        report=reported,
        defects=(*defects, *more, *reported.defects),
        takeover=takeover,
        broken=tuple(stage.chaos.names) if stage.chaos else (),
    )


# --- loading ------------------------------------------------------------------------------------------------


def create(stage: Stage) -> None:
    """Create the topic, and both subscriptions while nobody listens and nothing is there yet."""
    create_topic(stage.kafka, TOPIC)
    for durable, kind in TYPES.items():
        with stage.connect(durable) as connection:
            connection.subscribe(TOPIC, durable=durable, type=kind, start="earliest").close()
    stage.display.say(f"   topic {TOPIC} with {PARTITIONS} partitions, subscriptions {' and '.join(TYPES)}")


def create_topic(address: str, topic: str) -> None:
    """Create a topic; raises `DemoError` if it is there already, or Kafka does not create it."""
    kafka = AdminClient({"bootstrap.servers": address}, logger=client_log)
    try:
        kafka.create_topics([NewTopic(topic, num_partitions=PARTITIONS)])[topic].result(_KAFKA_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            raise DemoError(
                f"The topic {topic} is there already, from an earlier run.",
                remedy="stop that stack with `kafkadur down`, then run the demo again",
            ) from error
        raise DemoError(
            f"The topic {topic} was not created: {error.args[0].str()}.", owner="Kafka"
        ) from error


def load(stage: Stage) -> None:
    """Send every flight."""
    started = time.monotonic()
    send(stage, TOPIC, BILLING, f"loading {stage.total:,} flights")
    took = time.monotonic() - started
    stage.display.say(
        f"   loaded {stage.total:,} flights in {took:.1f} s, {stage.total / took:,.0f} a second"
    )


def send(
    stage: Stage, topic: str, durable: str, text: str, between: Mapping[int, bytes | None] | None = None
) -> None:
    """Send every flight to a topic, in the name of a subscription, under a bar with this text.

    `between` are messages that come behind the flights of these rows.
    """
    more = between or {}
    with (
        stage.display.bar(text) as bar,
        stage.connect(durable) as connection,
        connection.producer(_PRODUCER) as producer,
    ):
        for flight in flights(stage.total):
            producer.publish(topic, flight.value, key=flight.key, properties=flight.properties)
            if flight.row in more:
                producer.publish(topic, more[flight.row])
            if flight.row % _DRAW_EVERY == 0:
                bar.update(flight.row, stage.total)
        producer.flush()


def end_offsets(address: str) -> dict[int, int]:
    """Partition -> end offset, asked of Kafka itself."""
    asking = Consumer({"bootstrap.servers": address, "group.id": "demo"}, logger=client_log)
    try:
        places = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        return {place.partition: asking.get_watermark_offsets(place, _KAFKA_S)[1] for place in places}
    finally:
        asking.close()


# --- audit --------------------------------------------------------------------------------------------------


def audit(stage: Stage, ends: Mapping[int, int]) -> tuple[list[Ledger], float, list[str]]:
    """An exclusive subscription whose holder is killed; returns ledgers, take-over (seconds) and defects."""
    say, total = stage.display.say, stage.total
    stage.display.head("1. audit: exclusive, one process at a time")
    with ExitStack() as running:
        crew = running.enter_context(
            Crew(kafka=stage.kafka, redis=stage.redis, output=stage.output, total=total)
        )
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
    """The first unsettled offsets, when Redis has noticed the death: what the dead one sent is in by then."""
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
        f"{ledger.worker} began partition {partition} at offset {begun.get(partition)}, "
        f"not at the first unsettled one, {floor}"
        for partition, floor in floors.items()
        if floor < ends[partition] and begun.get(partition) != floor
    ]


# --- billing ------------------------------------------------------------------------------------------------


def billing(stage: Stage, ends: Mapping[int, int]) -> list[Ledger]:
    """A shared subscription with four processes, one of which is killed; returns the ledgers."""
    say, total = stage.display.say, stage.total
    stage.display.head(
        f"2. billing: shared, {BILLING_WORKERS} processes, each message acknowledged by itself"
    )
    with ExitStack() as running:
        crew = running.enter_context(
            Crew(kafka=stage.kafka, redis=stage.redis, output=stage.output, total=total)
        )
        connection = running.enter_context(stage.connect(BILLING))
        watch = running.enter_context(Watch(connection, BILLING, ends))
        # Well below its share: how the messages spread over the members is not even
        kill_after = total // (8 * BILLING_WORKERS)
        workers = [
            crew.start(
                BILLING,
                number,
                last_stand=2 * kill_after if number == 1 else 0,
                pace=stage.chaos.pace(BILLING_WORKERS) if stage.chaos else 0.0,
            )
            for number in range(1, BILLING_WORKERS + 1)
        ]
        victim, *others = workers
        waiting = list(others)
        crew.wait_for("attached", *workers)
        board = running.enter_context(stage.display.board())
        tables = _Tables(crew, total)
        # the others begin a little later: on a busy machine they could do everything before it has its part
        crew.go(victim)
        started = time.monotonic()

        def kill() -> None:
            if victim.killed or victim.done >= kill_after:
                crew.go(*waiting)
                waiting.clear()
            if not victim.killed and any(other.done for other in others):
                victim.kill()

        def look(view: View) -> None:
            kill()
            board.show(*tables.draw(view))

        _drain(crew, watch, look, kill, stage.chaos)
        took = time.monotonic() - started
        crew.stop(*(worker for worker in crew.workers if not worker.killed))
    if not victim.killed:
        raise DemoError(f"{victim.job.name} got {victim.done} messages only, so it was never killed.")
    say(f"   {victim.job.name} was killed (SIGKILL) after {victim.done:,} messages; the others did the rest")
    say(f"   {total:,} messages in {took:.1f} s, {total / took:,.0f} a second")
    say(f"   about 1 % was rolled back once and came again {ROLLBACK_DELAY} s later")
    return [worker.ledger for worker in crew.workers]


class _Tables:
    """What the board shows of each view."""

    def __init__(self, crew: Crew, total: int) -> None:
        """Nothing was seen yet."""
        self._crew = crew
        self._total = total
        self._seen: deque[View] = deque(maxlen=_RATE_OVER)

    def draw(self, view: View) -> tuple[str, Sequence[str], Sequence[Sequence[str]], str]:
        """Title, columns, rows and summary."""
        self._seen.append(view)
        oldest = self._seen[0]
        elapsed = view.at - oldest.at
        rate = (oldest.backlog - view.backlog) / elapsed if elapsed > 0 else 0.0
        rows = [self._row(worker, view) for worker in self._crew.workers]
        summary = (
            f"{len(view.members)} members, in flight {view.in_flight:,}, "
            f"floor {view.floor:,} of {self._total:,}, backlog {view.backlog:,}, "
            f"marked redelivered {self._crew.redelivered:,}, {rate:,.0f} a second"
        )
        return (
            f"subscription {BILLING}",
            ("member", "state", "in flight", "done", "marked redelivered"),
            rows,
            summary,
        )

    @staticmethod
    def _row(worker: Worker, view: View) -> Sequence[str]:
        name = worker.job.name
        held = sum(member.in_flight for member in view.members if member.name == name)
        state = "killed" if worker.killed else "stopped" if worker.frozen else "works"
        return name, state, f"{held:,}", f"{worker.done:,}", f"{worker.redelivered:,}"


def _nothing() -> None:
    """What is done at news when there is nothing to do."""


def _drain(
    crew: Crew,
    watch: Watch,
    look: Callable[[View], None],
    at_news: Callable[[], None] = _nothing,
    chaos: Chaos | None = None,
) -> None:
    """Wait until everything is settled; raises `DemoError` when nothing more is settled."""
    next_look = time.monotonic()
    least, progressed = None, next_look
    while True:
        if crew.hear(max(next_look - time.monotonic(), 0.0)) is not None:
            at_news()
        now = time.monotonic()
        if now < next_look:
            continue
        next_look = now + _LOOK_EVERY
        if chaos is not None and chaos.step(crew):
            least, progressed = None, now  # what was settled may be forgotten
        view = _view(watch, chaos)
        if view is None:
            if now - progressed > _STUCK_S:
                raise DemoError(f"Redis could not be asked for {_STUCK_S:.0f} s.")
            continue
        look(view)
        if watch.drained(view) and (chaos is None or not chaos.lasts):
            return
        if least is None or view.backlog < least:
            least, progressed = view.backlog, now
        elif now - progressed > _STUCK_S:
            raise DemoError(
                f"Nothing was settled for {_STUCK_S:.0f} s.",
                state=(
                    f"{view.backlog} messages are left, {view.in_flight} in flight, "
                    f"{view.exceptions} exceptions"
                ),
                owner=", ".join(member.name for member in view.members),
            )


def _view(watch: Watch, chaos: Chaos | None) -> View | None:
    """The state; None while it cannot be asked for because something is broken."""
    try:
        return watch.view()
    except KafkadurError:
        if chaos is None:
            raise
        return None


# --- verification -------------------------------------------------------------------------------------------


def verification(
    stage: Stage, ends: Mapping[int, int], ledgers: Mapping[str, Sequence[Ledger]]
) -> tuple[tuple[Proof, ...], list[str]]:
    """Compare the ledgers with the file, and look whether anything is left; returns proofs and defects."""
    stage.display.head("4. verification against the file of flights")
    defects: list[str] = []
    with ExitStack() as running:
        # They listen for as long as the ledgers are checked: whatever is left would come to them.
        fresh = {durable: running.enter_context(_listen(stage, durable)) for durable in TYPES}
        with stage.display.bar("reading the file and the ledgers once more") as bar:
            expected: list[bytes] = []
            for flight in flights(stage.total):
                expected.append(digest(flight.value))
                if flight.row % _DRAW_EVERY == 0:
                    bar.update(flight.row, stage.total)
            proofs = tuple(
                verify(
                    durable,
                    expected,
                    ledgers[durable],
                    rolls_back=rolls_back if durable == BILLING else lambda _row: False,
                    most_unconfirmed=WINDOW + UNCONFIRMED[durable],
                    disturbances=stage.chaos.disturbances if stage.chaos and durable == BILLING else (),
                )
                for durable in TYPES
            )
        for durable, subscription in fresh.items():
            left = subscription.receive(timeout=_LISTEN_S)
            if left is not None:
                defects.append(f"{durable}: a fresh consumer still gets {left!r}")
    for proof in proofs:
        defects += proof.defects()
        defects += _open(stage, proof.subscription, ends)
        stage.display.say(_told(proof))
    return proofs, defects


@contextmanager
def _listen(stage: Stage, durable: str) -> Generator[kafkadur.sync.Subscription, None, None]:
    """A fresh consumer of a subscription."""
    with (
        stage.connect(durable) as connection,
        connection.subscribe(
            TOPIC, durable=durable, type=TYPES[durable], name="verification"
        ) as subscription,
    ):
        yield subscription


def _open(stage: Stage, durable: str, ends: Mapping[int, int]) -> list[str]:
    """What the coordinator still has open of a subscription, against Kafka's end offsets."""
    with stage.connect(durable) as connection, Watch(connection, durable, ends) as watch:
        view = watch.view()
    if watch.drained(view):
        return []
    floors = ", ".join(f"{view.floors[partition]} of {end}" for partition, end in ends.items())
    return [f"{durable}: not everything is settled: floors {floors}; {view.exceptions} exceptions"]


def _told(proof: Proof) -> str:
    causes = proof.repeats
    broken = f", {causes[BROKEN]:,} after something was broken" if BROKEN in causes else ""
    return (
        f"   {proof.subscription}: {proof.messages:,} flights, {proof.deliveries:,} deliveries, "
        f"{len(proof.lost)} lost, {len(proof.invented)} invented, {len(proof.unexplained)} unexplained; "
        f"redelivered: {causes.get(ROLLED_BACK, 0):,} rolled back, {causes.get(KILLED, 0):,} after a kill"
        f"{broken}"
    )
