"""What a connection asks of Kafka, answered from topics in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

import confluent_kafka

from kafkadur.consumer.fetch_state import Reading
from kafkadur.fetch.kafka_thread import Receiver
from kafkadur.history.kafka_log import KafkaLog
from kafkadur.history.writer import HistoryLog
from kafkadur.message.tracing import Tracing
from kafkadur.runtime.dead_letters import DeadLetters, Letter
from kafkadur.runtime.kafka_clients import KafkaClients
from kafkadur.runtime.stages import Probe
from kafkadur.runtime.transactions import Transaction
from kafkadur.settings import Settings
from kafkadur.testing.log import Log, Topic
from kafkadur.testing.producing import MemoryProducer
from kafkadur.testing.readers import MemoryReaders
from kafkadur_coordinators.journal.records import Entry
from kafkadur_coordinators.journal.shard import Scan, Shard
from kafkadur_coordinators.journal.topic import Journal, Record
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.topics import TopicInfo, Topics
from kafkadur_sharing.errors import IllegalState, InvalidDestination

#: Shards of a journal in memory.
_SHARDS = 1


class MemoryClients(KafkaClients):
    """Makes the clients of a `Log`."""

    def __init__(self, settings: Settings, log: Log) -> None:
        """Answer from `log`."""
        super().__init__(settings)
        self._log = log

    def journal(self, *, checked: Journal | None = None) -> Journal:  # noqa: ARG002 - there is nothing to check
        """Return a client of the journal."""
        return MemoryJournal(self._log, self._settings.namespace)

    def topics(self) -> Topics:
        """Return a client that asks about topics."""
        return MemoryTopics(self._log)

    def dead_letters(self, tracing: Tracing | None = None) -> DeadLetters:
        """Return the writer of dead letters; `tracing` makes their spans."""
        return DeadLetters({}, client=self.producer, create=self._create, tracing=tracing)

    def history(self) -> HistoryLog:
        """Return what writes delivery histories."""
        return KafkaLog({}, client=self.producer, prepare=lambda topic, _kept: self._log.ensure(topic, 1))

    def _create(self, letter: Letter) -> None:
        origin = self._log.topic(letter.message.topic() or "")
        self._log.ensure(letter.topic, 1 if origin is None else len(origin.partitions))

    def producer(self, config: Mapping[str, Any]) -> confluent_kafka.Producer:  # noqa: ARG002 - it configures a network
        """Return the client of a producer."""
        return cast("confluent_kafka.Producer", MemoryProducer(self._log))

    def readers(self, receiver: Receiver, subscription: Subscription, probe: Probe) -> Reading:  # noqa: ARG002 - tests of kafkadur itself use it
        """Return the readers of a member."""
        return MemoryReaders(receiver, self._log, subscription.topic.name)

    def transaction(
        self,
        settings: Settings,  # noqa: ARG002 - it always raises
        *,
        journal: Journal,  # noqa: ARG002
        connection_id: str,  # noqa: ARG002
        config: Mapping[str, Any],  # noqa: ARG002
        outdated: Callable[[Subscription, int], None],  # noqa: ARG002
        tracing: Tracing | None = None,  # noqa: ARG002
        selective: bool = False,  # noqa: ARG002
    ) -> Transaction:
        """Raise `IllegalState`: only a real Kafka has transactions."""
        _refuse("transacted sessions")

    def elsewhere(self, settings: Settings) -> KafkaClients:  # noqa: ARG002 - it always raises
        """Raise `IllegalState`: there is one Kafka."""
        _refuse("members of distributed topics on another Kafka")


def _refuse(what: str) -> NoReturn:
    raise IllegalState(
        f"A Kafka in memory has no {what}.",
        owner="kafkadur.testing",
        remedy="test this with a real Kafka: the fixture kafkadur_stack",
    )


class MemoryTopics(Topics):
    """Answers the questions of connections about the topics of a `Log`."""

    def __init__(self, log: Log) -> None:
        """Make no client of Kafka."""
        self._log = log

    def rest(self) -> None:
        """There is nothing to release."""

    def close(self) -> None:
        """There is nothing to close."""

    def describe(self, topic: str) -> TopicInfo:
        """Id and partitions of a topic; raises `InvalidDestination` if there is none."""
        found = self._log.topic(topic)
        if found is None:
            raise InvalidDestination(
                "The topic does not exist.",
                owner=f"topic {topic}",
                remedy="create it first (InMemoryKafka.create_topic), or correct its name",
            )
        return TopicInfo(name=topic, id=found.id, partitions=len(found.partitions))

    def retention(self, topic: str) -> int | None:  # noqa: ARG002 - of any topic
        """Messages are kept for ever."""
        return None

    def offsets(self, topic: str, partitions: int, where: str, *, stable: bool = True) -> dict[int, int]:  # noqa: ARG002 - there are no transactions
        """First or end offset of each partition."""
        return {p: 0 if where == "earliest" else self._log.end(topic, p) for p in range(partitions)}

    def committed(
        self,
        group: str,  # noqa: ARG002 - no group commits anything here
        topic: str,  # noqa: ARG002
        partitions: int,  # noqa: ARG002
        *,
        metadata: str | None = None,  # noqa: ARG002
    ) -> dict[int, int]:
        """Nothing was committed."""
        return {}


class MemoryJournal(Journal):
    """The journal of a namespace in a topic of a `Log`."""

    def __init__(self, log: Log, namespace: str) -> None:
        """Create the topic if it does not exist."""
        super().__init__({}, namespace, shards=_SHARDS)
        self._log = log
        log.ensure(self.topic, _SHARDS)

    def transactions(self) -> Journal:
        """The topic of the offsets settled by transactions, of which there are none."""
        return self

    def close(self) -> None:
        """There is nothing to close."""

    @property
    def shards(self) -> int | None:
        """How many shards there are."""
        return _SHARDS

    def open(self) -> int:
        """Return the number of shards."""
        return _SHARDS

    def incarnations(self, until: Mapping[int, int], since: Mapping[int, int]) -> dict[int, Sequence[Entry]]:  # noqa: ARG002 - all are read
        """All incarnations in these shards."""
        return {shard: [entry for entry in self.read(shard) if entry.change is None] for shard in until}

    def _append(self, new: Sequence[Record]) -> list[int]:
        written = [self._log.append(self.topic, value, key, partition=shard) for shard, key, value in new]
        return [message.offset() or 0 for message in written if message is not None]

    def _scan(self, shards: Iterable[int], before: Scan | None = None) -> Scan:
        found: Scan = {
            shard: Shard() if before is None else before.setdefault(shard, Shard()) for shard in shards
        }
        topic = cast("Topic", self._log.topic(self.topic))
        for number, shard in found.items():
            for message in topic.partitions[number][shard.following :]:
                content = cast("tuple[bytes, bytes | None]", (message.key(), message.value()))
                shard.records.append((message.offset() or 0, *content, message.timestamp()[1]))
        return found
