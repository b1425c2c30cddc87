"""The Kafka side of a transacted session: one transaction covers what was received and what was sent.

At a commit the offsets that the session settles are written into the topic of transactions beside the
journal, in the transaction that its messages are in; when Kafka has committed, Redis is told. Between the two
nothing is lost: who takes over looks the records up (`kafkadur_coordinators/transactions.py`). What a failed
commit came to is looked up in the same way, so it is always known in the end.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaException

from kafkadur.settings import Settings
from kafkadur.transacted_producer import TransactedProducer
from kafkadur_coordinators import checkpoints
from kafkadur_coordinators.journal import Journal
from kafkadur_coordinators.kafka_refusal import refused
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.origins import Origin, state_of
from kafkadur_coordinators.topics import Topics
from kafkadur_coordinators.transactions import (
    Transactions,
    place_of_ranges,
    says_settled,
    settings_of,
    with_offsets,
)
from kafkadur_sharing.errors import KafkadurError, StateLost, TransactionRolledBack

T = TypeVar("T")

#: Ranges of settled offsets at which they are confirmed in the journal, and then forgotten here.
MOST_RANGES = 500
#: How long one call to commit may take before what it came to is looked up, seconds.
_COMMIT_S = 30.0


class Part(NamedTuple):
    """What a session settles in one partition, or lane of keys, of a subscription."""

    subscription: Subscription
    lane: int
    #: under which the lane's leases were granted
    incarnation: int
    offsets: tuple[int, ...]


class Transaction:
    """The transactions of one session, one after the other.

    What talks to Kafka runs in a thread of its own, and is answered by futures.
    """

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        *,
        connection_id: str,
        config: Mapping[str, Any],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`journal` is that of transactions, `config` confluent-kafka configuration of the producer."""
        self.session = uuid.uuid4().hex
        self._settings = settings
        self._journal = journal
        self._connection_id = connection_id
        self._config = config
        self._monotonic = monotonic
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafkadur-transactions")
        self._producer: TransactedProducer | None = None
        #: what was settled and may not be in the journal yet: (shard, key) -> ranges
        self._settled: dict[tuple[int, bytes], list[tuple[int, int]]] = {}
        #: what a commit was to settle of which it is not known what it came to
        self.unknown: Sequence[Part] = ()

    def start(self) -> Future[None]:
        """Connect; raises what says that Kafka cannot be used for transactions."""
        return self._thread.submit(self._guarded, self._start)

    def _start(self) -> None:
        settings = self._settings
        config = settings_of({**settings.kafka, **self._config}, settings.namespace, self.session)
        self._journal.open()
        self._producer = TransactedProducer(
            config,
            settings.client_id,
            self._connection_id,
            timeout=settings.kafka_timeout.total_seconds(),
        )

    @property
    def producer(self) -> TransactedProducer:
        """The producer of the session."""
        if self._producer is None:
            raise StateLost(state="the session is not open", remedy="enter its context first")
        return self._producer

    # -- committing

    def commit(self, parts: Sequence[Part]) -> Future[None]:
        """Commit what was sent, and that these offsets are settled.

        Raises `TransactionRolledBack` if nothing of both holds, and `StateLost` if that is not known yet:
        then `look_up` comes next.
        """
        return self._thread.submit(self._guarded, lambda: self._commit(parts))

    def _commit(self, parts: Sequence[Part]) -> None:
        producer = self.producer
        if not parts and not producer.is_open:
            return
        records = {self._place(part): self._with(part) for part in parts}
        try:
            for (shard, key), ranges in records.items():
                value = checkpoints.encode(place_of_ranges(ranges))
                producer.produce_settled(self._journal.topic, shard, key, value)
            self._end(producer)
        except KafkaException as error:
            self.unknown = parts
            self._after(error)  # raises if it was rolled back
        self._settled |= records

    def _end(self, producer: TransactedProducer) -> None:
        deadline = self._monotonic() + _COMMIT_S
        while True:
            try:
                producer.commit(_COMMIT_S)
            except KafkaException as error:
                if not error.args[0].retriable() or self._monotonic() > deadline:
                    raise
            else:
                return

    def _after(self, error: KafkaException) -> None:
        """A commit failed: roll back where that is certain, else look up what it came to."""
        producer, reason = self.producer, error.args[0]
        if reason.txn_requires_abort():
            with contextlib.suppress(KafkaException):
                producer.abort(_COMMIT_S)
                self.unknown = ()
                raise _rolled_back(reason.str())
        self._look_up(reason.str())

    def look_up(self) -> Future[None]:
        """Find out what an unknown commit came to; raises as `commit`."""
        return self._thread.submit(self._guarded, lambda: self._look_up("it was not known"))

    def _look_up(self, reason: str) -> None:
        """Raises `TransactionRolledBack` unless it was committed."""
        parts = self.unknown
        self.producer.renew()  # from now on it is committed, or never
        topics = Topics(self._settings.kafka, timeout=self._settings.kafka_timeout.total_seconds())
        found = Transactions(self._journal, topics)
        for part in parts:
            shard = found.settled(part.subscription.key.tag, ())
            origin = _origin(part.subscription)
            key = self._place(part)[1]
            said = [item.place for item in shard.checkpoints_of(origin.id) if item.key == key]
            if not any(says_settled(place, part.offsets) for place in said):
                self.unknown = ()
                raise _rolled_back(reason)
        self.unknown = ()
        if not parts:
            raise _rolled_back(reason)

    def _place(self, part: Part) -> tuple[int, bytes]:
        """Where the record of a part lies: shard, and key."""
        shard = self._journal.shard(part.subscription.key.tag)
        return shard, checkpoints.key_of(
            _origin(part.subscription), part.lane, self.session, part.incarnation
        )

    def _with(self, part: Part) -> list[tuple[int, int]]:
        return with_offsets(self._settled.get(self._place(part), ()), part.offsets)

    @property
    def is_long(self) -> bool:
        """Whether what was settled is to be confirmed in the journal, and then forgotten here."""
        return sum(map(len, self._settled.values())) > MOST_RANGES

    def forget(self) -> None:
        """All that was settled is in the journal now."""
        self._settled.clear()

    # -- rolling back

    def roll_back(self) -> Future[None]:
        """Roll back what was sent. Raises `StateLost` when Kafka does not answer."""
        return self._thread.submit(self._guarded, self._roll_back)

    def _roll_back(self) -> None:
        producer = self.producer
        try:
            producer.abort(_COMMIT_S)
        except KafkaException:
            producer.renew()  # which rolls it back, too

    def close(self) -> Future[None]:
        """Close the clients; what is open is rolled back by Kafka."""
        done = self._thread.submit(self._close)
        self._thread.shutdown(wait=False)
        return done

    def _close(self) -> None:
        if self._producer is not None:
            with contextlib.suppress(KafkadurError, KafkaException):
                self._producer.abort(_COMMIT_S)
            with contextlib.suppress(KafkadurError):
                self._producer.close(0)
        self._journal.close()

    @staticmethod
    def _guarded(job: Callable[[], T]) -> T:
        """Turn what Kafka's client raises into errors of the project."""
        try:
            return job()
        except KafkaException as error:
            reason = error.args[0]
            raise (
                refused(reason, "the transacted session")
                or StateLost(
                    "Kafka cannot be used for a transaction.",
                    state=reason.str(),
                    owner="the transacted session",
                    remedy="check that Kafka runs and can be reached, then commit or roll back again",
                )
            ) from error


def _origin(subscription: Subscription) -> Origin:
    state = state_of(subscription.topic.id, subscription.definition.lanes)
    return Origin(subscription.id, subscription.epoch, state)


def _rolled_back(reason: str) -> TransactionRolledBack:
    return TransactionRolledBack(
        state=reason,
        owner="the transacted session",
        remedy="do nothing: its messages come again; nobody who reads what is committed sees what it sent",
    )
