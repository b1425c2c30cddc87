"""Reading Kafka for a member: a tail reader that follows partitions, and a point reader for single ranges.

Each owns one Consumer and one thread: while a thread polls, calls from another one do not return for seconds.
Others only put commands into a queue. Records go to the member (`consumer/intake.py`); which partitions are
followed from where is decided there. The tail reader also mirrors floors to Kafka as group offsets.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kafkadur.fetch.buffer import NOWHERE, Mark
from kafkadur.runtime.stages import Probe, Stage, no_probe
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.kafka_refusal import refused, tell
from kafkadur_coordinators.lost_brokers import SILENT_S, answers
from kafkadur_coordinators.topics import mirror_floors
from kafkadur_sharing.errors import InternalError, KafkadurError, StateLost

_log = logging.getLogger("kafkadur.readers")

#: Records asked for in one call.
_AT_ONCE = 2_000
#: Longest time a call waits for records, seconds: commands wait as long.
_WAIT = 0.05
#: Longest time to wait for a broker that knows the topic's leaders, seconds.
_FIND_LEADERS = 1.0
#: Longest wait for where a partition begins and ends, seconds.
_WATERMARKS = 10.0
#: Seconds until Kafka is asked again where a partition ends, after it did not answer.
_FIND_AGAIN = 0.2
#: Seconds between two mirrorings of the floor.
_MIRROR_EVERY = 1.0
_EOF = KafkaError._PARTITION_EOF  # noqa: SLF001 - the library's name for it

#: librdkafka settings without which catching up stalls (its default backs off a second whenever the queue
#: is full).
DEFAULTS: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 50,
    "fetch.error.backoff.ms": 50,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "topic.metadata.refresh.interval.ms": 30_000,
}


def consumer_config(kafka: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Configuration of a reader: defaults, then the user's, then what must not be changed."""
    fixed = ("enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof", "auto.offset.reset")
    return {**DEFAULTS, **kafka, **{name: DEFAULTS[name] for name in fixed}, "group.id": group}


def by_partition(messages: list[Message]) -> list[tuple[int, list[Message]]]:
    """Split what one call returned by partition.

    The order within a partition is kept. Events count as records.
    """
    partitions = list(map(Message.partition, messages))
    first = partitions[0]
    if partitions.count(first) == len(partitions):
        return [(first or 0, messages)]
    return [
        (partition or 0, list(compress(messages, map(partition.__eq__, partitions))))
        for partition in dict.fromkeys(partitions)
    ]


class ReadingFor(Protocol):
    """Whom readers read for: a member, or what stands before one (`key_router.py`)."""

    @property
    def display(self) -> str:
        """Name of the subscription for people."""
        ...

    @property
    def buffered(self) -> int:
        """Records read and not handed out."""
        ...

    @property
    def read_ahead(self) -> int:
        """Records that may be held back before the reader pauses."""
        ...

    def fail(self, error: KafkadurError) -> None:
        """Reading cannot go on."""

    def add_records(self, partition: int, messages: list[Message], number: int) -> None:
        """Records that the tail reader read (not empty, in order)."""

    def reach(self, partition: int, offset: int, number: int) -> None:
        """The tail reader came to the end of the partition."""

    def end_at(self, partition: int, offset: int, number: int) -> None:
        """The log of a partition that is followed ends at `offset` now."""

    def found_end(self, partition: int, offset: int, incarnation: int) -> None:
        """The log of a partition ended at `offset` when Kafka was asked under this incarnation."""

    def lead(self, partition: int, epoch: int, number: int) -> None:
        """What is read from now on was written under this leader epoch."""

    def cut(self, partition: int, offset: int) -> None:
        """Kafka lost what lay at or beyond `offset`."""

    def expire(self, partition: int, offset: int) -> None:
        """Kafka does not keep what lies before `offset` any more."""

    def add_range_records(self, token: int, messages: list[Message], reached: int) -> bool:
        """What the point reader read for a lease; whether it is to go on."""
        ...

    def floors(self) -> dict[int, int]:
        """Lowest unsettled offsets that may be mirrored."""
        ...


