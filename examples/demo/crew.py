"""The worker processes as the demo holds them: start, orders, news, kill. None outlives the `with` block."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from examples.demo.ledger import Ledger
from examples.demo.worker import GO, REPORT, STOP, Job
from kafkadur_sharing.errors import KafkadurError

#: Module of the worker of a subscription, where it is another one. Its name only: Spark may not be installed.
_MODULES: Final = {REPORT: f"{__package__}.job"}


class DemoError(KafkadurError):
    """The demo cannot go on."""


@dataclass(frozen=True, kw_only=True)
class News:
    """Something a worker told."""

    worker: Worker
    #: `attached`, `refused`, `first`, `progress`, `confirmed`, `failed`; `gone` when its process ended. That
    #: of `REPORT` also tells `batch`, when one is settled, and `standing`, when it waits to be killed.
    event: str
    #: What came with it.
    more: dict[str, Any]


class Worker:
    """One worker process."""

    def __init__(self, job: Job, log: Path, news: queue.SimpleQueue[News]) -> None:
        """Start the process; what it says on standard error goes to `log`."""
        self.job = job
        self.log = log
        self.killed = False
        self.frozen = False
        self.confirmed = False
        #: When it had the message it told of last, monotonic seconds; None: it has had none.
        self.first_at: float | None = None
        #: When its subscription was closed, monotonic seconds.
        self.closed_at = 0.0
        #: Messages it wrote into its ledger, and how many of them it had been told were redelivered.
        self.done = 0
        self.redelivered = 0
        with log.open("wb") as errors:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
                [
                    sys.executable,
                    "-m",
                    _MODULES.get(job.subscription, f"{__package__}.worker"),
                    job.argument(),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Ctrl-C reaches the demo alone; the end of standard input reaches the workers.
                start_new_session=True,
            )
        self._news = news
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[bytes]) -> None:
        for text in output:
            told = json.loads(text)
            self._news.put(News(worker=self, event=told.pop("event"), more=told))
        self._news.put(News(worker=self, event="gone", more={}))

    def order(self, order: str) -> None:
        """Send an order; one that has ended does not hear it."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(order.encode() + b"\n")
                self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, as the story wants it; returns when the process is gone."""
        self.killed = True
        self._kill_group()

    def _kill_group(self) -> None:
        """Kill it with what it started: it leads a group of its own."""
        if self.process.returncode is None:  # nobody has waited for it: the group's number is still its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = True
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.frozen = False
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Make sure that nothing is left of it."""
        self._kill_group()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    @property
    def ledger(self) -> Ledger:
        """Its ledger."""
        return Ledger(worker=self.job.name, path=Path(self.job.ledger), killed=self.killed)


class Crew:
    """The workers of one subscription."""

    def __init__(self, *, kafka: str, redis: str, output: Path, total: int) -> None:
        """`output` takes ledgers and logs, `total` is the number of messages that are to be settled."""
        self._kafka = kafka
        self._redis = redis
        self._output = output
        self._total = total
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        """Return the crew."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process that still runs."""
        for worker in self.workers:
            worker.end()

    def start(self, subscription: str, number: int, *, last_stand: int = 0, pace: float = 0.0) -> Worker:
        """Start a worker; `last_stand`, `pace`: see `Job`."""
        name = f"{subscription}-{number}"
        job = Job(
            name=name,
            subscription=subscription,
            kafka=self._kafka,
            redis=self._redis,
            ledger=str(self._output / f"{name}.ledger"),
            report_every=max(self._total // 100, 1),
            last_stand=last_stand,
            pace=pace,
        )
        return self.start_job(job)

    def start_job(self, job: Job) -> Worker:
        """Start a worker that does this job."""
        worker = Worker(job, self._output / f"{job.name}.log", self._news)
        self.workers.append(worker)
        return worker

    def hear(self, timeout: float) -> News | None:
        """The next news, or None after `timeout` seconds.

        Raises `DemoError` when a worker failed, or ended without being killed or done.
        """
        try:
            news = self._news.get(timeout=timeout)
        except queue.Empty:
            return None
        worker, more = news.worker, news.more
        if news.event == "progress":
            worker.done, worker.redelivered = more["done"], more["redelivered"]
        elif news.event == "first":
            worker.first_at = float(more["at"])
        elif news.event == "confirmed":
            worker.confirmed, worker.closed_at = True, float(more["at"])
        elif news.event == "failed":
            raise DemoError(f"{worker.job.name} failed: {more['text']}")
        elif news.event == "gone" and not worker.killed and not worker.confirmed:
            raise DemoError(f"{worker.job.name} ended by itself. {_last_line(worker.log)}".strip())
        return news

    def wait_for(self, event: str, *workers: Worker, timeout: float = 60.0) -> list[News]:
        """Wait until each of `workers` told `event`; raises `DemoError` after `timeout` silent seconds."""
        heard: dict[Worker, News] = {}
        while missing := [worker for worker in workers if worker not in heard]:
            news = self.hear(timeout)
            if news is None:
                names = ", ".join(worker.job.name for worker in missing)
                raise DemoError(f"Nothing was heard of {names} for {timeout:.0f} s, waiting for: {event}.")
            if news.event == event:
                heard[news.worker] = news
        return [heard[worker] for worker in workers]

    def go(self, *workers: Worker) -> None:
        """Let workers begin."""
        for worker in workers:
            worker.order(GO)

    def stop(self, *workers: Worker, go: bool = False) -> None:
        """Let workers end in order; returns when all their verdicts are confirmed.

        `go`: they hold a message and wait for the order to go on.
        """
        for worker in workers:
            worker.order(STOP)
            if go:
                worker.order(GO)
        self.wait_for("gone", *workers)

    @property
    def done(self) -> int:
        """Messages in all ledgers, as far as told."""
        return sum(worker.done for worker in self.workers)

    @property
    def redelivered(self) -> int:
        """Messages that workers were told are redelivered."""
        return sum(worker.redelivered for worker in self.workers)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"It said: {lines[-1]}" if lines else ""
