"""Dispositions of the offsets of a batch - ack, rollback, reject, leave - and which of them takes precedence.

Pure. Its callers are `reading.py` and `claiming.py`; `settlement_server.py` receives those of a sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.ranges import Ranges, joined, within, without

#: The most messages of a batch that can be rejected: each is read again, and written.
MOST_REJECTED = 10_000


class Disposition(StrEnum):
    """What happens to a message."""

    #: It is settled.
    ACK = "ack"
    #: It is redelivered, and an attempt is counted.
    ROLLBACK = "rollback"
    #: It is written to the dead-letter topic, and settled.
    REJECT = "reject"
    #: It stays unsettled and is redelivered, and no attempt is counted.
    LEAVE = "leave"


class Said(NamedTuple):
    """One disposition of offsets [start, end) of a partition."""

    partition: int
    start: int
    end: int
    disposition: Disposition = Disposition.ACK
    #: the reason of a rejection
    reason: str = ""


def exceptions(
    rolled_back: Iterable[tuple[int, int]], rejected: Iterable[tuple[int, int, str]]
) -> list[Said]:
    """Return the dispositions of single offsets: (partition, offset), and (partition, offset, reason)."""
    back = [Said(p, offset, offset + 1, Disposition.ROLLBACK) for p, offset in rolled_back]
    return back + [Said(p, offset, offset + 1, Disposition.REJECT, why) for p, offset, why in rejected]


@dataclass(frozen=True)
class Dispositions:
    """The decided dispositions of one batch, by partition; each offset has at most one."""

    acked: Mapping[int, Ranges]
    rolled_back: Mapping[int, Ranges]
    #: the reason, by offset
    rejected: Mapping[int, Mapping[int, str]] = field(default_factory=dict[int, Mapping[int, str]])


def decide(
    said: Iterable[Said],
    batch: Mapping[int, Ranges],
    read: Mapping[int, Ranges],
    *,
    all_else: bool,
    what: str = "the batch",
) -> Dispositions:
    """Decide the dispositions of the offsets of a batch, or of a claim (`what`).

    If an offset has several, the order of precedence is rollback, leave, reject, ack. `batch` contains the
    offsets of the batch, `read` those of them that were read; the others get no disposition. `all_else`
    settles the read offsets that have none. Raises `IllegalState` for an offset that is not in the batch, and
    for more than 10,000 rejected ones.
    """
    pairs: dict[Disposition, dict[int, list[tuple[int, int]]]] = {each: {} for each in Disposition}
    reasons: dict[int, list[Said]] = {}
    rejected = 0
    for one in said:
        _check(one, batch, what)
        pairs[one.disposition].setdefault(one.partition, []).append((one.start, one.end))
        if one.disposition is Disposition.REJECT:
            reasons.setdefault(one.partition, []).append(one)
            rejected += one.end - one.start
    if rejected > MOST_REJECTED:
        raise IllegalState(
            f"{rejected} messages of {what} are rejected.",
            state=f"at most {MOST_REJECTED} can be",
            owner="the job",
            remedy="take fewer messages at a time (maxOffsetsPerTrigger of a query, `most` of a claim), or "
            "write them yourself",
        )
    back, left, dead, named = (
        {p: _only(joined(some), read[p]) for p, some in pairs[each].items()}
        for each in (Disposition.ROLLBACK, Disposition.LEAVE, Disposition.REJECT, Disposition.ACK)
    )
    kept = {p: joined([*back.get(p, ()), *left.get(p, ())]) for p in {*back, *left}}
    dead = {p: without(some, kept.get(p, ())) for p, some in dead.items()}
    chosen = read if all_else else named
    acked = {p: without(without(some, kept.get(p, ())), dead.get(p, ())) for p, some in chosen.items()}
    letters = {p: _reasons(reasons[p], some) for p, some in dead.items()}
    return Dispositions(acked, back, {p: some for p, some in letters.items() if some})


def _check(one: Said, batch: Mapping[int, Ranges], what: str) -> None:
    there = batch.get(one.partition, ())
    if one.start >= one.end or not any(start <= one.start and one.end <= end for start, end in there):
        which = f"offset {one.start}" if one.end == one.start + 1 else f"stretch [{one.start}, {one.end})"
        raise IllegalState(
            f"A verdict names {which} of partition {one.partition}, which is not in {what}.",
            state="its offsets are " + (", ".join(f"[{a}, {b})" for a, b in there[:5]) or "none"),
            owner="the job",
            remedy=f"give verdicts only on offsets of {what} and of its own topic",
        )


def _only(ranges: Ranges, allowed: Ranges) -> list[tuple[int, int]]:
    """Return the intersection of two sets."""
    return [pair for start, end in allowed for pair in within(ranges, start, end)]


def _reasons(said: Iterable[Said], ranges: Ranges) -> dict[int, str]:
    """Return the first reason that was given for each offset in a set."""
    found: dict[int, str] = {}
    for one in said:
        for start, end in within(ranges, one.start, one.end):
            for offset in range(start, end):
                found[offset] = found.get(offset) or one.reason
    return found
