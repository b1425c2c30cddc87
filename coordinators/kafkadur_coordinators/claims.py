"""Claims: leases for a reader that takes whole stretches at once, such as a Spark job.

A claim asks for up to so many records and gets, for each partition, one *hull* [start, end) and the offsets
inside that it must skip: they are settled, or somebody else's. It renews, settles and releases like any
other member, over the same exchange. Whoever holds the whole subscription attaches with `whole=True`
(`lifecycle.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kafkadur_coordinators.interface import (
    MAX_PARTITIONS,
    Exchange,
    Grant,
    How,
    PartitionReport,
    Returned,
    Settled,
)
from kafkadur_coordinators.redis_coordinator import MemberSession


@dataclass(frozen=True, kw_only=True, slots=True)
class Hull:
    """What a claim got of one partition."""

    partition: int
    start: int
    #: exclusive
    end: int
    #: [start, end) pairs inside the hull that do not belong to the claim, in order
    skip: Sequence[tuple[int, int]]
    #: the leases inside the hull: (token, start, end)
    leases: Sequence[tuple[int, int, int]]

    @property
    def records(self) -> int:
        """Offsets that belong to the claim."""
        return sum(end - start for _, start, end in self.leases)


def _stretches(grant: Grant) -> list[tuple[int, int]]:
    if not grant.stretch:
        return [(grant.start, grant.horizon)]
    return list(zip(grant.stretch[::2], grant.stretch[1::2], strict=True))


def hulls(grants: Sequence[Grant]) -> list[Hull]:
    """Join leases to one hull a partition."""
    by_partition: dict[int, list[Grant]] = {}
    for grant in grants:
        by_partition.setdefault(grant.partition, []).append(grant)
    found = []
    for partition, leases in sorted(by_partition.items()):
        leases.sort(key=lambda grant: grant.start)
        skip = [(left.horizon, right.start) for left, right in pairwise(leases) if left.horizon < right.start]
        found.append(
            Hull(
                partition=partition,
                start=leases[0].start,
                end=leases[-1].horizon,
                skip=skip,
                leases=[(grant.token, start, end) for grant in leases for start, end in _stretches(grant)],
            )
        )
    return found


class Claims:
    """The claims of one attached member of a shared subscription. One thread at a time.

    Every method raises what `MemberSession.exchange` raises: `Refusal` with FENCED when the session is over,
    `CoordinatorUnavailable` when Redis does not answer (the call may then be made again).
    """

    def __init__(self, session: MemberSession) -> None:
        """`session` is attached, and used by nobody else."""
        self._session = session
        self._number = 0
        self._have = 0

    def claim(self, most: int, ends: Mapping[int, int]) -> list[Hull]:
        """Claim at most `most` records.

        `ends` says up to which offset each partition is readable (its LSO).
        """
        partitions = sorted(ends)
        grants: list[Grant] = []
        for first in range(0, len(partitions), MAX_PARTITIONS):
            group = partitions[first : first + MAX_PARTITIONS]
            left = most - sum(grant.records for grant in grants)
            if left <= 0:
                break
            parts = [PartitionReport(partition=partition, avail=ends[partition]) for partition in group]
            grants += self._exchange(left, parts)
        return hulls(grants)

    def settle(self, hull: Hull, *, rejected: Sequence[tuple[int, int]] = ()) -> list[int]:
        """Settle a hull, except the [start, end) pairs in `rejected`, which are rolled back.

        Returns the tokens that were refused: those leases are over, and their records come again.
        """
        settled, returned = [], []
        for token, start, end in hull.leases:
            kept: list[int] = []
            at = start
            for a, b in sorted(rejected):
                low, high = max(a, start), min(b, end)
                if low >= high:
                    continue
                if low > at:
                    kept += (at, low)
                returned.append(Returned(token, low, high, int(How.ROLLED_BACK)))
                at = high
            if at < end:
                kept += (at, end)
            settled.append(Settled(token, kept))
        tokens = sorted({token for token, _, _ in hull.leases})
        part = PartitionReport(partition=hull.partition, settled=settled, returned=returned, done=tokens)
        self._number += 1
        reply = self._session.exchange(
            Exchange(self._number, 0, self._have, ask_presence=False, span=0, parts=[part])
        )
        self._have = max(self._have, reply.token)
        return list(reply.refused)

    def renew(self) -> None:
        """Keep the session, and with it every claim."""
        self._exchange(0, [])

    def _exchange(self, credit: int, parts: Sequence[PartitionReport]) -> Sequence[Grant]:
        self._number += 1
        exchange = Exchange(self._number, credit, self._have, ask_presence=False, span=0, parts=parts)
        reply = self._session.exchange(exchange)
        self._have = max(self._have, reply.token)
        return reply.grants
