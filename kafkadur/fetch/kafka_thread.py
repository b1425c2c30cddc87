"""The base of both readers: a thread that owns one Kafka consumer.

While a thread polls, calls of another thread to the same consumer do not return for seconds. So other threads
only put commands into a queue. Records go to the member (`consumer/intake.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kafkadur.fetch.buffer import Mark, Records
from kafkadur.fetch.native import new_consumer
from kafkadur.fetch.reader_log import ReaderLog
from kafkadur.runtime.flag import Flag
from kafkadur_coordinators.kafka_refusal import tell
from kafkadur_coordinators.lost_brokers import SILENT_S, answers
from kafkadur_sharing.errors import InternalError, KafkadurError, ResourceLimit, StateLost

_log = logging.getLogger("kafkadur.readers")

#: Records asked for in one call, unless the receiver says it.
AT_ONCE = 2_000
#: Longest time a call waits for records, seconds. Commands wait as long for confluent-kafka's client.
WAIT = 0.05
#: Longest time to wait for a broker that knows the topic's leaders, seconds.
_FIND_LEADERS = 1.0
#: Longest time to wait for the first command before the Consumer is made, seconds.
_FIRST_WORK_S = 0.2
#: Longest wait for where a partition begins and ends, seconds.
WATERMARKS = 10.0
#: Seconds after which a warning says again that Kafka does not answer.
_TOLD_EVERY = 60.0
EOF = KafkaError._PARTITION_EOF  # noqa: SLF001 - the library's name for it

#: Default librdkafka settings. With its own ones catching up stalls: it backs off a second whenever the queue
#: is full.
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
    "topic.metadata.refresh.interval.ms": 10_000,
}


def consumer_config(kafka: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Configuration of a reader: defaults, then the user's, then settings that must not be changed."""
    fixed = ("enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof", "auto.offset.reset")
    return {**DEFAULTS, **kafka, **{name: DEFAULTS[name] for name in fixed}, "group.id": group}


class Receiver(Protocol):
    """The receiver of a reader's records: a member, or the router in front of one (`key_router.py`)."""

    @property
    def display(self) -> str:
        """Name of the subscription for people."""
        ...

    @property
    def at_once(self) -> int:
        """Records that may be read in one call.

        Between two calls a reader waits for Python's lock, so long calls are faster.
        """
        ...

    @property
    def has_enough(self) -> bool:
        """Whether the reader is to pause: enough that was read was not dispatched."""
        ...

    def fail(self, error: KafkadurError) -> None:
        """Reading cannot go on."""

    def add_records(self, partition: int, messages: Records, number: int) -> None:
        """Records that the tail fetcher read (not empty, in order)."""

    def reach(self, partition: int, offset: int, number: int) -> None:
        """The tail fetcher came to the end of the partition."""

    def pass_by(self, partition: int, offset: int, number: int) -> None:
        """There are no records before `offset` but those that were added; more may follow."""

    def end_at(self, partition: int, offset: int, number: int) -> None:
        """The log of a partition that is followed ends at `offset` now."""

    def found_end(self, partition: int, offset: int, incarnation: int) -> None:
        """The log of a partition ended at `offset` when Kafka was asked under this incarnation."""

    def lead(self, partition: int, epoch: int, number: int) -> None:
        """Records that come from now on were written under this leader epoch."""

    def grown(self, partitions: int) -> None:
        """The topic has so many partitions."""

    def cut(self, partition: int, offset: int) -> None:
        """Kafka lost the records at or beyond `offset`."""

    def expire(self, partition: int, offset: int) -> None:
        """Kafka has removed the records before `offset`."""

    def add_range_records(self, token: int, messages: Records, reached: int) -> bool:
        """Records that the range fetcher read for a lease; whether it is to go on."""
        ...

    def floors(self) -> dict[int, int]:
        """Lowest unsettled offsets that may be mirrored."""
        ...


