"""One run of one system: start the workers, synchronise them, stop the clock, verify every sequence number.

What is run, and how often, is decided in ``workloads.py``.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from array import array
from ctypes import c_uint64
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from benchmarks import source, worker
from benchmarks.systems import load
from benchmarks.systems.base import Env, Store, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

#: Seconds without any message after which a run is given up; longer than a share group's heartbeat (5 s).
IDLE_S = 12.0
#: Seconds a worker may take for one step before it counts as hung.
STEP_S = 300.0

_SPAWN = multiprocessing.get_context("spawn")


class BenchmarkError(RuntimeError):
    """A run could not be finished; the text says which worker and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLoop:
    """The producer of the latency workload."""

    #: Messages a second.
    rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run, verified."""

    #: Messages that had to arrive, the warm-up of the latency workload among them.
    messages: int
    lost: int
    repeated: int
    #: From the first message received to the last one confirmed, seconds.
    elapsed_s: float
    #: Messages a second, 0.0 when something was lost. A drain does not count what `in_hand` says.
    rate: float
    cpu_s_per_100k: float
    #: Longest join of a member, ms: until the client says that it is attached.
    join_ms: float
    #: From the start of the first join to the first message in the application's hands, ms.
    first_ms: float
    #: Messages of a drain in hand when the clock started: the first batch, or what the joins held.
    in_hand: int
    #: Messages of each member.
    shares: tuple[int, ...]
    #: Sorted delays in ms (latency only).
    delays_ms: tuple[float, ...] = ()
    #: 99th percentile of how late the open-loop producer was, ms (latency only).
    producer_late_ms: float = 0.0
    figures: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def void(self) -> bool:
        """A run with one lost message is void."""
        return self.lost > 0

    @property
    def spread(self) -> float:
        """(most - fewest) / mean messages of a member."""
        mean = sum(self.shares) / len(self.shares)
        return (max(self.shares) - min(self.shares)) / mean if mean else math.inf


@dataclass(slots=True)
class _Member:
    """The parent's end of one child process."""

    name: str
    process: SpawnProcess
    pipe: Connection

    def expect(self) -> object:
        """Wait for the child's next answer."""
        deadline = time.monotonic() + STEP_S
        while not self.pipe.poll(0.2):
            if not self.process.is_alive() and not self.pipe.poll(0):
                message = f"{self.name} ended with status {self.process.exitcode} before it answered"
                raise BenchmarkError(message)
            if time.monotonic() > deadline:
                message = f"{self.name} did not answer within {STEP_S:.0f} s"
                raise BenchmarkError(message)
        answer: object = self.pipe.recv()
        if isinstance(answer, worker.Failure):
            message = f"{self.name} failed:\n{answer.text}"
            raise BenchmarkError(message)
        return answer

    def stop(self) -> None:
        """End the child, politely first."""
        self.process.join(15)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _start(name: str, target: Callable[..., None], *args: object) -> _Member:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, args=(theirs, *args), name=name, daemon=True)
    process.start()
    theirs.close()
    return _Member(name, process, ours)


def run(system: str, variant: str, env: Env, *, messages: int, open_loop: OpenLoop | None = None) -> Run:
    """Run one system once and verify that it got every sequence number from 0 to ``messages`` - 1.

    Raises:
        BenchmarkError: a worker failed, ended or hung.
    """
    kind = load(system)
    kind.prepare(env, variant)
    warmup = round(open_loop.rate * kind.warmup_s) if open_loop else 0
    target = messages + warmup
    progress = cast("MutableSequence[int]", _SPAWN.RawArray(c_uint64, env.members))
    members: list[_Member] = []
    producer: _Member | None = None
    try:
        for index in range(env.members):
            where = replace(env, member=index)
            name = f"{system}/{variant} member {index}"
            members.append(_start(name, worker.main, system, variant, where, progress, target, IDLE_S))
        _all(members, "ready")
        if open_loop:
            at = env.redis if kind.store is Store.REDIS else env.kafka
            producer = _start(
                "producer",
                source.produce_open_loop,
                kind.store,
                env.topic,
                env.partitions,
                at,
                open_loop.rate,
                target,
            )
            producer.expect()
        _tell(members, ("join",))
        joins = [cast("worker.Joined", member.expect()) for member in members]
        _tell(members, ("go", 0))
        if producer:
            producer.pipe.send("go")
        phases = [[cast("worker.Result", member.expect()) for member in members]]
        # Repeats may have taken the place of messages that are still to come: let the members go on.
        aim = target
        while True:
            lost, repeated = _count(phases, target)
            if not lost or not repeated or not any(result.recording.sequences for result in phases[-1]):
                break
            # Members compare a target with all they received: distinct ones and repeats.
            _tell(members, ("more", target + repeated - aim))
            aim = target + repeated
            phases.append([cast("worker.Result", member.expect()) for member in members])
        late = cast("float", producer.expect()) if producer else 0.0
        _tell(members, ("close",))
    except BaseException:
        # Nothing is worth waiting for any more: not after an error, not after Ctrl-C.
        for member in [*members, *([producer] if producer else [])]:
            member.process.terminate()
        raise
    finally:
        for member in [*members, *([producer] if producer else [])]:
            member.stop()
    return _verified(
        phases,
        joins,
        lost=lost,
        repeated=repeated,
        messages=target,
        warmup=warmup,
        late_ms=late,
        workload=env.workload,
    )


