"""The journal: one compacted Kafka topic a namespace that holds what must survive the loss of Redis.

Here is its input and output: create and check the topic, append a record and wait until it is durable, read
a shard to its end. What the records mean is `records.py`. One `Journal` is used by one thread at a time.
"""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.client_settings import without_statistics
from kafkadur_coordinators.journal import records
from kafkadur_coordinators.journal.checkpoints import superseded
from kafkadur_coordinators.journal.origins import Origin, origin_of
from kafkadur_coordinators.journal.records import Change, Entry, by_tag, in_force
from kafkadur_coordinators.journal.shard import CHANGE, INCARNATION, SHARDS, Scan, Shard
from kafkadur_coordinators.journal.topic_config import TOPIC_CONFIG, weaknesses
from kafkadur_coordinators.kafka_refusal import Refusals, refused
from kafkadur_coordinators.kept_client import REST_S, end
from kafkadur_coordinators.lost_brokers import SILENT_S, answers
from kafkadur_sharing.errors import CoordinatorRefused, KafkadurError, KafkaUnavailable
from kafkadur_sharing.names import JOURNAL_PREFIX, TRANSACTIONS_PREFIX

#: Partitions of a new journal.
DEFAULT_SHARDS = 64
#: Errors of the records of a producer that was replaced.
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)  # noqa: SLF001 - the library's names for them
#: One record to be appended: shard, key, value (None: the key's records may go).
Record = tuple[int, bytes, bytes | None]


def transactions_topic(namespace: str) -> str:
    """Name of the topic that holds the offsets settled by transactions."""
    return TRANSACTIONS_PREFIX + namespace


def journal_topic(namespace: str) -> str:
    """Name of the topic that holds the journal of a namespace."""
    return JOURNAL_PREFIX + namespace


