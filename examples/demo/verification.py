"""The check at the end: do the ledgers of a subscription prove that every message was settled exactly once?

It compares what workers wrote down with what the input says, and knows nothing of kafkadur's own counters.
Legal repeats have one of these causes: a worker rolled the message back as it was meant to; the worker that
had it was killed before its verdict was confirmed; or something was broken on purpose (`chaos.py`) in
between. Whatever else happened twice, or not at all, or was never in the input, is a defect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from examples.demo.ledger import ACK, ROLLBACK, Ledger, Line

#: Causes of repeats that are no defect.
KILLED: Final = "killed"
ROLLED_BACK: Final = "rolled back"
BROKEN: Final = "broken"

#: So many examples of a defect are named.
_EXAMPLES: Final = 3


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Something that was broken: lines of each worker's ledger when it began and when it was over."""

    began: Mapping[str, int]
    ended: Mapping[str, int]

    def between(self, one: Entry, other: Entry, most_unconfirmed: int) -> bool:
        """Whether it may have come after one of the deliveries and before the other one.

        Who had a message in its hands, or its verdict unconfirmed, when it was over, had it before.
        """
        return any(
            before.number < self.ended.get(before.worker, -most_unconfirmed) + most_unconfirmed
            and after.number >= self.began.get(after.worker, 0)
            for before, after in ((one, other), (other, one))
        )


