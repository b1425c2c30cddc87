"""The Kafka side of a transacted session: one transaction covers received and sent messages.

A commit writes the settled offsets into the topic of transactions beside the journal, in the transaction of
the sent messages; when Kafka has committed, they are settled in Redis. If the process ends in between, the
next member looks the offsets up in Kafka (`kafkadur_coordinators/transactions.py`). The outcome of a failed
commit is looked up in the same way, so it becomes known in the end.
"""

from __future__ import annotations

import contextlib
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaException

from kafkadur.message.tracing import Tracing
from kafkadur.producer.transacted import TransactedProducer
from kafkadur.runtime.clients import topics_of
from kafkadur.settings import Settings
from kafkadur_coordinators.client_settings import without_statistics
from kafkadur_coordinators.journal import checkpoints
from kafkadur_coordinators.journal.origins import Origin, state_of
from kafkadur_coordinators.journal.records import last_incarnation
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_coordinators.kafka_refusal import refused
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.transactions import (
    Ranges,
    Transactions,
    settings_of,
    settlement_of_ranges,
    with_offsets,
)
from kafkadur_sharing.errors import IllegalState, KafkadurError, KafkaUnavailable, TransactionRolledBack

T = TypeVar("T")

#: Ranges of settled offsets at which they are moved into the journal.
MOST_RANGES = 500
#: Ranges in one record, of at most 18 bytes each: so a record is never cut short.
_RANGES_A_RECORD = 10_000
#: Seconds that a commit may take before its outcome is looked up.
_COMMIT_S = 30.0


class Part(NamedTuple):
    """The offsets that a session settles in one lane of a subscription."""

    subscription: Subscription
    lane: int
    #: incarnation under which the leases of these offsets were granted
    incarnation: int
    offsets: tuple[int, ...]


class _Lane(NamedTuple):
    """A lane of a subscription under one incarnation."""

    tag: str
    origin: Origin
    number: int
    incarnation: int