class KafkaThread:
    """A thread with a consumer and a queue of commands."""

    def __init__(
        self,
        *,
        name: str,
        config: Mapping[str, Any],
        topic: str,
        topic_id: str,
        fail: Callable[[KafkadurError], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader_log = ReaderLog(topic, topic_id, config)
        self._config = dict(self._reader_log.config)
        self._error_cb: Callable[[KafkaError], None] | None = self._config.pop("error_cb", None)
        #: whether Kafka does not answer at the moment, and when that was logged
        self._silent = False
        self._told_at = 0.0
        self._topic = topic
        self._fail = fail
        self._commands: deque[Callable[[Consumer], None]] = deque()
        self._work = Flag()
        self._closing = False
        #: whether the leaders of the topic were asked for
        self._found = False
        #: whether the Consumer was made just now: it asks for leaders when it connects
        self._just_made = True
        self._monotonic = monotonic
        #: when Kafka was last heard, or asked
        self._heard_at = 0.0
        #: offsets from which to read partitions of which nothing was read yet
        self._starts: dict[int, TopicPartition] = {}
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; raises `ResourceLimit` if the system allows no further one."""
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ResourceLimit(
                "This process cannot start another thread.",
                state=str(error),
                owner=f"the reader of topic {self._topic}",
                remedy="raise the limit of threads (ulimit -u, or pids of the container), or attach fewer "
                "subscriptions in one process; then subscribe again",
            ) from error

    def stop(self) -> None:
        """Have the thread close its Consumer and end; returns at once."""
        self._closing = True
        self._work.set()
        self._wake_up()

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the end of the thread, after `stop`; returns whether it ended.

        A Consumer is closed when Kafka has confirmed its commits: while Kafka is away that may take for ever.
        """
        if self._thread.is_alive():
            self._thread.join(max(timeout, 0.0))
        return not self._thread.is_alive()

    def _put(self, command: Callable[[Consumer], None]) -> None:
        self._commands.append(command)
        self._work.set()
        self._wake_up()

    def _wake_up(self) -> None:
        """End the waiting of a thread for records, if the client can do that. Any thread."""

    def _main(self) -> None:
        self._work.wait(_FIRST_WORK_S)
        try:
            self._consumer = self._make()
        except Exception as error:  # noqa: BLE001 - any error: a thread must not end without notice
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
        """Tell the receiver that reading cannot go on."""
        if isinstance(error, KafkadurError):
            self._fail(error)
        elif isinstance(error, KafkaException):
            self._fail(broken(str(error.args[0]), self._topic))
        else:
            _log.error("reading %s met a defect", self._topic, exc_info=error)
            self._fail(InternalError.by(error, f"the reader of topic {self._topic}"))

    def _make(self) -> Consumer:
        config = {**self._config, "error_cb": self._hear}
        if (statistics := config.get("stats_cb")) is not None:
            config["stats_cb"] = partial(tell, statistics, name="stats_cb")
        return new_consumer(config, logger=self._reader_log, topic=self._topic)

    def _loop(self) -> None:
        raise NotImplementedError

    def _look_after(self) -> None:
        """Make the Consumer anew if it has lost Kafka for good and another one finds it.

        While Kafka itself is away nothing changes: then the other one gets no answer either.
        """
        now = self._monotonic()
        if now - self._heard_at < SILENT_S:
            return
        if answers(self._consumer, self._topic):
            self._reader_log.no_files = ""
        elif self._reader_log.no_files:
            raise _no_files(self._reader_log.no_files, self._topic)
        else:
            new = self._make()
            # Kafka may have come back just now: then this one finds it, too
            if answers(new, self._topic) and not answers(self._consumer, self._topic):
                self._replace(new)
            else:
                new.close()
                if self._silent and now - self._told_at >= _TOLD_EVERY:
                    self._tell_silence("it still does not")
        self._heard_at = self._monotonic()

    def _replace(self, new: Consumer) -> None:
        """Let another Consumer read on where this one stands."""
        old, self._consumer = self._consumer, new
        _log.warning("Kafka's client of topic %s does not find Kafka any more; it was made anew", self._topic)
        read = old.position(old.assignment())
        new.incremental_assign([p if p.offset >= 0 else self._starts[p.partition] for p in read])
        # commits that it still has to send may delay its end for most of a minute
        threading.Thread(target=old.close, name=f"{self._thread.name}-old", daemon=True).start()

    def _hear(self, error: KafkaError) -> None:
        """Log that no broker answers any more; the user's own `error_cb` gets every error."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self._silent:  # noqa: SLF001 - as above
            self._tell_silence(error.str())
        tell(self._error_cb, error)

    def _tell_silence(self, state: str) -> None:
        self._silent, self._told_at = True, self._monotonic()
        _log.warning(
            "Kafka, which keeps the messages, does not answer. State: %s. Owner: topic %s. Remedy: check "
            "that Kafka runs and can be reached; reading goes on by itself.",
            state,
            self._topic,
        )

    def _begin_anew(self, consumer: Consumer, event: Message, member: Receiver, mark: Mark) -> int | None:
        """Go on at an offset that Kafka keeps, after it did not have the offset that was to be read.

        Returns the offset: earlier records do not exist any more. None: the log may have been cut off before
        `mark`, up to which it had been read, and `_cut` was called.
        """
        partition, wanted = event.partition() or 0, event.offset()
        try:
            first, end = consumer.get_watermark_offsets(
                TopicPartition(self._topic, partition), timeout=WATERMARKS
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

    def _cut(self, partition: int, mark: Mark, end: int, member: Receiver) -> None:
        """Find the offset from which on the log differs from the records that were read; tell the member.

        `end` is the end of the log: without a leader epoch nothing else is known. Where it does not differ,
        reading goes on: librdkafka takes markers of transactions for a difference if no record before them
        was written under their leader.
        """
        offset = min(mark.offset, end) if mark.epoch < 0 else self._find_cut(partition, mark)
        if offset is None and self._closing:
            return
        if offset is None:
            # as a command: other partitions are read meanwhile
            self._put(lambda _: self._cut(partition, mark, end, member))
        elif mark.epoch >= 0 and offset >= mark.offset:
            self._go_on(partition)
        else:
            member.cut(partition, offset)

    def _go_on(self, partition: int) -> None:
        """Read on: the log of `partition` was not cut off."""
        raise NotImplementedError

    def _find_cut(self, partition: int, mark: Mark) -> int | None:
        """First offset at which the log differs from what was read before `mark`; None: no answer in time.

        Another Consumer finds it: it may go back to the offset up to which librdkafka finds the log the same.
        """
        config = {
            **self._config,
            "auto.offset.reset": "earliest",
            "error_cb": _say_nothing,
        }
        consumer = Consumer(config, logger=self._reader_log)
        deadline = time.monotonic() + WATERMARKS
        try:
            consumer.assign([TopicPartition(self._topic, partition, mark.offset, leader_epoch=mark.epoch)])
            while time.monotonic() < deadline and not self._closing:
                message = consumer.poll(WAIT)
                error = None if message is None else message.error()
                if message is None or (error is not None and error.code() != EOF):
                    continue
                return min(message.offset() or 0, mark.offset)
        finally:
            consumer.close()
        _log.warning("looking where %s[%d] was cut off: Kafka did not say; once more", self._topic, partition)
        return None

    def _heard(self) -> None:
        """Note that Kafka answers."""
        self._heard_at = self._monotonic()
        self._reader_log.no_files = ""
        if self._silent:
            self._silent = False
            _log.warning("Kafka answers again: topic %s", self._topic)

    def _obey(self, consumer: Consumer) -> None:
        self._work.clear()
        for _ in range(len(self._commands)):  # a command that is put again waits for the others
            self._commands.popleft()(consumer)

    def _find_leaders(self, consumer: Consumer) -> None:
        """Ask for the leaders of the topic, after the first assignment.

        librdkafka asks by itself if it connects later than that, else once a second. So a Consumer is made
        when there is something to read, and asked only if no answer has come: the question may wait for
        another connection, 25 ms after the first one, and until then nothing is read.
        """
        if self._found or self._reader_log.partitions:
            return
        self._found = True
        try:
            consumer.list_topics(self._topic, timeout=_FIND_LEADERS)
        except KafkaException as error:
            _log.info("looking for %s: %s", self._topic, error)


def broken(state: str, topic: str) -> StateLost:
    """Return the error for a partition that cannot be read."""
    return StateLost(
        "Kafka can't be read.",
        state=state,
        owner=f"topic {topic}",
        remedy="correct what Kafka complains about and subscribe again; nothing is lost",
    )


def _no_files(state: str, topic: str) -> ResourceLimit:
    """Return the error for a reader that can open no connection to Kafka."""
    return ResourceLimit(
        "This process cannot open another connection to Kafka.",
        state=state,
        owner=f"the reader of topic {topic}",
        remedy="raise the limit of open files (ulimit -n), or attach fewer subscriptions in one process; "
        "then subscribe again; nothing is lost",
    )


def _say_nothing(_error: KafkaError) -> None:
    """Ignore errors: the reader's own Consumer reports brokers that are away."""
