"""Reads a delivery history: the deliveries of a subscription, or of one message, key or member of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import Message

from kafkadur.history.entries import Entry, Outcome, Written, decoded
from kafkadur_sharing.ranges import Ranges, joined, without

#: Messages that are asked for: their offsets, by partition.
Offsets = Mapping[int, Collection[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """What became of adjacent messages that one member had at the same time."""

    partition: int
    #: Offsets [start, end).
    start: int
    end: int
    #: Number of the attempt, from 1 on; None: no member had them, or it is not known, as of a Spark driver.
    attempt: int | None
    #: Id and name of the member.
    member: str
    name: str
    #: When the member got them, ms since 1970; None: no member had them, or it is not known.
    handed: int | None
    outcome: Outcome
    #: Time of the outcome, ms since 1970.
    at: int
    #: Ms after which a message that was rolled back comes again; -1: as the redelivery policy says.
    delay: int | None
    #: Why there is a dead letter.
    cause: str | None

    @property
    def held(self) -> int | None:
        """For how long the member had them, ms; None: it has them still, or it is not known."""
        return None if self.handed is None or self.outcome is Outcome.HANDED else self.at - self.handed


class _Holding(NamedTuple):
    """Deliveries to one member, which has each message of them once at a time."""

    member: str
    name: str
    partition: int
    attempt: int | None


class _Numbers:
    """The numbers of the messages of one member that were read: a message may have been written twice."""

    def __init__(self) -> None:
        self._highest = 0
        self._left_out: set[int] = set()

    def is_new(self, number: int) -> bool:
        """Say whether a number comes for the first time."""
        if number > self._highest:
            if self._highest:
                self._left_out.update(range(self._highest + 1, number))
            self._highest = number
            return True
        if number in self._left_out:
            self._left_out.remove(number)
            return True
        return False


class Reader:
    """Turns the messages of a history topic, in their order, into deliveries."""

    def __init__(
        self, subscription: str, *, offsets: Offsets | None = None, member: str | None = None
    ) -> None:
        """Only deliveries of the subscription with this id.

        `offsets`: only those of these messages; `member`: only those to the member with this id or name;
        None: all.
        """
        self._subscription = subscription
        self._offsets = None if offsets is None else {p: sorted(found) for p, found in offsets.items()}
        self._member = member
        self._numbers: dict[str, _Numbers] = {}
        #: deliveries without a verdict so far: entries, and the offsets of each that have none
        self._held: dict[_Holding, list[tuple[Entry, Ranges]]] = {}
        #: messages whose entries are missing, as far as that was written
        self.missing = 0
        #: records that are damaged, or that a newer version wrote
        self.unread = 0
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
            if written is None:
                self.unread += 1
            elif self._is_wanted(written):
                self.missing += written.missing
                for entry in written.entries:
                    yield from self._take(written.member, written.name, entry)
        for holding, held in self._held.items():
            for entry, runs in held:
                for run in runs:
                    yield _delivered(holding.member, holding.name, entry, run)

    def _is_wanted(self, written: Written) -> bool:
        if written.subscription != self._subscription:
            return False
        if self._member not in (None, written.member, written.name):
            return False
        return self._numbers.setdefault(written.member, _Numbers()).is_new(written.number)

    def _take(self, member: str, name: str, entry: Entry) -> Iterator[Delivered]:
        runs = self._wanted(entry)
        if not runs:
            return
        holding = _Holding(member, name, entry.partition, entry.attempt)
        held = list[tuple[Entry, Ranges]]()
        for before, had in self._held.pop(holding, ()):
            if left := without(had, runs):
                held.append((before, left))
        if entry.outcome is Outcome.HANDED:
            held.append((entry, runs))
        else:
            for run in runs:
                yield _delivered(member, name, entry, run)
        if held:
            self._held[holding] = held

    def _wanted(self, entry: Entry) -> Ranges:
        """Return the offsets of an entry that are asked for, as runs."""
        runs = joined(zip(entry.offsets[::2], entry.offsets[1::2], strict=False))
        if self._offsets is None:
            return runs
        wanted = self._offsets.get(entry.partition, [])
        return [
            (offset, offset + 1)
            for start, end in runs
            for offset in wanted[bisect_left(wanted, start) : bisect_left(wanted, end)]
        ]


def _delivered(member: str, name: str, entry: Entry, run: tuple[int, int]) -> Delivered:
    return Delivered(
        partition=entry.partition, start=run[0], end=run[1], attempt=entry.attempt, member=member, name=name,
        handed=entry.handed, outcome=entry.outcome, at=entry.at, delay=entry.delay, cause=entry.cause,
    )  # fmt: skip
