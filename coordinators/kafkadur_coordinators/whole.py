"""Settling for a reader that holds a whole subscription: any stretch of it, when it has been processed.

The reader says which offsets it has done with. What of them is nobody's yet is claimed then, so it need not
ask before it reads: nobody else may (`whole=True`, `lifecycle.py`). What is settled already stays so, and
what waits for its time comes later; so a stretch may be settled twice, as a batch that is replayed is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kafkadur_coordinators.claims import Claims
from kafkadur_coordinators.interface import MAX_PARTITIONS, How, PartitionReport, Returned, Settled

#: [start, end) pairs, sorted, without overlap.
Ranges = Sequence[tuple[int, int]]
#: More than a subscription has: everything is claimed.
_ALL = 2**48


class Verdicts(NamedTuple):
    """What a reader says of one partition."""

    #: it has done with these
    settled: Ranges = ()
    #: these are to come again, counted as an attempt
    rolled_back: Ranges = ()
    #: these Kafka does not keep any more: they are settled, and counted as expired
    expired: Ranges = ()

    @property
    def end(self) -> int:
        """Behind the last offset it says anything of."""
        return max((end for _, end in (*self.settled, *self.rolled_back, *self.expired)), default=0)


class _Piece(NamedTuple):
    """A stretch that is held under a lease."""

    token: int
    start: int
    end: int


class Whole:
    """The holder of a whole subscription. One thread at a time; every method raises as `Claims`' do."""

    def __init__(self, claims: Claims) -> None:
        """`claims` are those of a member that holds the whole, and used by nobody else."""
        self._claims = claims
        self._held: dict[int, list[_Piece]] = {}

    @property
    def doubt(self) -> bool:
        """Whether nothing is granted until it is looked up what was committed (`Claims.doubt`)."""
        return self._claims.doubt

    def renew(self) -> None:
        """Keep the session."""
        self._claims.renew()

    def settle(self, verdicts: Mapping[int, Verdicts]) -> int:
        """Give these verdicts, by partition; returns how many offsets were settled by it.

        Every end has to be readable (at or before the LSO): the reader has read up to it.
        """
        ends = {partition: said.end for partition, said in verdicts.items() if said.end > 0}
        self._claim(ends)
        partitions = sorted(ends)
        settled = 0
        for first in range(0, len(partitions), MAX_PARTITIONS):
            group = partitions[first : first + MAX_PARTITIONS]
            reports: list[PartitionReport] = []
            left: dict[int, list[_Piece]] = {}
            for partition in group:
                report, left[partition], count = _report(
                    partition, self._held.get(partition, []), verdicts[partition]
                )
                reports.append(report)
                settled += count
            self._claims.report(reports)
            self._held.update(left)
        return settled

    def _claim(self, ends: Mapping[int, int]) -> None:
        """Claim what is nobody's before these ends."""
        known = self._claims.unsure
        while (found := self._claims.claim(_ALL, ends)) or self._claims.unsure != known:
            known = self._claims.unsure
            for hull in found:
                held = self._held.setdefault(hull.partition, [])
                held += [_Piece(*lease) for lease in hull.leases]
                held.sort(key=lambda piece: piece.start)


def _report(
    partition: int, held: Sequence[_Piece], said: Verdicts
) -> tuple[PartitionReport, list[_Piece], int]:
    """What is reported of a partition, what is held of it afterwards, and how many offsets it settles."""
    settled: dict[int, list[int]] = {}
    returned: list[Returned] = []
    left: list[_Piece] = []
    count = expired = 0
    for piece in held:
        gone = list(_parts(piece, said.expired))
        expired += sum(end - start for start, end in gone)
        done = sorted([*_parts(piece, said.settled), *gone])
        back = list(_parts(piece, said.rolled_back))
        for start, end in done:
            settled.setdefault(piece.token, []).extend((start, end))
            count += end - start
        returned += [Returned(piece.token, start, end, int(How.ROLLED_BACK)) for start, end in back]
        at = piece.start
        for start, end in sorted([*done, *back]):
            if at < start:
                left.append(_Piece(piece.token, at, start))
            at = end
        if at < piece.end:
            left.append(_Piece(piece.token, at, piece.end))
    tokens = {piece.token for piece in held} - {piece.token for piece in left}
    report = PartitionReport(
        partition=partition,
        settled=[Settled(token, bounds) for token, bounds in settled.items()],
        returned=returned,
        done=sorted(tokens),
        expired=expired,
    )
    return report, left, count


def _parts(piece: _Piece, ranges: Ranges) -> Iterable[tuple[int, int]]:
    for start, end in ranges:
        low, high = max(start, piece.start), min(end, piece.end)
        if low < high:
            yield low, high
