"""Batch leases, for a reader that takes long stretches at once, such as a Spark job.

The reader asks for a number of records. It gets, for each partition, one *hull* [start, end) and the offsets
inside that it must skip: they are settled, or leased to another member. It renews, settles and releases like
any other member, over the same exchange. A reader that holds the whole subscription attaches as kind "whole",
one that works beside others as kind "claims" (`lifecycle.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kafkadur_coordinators.interface import (
    MAX_PARTITIONS,
    Exchange,
    ExchangeReply,
    Grant,
    How,
    PartitionReport,
    Returned,
    Settled,
)
from kafkadur_coordinators.redis.coordinator import Refusal
from kafkadur_coordinators.redis.member_session import MemberSession


@dataclass(frozen=True, kw_only=True, slots=True)
class Hull:
    """The part of a claim in one partition."""

    partition: int
    start: int
    #: exclusive
    end: int
    #: [start, end) pairs inside the hull that do not belong to the claim, in order
    skip: Sequence[tuple[int, int]]
    #: what belongs to the claim, in order: (token of the lease, start, end)
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
    """Join leases to one hull per partition."""
    by_partition: dict[int, list[tuple[int, int, int]]] = {}
    for grant in grants:
        held = [(grant.token, start, end) for start, end in _stretches(grant)]
        by_partition.setdefault(grant.partition, []).extend(held)
    return _hulls(by_partition)


def together(found: Iterable[Hull]) -> list[Hull]:
    """Join hulls to one per partition."""
    by_partition: dict[int, list[tuple[int, int, int]]] = {}
    for hull in found:
        by_partition.setdefault(hull.partition, []).extend(hull.leases)
    return _hulls(by_partition)


def _hulls(by_partition: Mapping[int, list[tuple[int, int, int]]]) -> list[Hull]:
    return [_hull(p, sorted(some, key=lambda lease: lease[1])) for p, some in sorted(by_partition.items())]


def _hull(partition: int, leases: Sequence[tuple[int, int, int]]) -> Hull:
    """The hull of leases that lie in order."""
    skip = [(left[2], right[1]) for left, right in pairwise(leases) if left[2] < right[1]]
    return Hull(partition=partition, start=leases[0][1], end=leases[-1][2], skip=skip, leases=leases)


class Claims:
    """The claims of one attached member of the kind "whole" or "claims". One thread at a time.

    Every method raises what `MemberSession.exchange` raises: `Refusal` with FENCED when the session is over,
    `CoordinatorUnavailable` when Redis does not answer. After an error repeat the same call; only `renew` may
    be called in between. Parts of the call that Redis has applied are not applied again.
    """

    def __init__(self, session: MemberSession) -> None:
        """`session` is attached, and not used elsewhere."""
        self._session = session
        self._number = 0
        self._have = 0
        #: tokens of unfinished leases: a reply may list them again
        self._held: set[int] = set()
        #: leases that no claim has returned yet
        self._new: list[Grant] = []
        #: partitions of which nothing is granted until their end is reported: the next claim does that
        self._log_end_unknown: set[int] = set()
        #: nothing is granted until the commits of dead transacted members in Kafka are known
        #: (`state_recovery.py`, rebuild)
        self.outcome_unknown = False
        #: the exchange that was sent and not answered: it may have been applied
        self._unanswered: Exchange | None = None
        #: verdicts that another call had to repeat, with their replies, until they are given again
        self._late: list[tuple[Sequence[PartitionReport], ExchangeReply]] = []

    @property
    def log_end_unknown(self) -> frozenset[int]:
        """Partitions whose end the next claim reports again: nothing was granted of them."""
        return frozenset(self._log_end_unknown)

    def claim(
        self, most: int, ends: Mapping[int, int], *, log_ends: Mapping[int, int] | None = None
    ) -> list[Hull]:
        """Claim at most `most` records.

        `ends` says up to which offset each partition is readable (its LSO), asked for since the last claim;
        `log_ends` where the log of partitions ends that are `log_end_unknown`, if that is not the same.
        After a loss of the shared state the first claim after the members' sessions brings nothing.
        """
        self._repeat()
        partitions = sorted(ends)
        with_credit: list[list[int]] = []
        for first in range(0, len(partitions), MAX_PARTITIONS):
            group = partitions[first : first + MAX_PARTITIONS]
            left = most - self._records()
            if left <= 0:
                break
            self._exchange(left, [self._readable(p, ends[p], log_ends or {}) for p in group])
            if self._records() < most:
                with_credit.append(group)
        # until the next claim this member gets no grant, and no other member waits for its reading
        for group in with_credit:
            self._exchange(0, [PartitionReport(partition=p) for p in group])
        grants, self._new = self._new, []
        return hulls(grants)

    def _readable(self, partition: int, end: int, log_ends: Mapping[int, int]) -> PartitionReport:
        log_end = log_ends.get(partition, end) if partition in self._log_end_unknown else -1
        return PartitionReport(partition=partition, readable_end=end, log_end=log_end)

    def settle(self, hull: Hull, *, rolled_back: Sequence[tuple[int, int]] = ()) -> list[int]:
        """Settle a hull, except the [start, end) pairs in `rolled_back`, which come again, counted.

        Returns the tokens that were refused: those leases are over, and their records come again.
        """
        settled, returned = [], []
        for token, start, end in hull.leases:
            kept: list[int] = []
            at = start
            for a, b in sorted(rolled_back):
                low, high = max(a, at), min(b, end)
                if low >= high:
                    continue
                if low > at:
                    kept += (at, low)
                returned.append(Returned(token, low, high, int(How.ROLLED_BACK)))
                at = high
            if at < end:
                kept += (at, end)
            settled.append(Settled(token, kept))
        return self._finish(hull, settled, returned)

    def release(self, hull: Hull) -> list[int]:
        """Give a hull back: it comes again, and that does not count as an attempt.

        Returns the tokens that were refused: those leases were over already.
        """
        return self._finish(hull, [], [])

    def expire(self, hull: Hull, earliest: int) -> Hull | None:
        """Settle the part of a hull before `earliest`, counted as expired; return the rest; None: nothing.

        Kafka keeps nothing before `earliest`.
        """
        gone = [(token, start, min(end, earliest)) for token, start, end in hull.leases if start < earliest]
        kept = [(token, max(start, earliest), end) for token, start, end in hull.leases if end > earliest]
        if not gone:
            return hull
        done = sorted({token for token, _, _ in gone} - {token for token, _, _ in kept})
        settled = [Settled(token, [start, end]) for token, start, end in gone]
        expired = sum(end - start for _, start, end in gone)
        self.report([PartitionReport(partition=hull.partition, settled=settled, done=done, expired=expired)])
        return _hull(hull.partition, kept) if kept else None

    def report(self, parts: Sequence[PartitionReport]) -> list[int]:
        """Give verdicts on claims of at most 16 partitions; returns the tokens that were refused."""
        reply = self._exchange(0, parts)
        for part in parts:
            self._held.difference_update(part.done)
        return list(reply.refused)

    def renew(self) -> None:
        """Keep the session, and with it every claim."""
        self._exchange(0, [])

    def _finish(self, hull: Hull, settled: Sequence[Settled], returned: Sequence[Returned]) -> list[int]:
        tokens = sorted({token for token, _, _ in hull.leases})
        part = PartitionReport(partition=hull.partition, settled=settled, returned=returned, done=tokens)
        return self.report([part])

    def _records(self) -> int:
        return sum(grant.records for grant in self._new)

    def _exchange(self, credit: int, parts: Sequence[PartitionReport]) -> ExchangeReply:
        if self._unanswered != self._next(credit, parts):
            self._repeat()
        for index, (said, reply) in enumerate(self._late):
            if said == parts:
                del self._late[index]
                return reply
        return self._send(self._next(credit, parts))

    def _next(self, credit: int, parts: Sequence[PartitionReport]) -> Exchange:
        return Exchange(self._number + 1, credit, self._have, ask_presence=False, span=0, parts=parts)

    def _repeat(self) -> None:
        """Have the exchange answered that was not: under its number it is applied once.

        If it never arrived, nothing is claimed by it any more: the reader may ask for less now.
        """
        sent = self._unanswered
        if sent is not None:
            reply = self._send(sent._replace(credit=0))
            if any(part.done or part.settled or part.returned for part in sent.parts):
                self._late.append((sent.parts, reply))

    def _send(self, exchange: Exchange) -> ExchangeReply:
        self._unanswered = exchange
        try:
            reply = self._session.exchange(exchange)
        except Refusal:  # an answer too: nothing was changed
            self._unanswered = None
            raise
        self._unanswered = None
        self._number = exchange.number
        self._have = max(self._have, reply.token)
        self.outcome_unknown = reply.outcome_unknown
        fresh = [grant for grant in reply.grants if grant.token not in self._held]
        self._held.update(grant.token for grant in fresh)
        self._new += fresh
        for state in reply.partitions:
            (self._log_end_unknown.add if state.log_end_unknown else self._log_end_unknown.discard)(
                state.partition
            )
        return reply
