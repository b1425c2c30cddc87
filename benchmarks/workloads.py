"""The cases of each workload, and the plan that interleaves the systems: run 1 of each, then run 2.

A case is what all systems are compared in: batch shape, member processes, kind of work.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from benchmarks import failover, runner, source
from benchmarks.failover import Fault
from benchmarks.runner import Run
from benchmarks.source import Backlog, Shape
from benchmarks.systems import load
from benchmarks.systems.base import Env, Store, Variant, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Microseconds of work a message of the fan-out, and of its slow messages.
WORK_US, SLOW_US = 5_000, 100_000
#: One message in so many is slow in the skewed case.
SLOW_EVERY = 20
#: Messages of the run that warms the servers up.
WARM_UP = 500
#: Messages a second of the open loop.
LATENCY_RATE = 500.0
#: Messages and partitions of the topics of the workload first.
SMALL_TOPIC, BIG_TOPIC = (1_000, 1), (600_000, 12)
#: Partitions and different keys of the amplification.
AMPLIFICATION_PARTITIONS, AMPLIFICATION_KEYS = 2, 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What all systems are compared in."""

    workload: Workload
    shape: Shape = Shape.BIG
    #: Member processes.
    members: int = 1
    partitions: int = 4
    #: Messages relative to the workload's number.
    fraction: float = 1.0
    #: Only the fan-out: one message in 20 takes 100 ms instead of 5.
    skewed: bool = False
    #: Only the turns: records in the holder's hands.
    window: int = 1
    #: Only first: messages of the topic, where a run takes only a few of them.
    backlog: int | None = None
    #: Only the failover: what happens to the holder.
    fault: Fault | None = None

    @property
    def label(self) -> str:
        """Return the name of the case in tables and goals."""
        if self.fault is not None:
            return self.fault.value
        if self.backlog is not None:
            return (
                f"{self.backlog:,} messages, {self.partitions} partition{'s' if self.partitions > 1 else ''}"
            )
        what = "skewed" if self.skewed else self.shape.value
        if self.workload is Workload.TURNS:
            what = f"window {self.window}"
        return f"{what}, {self.members} member{'s' if self.members > 1 else ''}"

    @property
    def only_shape(self) -> bool:
        """Say whether only the batch shape distinguishes this case from another of its workload."""
        shaped = self.workload in {Workload.DRAIN, Workload.FANOUT}
        return shaped and self.shape is not Shape.BIG and not self.skewed

    @property
    def mean_work_us(self) -> float:
        """Return the mean work time of a message in microseconds."""
        return WORK_US + (SLOW_US - WORK_US) / SLOW_EVERY if self.skewed else WORK_US

    @property
    def ideal(self) -> float | None:
        """Return the messages a second of members that work without a pause (fan-out only)."""
        return self.members * 1e6 / self.mean_work_us if self.workload is Workload.FANOUT else None

    def order_of(self, variant: str) -> Callable[[int], int] | None:
        """Return what a message keeps its order in, by sequence number; None where no order is promised."""
        if variant.startswith("serial") and self.workload is Workload.TURNS:
            return lambda sequence: sequence % self.partitions
        if variant == "key-ordered":
            return lambda sequence: sequence % AMPLIFICATION_KEYS
        return None


#: Messages of a workload unless the command line says otherwise.
MESSAGES = {
    Workload.DRAIN: 2_000_000,
    Workload.WINDOW1: 300_000,
    Workload.TURNS: 50_000,
    Workload.FANOUT: 3_200,
    Workload.LATENCY: 5_000,
    Workload.AMPLIFICATION: 40_000,
}

#: Rounds of a run, for workloads that do not count in messages.
ROUNDS = {
    Workload.FIRST: 20,
    Workload.FAILOVER: 5,
}

