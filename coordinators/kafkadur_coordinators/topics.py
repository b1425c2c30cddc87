"""Questions to Kafka about topics and groups: topic id, partitions, offsets, mirrored floors.

Mirrored floors are group offsets whose metadata names their subscription: without it, offsets of an earlier
subscription of the same name, or of a topic deleted and created again, would be taken for those of this one.
They are read here and written by the members' readers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType

from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.client_settings import without_statistics
from kafkadur_coordinators.kafka_refusal import NO_FILES, Refusals, refused
from kafkadur_coordinators.kept_client import Client, KeptClient
from kafkadur_coordinators.lost_brokers import ASK_S, SILENT_S, answers
from kafkadur_sharing.errors import (
    IllegalState,
    InvalidDestination,
    KafkadurError,
    KafkaUnavailable,
    TopicChanged,
)

#: The owner that errors name.
_NAME = "Kafka"
#: Errors that pass when a leader is elected; librdkafka calls only some of them retriable.
_ELECTING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the library's name for it: no partition has a leader
)
#: Isolation levels: offsets that no transaction changes any more, and all that are written.
_STABLE, _WRITTEN = "read_committed", "read_uncommitted"
#: Errors that say that no broker answered.
_SILENT = (
    KafkaError._TIMED_OUT,  # noqa: SLF001 - the library's name for it
    KafkaError._TRANSPORT,  # noqa: SLF001 - the library's name for it
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - the library's name for it
    KafkaError._DESTROY_BROKER,  # noqa: SLF001 - the library's name for it: no connection could be made
)
#: Errors that pass when the coordinator of a group is there.
_COORDINATING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError._WAIT_COORD,  # noqa: SLF001 - the library's name for it
    KafkaError._TRANSPORT,  # noqa: SLF001 - the library's name for it
)

T = TypeVar("T")


#: The broker that an admin client takes for the controller answers it. If that broker dies, the client finds
#: another one only when it refreshes its metadata: by default after five minutes.
_ASKING: Mapping[str, Any] = {"topic.metadata.refresh.interval.ms": 2_000}
#: For so long a Consumer may answer from what it knows, such as that a partition has no leader; an admin
#: client with `_ASKING` does so, too.
_METADATA_MS = 6_000


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


def asking_group(namespace: str) -> str:
    """Name of the group under which clients of a namespace ask for offsets."""
    return f"kafkadur:{namespace}:topics"


def known(offsets: dict[int, int], *, end: bool) -> dict[int, int]:
    """Return the offsets that Kafka's client answered, by partition, if it knows all of them.

    Right after a restart of a broker it may say without an error that an offset is invalid. Raises
    `KafkaException` then, as for a partition without a leader. -1 means that there is no such record, unless
    an `end` of the log was asked for: there is always one.
    """
    if any(offset < (0 if end else OFFSET_END) for offset in offsets.values()):
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    return offsets


class Topics:
    """Questions to Kafka about topics; any thread may ask, several at a time.

    Methods raise `KafkaUnavailable` when it does not answer in time, and at once when this process has no
    file descriptor left for a connection.
    """

    def __init__(
        self, kafka: Mapping[str, Any], *, timeout: float = 15.0, group: str = "kafkadur:topics"
    ) -> None:
        """`kafka` is confluent configuration; `timeout` in seconds. Raises `IllegalState` for a wrong one.

        `group` is for Consumers that ask for offsets: each needs a group's name, and commits nothing.
        """
        self._refusals = Refusals(kafka.get("error_cb"))
        self._config: dict[str, Any] = {**without_statistics(kafka), "error_cb": self._refusals}
        self._timeout = timeout
        # No methods of this object: the garbage collector would destroy the clients then, in any thread, and
        # in one of librdkafka's that ends the process.
        self._admin = KeptClient(partial(_admin_client, self._config))
        self._admin.get()  # raises an error for settings that are wrong
        #: isolation level -> a Consumer that asks for offsets
        self._askers = {
            level: KeptClient(partial(_consumer, self._config, group, level)) for level in (_STABLE, _WRITTEN)
        }
        self._pid = os.getpid()
        self._users = 1
        self._lock = threading.Lock()

    def share(self) -> bool:
        """Count a further user, who calls `close` as well; False: all users have closed it before."""
        with self._lock:
            shared = self._users > 0
            self._users += shared
        return shared

    def close(self) -> None:
        """Release the clients of Kafka, their threads and connections, if this is the last user.

        A later question makes others. A forked child leaves them alone: the threads their ends would wait
        for are the parent's.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
        self._admin.close()
        for asker in self._askers.values():
            asker.close()

    def rest(self) -> None:
        """Release those clients of Kafka that were not asked for a while; a later question makes others."""
        self._admin.rest()
        for asker in self._askers.values():
            asker.rest()

    def _ask(self, question: Callable[[AdminClient, float], T]) -> T:
        """Ask an admin client, see `_ask_by`."""
        return self._ask_by(self._admin, question)

    def _ask_by(self, kept: KeptClient[Client], question: Callable[[Client, float], T]) -> T:
        """Ask until there is an answer that stays, at most for the time-out.

        Other errors of Kafka than those that pass are raised as they are.
        """
        began = time.monotonic()
        deadline = began + self._timeout
        while True:
            left = max(deadline - time.monotonic(), 0.01)
            client = kept.get()
            try:
                return question(client, min(left, SILENT_S))
            except KafkaException as error:
                # a future, its error and the frames above would keep each other, and the client of Kafka
                error.__traceback__ = None
                code, state = error.args[0].code(), error.args[0].str()
                # librdkafka calls only some of the errors retriable that pass when a leader is elected
                if code not in _SILENT and code not in _ELECTING and not error.args[0].retriable():
                    raise
            except TimeoutError:
                code, state = KafkaError._TIMED_OUT, "time-out"  # noqa: SLF001 - the library's name for it
            if code in _SILENT:
                client.poll(0)  # it tells of refusals only then
                kept.renew(client)  # it may have lost Kafka for good
                if NO_FILES in (reason := self._refusals.unreached(since=began) or ""):
                    raise _no_files(reason)
            if time.monotonic() > deadline:
                raise self._failed(state)
            if code in _ELECTING:
                # Else the client goes on asking with the leader epoch it knows. Of all topics: a broker may
                # create, once more, a deleted one that an admin client asks for by its name.
                answers(client, timeout=max(min(deadline - time.monotonic(), ASK_S), 0.0))
            time.sleep(0.02)  # polls for a condition, with a deadline

    def _answer(self, question: Callable[[AdminClient, float], T]) -> T:
        """As `_ask`; all errors of Kafka are raised as ours."""
        return self._answer_by(self._admin, question)

    def _answer_by(self, kept: KeptClient[Client], question: Callable[[Client, float], T]) -> T:
        """As `_ask_by`; all errors of Kafka are raised as ours."""
        try:
            return self._ask_by(kept, question)
        except KafkaException as error:
            raise self._failed(error.args[0]) from error

    def _failed(self, error: KafkaError | str) -> KafkadurError:
        """The error for one of Kafka's, or for a question that was not answered in time."""
        if isinstance(error, KafkaError):  # else Kafka answered, or the client was polled
            if (refusal := refused(error, _NAME)) is not None:
                return refusal
            self._admin.get().poll(0)  # it tells of refusals only then
        return self._refusals.error(_NAME) or self._no_answer(
            self._refusals.unreached() or error if isinstance(error, str) else error.str()
        )

    def _no_answer(self, state: str) -> KafkaUnavailable:
        return KafkaUnavailable(
            "Kafka does not answer.",
            state=state,
            owner=f"Kafka at {self._config.get('bootstrap.servers', 'an unknown address')}",
            remedy="check that Kafka runs and can be reached, and that security.protocol is what its "
            "listener speaks; nothing is lost",
        )

    def reach(self) -> None:
        """Raise an error unless Kafka answers."""
        self._answer(lambda admin, seconds: admin.describe_cluster(request_timeout=seconds).result(seconds))

    def describe(self, topic: str) -> TopicInfo:
        """Id and partitions of a topic; raises `InvalidDestination` if there is none."""

        def question(admin: AdminClient, seconds: float) -> TopicInfo | None:
            found = admin.describe_topics(TopicCollection([topic]), request_timeout=seconds)
            description = found[topic].result(seconds)
            partitions = description.partitions
            if not partitions or any(p.leader is None for p in partitions):
                return None
            return TopicInfo(name=topic, id=str(description.topic_id), partitions=len(partitions))

        deadline = time.monotonic() + self._timeout
        while True:
            try:
                info = self._ask(question)
            except KafkaException as error:
                if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION):
                    raise InvalidDestination(
                        "The topic does not exist.",
                        state=error.args[0].str(),
                        owner=f"topic {topic}",
                        remedy="create the topic first, or correct its name",
                    ) from error
                raise self._failed(error.args[0]) from error
            if info is not None:
                return info
            if time.monotonic() > deadline:
                raise self._no_answer(f"topic {topic} has partitions without a leader")
            time.sleep(0.02)  # polls for a condition, with a deadline

    def retention(self, topic: str) -> int | None:
        """How long Kafka keeps a message of a topic at least, ms; None: it removes none for its age."""
        resource = ConfigResource(ResourceType.TOPIC, topic)

        def question(admin: AdminClient, seconds: float) -> dict[str, ConfigEntry]:
            futures = admin.describe_configs([resource], request_timeout=seconds)
            return cast("dict[str, ConfigEntry]", futures[resource].result(seconds))

        found = self._answer(question)
        if "delete" not in str(found["cleanup.policy"].value):
            return None
        kept = int(found["retention.ms"].value or -1)
        return None if kept < 0 else kept

    def offsets(self, topic: str, partitions: int, where: str, *, stable: bool = True) -> dict[int, int]:
        """First (`where="earliest"`) or end offset ("latest") of each partition.

        The end is behind the last stable offset; if not `stable`, behind all that is written, what open
        transactions hold included.
        """
        timestamp = OFFSET_BEGINNING if where == "earliest" else OFFSET_END
        return self._offsets(topic, partitions, timestamp, stable=stable)

    def offsets_at(self, topic: str, partitions: int, timestamp: int) -> dict[int, int]:
        """First offset of each partition at or after a time (ms since the epoch); else its end."""
        found = self._offsets(topic, partitions, max(timestamp, 0), stable=False)
        ends = self.offsets(topic, partitions, "latest")
        return {partition: offset if offset >= 0 else ends[partition] for partition, offset in found.items()}

    def _offsets(self, topic: str, partitions: int, timestamp: int, *, stable: bool) -> dict[int, int]:
        """First offset of each partition at or after a time; -1: there is none.

        `timestamp` in ms since the epoch, or `OFFSET_BEGINNING` or `OFFSET_END`, which stand for both ends.
        """
        wanted = [TopicPartition(topic, partition, timestamp) for partition in range(partitions)]

        def question(asker: Consumer, seconds: float) -> dict[int, int]:
            found = asker.offsets_for_times(wanted, timeout=seconds)
            for place in found:
                if place.error is not None:
                    raise KafkaException(place.error)
            return known({place.partition: place.offset for place in found}, end=timestamp < 0)

        return self._answer_by(self._askers[_STABLE if stable else _WRITTEN], question)

    def _find_offsets(
        self, wanted: list[TopicPartition], seconds: float, *, renew: bool
    ) -> list[TopicPartition]:
        """Ask once for offsets that no transaction changes any more; raises `KafkaException`.

        `wanted` has a time (ms since the epoch), `OFFSET_BEGINNING` or `OFFSET_END` in place of each offset.
        `renew`: with another client the next time, if Kafka does not answer this one.
        """
        kept = self._askers[_STABLE]
        asker = kept.get()
        try:
            return asker.offsets_for_times(wanted, timeout=seconds)
        except KafkaException as error:
            if renew and error.args[0].code() in _SILENT:
                kept.renew(asker)
            raise

    def floors(self, group: str, topic: str, partitions: int, metadata: str) -> dict[int, int]:
        """Mirrored floors whose metadata is exactly `metadata`; partitions without one are left out."""
        return self.committed(group, topic, partitions, metadata=metadata)

    def committed(
        self, group: str, topic: str, partitions: int, *, metadata: str | None = None
    ) -> dict[int, int]:
        """Offsets that a consumer group has committed; partitions without one are left out.

        `metadata`: only those that were committed with exactly this metadata.
        """
        with self._of_group(group) as consumer:
            found = self._find_committed(consumer, topic, range(partitions))
        wanted = (tp for tp in found if metadata is None or tp.metadata == metadata)
        return {tp.partition: tp.offset for tp in wanted if tp.offset >= 0}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int], *, metadata: str = "") -> None:
        """Set the offsets of a consumer group; raises `IllegalState` while it has members."""
        places = [TopicPartition(topic, partition, offset, metadata) for partition, offset in offsets.items()]
        with self._of_group(group) as consumer:
            # a commit without a known coordinator waits for one, most of a minute
            self._find_committed(consumer, topic, offsets)
            failed = _commit(consumer, places)
        if failed is not None:
            raise (
                self._failed(failed)
                if failed.code() in (*_SILENT, *_COORDINATING) or refused(failed, _NAME) is not None
                else _group_in_use(group, failed)
            )

    def _find_committed(
        self, consumer: Consumer, topic: str, partitions: Iterable[int]
    ) -> list[TopicPartition]:
        """The offsets that the group of a Consumer has committed."""
        deadline = time.monotonic() + self._timeout
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        found: list[TopicPartition] = []
        while True:
            try:
                left = max(deadline - time.monotonic(), 0.01)
                found = consumer.committed(wanted, timeout=min(left, SILENT_S))
                failed = next((place.error for place in found if place.error is not None), None)
            except KafkaException as error:
                failed = error.args[0]
            if failed is None:
                return found
            passes = failed.code() in (*_COORDINATING, *_SILENT) and time.monotonic() < deadline
            refusal = _refusal(consumer)
            if refusal is not None or not passes:
                raise self._failed(refusal or failed)
            time.sleep(0.02)  # polls for a condition, with a deadline

    @contextmanager
    def _of_group(self, group: str) -> Generator[Consumer]:
        """A Consumer that speaks for a group and does not become a member of it.

        The admin requests for offsets of groups are not used: if one times out before the group's coordinator
        is found, librdkafka ends the process as soon as that is (docs/internals/reliability.md). What
        transactions may still change counts, too.
        """
        consumer = _consumer(self._config, group, _WRITTEN)
        try:
            yield consumer
        finally:
            consumer.close()


