"""The cases of each workload, and the plan that interleaves the systems: run 1 of each, then run 2.

A case is what all systems are compared in: batch shape, member processes, kind of work.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from benchmarks import runner, source
from benchmarks.source import Backlog, Shape
from benchmarks.systems import load
from benchmarks.systems.base import Env, Store, Variant, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.runner import Run

#: Microseconds of work a message of the fan-out, and of its slow messages.
WORK_US, SLOW_US = 5_000, 100_000
#: One message in so many is slow in the skewed case.
SLOW_EVERY = 20
#: Messages of the run that warms the servers up.
WARM_UP = 500
#: Messages a second of the open loop.
LATENCY_RATE = 500.0


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

    @property
    def label(self) -> str:
        """Return the name of the case in tables and goals."""
        shape = "skewed" if self.skewed else self.shape.value
        return f"{shape}, {self.members} member{'s' if self.members > 1 else ''}"

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


#: Messages of a workload unless the command line says otherwise.
MESSAGES = {
    Workload.DRAIN: 600_000,
    Workload.WINDOW1: 300_000,
    Workload.FANOUT: 3_200,
    Workload.LATENCY: 5_000,
}

CASES: dict[Workload, tuple[Case, ...]] = {
    Workload.DRAIN: (
        Case(workload=Workload.DRAIN),
        Case(workload=Workload.DRAIN, shape=Shape.SMALL, fraction=0.5),
        Case(workload=Workload.DRAIN, shape=Shape.SINGLE, fraction=0.1),
        Case(workload=Workload.DRAIN, members=4),
    ),
    Workload.WINDOW1: (Case(workload=Workload.WINDOW1), Case(workload=Workload.WINDOW1, members=2)),
    Workload.FANOUT: (
        *(Case(workload=Workload.FANOUT, shape=shape, members=8, partitions=1) for shape in Shape),
        Case(workload=Workload.FANOUT, shape=Shape.SMALL, members=8, partitions=1, skewed=True),
    ),
    Workload.LATENCY: (
        Case(workload=Workload.LATENCY, shape=Shape.SINGLE),
        Case(workload=Workload.LATENCY, shape=Shape.SINGLE, members=4),
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One system in one variant and one case."""

    case: Case
    system: str
    variant: Variant
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
    """Return everything to be measured, in the order of one run.

    A stream has no producer batches, so a Redis system runs where nothing but the shape differs only once.
    """
    found: list[Subject] = []
    wanted = messages or MESSAGES[workload]
    for case in CASES[workload]:
        for name in systems:
            system = load(name)
            if system.store is Store.REDIS and case.only_shape:
                continue
            for variant in system.variants(workload):
                # Window 1 with several members is about taking turns: only variants that ask for it.
                members = variant.members or ((1,) if workload is Workload.WINDOW1 else None)
                if members and case.members not in members:
                    continue
                count = max(case.members, round(wanted * case.fraction * variant.fraction))
                found.append(Subject(case=case, system=name, variant=variant, messages=count))
    return found


class Plan:
    """Runs subjects on given servers; owns the backlogs and removes them at the end (use it in ``with``)."""

    def __init__(self, servers: Servers) -> None:
        """Plan for these servers; nothing happens yet."""
        self._servers = servers
        self._tag = f"bench-{secrets.token_hex(4)}"
        self._backlogs: dict[tuple[Store, Shape, int, int, bool], Backlog] = {}
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
        if subject.case.workload is not Workload.LATENCY:
            self._backlog(subject)

    def warm_up(self, found: Sequence[Subject]) -> None:
        """Run each system once with few messages, unreported: a new broker makes internal topics now.

        Raises:
            BenchmarkError: a worker failed.
        """
        first = {subject.system: subject for subject in reversed(found)}
        for subject in first.values():
            self.measure(replace(subject, messages=min(subject.messages, WARM_UP)))

    def measure(self, subject: Subject) -> Run:
        """Run one subject once.

        Raises:
            BenchmarkError: a worker failed.
        """
        case = subject.case
        if case.workload is Workload.LATENCY:
            return self._measure_latency(subject)
        return runner.run(
            subject.system,
            subject.variant.name,
            self._env(subject, self._backlog(subject).name),
            messages=subject.messages,
        )

    def _measure_latency(self, subject: Subject) -> Run:
        """Run with an open-loop producer on an empty topic or stream of its own."""
        store, partitions = load(subject.system).store, subject.case.partitions
        name = f"{self._tag}-open-{self._groups}"
        if store is Store.KAFKA:
            source.create(self._servers.kafka, name, partitions)
        try:
            return runner.run(
                subject.system,
                subject.variant.name,
                self._env(subject, name),
                messages=subject.messages,
                open_loop=runner.OpenLoop(rate=LATENCY_RATE),
            )
        finally:
            self._remove(store, name)

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
        )

    def _backlog(self, subject: Subject) -> Backlog:
        case, store = subject.case, load(subject.system).store
        shape = case.shape if store is Store.KAFKA else Shape.BIG
        working = case.workload is Workload.FANOUT
        key = (store, shape, case.partitions if store is Store.KAFKA else 1, subject.messages, case.skewed)
        if key in self._backlogs:
            return self._backlogs[key]
        backlog = Backlog(
            store=store,
            name=f"{self._tag}-{len(self._backlogs)}",
            shape=shape,
            partitions=key[2],
            messages=subject.messages,
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
