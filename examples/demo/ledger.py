"""Ledgers: what a worker wrote down about each message before it settled it, one line a message.

A line is `row partition offset attempt verdict digest`. Lines go to the operating system before the verdict
is given, so a ledger survives SIGKILL and knows at least everything that was settled. What the ledgers prove
is in `verification.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from examples.demo.flights import digest, row_of
from kafkadur.consumer.delivery import Delivery

#: What a worker can write down that it is about to do.
ACK: Final = b"ack"
ROLLBACK: Final = b"rollback"

_FIELDS: Final = 6


class Line(NamedTuple):
    """One line of a ledger."""

    #: Row number the message said it is; 0 if it was no flight.
    row: int
    partition: int
    offset: int
    #: 1 for the first attempt.
    attempt: int
    #: `ACK` or `ROLLBACK`.
    verdict: bytes
    #: Of the message's content, see `digest`.
    digest: bytes


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A ledger to be read: whose it is and how its worker ended."""

    worker: str
    path: Path
    #: Whether its worker was killed: its last verdicts may have reached nobody.
    killed: bool = False

    def lines(self) -> Iterator[Line]:
        """Read all lines; raises `ValueError` for what is no line.

        Of a killed worker the unfinished end of the last line is left out: its verdict was never given.
        """
        content = self.path.read_bytes()
        *complete, rest = content.split(b"\n")
        if rest and not self.killed:
            raise ValueError(f"the ledger of {self.worker} ends within a line")
        for number, text in enumerate(complete, 1):
            fields = text.split(b" ")
            if len(fields) != _FIELDS:
                raise ValueError(f"line {number} of the ledger of {self.worker} is no line of a ledger")
            row, partition, offset, attempt, verdict, content_digest = fields
            yield Line(int(row), int(partition), int(offset), int(attempt), verdict, content_digest)


def line(delivery: Delivery, verdict: bytes) -> bytes:
    """The line for one delivery, with its end."""
    value = delivery.value or b""
    return b"%d %d %d %d %b %b\n" % (
        row_of(value),
        delivery.partition,
        delivery.offset,
        delivery.attempt,
        verdict,
        digest(value),
    )


class LedgerWriter:
    """Writes a ledger; when `write` returns the operating system has it, whatever becomes of this process."""

    def __init__(self, path: Path) -> None:
        """Open the file, which must not exist yet; raises `OSError`."""
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        os.close(self._file)

    def write(self, lines: bytes) -> None:
        """Append complete lines; raises `OSError`, for example when the disk is full."""
        written = os.write(self._file, lines)
        while written < len(lines):
            written += os.write(self._file, lines[written:])


def write_lines(path: Path, lines: Sequence[Line]) -> None:
    """Write a whole ledger, as a worker would have."""
    with LedgerWriter(path) as writer:
        for row, partition, offset, attempt, verdict, content in lines:
            writer.write(b"%d %d %d %d %b %b\n" % (row, partition, offset, attempt, verdict, content))
