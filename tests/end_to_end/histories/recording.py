"""The file of one process: a JSON line when an operation begins, one when it has its outcome.

A line is with the operating system when the method returns, so SIGKILL loses nothing of what had been
returned. Times are those of `time.monotonic_ns`, which all processes of one machine share. What the lines
mean is in `history.py`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from examples.demo.ledger import LedgerWriter

#: It happened, and the coordinator (or Kafka) has confirmed it.
OK = "ok"
#: It is certain that it did not happen.
FAIL = "fail"
#: It may have happened.
UNKNOWN = "unknown"


class Recorder:
    """Appends to the file of one process. Any thread."""

    def __init__(self, path: Path) -> None:
        """Open a new file; raises OSError if there is one."""
        self._file = LedgerWriter(path)
        self._lock = threading.Lock()
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def call(self, op: str, **facts: object) -> int:
        """An operation begins; returns the number by which `done` tells its outcome."""
        with self._lock:
            self._number += 1
            number = self._number
        self._write({"n": number, "op": op, "called": time.monotonic_ns(), **facts})
        return number

    def done(self, number: int, outcome: str, **facts: object) -> None:
        """The operation has its outcome."""
        self._write({"n": number, "at": time.monotonic_ns(), "outcome": outcome, **facts})

    def note(self, op: str, **facts: object) -> None:
        """Something that has no outcome of its own; it happened now unless `at` says when."""
        self._write({"op": op, "at": time.monotonic_ns(), **facts})

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The operations in a file, in the order in which they began; those that never ended are unknown.

    An unfinished last line, of a process that was killed, is left out.
    """
    lines: list[dict[str, Any]] = []
    by_number: dict[int, dict[str, Any]] = {}
    for text in path.read_bytes().split(b"\n")[:-1]:
        line: dict[str, Any] = json.loads(text)
        number = line.get("n")
        if number is not None and number in by_number:
            by_number[number].update(line)
            continue
        if number is not None:
            by_number[number] = line
            line.setdefault("outcome", UNKNOWN)
        lines.append(line)
    yield from lines
