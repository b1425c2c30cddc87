"""The part of the demo about handing over: a holder is killed, stopped or closed; another process goes on.

Two subscriptions of which one member at a time holds all: by turns (serial) and by priority. Each worker
holds the message it got until it is told to go on (`worker.py`), so that it is known who the holder is.
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from examples.demo.crew import Crew, DemoError, Worker
from examples.demo.story import Stage
from examples.demo.worker import HANDOVERS, RELAY_SESSION_S

#: Promised seconds until the next holder has its first message: after SIGKILL, SIGSTOP, a clean close.
KILLED_S: Final = 1.0
STOPPED_S: Final = RELAY_SESSION_S + 0.3
CLOSED_S: Final = 0.05
#: Seconds of silence after which the demo gives up.
_SILENCE_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Handover:
    """How long it took until the next process had a message, seconds."""

    killed: float
    stopped: float
    closed: float

    def told(self) -> str:
        """One line about it."""
        parts = (
            ("after SIGKILL", self.killed, KILLED_S),
            ("after SIGSTOP", self.stopped, STOPPED_S),
            ("after a clean close", self.closed, CLOSED_S),
        )
        late = (f" (late: {most} s is promised)" if took > most else "" for _, took, most in parts)
        times = (f"{took:.3f} s {what}{more}" for (what, took, _), more in zip(parts, late, strict=True))
        return f"the next holder had its first message {', '.join(times)}"


def hand_over(stage: Stage) -> None:
    """Play it for each of the two subscriptions, and say how long it took."""
    for durable, kind in HANDOVERS.items():
        with ExitStack() as running:
            crew = running.enter_context(
                Crew(kafka=stage.kafka, redis=stage.redis, output=stage.output, total=stage.total)
            )
            found = _hand_over(crew, durable)
        stage.display.say(f"   {durable} ({kind}): {found.told()}")


def _hand_over(crew: Crew, durable: str) -> Handover:
    workers = [crew.start(durable, number) for number in (1, 2)]
    crew.wait_for("attached", *workers)
    crew.go(*workers)
    holder, _ = _first(crew, workers)

    workers = [worker for worker in workers if worker is not holder]
    begun = time.monotonic()
    holder.kill()
    holder, at = _first(crew, workers)
    killed = at - begun

    workers = [_joined(crew, durable, 3)]
    begun = time.monotonic()
    holder.killed = True  # its end is expected from now on
    holder.process.send_signal(signal.SIGSTOP)
    frozen = holder
    holder, at = _first(crew, workers)
    stopped = at - begun
    frozen.kill()

    workers = [_joined(crew, durable, 4)]
    crew.stop(holder, go=True)
    closed_at = holder.closed_at
    _, at = _first(crew, workers)
    return Handover(killed=killed, stopped=stopped, closed=max(at - closed_at, 0.0))


def _joined(crew: Crew, durable: str, number: int) -> Worker:
    worker = crew.start(durable, number)
    crew.wait_for("attached", worker)
    crew.go(worker)
    return worker


def _first(crew: Crew, workers: list[Worker]) -> tuple[Worker, float]:
    """Who has a message, and since when (monotonic seconds)."""
    while True:
        for worker in workers:
            if worker.first_at is not None:
                return worker, worker.first_at
        if crew.hear(_SILENCE_S) is None:
            names = ", ".join(worker.job.name for worker in workers)
            raise DemoError(f"None of {names} got a message within {_SILENCE_S:.0f} s.")
