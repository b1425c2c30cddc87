"""Reading a held subscription with Spark's own Kafka source, and settling the batches of the query.

The checkpoint says what Spark planned, the subscription what is settled; `generations.py` decides what a
query goes on with. Each batch is a stretch of offsets of each partition, told by Spark's log of offsets.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kafkadur_coordinators.exclusive_settlement import Verdicts
from kafkadur_coordinators.places import Place
from kafkadur_sharing.definition import Sharing
from kafkadur_sharing.errors import IllegalState
from kafkadur_spark.attachment import Whereabouts
from kafkadur_spark.batches import Batches, Stretches
from kafkadur_spark.checkpoints import Checkpoints
from kafkadur_spark.dispositions import Said, decide, exceptions
from kafkadur_spark.generations import Acking, Generation, OnAhead, Standing, choose
from kafkadur_spark.holder import Holder
from kafkadur_spark.progress import Progress
from kafkadur_spark.query_progress import QueryProgress
from kafkadur_spark.ranges import Ranges, joined, within, without
from kafkadur_spark.redelivering import Redelivering
from kafkadur_spark.settlement_server import SettlementServer
from kafkadur_spark.sink import ADDRESS, SECRET, TOPIC, AckSink
from kafkadur_spark.source import checked, leave_out, loaded

_log = logging.getLogger("kafkadur.spark")

#: What waits for its time is left out until so long after, ms: clocks differ.
_CLOCKS_MS: Final = 1_000
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
    was moved: "new" begins with another checkpoint and reads it, "redeliver" goes on and leaves what was
    rolled back to `Reading.redelivering`, "refuse" raises `IllegalState`; None: "refuse" with "progress",
    because Spark's sinks of files know a batch by its number alone and leave out those they have had, and for
    a query whose operators keep state; else "new". What Kafka had removed unsettled is settled, and counted
    as expired. Raises what `Holder.settle` raises, and `IllegalState` for another way of reading.
    """
    _check_ways(acking, on_ahead)
    chosen = checked(options or {}, holder.display)
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


