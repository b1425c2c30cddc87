"""The journal: one compacted Kafka topic a namespace that holds what must survive the loss of Redis.

Here is its input and output: create and check the topic, append a record and wait until it is durable, read
a shard to its end. What the records mean is `records.py`. One `Journal` is used by one thread at a time.
"""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from kafkadur_coordinators import records
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.kafka_refusal import Refusals, refused
from kafkadur_coordinators.records import Change, Entry
from kafkadur_sharing.errors import CoordinatorRefused, KafkadurError, StateLost

#: Partitions of a new journal.
DEFAULT_SHARDS = 64
_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(32 * 1024 * 1024),
    "segment.ms": str(10 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": str(1024 * 1024),
    "unclean.leader.election.enable": "false",
}


def journal_topic(namespace: str) -> str:
    """Name of the topic that holds the journal of a namespace."""
    return f"kafkadur.journal.{namespace}"


class Journal:
    """The journal of one namespace.

    Every method that talks to Kafka raises `StateLost` when Kafka does not answer.
    """

    def __init__(
        self,
        kafka: Mapping[str, Any],
        namespace: str,
        *,
        shards: int = DEFAULT_SHARDS,
        replication: int = -1,
        timeout: float = 15.0,
    ) -> None:
        """Remember where the journal is; connects at the first use.

        `kafka` is confluent configuration (at least bootstrap.servers); `shards` counts for a new topic only;
        `replication` -1 takes the broker's default; `timeout` in seconds.
        """
        self._refusals = Refusals(kafka.get("error_cb"))
        self._config: dict[str, Any] = {**kafka, "error_cb": self._refusals}
        self.topic = journal_topic(namespace)
        # the client needs one; nothing is committed
        self._group = f"kafkadur:{namespace}:journal"
        self._shards = shards
        self._replication = replication
        self._timeout = timeout
        self._count: int | None = None
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None

    def close(self) -> None:
        """Close the clients."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._producer = None

    # -- the topic

    def open(self) -> int:
        """Create the topic if it is missing, check it, and return its number of shards.

        Raises `CoordinatorRefused` for a journal that could lose records, or whose partitions were added to.
        """
        if self._count is not None:
            return self._count
        admin = AdminClient(self._config, logger=client_log)
        metadata = self._metadata(admin)
        if metadata is None:
            self._create(admin)
            metadata = self._metadata(admin, wait=True)
        if metadata is None:
            raise self._lost("the topic was created but is not visible yet")
        self._check(admin, [len(partition.replicas) for partition in metadata.values()])
        self._count = len(metadata)
        self._check_count(self._count)
        return self._count

    def _metadata(self, admin: AdminClient, *, wait: bool = False) -> dict[int, Any] | None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                topic = admin.list_topics(self.topic, timeout=self._timeout).topics[self.topic]
            except KafkaException as error:
                raise self._lost(error.args[0]) from error
            if (
                topic.error is None
                and topic.partitions
                and all(p.leader >= 0 for p in topic.partitions.values())
            ):
                return dict(topic.partitions)
            if not wait and topic.error is not None:
                return None
            if time.monotonic() > deadline:
                raise self._lost("its partitions have no leader")
            time.sleep(0.02)  # polls for a condition, with a deadline

    def _create(self, admin: AdminClient) -> None:
        new = NewTopic(
            self.topic,
            num_partitions=self._shards,
            replication_factor=self._replication,
            config=_TOPIC_CONFIG,
        )
        try:
            admin.create_topics([new])[self.topic].result(self._timeout)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._lost(error.args[0]) from error
            return
        self._append(0, b"shards", str(self._shards).encode())

    def _check(self, admin: AdminClient, replicas: list[int]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        try:
            config = admin.describe_configs([resource])[resource].result(self._timeout)
        except KafkaException as error:
            raise self._lost(error.args[0]) from error

        def value(name: str) -> str:
            return str(config[name].value) if name in config else ""

        problems = []
        if "compact" not in value("cleanup.policy"):
            problems.append("cleanup.policy must be compact")
        if value("unclean.leader.election.enable") == "true":
            problems.append("unclean.leader.election.enable must be false")
        if max(replicas) > 1 and int(value("min.insync.replicas") or 1) < 2:  # noqa: PLR2004 - one copy is no safety
            problems.append("min.insync.replicas must be at least 2 when the topic is replicated")
        if problems:
            raise CoordinatorRefused(
                "The journal topic could lose records.",
                state="; ".join(problems),
                owner=f"topic {self.topic}",
                remedy="correct the topic's configuration",
            )

    def _check_count(self, count: int) -> None:
        for _, key, value in self._scan([0])[0]:
            if key == b"shards" and int(value) != count:
                raise CoordinatorRefused(
                    "Partitions were added to the journal topic: subscriptions would not be found any more.",
                    state=f"{count} partitions, created with {int(value)}",
                    owner=f"topic {self.topic}",
                    remedy="restore the topic with its number of partitions",
                )

    # -- records

    def shard(self, tag: str) -> int:
        """The shard (partition of the journal) of a subscription's tag."""
        return zlib.crc32(tag.encode()) % self.open()

    def append_change(self, shard: int, change: Change) -> int:
        """Append a change and wait until it is durable; returns its version (offset + 1).

        Each change has a key of its own: compaction must not remove one that decides.
        """
        key = f"change/{change.tag}/{change.expected}/{uuid.uuid4().hex}".encode()
        return self._append(shard, key, records.encode_change(change)) + 1

    def append_incarnation(self, shard: int, server: str) -> int:
        """Append an incarnation and wait until it is durable; returns its number (offset + 1)."""
        key = f"incarnation/{uuid.uuid4().hex}".encode()
        return self._append(shard, key, records.encode_incarnation(server)) + 1

    def read(self, shard: int) -> list[Entry]:
        """All records of a shard up to its end now, in order. Damaged ones are left out."""
        self.open()
        return _entries(self._scan([shard])[shard])

    def read_all(self) -> dict[int, list[Entry]]:
        """All records of all shards, as `read` gives them."""
        return {shard: _entries(found) for shard, found in self._scan(range(self.open())).items()}

    def _append(self, shard: int, key: bytes, value: bytes) -> int:
        if self._producer is None:
            # Not idempotent: that costs half a second at the first record, and a record written twice
            # changes nothing (the first of equal ones counts). One request in flight keeps the order.
            config = {"acks": "all", "enable.idempotence": False, "max.in.flight": 1, "linger.ms": 0}
            self._producer = Producer({**self._config, **config}, logger=client_log)
        done: list[tuple[KafkaError | None, Message]] = []
        self._producer.produce(
            self.topic,
            key=key,
            value=value,
            partition=shard,
            on_delivery=lambda error, message: done.append((error, message)),
        )
        self._producer.flush(self._timeout)
        if not done:
            raise self._lost("a record was not confirmed in time")
        error, message = done[0]
        offset = message.offset()
        if error is not None or offset is None:
            raise self._lost(error if error is not None else "a record got no offset")
        return offset

    def _scan(self, shards: Iterable[int]) -> dict[int, list[tuple[int, bytes, bytes]]]:
        """Offset, key and value of each record of these shards, up to their ends now."""
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **self._config,
                    "group.id": self._group,
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                    "fetch.wait.max.ms": 10,
                },
                logger=client_log,
            )
        consumer = self._consumer
        found: dict[int, list[tuple[int, bytes, bytes]]] = {shard: [] for shard in shards}
        consumer.assign([TopicPartition(self.topic, shard, 0) for shard in found])
        left = set(found)
        deadline = time.monotonic() + self._timeout
        try:
            while left:
                if time.monotonic() > deadline:
                    raise self._lost("its end was not reached in time")
                first = consumer.poll(0.1)
                for message in [] if first is None else [first, *consumer.consume(500, 0)]:
                    error, shard = message.error(), message.partition() or 0
                    if error is None:
                        offset, key, value = message.offset(), message.key(), message.value()
                        if offset is not None and key is not None and value is not None:
                            found[shard].append((offset, _bytes(key), _bytes(value)))
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's name for it
                        left.discard(shard)
                    elif not error.retriable():
                        raise self._lost(error)
        finally:
            consumer.unassign()
        return found

    def _lost(self, state: str | KafkaError) -> KafkadurError:
        owner = f"topic {self.topic}"
        refusal = self._refusals.error(owner) if isinstance(state, str) else refused(state, owner)
        return refusal or StateLost(
            "The journal in Kafka cannot be used.",
            state=state if isinstance(state, str) else state.str(),
            owner=owner,
            remedy="check that Kafka runs and can be reached, then subscribe again; nothing is lost",
        )


def _entries(found: Iterable[tuple[int, bytes, bytes]]) -> list[Entry]:
    decoded = (records.decode(offset, value) for offset, key, value in found if key != b"shards")
    return [entry for entry in decoded if entry is not None]


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
