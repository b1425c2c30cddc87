"""What one member notes for the delivery history of its subscription. No I/O.

Verdicts are noted by runs, not one by one: a run of messages that were handed out and settled together is one
entry, however many they are. They are noted when an exchange carries them, and passed on when the coordinator
has answered it. The history thread (`writer.py`) takes the notes about once a second.

A defect in here ends the notes, never the member.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from operator import itemgetter

from kafkadur.consumer.chunk import (
    ACKED,
    DEAD,
    HANDED,
    LOST,
    OVERDUE,
    REJECTED,
    RELEASED,
    ROLLED_BACK,
    SENT,
    Chunk,
)
from kafkadur.history.entries import Entry, Outcome, number_of
from kafkadur.history.recorded import Recorded
from kafkadur_coordinators.interface import How

_log = logging.getLogger("kafkadur.history")

#: The most offsets, as starts and ends of runs, that are kept for the thread: above, messages are left out.
MOST_OFFSETS = 200_000
#: A loop takes blocks that it needs about so long for, seconds, and at most twice as many as it took before.
_BLOCK_S = 0.05
_IN_HANDS = re.compile(b"[" + bytes((HANDED, REJECTED)) + b"]+")
#: Verdicts that the end of a lease makes void.
_GIVEN = (ACKED, DEAD, REJECTED, ROLLED_BACK, RELEASED, OVERDUE)

#: Entries and the chunks that they are about.
_Found = list[tuple[Chunk, Entry]]


class Notes:
    """The notes of one member. Methods are called with its lock held, unless they say otherwise."""

    def __init__(self, *, lanes: int, now_ms: Callable[[], int], monotonic: Callable[[], float]) -> None:
        """Nothing was noted. `lanes` a partition; the clocks: ms since 1970, and seconds."""
        self._lanes = lanes
        self._now_ms = now_ms
        self._monotonic = monotonic
        #: whether a defect has ended the notes
        self._ended = False
        #: entries about verdicts in the exchange that is not answered yet
        self._sent: _Found = []
        self._noted: list[Entry] = []
        self._offsets = 0
        self._missing = 0
        #: when a loop last asked for a block, and how many records were handed out since
        self._asked_at = float("-inf")
        self._got = 0
        #: the member's lock, and the chunks that are in flight
        self._lock: AbstractContextManager[object] = nullcontext()
        self._in_flight: Iterable[Chunk] = ()

    def watch(self, lock: AbstractContextManager[object], in_flight: Iterable[Chunk]) -> None:
        """Belong to a member with this lock and these chunks in flight."""
        self._lock, self._in_flight = lock, in_flight

    def _end(self) -> None:
        """End the notes: a defect was met, which is being handled."""
        _log.exception("the delivery history of a member ends: this is a defect of kafkadur")
        self._ended = True
        self._sent, self._noted, self._offsets = [], [], 0

    # -- handing out

    def paced(self, limit: int) -> int:
        """Return how many records, at most `limit`, a loop needs about 50 ms for, as the last ones show.

        Takes no lock.
        """
        now = self._monotonic()
        took, self._asked_at = now - self._asked_at, now
        got, self._got = self._got, 0
        fast = limit if took <= 0 else int(got * _BLOCK_S / took)
        return min(limit, max(1, min(fast, 2 * got)))

    def handed(self, chunk: Chunk, start: int, end: int) -> None:
        """Records [start, end) of a chunk are handed out."""
        self._got += end - start
        chunk.recorded().handouts.append([start, end, self._now_ms()])

    def run(self, chunk: Chunk, start: int, end: int) -> None:
        """Records [start, end) of a chunk are handed out one by one from now on.

        The first one is dated now. The others cost nothing: they are dated when the next exchange is made,
        which is within 50 ms of the verdict on the one before.
        """
        self._see(chunk)
        recorded = chunk.recorded()
        if recorded.handouts and recorded.handouts[-1][0] == start:  # it was not handed out then
            recorded.handouts.pop()
        recorded.handouts.append([start, start + 1, self._now_ms()])
        recorded.run_end = end

    def _see(self, chunk: Chunk) -> None:
        """Date the records of a run that were handed out since the last look."""
        recorded = chunk.recorded()
        if recorded.run_end == 0:
            return
        seen, end = recorded.handouts[-1][1], min(chunk.handed, recorded.run_end)
        if end > seen:
            recorded.handouts.append([seen, end, self._now_ms()])

    # -- verdicts

    def collected(
        self, chunk: Chunk, settled: Sequence[tuple[int, int]], returned: Sequence[tuple[int, How, int]]
    ) -> None:
        """An exchange carries verdicts of a chunk; parameters as of `Chunk.send`."""
        if self._ended:
            return
        try:
            self._collect(chunk, settled, returned)
        except Exception:  # noqa: BLE001 - the member goes on
            self._end()

    def _collect(
        self, chunk: Chunk, settled: Sequence[tuple[int, int]], returned: Sequence[tuple[int, How, int]]
    ) -> None:
        self._see(chunk)
        for run in settled:
            self._settled(self._sent, chunk, run)
        for index, how, delay in returned:
            place = (index, index + 1)
            if how is How.RELEASED:
                self._add(self._sent, chunk, place, Outcome.RELEASED, delay=delay or None)
            elif how is How.ROLLED_BACK:
                outcome = Outcome.OVERDUE if index in chunk.overdue else Outcome.ROLLED_BACK
                self._add(self._sent, chunk, place, outcome, delay=delay)

    def _settled(self, into: _Found, chunk: Chunk, run: tuple[int, int]) -> None:
        """Note a run of records that are settled: acknowledged, dead letters or expired."""
        recorded = chunk.recorded()
        if not (recorded.causes or recorded.expired):
            self._add(into, chunk, run, Outcome.ACKNOWLEDGED)
            return
        for index in range(*run):
            cause, outcome = recorded.causes.get(index), Outcome.ACKNOWLEDGED
            if index in recorded.expired:
                outcome = Outcome.EXPIRED
            elif cause is not None:
                outcome = Outcome.DEAD
            self._add(into, chunk, (index, index + 1), outcome, cause=cause)

    def answered(self, refused: Collection[int]) -> None:
        """The exchange was answered. The coordinator refused the leases with these tokens."""
        for chunk, entry in self._sent:
            if chunk.lease.token in refused:
                entry.outcome = Outcome.REFUSED
            self._keep(entry)
        self._sent.clear()

    def unanswered(self, stay: Collection[int]) -> None:
        """The leases were lost before the exchange was answered.

        Verdicts of the chunks with these ids are sent again. Of the others it is not known whether they were
        applied.
        """
        for chunk, entry in self._sent:
            if id(chunk) not in stay:
                entry.outcome = Outcome.UNKNOWN
                self._keep(entry)
        self._sent.clear()

    def changed(self, chunk: Chunk, before: bytes) -> None:
        """Leases were lost, or leased again. `before`: the verdict bytes of a chunk before that."""
        if self._ended:
            return
        try:
            self._note_changes(chunk, before, chunk.verdicts)
        except Exception:  # noqa: BLE001 - the member goes on
            self._end()

    def _note_changes(self, chunk: Chunk, before: bytes, after: bytes | bytearray) -> None:
        self._see(chunk)
        found: _Found = []
        for start, end, old, new in _changes(before, after):
            if new == SENT:
                self._settled(found, chunk, (start, end))
            elif old == HANDED:
                self._add(found, chunk, (start, end), Outcome.LOST)
            elif old in _GIVEN:
                for index in range(start, end):
                    unknown = index in chunk.outcome_unknown
                    outcome = Outcome.UNKNOWN if unknown else Outcome.REFUSED
                    self._add(found, chunk, (index, index + 1), outcome)
        for _, entry in found:
            self._keep(entry)

    def _add(
        self,
        into: _Found,
        chunk: Chunk,
        run: tuple[int, int],
        outcome: Outcome,
        *,
        delay: int | None = None,
        cause: str | None = None,
    ) -> None:
        """Note an outcome of a run of records, by the times at which they were handed out."""
        lease, at = chunk.lease, self._now_ms()
        for start, end, dated in _by_time(chunk.recorded(), *run):
            handed = None if outcome is Outcome.EXPIRED else dated  # the application never had it
            if handed is None and outcome not in (Outcome.DEAD, Outcome.EXPIRED):
                continue
            entry = Entry(
                partition=lease.partition // self._lanes,
                attempt=None if handed is None else lease.attempts + 1,
                handed=handed, outcome=outcome, at=at, delay=delay, cause=cause,
            )  # fmt: skip
            last = into[-1] if into else None
            if last is not None and last[0] is chunk and _like(last[1], entry):
                entry = last[1]
            else:
                into.append((chunk, entry))
            chunk.add_ranges(entry.offsets, start, end)

    def _keep(self, entry: Entry) -> None:
        """Keep an entry for the history thread, if there is room."""
        if self._offsets + len(entry.offsets) <= MOST_OFFSETS:
            self._offsets += len(entry.offsets)
            self._noted.append(entry)
        elif entry.outcome is not Outcome.HANDED:  # its verdict is noted, too
            self._missing += number_of(entry)

    # -- for the history thread

    def take_notes(self, *, leaves: bool) -> tuple[list[Entry], int]:
        """Return the entries since the last call, and how many messages are missing in them.

        Records in flight that have no verdict and were not in an earlier call have an entry, too. `leaves`:
        nothing more is answered. Takes the lock.
        """
        with self._lock:
            if not self._ended:
                try:
                    self._note_in_flight(leaves=leaves)
                except Exception:  # noqa: BLE001 - the thread writes for other members, too
                    self._end()
            taken, missing = self._noted, self._missing
            self._noted, self._offsets, self._missing = [], 0, 0
            return taken, missing

    def _note_in_flight(self, *, leaves: bool) -> None:
        if leaves:
            self.unanswered(())
        held: _Found = []
        for chunk in self._in_flight:
            if leaves:  # what no exchange has carried is void
                before = bytes(chunk.verdicts)
                self._note_changes(chunk, before, before.translate(_VOID))
                continue
            self._see(chunk)
            recorded = chunk.recorded()
            start, recorded.told = max(chunk.low, recorded.told), max(chunk.handed, recorded.told)
            for match in _IN_HANDS.finditer(bytes(chunk.verdicts), start, recorded.told):
                self._add(held, chunk, match.span(), Outcome.HANDED)
        for _, entry in held:
            self._keep(entry)


#: Verdicts that no exchange has carried become lost.
_VOID = bytes.maketrans(bytes((HANDED, *_GIVEN)), bytes((LOST,)) * (1 + len(_GIVEN)))


def _by_time(recorded: Recorded, start: int, end: int) -> Iterator[tuple[int, int, int | None]]:
    """Split records [start, end) by when they were handed out (ms since 1970); None: they were not."""
    at, handouts = start, recorded.handouts
    for number in range(max(bisect_right(handouts, start, key=itemgetter(0)) - 1, 0), len(handouts)):
        first, last, handed = handouts[number]
        if first >= end:
            break
        if last <= at:
            continue
        if first > at:
            yield at, first, None
        at = max(at, first)
        until = min(last, end)
        yield at, until, handed
        at = until
    if at < end:
        yield at, end, None


def _changes(before: bytes, after: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """Yield the runs of records that are lost or sent now and were not: start, end, verdict before, now."""
    start = 0
    for (old, new), run in groupby(zip(before, after, strict=True)):
        end = start + sum(1 for _ in run)
        if old != new and new in (LOST, SENT):
            yield start, end, old, new
        start = end


def _like(one: Entry, other: Entry) -> bool:
    """Return whether two entries differ in their offsets at most."""
    return (one.partition, one.attempt, one.handed, one.outcome, one.at, one.delay, one.cause) == (
        other.partition, other.attempt, other.handed, other.outcome, other.at, other.delay, other.cause,
    )  # fmt: skip
