"""The data that a chunk keeps for the delivery history of its records, by their indices.

It outlives the chunk until the history thread has read it, and so does not refer to the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kafkadur.history.entries import Outcome
from kafkadur_coordinators.interface import How


@dataclass(slots=True, eq=False)
class Carried:
    """Verdicts of a chunk that one exchange carries, or several that followed one another."""

    #: of the lease
    token: int
    recorded: Recorded
    #: runs of settled records (first index, end index), and records that are given back (index, how, delay in
    #: ms)
    settled: Sequence[tuple[int, int]]
    returned: Sequence[tuple[int, How, int]]
    #: when, ms since 1970
    at: int
    #: the outcome of all of them, if they were not applied; None: they were
    instead: Outcome | None = None

    def is_followed_by(self, other: Carried) -> bool:
        """Return whether both settle one run each, the second one behind the first."""
        one, two = self.settled, other.settled
        return (
            len(one) == len(two) == 1
            and one[0][1] == two[0][0]
            and not (self.returned or other.returned or self.instead or other.instead)
        )


@dataclass(slots=True, eq=False)
class Recorded:
    """The history data of one chunk. It is made on first use: without a history most chunks have none."""

    #: identifies the chunk while that exists
    chunk: int
    #: partition, or lane of keys, and attempts before this one, of its lease
    partition: int
    attempts: int
    #: offset of the first record; offsets of all, None: they follow one another without a gap
    first: int
    offsets: list[int] | None
    #: records that were held too long
    overdue: set[int]
    #: when records were handed out: first index, end index, ms since 1970; in order
    handouts: list[list[int]] = field(default_factory=list[list[int]])
    #: end of the records that are handed out one by one; 0: they are handed out in blocks
    run_end: int = 0
    #: why records were given up
    causes: dict[int, str] = field(default_factory=dict[int, str])
    #: records that expired before the application received them
    expired: set[int] = field(default_factory=set[int])
    #: records before this index were recorded as handed out
    told: int = 0
    #: the last verdicts that the history thread has not taken
    last: Carried | None = None


def add_ranges(pairs: list[int], first: int, offsets: list[int] | None, start: int, end: int) -> None:
    """Add the offsets of records [start, end) of a chunk to a list start, end, start, end, ..."""
    if offsets is None:
        low, high = first + start, first + end
        if pairs and pairs[-1] == low:
            pairs[-1] = high
        else:
            pairs += (low, high)
        return
    for offset in offsets[start:end]:
        if pairs and pairs[-1] == offset:
            pairs[-1] = offset + 1
        else:
            pairs += (offset, offset + 1)
