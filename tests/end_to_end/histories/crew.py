"""The processes of a run as the run holds them: places for members, each with a way to Redis of its own.

Processes end with the run, however it ends. They are started by the run's main thread alone: on Linux they
end with the thread that started them.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from kafkadur.stack import Stack, TcpProxy
from kafkadur.stack.ports import HOST
from tests.end_to_end.histories import producing, working
from tests.end_to_end.histories.loading import PUBLISHED
from tests.end_to_end.histories.plan import Plan, SubscriptionPlan

ROOT = Path(__file__).parents[3]
_LAST_WORDS = 2_000


class Process:
    """One process with orders by standard input."""

    def __init__(self, name: str, module: str, argument: str, folder: Path) -> None:
        """Start it; what it says on standard error goes into the folder."""
        self.name = name
        self.ended_by_us = False
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, argument],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                cwd=ROOT,
                start_new_session=True,  # Ctrl-C reaches the run alone
            )

    @property
    def running(self) -> bool:
        """Whether it runs, or is stopped."""
        return self.process.poll() is None

    def order(self, order: str) -> None:
        """Tell it something; one that has ended does not hear it."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(order.encode() + b"\n")
                self.process.stdin.flush()

    def stop(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.ended_by_us = True
        self.process.kill()
        self.process.wait()
        self.release()

    def release(self) -> None:
        """Close the pipe to a process that has ended."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def wait(self, deadline: float) -> bool:
        """Wait until it ends, at most to `deadline` (monotonic seconds); whether it did."""
        try:
            self.process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def last_words(self) -> str:
        """The end of what it said."""
        status = f"status {self.process.poll()}: "
        return status + self.log.read_text(errors="replace")[-_LAST_WORDS:].strip()


class Slot:
    """A place for one member after another."""

    def __init__(self, subscription: SubscriptionPlan, number: int, proxy: TcpProxy | None) -> None:
        """Nobody is there yet."""
        self.subscription = subscription
        self.number = number
        self.proxy = proxy
        self.generation = 0
        self.process: Process | None = None
        #: a fault lasts: no other one here
        self.disturbed = False

    @property
    def alive(self) -> Process | None:
        """The member that is there."""
        return self.process if self.process is not None and self.process.running else None


class Crew:
    """All processes of a run."""

    def __init__(self, plan: Plan, stack: Stack, folder: Path, namespace: str) -> None:
        """Nobody is started yet."""
        self._plan = plan
        self._stack = stack
        self._folder = folder
        #: what the producer records
        self.published = folder / PUBLISHED
        self._namespace = namespace
        self.slots = [
            Slot(subscription, number, TcpProxy((HOST, stack.valkey.port)) if stack.valkey else None)
            for subscription in plan.subscriptions.values()
            for number in range(1, plan.members + 1)
        ]
        self.producer: Process | None = None
        #: processes that ended by themselves, and what they said
        self.crashed: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.kill()
            if slot.proxy is not None:
                slot.proxy.close()
        if self.producer is not None:
            self.producer.kill()

    def fill(self, slot: Slot) -> None:
        """Start the next member of a place."""
        slot.generation += 1
        name = f"{slot.subscription.name}-{slot.number}.{slot.generation}"
        job = working.Job(
            name=name,
            seed=f"{self._plan.seed}-{name}",
            kafka=self._stack.kafka,
            redis=self._redis(slot),
            namespace=self._namespace,
            session=self._plan.session,
            record=str(self._folder / f"member-{name}.jsonl"),
            subscription=asdict(slot.subscription),
            priority=slot.number,
        )
        slot.process = Process(name, "tests.end_to_end.histories.working", job.argument(), self._folder)

    def _redis(self, slot: Slot) -> str:
        """The URL of Redis for a member: through its own proxy, which the nodes of a cluster lead past."""
        if slot.proxy is None or self._stack.valkey is None:
            return self._stack.redis
        return self._stack.valkey.url_at(slot.proxy.address)

    def produce(self) -> None:
        """Start the producer."""
        job = producing.Job(
            seed=str(self._plan.seed),
            kafka=self._stack.kafka,
            record=str(self.published),
            topics={name: (of.partitions, of.share) for name, of in self._plan.subscriptions.items()},
            rate=self._plan.rate,
        )
        self.producer = Process(
            "producer", "tests.end_to_end.histories.producing", job.argument(), self._folder
        )

    def look(self) -> None:
        """Note who ended without being asked to, and put another one in its place."""
        if self.producer is not None and not self.producer.running and not self.producer.ended_by_us:
            self.crashed[self.producer.name] = self.producer.last_words
        for slot in self.slots:
            process = slot.process
            if process is not None and not process.running and not process.ended_by_us:
                self.crashed[process.name] = process.last_words
                process.release()  # else a warning about its pipe takes the place of its last words
                self.fill(slot)

    def order(self, order: str) -> None:
        """Tell all members something."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.order(order)

    def end(self, processes: Mapping[str, Process], limit: float) -> None:
        """Wait until these have ended; who has not within `limit` seconds is noted, and killed."""
        deadline = time.monotonic() + limit
        for name, process in processes.items():
            if not process.wait(deadline):
                self.crashed[name] = f"did not end within {limit:g} s. {process.last_words}"
                process.kill()
            elif process.process.returncode:
                self.crashed[name] = process.last_words
            process.ended_by_us = True
