"""Offsets settled by transactions of Kafka, read when it is not known which of these were committed.

A transacted session writes what it settles into a topic beside the journal, in the transaction that its
messages are sent in; only then it reports to Redis. A process that rebuilds a subscription, or takes over
from a dead session, first makes sure that these sessions cannot commit any more (their transactional ids get
a new owner), then reads the committed records. These are checkpoints (`checkpoints.py`) in which only the
offsets of the session are settled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer

from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.journal.shard import Shard
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_coordinators.kafka_refusal import Refusals, refused
from kafkadur_coordinators.settlement_states import SettlementState, Waiting
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.errors import KafkaUnavailable

#: Seconds between checks whether open transactions have ended.
_LOOK_EVERY = 0.05

#: Beginnings of the settings that say how Kafka is reached.
_OF_CONNECTING = (
    *("bootstrap.", "broker.", "client.", "debug", "enable.sasl", "enable.ssl", "https.", "log", "metadata."),
    *("oauth", "resolve_cb", "sasl.", "security.", "socket.keepalive", "socket.nagle", "ssl", "statistics"),
)

#: Offsets as ranges: start, end (exclusive), sorted, without overlap.
Ranges = Sequence[tuple[int, int]]


def transactional_id(namespace: str, session: str) -> str:
    """The transactional id of a session in Kafka."""
    return f"kafkadur:{namespace}:{session}"


def settings_of(kafka: Mapping[str, Any], namespace: str, session: str) -> dict[str, Any]:
    """confluent-kafka configuration of the producer of a session."""
    return {
        **kafka,
        "transactional.id": transactional_id(namespace, session),
        "enable.idempotence": True,
        "acks": "all",
    }


class Transactions:
    """The offsets that transacted sessions of a namespace have settled. One thread at a time."""

    def __init__(self, journal: Journal, topics: Topics) -> None:
        """`journal` is that of transactions. Connects at the first use."""
        self._journal = journal
        self._topics = topics

    def settled(
        self, tag: str, sessions: Iterable[str], *, between: Callable[[], object] = lambda: None
    ) -> Shard:
        """Offsets that these sessions have settled of a subscription; they can commit no more afterwards.

        Each takes Kafka a moment: `between` is called after each. A session that is alive notices at its next
        commit, which is rolled back. Raises `KafkaUnavailable` when Kafka does not answer, or when a
        transaction of another session does not end in time; `KafkaRefused`.
        """
        for session in sessions:
            self._fence(session)
            between()
        return self.read(self._journal.shard(tag))

    def read(self, number: int) -> Shard:
        """All records of a shard whose transactions began before now. Raises as `settled`."""
        self._wait_for_open_ones(number)
        return self._journal.read_shards([number])[number]

    def forget(self, tag: str, keys: Iterable[bytes]) -> None:
        """Remove checkpoints of a subscription that the journal itself holds now.

        Raises `KafkaUnavailable`.
        """
        number = self._journal.shard(tag)
        self._journal.append([(number, key, None) for key in keys])

    def _fence(self, session: str) -> None:
        journal = self._journal
        refusals = Refusals(journal.kafka.get("error_cb"))
        # settings for the application's own producers may not be allowed with transactions
        known = {name: value for name, value in journal.kafka.items() if name.startswith(_OF_CONNECTING)}
        config = settings_of(known, journal.namespace, session) | {"error_cb": refusals}
        producer: Producer | None = None
        try:
            producer = Producer(config, logger=client_log)
            producer.init_transactions(journal.timeout)
        except KafkaException as error:
            owner = f"transactional id {transactional_id(journal.namespace, session)}"
            raise (
                refused(error.args[0], owner)
                or refusals.error(owner)
                or KafkaUnavailable(
                    "It is not known what a transacted session has committed.",
                    state=error.args[0].str(),
                    owner=owner,
                    remedy="check that Kafka runs and can be reached; nothing is delivered until it is known",
                )
            ) from error
        finally:
            if producer is not None:
                producer.close()

    def _wait_for_open_ones(self, number: int) -> None:
        """Wait until all written records can be read: those behind an open transaction cannot."""
        topic, count = self._journal.topic, self._journal.open()
        end = self._topics.offsets(topic, count, "latest", stable=False)[number]
        deadline = time.monotonic() + self._journal.timeout
        while self._topics.offsets(topic, count, "latest")[number] < end:
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    "A transaction is open that holds back what others have committed.",
                    state=f"{topic}[{number}] cannot be read up to {end}",
                    owner="a transacted session of this namespace",
                    remedy="wait until it is committed or rolled back: Kafka does so after its time-out",
                )
            time.sleep(_LOOK_EVERY)  # polls for a condition, with a deadline


def with_offsets(ranges: Ranges, offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Ranges and more offsets, joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted([*ranges, *((offset, offset + 1) for offset in offsets)]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def settlement_of_ranges(ranges: Ranges) -> SettlementState:
    """The settlement state that says of these offsets, and of nothing else, that they are settled."""
    waiting: list[Waiting] = []
    at = 0
    for start, end in ranges:
        if start > at:
            waiting.append(Waiting(at, start))
        at = end
    return SettlementState(next=at, waiting=tuple(waiting))
