"""Reads a delivery history: the deliveries of a subscription, or of one message, key or member of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import Message

from kafkadur.history.entries import Entry, Outcome, decoded

#: Runs of offsets: start, end.
Runs = list[tuple[int, int]]
#: Messages that are asked for: their offsets, by partition.
Offsets = Mapping[int, Collection[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """What became of adjacent messages that one member had at the same time."""

    partition: int
    #: Offsets [start, end).
    start: int
    end: int
    #: Number of the attempt, from 1 on; None: it is not known, as of a Spark driver.
    attempt: int | None
    #: Id and name of the member.
    member: str
    name: str
    #: When the member got them, ms since 1970; None: they were settled before a member got them, or it is not
    #: known.
    handed: int | None
    outcome: Outcome
    #: When that was so, ms since 1970.
    at: int
    #: Ms after which a message that was rolled back comes again; -1: as the redelivery policy says.
    delay: int | None
    #: Why there is a dead letter.
    cause: str | None

    @property
    def held(self) -> int | None:
        """For how long the member had them, ms; None: it has them still, or never had them."""
        return None if self.handed is None or self.outcome is Outcome.HANDED else self.at - self.handed


class _Holding(NamedTuple):
    """A delivery, as the entries about it name it."""

    member: str
    partition: int
    attempt: int | None
    handed: int | None


class Reader:
    """Turns the messages of a history topic, in their order, into deliveries."""

    def __init__(self, *, offsets: Offsets | None = None, member: str | None = None) -> None:
        """Only deliveries of these messages, and to the member with this id or name; None: all."""
        self._offsets = None if offsets is None else {p: sorted(found) for p, found in offsets.items()}
        self._member = member
        #: deliveries without a verdict so far, and their last entry
        self._held: dict[_Holding, tuple[str, Entry, Runs]] = {}
        #: messages whose entries are missing, as far as that was written
        self.missing = 0
        #: bytes that were read
        self.size = 0

    def read(
        self, messages: Iterable[Message], told: Callable[[int], None] = lambda _: None
    ) -> Iterator[Delivered]:
        """Yield the deliveries with a verdict in the order of their verdicts, then those without one.

        `told` is called with the number of messages that were read.
        """
        for number, message in enumerate(messages, 1):
            told(number)
            value = message.value()
            self.size += len(value or b"")
            written = decoded(value)
            if written is None or self._member not in (None, written.member, written.name):
                continue
            self.missing += written.missing
            for entry in written.entries:
                yield from self._take(written.member, written.name, entry)
        for holding, (name, entry, runs) in self._held.items():
            for run in runs:
                yield _delivered(holding.member, name, entry, run)

    def _take(self, member: str, name: str, entry: Entry) -> Iterator[Delivered]:
        runs = self._wanted(entry)
        if not runs:
            return
        holding = _Holding(member, entry.partition, entry.attempt, entry.handed)
        if entry.outcome is Outcome.HANDED:
            before = self._held[holding][2] if holding in self._held else []
            self._held[holding] = (name, entry, before + runs)
            return
        if holding in self._held:
            left = without(self._held[holding][2], runs)
            if left:
                self._held[holding] = (*self._held[holding][:2], left)
            else:
                del self._held[holding]
        for run in runs:
            yield _delivered(member, name, entry, run)

    def _wanted(self, entry: Entry) -> Runs:
        """Return the offsets of an entry that are asked for, as runs."""
        runs = list(zip(entry.offsets[::2], entry.offsets[1::2], strict=False))
        if self._offsets is None:
            return runs
        wanted = self._offsets.get(entry.partition, [])
        return [
            (offset, offset + 1)
            for start, end in runs
            for offset in wanted[bisect_left(wanted, start) : bisect_left(wanted, end)]
        ]


def without(runs: Runs, taken: Runs) -> Runs:
    """Return runs of offsets without those of others."""
    for start, end in taken:
        runs = [
            piece for a, b in runs for piece in ((a, min(b, start)), (max(a, end), b)) if piece[0] < piece[1]
        ]
    return runs


def _delivered(member: str, name: str, entry: Entry, run: tuple[int, int]) -> Delivered:
    return Delivered(
        partition=entry.partition, start=run[0], end=run[1], attempt=entry.attempt, member=member, name=name,
        handed=entry.handed, outcome=entry.outcome, at=entry.at, delay=entry.delay, cause=entry.cause,
    )  # fmt: skip
