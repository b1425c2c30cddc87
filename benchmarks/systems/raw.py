"""Raw confluent-kafka, in a group or alone, set up as well as we know how: the ceiling of a client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from benchmarks.systems.base import BACKLOG, Env, Store, System, Variant, Workload
from benchmarks.systems.traffic import TOLD_S, Traffic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.recorder import Recorder

BATCH = 1_000
POLL_S = 0.01
#: Seconds without a change of the assignment after which a group of several counts as settled.
QUIET_S = 1.5
#: Seconds a member may take to join.
JOIN_S = 60.0
#: Seconds to wait for the first message in the workload first.
FIRST_S = 30.0

_TUNED = Variant(name="tuned", confirmed="one synchronous commit at the end")
_TUNED_EACH = Variant(name="tuned-each", confirmed="one commit at the end; handled message by message")
_COMMIT_BATCH = Variant(name="commit-batch", confirmed=f"synchronous commit a batch of {BATCH}", fraction=0.5)
_SYNC_EACH = Variant(
    name="sync-each", confirmed="synchronous commit each message", fraction=1 / 60, members=(1,)
)
_ALONE_EACH = Variant(
    name="sync-each", confirmed="synchronous commit each message", fraction=0.04, members=(1,)
)
_ASSIGN = Variant(name="assign", confirmed="nothing; assign() behind the round before")
_GROUP = Variant(
    name="group", confirmed="synchronous commit after the clock; subscribe(), unsubscribe()", fraction=0.25
)
_READ = Variant(name="group", confirmed="position stored after the message, automatic commit each second")
# One partition has one owner: the others get nothing, an eighth of the messages shows the rate as well.
_ONE_OWNER = Variant(
    name="tuned", confirmed="position stored after the work, automatic commit", fraction=1 / 8
)
_POLL = Variant(name="poll", confirmed="position stored after the message, automatic commit each second")

_VARIANTS = {
    Workload.DRAIN: (_TUNED, _TUNED_EACH, _COMMIT_BATCH),
    Workload.WINDOW1: (_TUNED, _SYNC_EACH),
    Workload.TURNS: (_ALONE_EACH,),
    Workload.FANOUT: (_ONE_OWNER,),
    Workload.LATENCY: (_POLL,),
    Workload.FIRST: (_ASSIGN, _GROUP),
    Workload.FAILOVER: (),
    Workload.AMPLIFICATION: (_READ,),
}


def raise_error(message: Message) -> None:
    """Raise a KafkaException when the message is an error event."""
    error = message.error()
    if error is not None:
        raise KafkaException(error)


class Raw(System):
    """A member of an ordinary consumer group, or a consumer without one."""

    name: ClassVar[str] = "raw"
    store: ClassVar[Store] = Store.KAFKA

    @classmethod
    def variants(cls, workload: Workload) -> tuple[Variant, ...]:
        """Return the variants of a workload."""
        return _VARIANTS[workload]

    def __init__(self, env: Env, variant: str) -> None:
        """Make the consumer; ``fetch.queue.backoff.ms`` makes it several times faster than the default."""
        self._env = env
        self._variant = variant
        self._assigned: list[TopicPartition] = []
        self._joining = True
        self._generations = 0
        self._changed = 0.0
        self._serving = env.workload in {Workload.FANOUT, Workload.LATENCY, Workload.AMPLIFICATION}
        self._traffic = Traffic(env.topic) if env.workload is Workload.AMPLIFICATION else None
        self._consumer = Consumer(
            {
                "bootstrap.servers": env.kafka,
                "group.id": env.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": self._serving,
                "auto.commit.interval.ms": 1_000,
                "enable.auto.offset.store": False,
                "fetch.queue.backoff.ms": 5,
                "fetch.wait.max.ms": 50,
                "heartbeat.interval.ms": 300,
                "log_level": 3,
                **(self._traffic.settings if self._traffic else {}),
            }
        )

    def join(self) -> None:
        """Subscribe and wait for the final assignment.

        It is paused so that nothing arrives before the clock. A backlog stays paused until the loop begins:
        librdkafka would read 100,000 messages of each partition ahead.
        """
        env = self._env
        if env.workload is Workload.FIRST:
            self._consumer.list_topics(env.topic, timeout=JOIN_S)
            return
        self._consumer.subscribe([env.topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        wanted = env.partitions // env.members if env.members <= env.partitions else None
        deadline = time.monotonic() + JOIN_S
        while True:
            message = self._consumer.poll(0.05)
            if message is not None:
                raise_error(message)
                text = "a message arrived while paused"
                raise RuntimeError(text)
            now = time.monotonic()
            # A member that stopped polling would hold up the next rebalance of those that still join, so
            # several members go on until the group has been quiet for longer than a heartbeat.
            quiet = env.members == 1 or now - self._changed > QUIET_S
            if self._generations and quiet and wanted in {None, len(self._assigned)}:
                break
            if now > deadline:
                text = f"no stable assignment within {JOIN_S:.0f} s, last: {self._assigned}"
                raise RuntimeError(text)
        # The group may still change once more; from here on nobody would resume what is paused.
        self._joining = False
        if env.workload not in BACKLOG:
            self._begin()

    def _begin(self) -> None:
        if self._assigned:
            self._consumer.resume(self._assigned)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign(partitions)
        if self._joining:
            consumer.pause(partitions)
        self._assigned = partitions
        self._generations += 1
        self._changed = time.monotonic()

    def _on_revoke(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        consumer.unassign()
        self._assigned = []
        self._changed = time.monotonic()

    def drain(self, recorder: Recorder) -> None:
        """Consume in batches of 1,000; ``tuned-each`` handles each message by itself."""
        self._begin()
        if self._variant == _TUNED_EACH.name:
            self._each(recorder)
            return
        consume, commit_batch = self._consumer.consume, self._variant == _COMMIT_BATCH.name
        while recorder.more():
            messages = consume(recorder.room(BATCH), POLL_S)
            if not messages:
                continue
            recorder.batch([message.value() for message in messages])  # type: ignore[misc]
            if commit_batch:
                self._commit()

    def window1(self, recorder: Recorder) -> None:
        """Hand out one message at a time: ``tuned`` from batches, ``sync-each`` with a commit each."""
        self._begin()
        if self._variant == _SYNC_EACH.name:
            while recorder.more():
                message = self._consumer.poll(POLL_S)
                if message is None:
                    continue
                raise_error(message)
                recorder.one(message.value() or b"")
                self._consumer.commit(message=message, asynchronous=False)
            return
        self._each(recorder)

    def _each(self, recorder: Recorder) -> None:
        if self._env.members > 1:  # notes values together, as the other systems do where there are several
            values: list[bytes] = []
            while recorder.more():
                for message in self._consumer.consume(BATCH, POLL_S):
                    if message.error() is not None:
                        raise_error(message)
                    values.append(message.value() or b"")
                recorder.batch(values)
                values.clear()
            return
        one = recorder.one
        while recorder.more():
            for message in self._consumer.consume(recorder.room(BATCH), POLL_S):
                if message.error() is not None:
                    raise_error(message)
                if not one(message.value()) and not recorder.more():  # type: ignore[arg-type]
                    return

    def serve(self, recorder: Recorder) -> None:
        """Poll one message at a time."""
        while recorder.more():
            message = self._consumer.poll(POLL_S)
            if message is None:
                continue
            raise_error(message)
            recorder.handle(message.value() or b"")
            self._consumer.store_offsets(message=message)

    def attach(self, recorder: Recorder) -> None:
        """Assign or subscribe, poll for one message, let go; the Consumer and its connections stay."""
        env, consumer = self._env, self._consumer
        group = self._variant == _GROUP.name
        following = dict.fromkeys(range(env.partitions), 0)
        while recorder.more():
            since = time.monotonic_ns()
            if group:
                consumer.subscribe([env.topic])
            else:
                consumer.assign([TopicPartition(env.topic, at, offset) for at, offset in following.items()])
            message = consumer.poll(FIRST_S)
            if message is None:
                text = f"no message within {FIRST_S:.0f} s of subscribing"
                raise TimeoutError(text)
            raise_error(message)
            recorder.arrived(message.value() or b"", since_ns=since)
            following[message.partition() or 0] = (message.offset() or 0) + 1
            if group:
                consumer.commit(message=message, asynchronous=False)
                consumer.unsubscribe()
            else:
                consumer.unassign()

    def settle(self) -> None:
        """Commit the position reached."""
        if self._env.workload is Workload.FIRST:
            return
        if not self._serving and self._variant != _SYNC_EACH.name:
            self._commit()

    def _commit(self) -> None:
        """Commit the position of each assigned partition synchronously."""
        positions = [at for at in self._consumer.position(self._assigned) if at.offset >= 0]
        if positions:
            self._consumer.commit(offsets=positions, asynchronous=False)

    def close(self) -> None:
        """Leave the group."""
        if self._traffic is not None:
            time.sleep(TOLD_S)  # librdkafka tells by its own clock, whoever asks
        self._consumer.close()

    def closing_figures(self) -> Mapping[str, float]:
        """Bytes that came from the brokers."""
        return {} if self._traffic is None else {"fetched_bytes": float(self._traffic.received)}