class _Reader:
    """What both readers share: a thread, its commands, and how it ends."""

    def __init__(
        self,
        *,
        name: str,
        config: Mapping[str, Any],
        topic: str,
        fail: Callable[[KafkadurError], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = dict(config)
        self._error_cb: Callable[[KafkaError], None] | None = self._config.pop("error_cb", None)
        #: Kafka did not answer the last time anything was heard of it.
        self._silent = False
        self._topic = topic
        self._fail = fail
        self._commands: deque[Callable[[Consumer], None]] = deque()
        self._work = threading.Event()
        self._closing = False
        self._found = False
        self._monotonic = monotonic
        #: when Kafka was last heard, or asked
        self._heard_at = 0.0
        #: where partitions that nothing was read of yet begin
        self._starts: dict[int, TopicPartition] = {}
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and close its Consumer."""
        self._closing = True
        self._work.set()
        if self._thread.is_alive():
            self._thread.join()

    def _put(self, command: Callable[[Consumer], None]) -> None:
        self._commands.append(command)
        self._work.set()

    def _main(self) -> None:
        try:
            self._consumer = self._make()
        except Exception as error:  # noqa: BLE001 - whatever it is: nobody waits for a thread that ended unseen
            self._give_up(error)
            return
        self._heard_at = self._monotonic()
        try:
            self._loop()
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)
        finally:
            self._consumer.close()

    def _give_up(self, error: Exception) -> None:
        """Tell who is read for that reading cannot go on."""
        if isinstance(error, KafkadurError):
            self._fail(error)
        elif isinstance(error, KafkaException):
            self._fail(_broken(str(error.args[0]), self._topic))
        else:
            _log.error("reading %s met a defect", self._topic, exc_info=error)
            self._fail(InternalError.by(error, f"the reader of topic {self._topic}"))

    def _make(self) -> Consumer:
        return Consumer({**self._config, "error_cb": self._hear}, logger=client_log)

    def _loop(self) -> None:
        raise NotImplementedError

    def _look_after(self) -> None:
        """Make the Consumer anew if it has lost Kafka for good and another one finds it.

        While Kafka itself is away nothing changes: then the other one gets no answer either.
        """
        now = self._monotonic()
        if now - self._heard_at < SILENT_S:
            return
        if not answers(self._consumer, self._topic):
            new = self._make()
            # Kafka may have come back just now: then this one finds it, too
            if answers(new, self._topic) and not answers(self._consumer, self._topic):
                self._replace(new)
            else:
                new.close()
        self._heard_at = self._monotonic()

    def _replace(self, new: Consumer) -> None:
        """Let another Consumer read on where this one stands."""
        old, self._consumer = self._consumer, new
        _log.warning("Kafka's client of topic %s does not find Kafka any more; it was made anew", self._topic)
        read = old.position(old.assignment())
        new.incremental_assign([p if p.offset >= 0 else self._starts[p.partition] for p in read])
        # what it was still to commit may keep it for most of a minute
        threading.Thread(target=old.close, name=f"{self._thread.name}-old", daemon=True).start()

    def _hear(self, error: KafkaError) -> None:
        """Tell when no broker answers any more; the user's own `error_cb` hears everything."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self._silent:  # noqa: SLF001 - as above
            self._silent = True
            _log.warning(
                "Kafka, which keeps the messages, does not answer. State: %s. Owner: topic %s. Remedy: check "
                "that Kafka runs and can be reached; reading goes on by itself.",
                error.str(),
                self._topic,
            )
        tell(self._error_cb, error)

    def _begin_anew(self, consumer: Consumer, event: Message, member: ReadingFor, mark: Mark) -> int | None:
        """Go on where Kafka keeps a partition, after it did not have the offset that was to be read.

        Returns where that is: what lies before is not there. None: the log does not go on behind what was
        read (`mark`), it was cut off, and the member was told.
        """
        partition, wanted = event.partition() or 0, event.offset()
        try:
            first, end = consumer.get_watermark_offsets(
                TopicPartition(self._topic, partition), timeout=_WATERMARKS
            )
        except KafkaException as failed:  # it is tried once more: the same event comes again
            _log.info("looking where %s[%d] begins: %s", self._topic, partition, failed)
            first, end = 0, mark.offset if wanted is None else wanted
        if wanted is None or wanted > end:  # None: leader epochs do not agree
            consumer.incremental_unassign([TopicPartition(self._topic, partition)])
            self._cut(partition, mark if wanted is None else Mark(wanted, mark.epoch), end, member)
            return None
        if first > wanted:
            member.expire(partition, first)
        start = max(first, wanted)
        self._starts[partition] = TopicPartition(self._topic, partition, start)
        consumer.incremental_unassign([TopicPartition(self._topic, partition)])
        consumer.incremental_assign([self._starts[partition]])
        return start

    def _cut(self, partition: int, mark: Mark, end: int, member: ReadingFor) -> None:
        """Find out from where on the log is another one than what was read, and tell the member.

        `end` is its end: without a leader epoch nothing else is known.
        """
        offset = min(mark.offset, end) if mark.epoch < 0 else self._find_cut(partition, mark)
        if offset is None and self._closing:
            return
        if offset is None:
            self._put(
                lambda _: self._cut(partition, mark, end, member)
            )  # what else is read goes on meanwhile
        else:
            member.cut(partition, offset)

    def _find_cut(self, partition: int, mark: Mark) -> int | None:
        """First offset at which the log is not what was read before `mark`; None: Kafka did not say in time.

        Another Consumer is asked, which is allowed to go where librdkafka says that the log is the same.
        """
        config = {
            **self._config,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "error_cb": _say_nothing,
        }
        consumer = Consumer(config, logger=client_log)
        deadline = time.monotonic() + _WATERMARKS
        try:
            consumer.assign([TopicPartition(self._topic, partition, mark.offset, leader_epoch=mark.epoch)])
            while time.monotonic() < deadline and not self._closing:
                message = consumer.poll(_WAIT)
                error = None if message is None else message.error()
                if message is None or (error is not None and error.code() != _EOF):
                    continue
                return min(message.offset() or 0, mark.offset)
        finally:
            consumer.close()
        _log.warning("looking where %s[%d] was cut off: Kafka did not say; once more", self._topic, partition)
        return None

    def _heard(self) -> None:
        """Note that Kafka answers."""
        self._heard_at = self._monotonic()
        if self._silent:
            self._silent = False
            _log.warning("Kafka answers again: topic %s", self._topic)

    def _obey(self, consumer: Consumer) -> None:
        self._work.clear()
        for _ in range(len(self._commands)):  # one that has to be given once more waits for the others
            self._commands.popleft()(consumer)

    def _find_leaders(self, consumer: Consumer) -> None:
        """Ask where the topic is, right after the first assignment.

        librdkafka asks by itself only if it connects later than that, else once a second.
        """
        if self._found:
            return
        self._found = True
        try:
            consumer.list_topics(self._topic, timeout=_FIND_LEADERS)
        except KafkaException as error:
            _log.info("looking for %s: %s", self._topic, error)


def _broken(state: str, topic: str) -> StateLost:
    return StateLost(
        "Kafka can't be read.",
        state=state,
        owner=f"topic {topic}",
        remedy="correct what Kafka complains about and subscribe again; nothing is lost",
    )


def _say_nothing(_error: KafkaError) -> None:
    """Brokers that are away are told of by the reader itself."""


class TailReader(_Reader):
    """Follows partitions from an offset on and gives the member every record."""

    def __init__(
        self,
        *,
        member: ReadingFor,
        kafka: Mapping[str, Any],
        topic: str,
        group: str,
        floor_metadata: str,
        monotonic: Callable[[], float] = time.monotonic,
        probe: Probe = no_probe,
    ) -> None:
        """Made with the member it reads for; `start` begins. `probe` is for tests (`stages.py`)."""
        config = consumer_config(kafka, group)
        super().__init__(
            name=f"kafkadur-tail-{topic}", config=config, topic=topic, fail=member.fail, monotonic=monotonic
        )
        self._member = member
        self._metadata = floor_metadata
        self._probe = probe
        self._followed: dict[int, int] = {}
        #: what logs must agree with: how far they were read before this reader began
        self._marks: dict[int, Mark] = {}
        #: leader epoch of what was read last; missing: to be looked at
        self._epochs: dict[int, int] = {}
        #: the record that was read last
        self._ends: dict[int, Message] = {}
        self._mirrored: dict[int, int] = {}
        self._mirror_at = 0.0
        #: partitions whose end is to be asked for, each under this incarnation; and when (monotonic seconds)
        self._endless: dict[int, int] = {}
        self._find_at = 0.0

    def follow(self, partition: int, offset: int, number: int, mark: Mark = NOWHERE) -> None:
        """Read `partition` from `offset` on; a log that does not agree with `mark` was cut off."""

        def assign(consumer: Consumer) -> None:
            self._probe(Stage.FOLLOW)
            if partition in self._followed:
                consumer.incremental_unassign([TopicPartition(self._topic, partition)])
            self._followed[partition] = number
            self._marks[partition] = mark
            self._epochs.pop(partition, None)
            self._ends.pop(partition, None)
            start = TopicPartition(self._topic, partition, offset)
            if mark.epoch >= 0:  # librdkafka asks whether the log is still the same up to there
                start = TopicPartition(self._topic, partition, offset, leader_epoch=mark.epoch)
            self._starts[partition] = start
            consumer.incremental_assign([start])

        self._put(assign)

    def compare(self, partition: int, mark: Mark) -> None:
        """What is read of `partition` must agree with `mark`, too."""

        def note(_: Consumer) -> None:
            self._marks[partition] = max(mark, self._marks.get(partition, NOWHERE))
            self._epochs.pop(partition, None)

        self._put(note)

    def unfollow(self, partition: int) -> None:
        """Stop reading `partition`."""

        def unassign(consumer: Consumer) -> None:
            if self._followed.pop(partition, None) is not None:
                consumer.incremental_unassign([TopicPartition(self._topic, partition)])

        self._put(unassign)

    def find_end(self, partition: int, incarnation: int) -> None:
        """Ask Kafka where the log of `partition` ends, until it answers; the member is told."""

        def note(_: Consumer) -> None:
            self._endless[partition] = incarnation
            self._find_at = 0.0

        self._put(note)

    def _find_ends(self, consumer: Consumer) -> None:
        if not self._endless or self._monotonic() < self._find_at:
            return
        for partition, incarnation in list(self._endless.items()):
            place = TopicPartition(self._topic, partition)
            try:
                _, end = consumer.get_watermark_offsets(place, timeout=_WATERMARKS)
            except KafkaException as failed:
                _log.info("looking where %s[%d] ends: %s", self._topic, partition, failed)
                self._find_at = self._monotonic() + _FIND_AGAIN
                return
            del self._endless[partition]
            self._member.found_end(partition, end, incarnation)

    def _replace(self, new: Consumer) -> None:
        super()._replace(new)
        self._mirrored.clear()  # the last ones may not have reached Kafka

    def _loop(self) -> None:
        member = self._member
        while not self._closing:
            consumer = self._consumer
            if self._commands:
                self._obey(consumer)
                self._find_leaders(consumer)
            self._find_ends(consumer)
            self._mirror(consumer)
            if not self._followed:
                self._work.wait(_WAIT)
                self._work.clear()
                continue
            if member.buffered >= member.read_ahead:
                self._work.wait(
                    0.002
                )  # the member takes records out meanwhile; librdkafka keeps its own queue
                self._work.clear()
                continue
            messages = consumer.consume(_AT_ONCE, 0)
            if not messages:
                message = consumer.poll(_WAIT)
                if message is None:
                    self._look_after()
                    continue
                messages = [message, *consumer.consume(_AT_ONCE, 0)]
            self._heard()
            for partition, group in by_partition(messages):
                if partition in self._followed:
                    self._tell_end(consumer, partition)
                    self._give(consumer, partition, group)
        self.mirror_now(self._consumer)  # closing the Consumer waits for it

    def _tell_end(self, consumer: Consumer, partition: int) -> None:
        """Say where the log ended when Kafka last answered.

        An event of its end does not do alone: while a record comes within every `fetch.wait.max.ms`, there
        is none, however far the reader has come.
        """
        _, end = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
        if end >= 0:
            self._member.end_at(partition, end, self._followed[partition])

    def _give(self, consumer: Consumer, partition: int, messages: list[Message]) -> None:
        number = self._followed[partition]
        self._probe(Stage.READ)
        if not any(map(Message.error, messages)):
            self._give_records(consumer, partition, messages, number)
            return
        start = 0
        for index, error in enumerate(map(Message.error, messages)):
            if error is None:
                continue
            if index > start and not self._give_records(consumer, partition, messages[start:index], number):
                return
            start = index + 1
            if error.code() == _EOF:
                self._probe(Stage.END)
                self._member.reach(partition, messages[index].offset() or 0, number)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the library's name for it
                kept = self._begin_anew(consumer, messages[index], self._member, self._read_to(partition))
                if kept is None:
                    del self._followed[partition]
                    return
                self._member.reach(partition, kept, number)
            else:
                self._complain(error, partition)
        if start < len(messages):
            self._give_records(consumer, partition, messages[start:], number)

    def _give_records(self, consumer: Consumer, partition: int, messages: list[Message], number: int) -> bool:
        """Give the member records, unless they show that the log is not the one that was read before."""
        epoch = messages[-1].leader_epoch()
        if epoch is not None and epoch != self._epochs.get(partition):  # once a leader
            mark = self._marks.get(partition, NOWHERE)
            strange = mark.epoch >= 0 and any(
                (message.offset() or 0) < mark.offset and (message.leader_epoch() or 0) > mark.epoch
                for message in messages
            )
            if strange:
                del self._followed[partition]
                consumer.incremental_unassign([TopicPartition(self._topic, partition)])
                self._cut(partition, mark, mark.offset, self._member)
                return False
            self._epochs[partition] = epoch
            self._member.lead(partition, epoch, number)
        self._ends[partition] = messages[-1]
        self._member.add_records(partition, messages, number)
        return True

    def _read_to(self, partition: int) -> Mark:
        """How far a partition was read, here or before."""
        mark, last = self._marks.get(partition, NOWHERE), self._ends.get(partition)
        if last is None:
            return mark
        return max(mark, Mark((last.offset() or 0) + 1, self._epochs.get(partition, -1)))

    def _complain(self, error: KafkaError, partition: int) -> None:
        if not error.retriable() and error.code() in (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError._FATAL,  # noqa: SLF001 - the library's name for it
        ):
            raise refused(error, f"topic {self._topic}") or _broken(error.str(), self._topic)
        _log.info("reading %s[%d]: %s", self._topic, partition, error.str())

    def _mirror(self, consumer: Consumer) -> None:
        now = self._monotonic()
        if not self._metadata or now < self._mirror_at:
            return
        self._mirror_at = now + _MIRROR_EVERY
        self.mirror_now(consumer)

    def mirror_now(self, consumer: Consumer) -> None:
        """Commit floors that moved since the last time; a failure is left to the next time."""
        if not self._metadata:
            return
        floors = {p: o for p, o in self._member.floors().items() if self._mirrored.get(p) != o}
        try:
            mirror_floors(consumer, self._topic, floors, self._metadata)
        except KafkaException as error:
            _log.info("mirroring floors of %s: %s", self._member.display, error)
            return
        self._mirrored |= floors


class PointReader(_Reader):
    """Reads single ranges: redeliveries, and leases on partitions that the member does not follow."""

    def __init__(self, *, member: ReadingFor, kafka: Mapping[str, Any], topic: str, group: str) -> None:
        """Made with the member it reads for; the thread starts with the first range."""
        config = consumer_config(kafka, group)
        config["fetch.wait.max.ms"] = 10
        config["queued.min.messages"] = 100
        config["fetch.message.max.bytes"] = 262_144
        super().__init__(name=f"kafkadur-point-{topic}", config=config, topic=topic, fail=member.fail)
        self._member = member
        self._waiting: deque[tuple[int, int, int, int]] = deque()

    def read_range(self, partition: int, start: int, end: int, token: int) -> None:
        """Read [start, end) of `partition` for the lease `token`."""
        self._waiting.append((partition, start, end, token))
        if self._thread.ident is None and not self._closing:  # once: it may have ended for good
            self._thread.start()
        self._work.set()

    def _loop(self) -> None:
        while not self._closing:
            if not self._waiting:
                self._work.wait()
                self._work.clear()
                continue
            self._read(*self._waiting.popleft())

    def _read(self, partition: int, start: int, end: int, token: int) -> None:
        self._starts[partition] = TopicPartition(self._topic, partition, start)
        self._heard_at = self._monotonic()  # nothing was waited for
        self._consumer.incremental_assign([self._starts[partition]])
        self._find_leaders(self._consumer)
        reached = start
        try:
            while not self._closing:
                consumer = self._consumer
                messages = consumer.consume(min(_AT_ONCE, max(end - reached, 1)), 0)
                if not messages:
                    message = consumer.poll(_WAIT)
                    messages = [] if message is None else [message]
                if messages:
                    self._heard()
                else:
                    self._look_after()
                records, reached, gone = self._sort_out(messages, reached)
                if gone is not None:
                    # of the leader nothing is known here: whoever follows the partition finds out exactly
                    begins = self._begin_anew(consumer, gone, self._member, Mark(reached))
                    if begins is None:
                        return
                    reached = begins
                if not self._member.add_range_records(token, records, reached):
                    return
        finally:
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def _sort_out(self, messages: list[Message], reached: int) -> tuple[list[Message], int, Message | None]:
        """The records among messages and events, and the offset up to which they tell of the partition.

        Third, the event that says that Kafka does not keep the offset that was to be read.
        """
        records: list[Message] = []
        gone: Message | None = None
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                reached = (message.offset() or 0) + 1
            elif error.code() == _EOF:
                reached = max(reached, message.offset() or 0)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the library's name for it
                gone = message
            elif (refusal := refused(error, f"topic {self._topic}")) is not None:
                raise refusal
            else:
                _log.info("reading %s: %s", self._topic, error.str())
        return records, reached, gone


class Readers:
    """The two readers of a member, as the member sees them."""

    def __init__(self, tail: TailReader, point: PointReader) -> None:
        """Join two readers."""
        self._tail = tail
        self._point = point
        self.follow = tail.follow
        self.compare = tail.compare
        self.unfollow = tail.unfollow
        self.find_end = tail.find_end
        self.read_range = point.read_range

    def start(self) -> None:
        """Start reading."""
        self._tail.start()

    def close(self) -> None:
        """Mirror the last floors and stop."""
        self._point.close()
        self._tail.close()
