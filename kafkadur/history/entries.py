"""The entries of a delivery history, and how they are written as JSON. Pure functions.

An entry is about offsets of one partition that one member had at the same time and with the same outcome. A
message of the history topic has entries of one member, as a JSON object. Readers ignore fields they do not
know, and entries with an outcome they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from kafkadur_sharing.keys import SubscriptionKey, digest
from kafkadur_sharing.names import HISTORY_PREFIX

#: Version of the messages that `encoded` writes.
FORMAT: Final = 1
#: The most offsets, as starts and ends of runs, in one message of the topic: it stays far below 1 MB.
_MOST_OFFSETS: Final = 20_000
#: The most entries in one message of the topic.
_MOST_ENTRIES: Final = 2_000


def history_prefix(namespace: str) -> str:
    """Return the prefix of the history topics of a namespace.

    It has a hash of the namespace, so that it is no prefix of another namespace's.
    """
    return f"{HISTORY_PREFIX}{digest([namespace])}."


def topic_of(key: SubscriptionKey) -> str:
    """Return the topic with the history of a subscription."""
    return f"{history_prefix(key.namespace)}{key.tag}"


class Outcome(StrEnum):
    """What became of a delivery."""

    #: The member has it: there is no verdict yet.
    HANDED = "handed out"
    ACKNOWLEDGED = "acknowledged"
    #: Given back and counted as an attempt.
    ROLLED_BACK = "rolled back"
    #: Given back without counting an attempt.
    RELEASED = "released"
    #: Rolled back because it was held for longer than `max_hold`.
    OVERDUE = "held too long"
    #: Given up: a dead letter was written.
    DEAD = "dead letter"
    #: It expired before the application received it, or Kafka removed it.
    EXPIRED = "expired"
    #: The lease ended before there was a verdict: it is delivered again.
    LOST = "lost"
    #: The verdict came too late, because the lease had ended: it is delivered again.
    REFUSED = "refused"
    #: The verdict was sent and never answered: it was applied, or the message is delivered again.
    UNKNOWN = "unknown"


@dataclass(slots=True, kw_only=True)
class Entry:
    """What became of some messages in the hands of one member."""

    #: partition of the topic
    partition: int
    #: the offsets: start, end, start, end, ...
    offsets: list[int] = field(default_factory=list[int])
    #: number of the attempt, from 1 on; None: no member had them, or it is not known, as of a Spark driver
    attempt: int | None
    #: when the member got them, ms since 1970; None: no member had them, or it is not known
    handed: int | None
    outcome: Outcome
    #: time of the outcome, ms since 1970; of a verdict, when it was sent to the coordinator
    at: int
    #: ms after which a message that was rolled back comes again; -1: as the redelivery policy says
    delay: int | None = None
    #: why there is a dead letter
    cause: str | None = None


@dataclass(frozen=True, kw_only=True)
class Written:
    """One message of the history topic."""

    #: the subscription's id: another one of the same name has another id
    subscription: str
    #: id and name of the member
    member: str
    name: str
    #: counts the messages of this member, from 1 on
    number: int
    entries: list[Entry]
    #: messages of this member whose entries are missing before these
    missing: int = 0


def encoded(written: Written) -> Iterator[tuple[bytes, int]]:
    """Yield messages for the topic, and the number of offsets that each is about.

    Entries of many offsets are spread over several; these have the following numbers.
    """
    number, missing = written.number, written.missing
    for part in list(_parts(written.entries)) or [[]]:
        head: dict[str, Any] = {
            "format": FORMAT,
            "subscription": written.subscription,
            "member": written.member,
            "name": written.name,
            "number": number,
        }
        if missing:
            head["missing"] = missing
        plain = {**head, "entries": [_plain(entry) for entry in part]}
        yield json.dumps(plain, separators=(",", ":")).encode(), missing + sum(map(number_of, part))
        number, missing = number + 1, 0


def number_of(entry: Entry) -> int:
    """Return the number of offsets that an entry is about."""
    return sum(entry.offsets[1::2]) - sum(entry.offsets[::2])


def _parts(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    part: list[Entry] = []
    size = 0
    for entry in entries:
        for first in range(0, len(entry.offsets), _MOST_OFFSETS):
            piece = replace(entry, offsets=entry.offsets[first : first + _MOST_OFFSETS])
            if part and (size + len(piece.offsets) > _MOST_OFFSETS or len(part) == _MOST_ENTRIES):
                yield part
                part, size = [], 0
            part.append(piece)
            size += len(piece.offsets)
    if part:
        yield part


def _plain(entry: Entry) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "partition": entry.partition,
        "offsets": entry.offsets,
        "attempt": entry.attempt,
        "handed": entry.handed,
        "outcome": entry.outcome.value,
        "at": entry.at,
    }
    if entry.delay is not None:
        plain["delay"] = entry.delay
    if entry.cause is not None:
        plain["cause"] = entry.cause
    return plain


def decoded(value: bytes | None) -> Written | None:
    """Read a message of the topic; None for one that is damaged, or of a newer format."""
    try:
        read = json.loads(value or b"")
        if read["format"] > FORMAT:
            return None
        return Written(
            subscription=str(read["subscription"]),
            member=str(read["member"]),
            name=str(read["name"]),
            number=int(read["number"]),
            entries=[_entry(plain) for plain in read["entries"] if plain["outcome"] in _OUTCOMES],
            missing=int(read.get("missing", 0)),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


_OUTCOMES: Final = frozenset(outcome.value for outcome in Outcome)


def _entry(plain: Mapping[str, Any]) -> Entry:
    return Entry(
        partition=int(plain["partition"]),
        offsets=[int(offset) for offset in plain["offsets"]],
        attempt=None if plain["attempt"] is None else int(plain["attempt"]),
        handed=None if plain["handed"] is None else int(plain["handed"]),
        outcome=Outcome(plain["outcome"]),
        at=int(plain["at"]),
        delay=None if plain.get("delay") is None else int(plain["delay"]),
        cause=None if plain.get("cause") is None else str(plain["cause"]),
    )
