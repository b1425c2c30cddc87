"""Chaos in the middle of the demo: what is broken, when, whom and for how long; a seed draws it.

One thing at a time, each said as it happens, and only when the one before is whole again and work goes on.
What may be repeated because of it is for `verification.py` to judge; here is noted how far every ledger was.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from examples.demo.crew import Crew, DemoError, Worker
from examples.demo.verification import Disturbance
from examples.demo.worker import CHAOS_SESSION_S
from kafkadur.stack import Stack

#: Seconds that the part takes at least: workers are held back so that there is time for everything.
LEAST_S: Final = 20.0
#: Between which shares of the messages things are broken.
_FROM, _TO = 0.1, 0.6
#: Share of the messages that is worked on after something was broken and before the next thing is.
_BETWEEN: Final = 0.02
#: Seconds for which connections are refused, and a process is stopped: from, to.
_REFUSED_S: Final = (0.3, 1.5)
_STOPPED_S: Final = (CHAOS_SESSION_S * 1.2, CHAOS_SESSION_S * 2)

#: Told a sentence for people.
Say = Callable[[str], None]


class Chaos:
    """Breaks what the workers of a part stand on. Used by one thread, but for `lock`."""

    def __init__(self, stack: Stack, *, seed: int, total: int, say: Say) -> None:
        """Draw what will happen; `total` is the number of messages of the part."""
        self._stack = stack
        self._total = total
        self._say = say
        self._chance = random.Random(seed)  # noqa: S311 - it is to be drawn again
        #: held while a server is down because it is to be
        self.lock = threading.Lock()
        self.seed = seed
        self._faults: list[tuple[str, Callable[[Crew], tuple[float, Callable[[], None]]]]] = [
            ("FLUSHALL", self._flush),
            ("SIGKILL", self._kill),
            ("SIGSTOP", self._stop),
            ("Redis restarted", self._restart),
            ("Redis emptied", self._empty),
            ("Redis cut off", self._cut_redis),
            ("Kafka cut off", self._cut_kafka),
        ]
        self._chance.shuffle(self._faults)
        self.planned = len(self._faults)
        span = (_TO - _FROM) / self.planned
        #: number of messages from which each one may come
        self._due = [round(total * (_FROM + span * (n + self._chance.random()))) for n in range(self.planned)]
        #: how each one that came is called
        self.names: list[str] = []
        self.disturbances: list[Disturbance] = []
        #: what ends the present one, and when (monotonic seconds)
        self._mend: Callable[[], None] | None = None
        self._mend_at = 0.0
        self._began: Mapping[str, int] = {}
        #: messages told when the latest one was over
        self._done_before = 0

    def pace(self, workers: int) -> float:
        """Messages a second that each of so many workers settles at most."""
        return self._total / LEAST_S / workers

    @property
    def complete(self) -> bool:
        """Whether everything has happened, and is whole again."""
        return len(self.disturbances) == self.planned

    @property
    def lasts(self) -> bool:
        """Whether something is broken now."""
        return self._mend is not None

    def step(self, crew: Crew) -> bool:
        """Do what is due; returns whether something has just begun or ended."""
        if self._mend is not None:
            if time.monotonic() < self._mend_at:
                return False
            self._mend()
            self._mend = None
            self._over(crew)
            return True
        number = len(self.names)
        if number == self.planned or crew.done < self._due[number]:
            return False
        if crew.done < self._done_before + self._total * _BETWEEN or not _at_work(crew):
            return False
        name, fault = self._faults[number]
        self.names.append(name)
        self._began = _lines(crew)
        seconds, mend = fault(crew)
        if seconds:
            self._mend, self._mend_at = mend, time.monotonic() + seconds
        else:
            self._over(crew)
        return True

    def _over(self, crew: Crew) -> None:
        self.disturbances.append(Disturbance(began=self._began, ended=_lines(crew)))
        self._done_before = crew.done

    def _tell(self, text: str) -> None:
        self._say(f"   chaos {len(self.names)}/{self.planned}: {text}")

    # -- what can happen: each says it, does it, and returns how long it lasts (seconds) and what ends it

    def _flush(self, _crew: Crew) -> tuple[float, Callable[[], None]]:
        assert self._stack.valkey is not None  # noqa: S101 - the demo starts one
        self._tell("Redis is wiped (FLUSHALL)")
        if self._stack.valkey.ask("FLUSHALL") is None:
            raise DemoError("Valkey did not answer FLUSHALL.")
        return 0.0, _nothing

    def _restart(self, _crew: Crew) -> tuple[float, Callable[[], None]]:
        self._tell("Redis is killed (SIGKILL) and started again with the data on its disk")
        self._start_again(empty=False)
        return 0.0, _nothing

    def _empty(self, _crew: Crew) -> tuple[float, Callable[[], None]]:
        self._tell("Redis is killed (SIGKILL), and started again without any data")
        self._start_again(empty=True)
        return 0.0, _nothing

    def _start_again(self, *, empty: bool) -> None:
        assert self._stack.valkey is not None  # noqa: S101 - the demo starts one
        with self.lock:
            self._stack.valkey.kill()
            if empty:
                shutil.rmtree(self._stack.data / "valkey" / "appendonlydir")
            self._stack.valkey.start()

    def _kill(self, crew: Crew) -> tuple[float, Callable[[], None]]:
        victim = self._one_of(crew)
        another = crew.start(victim.job.subscription, len(crew.workers) + 1, pace=victim.job.pace)
        self._tell(f"{victim.job.name} is killed (SIGKILL), and {another.job.name} comes in its place")
        victim.kill()
        crew.go(another)
        return 0.0, _nothing

    def _stop(self, crew: Crew) -> tuple[float, Callable[[], None]]:
        victim, seconds = self._one_of(crew), self._chance.uniform(*_STOPPED_S)
        self._tell(
            f"{victim.job.name} is stopped (SIGSTOP) for {seconds:.1f} s, its session: {CHAOS_SESSION_S:g} s"
        )
        victim.freeze()

        def go_on() -> None:
            self._tell(f"{victim.job.name} goes on (SIGCONT)")
            victim.thaw()

        return seconds, go_on

    def _cut_redis(self, _crew: Crew) -> tuple[float, Callable[[], None]]:
        proxy, seconds = self._stack.redis_proxy, self._chance.uniform(*_REFUSED_S)
        assert proxy is not None  # noqa: S101 - the demo starts one
        self._tell(f"all connections to Redis are cut, and refused for {seconds:.1f} s")
        proxy.cut(refuse=True)
        return seconds, proxy.resume

    def _cut_kafka(self, _crew: Crew) -> tuple[float, Callable[[], None]]:
        seconds = self._chance.uniform(*_REFUSED_S)
        self._tell(f"all connections to Kafka are cut, and refused for {seconds:.1f} s")
        for proxy in self._stack.kafka_proxies:
            proxy.cut(refuse=True)

        def let_in() -> None:
            for proxy in self._stack.kafka_proxies:
                proxy.resume()

        return seconds, let_in

    def _one_of(self, crew: Crew) -> Worker:
        return self._chance.choice([worker for worker in crew.workers if not worker.killed])


def _nothing() -> None:
    """What ends something that is over at once."""


def _at_work(crew: Crew) -> bool:
    """Whether every process has had a message."""
    return all(worker.killed or worker.first_at is not None for worker in crew.workers)


def _lines(crew: Crew) -> Mapping[str, int]:
    """Lines that each ledger holds now."""
    return {
        worker.job.name: path.read_bytes().count(b"\n")
        for worker in crew.workers
        if (path := Path(worker.job.ledger)).exists()
    }


def missing(chaos: Chaos | None) -> Sequence[str]:
    """What is wrong when not everything came that was drawn, in sentences."""
    if chaos is None or chaos.complete:
        return ()
    return (f"only {len(chaos.disturbances)} of {chaos.planned} things were broken before the work was done",)
