"""Dead letters: messages that are given up, written to a topic of their own before they are settled.

A dead letter has the value, key and headers of the message, and further headers with its cause and origin. It
is written with acks=all, and only then is the message settled, so a crash between the two can write it twice
but never loses it. `admin/dead_letters.py` lists, redrives and purges dead letters.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from kafkadur.message.headers import DELIVERY_TIME_HEADER, EXPIRATION_HEADER
from kafkadur.message.tracing import Sending, Tracing
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.client_settings import for_own_messages
from kafkadur_coordinators.lost_brokers import SILENT_S, answers

_log = logging.getLogger("kafkadur.dead_letters")

#: Headers of a dead letter; the last two are the position and the time of the message.
SUBSCRIPTION = "kafkadur-dead-subscription"
CAUSE = "kafkadur-dead-cause"
REASON = "kafkadur-dead-reason"
ATTEMPTS = "kafkadur-dead-attempts"
ORIGIN = "kafkadur-dead-origin"
TIMESTAMP = "kafkadur-dead-timestamp"
HEADERS = (SUBSCRIPTION, CAUSE, REASON, ATTEMPTS, ORIGIN, TIMESTAMP)

_TIMES = (DELIVERY_TIME_HEADER, EXPIRATION_HEADER)

#: The reason of a dead letter that the last rollback of its message makes, unless there is a better one.
ROLLED_BACK = "it was rolled back"
#: Characters of a reason that are written.
LONGEST_REASON = 1_000
#: Seconds until a failed write is tried again.
_RETRY = 1.0
#: Seconds after which a producer that finds Kafka, but does not write, is replaced.
_STUCK = 30.0
_WAIT = 0.05
#: Bytes of the largest message for the client (the topic sets the limit), and for the headers of a letter.
_LARGEST, _HEADERS_BYTES = 1_000_000_000, 65_536


class Cause(StrEnum):
    """Why a message became a dead letter."""

    #: The application rejected it.
    REJECTED = "rejected"
    #: Its key or value cannot be deserialized.
    UNDECODABLE = "undecodable"
    #: Its attempts are used up.
    ATTEMPTS = "attempts"
    #: Retention is about to remove it.
    EXPIRING = "expiring"


@dataclass(frozen=True, kw_only=True, slots=True)
class Letter:
    """A message to be written as a dead letter."""

    topic: str
    message: Message
    #: the name of the subscription for people
    subscription: str
    cause: Cause
    reason: str
    attempts: int
    #: called in the writer's thread when it is written
    written: Callable[[], None]


def headers_of(letter: Letter) -> list[tuple[str, bytes | None]]:
    """Return the headers of a dead letter: those of the message, then those of this subscription.

    Delivery time and expiration are left out: whoever looks after dead letters gets them at any time.
    """
    message = letter.message
    old: list[Any] = list(message.headers() or ())
    own = {
        SUBSCRIPTION: letter.subscription,
        CAUSE: letter.cause.value,
        REASON: str(letter.reason)[:LONGEST_REASON],
        ATTEMPTS: str(letter.attempts),
        ORIGIN: f"{message.topic()}[{message.partition()}]@{message.offset()}",
        TIMESTAMP: str(message.timestamp()[1]),
    }
    kept = [(name, value) for name, value in old if name not in own and name not in _TIMES]
    return [*kept, *((name, text.encode(errors="replace")) for name, text in own.items())]


class DeadLetters:
    """Writes dead letters in a thread of its own, which starts with the first one."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        *,
        client: Callable[[Mapping[str, Any]], Producer] | None = None,
        create: Callable[[Letter], None] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`kafka` is confluent-kafka configuration.

        `client` makes the client that writes from its configuration, and `create` creates the topic of a
        letter if it does not exist; by default both use Kafka. `tracing` makes a span of each attempt.
        """
        self._tracing = tracing
        self._make = client if client is not None else _client
        self._create = create if create is not None else self._create_in_kafka
        self._kafka = for_own_messages(kafka)
        self._config = {
            **self._kafka,
            "acks": "all",
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 1,  # docs/decisions/0032
            "linger.ms": 2,
            "message.max.bytes": _LARGEST,
        }
        self._letters: queue.SimpleQueue[Letter | None] = queue.SimpleQueue()
        self._retry: list[tuple[float, Letter]] = []
        self._known: set[str] = set()
        self._open = 0
        self._trouble = ""
        #: when a report last came, or no letter was under way
        self._heard_at = 0.0
        self._asked_at = 0.0
        self._idle = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def write(self, letter: Letter) -> None:
        """Write a dead letter, now or as soon as that is possible. Any thread."""
        with self._idle:
            self._open += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="kafkadur-dead-letters", daemon=True)
                self._thread.start()
        self._letters.put(letter)

    def flush(self, timeout: float) -> bool:
        """Wait until all are written, at most `timeout` seconds; returns whether they are."""
        with self._idle:
            return self._idle.wait_for(lambda: self._open == 0, timeout)

    def close(self) -> None:
        """End the thread; messages without a written dead letter stay unsettled and are delivered again."""
        self._closing = True
        self._letters.put(None)
        if self._thread is not None:
            self._thread.join()

    def _main(self) -> None:
        producer = self._make(self._config)
        self._heard_at = time.monotonic()
        while not self._closing:
            letter = self._next()
            if letter is not None:
                self._send(producer, letter)
            producer.poll(0)
            producer = self._look_after(producer)
            due = [item for at, item in self._retry if at <= time.monotonic()]
            self._retry = [(at, item) for at, item in self._retry if at > time.monotonic()]
            for item in due:
                self._send(producer, item)
        producer.flush(_RETRY)

    def _look_after(self, producer: Producer) -> Producer:
        """Replace the producer if it has lost Kafka for good while a new one finds Kafka.

        The same if it finds Kafka but has reported no letter for long. Its letters are tried again, so some
        may be written twice.
        """
        now = time.monotonic()
        if not len(producer):
            self._heard_at = now
        if now - max(self._heard_at, self._asked_at) < SILENT_S:
            return producer
        stuck = now - self._heard_at > _STUCK
        new = self._make(self._config) if stuck or not answers(producer) else None
        found = new is not None and answers(new)
        self._asked_at = time.monotonic()
        # Kafka may have come back just now: then the old producer finds it, too
        if new is None or not found or (not stuck and answers(producer)):
            return producer
        _log.warning("Kafka's client for dead letters does not find Kafka any more; it was made anew")
        producer.purge()
        producer.flush(_RETRY)
        return new

    def _next(self) -> Letter | None:
        try:
            return self._letters.get(timeout=_WAIT if self._open == 0 else 0.002)
        except queue.Empty:
            return None

    def _send(self, producer: Producer, letter: Letter) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            self._heard_at = time.monotonic()
            if error is not None:
                self._known.discard(letter.topic)
                self._again(letter, error.str())
                return
            self._trouble = ""
            with self._idle:
                self._open -= 1
                self._idle.notify_all()
            letter.written()

        sending: Sending | None = None
        if self._tracing is not None:
            sending = self._tracing.writing(
                letter.topic, letter.message, letter.subscription, letter.cause, delivered
            )
        try:
            self._ensure(letter)
            headers: Any = headers_of(letter)
            producer.produce(
                letter.topic,
                value=letter.message.value(),
                key=letter.message.key(),
                headers=headers,
                on_delivery=sending or delivered,
            )
        except Exception as error:  # noqa: BLE001 - one letter must not end the thread
            if sending is not None:
                sending.refused(error)
            self._again(letter, _state_of(error))

    def _again(self, letter: Letter, state: str) -> None:
        if state != self._trouble:
            self._trouble = state
            _log.warning(
                "Dead letters can't be written; their messages stay unsettled. State: %s. Owner: topic %s, "
                "subscription %s. Remedy: check that the topic can be written, and takes as large messages "
                "(max.message.bytes); it is tried every second.",
                state,
                letter.topic,
                letter.subscription,
            )
        self._retry.append((time.monotonic() + _RETRY, letter))

    def _ensure(self, letter: Letter) -> None:
        if letter.topic not in self._known:
            self._create(letter)
            self._known.add(letter.topic)

    def _create_in_kafka(self, letter: Letter) -> None:
        """Create the topic of dead letters if it does not exist.

        It has as many partitions as the message's own topic, and takes messages as large, with more headers.
        """
        admin = AdminClient(self._kafka, logger=client_log)
        topics = admin.list_topics(timeout=5.0).topics
        if letter.topic not in topics:
            origin = topics.get(letter.message.topic() or "")
            partitions = len(origin.partitions) if origin is not None and origin.partitions else 1
            largest = {
                "max.message.bytes": str(_largest(admin, letter.message.topic() or "") + _HEADERS_BYTES)
            }
            new = NewTopic(letter.topic, num_partitions=partitions, config=largest)
            future = admin.create_topics([new])[letter.topic]
            try:
                future.result(10.0)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise


def _state_of(error: Exception) -> str:
    """Say why a letter was not taken."""
    match error:
        case BufferError():
            return "the producer's queue is full"
        case KafkaException():
            return str(error.args[0])
        case _:
            return repr(error)


def _client(config: Mapping[str, Any]) -> Producer:
    return Producer(dict(config), logger=client_log)


def _largest(admin: AdminClient, topic: str) -> int:
    """Return the size in bytes of the largest batch that a topic takes."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource], request_timeout=10.0)[resource].result(10.0)
    return int(found["max.message.bytes"].value or 0)