def _all(members: list[_Member], expected: str) -> None:
    for member in members:
        if (answer := member.expect()) != expected:
            message = f"{member.name} said {answer!r} instead of {expected!r}"
            raise BenchmarkError(message)


def _tell(members: list[_Member], order: tuple[object, ...]) -> None:
    for member in members:
        member.pipe.send(order)


def _count(phases: list[list[worker.Result]], expected: int) -> tuple[int, int]:
    """Return (lost, repeated) over all workers and phases.

    Raises:
        BenchmarkError: a sequence number that was never sent.
    """
    distinct: set[int] = set()
    received = 0
    for result in (result for phase in phases for result in phase):
        numbers = array("Q", result.recording.sequences)
        received += len(numbers)
        distinct.update(numbers)
    if distinct and max(distinct) >= expected:
        message = f"a message arrived that was never sent: number {max(distinct)} of {expected}"
        raise BenchmarkError(message)
    return expected - len(distinct), received - len(distinct)


def _verified(
    phases: list[list[worker.Result]],
    joins: list[worker.Joined],
    *,
    lost: int,
    repeated: int,
    messages: int,
    warmup: int,
    late_ms: float,
    workload: Workload,
) -> Run:
    """Put the phases of all workers together."""
    elapsed = sum(_elapsed_s(phase) for phase in phases)
    cpu = sum(result.cpu_s for phase in phases for result in phase)
    firsts = [result.recording for result in phases[0] if result.recording.first_ns]
    first = min(firsts, key=lambda recording: recording.first_ns) if firsts else None
    started = min(join.started_ns for join in joins)
    delays: list[float] = []
    figures: dict[str, float] = {}
    for result in (result for phase in phases for result in phase):
        sequences, waits = array("Q", result.recording.sequences), array("q", result.recording.delays)
        if workload is Workload.LATENCY:
            pairs = zip(sequences, waits, strict=True)
            delays.extend(wait / 1e6 for sequence, wait in pairs if sequence >= warmup)
    for result in phases[-1]:
        for name, value in result.figures.items():
            figures[name] = figures.get(name, 0.0) + value
    shares = [
        sum(len(phase[member].recording.sequences) // 8 for phase in phases) for member in range(len(joins))
    ]
    first_batch = first.first_batch if first else 0
    in_hand = max(first_batch, sum(join.held for join in joins)) if workload is Workload.DRAIN else 0
    return Run(
        messages=messages,
        lost=lost,
        repeated=repeated,
        elapsed_s=elapsed,
        rate=(messages - in_hand) / elapsed if elapsed and not lost else 0.0,
        cpu_s_per_100k=cpu * 100_000 / messages,
        join_ms=max(join.ended_ns - join.started_ns for join in joins) / 1e6,
        first_ms=(first.first_ns - started) / 1e6 if first else math.inf,
        in_hand=in_hand,
        shares=tuple(shares),
        delays_ms=tuple(sorted(delays)),
        producer_late_ms=late_ms,
        figures=figures,
    )


def _elapsed_s(phase: list[worker.Result]) -> float:
    """From the first message of any worker to the last one confirmed by any worker, in seconds."""
    seen = [result for result in phase if result.recording.first_ns]
    if not seen:
        return 0.0
    ends = (result.recording.last_ns / 1e9 + result.settle_s for result in seen)
    return max(ends) - min(result.recording.first_ns for result in seen) / 1e9
