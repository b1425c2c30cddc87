"""What a driver did with messages, for the delivery history of its subscription.

Spark's source reads without asking the coordinator for each message: attempts are not known here, and a
holder does not know when a batch was read.
"""

from __future__ import annotations

import threading
import time

from kafkadur.history.entries import Entry, Outcome, number_of
from kafkadur_sharing.ranges import Ranges, joined, without
from kafkadur_spark.rejecting import Reasons

#: The most offsets, as starts and ends of runs, that are kept for the history thread.
_MOST = 200_000


def now_ms() -> int:
    """Return the time, ms since 1970."""
    return time.time_ns() // 1_000_000


class Recording:
    """The entries of one driver. Any thread."""

    def __init__(self) -> None:
        """Record nothing until `begin`."""
        self._begun = False
        self._entries: list[Entry] = []
        self._offsets = 0
        self._missing = 0
        #: messages whose dead letters are written, and that are not settled yet
        self._given_up: dict[int, set[int]] = {}
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Record from now on."""
        self._begun = True

    def give_up(self, rejected: Reasons) -> None:
        """Dead letters of these messages are written: the next `settle` records them as such."""
        with self._lock:
            for partition, reasons in rejected.items() if self._begun else ():
                self._given_up.setdefault(partition, set()).update(reasons)

    def settle(self, partition: int, settled: Ranges, *, handed: int | None = None) -> None:
        """These offsets were settled; those that were given up before are dead letters."""
        with self._lock:
            given_up = joined((offset, offset + 1) for offset in self._given_up.pop(partition, ()))
            left = without(given_up, settled)
            dead = without(given_up, left)
            self._given_up[partition] = {offset for a, b in left for offset in range(a, b)}
            self._add(partition, without(settled, dead), Outcome.ACKNOWLEDGED, handed)
            self._add(partition, dead, Outcome.DEAD, handed, cause="rejected")

    def note(self, partition: int, ranges: Ranges, outcome: Outcome, *, handed: int | None = None) -> None:
        """These offsets have this outcome."""
        with self._lock:
            self._add(partition, ranges, outcome, handed)

    def _add(
        self, partition: int, ranges: Ranges, outcome: Outcome, handed: int | None, cause: str | None = None
    ) -> None:
        offsets = [offset for pair in ranges for offset in pair]
        if not (offsets and self._begun):
            return
        entry = Entry(
            partition=partition, offsets=offsets, attempt=None, handed=handed, outcome=outcome, at=now_ms(),
            cause=cause,
        )  # fmt: skip
        if self._offsets + len(offsets) <= _MOST:
            self._offsets += len(offsets)
            self._entries.append(entry)
        else:
            self._missing += number_of(entry)

    def take_notes(self, *, leaves: bool) -> tuple[list[Entry], int]:
        """Return the entries since the last call, and how many messages are missing in them."""
        del leaves
        with self._lock:
            taken, missing = self._entries, self._missing
            self._entries, self._offsets, self._missing = [], 0, 0
        return taken, missing
