"""One run of one system: start the workers, synchronise them, stop the clock, verify every sequence number.

What is run, and how often, is decided in ``workloads.py``; runs whose workers die are in ``failover.py``.
"""

from __future__ import annotations

import math
from array import array
from ctypes import c_uint64
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from benchmarks import source, verification, worker
from benchmarks.children import IDLE_S, SPAWN, Child, start
from benchmarks.systems import load
from benchmarks.systems.base import Env, Store, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence, Sequence

#: Workloads that void a run with one repeated message: nothing happens in them that excuses it.
_EXACT = frozenset({Workload.TURNS, Workload.FIRST, Workload.AMPLIFICATION})


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLoop:
    """The producer of the latency workload."""

    #: Messages a second.
    rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How fast the members of a run were together."""

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

    @property
    def spread(self) -> float:
        """(most - fewest) / mean messages of a member."""
        mean = sum(self.shares) / len(self.shares)
        return (max(self.shares) - min(self.shares)) / mean if mean else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run, verified."""

    #: Messages that had to arrive, the warm-up of the latency workload among them.
    messages: int
    lost: int
    repeated: int
    #: From the first message received to the last one confirmed, seconds.
    elapsed_s: float
    #: What one clock measures for all members; None where members come and go (failover).
    pace: Pace | None = None
    #: Sorted delays in ms (latency, first).
    delays_ms: tuple[float, ...] = ()
    #: 99th percentile of how late the open-loop producer was, ms (latency only).
    producer_late_ms: float = 0.0
    #: Sorted times in ms from the last message of a member's turn to the first of the next one's (turns).
    handovers_ms: tuple[float, ...] = ()
    #: Sorted times in ms from a fault of the holder to the next holder's first message (failover).
    failovers_ms: tuple[float, ...] = ()
    #: Messages that came before one that they should have followed (where an order is promised).
    disordered: int = 0
    #: Repeats that the workload allows; None where nobody promises anything.
    repeats_allowed: int | None = None
    figures: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def complaint(self) -> str | None:
        """Say why the run is void; None when it is not."""
        if self.lost:
            return f"{self.lost} messages lost"
        if self.repeats_allowed is not None and self.repeated > self.repeats_allowed:
            return f"{self.repeated} messages repeated, {self.repeats_allowed} allowed"
        return f"{self.disordered} messages out of order" if self.disordered else None

    @property
    def void(self) -> bool:
        """A run with one lost message is void, so is one with repeats or a disorder that must not be."""
        return self.complaint is not None


def run(
    system: str,
    variant: str,
    env: Env,
    *,
    messages: int,
    open_loop: OpenLoop | None = None,
    feed: Callable[[], None] | None = None,
    same_order: Callable[[int], int] | None = None,
) -> Run:
    """Run one system once and verify that it got every sequence number from 0 to ``messages`` - 1.

    ``feed`` writes the messages after all members have joined. ``same_order`` names for a sequence number
    what it must keep its order in (a partition, a key); None: no order is looked at.

    Raises:
        BenchmarkError: a worker failed, ended or hung.
    """
    kind = load(system)
    kind.prepare(env, variant)
    warmup = round(open_loop.rate * kind.warmup_s) if open_loop else 0
    target = messages + warmup
    progress = cast("MutableSequence[int]", SPAWN.RawArray(c_uint64, env.members))
    members: list[Child] = []
    producer: Child | None = None
    try:
        for index in range(env.members):
            where = replace(env, member=index)
            name = f"{system}/{variant} member {index}"
            members.append(start(name, worker.main, system, variant, where, progress, target, IDLE_S))
        for member in members:
            member.expect("ready")
        if open_loop:
            producer = _producer(kind.store, env, open_loop.rate, target)
            producer.expect("ready")
        _tell(members, ("join",))
        joins = [cast("worker.Joined", member.expect()) for member in members]
        _tell(members, ("go", 0))
        if producer:
            producer.pipe.send("go")
        if feed:
            feed()
        phases, lost, repeated = _phases(members, target, _counting(env, variant))
        late = cast("float", producer.expect()) if producer else 0.0
        _tell(members, ("close",))
        left = [cast("worker.Left", member.expect()) for member in members]
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
        left,
        lost=lost,
        repeated=repeated,
        messages=target,
        warmup=warmup,
        late_ms=late,
        workload=env.workload,
        same_order=same_order,
    )


