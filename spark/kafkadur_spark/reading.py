"""Reading a held subscription with Spark's own Kafka source, and settling the batches of the query.

The checkpoint records what Spark has planned, the subscription what is settled; `generations.py` decides with
which checkpoint a query continues. Spark's log of offsets defines the stretch of each partition in a batch.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, get_args

from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kafkadur_coordinators.exclusive_settlement import Verdicts
from kafkadur_coordinators.settlement_states import SettlementState
from kafkadur_sharing.definition import Sharing
from kafkadur_sharing.errors import IllegalState, KafkadurError
from kafkadur_sharing.ranges import Ranges, joined, within, without
from kafkadur_spark.attachment import Whereabouts
from kafkadur_spark.batches import Batches, Stretches
from kafkadur_spark.checkpoints import Checkpoints
from kafkadur_spark.dispositions import Said, decide, exceptions
from kafkadur_spark.generations import Acking, Generation, OnAhead, Standing, choose
from kafkadur_spark.holder import Holder
from kafkadur_spark.query_progress import QueryListener, progress_of
from kafkadur_spark.redelivering import Redelivering
from kafkadur_spark.settlement_server import SettlementServer
from kafkadur_spark.several_queries import FAR, Offsets, from_record, to_record
from kafkadur_spark.sink import ADDRESS, SECRET, TOPIC, AckSink
from kafkadur_spark.source import checked, leave_out, loaded
from kafkadur_spark.waking import Waker, WakingTopic

_log = logging.getLogger("kafkadur.spark")

#: Delayed messages are left out until so long after they are due, ms: clocks differ.
_CLOCKS_MS: Final = 1_000
#: The end of a partition, for Spark.
_LATEST: Final = -1
#: Gives verdicts, by partition; returns how many offsets were settled.
Give = Callable[[Mapping[int, Verdicts]], int]


def read_stream(
    spark: SparkSession,
    holder: Holder,
    checkpoint_root: str,
    *,
    query: str | None = None,
    acking: Acking = "batch",
    on_ahead: OnAhead | None = None,
    wake: bool = False,
    options: Mapping[str, str] | None = None,
) -> Reading:
    """Read the unsettled messages of a held subscription as a stream, from the lowest offset on.

    Generation and number together identify a batch: a new generation counts from 0 again.

    If the subscription has a selector, the frame contains the messages that match; the others are settled
    with their batch.

    The frame is that of Spark's Kafka source (key, value, topic, partition, offset, timestamp, timestampType,
    headers if `includeHeaders` is set), read committed. `checkpoint_root` is a folder for the checkpoints of
    all subscriptions, local or on any file system that Spark can use; each subscription has its own, for one
    query at a time. `query` is one of the `queries` of the holder: each has its own checkpoint, and all have
    to be started for anything to be settled. `options` are further options of the source, such as
    `maxOffsetsPerTrigger`, and `kafka.<name>` for Kafka's Java client; the settings of the connection are
    translated for that client.

    `acking`: "batch" is for `Reading.ack_batch` in a foreachBatch; "progress" settles each batch after Spark
    has committed it, and at the start the batches that were committed before. `on_ahead` applies if messages
    that the query has passed are to be read again, because they were rolled back or the subscription was
    moved: "new" begins with another checkpoint and reads them, "redeliver" continues and leaves rolled back
    messages to `Reading.redelivering`, "refuse" raises `IllegalState`. None: "refuse" with "progress",
    because Spark's file sinks identify a batch by its number alone and skip numbers that they have seen, and
    for a query whose operators keep state; otherwise "new". Unsettled messages that Kafka has removed are
    settled and counted as expired.

    `wake` is for `Reading.redelivering`: if no new messages arrive, a batch begins for messages that were
    rolled back, within some seconds after they are due. For this the query also reads a small topic of its
    own, `kafkadur.waking...`, which is created if it does not exist; a checkpoint that was begun with it
    stays with it. Raises what `Holder.settle` raises, and `IllegalState` for an unknown `acking`, `on_ahead`
    or `query`.
    """
    _check_ways(acking, on_ahead, wake=wake)
    _check_query(holder, query)
    chosen = checked(options or {}, holder.display)
    checkpoints = Checkpoints(spark, checkpoint_root, holder.definition.key.group, query)
    _check_left(checkpoints, holder)
    settle = _settling(holder, query, checkpoints)
    last = _last(checkpoints, holder)
    if last is not None and acking == last.generation.acking == "progress" and _is_of(last, holder):
        settle(_settled(last.read_of(_there(last.since(None, last.last("commits") or {}), holder))))
    where = _without_lost(holder)
    unread_from: Mapping[int, int] | None = None
    if query is not None:  # another query may have rolled back messages that this one has not read yet
        unread_from = {} if last is None else dict(last.generation.starts) | (last.last("commits") or {})
    standing = _standing(holder, where.settlements, holder.settled_by(query), unread_from)
    generation = _generation(last, standing, on_ahead, acking)
    waking = WakingTopic(holder.settings.kafka, holder.definition.key, query)
    if wake and not generation.wakes:
        generation = replace(generation, wakes=True, revision=generation.revision + 1)
    if generation.wakes:
        waking.ensure()
    batches = Batches(checkpoints, generation, holder.definition.topic.name)
    if last is None or generation != last.generation:
        checkpoints.write(generation.number, generation.revision, generation.to_json())
    committed = batches.last("commits")
    position = dict(generation.starts) | (committed or {})
    if any(position.get(p, 0) < first for p, first in where.earliest.items()):
        chosen.setdefault("failOnDataLoss", "false")  # the lost messages are already counted
    frame = _frame(spark, holder, generation, committed or {}, chosen, waking=waking.name)
    reading = Reading(holder, batches, frame, settle=settle, query=query, acking=acking, committed=committed)
    if wake:
        reading.wake_with(waking)
    return reading


def _check_query(holder: Holder, query: str | None) -> None:
    """Refuse a query that the holder does not know, and none where it has several."""
    if query in (holder.queries or (None,)):
        return
    raise IllegalState(
        "The holder has no such query.",
        state=f"query {query!r}; its queries are {', '.join(holder.queries) or 'not named'}",
        owner=f"subscription {holder.display}",
        remedy="name all queries that have to settle a message: hold(..., queries=[...])",
    )


def _check_left(checkpoints: Checkpoints, holder: Holder) -> None:
    """Refuse to settle messages without a query that was one of several before."""
    left = sorted(checkpoints.queries() - {*holder.queries})
    if left:
        raise IllegalState(
            "Another query has a checkpoint here, and messages would be settled without it.",
            state=f"query {', '.join(left)}",
            owner=f"subscription {holder.display}",
            remedy="name it in hold(..., queries=[...]), or delete its folder query.<name> if it is not "
            "started any more",
        )


def _settling(holder: Holder, query: str | None, checkpoints: Checkpoints) -> Give:
    """Return the function that gives verdicts; begin the query if it is one of several."""
    if query is None:
        return holder.settle
    floors = {p: settlement.floor for p, settlement in holder.whereabouts().settlements.items()}
    truncated = holder.truncated()
    holder.begin_query(query, from_record(checkpoints.settled(), holder.definition, floors, truncated))

    def settle(verdicts: Mapping[int, Verdicts]) -> int:
        def record(settled: Offsets) -> None:
            checkpoints.write_settled(to_record(holder.definition, settled, truncated))

        return holder.settle_for(query, verdicts, record=record)

    settle({})  # what all have settled, if this is the last one to begin
    return settle


def _check_ways(acking: str, on_ahead: str | None, *, wake: bool) -> None:
    """Refuse unknown values, and a combination that cannot work."""
    known = acking in get_args(Acking) and (on_ahead is None or on_ahead in get_args(OnAhead))
    if known and not (acking == "progress" and (on_ahead == "redeliver" or wake)):
        return
    raise IllegalState(
        "Redelivered messages cannot be added to the batches of a query that is settled by progress."
        if known
        else "There is no such way of reading.",
        state=f"acking {acking!r}, on_ahead {on_ahead!r}, wake {wake}",
        owner="the query",
        remedy='use acking "batch" with reading.redelivering, or on_ahead "new"'
        if known
        else 'use acking "batch" or "progress", and on_ahead "new", "redeliver" or "refuse"',
    )


class Reading:
    """A held subscription as a stream; settles its batches."""

    def __init__(
        self,
        holder: Holder,
        batches: Batches,
        frame: DataFrame,
        *,
        settle: Give,
        query: str | None,
        acking: Acking,
        committed: Mapping[int, int] | None,
    ) -> None:
        """`read_stream` makes it. `settle` gives verdicts, for `query` if that is one of several.

        `committed` is the end of the last committed batch; None: there is none.
        """
        self._holder = holder
        self._batches = batches
        self._acking = acking
        #: end of the last committed batch that was settled, by partition
        self._settled = committed
        self._settling = threading.Lock()
        self._settlement_server: SettlementServer | None = None
        self._give = settle
        self._query = query
        self._redelivering = Redelivering(holder, batches, settled=lambda: holder.settled_by(query))
        #: the topic with which an idle query is woken; None: it is not
        self._waking: WakingTopic | None = None
        #: the messages; a query on it needs `checkpoint`
        self.frame = frame

    def wake_with(self, topic: WakingTopic) -> None:
        """Part of `read_stream`: wake the query while it is idle, with a topic that its frame reads."""
        self._waking = topic

    @property
    def checkpoint(self) -> str:
        """The checkpointLocation of the query."""
        return self._batches.checkpoints.of(self._batches.generation.number)

    @property
    def generation(self) -> int:
        """The number of this checkpoint of the subscription, from 1."""
        return self._batches.generation.number

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start a query on the frame with its checkpoint; it is stopped when the subscription is lost.

        Its listeners are removed from the Spark session when the holder's context is left.
        """
        streams = self.frame.sparkSession.streams
        listeners: list[QueryListener] = []
        if self._acking == "progress":
            listeners.append(QueryListener(lambda *_: self._settle_committed()))
            streams.addListener(listeners[0])  # before the first batch can be committed
        query = writer.option("checkpointLocation", self.checkpoint).start()
        topic = self._holder.definition.topic.name

        def tell(run: str, progress: StreamingQueryProgress | None) -> None:
            if run == str(query.runId):
                told = (
                    None
                    if progress is None
                    else progress_of(progress, topic, self.generation, query=self._query)
                )
                self._holder.tell(told, query=self._query)

        listeners.append(QueryListener(tell))
        streams.addListener(listeners[-1])
        waker: Waker | None = None
        if self._waking is not None:
            waker = Waker(query, due=self._redelivering.rolled_back, write=self._waking.write)

        def end() -> None:
            if waker is not None:
                waker.close()
            try:
                query.stop()
                for listener in listeners:
                    streams.removeListener(listener)
                if self._acking == "progress":
                    self._settle_committed()
            except Exception as error:  # noqa: BLE001 - the query's owner gets its error, or Spark has gone
                _log.info("query %s: %s", query.id, error)

        self._holder.at_end(end)
        return query

    def _settle_committed(self) -> None:
        """Settle what Spark has committed since the last call; after an error, the next call settles it."""
        try:
            with self._settling:
                ends = self._batches.last("commits")
                if ends is not None:
                    since = self._batches.since(self._settled, ends)
                    self._give(_settled(self._batches.read_of(since)))
                    self._settled = ends
        except KafkadurError as error:
            _log.warning("what Spark has committed is not settled: %s", error)

    def ack_batch(
        self,
        batch: int,
        *,
        rolled_back: Iterable[tuple[int, int]] = (),
        rejected: Iterable[tuple[int, int, str]] = (),
    ) -> int:
        """Settle all offsets of a batch, including those that a filter dropped; return their number.

        One of several queries settles them for itself, and the number is that of all queries. A repeated call
        settles nothing twice. `rolled_back` are (partition, offset): these messages stay unsettled, an
        attempt is counted, and they are redelivered in the next generation, or with a later batch if
        `redelivering` is used. `rejected` are (partition, offset, reason), at most 10,000: these are written
        to the dead-letter topic before they are settled. Raises `LeaseLost` if the subscription is lost: its
        unsettled messages are redelivered; `CoordinatorUnavailable` or `StateLost` if Redis or Kafka do not
        answer; and `IllegalState` for a batch of another query, for an offset that is not in the batch, and
        if the reading settles by progress.
        """
        return self._settle(batch, exceptions(rolled_back, rejected), all_else=True)

    def redelivering(self, work: Callable[[DataFrame, int], object]) -> Callable[[DataFrame, int], None]:
        """Return a function for foreachBatch that adds to each batch the unsettled messages before it.

        These are the rolled back messages that are due, and all others that no earlier batch has settled: so
        settle each batch before `work` returns. `work` is called with the frame of both, which has the
        columns of the source, and with the number of the batch; `ack_batch` settles both. At most a thousand
        messages, and no further ones after about 16 MB, are added to one batch; the rest, and messages that
        become due later, are added to the next one. With `on_ahead="redeliver"` a restarted query continues
        with its checkpoint and the state of its operators, and its first batch contains the rolled back
        messages. Raises `IllegalState` for a frame that was transformed before, and if the reading settles by
        progress.
        """
        self._check_batches()

        def both(frame: DataFrame, batch: int) -> None:
            if frame.columns != self.frame.columns:
                raise IllegalState(
                    "Only the frame that is read can be combined with redelivered messages.",
                    state=f"columns {', '.join(frame.columns)}",
                    owner="the query",
                    remedy="write reading.frame.writeStream, and do the work inside the function",
                )
            self._holder.check()
            joined_frame = self._redelivering.join(frame, batch)
            if joined_frame is not None:
                work(joined_frame, batch)

        return both

    @property
    def sink(self) -> dict[str, str]:
        """The options of the sink `format("kafkadur")`, which settles the offsets in the rows of a query.

        A row has the integers of a single offset (partition, offset) or of a stretch (partition, start, end),
        and optionally the strings topic, disposition - ack (default), rollback, reject or leave - and reason.
        Offsets that no row names stay unsettled and are redelivered in the next generation; the further
        option `unlisted` = `ack` settles them. A query needs it if it filters or names exceptions only, and
        for a topic with offsets that have no record (transactions, compaction), which no row can name. The
        executors need kafkadur and pyarrow. Raises `IllegalState` if the reading settles by progress.
        """
        self._check_batches()
        if self._settlement_server is None:
            self.frame.sparkSession.dataSource.register(AckSink)
            self._settlement_server = SettlementServer(
                lambda batch, said, all_else: self._settle(batch, said, all_else=all_else)
            )
            self._holder.at_end(self._settlement_server.close)
        server = self._settlement_server
        topic = self._holder.definition.topic.name
        return {ADDRESS: server.address, TOPIC: topic, SECRET: server.secret}

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
                "A message that the subscription leaves out has no row that could settle it.",
                state="no_local" if held.selector is None else f"selector {held.selector!r}",
                owner="the query",
                remedy='set the option unlisted="ack" of the sink; the disposition "leave" keeps a message '
                "unsettled",
            )
        stretches = self._batches.stretches(batch)
        besides = self._redelivering.besides(batch)
        there = {p: [pair] for p, pair in stretches.items()}
        read = _together(self._batches.read_of(stretches), besides)
        chosen = decide(said, _together(there, besides), read, all_else=all_else, what=f"batch {batch}")
        if chosen.rejected:
            self._holder.send_to_dead_letters(chosen.rejected)
        dead = {p: joined((o, o + 1) for o in some) for p, some in chosen.rejected.items()}
        settled = {p: joined([*chosen.acked.get(p, ()), *dead.get(p, ())]) for p in read}
        back = chosen.rolled_back
        verdicts = {p: Verdicts(some, back.get(p, ())) for p, some in settled.items()}
        return self._give({p: said for p, said in verdicts.items() if said.end})


