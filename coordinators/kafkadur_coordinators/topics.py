"""What the coordinators ask Kafka about topics and groups: topic id, partitions, offsets, mirrored floors.

Mirrored floors are group offsets whose metadata says whose they are: without that, offsets of an earlier
subscription of the same name, or of a topic deleted and created again, would be taken for this one's. They
are read here and written by the members' readers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.kafka_refusal import Refusals, refused
from kafkadur_sharing.errors import IllegalState, InvalidDestination, KafkadurError, StateLost

#: Who refuses, in errors.
_NAME = "Kafka"
#: Errors that pass when a leader is elected; librdkafka calls only some of them retriable.
_ELECTING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)


#: What an admin client asks is answered by the broker that it takes for the controller. If that one dies, it
#: finds another one only when it refreshes what it knows: by default after five minutes.
_ASKING: Mapping[str, Any] = {"topic.metadata.refresh.interval.ms": 2_000}


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicInfo:
    """A Kafka topic."""

    name: str
    #: the id that a topic deleted and created again does not share
    id: str
    partitions: int


def floor_metadata(subscription_id: str, epoch: int, topic_id: str) -> str:
    """Commit metadata of a mirrored floor."""
    return f"kafkadur;1;{subscription_id};{epoch};{topic_id}"


class Topics:
    """Questions to Kafka about topics. Methods raise `StateLost` when Kafka does not answer in time."""

    def __init__(self, kafka: Mapping[str, Any], *, timeout: float = 15.0) -> None:
        """`kafka` is confluent configuration; `timeout` in seconds. Raises `IllegalState` for a wrong one."""
        self._config = {**_ASKING, **kafka}
        self._refusals = Refusals(self._config.get("error_cb"))
        config: dict[str, Any] = {**self._config, "error_cb": self._refusals}
        try:
            self._admin = AdminClient(config, logger=client_log)
        except KafkaException as error:
            raise IllegalState(
                "The settings of Kafka are refused.",
                state=error.args[0].str(),
                owner="librdkafka",
                remedy="correct the setting it names",
            ) from error
        self._timeout = timeout

    def describe(self, topic: str) -> TopicInfo:
        """Id and partitions of a topic; raises `InvalidDestination` if there is none."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                found = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self._timeout)
                description = found[topic].result(self._timeout)
            except KafkaException as error:
                if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION):
                    raise InvalidDestination(
                        "The topic does not exist.",
                        state=error.args[0].str(),
                        owner=f"topic {topic}",
                        remedy="create the topic first, or correct its name",
                    ) from error
                if time.monotonic() > deadline or refused(error.args[0], "") is not None:
                    raise self._failed(error.args[0]) from error
                continue
            except TimeoutError as error:
                raise self._failed() from error
            partitions = description.partitions
            if partitions and all(p.leader is not None for p in partitions):
                return TopicInfo(name=topic, id=str(description.topic_id), partitions=len(partitions))
            if time.monotonic() > deadline:
                raise _no_answer(f"topic {topic} has partitions without a leader")
            time.sleep(0.02)  # polls for a condition, with a deadline

    def retention(self, topic: str) -> int | None:
        """How long Kafka keeps a message of a topic at least, ms; None: it removes none for its age."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            futures = self._admin.describe_configs([resource], request_timeout=self._timeout)
            found = futures[resource].result(self._timeout)
        except KafkaException as error:
            raise self._failed(error.args[0]) from error
        except TimeoutError as error:
            raise self._failed() from error
        if "delete" not in str(found["cleanup.policy"].value):
            return None
        kept = int(found["retention.ms"].value or -1)
        return None if kept < 0 else kept

    def offsets(self, topic: str, partitions: int, where: str, *, stable: bool = True) -> dict[int, int]:
        """First (`where="earliest"`) or end offset ("latest") of each partition.

        The end is behind the last stable offset; if not `stable`, behind all that is written, what open
        transactions hold included.
        """
        spec = cast("OffsetSpec", OffsetSpec.earliest() if where == "earliest" else OffsetSpec.latest())
        request: dict[TopicPartition, OffsetSpec] = {
            TopicPartition(topic, partition): spec for partition in range(partitions)
        }
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                futures = self._admin.list_offsets(
                    request,
                    isolation_level=IsolationLevel.READ_COMMITTED
                    if stable
                    else IsolationLevel.READ_UNCOMMITTED,
                    request_timeout=self._timeout,
                )
                return {tp.partition: future.result(self._timeout).offset for tp, future in futures.items()}
            except KafkaException as error:
                # a leader is being elected: the answer comes when there is one
                passes = error.args[0].retriable() or error.args[0].code() in _ELECTING
                if not passes or time.monotonic() > deadline:
                    raise self._failed(error.args[0]) from error
                time.sleep(0.02)  # polls for a condition, with a deadline
            except TimeoutError as error:
                raise self._failed() from error

    def offsets_at(self, topic: str, partitions: int, timestamp: int) -> dict[int, int]:
        """First offset of each partition at or after a time (ms since the epoch); else its end."""
        request: dict[TopicPartition, OffsetSpec] = {
            TopicPartition(topic, partition): OffsetSpec.for_timestamp(timestamp)
            for partition in range(partitions)
        }
        try:
            futures = self._admin.list_offsets(request, request_timeout=self._timeout)
            found = {tp.partition: future.result(self._timeout).offset for tp, future in futures.items()}
        except KafkaException as error:
            raise self._failed(error.args[0]) from error
        except TimeoutError as error:
            raise self._failed() from error
        ends = self.offsets(topic, partitions, "latest")
        return {partition: offset if offset >= 0 else ends[partition] for partition, offset in found.items()}

    def floors(self, group: str, topic: str, partitions: int, metadata: str) -> dict[int, int]:
        """Mirrored floors whose metadata is exactly `metadata`; partitions without one are left out."""
        wanted = [TopicPartition(topic, partition) for partition in range(partitions)]
        request = ConsumerGroupTopicPartitions(group, wanted)
        try:
            future = self._admin.list_consumer_group_offsets([request], request_timeout=self._timeout)[group]
            found = future.result(self._timeout).topic_partitions or []
        except KafkaException as error:
            raise self._failed(error.args[0]) from error
        except TimeoutError as error:
            raise self._failed() from error
        return {tp.partition: tp.offset for tp in found if tp.offset >= 0 and tp.metadata == metadata}

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """Offsets that a consumer group has committed; partitions without one are left out."""
        wanted = [TopicPartition(topic, partition) for partition in range(partitions)]
        request = ConsumerGroupTopicPartitions(group, wanted)
        try:
            future = self._admin.list_consumer_group_offsets([request], request_timeout=self._timeout)[group]
            found = future.result(self._timeout).topic_partitions or []
        except KafkaException as error:
            raise self._failed(error.args[0]) from error
        except TimeoutError as error:
            raise self._failed() from error
        return {tp.partition: tp.offset for tp in found if tp.offset >= 0}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int], *, metadata: str = "") -> None:
        """Set the offsets of a consumer group; raises `IllegalState` while it has members."""
        places = [TopicPartition(topic, partition, offset, metadata) for partition, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(group, places)
        try:
            future = self._admin.alter_consumer_group_offsets([request], request_timeout=self._timeout)[group]
            found = future.result(self._timeout).topic_partitions or []
        except KafkaException as error:
            raise refused(error.args[0], _NAME) or _group_in_use(group, error.args[0]) from error
        except TimeoutError as error:
            raise self._failed() from error
        for place in found:
            if place.error is not None:
                raise refused(place.error, _NAME) or _group_in_use(group, place.error)

    def _failed(self, error: KafkaError | None = None) -> KafkadurError:
        """The error for one of Kafka's, None: there was no answer in time."""
        if error is not None and (refusal := refused(error, _NAME)) is not None:
            return refusal
        self._admin.poll(0)  # it tells of refusals only then
        return self._refusals.error(_NAME) or _no_answer("time-out" if error is None else error.str())


def _group_in_use(group: str, error: KafkaError) -> IllegalState:
    return IllegalState(
        f"The offsets of consumer group {group} cannot be set.",
        state=error.str(),
        owner=f"consumer group {group}",
        remedy="stop its consumers first",
    )


def _no_answer(state: str) -> StateLost:
    return StateLost(
        "Kafka does not answer.",
        state=state,
        owner="Kafka",
        remedy="check that Kafka runs and can be reached, and that security.protocol is what its listener "
        "speaks; nothing is lost",
    )


def mirror_floors(consumer: Consumer, topic: str, floors: Mapping[int, int], metadata: str) -> None:
    """Commit floors under the consumer's group, without waiting.

    They are a best effort and never ahead of the truth.
    """
    if floors:
        consumer.commit(
            offsets=[
                TopicPartition(topic, partition, offset, metadata) for partition, offset in floors.items()
            ],
            asynchronous=True,
        )