def _phases(
    members: list[Child], target: int, count: Callable[[Sequence[int], int], tuple[int, int]]
) -> tuple[list[list[worker.Result]], int, int]:
    """Wait for the results; return them, and how many messages were lost and repeated.

    Repeats may have taken the place of messages that are still to come: then the members go on.
    """
    phases = [[cast("worker.Result", member.expect()) for member in members]]
    aim = target
    while True:
        lost, repeated = count(_sequences(phases), target)
        if not lost or not repeated or not any(result.recording.sequences for result in phases[-1]):
            return phases, lost, repeated
        # Members compare a target with all they received: distinct ones and repeats.
        _tell(members, ("more", target + repeated - aim))
        aim = target + repeated
        phases.append([cast("worker.Result", member.expect()) for member in members])


def _producer(store: Store, env: Env, rate: float, messages: int) -> Child:
    """Start the open-loop producer."""
    at = env.redis if store is Store.REDIS else env.kafka
    target = source.produce_open_loop
    return start("producer", target, store, env.topic, env.partitions, at, rate, messages)


def _tell(members: list[Child], order: tuple[object, ...]) -> None:
    for member in members:
        member.pipe.send(order)


def _counting(env: Env, variant: str) -> Callable[[Sequence[int], int], tuple[int, int]]:
    """Return how the messages of a run are counted."""
    if env.workload is not Workload.FIRST:
        return verification.count
    # Only what begins anew each round starts at the same message again.
    anew = variant == "create"
    return partial(verification.count_firsts, partitions=env.partitions, anew=anew)


def _sequences(phases: list[list[worker.Result]]) -> array[int]:
    """Return all sequence numbers over all workers and phases."""
    found = array("Q")
    for result in (result for phase in phases for result in phase):
        found.frombytes(result.recording.sequences)
    return found


def _arrivals(phases: list[list[worker.Result]]) -> list[verification.Arrival]:
    """Return (time in ns, member, sequence) of all messages of all workers and phases, by time."""
    return sorted(
        (at, member, sequence)
        for phase in phases
        for member, result in enumerate(phase)
        for at, sequence in zip(
            array("q", result.recording.arrivals), array("Q", result.recording.sequences), strict=True
        )
    )


def _verified(
    phases: list[list[worker.Result]],
    joins: list[worker.Joined],
    left: list[worker.Left],
    *,
    lost: int,
    repeated: int,
    messages: int,
    warmup: int,
    late_ms: float,
    workload: Workload,
    same_order: Callable[[int], int] | None,
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
        if workload in {Workload.LATENCY, Workload.FIRST}:
            pairs = zip(sequences, waits, strict=True)
            delays.extend(wait / 1e6 for sequence, wait in pairs if sequence >= warmup)
    for found in (*(result.figures for result in phases[-1]), *(one.figures for one in left)):
        for name, value in found.items():
            figures[name] = figures.get(name, 0.0) + value
    arrivals = _arrivals(phases) if same_order else []
    handovers = verification.handovers_ms(arrivals) if workload is Workload.TURNS else []
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
        pace=Pace(
            rate=(messages - in_hand) / elapsed if elapsed and not lost else 0.0,
            cpu_s_per_100k=cpu * 100_000 / messages,
            join_ms=max(join.ended_ns - join.started_ns for join in joins) / 1e6,
            first_ms=(first.first_ns - started) / 1e6 if first else math.inf,
            in_hand=in_hand,
            shares=tuple(shares),
        ),
        delays_ms=tuple(sorted(delays)),
        producer_late_ms=late_ms,
        handovers_ms=tuple(sorted(handovers)),
        disordered=verification.disordered(arrivals, same_order) if same_order else 0,
        repeats_allowed=0 if workload in _EXACT else None,
        figures=figures,
    )


def _elapsed_s(phase: list[worker.Result]) -> float:
    """From the first message of any worker to the last one confirmed by any worker, in seconds."""
    seen = [result for result in phase if result.recording.first_ns]
    if not seen:
        return 0.0
    ends = (result.recording.last_ns / 1e9 + result.settle_s for result in seen)
    return max(ends) - min(result.recording.first_ns for result in seen) / 1e9