def _last(checkpoints: Checkpoints, holder: Holder) -> Batches | None:
    """Return the batches of the last generation; None if there is none."""
    text = checkpoints.last()
    if text is None:
        return None
    return Batches(checkpoints, Generation.from_json(text), holder.definition.topic.name)


def _is_of(batches: Batches, holder: Holder) -> bool:
    """Return whether a generation belongs to this life of the subscription."""
    held, found = holder.definition, batches.generation
    return (found.subscription_id, found.epoch, found.topic_id) == (held.id, held.epoch, held.topic.id)


def _together(some: Mapping[int, Ranges], others: Mapping[int, Ranges]) -> dict[int, Ranges]:
    """Return the unions of sets by partition."""
    return {p: joined([*some.get(p, ()), *others.get(p, ())]) for p in {*some, *others}}


def _settled(read: Mapping[int, Ranges]) -> dict[int, Verdicts]:
    return {partition: Verdicts(ranges) for partition, ranges in read.items()}


def _without_lost(holder: Holder) -> Whereabouts:
    """Settle unsettled messages that Kafka has removed as expired; return the new settlement states."""
    where = holder.whereabouts()
    lost = {
        partition: Verdicts(expired=[(settlement.floor, where.earliest[partition])])
        for partition, settlement in where.settlements.items()
        if settlement.floor < where.earliest.get(partition, 0)
    }
    if not lost:
        return where
    _log.warning(
        "%s: Kafka removed messages that were not settled, before %s", holder.display, where.earliest
    )
    holder.settle(lost)
    return holder.whereabouts()


