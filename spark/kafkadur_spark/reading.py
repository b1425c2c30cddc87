"""Reading a held subscription with Spark's own Kafka source, and settling the batches of the query.

The checkpoint says what Spark planned, the subscription what is settled; `generations.py` decides what a
query goes on with. Each batch is a stretch of offsets of each partition, told by Spark's log of offsets.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from kafkadur_coordinators.places import Place
from kafkadur_coordinators.whole import Verdicts
from kafkadur_sharing.errors import IllegalState
from kafkadur_spark.batches import Batches, Stretches
from kafkadur_spark.checkpoints import Checkpoints
from kafkadur_spark.generations import Acking, Generation, OnAhead, Standing, choose
from kafkadur_spark.holder import Holder, Whereabouts
from kafkadur_spark.java_settings import java_settings
from kafkadur_spark.progress import Progress
from kafkadur_spark.ranges import Ranges, joined, split, within, without, words
from kafkadur_spark.selector_sql import taking

_log = logging.getLogger("kafkadur.spark")

#: Options that decide what is read, in lower case: they are this module's.
_OURS: Final = (
    "subscribe", "subscribepattern", "assign", "startingoffsets", "startingtimestamp",
    "startingoffsetsbytimestamp", "kafka.group.id", "groupidprefix", "kafka.isolation.level",
)  # fmt: skip
#: What waits for its time is left out until so long after, ms: clocks differ.
_CLOCKS_MS: Final = 1_000
#: Ranges that are left out by a condition each; what is shorter, or more, is joined as words.
_MOST_LONG: Final = 100
#: Behind every offset.
_FAR: Final = 2**63 - 1


class Writer(Protocol):
    """What of a `DataStreamWriter` is used."""

    def option(self, key: str, value: str) -> Any:  # noqa: ANN401 - itself
        """Set an option."""
        ...

    def start(self) -> StreamingQuery:
        """Start the query."""
        ...


def read_stream(
    spark: SparkSession,
    holder: Holder,
    checkpoint_root: str,
    *,
    acking: Acking = "batch",
    on_ahead: OnAhead | None = None,
    options: Mapping[str, str] | None = None,
) -> Reading:
    """Read a held subscription as a stream: what is not settled, from the lowest such offset on.

    A batch is known by generation and number together: a new generation counts from 0 again.

    Of a subscription with a selector it has what that takes; the rest is settled with its batch.

    The frame is that of Spark's Kafka source (key, value, topic, partition, offset, timestamp,
    timestampType, headers if `includeHeaders` is set), read committed. `checkpoint_root` is a folder for the
    checkpoints of all subscriptions, local or on any file system Spark knows; one query at a time uses that
    of a subscription. `options` are further ones of the source, such as `maxOffsetsPerTrigger`, and
    `kafka.<name>` for Kafka's Java client; where to connect is the connection's, translated.

    `acking`: "batch" for `Reading.ack_batch` in a foreachBatch; "progress" settles what Spark has committed,
    after it has, and at the start what it had committed before. `on_ahead` says what is done where something
    is to be read again that the query has passed, because it was rolled back, or because the subscription
    was moved: "new" begins with another checkpoint and reads it, "refuse" raises `IllegalState`; None:
    "refuse" with "progress", because Spark's sinks of files know a batch by its number alone and leave out
    those they have had, and for a query whose operators keep state; else "new". What Kafka had removed
    unsettled is settled, and counted as expired. Raises what `Holder.settle` raises.
    """
    chosen = _checked(options or {}, holder)
    checkpoints = Checkpoints(spark, checkpoint_root, holder.definition.key.group)
    last = _last(checkpoints, holder)
    if last is not None and acking == last.generation.acking == "progress" and _is_of(last, holder):
        holder.settle(_settled(last.read_of(_there(last.since(None, last.last("commits") or {}), holder))))
    where = _without_lost(holder)
    generation = _generation(last, _standing(holder, where.places), on_ahead, acking)
    batches = Batches(checkpoints, generation, holder.definition.topic.name)
    if last is None or generation != last.generation:
        checkpoints.write(generation.number, generation.revision, generation.to_json())
    committed = batches.last("commits")
    position = dict(generation.starts) | (committed or {})
    if any(position.get(p, 0) < first for p, first in where.earliest.items()):
        chosen.setdefault("failOnDataLoss", "false")  # what was lost is counted already
    frame = _frame(spark, holder, generation, committed or {}, chosen)
    return Reading(holder, batches, frame, acking=acking, committed=committed)


class Reading:
    """A held subscription as a stream, and the verdicts on its batches."""

    def __init__(
        self,
        holder: Holder,
        batches: Batches,
        frame: DataFrame,
        *,
        acking: Acking,
        committed: Mapping[int, int] | None,
    ) -> None:
        """Made by `read_stream`; `committed`: behind what Spark had committed then, None: nothing yet."""
        self._holder = holder
        self._batches = batches
        self._acking = acking
        #: behind what Spark had committed when that was settled last
        self._settled = committed
        self._settling = threading.Lock()
        #: what is read; a query on it needs `checkpoint`
        self.frame = frame

    @property
    def checkpoint(self) -> str:
        """The checkpointLocation of the query."""
        return self._batches.checkpoints.of(self._batches.generation.number)

    @property
    def generation(self) -> int:
        """Which checkpoint of this subscription that is, from 1."""
        return self._batches.generation.number

    def start(self, writer: Writer) -> StreamingQuery:
        """Start a query on the frame: with its checkpoint, and stopped when the subscription is lost."""
        streams = self.frame.sparkSession.streams
        progress: Progress | None = None
        if self._acking == "progress":
            progress = Progress(self._committed)
            streams.addListener(progress)
        query: StreamingQuery = writer.option("checkpointLocation", self.checkpoint).start()

        def end() -> None:
            try:
                query.stop()
                if progress is not None:
                    streams.removeListener(progress)
                    progress.look()
            except Exception as error:  # noqa: BLE001 - what it failed with its owner hears, or Spark has gone
                _log.info("query %s: %s", query.id, error)

        self._holder.at_end(end)
        return query

    def _committed(self) -> None:
        """Settle what Spark has committed, and was not settled yet."""
        with self._settling:
            ends = self._batches.last("commits")
            if ends is not None:
                since = self._batches.since(self._settled, ends)
                self._holder.settle(_settled(self._batches.read_of(since)))
                self._settled = ends

    def ack_batch(self, batch: int, *, rolled_back: Iterable[tuple[int, int]] = ()) -> int:
        """Settle all offsets of a batch, those that a filter dropped, too; again settles nothing twice.

        `rolled_back` are (partition, offset) pairs that are left unsettled instead, and counted as an
        attempt: the running query does not read them again, the next generation does. Returns how many
        offsets were settled by it. Raises `LeaseLost` when the subscription is held no more: nothing was
        settled, and all of it comes again; `CoordinatorUnavailable` or `StateLost` when Redis or Kafka do
        not answer; and `IllegalState` for a batch of another query or an offset that is not in it.
        """
        self._holder.check()
        stretches = self._batches.stretches(batch)
        back: dict[int, list[tuple[int, int]]] = {}
        for partition, offset in rolled_back:
            start, end = stretches.get(partition, (0, 0))
            if not start <= offset < end:
                raise IllegalState(
                    f"Offset {offset} of partition {partition} is not in batch {batch}.",
                    state=f"its offsets are [{start}, {end})",
                    owner="the query",
                    remedy="roll back what the batch holds",
                )
            back.setdefault(partition, []).append((offset, offset + 1))
        read = self._batches.read_of(stretches)
        return self._holder.settle({p: _without(read[p], joined(back.get(p, ()))) for p in stretches})


def _checked(options: Mapping[str, str], holder: Holder) -> dict[str, str]:
    """The options, none of which says what is read."""
    wrong = [name for name in options if name.lower() in _OURS]
    if wrong:
        raise IllegalState(
            "What is read is said by the subscription.",
            state=f"option {', '.join(wrong)}",
            owner=f"subscription {holder.definition.key}",
            remedy="leave it out; a subscription is moved with `kafkadur sub seek`",
        )
    return dict(options)


def _last(checkpoints: Checkpoints, holder: Holder) -> Batches | None:
    """The batches of the last generation; None: there is none."""
    text = checkpoints.last()
    if text is None:
        return None
    return Batches(checkpoints, Generation.from_json(text), holder.definition.topic.name)


def _is_of(batches: Batches, holder: Holder) -> bool:
    """Whether a generation is of this life of the subscription."""
    held, found = holder.definition, batches.generation
    return (found.subscription_id, found.epoch, found.topic_id) == (held.id, held.epoch, held.topic.id)


def _settled(read: Mapping[int, Ranges]) -> dict[int, Verdicts]:
    return {partition: Verdicts(ranges) for partition, ranges in read.items()}


def _without(read: Ranges, back: Ranges) -> Verdicts:
    return Verdicts(without(read, back), back)


def _without_lost(holder: Holder) -> Whereabouts:
    """Where the subscription stands, when what Kafka removed unsettled is settled as expired."""
    where = holder.whereabouts()
    lost = {
        partition: Verdicts(expired=[(place.floor, where.earliest[partition])])
        for partition, place in where.places.items()
        if place.floor < where.earliest.get(partition, 0)
    }
    if not lost:
        return where
    _log.warning(
        "%s: Kafka removed messages that were not settled, before %s", holder.display, where.earliest
    )
    holder.settle(lost)
    return holder.whereabouts()


def _there(stretches: Stretches, holder: Holder) -> Stretches:
    """What of stretches Kafka has: it may have lost the end of a partition."""
    ends = holder.ends()
    cut = {p: (start, min(end, ends.get(p, 0))) for p, (start, end) in stretches.items()}
    return {p: (start, end) for p, (start, end) in cut.items() if start < end}


def _standing(holder: Holder, places: Mapping[int, Place]) -> Standing:
    held = holder.definition
    now = round(time.time() * 1000) - _CLOCKS_MS
    floors: dict[int, int] = {}
    holes: dict[int, list[tuple[int, int]]] = {}
    for partition, place in places.items():
        ready = joined((item.start, item.end) for item in place.waiting if item.due <= now)
        floors[partition] = ready[0][0] if ready else place.next
        holes[partition] = without([(floors[partition], place.next)], ready)
    return Standing(
        subscription_id=held.id, epoch=held.epoch, topic_id=held.topic.id, floors=floors, holes=holes
    )


def _generation(last: Batches | None, now: Standing, on_ahead: OnAhead | None, acking: Acking) -> Generation:
    if last is None:
        return choose(None, None, now, on_ahead="new", acking=acking)
    if on_ahead is None:
        stateful = last.checkpoints.is_stateful(last.generation.number)
        on_ahead = "refuse" if stateful or acking == "progress" else "new"
    committed, planned = last.last("commits"), last.last("offsets")
    chosen = choose(last.generation, committed, now, planned=planned, on_ahead=on_ahead, acking=acking)
    if chosen.number != last.generation.number and acking == "progress" and on_ahead == "refuse":
        raise IllegalState(
            "The checkpoint is of another subscription, or of an earlier life of this one.",
            state=f"generation {last.generation.number}",
            owner="the checkpoint",
            remedy='say on_ahead="new", and let the sink write to another place: it may know its batches by '
            "their numbers alone, and these begin again",
        )
    if chosen.number != last.generation.number:
        _log.warning(
            "subscription %s: generation %d of its checkpoints begins: the last would miss what is unsettled",
            now.subscription_id,
            chosen.number,
        )
    return chosen


def _frame(
    spark: SparkSession,
    holder: Holder,
    generation: Generation,
    committed: Mapping[int, int],
    options: Mapping[str, str],
) -> DataFrame:
    topic = holder.definition.topic
    starts = {str(p): generation.starts.get(p, 0) for p in range(topic.partitions)}
    reader = spark.readStream.format("kafka").option("subscribe", topic.name)
    reader = reader.option("startingOffsets", json.dumps({topic.name: starts}))
    reader = reader.option("kafka.isolation.level", "read_committed")
    for name, value in (java_settings(holder.settings.kafka) | dict(options)).items():
        reader = reader.option(name, value)
    left_out = {p: within(some, committed.get(p, 0), _FAR) for p, some in generation.skip.items()}
    return _leave_out(spark, _taken(reader, holder), left_out)


def _taken(reader: DataStreamReader, holder: Holder) -> DataFrame:
    """What of the source the subscription takes, with the columns that were asked for."""
    held = holder.definition
    condition = taking(
        held.definition, client_id=holder.settings.client_id, connection_id=holder.connection_id
    )
    if condition is None:
        return reader.load()
    columns = reader.load().columns
    return reader.option("includeHeaders", "true").load().where(condition).select(*columns)


def _leave_out(spark: SparkSession, frame: DataFrame, skip: Mapping[int, Ranges]) -> DataFrame:
    """The frame without these offsets."""
    columns = frame.columns
    few, rest = split(skip, most=_MOST_LONG)
    for partition, ranges in few.items():
        for start, end in ranges:
            frame = frame.where(f"partition <> {partition} or offset < {start} or offset >= {end}")
    skipped = words(rest)
    if not skipped:
        return frame
    table = functions.broadcast(
        spark.createDataFrame(skipped, "_skip_partition int, _skip_word long, _skip_bits long")
    )
    same = "partition = _skip_partition and shiftright(offset, 6) = _skip_word"
    bit = "shiftright(_skip_bits, cast(offset & 63 as int)) & 1"
    together = frame.join(table, functions.expr(same), "left")
    return together.where(f"_skip_bits is null or {bit} = 0").select(*columns)
