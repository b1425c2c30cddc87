"""The history thread of a connection: it writes what members noted to the topics of their histories.

It takes the notes once a second, so that deliveries never wait for it. A history is no part of a
subscription's state: while Kafka does not take it, notes are kept up to a bound, messages beyond it are left
out, and the next entry says how many. Nothing else depends on it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kafkadur.admin.topics import TopicAdmin
from kafkadur.history.entries import Entry, Written, encoded, topic_of
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_sharing.errors import IllegalState, InvalidDestination, KafkadurError
from kafkadur_sharing.redelivery import in_ms

_log = logging.getLogger("kafkadur.history")

#: Seconds between two writings.
EVERY = 1.0
#: Seconds for the last writings of a connection, and for one question to Kafka about a topic.
_LAST_S, _TOPIC_S = 5.0, 5.0
#: The most messages of a member that are kept to be tried again.
_AGAIN = 1_000
#: Kafka removes whole segments only: each has the entries of a quarter of the retention, within these bounds.
_SEGMENT_MS = (300_000, 86_400_000)


class Noting(Protocol):
    """A member, or another object that settles messages."""

    def take_notes(self, *, leaves: bool) -> tuple[list[Entry], int]:
        """Return the entries since the last call, and how many messages are missing in them."""
        ...


class HistoryLog(Protocol):
    """Where histories are written."""

    def prepare(self, topic: str, kept: timedelta) -> None:
        """Create a topic that keeps messages so long, or set that. Raises a `KafkadurError`."""

    def write(self, topic: str, value: bytes, failed: Callable[[str], None]) -> None:
        """Write a message; `failed` is called with the reason if it is not written."""

    def serve(self) -> None:
        """Call `failed` of the messages of which that is known by now."""

    def close(self, timeout: float) -> None:
        """Write what is under way, for so many seconds at most."""


@dataclass(kw_only=True, eq=False)
class _Member:
    noting: Noting
    id: str
    name: str
    subscription: str
    topic: str
    kept: timedelta
    #: what was not written and is tried again, in its order: messages for the topic, each with the number of
    #: messages that it is about
    again: deque[tuple[bytes, int]] = field(default_factory=deque[tuple[bytes, int]])
    #: messages whose entries were given up, and about which no entry says so
    missing: int = 0
    #: the member has left
    gone: bool = False


class HistoryThread:
    """The history thread of one connection; it starts with the first member that has a history."""

    def __init__(self, make: Callable[[], HistoryLog]) -> None:
        """`make` makes what writes, in the thread."""
        self._make = make
        self._members: list[_Member] = []
        self._ready: dict[str, timedelta] = {}
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._closing = False
        self._trouble = ""
        self._thread: threading.Thread | None = None

    def add(self, noting: Noting, subscription: Subscription, *, member: str, name: str) -> None:
        """Write the history of this member from now on, if its subscription has one.

        `member` is its id, `name` its name for people.
        """
        kept = subscription.definition.history
        if kept is None:
            return
        entry = _Member(
            noting=noting, id=member, name=name, subscription=str(subscription.key),
            topic=topic_of(subscription.key), kept=kept,
        )  # fmt: skip
        with self._lock:
            self._members.append(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="kafkadur-history", daemon=True)
                self._thread.start()

    def remove(self, noting: Noting | None) -> None:
        """Write the last entries of a member that has left, at once."""
        with self._lock:
            for entry in self._members:
                if entry.noting is noting:
                    entry.gone = True
        self._bell.set()

    def close(self) -> None:
        """Write the last entries, and end the thread; all members must have left before."""
        self._closing = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join()

    # -- the thread

    def _main(self) -> None:
        log = self._make()
        while True:
            self._bell.wait(EVERY)
            self._bell.clear()
            closing = self._closing
            with self._lock:
                members = list(self._members)
                left = [member for member in members if member.gone]  # these note nothing any more
            log.serve()
            for member in members:
                self._write(log, member, leaves=closing or member in left)
            with self._lock:
                self._members = [member for member in self._members if member not in left]
            if closing:
                log.close(_LAST_S)
                return

    def _write(self, log: HistoryLog, member: _Member, *, leaves: bool) -> None:
        """Write the notes of one member."""
        try:
            if self._ready.get(member.topic) != member.kept:
                log.prepare(member.topic, member.kept)
                self._ready[member.topic] = member.kept
        except KafkadurError as error:
            self._told(member, str(error))
            return  # the member keeps its notes
        entries, missing = member.noting.take_notes(leaves=leaves)
        missing, member.missing = missing + member.missing, 0
        written = Written(member=member.id, name=member.name, entries=entries, missing=missing)
        values = list(member.again)
        member.again.clear()
        if entries or missing:
            values += encoded(member.subscription, written)
        for value, number in values:
            log.write(member.topic, value, partial(self._failed, member, value, number))

    def _failed(self, member: _Member, value: bytes, number: int, state: str) -> None:
        """A message for the topic, about so many messages, was not written. Called in the thread."""
        member.again.append((value, number))
        if len(member.again) > _AGAIN:
            member.missing += member.again.popleft()[1]
        self._ready.pop(member.topic, None)  # the topic may have been deleted
        self._told(member, state)

    def _told(self, member: _Member, state: str) -> None:
        if state != self._trouble:
            self._trouble = state
            _log.warning(
                "The delivery history of subscription %s cannot be written; entries may be missing. "
                "State: %s. Owner: topic %s. "
                "Remedy: check that the topic can be created and written; deliveries go on.",
                member.subscription,
                state,
                member.topic,
            )


class KafkaLog:
    """Writes histories to Kafka. Used by one thread."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        *,
        client: Callable[[Mapping[str, Any]], Producer] | None = None,
        prepare: Callable[[str, timedelta], None] | None = None,
    ) -> None:
        """`kafka` is confluent-kafka configuration.

        `client` makes the client that writes from its configuration, and `prepare` does what the method does;
        by default both use Kafka.
        """
        self._kafka = {name: value for name, value in kafka.items() if not callable(value)}
        self._config = {
            "compression.type": "zstd",
            **self._kafka,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 100,
            "message.timeout.ms": 10_000,
            "queue.buffering.max.kbytes": 16_384,
        }
        self._make = client if client is not None else _client
        self._prepare = prepare if prepare is not None else self._prepare_in_kafka
        self._producer = self._make(self._config)
        self._broken = False

    def prepare(self, topic: str, kept: timedelta) -> None:
        """Create a topic that keeps messages so long, or set that. Raises a `KafkadurError`."""
        self._prepare(topic, kept)
        if self._broken:  # after some errors an idempotent producer is of no use, or asks for a deleted topic
            self._broken = False
            self._producer.purge()
            self._producer.flush(_LAST_S)
            self._producer = self._make(self._config)

    def _prepare_in_kafka(self, topic: str, kept: timedelta) -> None:
        retention = in_ms(kept)
        least, most = _SEGMENT_MS
        config = {
            "cleanup.policy": "delete",
            "retention.ms": str(retention),
            "segment.ms": str(min(max(retention // 4, least), most)),
        }
        admin = TopicAdmin(self._kafka, timeout=_TOPIC_S)
        try:
            if topic not in admin.names():
                _create(admin, topic, config)
            elif admin.retention(topic) != retention:
                admin.configure(topic, config)
        finally:
            admin.close()

    def write(self, topic: str, value: bytes, failed: Callable[[str], None]) -> None:
        """Write a message; `failed` is called with the reason if it is not written."""

        def report(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._broken = True
                failed(error.str())

        try:
            self._producer.produce(topic, value=value, on_delivery=report)
        except BufferError:
            failed("the producer's queue is full")
        except KafkaException as error:
            self._broken = True
            failed(error.args[0].str())

    def serve(self) -> None:
        """Call `failed` of the messages of which that is known by now."""
        self._producer.poll(0)

    def close(self, timeout: float) -> None:
        """Write what is under way, for so many seconds at most."""
        self._producer.flush(timeout)


def _create(admin: TopicAdmin, topic: str, config: Mapping[str, str]) -> None:
    try:
        admin.create(topic, config=config)
    except IllegalState as error:
        try:
            admin.describe(topic)  # another process may have made it just now
        except InvalidDestination:
            raise error from None


def _client(config: Mapping[str, Any]) -> Producer:
    return Producer(dict(config), logger=client_log)
