"""Child processes of a run: how they are started, heard and ended. What runs inside is in ``worker.py``."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.worker import Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

#: Seconds a child may take for one step before it counts as hung.
STEP_S = 300.0
#: Seconds without any message after which a run is given up; longer than a share group's heartbeat (5 s).
IDLE_S = 12.0

SPAWN = multiprocessing.get_context("spawn")


class BenchmarkError(RuntimeError):
    """A run could not be finished; the text says which worker and why."""


@dataclass(slots=True)
class Child:
    """The parent's end of one child process."""

    name: str
    process: SpawnProcess
    pipe: Connection

    def expect(self, wanted: object = None) -> object:
        """Wait for the child's next answer, which must be ``wanted`` unless that is None.

        Raises:
            BenchmarkError: it failed, ended, hung or said something else.
        """
        deadline = time.monotonic() + STEP_S
        while not self.pipe.poll(0.2):
            if time.monotonic() > deadline:
                message = f"{self.name} did not answer within {STEP_S:.0f} s"
                raise BenchmarkError(message)
        try:
            answer: object = self.pipe.recv()
        except EOFError as error:
            self.process.join(5)
            message = f"{self.name} ended with status {self.process.exitcode} before it answered"
            raise BenchmarkError(message) from error
        if isinstance(answer, Failure):
            message = f"{self.name} failed:\n{answer.text}"
            raise BenchmarkError(message)
        if wanted is not None and answer != wanted:
            message = f"{self.name} said {answer!r} instead of {wanted!r}"
            raise BenchmarkError(message)
        return answer

    def check(self) -> None:
        """Raise BenchmarkError if the child has said something or ended, where nothing is expected of it."""
        if self.pipe.poll(0) or not self.process.is_alive():
            answer = self.expect()
            message = f"{self.name} said {answer!r} unasked"
            raise BenchmarkError(message)

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


def start(name: str, target: Callable[..., None], *args: object) -> Child:
    """Start ``target`` in a new process; its first argument is its end of the pipe."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(theirs, *args), name=name, daemon=True)
    process.start()
    theirs.close()
    return Child(name, process, ours)
