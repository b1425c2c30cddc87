"""The notes of one member for the delivery history of its subscription. No I/O.

The verdicts that an exchange carries are kept as the runs that they are, and become entries when the history
thread (`writer.py`) takes them, about once a second. Runs that follow one another within 50 ms are one entry,
however many messages they are.

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
from kafkadur.history.entries import Entry, Outcome
from kafkadur.history.recorded import Carried, Recorded, add_ranges
from kafkadur_coordinators.interface import How

_log = logging.getLogger("kafkadur.history")

#: The most offsets, as starts and ends of runs, that are kept for the thread: above, messages are left out.
MOST_OFFSETS = 200_000
#: Runs that follow one another within so many ms are dated together.
_TOGETHER_MS = 50
#: A loop takes blocks that it needs about so long for, seconds, and at most twice as many records as before.
_BLOCK_S = 0.05
_IN_HANDS = re.compile(b"[" + bytes((HANDED, REJECTED)) + b"]+")
#: Verdicts that the end of a lease makes void.
_GIVEN = (ACKED, DEAD, REJECTED, ROLLED_BACK, RELEASED, OVERDUE)
#: Verdicts that no exchange has carried become lost.
_VOID = bytes.maketrans(bytes((HANDED, *_GIVEN)), bytes((LOST,)) * (1 + len(_GIVEN)))

#: A run of records: first index, end index.
_Run = tuple[int, int]
#: What entries have in common, besides the times: partition, attempt, outcome, delay, cause.
_Kind = tuple[int, int | None, Outcome, int | None, str | None]


class Notes:
    """The notes of one member. Methods are called with its lock held, unless they say otherwise."""

    def __init__(self, *, lanes: int, now_ms: Callable[[], int], monotonic: Callable[[], float]) -> None:
        """Nothing was noted. `lanes`: lanes per partition; the clocks: ms since 1970, and seconds."""
        self._now_ms = now_ms
        self._monotonic = monotonic
        #: whether a defect has ended the notes
        self._ended = False
        #: verdicts in the exchange that is not answered yet, and in those that were
        self._sent: list[Carried] = []
        self._answered: list[Carried] = []
        self._size = 0
        self._entries = _Entries(lanes)
        #: when a loop last asked for a block, how many records it was to get, how many were handed out since
        self._asked_at = float("-inf")
        self._pace = 1
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
        self._sent, self._answered = [], []
        self._entries.take()

    # -- handing out

    def paced(self, limit: int) -> int:
        """Return how many records, at most `limit`, a loop needs about 50 ms for, as the last ones show.

        Takes no lock.
        """
        now = self._monotonic()
        took, self._asked_at = now - self._asked_at, now
        got, self._got = self._got, 0
        fast = limit if took <= 0 else max(1, int(got * _BLOCK_S / took))
        self._pace = min(limit, fast, 2 * self._pace)
        return self._pace

    def handed(self, chunk: Chunk, start: int, end: int) -> None:
        """Records [start, end) of a chunk are handed out."""
        self._got += end - start
        chunk.recorded().handouts.append([start, end, self._now_ms()])

    def run(self, chunk: Chunk, start: int, end: int) -> None:
        """Records [start, end) of a chunk are handed out one by one from now on.

        The first one is dated now. The others cost nothing: they are dated when the next exchange is made,
        which is within 50 ms of the verdict on the one before.
        """
        recorded, now = chunk.recorded(), self._now_ms()
        handouts = recorded.handouts
        if handouts and handouts[-1][0] == start:  # it was not handed out then
            handouts.pop()
        self._see(recorded, chunk.handed, now)
        if handouts and handouts[-1][1] == start and now - handouts[-1][2] < _TOGETHER_MS:
            handouts[-1][1] = start + 1
        else:
            handouts.append([start, start + 1, now])
        recorded.run_end = end

    @staticmethod
    def _see(recorded: Recorded, handed: int, now: int) -> None:
        """Date the records of a run that were handed out since the last look."""
        if recorded.run_end and recorded.handouts:
            last, end = recorded.handouts[-1], min(handed, recorded.run_end)
            if end <= last[1]:
                return
            if now - last[2] < _TOGETHER_MS:
                last[1] = end
            else:
                recorded.handouts.append([last[1], end, now])

    # -- verdicts

    def collected(
        self, chunk: Chunk, settled: Sequence[_Run], returned: Sequence[tuple[int, How, int]]
    ) -> None:
        """An exchange carries verdicts of a chunk; parameters as of `Chunk.send`."""
        if not self._ended and (settled or returned):
            recorded, now = chunk.recorded(), self._now_ms()
            if recorded.run_end:
                self._see(recorded, chunk.handed, now)
            self._sent.append(Carried(chunk.lease.token, recorded, settled, returned, now))

    def answered(self, refused: Collection[int]) -> None:
        """The exchange was answered. The coordinator refused the leases with these tokens."""
        for carried in self._sent:
            if carried.token in refused:
                carried.instead = Outcome.REFUSED
            self._keep(carried)
        self._sent.clear()

    def unanswered(self, stay: Collection[int]) -> None:
        """The leases were lost before the exchange was answered.

        Verdicts of the chunks with these ids are sent again. Of the others it is not known whether they were
        applied.
        """
        for carried in self._sent:
            if carried.recorded.chunk not in stay:
                carried.instead = Outcome.UNKNOWN
                self._keep(carried)
        self._sent.clear()

    def _keep(self, carried: Carried) -> None:
        """Keep verdicts for the history thread, if there is room."""
        last = carried.recorded.last
        if last is not None and carried.at - last.at < _TOGETHER_MS and last.is_followed_by(carried):
            last.settled = ((last.settled[0][0], carried.settled[0][1]),)
            return
        size = len(carried.settled) + len(carried.returned)
        if self._size + size > MOST_OFFSETS:
            self._entries.missing += sum(b - a for a, b in carried.settled) + len(carried.returned)
            return
        self._size += size
        self._answered.append(carried)
        carried.recorded.last = carried

    def changed(self, chunk: Chunk, before: bytes) -> None:
        """Leases were lost, or leased again. `before`: the verdict bytes of a chunk before that."""
        if self._ended:
            return
        try:
            self._note_changes(chunk, before, chunk.verdicts)
        except Exception:  # noqa: BLE001 - the member goes on
            self._end()

    def _note_changes(self, chunk: Chunk, before: bytes, after: bytes | bytearray) -> None:
        recorded, entries, now = chunk.recorded(), self._entries, self._now_ms()
        self._see(recorded, chunk.handed, now)
        for start, end, old, new in _changes(before, after):
            if new == SENT:
                entries.settled(recorded, (start, end), now)
            elif old == HANDED:
                entries.add(recorded, (start, end), Outcome.LOST, now)
            elif old in _GIVEN:
                for index in range(start, end):
                    unknown = index in chunk.outcome_unknown
                    outcome = Outcome.UNKNOWN if unknown else Outcome.REFUSED
                    entries.add(recorded, (index, index + 1), outcome, now)

    # -- for the history thread

    def take_notes(self, *, leaves: bool) -> tuple[list[Entry], int]:
        """Return the entries since the last call, and how many messages are missing in them.

        Records in flight that have no verdict and were not in an earlier call have an entry, too. `leaves`:
        nothing more is answered. Takes the lock.
        """
        with self._lock:
            if not self._ended:
                try:
                    self._note_all(leaves=leaves)
                except Exception:  # noqa: BLE001 - the thread writes for other members, too
                    self._end()
            return self._entries.take()

    def _note_all(self, *, leaves: bool) -> None:
        if leaves:
            self.unanswered(())
        answered, self._answered, self._size = self._answered, [], 0
        now = self._now_ms()
        for carried in answered:
            carried.recorded.last = None
            self._entries.carried(carried)
        for chunk in self._in_flight:
            if leaves:  # what no exchange has carried is void
                before = bytes(chunk.verdicts)
                self._note_changes(chunk, before, before.translate(_VOID))
                continue
            recorded = chunk.recorded()
            self._see(recorded, chunk.handed, now)
            start, recorded.told = max(chunk.low, recorded.told), max(chunk.handed, recorded.told)
            for match in _IN_HANDS.finditer(bytes(chunk.verdicts), start, recorded.told):
                self._entries.add(recorded, match.span(), Outcome.HANDED, now)


class _Entries:
    """The entries of one member for the history thread."""

    def __init__(self, lanes: int) -> None:
        """There is no entry. `lanes` a partition."""
        self._lanes = lanes
        self._entries: list[Entry] = []
        self._offsets = 0
        #: the last entry of each kind
        self._last: dict[_Kind, Entry] = {}
        #: messages for whose entries there was no room
        self.missing = 0

    def take(self) -> tuple[list[Entry], int]:
        """Return the entries, and how many messages are missing in them; afterwards there are none."""
        entries, missing = self._entries, self.missing
        self._entries, self._offsets, self.missing = [], 0, 0
        self._last.clear()
        return entries, missing

    def carried(self, carried: Carried) -> None:
        """Add what became of the verdicts of an exchange."""
        recorded, at = carried.recorded, carried.at
        if carried.instead is not None:
            for run in (*carried.settled, *((index, index + 1) for index, _, _ in carried.returned)):
                self.add(recorded, run, carried.instead, at)
            return
        for run in carried.settled:
            self.settled(recorded, run, at)
        for index, how, delay in carried.returned:
            place = (index, index + 1)
            if how is How.RELEASED:
                self.add(recorded, place, Outcome.RELEASED, at, delay=delay or None)
            elif how is How.ROLLED_BACK:
                outcome = Outcome.OVERDUE if index in recorded.overdue else Outcome.ROLLED_BACK
                self.add(recorded, place, outcome, at, delay=delay)

    def settled(self, recorded: Recorded, run: _Run, at: int) -> None:
        """Add a run of records that are settled: acknowledged, dead letters or expired."""
        if not (recorded.causes or recorded.expired):
            self.add(recorded, run, Outcome.ACKNOWLEDGED, at)
            return
        for index in range(*run):
            cause, outcome = recorded.causes.get(index), Outcome.ACKNOWLEDGED
            if index in recorded.expired:
                outcome = Outcome.EXPIRED
            elif cause is not None:
                outcome = Outcome.DEAD
            self.add(recorded, (index, index + 1), outcome, at, cause=cause)

    def add(
        self,
        recorded: Recorded,
        run: _Run,
        outcome: Outcome,
        at: int,
        *,
        delay: int | None = None,
        cause: str | None = None,
    ) -> None:
        """Add an outcome of a run of records, by the times at which they were handed out."""
        for start, end, dated in _by_time(recorded.handouts, *run):
            handed = None if outcome is Outcome.EXPIRED else dated  # the application never had it
            if handed is None and outcome not in (Outcome.DEAD, Outcome.EXPIRED):
                continue
            attempt = None if handed is None else recorded.attempts + 1
            kind = (recorded.partition // self._lanes, attempt, outcome, delay, cause)
            entry = self._entry(kind, handed, at)
            if entry is None:
                if outcome is not Outcome.HANDED:  # its verdict is noted, too
                    self.missing += end - start
                continue
            before = len(entry.offsets)
            add_ranges(entry.offsets, recorded.first, recorded.offsets, start, end)
            self._offsets += len(entry.offsets) - before

    def _entry(self, kind: _Kind, handed: int | None, at: int) -> Entry | None:
        """Return the entry to add offsets to; None: there is no room."""
        if self._offsets >= MOST_OFFSETS:
            return None
        last = self._last.get(kind)
        if last is not None and _near(last.at, at) and _near(last.handed, handed):
            return last
        partition, attempt, outcome, delay, cause = kind
        entry = Entry(
            partition=partition, attempt=attempt, handed=handed, outcome=outcome, at=at, delay=delay,
            cause=cause,
        )  # fmt: skip
        self._last[kind] = entry
        self._entries.append(entry)
        return entry


def _near(one: int | None, other: int | None) -> bool:
    """Return whether two times (ms) are dated together."""
    if one is None or other is None:
        return one is other
    return abs(one - other) < _TOGETHER_MS


def _by_time(handouts: list[list[int]], start: int, end: int) -> Iterator[tuple[int, int, int | None]]:
    """Split records [start, end) by when they were handed out (ms since 1970); None: they were not."""
    at = start
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