class Entry(NamedTuple):
    """One line of a ledger, as far as repeats are concerned."""

    worker: str
    killed: bool
    #: Lines of the same ledger before this one.
    number: int
    #: Lines of the same ledger after this one.
    before_end: int
    attempt: int
    verdict: bytes


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the ledgers of one subscription prove."""

    subscription: str
    #: Rows of the input.
    messages: int
    #: Lines in all ledgers.
    deliveries: int
    #: Legal repeats by cause.
    repeats: Mapping[str, int] = field(default_factory=dict[str, int])
    #: Rows that nobody acknowledged.
    lost: Sequence[int] = ()
    #: What was delivered and is not in the input, in words.
    invented: Sequence[str] = ()
    #: Repeats without a legal cause, and other contradictions, in words.
    unexplained: Sequence[str] = ()

    @property
    def ok(self) -> bool:
        """Whether every message was settled exactly once."""
        return not (self.lost or self.invented or self.unexplained)

    @property
    def redelivered(self) -> int:
        """Number of legal repeats."""
        return sum(self.repeats.values())

    def defects(self) -> list[str]:
        """What is wrong, one sentence a kind, with examples; empty when nothing is."""
        kinds = (
            ("lost", [f"row {row}" for row in self.lost]),
            ("invented", self.invented),
            ("unexplained", self.unexplained),
        )
        return [
            f"{self.subscription}: {len(found)} {kind}, for example {'; '.join(found[:_EXAMPLES])}"
            for kind, found in kinds
            if found
        ]


def verify(
    subscription: str,
    expected: Sequence[bytes],
    ledgers: Iterable[Ledger],
    *,
    rolls_back: Callable[[int], bool],
    most_unconfirmed: int,
    disturbances: Sequence[Disturbance] = (),
) -> Proof:
    """Compare the ledgers of a subscription with the input.

    `expected` holds the digest of every row, row 1 first. `rolls_back` says which rows are rolled back at
    their first attempt. `most_unconfirmed` (messages) is the published bound: further than that from the end
    of its ledger, a killed worker's verdicts were confirmed, and nothing may come again. `disturbances` are
    what was broken on purpose.
    """
    read = _Read(expected)
    for ledger in ledgers:
        read.take(ledger)
    lost = [row for row in range(1, len(expected) + 1) if row not in read.first]
    lost += [row for row, entry in read.first.items() if entry.verdict != ACK and row not in read.again]
    repeats: Counter[str] = Counter()
    for row, entries in read.again.items():
        causes, odd = _explain(
            entries, disturbances, may_roll_back=rolls_back(row), most_unconfirmed=most_unconfirmed
        )
        repeats.update(causes)
        read.unexplained += [f"row {row} {text}" for text in odd]
        if all(entry.verdict != ACK for entry in entries):
            lost.append(row)
    return Proof(
        subscription=subscription,
        messages=len(expected),
        deliveries=read.deliveries,
        repeats=dict(repeats),
        lost=sorted(lost),
        invented=read.invented,
        unexplained=read.unexplained,
    )


class _Read:
    """What was read from ledgers so far, by row."""

    def __init__(self, expected: Sequence[bytes]) -> None:
        self._expected = expected
        self._places: dict[int, tuple[int, int]] = {}
        self.deliveries = 0
        #: Row -> its first entry.
        self.first: dict[int, Entry] = {}
        #: Row that came more than once -> all its entries.
        self.again: dict[int, list[Entry]] = {}
        self.invented: list[str] = []
        self.unexplained: list[str] = []

    def take(self, ledger: Ledger) -> None:
        """Read a ledger."""
        try:
            lines = list(ledger.lines())
        except (OSError, ValueError) as error:
            self.unexplained.append(f"the ledger of {ledger.worker} cannot be read: {error}")
            return
        self.deliveries += len(lines)
        for left, line in zip(range(len(lines) - 1, -1, -1), lines, strict=True):
            wrong = self._wrong(line)
            if wrong is not None:
                self.invented.append(wrong)
                continue
            number = len(lines) - 1 - left
            entry = Entry(ledger.worker, ledger.killed, number, left, line.attempt, line.verdict)
            earlier = self.first.setdefault(line.row, entry)
            if earlier is not entry:
                self.again.setdefault(line.row, [earlier]).append(entry)

    def _wrong(self, line: Line) -> str | None:
        """What about a delivery does not come from the input."""
        row, place = line.row, (line.partition, line.offset)
        if not 1 <= row <= len(self._expected) or line.digest != self._expected[row - 1]:
            return f"partition {place[0]} offset {place[1]}, which says it is row {row}"
        if self._places.setdefault(row, place) != place:
            return f"row {row} once more, at partition {place[0]} offset {place[1]}"
        return None


def _explain(
    entries: Sequence[Entry],
    disturbances: Sequence[Disturbance],
    *,
    may_roll_back: bool,
    most_unconfirmed: int,
) -> tuple[Counter[str], list[str]]:
    """The causes of the repeats of one row, and what has no legal cause.

    One acknowledgement is the one that settled the row: that of a worker that ended in order if there is one,
    for it was confirmed, else that of the killed worker. Every other entry has to be explained.
    """
    causes: Counter[str] = Counter()
    odd: list[str] = []
    acks = [entry for entry in entries if entry.verdict == ACK]
    confirmed = [entry for entry in acks if not entry.killed]
    settling = next(iter(confirmed or acks), None)
    excused: set[tuple[str, bytes]] = set()
    for entry in entries:
        if entry is settling:
            continue
        by = (entry.worker, entry.verdict)
        # A killed worker is an excuse once, and only for what it cannot have had confirmed.
        if entry.killed and entry.before_end < most_unconfirmed and by not in excused:
            excused.add(by)
            causes[KILLED] += 1
        elif entry.verdict == ROLLBACK and may_roll_back and entry.attempt == 1 and not causes[ROLLED_BACK]:
            causes[ROLLED_BACK] += 1
        elif _is_broken(entry, entries, disturbances, most_unconfirmed):
            causes[BROKEN] += 1
        else:
            told = f"{entry.verdict.decode()} by {entry.worker} at attempt {entry.attempt}"
            odd.append(f"has a repeat that nothing explains: {told}")
    rolled_back = any(
        entry.verdict == ROLLBACK
        and not entry.killed
        and not _is_broken(entry, entries, disturbances, most_unconfirmed)
        for entry in entries
    )
    if settling is not None and settling.attempt == 1 and rolled_back:
        odd.append(f"was rolled back, and came to {settling.worker} as if for the first time")
    return causes, odd


def _is_broken(
    entry: Entry, entries: Sequence[Entry], disturbances: Sequence[Disturbance], most_unconfirmed: int
) -> bool:
    """Whether something was broken between this delivery of a row and another one."""
    return any(
        disturbance.between(entry, other, most_unconfirmed)
        for other in entries
        if other is not entry
        for disturbance in disturbances
    )
