"""Kafka's own share group (KIP-932): librdkafka's ShareConsumer with explicit acknowledgement."""

# pyright: reportUnknownMemberType=false
# The admin client is only partly typed.

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, cast

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,  # pyright: ignore[reportPrivateImportUsage]
    ConfigEntry,  # pyright: ignore[reportPrivateImportUsage]
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from benchmarks.systems.base import Env, Store, System, Variant, Workload
from benchmarks.systems.traffic import TOLD_S, Traffic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from benchmarks.recorder import Recorder

POLL_S = 0.05
#: Seconds a member waits for its first batch before it counts as joined; heartbeats come every 5 s.
JOIN_S = 8.0
#: Seconds to wait for the first message in the workload first.
FIRST_S = 30.0
#: Records a poll of the large variant; the default is 500, which small producer batches really meet.
LARGE_POLL = 5_000
#: Records a poll in the fan-out: with the default of 500 a few members take everything.
FANOUT_POLL = 20

_EXPLICIT = Variant(
    name="explicit", confirmed="acknowledge each, sent with the next poll, one commit at the end"
)
_LARGE = Variant(name="explicit-large", confirmed=f"as explicit, with max.poll.records {LARGE_POLL:,}")
_EXPLICIT_EACH = Variant(
    name="explicit-each",
    confirmed="max.poll.records 1, synchronous commit each; not strict: a poll may bring a producer batch",
    fraction=1 / 60,
    members=(1,),
)
_FANOUT = Variant(
    name="explicit",
    confirmed=f"max.poll.records {FANOUT_POLL}; acknowledge after the work, sent with the next poll",
)
_LATENCY = Variant(name="explicit", confirmed="acknowledge each, asynchronous commit a poll")
_FIRST = Variant(
    name="explicit",
    confirmed="max.poll.records 1, synchronous commit after the clock; subscribe(), unsubscribe()",
    fraction=0.1,
)

_VARIANTS = {
    Workload.DRAIN: (_EXPLICIT, _LARGE),
    Workload.WINDOW1: (_EXPLICIT_EACH,),
    Workload.FANOUT: (_FANOUT,),
    Workload.TURNS: (),
    Workload.LATENCY: (_LATENCY,),
    Workload.FIRST: (_FIRST,),
    Workload.FAILOVER: (),
    Workload.AMPLIFICATION: (_LATENCY,),
}


class Share(System):
    """A member of a share group."""

    name: ClassVar[str] = "share"
    store: ClassVar[Store] = Store.KAFKA
    warmup_s: ClassVar[float] = 7.0

    @classmethod
    def variants(cls, workload: Workload) -> tuple[Variant, ...]:
        """Return the variants of a workload."""
        return _VARIANTS[workload]

    @classmethod
    def prepare(cls, env: Env, variant: str) -> None:  # noqa: ARG003
        """Let the group start at the oldest message: that is a setting of the group, not of the client."""
        entry = ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.GROUP, env.group, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": env.kafka, "log_level": 3})
        for done in cast("dict[object, Future[None]]", admin.incremental_alter_configs([resource])).values():
            done.result(30)

    def __init__(self, env: Env, variant: str) -> None:
        """Make the consumer."""
        self._env = env
        self._polls = 0
        self._largest = 0
        self._held: list[Message] = []
        settings: dict[str, str | int | float | bool | object | None] = {
            "bootstrap.servers": env.kafka,
            "group.id": env.group,
            "share.acknowledgement.mode": "explicit",
            "log_level": 3,
        }
        self._traffic = Traffic(env.topic) if env.workload is Workload.AMPLIFICATION else None
        if self._traffic is not None:
            settings |= self._traffic.settings
        if variant == _EXPLICIT_EACH.name or env.workload is Workload.FIRST:
            settings["max.poll.records"] = 1
        elif variant == _LARGE.name:
            settings["max.poll.records"] = LARGE_POLL
        elif env.workload is Workload.FANOUT:
            settings["max.poll.records"] = FANOUT_POLL
        self._consumer = ShareConsumer(settings)

    def join(self) -> None:
        """Subscribe and wait for the first batch, kept for the loop: no other sign of a join exists."""
        if self._env.workload is Workload.FIRST:
            return
        self._consumer.subscribe([self._env.topic])
        if self._env.workload in {Workload.LATENCY, Workload.AMPLIFICATION}:  # nothing is there yet
            return
        deadline = time.monotonic() + JOIN_S
        while not self._held and time.monotonic() < deadline:
            self._held = self._poll()

    @property
    def held(self) -> int:
        """Return the messages of the first batch."""
        return len(self._held)

    def _poll(self) -> list[Message]:
        """Return the held batch or the next one, and raise if it holds an error."""
        if self._held:
            held, self._held = self._held, []
            return held
        messages = list(self._consumer.poll(POLL_S))
        for message in messages:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
        if messages:
            self._polls += 1
            self._largest = max(self._largest, len(messages))
        return messages

    def drain(self, recorder: Recorder) -> None:
        """Poll, acknowledge each."""
        acknowledge = self._consumer.acknowledge
        while recorder.more():
            messages = self._poll()
            recorder.batch([message.value() for message in messages])  # type: ignore[misc]
            for message in messages:
                acknowledge(message)

    def window1(self, recorder: Recorder) -> None:
        """Commit synchronously after each message, however many a poll brought."""
        while recorder.more():
            for message in self._poll():
                recorder.one(message.value() or b"")
                self._consumer.acknowledge(message)
                self._commit()

    def serve(self, recorder: Recorder) -> None:
        """Handle and acknowledge message after message."""
        prompt = self._env.workload in {Workload.LATENCY, Workload.AMPLIFICATION}
        while recorder.more():
            messages = self._poll()
            for message in messages:
                recorder.handle(message.value() or b"")
                self._consumer.acknowledge(message)
            if prompt and messages:
                self._consumer.commit_async()

    def attach(self, recorder: Recorder) -> None:
        """Subscribe, poll for the first messages, give back all but one, let go."""
        consumer = self._consumer
        while recorder.more():
            since = time.monotonic_ns()
            consumer.subscribe([self._env.topic])
            messages: list[Message] = []
            deadline = time.monotonic() + FIRST_S
            while not messages:
                if time.monotonic() > deadline:
                    text = f"no message within {FIRST_S:.0f} s of subscribing"
                    raise TimeoutError(text)
                messages = self._poll()
            recorder.arrived(messages[0].value() or b"", since_ns=since)
            consumer.acknowledge(messages[0])
            for message in messages[1:]:
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
            self._commit()
            consumer.unsubscribe()

    def settle(self) -> None:
        """Commit the acknowledgements that no poll has carried yet."""
        self._commit()

    def _commit(self) -> None:
        """Commit synchronously; raise the first error of a partition."""
        for error in self._consumer.commit_sync(30.0).values():
            if error is not None:
                raise error

    def figures(self) -> Mapping[str, float]:
        """Return polls, and alone the largest batch of one poll (which shows that window 1 is not strict)."""
        found: dict[str, float] = {"polls": self._polls}
        if self._env.members == 1:
            found["largest_poll"] = self._largest
        return found

    def close(self) -> None:
        """Leave the group."""
        for message in self._held:
            self._consumer.acknowledge(message)
        if self._traffic is not None:
            time.sleep(TOLD_S)  # librdkafka tells by its own clock, whoever asks
        self._consumer.close()

    def closing_figures(self) -> Mapping[str, float]:
        """Bytes that came from the brokers."""
        return {} if self._traffic is None else {"fetched_bytes": float(self._traffic.received)}
