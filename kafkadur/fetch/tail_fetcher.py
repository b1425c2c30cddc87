"""The tail fetcher: reads the partitions that a member follows, and mirrors floors as group offsets."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kafkadur.fetch.buffer import NOWHERE, Mark, Records
from kafkadur.fetch.floor_mirror import FloorMirror
from kafkadur.fetch.kafka_thread import (
    EOF,
    WAIT,
    WATERMARKS,
    KafkaThread,
    Receiver,
    broken,
    consumer_config,
)
from kafkadur.fetch.native import by_partition, read, rest, waker
from kafkadur.fetch.reading_turn import ReadingTurn
from kafkadur.runtime.stages import Probe, Stage, no_probe
from kafkadur_coordinators.kafka_refusal import refused
from kafkadur_coordinators.lost_brokers import SILENT_S
from kafkadur_coordinators.topics import mirror_floors

_log = logging.getLogger("kafkadur.readers")

#: Seconds until Kafka is asked again where a partition ends, after it did not answer.
_FIND_AGAIN = 0.2
#: Seconds after which the reader looks for room in its member without having been told of any.
_FOR_ROOM = 0.2
#: Seconds between two mirrorings of the floor.
_MIRROR_EVERY = 1.0
#: Seconds of quiet after which another reader may take the partitions over.
_QUIET_S = 10.0
#: Seconds without a record or command from which on a call waits longer for records, and how long. Commands
#: end the waiting of the compiled client.
_RESTS_AFTER, _RESTING = 1.0, 0.25

#: Partition -> number of the start of following it, offset up to which it was read, what is known of the log.
Followed = Mapping[int, tuple[int, int, Mark]]


class TailFetcher(KafkaThread):
    """Follows partitions from an offset on and gives the member every record."""

    def __init__(
        self,
        *,
        member: Receiver,
        kafka: Mapping[str, Any],
        topic: str,
        topic_id: str,
        group: str,
        floor_metadata: str,
        park: Callable[[Followed], bool] | None = None,
        mirror: Callable[[], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        probe: Probe = no_probe,
    ) -> None:
        """Made with the member it reads for; `start` begins. `probe` is for tests (`stages.py`).

        `park` is called after some time without records: if it returns True, another reader follows these
        partitions from there on, and this one ends. `mirror` mirrors floors; None: under `group`.
        """
        super().__init__(
            name=f"kafkadur-tail-{topic}",
            config=consumer_config(kafka, group),
            topic=topic,
            topic_id=topic_id,
            fail=member.fail,
            monotonic=monotonic,
        )
        self._member = member
        self._park = park
        self._metadata = floor_metadata
        self._probe = probe
        #: number of the start of following a partition
        self._followed: dict[int, int] = {}
        self._floors = FloorMirror(member, self._commit_floors, followed=self._followed, monotonic=monotonic)
        self._mirror_floors = mirror or self._floors.mirror
        #: offset up to which nothing is left to read; missing: not known since it is followed
        self._stops: dict[int, int] = {}
        #: when something was to be done last
        self._busy_at = monotonic()
        #: those that are not read until it is known whether their log was cut off
        self._doubtful: dict[int, int] = {}
        #: how far logs were read before this reader began: they must agree with these marks
        self._marks: dict[int, Mark] = {}
        #: how many partitions the member was told of
        self._partitions = 0
        #: leader epoch of the last record of a partition; missing: to be checked
        self._epochs: dict[int, int] = {}
        #: the last record of a partition
        self._ends: dict[int, Message] = {}
        self._turn = ReadingTurn(monotonic)
        #: whether the thread of this reader waits because the member has records enough
        self._held_back = False
        #: ends a call of the client that waits for records; None: there is no way, and no other thread reads
        self._wake: Callable[[], None] | None = None
        #: whether the thread of this reader waits in such a call, and whether one of the application does
        self._waits = self._waits_inline = False
        #: records and events as `read` added them, which the member does not have yet
        self._arrived: list[Message] = []
        #: those that a thread of the application has left to this one; its error
        self._left: list[tuple[int, Records]] = []
        self._raised: Exception | None = None
        #: partitions whose end is to be asked for, each under this incarnation; and when (monotonic seconds)
        self._endless: dict[int, int] = {}
        self._find_at = self._mirror_at = 0.0

    def follow(self, partition: int, offset: int, number: int, mark: Mark = NOWHERE) -> None:
        """Read `partition` from `offset` on; a log that does not agree with `mark` was cut off."""

        def assign(consumer: Consumer) -> None:
            self._probe(Stage.FOLLOW)
            if partition in self._followed:
                consumer.incremental_unassign([TopicPartition(self._topic, partition)])
            self._doubtful.pop(partition, None)
            self._followed[partition] = number
            self._marks[partition] = mark
            self._epochs.pop(partition, None)
            self._ends.pop(partition, None)
            self._stops.pop(partition, None)
            start = TopicPartition(self._topic, partition, offset)
            if mark.epoch >= 0:  # librdkafka asks whether the log is still the same up to this offset
                start = TopicPartition(self._topic, partition, offset, leader_epoch=mark.epoch)
            self._starts[partition] = start
            consumer.incremental_assign([start])

        self._put(assign)

    def compare(self, partition: int, mark: Mark) -> None:
        """The records of `partition` must agree with `mark`, too."""

        def note(_: Consumer) -> None:
            self._marks[partition] = max(mark, self._marks.get(partition, NOWHERE))
            self._epochs.pop(partition, None)

        self._put(note)

    def unfollow(self, partition: int) -> None:
        """Stop reading `partition`."""

        def unassign(consumer: Consumer) -> None:
            self._doubtful.pop(partition, None)
            self._stops.pop(partition, None)
            if self._followed.pop(partition, None) is not None:
                consumer.incremental_unassign([TopicPartition(self._topic, partition)])

        self._put(unassign)

    def find_end(self, partition: int, incarnation: int) -> None:
        """Ask Kafka where the log of `partition` ends, until it answers, and tell the member."""

        def note(_: Consumer) -> None:
            self._endless[partition] = incarnation
            self._find_at = 0.0

        self._put(note)

    def _find_ends(self) -> None:
        """Ask for the ends that are to be found; may replace the Consumer."""
        if not self._endless or self._monotonic() < self._find_at:
            return
        for partition, incarnation in list(self._endless.items()):
            place = TopicPartition(self._topic, partition)
            try:
                _, end = self._consumer.get_watermark_offsets(place, timeout=WATERMARKS)
            except KafkaException as failed:
                _log.info("looking where %s[%d] ends: %s", self._topic, partition, failed)
                self._look_after()  # nothing may be followed before the end is known
                self._find_at = self._monotonic() + _FIND_AGAIN
                return
            self._heard()
            del self._endless[partition]
            self._member.found_end(partition, end, incarnation)

    def _replace(self, new: Consumer) -> None:
        super()._replace(new)
        self._wake = waker(new)
        self._floors.forget()

    def _loop(self) -> None:
        self._wake = waker(self._consumer)
        try:
            while not self._closing:
                pause = 0.0 if self._has_duties() else self._turn.away_for()
                if pause > 0:
                    self._work.wait(pause)
                    self._work.clear()
                    continue
                with self._turn.lock:
                    pause = self._step()
                if pause > 0:
                    if not self._work.wait(pause):
                        with self._turn.lock:
                            rest(self._consumer)
                    self._work.clear()
        finally:
            self._wake = None
            with self._turn.lock:  # a thread of the application reads no more from now on
                pass
        self._reader_log.check_topic(self._member.display)
        self._mirror_floors()  # closing the Consumer waits for it

    def _step(self) -> float:
        """Do what there is to do, and read once; returns the seconds to wait before the next step."""
        member, consumer = self._member, self._consumer
        if self._raised is not None:
            raise self._raised
        self._reader_log.check_topic(member.display)
        if self._reader_log.partitions != self._partitions:
            self._partitions = self._reader_log.partitions
            member.grown(self._partitions)
        self._take(consumer)  # what an exception of a signal handler has left
        left, self._left = self._left, []
        for partition, messages in left:
            if partition in self._followed:
                self._give(consumer, partition, messages, eventful=True)
        if self._commands:
            self._busy_at = self._monotonic()
            self._obey(consumer)
            if not self._just_made:
                self._find_leaders(consumer)
        self._find_ends()
        consumer = self._consumer
        self._mirror()
        if self._parks():
            self._closing = True
            return 0.0
        if not self._followed:
            self._just_made = False
            return WAIT
        self._held_back = True  # before the look: room that there is from now on ends the waiting
        if member.has_enough:
            return _FOR_ROOM
        self._held_back = False
        self._read(consumer)
        return 0.0

    def _read(self, consumer: Consumer) -> None:
        """Wait for records, and give them to the member."""
        self._waits = True
        # Commands are looked for after that: each that comes from now on ends the waiting.
        pause = 0.0 if self._commands or self._closing else self._patience()
        read(consumer, self._member.at_once, pause, self._arrived)
        self._waits = False
        if self._arrived:
            self._just_made = False
            self._take(consumer)
            return
        if not (self._commands or self._closing):  # else it has not waited long enough to say so
            self._just_made = False
            self._find_leaders(consumer)
        self._look_after()

    def _patience(self) -> float:
        """Return the longest time to wait for records, seconds."""
        rests = self._wake is not None and self._monotonic() - self._busy_at > _RESTS_AFTER
        return _RESTING if rests else WAIT

    def _parks(self) -> bool:
        """Whether another reader has taken over all partitions of this one, which stands at their ends."""
        if self._park is None or self._monotonic() - self._busy_at < _QUIET_S:
            return False
        self._busy_at = self._monotonic()  # if it does not, it is tried again after as long
        if self._doubtful or self._endless or self._stops.keys() != self._followed.keys():
            return False
        marks = {partition: self._read_to(partition) for partition in self._followed}
        if any(mark.offset > self._stops[partition] for partition, mark in marks.items()):
            return False
        return self._park(
            {
                partition: (number, self._stops[partition], marks[partition])
                for partition, number in self._followed.items()
            }
        )

    @property
    def is_started(self) -> bool:
        """Whether the thread was started."""
        return self._thread.ident is not None

    @property
    def runs_here(self) -> bool:
        """Whether this is called in the thread of this reader."""
        return threading.current_thread() is self._thread

    @property
    def has_commands(self) -> bool:
        """Whether there are commands that were not obeyed yet."""
        return bool(self._commands)

    def run(self, command: Callable[[], None]) -> None:
        """Run a command in the thread of this reader, after those before it."""
        self._put(lambda _: command())

    def _take(self, consumer: Consumer, *, inline: bool = False) -> None:
        """Give the member what has arrived. No record stays here: each keeps an answer of Kafka.

        If this is broken off, all of it is given again: the member drops records that it has. `inline`: a
        thread of the application leaves what may take long to the thread of this reader.
        """
        if not self._arrived:
            return
        self._reader_log.check_topic(self._member.display)
        self._heard()
        self._busy_at = self._monotonic()
        left = {partition for partition, _ in self._left}
        for partition, group, eventful in by_partition(self._arrived):
            if partition not in self._followed:
                continue
            if inline and (partition in left or (eventful and not _only_ends(group))):
                self._left.append((partition, group))
                left.add(partition)
                continue
            if not eventful or len(group) > 1:
                self._tell_end(consumer, partition)
            self._give(consumer, partition, group, eventful=eventful)
        self._arrived = []

    # -- reading in a thread of the application

    def read_inline(self, timeout: float, is_over: Callable[[], bool]) -> bool:
        """Read once in the calling thread, which waits for records (see `Reading`)."""
        wake, reads = self._wake, False
        if wake is None:
            return False
        if self._followed and not self._has_duties() and self._turn.ask(wake):
            with self._turn.lock:
                reads = self._lends()
                if reads:
                    try:
                        self._read_inline(min(timeout, WAIT), is_over)
                    except Exception as error:  # noqa: BLE001 - the thread of this reader ends with it
                        self._raised, reads = error, False
        if reads:
            self._turn.lend(0.0)
        else:
            self._turn.recall()
        if not reads or self._has_duties():
            self._work.set()
        return reads

    def _lends(self) -> bool:
        """Whether another thread may read now."""
        member = self._member
        return (
            self._wake is not None  # the reader has not ended meanwhile
            and bool(self._followed)
            and not self._has_duties()
            and not member.has_enough
        )

    def _read_inline(self, timeout: float, is_over: Callable[[], bool]) -> None:
        consumer = self._consumer
        self._mirror()
        if not self._arrived:  # else an exception of a signal handler has left something
            self._turn.lend(timeout)
            self._waits_inline = True
            try:
                # once more: what changes before this thread is known to wait does not interrupt it
                if not (is_over() or self._has_duties()):
                    read(consumer, self._member.at_once, timeout, self._arrived)
            finally:
                self._waits_inline = False
        self._take(consumer, inline=True)

    @property
    def compiled(self) -> bool:
        """Whether the compiled client reads; False before the reader has begun, and after its end."""
        return self._wake is not None

    def note_room(self) -> None:
        """Read on if the member had records enough, and has room now. Any thread."""
        if self._held_back and not self._member.has_enough:
            self._held_back = False
            self._work.set()

    def interrupt(self) -> None:
        """End the waiting of a thread in `read_inline`. Any thread."""
        if self._waits_inline:
            self._wake_up()

    def _wake_up(self) -> None:
        wake = self._wake
        if wake is not None and (self._waits or self._waits_inline):
            wake()

    def _has_duties(self) -> bool:
        """Whether the thread of this reader has something to do other than reading."""
        now = self._monotonic()
        return bool(
            self._closing
            or self._commands
            or self._left
            or self._raised is not None
            or (self._endless and now >= self._find_at)
            or now - self._heard_at >= SILENT_S
            or self._reader_log.partitions != self._partitions
        )

    def _tell_end(self, consumer: Consumer, partition: int) -> None:
        """Tell the member where the log ended when Kafka last answered.

        Events for the end of the log are not enough: while records come within every `fetch.wait.max.ms`,
        there are none, however far the reader has come.
        """
        _, end = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
        if end >= 0:
            self._member.end_at(partition, end, self._followed[partition])

    def _give(self, consumer: Consumer, partition: int, messages: Records, *, eventful: bool) -> None:
        number = self._followed[partition]
        self._probe(Stage.READ)
        if not eventful:
            self._give_records(consumer, partition, messages, number)
            return
        start = 0
        for index, error in enumerate([message.error() for message in messages]):
            if error is None:
                continue
            if index > start and not self._give_records(consumer, partition, messages[start:index], number):
                return
            start = index + 1
            if error.code() == EOF:
                self._probe(Stage.END)
                self._stops[partition] = messages[index].offset() or 0
                self._member.reach(partition, self._stops[partition], number)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the library's name for it
                self._doubtful[partition] = self._followed.pop(partition)
                kept = self._begin_anew(consumer, messages[index], self._member, self._read_to(partition))
                if kept is None:
                    return
                self._followed[partition] = self._doubtful.pop(partition)
                self._member.pass_by(partition, kept, number)
            else:
                self._complain(error, partition)
        if start < len(messages):
            self._give_records(consumer, partition, messages[start:], number)

    def _give_records(self, consumer: Consumer, partition: int, messages: Records, number: int) -> bool:
        """Give the member records, unless they show that the log was cut off since it was read before."""
        epoch = messages[-1].leader_epoch()
        if epoch is not None and epoch != self._epochs.get(partition):  # checked once for each leader
            mark = self._marks.get(partition, NOWHERE)
            strange = mark.epoch >= 0 and any(
                (message.offset() or 0) < mark.offset and (message.leader_epoch() or 0) > mark.epoch
                for message in messages
            )
            if strange:
                self._doubtful[partition] = self._followed.pop(partition)
                consumer.incremental_unassign([TopicPartition(self._topic, partition)])
                self._cut(partition, mark, mark.offset, self._member)
                return False
            self._epochs[partition] = epoch
            self._member.lead(partition, epoch, number)
        self._ends[partition] = messages[-1]
        self._member.add_records(partition, messages, number)
        return True

    def _read_to(self, partition: int) -> Mark:
        """How far a partition was read, by this reader or before."""
        mark, last = self._marks.get(partition, NOWHERE), self._ends.get(partition)
        if last is None:
            return mark
        return max(mark, Mark((last.offset() or 0) + 1, self._epochs.get(partition, -1)))

    def _go_on(self, partition: int) -> None:
        """Read on: the log of `partition` was not cut off."""
        number = self._doubtful.pop(partition, None)
        if number is None:  # followed anew, or not any more
            return
        last, start = self._ends.get(partition), self._starts[partition].offset
        self._followed[partition] = number
        self._epochs.pop(partition, None)
        # without the epoch: librdkafka would find the same difference again
        self._starts[partition] = TopicPartition(
            self._topic, partition, start if last is None else (last.offset() or 0) + 1
        )
        self._consumer.incremental_assign([self._starts[partition]])

    def _complain(self, error: KafkaError, partition: int) -> None:
        if not error.retriable() and error.code() in (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError._FATAL,  # noqa: SLF001 - the library's name for it
        ):
            raise refused(error, f"topic {self._topic}") or broken(error.str(), self._topic)
        _log.info("reading %s[%d]: %s", self._topic, partition, error.str())

    def _commit_floors(self, floors: Mapping[int, int]) -> None:
        if self._metadata:
            mirror_floors(self._consumer, self._topic, floors, self._metadata)

    def _mirror(self) -> None:
        now = self._monotonic()
        if now < self._mirror_at:
            return
        self._mirror_at = now + _MIRROR_EVERY
        self._mirror_floors()


def _only_ends(messages: Records) -> bool:
    """Whether all events among the messages of a partition are ends of it."""
    return all(error is None or error.code() == EOF for error in (message.error() for message in messages))
