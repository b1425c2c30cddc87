"""Makes what talks to Kafka for one connection.

`kafkadur/testing` has another one, which keeps topics in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka

from kafkadur.consumer.fetch_state import Reading
from kafkadur.fetch.common_tail import CommonTail
from kafkadur.fetch.fetchers import Fetchers
from kafkadur.fetch.group_floors import GroupFloors
from kafkadur.fetch.kafka_thread import Receiver
from kafkadur.fetch.tail_fetcher import TailFetcher
from kafkadur.history.kafka_log import KafkaLog
from kafkadur.history.writer import HistoryLog
from kafkadur.message.tracing import Tracing
from kafkadur.producer.client import new_client
from kafkadur.runtime.clients import journal_of, topics_of
from kafkadur.runtime.dead_letters import DeadLetters
from kafkadur.runtime.stages import Probe
from kafkadur.runtime.transactions import Transaction
from kafkadur.settings import Settings
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.topics import Topics


class KafkaClients:
    """Makes the clients of the Kafka that `settings` name. Nothing connects before it is used."""

    def __init__(self, settings: Settings) -> None:
        """Store the settings; the clients that are made from them check them."""
        self._settings = settings
        self._lock = threading.Lock()
        self._topics: Topics | None = None
        #: by name and id of the topic
        self._common: dict[tuple[str, str], CommonTail] = {}
        self._floors = GroupFloors(self.topics)

    def journal(self, *, checked: Journal | None = None) -> Journal:
        """Return a client of the journal; `checked` is one that has already checked the topic."""
        return journal_of(self._settings, checked=checked)

    def topics(self) -> Topics:
        """Return the client that asks about topics, for a user who closes it; any thread.

        All users have the same one: a client of Kafka has several threads and connections. Raises
        `IllegalState` for wrong settings.
        """
        with self._lock:
            if self._topics is None or not self._topics.share():
                self._topics = topics_of(self._settings)
            return self._topics

    def dead_letters(self, tracing: Tracing | None = None) -> DeadLetters:
        """Return the writer of dead letters; `tracing` makes their spans."""
        return DeadLetters(self._settings.kafka, tracing=tracing)

    def history(self) -> HistoryLog:
        """Return what writes delivery histories."""
        return KafkaLog(self._settings.kafka)

    def producer(self, config: Mapping[str, Any]) -> confluent_kafka.Producer:
        """Return the client of a producer; raises `KafkaException` for a wrong configuration."""
        return new_client(config)

    def readers(self, receiver: Receiver, subscription: Subscription, probe: Probe) -> Reading:
        """Return the readers of a member, which give `receiver` the records of its topic.

        Members of a connection are attached one after the other, so this needs no lock.
        """
        topic, group = subscription.topic, subscription.key.group
        common = self._common.get((topic.name, topic.id))
        if common is None:

            def tail(common: CommonTail) -> TailFetcher:
                return TailFetcher(
                    member=common,
                    kafka=self._settings.kafka,
                    topic=topic.name,
                    topic_id=topic.id,
                    group=group,
                    floor_metadata="",
                    mirror=common.mirror_floors,
                    probe=probe,
                )

            common = self._common[topic.name, topic.id] = CommonTail(topic.name, tail)
        return Fetchers(
            receiver,
            kafka=self._settings.kafka,
            topic=topic.name,
            topic_id=topic.id,
            group=group,
            floor_metadata=subscription.floor_metadata,
            common=common,
            floors=self._floors,
            probe=probe,
        )

    def transaction(
        self,
        settings: Settings,
        *,
        journal: Journal,
        connection_id: str,
        config: Mapping[str, Any],
        outdated: Callable[[Subscription, int], None],
        tracing: Tracing | None = None,
        selective: bool = False,
    ) -> Transaction:
        """Return the transactions of a new session; parameters as of `Transaction`.

        `settings` are those of the connection now: its client id may have been set since it was opened.
        `journal` is one that has already checked the topic.
        """
        return Transaction(
            settings,
            self.journal(checked=journal),
            connection_id=connection_id,
            config=config,
            outdated=outdated,
            tracing=tracing,
            selective=selective,
        )

    def elsewhere(self, settings: Settings) -> KafkaClients:
        """Return the clients of another Kafka, for the members of a distributed topic that are there."""
        return KafkaClients(settings)
