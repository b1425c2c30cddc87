"""What is said of the offsets of a batch - settled, rolled back, rejected, left - and what of it counts.

Pure. Its callers are `reading.py` and `claiming.py`; the verdicts of a sink come by `settlement_server.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kafkadur_sharing.errors import IllegalState
from kafkadur_spark.ranges import Ranges, joined, within, without

#: Messages of a batch that can be rejected: each is read again, and written.
MOST_REJECTED = 10_000


class Disposition(StrEnum):
    """What is to become of a message."""

    #: It is settled.
    ACK = "ack"
    #: It comes again, counted as an attempt.
    ROLLBACK = "rollback"
    #: It is written to the dead-letter topic, and settled.
    REJECT = "reject"
    #: It stays unsettled, and comes again uncounted.
    LEAVE = "leave"


class Said(NamedTuple):
    """One disposition of offsets [start, end) of a partition."""

    partition: int
    start: int
    end: int
    disposition: Disposition = Disposition.ACK
    #: why it is rejected
    reason: str = ""


def exceptions(
    rolled_back: Iterable[tuple[int, int]], rejected: Iterable[tuple[int, int, str]]
) -> list[Said]:
    """What is said of single offsets: (partition, offset) pairs, and (partition, offset, reason)."""
    back = [Said(p, offset, offset + 1, Disposition.ROLLBACK) for p, offset in rolled_back]
    return back + [Said(p, offset, offset + 1, Disposition.REJECT, why) for p, offset, why in rejected]


@dataclass(frozen=True)
class Dispositions:
    """Of one batch, by partition; no offset is in two of them."""

    acked: Mapping[int, Ranges]
    rolled_back: Mapping[int, Ranges]
    #: with the reason, by offset
    rejected: Mapping[int, Mapping[int, str]] = field(default_factory=dict[int, Mapping[int, str]])


def decide(
    said: Iterable[Said],
    batch: Mapping[int, Ranges],
    read: Mapping[int, Ranges],
    *,
    all_else: bool,
    what: str = "the batch",
) -> Dispositions:
    """Decide what becomes of the offsets of a batch, or of a claim (`what`).

    Where several things are said of an offset, a roll back counts before what leaves it, that before a
    reject, and that before an ack. `batch` is what lies in the batch, `read` what of it was read; nothing is
    said of the rest. `all_else` settles what was read and nothing is said of. Raises `IllegalState` for an
    offset that is not in the batch, and for more than 10,000 rejected ones.
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
        which = f"offset {one.start}" if one.end == one.start + 1 else f"offsets [{one.start}, {one.end})"
        raise IllegalState(
            f"Of {which} of partition {one.partition} something is said that is not in {what}.",
            state="its offsets are " + (", ".join(f"[{a}, {b})" for a, b in there[:5]) or "none"),
            owner="the job",
            remedy=f"say something of what {what} holds, of its own topic",
        )


def _only(ranges: Ranges, allowed: Ranges) -> list[tuple[int, int]]:
    """What of a set is in another one, too."""
    return [pair for start, end in allowed for pair in within(ranges, start, end)]


def _reasons(said: Iterable[Said], ranges: Ranges) -> dict[int, str]:
    """The reason of each offset that is in a set; the first one that was given."""
    found: dict[int, str] = {}
    for one in said:
        for start, end in within(ranges, one.start, one.end):
            for offset in range(start, end):
                found[offset] = found.get(offset) or one.reason
    return found
