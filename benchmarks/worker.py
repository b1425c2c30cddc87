"""One member in a process of its own: what it does between the parent's signals.

Signals on the pipe: the worker says "ready" (imported, client made), gets "join", says `Joined`, gets "go",
answers a `Result`, then gets "more" with a number (again) or "close", which is answered by `Left`.
The members of the failover, which die on the way, are in ``failover.py``.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.recorder import Recorder
from benchmarks.systems import load
from benchmarks.systems.base import Env, System, Workload

if TYPE_CHECKING:
    from collections.abc import MutableSequence
    from multiprocessing.connection import Connection

    from benchmarks.recorder import Recording


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """A member is attached; times are CLOCK_MONOTONIC in nanoseconds."""

    started_ns: int
    ended_ns: int
    #: Messages received on the way.
    held: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One phase of one worker."""

    recording: Recording
    #: Seconds that the final confirmation took, 0 for a worker without messages.
    settle_s: float
    #: CPU seconds of this process, all threads, in the phase.
    cpu_s: float
    figures: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """A member has closed."""

    figures: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A worker that could not go on: the text of its traceback."""

    text: str


def main(  # noqa: PLR0917 - the entry point of a process
    pipe: Connection,
    system: str,
    variant: str,
    env: Env,
    progress: MutableSequence[int],
    target: int,
    idle_s: float,
) -> None:
    """Run one member; entry point of a child process."""
    try:
        member = load(system)(env, variant)
        pipe.send("ready")
        pipe.recv()
        started = time.monotonic_ns()
        member.join()
        pipe.send(Joined(started_ns=started, ended_ns=time.monotonic_ns(), held=member.held))
        recorder = Recorder(progress=progress, slot=env.member, target=target, idle_s=idle_s)
        while (order := pipe.recv())[0] != "close":
            recorder.target += order[1]
            pipe.send(_phase(member, recorder, env.workload))
        member.close()
        pipe.send(Left(figures=dict(member.closing_figures())))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        # The parent is gone or was interrupted: it says so itself.
        return
    except Exception:  # noqa: BLE001 - the parent shows it
        pipe.send(Failure(text=traceback.format_exc()))


def _phase(member: System, recorder: Recorder, workload: Workload) -> Result:
    """Run the loop of a workload once, confirm, and only then look at what was recorded."""
    loop = {
        Workload.DRAIN: member.drain,
        Workload.WINDOW1: member.window1,
        Workload.TURNS: member.window1,
        Workload.FANOUT: member.serve,
        Workload.LATENCY: member.serve,
        Workload.FIRST: member.attach,
        Workload.AMPLIFICATION: member.serve,
    }[workload]
    recorder.begin()
    cpu = time.process_time()
    loop(recorder)
    settling = time.monotonic()
    member.settle()
    settled = time.monotonic()
    cpu = time.process_time() - cpu
    recording = recorder.result()
    return Result(
        recording=recording,
        settle_s=settled - settling if recording.first_ns else 0.0,
        cpu_s=cpu,
        figures=dict(member.figures()),
    )