def _check_ways(acking: str, on_ahead: str | None) -> None:
    """Refuse a way of reading that there is not."""
    known = acking in get_args(Acking) and (on_ahead is None or on_ahead in get_args(OnAhead))
    if known and not (acking == "progress" and on_ahead == "redeliver"):
        return
    raise IllegalState(
        "What comes again cannot be brought to a query that is settled by progress."
        if known
        else "There is no such way of reading.",
        state=f"acking {acking!r}, on_ahead {on_ahead!r}",
        owner="the query",
        remedy='use acking "batch" with reading.redelivering, or on_ahead "new"'
        if known
        else 'use acking "batch" or "progress", and on_ahead "new", "redeliver" or "refuse"',
    )


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
        self._settlement_server: SettlementServer | None = None
        self._redelivering = Redelivering(holder, batches)
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
        """Start a query on the frame: with its checkpoint, and stopped when the subscription is lost.

        Its listeners stay with the session until the holder's context is left.
        """
        streams = self.frame.sparkSession.streams
        progress: Progress | None = None
        if self._acking == "progress":
            progress = Progress(self._committed)
            streams.addListener(progress)
        query: StreamingQuery = writer.option("checkpointLocation", self.checkpoint).start()
        topic = self._holder.definition.topic.name
        query_progress = QueryProgress(str(query.runId), topic, self.generation, self._holder.tell)
        streams.addListener(query_progress)

        def end() -> None:
            try:
                query.stop()
                streams.removeListener(query_progress)
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

    def ack_batch(
        self,
        batch: int,
        *,
        rolled_back: Iterable[tuple[int, int]] = (),
        rejected: Iterable[tuple[int, int, str]] = (),
    ) -> int:
        """Settle all offsets of a batch, those that a filter dropped, too; again settles nothing twice.

        `rolled_back` are (partition, offset) pairs that are left unsettled instead, and counted as an
        attempt: they come in the next generation, or with a later batch where `redelivering` brings them.
        `rejected` are (partition, offset, reason): they are written to the dead-letter topic before they are
        settled, at most 10,000. Returns how many offsets were settled by it. Raises `LeaseLost` when the
        subscription is held no more: what of it was not settled comes again; `CoordinatorUnavailable` or
        `StateLost` when Redis or Kafka do not answer; and `IllegalState` for a batch of another query, an
        offset that is not in it, and where the reading settles by progress.
        """
        return self._settle(batch, exceptions(rolled_back, rejected), all_else=True)

    def redelivering(self, work: Callable[[DataFrame, int], object]) -> Callable[[DataFrame, int], None]:
        """A function for foreachBatch, to which a batch brings what is unsettled before it, besides.

        That is what was rolled back and is due again, and whatever else no batch before it has settled: so
        settle each batch before `work` returns. `work` is told the frame of both, whose columns are those of
        the source, and the number of the batch, and `ack_batch` settles both. A thousand messages come
        besides one batch at most, and no more after about 16 MB; others, and what becomes due later, come
        with the next, when there is one. With `on_ahead="redeliver"` a query that is started again goes on
        with its checkpoint, and the state of its operators, and has what was rolled back brought by its first
        batch. Raises `IllegalState` for a frame that was worked on before, and where the reading settles by
        progress.
        """
        self._check_batches()

        def both(frame: DataFrame, batch: int) -> None:
            if frame.columns != self.frame.columns:
                raise IllegalState(
                    "Only the frame that is read can be joined with what comes again.",
                    state=f"columns {', '.join(frame.columns)}",
                    owner="the query",
                    remedy="write reading.frame.writeStream, and do the work inside the function",
                )
            self._holder.check()
            work(self._redelivering.join(frame, batch), batch)

        return both

    @property
    def sink(self) -> dict[str, str]:
        """The options of the sink `format("kafkadur")`, which settles what the rows of a query name.

        Its rows are of single offsets (partition, offset) or stretches (partition, start, end), integers; and
        have, if they like, the strings topic, disposition - ack (default), rollback, reject or leave - and
        reason. What no row names is left unsettled, and comes with the next generation; with the further
        option `unlisted` = `ack` it is settled: so for a query that filters, or names exceptions only, and
        for a topic with offsets that have no record (transactions, compaction): these can't be named. The
        executors need kafkadur and pyarrow. Raises `IllegalState` where the reading settles by progress.
        """
        self._check_batches()
        if self._settlement_server is None:
            self.frame.sparkSession.dataSource.register(AckSink)
            self._settlement_server = SettlementServer(
                lambda batch, said, all_else: self._settle(batch, said, all_else=all_else)
            )
            self._holder.at_end(self._settlement_server.close)
        topic = self._holder.definition.topic.name
        return {
            ADDRESS: self._settlement_server.address,
            TOPIC: topic,
            SECRET: self._settlement_server.secret,
        }

    def _check_batches(self) -> None:
        if self._acking == "progress":
            raise IllegalState(
                "What this query commits is settled as a whole.",
                state='acking="progress"',
                owner="the query",
                remedy='read_stream(..., acking="batch") for a query that says itself what is settled',
            )

    def _settle(self, batch: int, said: Iterable[Said], *, all_else: bool) -> int:
        self._check_batches()
        self._holder.check()
        held = self._holder.definition.definition
        local = held.no_local and held.sharing is Sharing.UNSHARED
        if not all_else and (held.selector is not None or local):
            raise IllegalState(
                "What the subscription leaves out has no row that could settle it.",
                state="no_local" if held.selector is None else f"selector {held.selector!r}",
                owner="the query",
                remedy='set the option unlisted="ack" of the sink, and say "leave" of what is to come again',
            )
        stretches = self._batches.stretches(batch)
        besides = self._redelivering.besides(batch)
        there = {p: [pair] for p, pair in stretches.items()}
        read = _together(self._batches.read_of(stretches), besides)
        chosen = decide(said, _together(there, besides), read, all_else=all_else, what=f"batch {batch}")
        if chosen.rejected:
            self._holder.bury(chosen.rejected)
        dead = {p: joined((o, o + 1) for o in some) for p, some in chosen.rejected.items()}
        settled = {p: joined([*chosen.acked.get(p, ()), *dead.get(p, ())]) for p in read}
        back = chosen.rolled_back
        verdicts = {p: Verdicts(some, back.get(p, ())) for p, some in settled.items()}
        return self._holder.settle({p: said for p, said in verdicts.items() if said.end})


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


def _together(some: Mapping[int, Ranges], others: Mapping[int, Ranges]) -> dict[int, Ranges]:
    """The sets of all offsets in either."""
    return {p: joined([*some.get(p, ()), *others.get(p, ())]) for p in {*some, *others}}


def _settled(read: Mapping[int, Ranges]) -> dict[int, Verdicts]:
    return {partition: Verdicts(ranges) for partition, ranges in read.items()}


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
    if chosen.number != last.generation.number and on_ahead == "refuse":
        raise IllegalState(
            "The checkpoint is of another subscription, or of an earlier life of this one.",
            state=f"generation {last.generation.number}",
            owner="the checkpoint",
            remedy='say on_ahead="new": the state of operators begins anew, and a sink that knows batches by '
            "their numbers alone has to write to another place, because these begin again",
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
    left_out = {p: within(some, committed.get(p, 0), _FAR) for p, some in generation.skip.items()}
    return leave_out(spark, loaded(reader, holder, options), left_out)