def _admin_client(config: Mapping[str, Any]) -> AdminClient:
    try:
        return AdminClient({**_ASKING, **config}, logger=client_log)
    except KafkaException as error:
        raise IllegalState(
            "The settings of Kafka are refused.",
            state=error.args[0].str(),
            owner="librdkafka",
            remedy="correct the setting it names",
        ) from error


def _consumer(config: Mapping[str, Any], group: str, isolation: str) -> Consumer:
    own = {
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": isolation,
        "reconnect.backoff.ms": 1,  # the first one is waited before the coordinator is asked, too
        "metadata.max.age.ms": _METADATA_MS,
    }
    return Consumer({**config, **own}, logger=client_log)


def _refusal(consumer: Consumer) -> KafkaError | None:
    """The refusal that a Consumer got; it reports it only when polled, while the request times out."""
    for message in iter(lambda: consumer.poll(0.01), None):
        error = message.error()
        if error is not None and refused(error, _NAME) is not None:
            return error
    return None


def _commit(consumer: Consumer, places: list[TopicPartition]) -> KafkaError | None:
    """Commit and wait; return the error, if any."""
    try:
        found = consumer.commit(offsets=places, asynchronous=False) or []
    except KafkaException as error:
        return cast("KafkaError", error.args[0])
    return next((place.error for place in found if place.error is not None), None)


def _no_files(state: str) -> KafkaUnavailable:
    return KafkaUnavailable(
        "This process cannot open another connection to Kafka.",
        state=state,
        owner="this process",
        remedy="raise the limit of open files (ulimit -n), or attach fewer subscriptions in one process; "
        "then try again; nothing is lost",
    )


def _group_in_use(group: str, error: KafkaError) -> IllegalState:
    return IllegalState(
        f"The offsets of consumer group {group} cannot be set.",
        state=error.str(),
        owner=f"consumer group {group}",
        remedy="stop its consumers first",
    )


def topic_changed(topic: str, *, now: str, was: str, subscription: object) -> TopicChanged:
    """Return the error for a topic that has the id `now`, while its subscription was made for `was`."""
    return TopicChanged(
        state=f"topic id is {now}, the subscription was made for {was}",
        owner=f"topic {topic}, subscription {subscription}",
        remedy="unsubscribe, then subscribe again: old offsets mean nothing in the new topic",
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
