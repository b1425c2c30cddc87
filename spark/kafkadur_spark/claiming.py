"""Claims: several jobs share one subscription; each reads what it has claimed, and settles it.

A claim is a stretch of each of some partitions, without the offsets in there that are not the job's. It is
read as a batch, and holds as long as the driver's session does: what is claimed by a driver that dies comes
again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

import kafkadur.sync
from kafkadur.settings import Settings
from kafkadur_coordinators.claims import Claims, Hull, together
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.definition import Definition, HeaderType, Start, SubscriptionType
from kafkadur_sharing.errors import IllegalState, LeaseLost
from kafkadur_sharing.redelivery import Redelivery
from kafkadur_sharing.selector import parse_selector
from kafkadur_spark.attachment import Attachment
from kafkadur_spark.dispositions import decide, exceptions
from kafkadur_spark.ranges import Ranges, joined
from kafkadur_spark.source import checked, leave_out, loaded

#: Seconds between two looks whether there is something to claim.
_LOOK_S = 0.2


def share(
    connection: kafkadur.sync.Connection,
    topic: str,
    *,
    durable: str,
    selector: str | None = None,
    header_types: Mapping[str, HeaderType] | None = None,
    start: Start = "latest",
    redelivery: Redelivery | None = None,
    name: str | None = None,
) -> Claimer:
    """Share the durable subscription `durable` on `topic`, to claim from it beside others.

    Others may be drivers and ordinary consumers. The subscription is created if there is none, as one of
    type shared; `selector`, `header_types`, `start` and `redelivery` are as in `Connection.subscribe`, but
    attempts are only counted here: what has used them up becomes a dead letter at an ordinary consumer.
    `name` is shown to people. Raises `InvalidSelector`. Enter the claimer's context: there it attaches, and
    raises what the rules say; and `IllegalState` where one with a selector would be replaced, because none
    is given.
    """
    parse_selector(selector)
    definition = Definition(
        type=SubscriptionType.SHARED,
        topic=topic,
        selector=selector,
        header_types=header_types,
        start=start,
        redelivery=redelivery or Redelivery(),
    )
    request = Request(key=connection.key(durable), definition=definition, mode=connection.settings.mode)
    return Claimer(connection.settings, request, connection_id=connection.id, name=name)


@dataclass(frozen=True, eq=False)
class Claim:
    """What a job has claimed, and has not settled yet."""

    topic: str
    hulls: Sequence[Hull]
    claimer: Claimer
    #: under which attachment
    life: int
    #: offsets without a verdict; tokens of leases that were refused
    left: list[Hull] = field(default_factory=list[Hull], repr=False)
    refused: list[int] = field(default_factory=list[int], repr=False)

    @property
    def records(self) -> int:
        """Offsets that were claimed; not each of them needs to have a record."""
        return sum(hull.records for hull in self.hulls)

    @property
    def ranges(self) -> dict[int, list[tuple[int, int]]]:
        """The offsets that were claimed, as [start, end) by partition."""
        return {hull.partition: joined((a, b) for _, a, b in hull.leases) for hull in self.hulls}


class Claimer(Attachment):
    """Claims from a shared subscription; a context manager. Any thread of the driver may call it."""

    kind = "claims"

    def __init__(
        self, settings: Settings, request: Request, *, connection_id: str, name: str | None = None
    ) -> None:
        """As `Attachment`."""
        super().__init__(settings, request, connection_id=connection_id, name=name)
        self._life = 0
        #: claims that were not settled yet
        self._open = 0
        #: granted, and not looked at whether Kafka keeps it; looked at, and not returned
        self._claimed: list[Hull] = []
        self._kept: list[Hull] = []

    def claim(self, most: int = 1_000_000, *, timeout: float = 0.0) -> Claim | None:
        """Lease at most `most` records without a lease; None if there were none for `timeout` seconds.

        What Kafka removed unsettled is settled, and counted as expired. Several claims may be open at once;
        when partitions were added there is no further one until those are settled.
        Raises `IllegalState` for less than one record, `LeaseLost` when the session is over, and
        `CoordinatorUnavailable` or `StateLost` when Redis or Kafka do not answer for three times the session
        time-out.
        """
        if most < 1:
            raise IllegalState(f"A claim of {most} records holds nothing.", remedy="claim at least 1")
        until = time.monotonic() + timeout
        while True:
            # those that are open would be over; then it sees the partitions that were added
            waits = not self._see_added()
            found, again = (None, False) if waits else self._claim_now(most)
            if found is not None or (time.monotonic() >= until and not again):
                return found
            if not again:
                time.sleep(_LOOK_S)

    def read(
        self, spark: SparkSession, claim: Claim, *, options: Mapping[str, str] | None = None
    ) -> DataFrame:
        """The records of a claim, as Spark's Kafka source has them; `options` are further ones of it.

        Raises `IllegalState` for an option that says what is read, and for a claim of another claimer.
        """
        self._check_own(claim)
        chosen = checked(options or {}, self.display)
        reader = spark.read.format("kafka")
        for option, value in {
            "assign": {claim.topic: [hull.partition for hull in claim.hulls]},
            "startingOffsets": {claim.topic: {str(hull.partition): hull.start for hull in claim.hulls}},
            "endingOffsets": {claim.topic: {str(hull.partition): hull.end for hull in claim.hulls}},
        }.items():
            reader = reader.option(option, json.dumps(value))
        return leave_out(
            spark, loaded(reader, self, chosen), {hull.partition: hull.skip for hull in claim.hulls}
        )

    def ack(
        self,
        claim: Claim,
        *,
        rolled_back: Iterable[tuple[int, int]] = (),
        rejected: Iterable[tuple[int, int, str]] = (),
    ) -> None:
        """Settle a claim, but the (partition, offset) pairs in `rolled_back`: these come again, counted.

        `rejected` are (partition, offset, reason): they are written to the dead-letter topic before they are
        settled, at most 10,000. Raises `LeaseLost` when the claim is over, at least in part: what of it is
        not settled comes again; `IllegalState` for an offset that is not in the claim or a claim of another
        claimer; and `CoordinatorUnavailable` or `StateLost` when Redis or Kafka do not answer: then it can be
        called again, with the same.
        """
        self._check_own(claim)
        claimed = claim.ranges
        said = exceptions(rolled_back, rejected)
        chosen = decide(said, claimed, claimed, all_else=True, what="the claim")
        if chosen.rejected:
            self._check_life(claim)
            self.bury(chosen.rejected)
        self._end(claim, chosen.rolled_back)

    def release(self, claim: Claim) -> None:
        """Give a claim back: it comes again, uncounted. Raises as `ack` does."""
        self._check_own(claim)
        self._end(claim, None)

    def _check_own(self, claim: Claim) -> None:
        if claim.claimer is not self:
            raise IllegalState(
                "This claim is another claimer's.",
                state=f"claimed by {claim.claimer._name}",  # noqa: SLF001 - one of the same class
                owner=f"subscription {self.display}",
                remedy="read and settle it with the claimer that claimed it",
            )

    def _claim_now(self, most: int) -> tuple[Claim | None, bool]:
        """Claim once; returns the claim, and whether asking again at once makes sense."""
        unknown = frozenset[int]() if self._claims is None else self._claims.log_end_unknown
        # Kafka is asked here, not in the thread that renews; what it keeps only where something was granted
        ends = self.ends()
        log_ends = self._while_it_may_pass(lambda: self._log_ends(unknown)) if unknown else {}
        claim = None
        if self._patiently(lambda: self._again(lambda: self._grant(most, ends, log_ends))):
            earliest = self.earliest()
            claim = self._patiently(lambda: self._again(lambda: self._claim(earliest)))
        again = claim is None and self._claims is not None and self._claims.log_end_unknown != unknown
        return claim, again

    # -- the thread

    def _attached(self, claims: Claims) -> None:  # noqa: ARG002 - new ones, that is all
        """What was claimed before is over."""
        self._life += 1
        self._open = 0
        self._claimed, self._kept = [], []

    def _may_attach_again(self) -> bool:
        """Claims that are open would be over."""
        return self._open == 0

    def _grant(self, most: int, ends: Mapping[int, int], log_ends: Mapping[int, int]) -> bool:
        """Have something granted; returns whether there is something now.

        What an earlier call did not come to return is in it, too.
        """
        left = most - sum(hull.records for hull in (*self._claimed, *self._kept))
        if self._claims is not None and left > 0:
            self._claimed += self._claims.claim(left, ends, log_ends=log_ends)
        return bool(self._claimed or self._kept)

    def _claim(self, earliest: Mapping[int, int]) -> Claim | None:
        """Make a claim of what was granted and Kafka keeps."""
        if self._claims is None:
            return None
        while self._claimed:
            hull = self._claimed[0]
            kept = self._claims.expire(hull, earliest.get(hull.partition, 0))
            if kept is not hull:
                self._note_settled([hull.partition])
            self._kept += [] if kept is None else [kept]
            del self._claimed[0]
        hulls, self._kept = together(self._kept), []
        if not hulls:
            return None
        self._open += 1
        return Claim(self.definition.topic.name, hulls, self, self._life, left=list(hulls))

    def _end(self, claim: Claim, back: Mapping[int, Ranges] | None) -> None:
        """Settle a claim, except what is to come again; None: give it back."""

        def finish() -> None:
            while claim.left:
                self._check_life(claim)
                claims, hull = self._claims, claim.left[0]
                if claims is None:
                    return
                if back is None:
                    claim.refused.extend(claims.release(hull))
                else:
                    claim.refused.extend(claims.settle(hull, rolled_back=back.get(hull.partition, ())))
                claim.left.pop(0)  # what was answered is not said again
                self._note_settled([hull.partition])
                self._open -= not claim.left

        self._patiently(lambda: self._again(finish))
        if claim.refused:
            raise self._over(claim)

    def _check_life(self, claim: Claim) -> None:
        self.check()
        if claim.life != self._life:
            raise self._over(claim)

    def _over(self, claim: Claim) -> LeaseLost:
        return LeaseLost(
            "This claim is over, at least in part.",
            state=f"{claim.records} records; claimed under attachment {claim.life}, it is {self._life} now",
            owner=f"subscription {self.display}",
            remedy="claim again: what was not settled comes again",
        )