class Journal:
    """The journal of one namespace.

    Every method that talks to Kafka raises `KafkaUnavailable` when Kafka does not answer.
    """

    def __init__(
        self,
        kafka: Mapping[str, Any],
        namespace: str,
        *,
        shards: int = DEFAULT_SHARDS,
        replication: int = -1,
        timeout: float = 15.0,
        checked: Journal | None = None,
        transactions: bool = False,
    ) -> None:
        """Remember where the journal is; connects at the first use.

        `kafka` is confluent configuration (at least bootstrap.servers); `shards` counts for a new topic only;
        `replication` -1 takes the broker's default; `timeout` in seconds. `checked` is another
        `Journal` of the same topic: if that one has checked the topic, this one does not. `transactions`: use
        the topic of the offsets settled by transactions: an open transaction delays its readers alone.
        """
        self._refusals = Refusals(kafka.get("error_cb"))
        self._config: dict[str, Any] = {**without_statistics(kafka), "error_cb": self._refusals}
        self.topic = transactions_topic(namespace) if transactions else journal_topic(namespace)
        # the client requires a group; no offsets are committed
        self._group = f"kafkadur:{namespace}:journal"
        self._shards = shards
        self._replication = replication
        self.timeout = timeout
        self.kafka = kafka
        self.namespace = namespace
        self._count: int | None = None if checked is None else checked.shards
        #: whether it has to be looked at again
        self._doubted = False
        self._beside: Journal | None = None
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._follower: Consumer | None = None
        #: when a client was used last (monotonic seconds)
        self._used_at = time.monotonic()
        #: of the follower, by shard: first offset, next offset, and the incarnations it has read
        self._began: dict[int, int] = {}
        self._passed: dict[int, int] = {}
        self._incarnations: dict[int, list[Entry]] = {}

    def transactions(self) -> Journal:
        """The topic of the offsets settled by transactions; it is closed with this one."""
        if self._beside is None:
            self._beside = Journal(
                self.kafka,
                self.namespace,
                shards=self._shards,
                replication=self._replication,
                timeout=self.timeout,
                transactions=True,
            )
        return self._beside

    def close(self) -> None:
        """Close the clients."""
        if self._beside is not None:
            self._beside.close()
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None
        self._forget_follower()
        self._producer = None

    def rest(self) -> None:
        """Release the clients if none was used for a while; the next call makes others."""
        if self._beside is not None:
            self._beside.rest()
        clients = [each for each in (self._consumer, self._follower, self._producer) if each is not None]
        if clients and time.monotonic() - self._used_at > REST_S:
            self._consumer = self._follower = self._producer = None  # another follower goes on where it was
            end(clients, close=True)

    def _forget_follower(self) -> None:
        """Read from the beginning the next time."""
        if self._follower is not None:
            self._follower.close()
        self._follower = None
        self._began.clear()
        self._passed.clear()
        self._incarnations.clear()

    # -- the topic

    @property
    def shards(self) -> int | None:
        """How many shards there are; None: not known yet."""
        return self._count

    def open(self) -> int:
        """Create the topic if it is missing, check it, and return its number of shards.

        Raises `CoordinatorRefused` for a journal that could lose records, or whose partitions were added to.
        """
        if self._count is not None and not self._doubted:
            return self._count
        admin = AdminClient(self._config, logger=client_log)
        if self._count is not None:
            if self._described(admin) is not None:
                self._doubted = False
                return self._count
            self._shards = self._count  # it is created as it was
        replicas = self._replicas(admin)
        if replicas is None:
            self._create(admin)
            replicas = self._replicas(admin, wait=True)
        if replicas is None:
            raise self._lost("the topic was created but is not visible yet")
        self._check(admin, replicas)
        self._count = len(replicas)
        self._check_count(self._count)
        self._doubted = False
        return self._count

    def _replicas(self, admin: AdminClient, *, wait: bool = False) -> list[int] | None:
        """How many replicas each partition has; None: there is no such topic, also after waiting for it.

        The topic is described, not listed: a broker with `auto.create.topics.enable`, which is Kafka's
        default, creates what an admin client lists by its name, and not as a journal has to be.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            found = self._described(admin)
            if found is not None and found and all(p.leader is not None for p in found):
                return [len(partition.replicas) for partition in found]
            if not wait and found is None:
                return None
            if time.monotonic() > deadline:
                if found is None:
                    return None
                raise self._lost("its partitions have no leader")
            time.sleep(0.02)  # polls for a condition, with a deadline

    def _described(self, admin: AdminClient) -> Sequence[Any] | None:
        """Its partitions, none while they are being made; None: there is no such topic."""
        names = TopicCollection([self.topic])
        try:
            # not kept in a variable: future, error and frame would keep each other, and the client of Kafka
            found = admin.describe_topics(names, request_timeout=self.timeout)[self.topic].result(
                self.timeout
            )
            return cast("Sequence[Any]", found.partitions)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if error.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE:
                return []
            raise self._lost(error.args[0]) from error
        except TimeoutError as error:
            raise self._lost("time-out") from error

    def _create(self, admin: AdminClient) -> None:
        new = NewTopic(
            self.topic,
            num_partitions=self._shards,
            replication_factor=self._replication,
            config=TOPIC_CONFIG,
        )
        try:
            admin.create_topics([new])[self.topic].result(self.timeout)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._lost(error.args[0]) from error
            return
        self._append([(0, SHARDS, str(self._shards).encode())])

    def _check(self, admin: AdminClient, replicas: list[int]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        try:
            config = admin.describe_configs([resource])[resource].result(self.timeout)
        except KafkaException as error:
            raise self._lost(error.args[0]) from error
        except TimeoutError as error:
            raise self._lost("time-out") from error

        values = {name: str(entry.value) for name, entry in config.items()}
        if problems := weaknesses(values, max(replicas)):
            raise CoordinatorRefused(
                "The journal topic could lose records.",
                state="; ".join(problems),
                owner=f"topic {self.topic}",
                remedy="correct the topic's configuration",
            )

    def _check_count(self, count: int) -> None:
        for _, key, value, _ in self._scan([0])[0].records:
            if key == SHARDS and value is not None and int(value) != count:
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
        key = CHANGE + f"{change.tag}/{change.expected}/{uuid.uuid4().hex}".encode()
        return self._append([(shard, key, records.encode_change(change))])[0] + 1

    def append_incarnations(
        self, server: str, tags: Mapping[int, Iterable[str]], cuts: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Append an incarnation of these subscriptions to each shard and wait until they are durable.

        `cuts`: the first offsets that Kafka lost, by partition. Returns the numbers (offset + 1), by shard.
        """
        new: list[Record] = [
            (shard, INCARNATION + uuid.uuid4().hex.encode(), records.encode_incarnation(server, some, cuts))
            for shard, some in tags.items()
        ]
        return {record[0]: offset + 1 for record, offset in zip(new, self._append(new), strict=True)}

    def append(self, new: Sequence[Record]) -> list[int]:
        """Append checkpoints or reports and wait until they are durable; returns their offsets."""
        self.open()
        return self._append(new)

    def read(self, shard: int) -> Sequence[Entry]:
        """All changes and incarnations of a shard up to its end now, in order. Damaged ones are left out."""
        self.open()
        return self._scan([shard])[shard].entries

    def doubt(self) -> None:
        """Take into account that the topic may have been deleted: the next call looks, and creates it."""
        self._doubted = True
        self._forget_follower()

    def without_definition(self, tags: Iterable[str]) -> set[str]:
        """Those subscriptions whose definition is not there; all of them if the topic was deleted."""
        asked = {tag: self.shard(tag) for tag in tags}
        missing = set(asked)
        if self._described(AdminClient(self._config, logger=client_log)) is not None:
            for shard in set(asked.values()):  # one after the other: a shard may be large
                there = by_tag(self._scan([shard])[shard].entries)
                of_shard = {tag for tag in missing if asked[tag] == shard}
                missing -= {tag for tag in of_shard if in_force(there.get(tag, ()), tag, shard) is not None}
        if missing:
            self.doubt()
        return missing

    def scan(self) -> Scan:
        """All records of all shards up to their ends now."""
        return self._scan(range(self.open()))

    def read_all(self, scan: Scan | None = None) -> dict[int, Sequence[Entry]]:
        """Changes and incarnations of all shards, as `read` gives them; of an earlier `scan`, if given."""
        return {number: shard.entries for number, shard in (self.scan() if scan is None else scan).items()}

    def read_shards(self, shards: Iterable[int] | None = None, scan: Scan | None = None) -> dict[int, Shard]:
        """All records of these shards (None: all) up to their ends now. Damaged ones are left out.

        Of an earlier `scan`, if there is one, only what came since is read, and added to it.
        """
        count = self.open()
        return self._scan(range(count) if shards is None else shards, scan)

    def collect(self, shards: Iterable[int], now: int) -> int:
        """Remove superseded checkpoints of these shards; return how many. `now`: ms since 1970."""
        gone: list[Record] = []
        for number, shard in self.read_shards(shards).items():
            in_use: set[Origin] = set()
            unknown: set[str] = set()
            for tag, entries in by_tag(shard.entries).items():
                found = in_force(entries, tag, number)
                if found is not None:
                    try:
                        in_use.add(origin_of(found))
                    except KafkadurError:  # perhaps of a later version: keep its checkpoints
                        unknown.add(found.id)
            old = [item for item in shard.checkpoints if item.origin.id not in unknown]
            gone += [(number, key, None) for key in superseded(old, in_use, now)]
        self._append(gone)
        return len(gone)

    # -- confirming

    def incarnations(self, until: Mapping[int, int], since: Mapping[int, int]) -> dict[int, Sequence[Entry]]:
        """Incarnations in these shards, read up to the offsets `until` (exclusive), by shard.

        All with a number above `since` are among them: a shard is read from there, and once more when a
        subscription with an older incarnation is asked for. A writer may say that its record counts if no
        newer incarnation of the subscription is here: a recovery appends one and then reads to the end,
        and so either finds the record or is found.
        """
        follower = self._following({shard: offset for shard, offset in since.items() if shard in until})
        heard = self._used_at = time.monotonic()
        deadline = heard + self.timeout
        while any(self._passed[shard] < end for shard, end in until.items()):
            self._used_at = time.monotonic()
            if self._used_at > deadline:
                raise self._lost("what was written could not be read back in time")
            first = follower.poll(0.05)
            if first is not None:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENT_S:
                follower = self._follower = self._look_after(follower, self._make_follower)
                heard = time.monotonic()
            for message in [] if first is None else [first, *follower.consume(500, 0)]:
                error, shard, offset = message.error(), message.partition() or 0, message.offset()
                if error is not None:
                    if not error.retriable() and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - as below
                        raise self._lost(error)
                elif offset is not None:
                    self._passed[shard] = offset + 1
                    self._note_incarnation(shard, offset, message)
        return {shard: self._incarnations[shard] for shard in until}

    def _note_incarnation(self, shard: int, offset: int, message: Message) -> None:
        key, value = message.key(), message.value()
        if key is not None and value is not None and _bytes(key).startswith(INCARNATION):
            entry = records.decode(offset, _bytes(value))
            if entry is not None and entry.change is None:
                self._incarnations[shard].append(entry)

    def _following(self, since: Mapping[int, int]) -> Consumer:
        """A consumer that follows these shards at least from the offsets given."""
        if self._follower is None:
            self._follower = self._make_follower()
        new = [shard for shard, offset in since.items() if offset < self._began.get(shard, offset + 1)]
        again = [TopicPartition(self.topic, shard) for shard in new if shard in self._began]
        if again:
            self._follower.incremental_unassign(again)
        if new:
            self._follower.incremental_assign(
                [TopicPartition(self.topic, shard, since[shard]) for shard in new]
            )
            for shard in new:
                self._began[shard] = self._passed[shard] = since[shard]
                self._incarnations[shard] = []
        return self._follower

    def _make_follower(self) -> Consumer:
        """A consumer that goes on where the last one was."""
        consumer = Consumer({**self._reading(), "queued.max.messages.kbytes": 1024}, logger=client_log)
        consumer.assign([TopicPartition(self.topic, shard, offset) for shard, offset in self._passed.items()])
        return consumer

    def _make_reader(self) -> Consumer:
        # Kafka waits as long for further records before it answers that a shard has ended.
        return Consumer({**self._reading(), "fetch.wait.max.ms": 1}, logger=client_log)

    def _look_after(self, consumer: Consumer, make: Callable[[], Consumer]) -> Consumer:
        """The consumer itself, or a new one if only that finds Kafka."""
        if answers(consumer, self.topic):
            return consumer
        new = make()
        found = answers(new, self.topic)
        (consumer if found else new).close()
        return new if found else consumer

    def _append(self, new: Sequence[Record]) -> list[int]:
        if self._producer is None:
            self._producer = self._make_producer()
        offsets: dict[int, int] = {}
        failed: list[KafkaError | str] = []

        def told(index: int, error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                offsets[index] = offset
            elif error is None or error.code() not in _PURGED:
                failed.append("a record got no offset" if error is None else error)

        def send() -> None:
            for index, (shard, key, value) in enumerate(new):
                if index not in offsets:
                    self._produce(shard, key, value, partial(told, index))

        send()
        self._flush(send, offsets)
        self._used_at = time.monotonic()
        if failed or len(offsets) < len(new):
            self._producer.purge()  # no record may be written after an error was raised for it
            self.doubt()
            raise self._lost(failed[0] if failed else "a record was not confirmed in time")
        return [offsets[index] for index in range(len(new))]

    def _flush(self, send: Callable[[], None], offsets: Mapping[int, int]) -> None:
        """Wait for delivery reports; after a change of the producer, `send` repeats unconfirmed records."""
        deadline = time.monotonic() + self.timeout
        while (left := deadline - time.monotonic()) > 0:
            known = len(offsets)
            if not cast("Producer", self._producer).flush(min(left, SILENT_S)):
                return
            if len(offsets) == known and self._find_producer():
                send()

    def _find_producer(self) -> bool:
        """Replace the producer if only a new one finds Kafka; return whether it was replaced.

        The records in the old one are dropped.
        """
        old = cast("Producer", self._producer)
        # not asked for the topic by its name: a broker may create what a producer asks for
        if answers(old):
            return False
        new = self._make_producer()
        if not answers(new):
            return False
        old.purge()
        old.flush(0.1)
        self._producer = new
        return True

    def _make_producer(self) -> Producer:
        # Not idempotent: that costs half a second at the first record, and a record written twice
        # changes nothing (the first of equal ones counts). One request in flight keeps the order.
        config = {
            "acks": "all",
            "enable.idempotence": False,
            "max.in.flight": 1,
            "linger.ms": 0,
            "compression.type": "lz4",
            "message.timeout.ms": round(self.timeout * 1000),
        }
        return Producer({**self._config, **config}, logger=client_log)

    def _produce(
        self, shard: int, key: bytes, value: bytes | None, told: Callable[[KafkaError | None, Message], None]
    ) -> None:
        producer = cast("Producer", self._producer)
        while True:
            try:
                producer.produce(self.topic, key=key, value=value, partition=shard, on_delivery=told)
            except BufferError:  # its queue is full: it empties while it is polled
                producer.poll(0.05)
            else:
                return

    def _reading(self) -> dict[str, Any]:
        return {
            **self._config,
            "group.id": self._group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }

    def _scan(self, shards: Iterable[int], before: Scan | None = None) -> Scan:
        """Offset, key and value of each record of these shards, up to their ends now.

        Records that were read `before` are not read again.
        """
        found: Scan = {
            shard: Shard() if before is None else before.setdefault(shard, Shard()) for shard in shards
        }
        left = set(found)

        def begin() -> None:
            """Read on behind the records found so far."""
            places = {shard: found[shard].following for shard in left}
            reader.assign([TopicPartition(self.topic, shard, offset) for shard, offset in places.items()])

        reader = self._consumer = self._consumer or self._make_reader()
        begin()
        heard = time.monotonic()
        deadline = heard + self.timeout
        try:
            while left:
                if time.monotonic() > deadline:
                    raise self._lost("its end was not reached in time")
                first = reader.poll(0.1)
                if first is not None:
                    heard = time.monotonic()
                    deadline = heard + self.timeout
                    self._take([first, *reader.consume(500, 0)], found, left)
                elif time.monotonic() - heard > SILENT_S:
                    reader = self._consumer = self._look_after(reader, self._make_reader)
                    begin()
                    heard = time.monotonic()
        finally:
            reader.unassign()
            self._used_at = time.monotonic()
        return found

    def _take(self, messages: Iterable[Message], found: Scan, left: set[int]) -> None:
        """Add records to `found`; remove shards from `left` when their end is reached."""
        for message in messages:
            error, shard = message.error(), message.partition() or 0
            if error is None:
                offset, key, value = message.offset(), message.key(), message.value()
                if offset is not None and key is not None:
                    content = None if value is None else _bytes(value)
                    found[shard].records.append((offset, _bytes(key), content, message.timestamp()[1]))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's name for it
                left.discard(shard)
            elif not error.retriable():
                raise self._lost(error)

    def _lost(self, state: str | KafkaError) -> KafkadurError:
        owner = f"topic {self.topic} of Kafka at {self.kafka.get('bootstrap.servers', 'an unknown address')}"
        said = None if isinstance(state, str) else refused(state, owner)
        return (
            said
            or self._refusals.error(owner)
            or KafkaUnavailable(
                "The journal in Kafka cannot be used.",
                state=state if isinstance(state, str) else state.str(),
                owner=owner,
                remedy="check that Kafka runs and can be reached, then subscribe again; nothing is lost",
            )
        )


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