class Transaction:
    """The transactions of one session, one after the other.

    All calls to Kafka run in a thread of its own; their results are futures.
    """

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        *,
        connection_id: str,
        config: Mapping[str, Any],
        outdated: Callable[[Subscription, int], None] = lambda _subscription, _incarnation: None,
        tracing: Tracing | None = None,
        selective: bool = False,
    ) -> None:
        """Use and close `journal`; `config` is confluent-kafka configuration of the producer.

        `outdated` is called with a subscription of which the journal has a later incarnation than its
        members: until it is rebuilt, none of its messages can be committed. `tracing` as in `Producer`.
        `selective`: the caller names the deliveries of each commit, and gives verdicts on the others.
        """
        self.selective = selective
        self._outdated = outdated
        #: makes spans; None: there are none
        self.tracing = tracing
        self.session = uuid.uuid4().hex
        self._settings = settings
        self._journal = journal
        self._beside = journal.transactions()
        self._topics = topics_of(settings)
        self._transactions = Transactions(self._beside, self._topics)
        self._connection_id = connection_id
        self._config = config
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafkadur-transactions")
        self._producer: TransactedProducer | None = None
        #: settled offsets that are not in the journal yet
        self._settled: dict[_Lane, Ranges] = {}
        #: keys of records in the topic, by tag, to be removed because the journal has their offsets
        self._moved: dict[str, list[bytes]] = {}
        #: whether it is closed and all that it committed is in the journal: no member has to look it up
        self.closed_in_order = False
        #: offsets of a commit whose outcome is unknown
        self._undecided: dict[_Lane, Ranges] = {}
        self.unknown = False
        #: number of the last commit, and number of moves into the journal; both are parts of keys
        self._number = 0
        self._generation = 0
        #: tags of the subscriptions whose incarnation was checked since the producer's last renewal
        self._looked_at: set[str] = set()
        self._looked_since = -1

    def start(self) -> Future[None]:
        """Connect. Raises `KafkaUnavailable` and `KafkaRefused` if Kafka cannot be used for transactions."""
        return self._run(self._start)

    def _start(self) -> None:
        settings = self._settings
        known = without_statistics({**settings.kafka, **self._config})
        config = settings_of(known, settings.namespace, self.session)
        self._beside.open()
        self._producer = TransactedProducer(
            config,
            settings.client_id,
            self._connection_id,
            timeout=settings.kafka_timeout.total_seconds(),
            tracing=self.tracing,
        )

    @property
    def is_started(self) -> bool:
        """Whether it has connected."""
        return self._producer is not None

    @property
    def producer(self) -> TransactedProducer:
        """The producer of the session; raises `IllegalState` before the start."""
        if self._producer is None:
            raise IllegalState(
                "The transacted session is not open.",
                state="it has no producer yet",
                owner="the session",
                remedy="enter its context, or call open(), first",
            )
        return self._producer

    # -- committing

    def commit(self, parts: Sequence[Part]) -> Future[None]:
        """Commit the sent messages, and that these offsets are settled.

        Raises `TransactionRolledBack` if neither was committed; `KafkaUnavailable` and `KafkaRefused` if
        Kafka does not answer: if the outcome is `unknown` then, call `look_up` next, else nothing was done.
        """
        return self._run(lambda: self._commit(parts))

    def _commit(self, parts: Sequence[Part]) -> None:
        producer = self.producer
        if not parts and not producer.is_open:
            return
        producer.begin()
        self._look_at(producer, parts)
        lanes = {_lane(part): part.offsets for part in parts}
        self._undecided = {
            lane: with_offsets(self._settled.get(lane, ()), offsets) for lane, offsets in lanes.items()
        }
        self._number += 1
        self.unknown = True
        deadline = time.monotonic() + _COMMIT_S
        shard, key = self._mark
        records = [*self._records(self._undecided), (shard, key, str(self._number).encode())]
        try:
            for record in records:
                producer.produce_settled(self._beside.topic, *record, deadline=deadline)
            self._end(producer, deadline)
        except KafkaException as error:
            self._after(error.args[0])
        else:
            self._committed()

    def _end(self, producer: TransactedProducer, deadline: float) -> None:
        while True:
            try:
                producer.commit(max(deadline - time.monotonic(), 1.0))
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _committed(self) -> None:
        self._settled.update(self._undecided)
        self._undecided = {}
        self.unknown = False
        if sum(map(len, self._settled.values())) > MOST_RANGES:
            with contextlib.suppress(KafkadurError):  # the next commit tries it again
                self._move()

    def _after(self, reason: Any) -> None:  # noqa: ANN401 - KafkaError, whose stubs lack its predicates
        """After a failed commit: roll back where Kafka requires that, else look up the outcome."""
        if reason.txn_requires_abort():
            with contextlib.suppress(KafkaException):
                self.producer.abort(_COMMIT_S)
                raise self._rolled_back(reason.str())
        self._look_up(reason.str())

    def look_up(self) -> Future[None]:
        """Find out the outcome of a commit; raises as `commit`."""
        return self._run(lambda: self._look_up("Kafka had not answered"))

    def _look_up(self, reason: str) -> None:
        """Raises `TransactionRolledBack` unless it was committed."""
        self.producer.renew()  # after this Kafka does not commit it any more
        shard, key = self._mark
        if int(self._transactions.read(shard).last(key) or 0) < self._number:
            raise self._rolled_back(reason)
        self._committed()

    def _look_at(self, producer: TransactedProducer, parts: Sequence[Part]) -> None:
        """Check that the journal has no later incarnation than that of the leases, else roll back.

        A process that begins a later incarnation writes it to the journal before it ends the transactions of
        this session: either it is found here, or the transaction is ended. A renewed producer was not ended
        because of earlier incarnations, so the check is done once for each producer.
        """
        if self._looked_since != producer.renewals:
            self._looked_since = producer.renewals
            self._looked_at.clear()
        for part in parts:
            subscription, tag = part.subscription, part.subscription.key.tag
            if tag in self._looked_at:
                continue
            latest = last_incarnation(self._journal.read(self._journal.shard(tag)), tag)
            if any(latest > each.incarnation for each in parts if each.subscription.key.tag == tag):
                self._outdated(subscription, latest)
                self._roll_back(anew=False)
                raise self._rolled_back("others have the messages by now")
            self._looked_at.add(tag)

    def _rolled_back(self, reason: str) -> TransactionRolledBack:
        self._undecided = {}
        self.unknown = False
        return rolled_back(reason)

    def taken_over(self) -> None:
        """A member of the session attached again: others may have ended the open transaction. Any thread."""
        producer = self._producer
        if producer is not None:
            producer.taken_over()
            with contextlib.suppress(RuntimeError):  # it was closed meanwhile
                self._thread.submit(producer.renew_if_stale)

    # -- records

    @property
    def _mark(self) -> tuple[int, bytes]:
        """Shard and key of the record with the number of the last commit."""
        return zlib.crc32(self.session.encode()) % self._beside.open(), f"commit/{self.session}".encode()

    def _records(self, settled: Mapping[_Lane, Ranges]) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the records that say that these ranges are settled: shard, key, value."""
        for lane, ranges in settled.items():
            shard = self._beside.shard(lane.tag)
            for at in range(0, len(ranges), _RANGES_A_RECORD):
                writer = f"{self.session}-{self._generation}-{at}"
                key = checkpoints.key_of(lane.origin, lane.number, writer, lane.incarnation)
                place = settlement_of_ranges(ranges[at : at + _RANGES_A_RECORD])
                yield shard, key, checkpoints.encode(place)

    def _move(self) -> None:
        """Move the settled offsets into the journal, which removes outdated records by itself."""
        records = {
            lane: list(self._records({lane: ranges})) for lane, ranges in self._settled.items() if ranges
        }
        self._journal.append(
            [
                (self._journal.shard(lane.tag), key, value)
                for lane, some in records.items()
                for _, key, value in some
            ]
        )
        self._settled.clear()
        self._generation += 1
        for lane, some in records.items():
            self._moved.setdefault(lane.tag, []).extend(key for _, key, _ in some)
        for tag in list(self._moved):
            self._transactions.forget(tag, self._moved[tag])
            del self._moved[tag]

    # -- rolling back

    def roll_back(self, *, anew: bool = False) -> Future[None]:
        """Roll back the sent messages; `anew`: with a new producer, because another process took over.

        Raises `KafkaUnavailable` when Kafka does not answer.
        """
        return self._run(lambda: self._roll_back(anew=anew))

    def _roll_back(self, *, anew: bool) -> None:
        if not anew:
            with contextlib.suppress(KafkaException):
                self.producer.abort(_COMMIT_S)
                return
        self.producer.renew()  # this rolls back, too

    def close(self) -> Future[None]:
        """Roll back the open transaction, move the settled offsets into the journal, and close the clients.

        Raises `KafkaUnavailable` if the journal could not be written: then the next member looks the offsets
        up.
        """
        done = self._run(self._close)
        self._thread.shutdown(wait=False)
        return done

    def _close(self) -> None:
        producer = self._producer
        try:
            if producer is not None:
                with contextlib.suppress(KafkaException):
                    producer.abort(_COMMIT_S)
                if not self.unknown:
                    self._move()
                    shard, key = self._mark
                    self._beside.append([(shard, key, None)])
                    self.closed_in_order = True
        finally:
            if producer is not None:
                producer.end()
            self._journal.close()
            self._topics.close()

    def _run(self, job: Callable[[], T]) -> Future[T]:
        return self._thread.submit(_guarded, job)


def rolled_back(reason: str) -> TransactionRolledBack:
    """Return the error for a transaction that was rolled back."""
    return TransactionRolledBack(
        state=reason,
        owner="the transacted session",
        remedy="do nothing: its messages are delivered again; readers of committed messages see none of it",
    )


def _guarded(job: Callable[[], T]) -> T:
    """Run a job, with the errors of Kafka's client turned into errors of kafkadur."""
    try:
        return job()
    except KafkaException as error:
        reason = error.args[0]
        raise (
            refused(reason, "the transacted session")
            or KafkaUnavailable(
                "Kafka cannot be used for a transaction.",
                state=reason.str(),
                owner="the transacted session",
                remedy="check that Kafka runs and can be reached, then commit or roll back again",
            )
        ) from error


def _lane(part: Part) -> _Lane:
    found = part.subscription
    state = state_of(found.topic.id, found.definition.lanes)
    return _Lane(found.key.tag, Origin(found.id, found.epoch, state), part.lane, part.incarnation)
