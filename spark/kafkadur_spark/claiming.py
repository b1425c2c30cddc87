"""Claims: several jobs share one subscription, each reads what it has claimed and settles it.

A claim is a stretch of each of some partitions, and the offsets in there that are not the job's. It is read
as a batch, and holds as long as the driver's session does: what is claimed by a driver that dies comes again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

import kafkadur.sync
from kafkadur_coordinators.claims import Claims, Hull
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.definition import Definition, Start, SubscriptionType
from kafkadur_sharing.errors import IllegalState, LeaseLost
from kafkadur_sharing.redelivery import Redelivery
from kafkadur_spark.attachment import Attachment
from kafkadur_spark.java_settings import java_settings
from kafkadur_spark.leaving_out import leave_out

#: Seconds between two looks whether there is something to claim.
_LOOK_S = 0.2


def share(
    connection: kafkadur.sync.Connection,
    topic: str,
    *,
    durable: str,
    start: Start = "latest",
    redelivery: Redelivery | None = None,
    name: str | None = None,
) -> Claimer:
    """Attach to the shared durable subscription `durable` on `topic`, to claim from it beside others.

    As `hold`, but other drivers and ordinary consumers may be attached, too. Enter its context.
    """
    definition = Definition(
        type=SubscriptionType.SHARED, topic=topic, start=start, redelivery=redelivery or Redelivery()
    )
    request = Request(key=connection.key(durable), definition=definition, mode=connection.settings.mode)
    return Claimer(connection.settings, request, name=name)


@dataclass(frozen=True, eq=False)
class Claim:
    """What a job has claimed."""

    topic: str
    hulls: Sequence[Hull]
    #: under which attachment
    life: int

    @property
    def records(self) -> int:
        """Offsets that were claimed; not each of them needs to have a record."""
        return sum(hull.records for hull in self.hulls)

    def holds(self, partition: int, offset: int) -> bool:
        """Whether an offset belongs to it."""
        leases = [lease for hull in self.hulls if hull.partition == partition for lease in hull.leases]
        return any(start <= offset < end for _, start, end in leases)


class Claimer(Attachment):
    """Claims from a shared subscription; a context manager. Any thread of the driver may call it."""

    _life = 0

    def claim(self, most: int = 1_000_000, *, timeout: float = 0.0) -> Claim | None:
        """Claim at most `most` records that nobody has; None if there were none for `timeout` seconds.

        Raises `LeaseLost` when the session is over, and `CoordinatorUnavailable` or `StateLost`.
        """
        if most < 1:
            raise IllegalState(f"A claim of {most} records holds nothing.", remedy="claim at least 1")
        until = time.monotonic() + timeout
        while True:
            found = self._patiently(lambda: self._again(lambda: self._claim(most)))
            if found is not None or time.monotonic() >= until:
                return found
            time.sleep(_LOOK_S)

    def read(
        self, spark: SparkSession, claim: Claim, *, options: Mapping[str, str] | None = None
    ) -> DataFrame:
        """The records of a claim, as Spark's Kafka source has them; `options` are further ones of it."""
        topic = claim.topic
        reader = spark.read.format("kafka").option("kafka.isolation.level", "read_committed")
        for option, value in {
            "assign": {topic: [hull.partition for hull in claim.hulls]},
            "startingOffsets": {topic: {str(hull.partition): hull.start for hull in claim.hulls}},
            "endingOffsets": {topic: {str(hull.partition): hull.end for hull in claim.hulls}},
        }.items():
            reader = reader.option(option, json.dumps(value))
        for name, setting in (java_settings(self.settings.kafka) | dict(options or {})).items():
            reader = reader.option(name, setting)
        return leave_out(spark, reader.load(), {hull.partition: hull.skip for hull in claim.hulls})

    def ack(self, claim: Claim, *, rolled_back: Iterable[tuple[int, int]] = ()) -> None:
        """Settle a claim, but the (partition, offset) pairs in `rolled_back`: these come again, counted.

        Raises `LeaseLost` when the claim is over, at least in part: what of it is not settled comes again;
        and `IllegalState` for an offset that is not in the claim.
        """
        back: dict[int, list[tuple[int, int]]] = {}
        for partition, offset in rolled_back:
            if not claim.holds(partition, offset):
                raise IllegalState(
                    f"Offset {offset} of partition {partition} is not in the claim.",
                    state=f"it has {claim.records} records of {len(claim.hulls)} partitions",
                    owner="the job",
                    remedy="roll back what was claimed",
                )
            back.setdefault(partition, []).append((offset, offset + 1))
        self._end(claim, back)

    def release(self, claim: Claim) -> None:
        """Give a claim back: it comes again, uncounted."""
        self._end(claim, None)

    # -- the thread

    def _attached(self, claims: Claims) -> None:  # noqa: ARG002 - new ones, that is all
        """What was claimed before is over."""
        self._life += 1

    def _claim(self, most: int) -> Claim | None:
        topic, claims = self.definition.topic, self._claims
        if claims is None:
            return None
        ends = self._topics.offsets(topic.name, topic.partitions, "latest")
        # the first one after a loss of the state brings nothing
        hulls = claims.claim(most, ends) or claims.claim(most, ends)
        return Claim(topic.name, hulls, self._life) if hulls else None

    def _end(self, claim: Claim, back: Mapping[int, Sequence[tuple[int, int]]] | None) -> None:
        """Settle a claim, except what is to come again; None: give it back."""
        left, refused = list(claim.hulls), list[int]()

        def finish() -> None:
            while left:
                claims, hull = self._claims, left[0]
                if claims is None or claim.life != self._life:
                    raise self._over(claim)
                if back is None:
                    refused.extend(claims.release(hull))
                else:
                    refused.extend(claims.settle(hull, rejected=back.get(hull.partition, ())))
                self._note_settled([left.pop(0).partition])  # what was answered is not said again

        self._patiently(lambda: self._again(finish))
        if refused:
            raise self._over(claim)

    def _over(self, claim: Claim) -> LeaseLost:
        return LeaseLost(
            "This claim is over.",
            state=f"{claim.records} records, claimed under attachment {claim.life}, it is {self._life} now",
            owner=f"subscription {self.display}",
            remedy="claim again: what was not settled comes again",
        )