def _there(stretches: Stretches, holder: Holder) -> Stretches:
    """Return the part of stretches that Kafka has: it may have lost the end of a partition."""
    ends = holder.ends()
    cut = {p: (start, min(end, ends.get(p, 0))) for p, (start, end) in stretches.items()}
    return {p: (start, end) for p, (start, end) in cut.items() if start < end}


def _standing(
    holder: Holder,
    settlements: Mapping[int, SettlementState],
    settled: Offsets,
    unread_from: Mapping[int, int] | None,
) -> Standing:
    """Return the state for a query, which does not read again the offsets in `settled`.

    Delayed messages are left out; if `unread_from` is given, only those before these offsets.
    """
    held = holder.definition
    now = round(time.time() * 1000) - _CLOCKS_MS
    floors: dict[int, int] = {}
    holes: dict[int, list[tuple[int, int]]] = {}
    for partition, settlement in settlements.items():
        unread = FAR if unread_from is None else unread_from.get(partition, 0)
        ready = [
            (item.start if item.due <= now else max(item.start, unread), item.end)
            for item in settlement.waiting
        ]
        to_read = without(joined([*ready, (settlement.next, FAR)]), settled.get(partition, ()))
        floors[partition] = to_read[0][0]
        holes[partition] = without([(floors[partition], to_read[-1][0])], to_read)
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
    if chosen.number != last.generation.number:
        if on_ahead == "refuse":
            raise IllegalState(
                "The checkpoint is of another subscription, or of an earlier life of this one.",
                state=f"generation {last.generation.number}",
                owner="the checkpoint",
                remedy='use on_ahead="new": the state of operators begins anew, and a sink that knows '
                "batches by their numbers alone has to write to another place, because these begin again",
            )
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
    *,
    waking: str,
) -> DataFrame:
    topic = holder.definition.topic
    starts = {topic.name: {str(p): generation.starts.get(p, 0) for p in range(topic.partitions)}}
    topics = [topic.name]
    if generation.wakes:
        topics.append(waking)
        starts[topics[-1]] = {"0": _LATEST}
    reader = spark.readStream.format("kafka").option("subscribe", ",".join(topics))
    reader = reader.option("startingOffsets", json.dumps(starts))
    frame = loaded(reader, holder, options)
    if generation.wakes:
        frame = frame.where(functions.col("topic") == topic.name)
    left_out = {p: within(some, committed.get(p, 0), FAR) for p, some in generation.skip.items()}
    return leave_out(spark, frame, left_out)
