"""Settling for a reader that holds a whole subscription: any stretch of it, when it has been processed.

The reader says which offsets it has processed. Those without a lease are leased then, so it need not ask
before it reads: no other member may lease them (kind "whole", `lifecycle.py`). Settled offsets stay settled,
and offsets that wait for their time come later. So a stretch may be settled twice, as a replayed batch is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kafkadur_coordinators.claims import Claims
from kafkadur_coordinators.interface import MAX_PARTITIONS, How, PartitionReport, Returned, Settled

#: [start, end) pairs, sorted, without overlap.
Ranges = Sequence[tuple[int, int]]
#: A stretch that is held: token of the lease, start, end.
_Lease = tuple[int, int, int]
#: More than a subscription has: everything is claimed.
_ALL = 2**47
#: A roll back without a delay of its own.
_BY_POLICY = -1


class Verdicts(NamedTuple):
    """The verdicts of a reader on one partition."""

    #: these were processed
    settled: Ranges = ()
    #: these are to come again, counted as an attempt
    rolled_back: Ranges = ()
    #: these Kafka does not keep any more: they are settled, and counted as expired
    expired: Ranges = ()

    @property
    def end(self) -> int:
        """The end behind the last offset with a verdict."""
        return max((end for _, end in (*self.settled, *self.rolled_back, *self.expired)), default=0)


class Given(NamedTuple):
    """The result of verdicts."""

    #: how many offsets they settled
    settled: int
    #: the settled ranges, by partition, including expired offsets
    ranges: Mapping[int, Ranges]
    #: ranges that they rolled back, by partition: do not roll these back again
    rolled_back: Mapping[int, Ranges]
    #: whether to call `settle` again with the remaining verdicts
    again: bool


class ExclusiveSettlement:
    """The holder of a whole subscription. One thread at a time; every method raises as `Claims`' do."""

    def __init__(
        self, claims: Claims, log_ends: Callable[[Iterable[int]], Mapping[int, int]] | None = None
    ) -> None:
        """`claims` are those of a member of the kind "whole", and not used elsewhere.

        `log_ends` says where the log of partitions ends, asked after a loss of the state; None: where the
        verdicts do.
        """
        self._claims = claims
        self._log_ends = log_ends
        #: claimed, by partition, and not reported yet
        self._held: dict[int, list[_Lease]] = {}
        #: reports that were not answered yet, each with the number of offsets it settles
        self._reports: list[tuple[PartitionReport, int]] = []
        #: of the reports answered since `settle` returned: settled offsets, and ranges rolled back
        self._settled = 0
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._rolled_back: dict[int, list[tuple[int, int]]] = {}

    def settle(self, verdicts: Mapping[int, Verdicts]) -> Given:
        """Give these verdicts, by partition; unanswered reports of an earlier call are sent alone, instead.

        Every end has to be readable (at or before the LSO): the reader has read up to it. Leased offsets
        without a verdict are given back, uncounted. Nothing is granted while the sessions from before a loss
        of the state may live. Where it raises it may be called again, with the same verdicts or others.
        """
        late = bool(self._reports)
        if not late:
            self._claim({partition: said.end for partition, said in verdicts.items() if said.end > 0})
            nothing = Verdicts()
            self._reports = [_report(p, held, verdicts.get(p, nothing)) for p, held in self._held.items()]
            self._held = {}
        while self._reports:
            group = self._reports[:MAX_PARTITIONS]
            self._claims.report([report for report, _ in group])
            del self._reports[: len(group)]
            for report, count in group:
                self._settled += count
                for item in report.settled:
                    pairs = zip(item.ranges[::2], item.ranges[1::2], strict=True)
                    self._ranges.setdefault(report.partition, []).extend(pairs)
                back = [(item.start, item.end) for item in report.returned]
                if back:
                    self._rolled_back.setdefault(report.partition, []).extend(back)
        again = late or self._settled > 0 or bool(self._rolled_back)
        given = Given(self._settled, self._ranges, self._rolled_back, again)
        self._settled, self._ranges, self._rolled_back = 0, {}, {}
        return given

    def _claim(self, ends: Mapping[int, int]) -> None:
        """Lease the offsets before these ends that have no lease."""
        while True:
            log_end_unknown = self._claims.log_end_unknown
            known = {} if not log_end_unknown or self._log_ends is None else self._log_ends(log_end_unknown)
            found = self._claims.claim(_ALL, ends, log_ends=known)
            for hull in found:
                self._held.setdefault(hull.partition, []).extend(hull.leases)
            if not found and self._claims.log_end_unknown == log_end_unknown:
                return


def _report(partition: int, held: Sequence[_Lease], said: Verdicts) -> tuple[PartitionReport, int]:
    """Return the report on a partition, and how many offsets it settles."""
    settled: dict[int, list[int]] = {}
    returned: list[Returned] = []
    count = expired = 0
    for token, first, stop in held:
        gone = _parts(first, stop, said.expired)
        expired += sum(end - start for start, end in gone)
        for start, end in sorted([*_parts(first, stop, said.settled), *gone]):
            settled.setdefault(token, []).extend((start, end))
            count += end - start
        for start, end in _parts(first, stop, said.rolled_back):
            returned.append(Returned(token, start, end, int(How.ROLLED_BACK), _BY_POLICY))
    report = PartitionReport(
        partition=partition,
        settled=[Settled(token, bounds) for token, bounds in settled.items()],
        returned=returned,
        done=sorted({token for token, _, _ in held}),
        expired=expired,
    )
    return report, count


def _parts(first: int, stop: int, ranges: Ranges) -> list[tuple[int, int]]:
    """Return the parts of these ranges in [first, stop)."""
    parts = ((max(start, first), min(end, stop)) for start, end in ranges)
    return [(start, end) for start, end in parts if start < end]
