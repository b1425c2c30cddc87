"""Claims: several jobs share one subscription; each claims messages, reads them and settles them.

A claim is a stretch of one or more partitions, without the offsets in it that were not leased to the job. It
is read as a batch, and lasts as long as the driver's session: the claimed messages of a driver that dies are
redelivered.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from pyspark.sql import DataFrame, SparkSession

import kafkadur.sync
from kafkadur.history.entries import Outcome
from kafkadur_coordinators.claims import Hull, together
from kafkadur_sharing.decisions import OnChange, Request, parts_given, validate_on_change
from kafkadur_sharing.definition import Definition, HeaderType, Start, SubscriptionType
from kafkadur_sharing.errors import IllegalState, LeaseLost
from kafkadur_sharing.numbers import check_integer
from kafkadur_sharing.ranges import Ranges, count, joined, without
from kafkadur_sharing.redelivery_policy import Redelivery
from kafkadur_sharing.selector import parse_selector
from kafkadur_spark.attachment import Attachment
from kafkadur_spark.dispositions import decide, exceptions
from kafkadur_spark.recording import now_ms
from kafkadur_spark.source import checked, leave_out, loaded

#: Seconds between two attempts to claim something.
_LOOK_S = 0.2
#: Records of one claim.
_MOST = 2**31 - 1


def share(
    connection: kafkadur.sync.Connection,
    topic: str,
    *,
    durable: str,
    selector: str | None = None,
    header_types: Mapping[str, HeaderType] | None = None,
    start: Start | None = None,
    redelivery: Redelivery | None = None,
    history: timedelta | float | None = None,
    on_change: OnChange | None = None,
    name: str | None = None,
) -> Claimer:
    """Share the durable subscription `durable` on `topic` with other drivers and ordinary consumers.

    The subscription is created if it does not exist, with the type shared; `selector`, `header_types`,
    `start`, `redelivery`, `history` and `on_change` are as in `Connection.subscribe`. A claimer only counts
    attempts: a message that has used them up becomes a dead letter at an ordinary consumer. `name` is shown
    to people. Raises `InvalidSelector`. The claimer attaches when its context is entered, and then raises the
    error of the rule that refuses it, such as `SubscriptionDiffers` for another selector than the
    subscription has.
    """
    parse_selector(selector)
    given = parts_given(
        start=start, header_types=header_types, redelivery=redelivery, history=history,
    )  # fmt: skip
    definition = Definition(type=SubscriptionType.SHARED, topic=topic, selector=selector, **given)
    request = Request(
        key=connection.key(durable),
        definition=definition,
        mode=connection.settings.mode,
        on_change=validate_on_change(on_change),
        given=frozenset(given),
    )
    return Claimer(connection.settings, request, connection_id=connection.id, name=name)


@dataclass(frozen=True, eq=False)
class Claim:
    """The messages that a job has claimed."""

    topic: str
    hulls: Sequence[Hull]
    claimer: Claimer
    #: number of the attachment
    life: int
    #: when it was made, ms since 1970
    claimed_at: int
    #: hulls without a verdict; tokens of leases that were refused
    left: list[Hull] = field(default_factory=list[Hull], repr=False)
    refused: list[int] = field(default_factory=list[int], repr=False)

    @property
    def records(self) -> int:
        """The number of claimed offsets; an offset may have no record."""
        return sum(hull.records for hull in self.hulls)

    @property
    def ranges(self) -> dict[int, list[tuple[int, int]]]:
        """The claimed offsets, as [start, end) by partition."""
        return {hull.partition: joined((a, b) for _, a, b in hull.leases) for hull in self.hulls}


class Claimer(Attachment):
    """Claims from a shared subscription; a context manager. Any thread of the driver may call it."""

    kind = "claims"

    #: number of the attachment
    _life: int = 0
    #: claims that are not settled yet
    _open: int
    #: hulls that were granted, and hulls of these that Kafka still has; neither are part of a claim yet
    _claimed: list[Hull]
    _kept: list[Hull]

    def claim(self, most: int = 1_000_000, *, timeout: float = 0.0) -> Claim | None:
        """Lease at most `most` records without a lease; return None if there are none for `timeout` seconds.

        Unsettled messages that Kafka has removed are settled and counted as expired. Several claims may be
        open at once; after partitions were added, no claim is made until the open ones are settled. Raises
        `IllegalState` for less than one record or no integer, `LeaseLost` if the attachment is lost, and
        `CoordinatorUnavailable` or `StateLost` if Redis or Kafka do not answer for three times the session
        time-out.
        """
        most = check_integer("most", most, 1, _MOST)
        until, begun = time.monotonic() + timeout, time.time_ns()
        while True:
            # to see added partitions it has to attach again, which would end the open claims
            waits = not self._see_topic()
            found, again = (None, False) if waits else self._claim_now(most)
            if found is not None or (time.monotonic() >= until and not again):
                if self._tracing is not None and found is not None:
                    self._tracing.claimed(found.topic, self.display, found.records, begun)
                return found
            if not again:
                time.sleep(_LOOK_S)

    def read(
        self, spark: SparkSession, claim: Claim, *, options: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Return the records of a claim as Spark's Kafka source reads them, with further `options` of it.

        Raises `IllegalState` for an option that determines what is read, and for a claim of another claimer.
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
        """Settle a claim.

        `rolled_back` are (partition, offset): these messages are redelivered and an attempt is counted.
        `rejected` are (partition, offset, reason), at most 10,000: these are written to the dead-letter topic
        before they are settled. Raises `LeaseLost` if the claim is over, at least in part: its unsettled
        messages are redelivered; and `TopicChanged` if the topic was deleted and created again. Raises
        `IllegalState` for an offset that is not in the claim and for a claim of another claimer; and
        `CoordinatorUnavailable` or `StateLost` if Redis or Kafka do not answer: the call can be repeated with
        the same arguments.
        """
        self._check_own(claim)
        claimed = claim.ranges
        said = exceptions(rolled_back, rejected)
        chosen = decide(said, claimed, claimed, all_else=True, what="the claim")
        self._check_life(claim)
        self._see_topic()
        if chosen.rejected:
            self.send_to_dead_letters(chosen.rejected)
        self._end(claim, chosen.rolled_back)

    def release(self, claim: Claim) -> None:
        """Return a claim: its messages are redelivered and no attempt is counted. Raises as `ack` does."""
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
        """Claim once; return the claim, and whether another attempt makes sense at once."""
        unknown = self._claims.log_end_unknown
        # this thread asks Kafka, not the one that renews; it asks for first offsets only after a grant
        ends = self.ends()
        log_ends = self._while_it_may_pass(lambda: self._log_ends(unknown)) if unknown else {}
        claim = None
        if self._patiently(lambda: self._again(lambda: self._grant(most, ends, log_ends))):
            earliest = self.earliest()
            claim = self._patiently(lambda: self._again(lambda: self._claim(earliest)))
        return claim, claim is None and self._claims.log_end_unknown != unknown

    # -- the thread

    def _attached(self) -> None:
        """Drop the earlier claims, which are over."""
        self._life += 1
        self._open = 0
        self._claimed, self._kept = [], []

    def _may_attach_again(self) -> bool:
        """Return whether no claim is open: open ones would be over."""
        return self._open == 0

    def _grant(self, most: int, ends: Mapping[int, int], log_ends: Mapping[int, int]) -> bool:
        """Have hulls granted; return whether there are any, also from an earlier call that failed."""
        left = most - sum(hull.records for hull in (*self._claimed, *self._kept))
        if left > 0:
            self._claimed += self._claims.claim(left, ends, log_ends=log_ends)
        return bool(self._claimed or self._kept)

    def _claim(self, earliest: Mapping[int, int]) -> Claim | None:
        """Make a claim of the granted hulls that Kafka still has."""
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
        return Claim(self.definition.topic.name, hulls, self, self._life, now_ms(), left=list(hulls))

    def _end(self, claim: Claim, back: Mapping[int, Ranges] | None) -> None:
        """Settle a claim, except the ranges in `back`, which are rolled back; None: release the claim."""

        def finish() -> None:
            while claim.left:
                self._check_life(claim)
                hull = claim.left[0]
                if back is None:
                    refused = self._claims.release(hull)
                else:
                    refused = self._claims.settle(hull, rolled_back=back.get(hull.partition, ()))
                claim.refused.extend(refused)
                claim.left.pop(0)  # a repeated call does not repeat what was answered
                self._record(claim, hull, refused, back)
                self._note_settled([hull.partition])
                self._open -= not claim.left

        with self._traced(claim, back):
            self._patiently(lambda: self._again(finish))
            if claim.refused:
                raise self._over(claim)

    def _traced(
        self, claim: Claim, back: Mapping[int, Ranges] | None
    ) -> contextlib.AbstractContextManager[None]:
        """Surround what becomes of a claim with a span, if there are spans."""
        if self._tracing is None:
            return contextlib.nullcontext()
        rolled_back = sum(map(count, (back or {}).values()))
        return self._tracing.settling_offsets(
            "release" if back is None else "ack",
            claim.topic,
            self.display,
            claim.records - rolled_back,
            rolled_back=rolled_back,
        )

    def _record(
        self, claim: Claim, hull: Hull, refused: Collection[int], back: Mapping[int, Ranges] | None
    ) -> None:
        """Record what became of a hull."""
        partition, note = hull.partition, partial(self._recording.note, handed=claim.claimed_at)
        note(partition, joined((a, b) for token, a, b in hull.leases if token in refused), Outcome.REFUSED)
        taken = joined((a, b) for token, a, b in hull.leases if token not in refused)
        if back is None:
            note(partition, taken, Outcome.RELEASED)
            return
        settled = without(taken, back.get(partition, ()))
        note(partition, without(taken, settled), Outcome.ROLLED_BACK)
        self._recording.settle(partition, settled, handed=claim.claimed_at)

    def _check_life(self, claim: Claim) -> None:
        self.check()
        if claim.life != self._life:
            raise self._over(claim)

    def _over(self, claim: Claim) -> LeaseLost:
        return LeaseLost(
            "This claim is over, at least in part.",
            state=f"{claim.records} records, claimed with attachment {claim.life}, now it is {self._life}",
            owner=f"subscription {self.display}",
            remedy="claim again: unsettled messages are redelivered",
        )