CASES: dict[Workload, tuple[Case, ...]] = {
    Workload.DRAIN: (
        Case(workload=Workload.DRAIN),
        Case(workload=Workload.DRAIN, shape=Shape.SMALL, fraction=0.25),
        Case(workload=Workload.DRAIN, shape=Shape.SINGLE, fraction=0.1),
        Case(workload=Workload.DRAIN, members=4),
    ),
    Workload.WINDOW1: (Case(workload=Workload.WINDOW1),),
    Workload.TURNS: (
        Case(workload=Workload.TURNS, fraction=0.5),
        Case(workload=Workload.TURNS, fraction=0.5, members=2),
        Case(workload=Workload.TURNS, members=2, window=100),
    ),
    Workload.FANOUT: (
        *(Case(workload=Workload.FANOUT, shape=shape, members=8, partitions=1) for shape in Shape),
        Case(workload=Workload.FANOUT, shape=Shape.SMALL, members=8, partitions=1, skewed=True),
    ),
    Workload.LATENCY: (
        Case(workload=Workload.LATENCY, shape=Shape.SINGLE),
        Case(workload=Workload.LATENCY, shape=Shape.SINGLE, members=4),
    ),
    Workload.FIRST: tuple(
        Case(workload=Workload.FIRST, backlog=messages, partitions=partitions)
        for messages, partitions in (SMALL_TOPIC, BIG_TOPIC)
    ),
    Workload.FAILOVER: tuple(
        Case(workload=Workload.FAILOVER, shape=Shape.SINGLE, members=2, fault=fault) for fault in Fault
    ),
    Workload.AMPLIFICATION: tuple(
        Case(
            workload=Workload.AMPLIFICATION,
            shape=Shape.SMALL,
            members=members,
            partitions=AMPLIFICATION_PARTITIONS,
        )
        for members in (1, 2, 4, 8)
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One system in one variant and one case."""

    case: Case
    system: str
    variant: Variant
    #: Messages, or rounds (`ROUNDS`).
    messages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Servers:
    """Where Kafka and Redis are."""

    #: Bootstrap servers, "host:port".
    kafka: str
    #: URL of Redis or Valkey.
    redis: str


def slow(sequence: int) -> bool:
    """Say whether a message of the skewed fan-out is slow: 1 in 20, in no step with members or batches."""
    return (sequence * 2_654_435_761 % 2**32) * SLOW_EVERY < 2**32


def subjects(workload: Workload, systems: Sequence[str], messages: int | None) -> list[Subject]:
    """Return everything to be measured, in the order of one run; ``messages`` are rounds where those count.

    A stream has no producer batches, so a Redis system runs where nothing but the shape differs only once.
    """
    found: list[Subject] = []
    wanted = messages or {**MESSAGES, **ROUNDS}[workload]
    for case in CASES[workload]:
        for name in systems:
            system = load(name)
            if system.store is Store.REDIS and case.only_shape:
                continue
            for variant in system.variants(workload):
                if variant.members and case.members not in variant.members:
                    continue
                if variant.case not in {None, case.label}:
                    continue
                least = 1 if workload in ROUNDS else case.members
                count = max(least, round(wanted * case.fraction * variant.fraction))
                found.append(Subject(case=case, system=name, variant=variant, messages=count))
    return found


#: Workloads whose messages come after the members; each run has a topic or stream of its own.
_ON_EMPTY = frozenset({Workload.LATENCY, Workload.FAILOVER, Workload.AMPLIFICATION})


class Plan:
    """Runs subjects on given servers; owns the backlogs and removes them at the end (use it in ``with``)."""

    def __init__(self, servers: Servers) -> None:
        """Plan for these servers; nothing happens yet."""
        self._servers = servers
        self._tag = f"bench-{secrets.token_hex(4)}"
        self._backlogs: dict[tuple[Store, Shape, int, int, bool], Backlog] = {}
        self._topics = 0
        self._groups = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Return the plan after both servers answered.

        Raises:
            KafkaException: Kafka does not answer.
            redis.RedisError: Redis does not answer.
        """
        source.check(self._servers.kafka, self._servers.redis)
        return self

    def __exit__(self, *_: object) -> None:
        """Delete all topics and streams of the plan."""
        self._stack.close()

    def prepare(self, subject: Subject) -> None:
        """Write the backlog of a subject unless another one has it already."""
        if subject.case.workload not in _ON_EMPTY:
            self._backlog(subject)

    def warm_up(self, found: Sequence[Subject]) -> None:
        """Run each system once with few messages, unreported: a new broker makes internal topics now.

        Raises:
            BenchmarkError: a worker failed.
        """
        first = {subject.system: subject for subject in reversed(found)}
        for subject in first.values():
            few = 1 if subject.case.workload in ROUNDS else WARM_UP
            self.measure(replace(subject, messages=min(subject.messages, few)))

    def measure(self, subject: Subject) -> Run:
        """Run one subject once.

        Raises:
            BenchmarkError: a worker failed.
        """
        case = subject.case
        if case.workload in _ON_EMPTY:
            return self._measure_on_empty(subject)
        return runner.run(
            subject.system,
            subject.variant.name,
            self._env(subject, self._backlog(subject).name),
            messages=subject.messages,
            same_order=case.order_of(subject.variant.name),
        )

    def _measure_on_empty(self, subject: Subject) -> Run:
        """Run on an empty topic or stream of its own."""
        store, partitions = load(subject.system).store, subject.case.partitions
        self._topics += 1
        name = f"{self._tag}-open-{self._topics}"
        if store is Store.KAFKA:
            source.create(self._servers.kafka, name, partitions)
        try:
            if subject.case.workload is Workload.LATENCY:
                return runner.run(
                    subject.system,
                    subject.variant.name,
                    self._env(subject, name),
                    messages=subject.messages,
                    open_loop=runner.OpenLoop(rate=LATENCY_RATE),
                )
            if subject.case.fault is not None:
                return self._measure_failover(subject, name, subject.case.fault)
            return self._measure_amplification(subject, name)
        finally:
            self._remove(store, name)

    def _measure_failover(self, subject: Subject, topic: str, fault: Fault) -> Run:
        """Let holders fail while a producer goes on."""
        found = failover.run(
            subject.system,
            subject.variant.name,
            self._env(subject, topic),
            fault=fault,
            rounds=subject.messages,
        )
        return Run(
            messages=found.messages,
            lost=found.lost,
            repeated=found.repeated,
            elapsed_s=found.elapsed_s,
            failovers_ms=found.failovers_ms,
            # What a holder had in hand when it died comes again; who closes gives it back unhandled.
            repeats_allowed=0 if fault is Fault.CLOSED else subject.messages,
        )

    def _measure_amplification(self, subject: Subject, topic: str) -> Run:
        """Fill the topic when all members are attached: what moves at a join is no part of the figure."""
        case = subject.case
        backlog = Backlog(
            store=Store.KAFKA,
            name=topic,
            shape=case.shape,
            partitions=case.partitions,
            messages=subject.messages,
            keys=AMPLIFICATION_KEYS,
        )
        return runner.run(
            subject.system,
            subject.variant.name,
            self._env(subject, topic),
            messages=subject.messages,
            feed=lambda: source.append(backlog, self._servers.kafka),
            same_order=case.order_of(subject.variant.name),
        )

    def _env(self, subject: Subject, topic: str) -> Env:
        self._groups += 1
        return Env(
            kafka=self._servers.kafka,
            redis=self._servers.redis,
            topic=topic,
            partitions=subject.case.partitions,
            group=f"{self._tag}-{self._groups}",
            members=subject.case.members,
            member=-1,
            workload=subject.case.workload,
            window=subject.case.window,
        )

    def _backlog(self, subject: Subject) -> Backlog:
        case, store = subject.case, load(subject.system).store
        shape = case.shape if store is Store.KAFKA else Shape.BIG
        working = case.workload is Workload.FANOUT
        messages = case.backlog or subject.messages
        key = (store, shape, case.partitions if store is Store.KAFKA else 1, messages, case.skewed)
        if key in self._backlogs:
            return self._backlogs[key]
        backlog = Backlog(
            store=store,
            name=f"{self._tag}-{len(self._backlogs)}",
            shape=shape,
            partitions=key[2],
            messages=messages,
        )
        self._stack.callback(self._remove, store, backlog.name)
        source.fill(
            backlog,
            kafka=self._servers.kafka,
            redis_at=self._servers.redis,
            work=_work(skewed=case.skewed) if working else None,
        )
        self._backlogs[key] = backlog
        return backlog

    def _remove(self, store: Store, name: str) -> None:
        source.remove(store, name, kafka=self._servers.kafka, redis_at=self._servers.redis)


def _work(*, skewed: bool) -> Callable[[int], int]:
    if skewed:
        return lambda sequence: SLOW_US if slow(sequence) else WORK_US
    return lambda _: WORK_US


def interleaved(found: Sequence[Subject], runs: int) -> Iterator[tuple[int, Subject]]:
    """Yield (run from 1, subject): case by case, within a case run 1 of each system, then run 2."""
    cases = list(dict.fromkeys(subject.case for subject in found))
    for case in cases:
        for index in range(1, runs + 1):
            for subject in found:
                if subject.case == case:
                    yield index, subject
