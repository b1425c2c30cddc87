"""Create topics, and list them with their sizes."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kafkadur_coordinators.lost_brokers import SILENT_S
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.errors import IllegalState, InvalidDestination, KafkaUnavailable
from kafkadur_sharing.names import validate_topic

#: Seconds between two looks at a new topic.
_LOOK_S = 0.05
#: Seconds to wait for the offsets of one topic, after those of all have not come.
_EACH_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Topic:
    """A topic of Kafka."""

    name: str
    partitions: int
    #: Replicas of the partition that has the fewest.
    replicas: int
    #: Offsets between the first and the end of each partition: messages, if nothing was compacted away. None:
    #: Kafka does not tell now, as while the topic is created or deleted.
    messages: int | None


class TopicAdmin(Topics):
    """Creates and lists topics. Methods raise `KafkaUnavailable` and `KafkaRefused`."""

    def create(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, and return when its partitions take messages.

        `replicas` -1: the default of the broker. Raises `InvalidDestination` for a wrong name, and
        `IllegalState` if there is such a topic, or if Kafka does not accept a value.
        """
        self._create(validate_topic(name), partitions, replicas, config or {})

    def ensure(self, name: str, *, config: Mapping[str, str], partitions: int = 1) -> None:
        """Create a topic of kafkadur itself if it does not exist.

        Another process may create it at the same time. Raises `IllegalState` if Kafka does not accept a
        value.
        """
        try:
            self.describe(name)
        except InvalidDestination:
            try:
                self._create(name, partitions, -1, config)
            except IllegalState as error:
                try:
                    self.describe(name)  # another process may have created it just now
                except InvalidDestination:
                    raise error from None

    def _create(self, name: str, partitions: int, replicas: int, config: Mapping[str, str]) -> None:
        new = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(config))

        tries = 0

        def question(admin: AdminClient, seconds: float) -> None:
            nonlocal tries
            tries += 1
            cast("Any", admin.create_topics([new], request_timeout=seconds))[name].result(seconds)

        try:
            self._ask(question)
        except KafkaException as error:
            exists = error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            if not (exists and tries > 1):  # else an earlier try, whose answer did not come, made it
                self._refuse(name, error.args[0])
        self._wait(name, partitions)

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        """Set settings of a topic; the others stay. Raises `IllegalState` if Kafka does not accept one."""
        entries = [
            ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
            for setting, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)

        def question(admin: AdminClient, seconds: float) -> None:
            futures = admin.incremental_alter_configs([resource], request_timeout=seconds)
            cast("Any", futures)[resource].result(seconds)

        try:
            self._ask(question)
        except KafkaException as error:
            self._refuse(name, error.args[0])

    def _refuse(self, name: str, error: KafkaError) -> None:
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            raise IllegalState(f"There is a topic {name} already.", owner="Kafka", remedy="use it")
        if error.code() in _WRONG:
            raise IllegalState(
                f"Topic {name} cannot be created.",
                state=error.str(),
                owner="Kafka",
                remedy="correct the number of partitions or replicas, or the setting it names",
            )
        raise self._failed(error)

    def _wait(self, name: str, partitions: int) -> None:
        """Wait until each partition has a leader that takes messages.

        Else the first messages would be refused and sent again, and lie behind later ones.
        """
        deadline = time.monotonic() + self._timeout
        while not self._takes_messages(name, partitions):
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"Topic {name} was created, but its partitions take no messages yet.",
                    owner="Kafka",
                    remedy="look at the brokers; the topic can be used when they are well",
                )
            time.sleep(_LOOK_S)  # polls for a condition, with a deadline

    def _takes_messages(self, name: str, partitions: int) -> bool:
        try:
            if self.describe(name).partitions < partitions:
                return False
            self.offsets(name, partitions, "latest")
        except (InvalidDestination, KafkaUnavailable):  # not every broker knows it yet
            return False
        return True

    def names(self) -> list[str]:
        """Return the names of all topics, except those of Kafka itself (`__...`)."""
        return list(self._found())

    def _found(self) -> dict[str, dict[int, Any]]:
        """Return the partitions of each topic, by name."""

        def question(admin: AdminClient, seconds: float) -> dict[str, Any]:
            return cast("dict[str, Any]", admin.list_topics(timeout=seconds).topics)

        return {
            name: topic.partitions
            for name, topic in sorted(self._answer(question).items())
            if not name.startswith("__")
        }

    def all(self) -> tuple[Topic, ...]:
        """Return all topics by name, except those of Kafka itself (`__...`)."""
        found = self._found()
        sizes = self._sizes({name: list(partitions) for name, partitions in found.items()})
        return tuple(
            Topic(
                name=name,
                partitions=len(partitions),
                replicas=min((len(each.replicas) for each in partitions.values()), default=0),
                messages=sizes[name],
            )
            for name, partitions in found.items()
        )

    def sizes(self, names: Collection[str]) -> dict[str, int | None]:
        """Return the number of offsets that Kafka keeps of those of these topics that there are."""
        return self._sizes({name: list(found) for name, found in self._found().items() if name in names})

    def _sizes(self, topics: Mapping[str, list[int]]) -> dict[str, int | None]:
        """Return the number of offsets of each topic that Kafka keeps; None where it does not tell."""
        places = [(name, partition) for name, partitions in topics.items() for partition in partitions]
        if not places:
            return dict.fromkeys(topics, 0)
        firsts, ends = self._ends(places, OFFSET_BEGINNING), self._ends(places, OFFSET_END)
        sizes: dict[str, int | None] = dict.fromkeys(topics, 0)
        for place in places:
            first, end, size = firsts[place], ends[place], sizes[place[0]]
            if first is None or end is None or size is None:
                sizes[place[0]] = None
            else:
                sizes[place[0]] = size + max(end - first, 0)  # less: the topic was made anew meanwhile
        return sizes

    def _ends(self, places: list[tuple[str, int]], end: int) -> dict[tuple[str, int], int | None]:
        """Return where the log of each partition begins or ends; None: Kafka does not tell.

        `end` is `OFFSET_BEGINNING` or `OFFSET_END`. If Kafka does not answer for one partition, its client
        answers for none. Each topic is asked for by itself then.
        """
        found: dict[tuple[str, int], int | None] = dict.fromkeys(places)
        try:
            return found | self._known_ends(places, end, min(self._timeout, SILENT_S), renew=True)
        except KafkaException:
            deadline = time.monotonic() + SILENT_S
        for _, partitions in groupby(places, itemgetter(0)):
            if time.monotonic() > deadline:
                break
            with suppress(KafkaException):
                found |= self._known_ends(list(partitions), end, _EACH_S, renew=False)
        return found

    def _known_ends(
        self, places: list[tuple[str, int]], end: int, seconds: float, *, renew: bool
    ) -> dict[tuple[str, int], int]:
        """Ask once, and leave out partitions without an answer; raises `KafkaException` if none has one."""
        wanted = [TopicPartition(name, partition, end) for name, partition in places]
        answered = self._find_offsets(wanted, seconds, renew=renew)
        return {
            (each.topic, each.partition): each.offset
            for each in answered
            if each.error is None and each.offset >= 0
        }


_WRONG = (
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_REQUEST,
    KafkaError.POLICY_VIOLATION,
)
