"""Redelivery into a running query: earlier unsettled messages are added to a batch.

A Spark query never reads a message again that it has passed. So the driver reads such messages, at most a
thousand for each batch, and adds them to the batch. They are recorded before the work on the batch begins, so
that a replayed batch has the same ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message
from pyspark.sql import DataFrame

from kafkadur.admin.browse import records_of
from kafkadur.fetch.filtering import taking
from kafkadur_coordinators.settlement_states import SettlementState
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.ranges import Ranges, joined, within, without
from kafkadur_spark.batches import Batches
from kafkadur_spark.holder import Holder
from kafkadur_spark.rejecting import READ_S
from kafkadur_spark.several_queries import Offsets

#: Limits for the messages that are added to one batch: their number, and the bytes that end the reading.
MOST, MOST_BYTES = 1_000, 16 * 1024 * 1024
#: Offsets that are read at a time before their bytes are counted.
_SHORT = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Messages that are due for redelivery: (partition, start, end) of each stretch.
Due = frozenset[tuple[int, int, int]]
#: Spark's numbers of confluent-kafka's kinds of timestamps.
_KINDS: Final = {TIMESTAMP_CREATE_TIME: 0, TIMESTAMP_LOG_APPEND_TIME: 1}


class Redelivering:
    """The messages that are added to the batches of one query."""

    def __init__(self, holder: Holder, batches: Batches, *, settled: Callable[[], Offsets]) -> None:
        """Nothing is added to any batch yet.

        `settled` returns the offsets that this query has settled and another one has not.
        """
        self._settled = settled
        self._holder = holder
        self._batches = batches
        self._besides: dict[int, dict[int, Ranges]] = {}

    def besides(self, batch: int) -> Mapping[int, Ranges]:
        """Return the offsets that were added to a batch, by partition.

        Raises `IllegalState` if messages were added at the first attempt, and the batch is replayed without
        them.
        """
        if batch in self._besides:
            return self._besides[batch]
        known = self._batches.checkpoints.besides(self._batches.generation.number, batch)
        if known is not None and json.loads(known):
            raise IllegalState(
                "This batch was worked on with messages that came again, and is replayed without them.",
                state=f"batch {batch} of generation {self._batches.generation.number}",
                owner="the query",
                remedy="use reading.redelivering(work) until the batch is completed",
            )
        return {}

    def join(self, frame: DataFrame, batch: int) -> DataFrame | None:
        """Return the frame of a batch with the added messages; None if there is nothing in it.

        Raises as `Holder.settle` does.
        """
        known = self._batches.checkpoints.besides(self._batches.generation.number, batch)
        if known is None:
            ranges = self._due(batch)
        else:
            ranges = {int(p): [(int(a), int(b)) for a, b in some] for p, some in json.loads(known).items()}
        rows, ranges = self._read(frame, ranges, most=MOST_BYTES if known is None else None)
        if known is None:
            # an empty record, too: nothing is added to the replayed batch, even if a message is due by then
            text = json.dumps({str(p): some for p, some in ranges.items()})
            self._batches.checkpoints.write_besides(self._batches.generation.number, batch, text)
        self._besides = {batch: ranges}  # Spark works on one batch at a time
        if rows:
            return frame.union(frame.sparkSession.createDataFrame(rows, frame.schema))
        woken = self._batches.generation.wakes and not self._batches.stretches(batch)
        return None if woken and not ranges else frame

    def rolled_back(self) -> Due | None:
        """Return the messages that were rolled back, are due, and that the query has passed.

        None while a batch is not committed, which may contain them. Raises as `Holder.whereabouts`.
        """
        number, log = self._batches.generation.number, self._batches.checkpoints
        last = log.latest(number, "commits")
        if last is None or last != log.latest(number, "offsets"):
            return None
        position = dict(self._batches.generation.starts) | self._batches.ends(last)
        now = round(time.time() * 1000)
        where = self._holder.whereabouts()
        settled = self._settled()
        found: set[tuple[int, int, int]] = set()
        for partition, settlement in where.settlements.items():
            first, end = where.earliest.get(partition, 0), position.get(partition, 0)
            back = [
                (item.start, item.end) for item in settlement.waiting if item.attempts and item.due <= now
            ]
            due = without(within(joined(back), first, end), settled.get(partition, ()))
            found.update((partition, *stretch) for stretch in due)
        return frozenset(found)

    def _due(self, batch: int) -> dict[int, Ranges]:
        """Return the offsets before a batch that are due for redelivery.

        It leaves out messages that Kafka has removed: they are counted as expired when the query is started
        again.
        """
        starts = self._batches.starts(batch)
        now = round(time.time() * 1000)
        found: dict[int, Ranges] = {}
        left = MOST
        where = self._holder.whereabouts()
        settled = self._settled()
        settlements = sorted(where.settlements.items())
        first = batch % len(settlements)  # so that no partition is always the last
        for partition, settlement in (*settlements[first:], *settlements[:first]):
            start, kept = starts.get(partition, 0), where.earliest.get(partition, 0)
            due = without(within(_before(settlement, start, now), kept, start), settled.get(partition, ()))
            ranges = _first(due, left)
            left -= sum(b - a for a, b in ranges)
            if ranges:
                found[partition] = ranges
        return found

    def _read(
        self, frame: DataFrame, ranges: Mapping[int, Ranges], *, most: int | None
    ) -> tuple[list[tuple[Any, ...]], dict[int, Ranges]]:
        """Return the messages of ranges as rows, and the ranges that were read to their end."""
        held, settings = self._holder.definition, self._holder.settings
        takes = taking(
            held.definition, client_id=settings.client_id, connection_id=self._holder.connection_id
        )
        rows: list[tuple[Any, ...]] = []
        read: dict[int, list[tuple[int, int]]] = {}
        size = 0

        def wanted() -> Iterator[tuple[int, int, int]]:
            for partition, some in ranges.items():
                for start, end in some:
                    if most is not None and size >= most:
                        return
                    read.setdefault(partition, []).append((start, end))
                    yield partition, start, end

        for message in records_of(
            settings.kafka, held.topic.name, wanted(), namespace=settings.namespace, timeout=READ_S
        ):
            if takes is None or takes(message):  # a record that does not match is delivered to no member
                rows.append(_row(message, frame.columns))
                size += len(message.value() or b"") + len(message.key() or b"")
        return rows, dict(read)


def _before(settlement: SettlementState, end: int, now: int) -> list[tuple[int, int]]:
    """Return the unsettled offsets of a partition before `end` that are not delayed."""
    waiting = [(item.start, min(item.end, end)) for item in settlement.waiting if item.due <= now]
    return joined([*waiting, (settlement.next, end)])


def _first(ranges: Ranges, most: int) -> list[tuple[int, int]]:
    """Return the first `most` offsets of a set, in short stretches."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        cut = min(end, start + most)
        found += [(at, min(at + _SHORT, cut)) for at in range(start, cut, _SHORT)]
        most -= cut - start
    return found


def _row(message: Message, columns: list[str]) -> tuple[Any, ...]:
    """Return a message as a row of Spark's Kafka source."""
    kind, at = message.timestamp()
    headers: list[Any] = list(message.headers() or ())
    values: dict[str, Any] = {
        "key": _bytes(message.key()),
        "value": _bytes(message.value()),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": _EPOCH + timedelta(milliseconds=at),
        "timestampType": _KINDS.get(kind, -1),
        "headers": [(name, _bytes(value)) for name, value in headers] or None,
    }
    return tuple(values[name] for name in columns)


def _bytes(value: str | bytes | None) -> bytearray | None:
    return None if value is None else bytearray(value.encode() if isinstance(value, str) else value)
