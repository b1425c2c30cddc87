"""The producer: messages with JMS fields and typed properties, sent in batches, each with a delivery report.

`publish` puts a message into the buffer and returns; what failed is raised by `flush` and `close`. `send`
returns an awaitable receipt. What does not live here: how properties become headers (`headers.py`), batching,
retries, partitioning and the connection to Kafka, which are librdkafka's and follow its configuration.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import threading
import time
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, cast

import confluent_kafka
from typing_extensions import TypeVar

from kafkadur.message.headers import (
    CLIENT_ID_HEADER,
    CONNECTION_ID_HEADER,
    DEFAULT_DELIVERY_MODE,
    DEFAULT_PRIORITY,
    MESSAGE_ID_HEADER,
    DeliveryMode,
    JmsFields,
    Property,
    encode,
)
from kafkadur.message.serialization import Encoding, Headers, Serializer
from kafkadur.message.tracing import Report, Sending, Tracing
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.kafka_refusal import Refusals
from kafkadur_coordinators.lost_brokers import SILENT_S, answers
from kafkadur_sharing.errors import (
    ConnectionClosed,
    DeliveryFailed,
    ForkedConnection,
    IllegalState,
)

_log = logging.getLogger(__name__)

#: Used where the user's configuration says nothing. `murmur2_random` puts a key where Java's default
#: partitioner puts it, and spreads messages without a key.
DEFAULTS: Final[Mapping[str, object]] = {
    "acks": "all",
    "enable.idempotence": True,
    # With more, the first message to a new topic can be lost and reported as sent: docs/decisions/0032.
    "max.in.flight.requests.per.connection": 1,
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    "compression.type": "none",
}

#: Seconds without any report while messages wait after which it is looked whether Kafka's client has lost
#: Kafka; and seconds it has to find it after another one has.
_LOST_SECONDS: Final = 10.0
#: Seconds a wait inside librdkafka lasts at most: so long a signal, or the end of the producer, may have to
#: wait.
_POLL_SECONDS: Final = 0.1


#: Types of values and keys: without a serializer they are what Kafka takes.
V_contra = TypeVar("V_contra", contravariant=True, default=str | bytes | None)
K_contra = TypeVar("K_contra", contravariant=True, default=str | bytes | None)


class _Auto(Enum):
    AUTO = auto()


#: For `message_id`: make one up.
AUTO: Final = _Auto.AUTO


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """Where Kafka put a message."""

    topic: str
    partition: int
    offset: int
    #: Timestamp of the record in milliseconds since 1970; None if the topic has none.
    timestamp: int | None
    #: The message id it was sent with; None if it was sent without.
    message_id: str | None


#: A message on its way into librdkafka's buffer: the arguments of `Producer._enqueue`. A bare tuple, because
#: one is made for every message; its headers are Any because confluent-kafka's type of them admits nothing
#: narrower.
_Outgoing = tuple[
    str,
    str | bytes | None,
    str | bytes | None,
    int,
    int,
    Any,
    Callable[[confluent_kafka.KafkaError | None, confluent_kafka.Message], None],
]


class _Outbox:
    """The senders of one event loop: those that wait for room, and the reports on their way to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        #: Messages that found the buffer full, in the order of their `send` calls.
        self.waiting: deque[tuple[_Outgoing, asyncio.Future[Receipt]]] = deque()
        self.drainer: asyncio.Task[None] | None = None
        self._reports: deque[tuple[asyncio.Future[Receipt], Receipt | DeliveryFailed]] = deque()
        self._woken = False

    def report(self, future: asyncio.Future[Receipt], result: Receipt | DeliveryFailed) -> None:
        """Hand a result to the loop, from any thread; one wake-up carries all results up to then."""
        self._reports.append((future, result))
        if self._woken:
            return
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            # The loop is closed, so no task can be waiting.
            self._reports.clear()

    def _resolve(self) -> None:
        # Cleared before the deque is emptied: a report that comes in between wakes the loop once too often,
        # never once too seldom.
        self._woken = False
        while self._reports:
            future, result = self._reports.popleft()
            if future.done():
                continue
            if isinstance(result, Receipt):
                future.set_result(result)
            else:
                future.set_exception(result)


def release(client: confluent_kafka.Producer) -> None:
    """Close a client of Kafka, also one that has failed for good."""
    try:
        with warnings.catch_warnings():
            # a transaction that could not be ended: it is ended by another client, or by Kafka in time
            warnings.simplefilter("ignore", RuntimeWarning)
            client.close()
    except (confluent_kafka.KafkaException, SystemError) as error:  # SystemError: of a callback in close()
        _log.info("Kafka's client of a producer had failed: %s", error)


class Producer(Generic[V_contra, K_contra]):
    """Sends messages to Kafka, from any thread and event loop; a sync and an async context manager.

    `config` is confluent-kafka's configuration and goes over `DEFAULTS` untouched; `client_id` and
    `connection_id` are those of the connection and travel with every message (rule U7). Serializers are
    called in the thread that publishes, as confluent-kafka's SerializingProducer calls them: with the object
    and a SerializationContext, whose list of headers is the one that is sent. None is a tombstone, or no key,
    and is sent as it is. Raises `IllegalState` for a configuration that librdkafka refuses.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        client_id: str | None,
        connection_id: str,
        *,
        key_serializer: Serializer[K_contra] | None = None,
        value_serializer: Serializer[V_contra] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Start the producer; it connects by itself when there is something to do.

        `tracing`: spans are made of what is sent, and its context travels in the headers.
        """
        self._tracing = tracing
        encoding = Encoding(key=key_serializer, value=value_serializer)
        self._encoding = None if encoding.is_raw else encoding
        settings = _settings(config, connection_id)
        self._on_delivery = settings.pop("on_delivery", None) or settings.pop("dr_cb", None)
        self._refusals = settings["error_cb"] = Refusals(settings.get("error_cb"))
        self._settings = settings
        try:
            self._kafka = self._make()
        except confluent_kafka.KafkaException as error:
            raise IllegalState(
                "The configuration of the producer is refused.",
                state=_describe(error),
                owner="librdkafka",
                remedy="correct the setting it names",
            ) from error
        self._client_id = client_id
        self._connection_id = connection_id
        self._sender = _sender_headers(client_id, connection_id)
        # A connection may have several producers, and a connection id may come again: the random part keeps
        # ids apart.
        self._message_id_prefix = f"ID:{connection_id}-{secrets.token_hex(4)}-"
        self._message_numbers = itertools.count(1)
        self._pid = os.getpid()
        self._closed = False
        self._forked = False
        _producers.add(self)
        self._lock = threading.Lock()
        #: Told after each round of reports: that is when the buffer has room again.
        self._room = threading.Condition()
        self._blocked = 0
        self._failures: Counter[str] = Counter()
        self._outboxes: dict[asyncio.AbstractEventLoop, _Outbox] = {}
        #: What was replaced because it had lost Kafka, and when Kafka was last heard, asked, and found by
        #: another client than this one.
        self._retired: confluent_kafka.Producer | None = None
        self._pending = 0
        self._heard_at = self._asked_at = time.monotonic()
        self._found_at: float | None = None
        self._stopped = threading.Event()
        self._poller = threading.Thread(target=self._serve_reports, name="kafkadur-producer", daemon=True)
        self._poller.start()

    def publish(
        self,
        topic: str,
        value: V_contra | None,
        *,
        key: K_contra | None = None,
        properties: Mapping[str, Property] | None = None,
        correlation_id: str | None = None,
        type: str | None = None,  # noqa: A002 - the JMS name of the field
        priority: int = DEFAULT_PRIORITY,
        delivery_mode: DeliveryMode = DEFAULT_DELIVERY_MODE,
        message_id: str | _Auto | None = AUTO,
        timestamp: int | None = None,
        partition: int | None = None,
        on_report: Callable[[Receipt | DeliveryFailed], None] | None = None,
    ) -> None:
        """Put a message into the buffer; a failed delivery is raised by `flush` or `close`.

        While the buffer is full this blocks until there is room: nothing is dropped. In an event loop use
        `send`.

        `value` None is a tombstone. `timestamp` is in milliseconds since 1970 (default: now), `partition`
        overrides the partitioner, `message_id` None sends none. `on_report` is told what became of the
        message, in another thread, and must return quickly; a failure it is told of is raised by nothing
        else. Raises `InvalidProperty` for what cannot be a header, `Unencodable` for what a serializer does
        not take, `DeliveryFailed` if Kafka's client refuses the message at once (too large, for example),
        `ConnectionClosed` and `ForkedConnection`.
        """
        sent_id, headers = self._headers(
            properties, correlation_id, type, priority, delivery_mode, message_id
        )
        raw_value, raw_key = self._raw(topic, value, key, headers)
        outgoing = (
            topic,
            raw_value,
            raw_key,
            -1 if partition is None else partition,
            timestamp or 0,
            headers,
            self._traced(
                topic,
                headers,
                self._count_report if on_report is None else partial(self._tell_report, on_report, sent_id),
            ),
        )
        if not self._enqueue(*outgoing):
            self._enqueue_when_room(outgoing)

    def send(
        self,
        topic: str,
        value: V_contra | None,
        *,
        key: K_contra | None = None,
        properties: Mapping[str, Property] | None = None,
        correlation_id: str | None = None,
        type: str | None = None,  # noqa: A002 - the JMS name of the field
        priority: int = DEFAULT_PRIORITY,
        delivery_mode: DeliveryMode = DEFAULT_DELIVERY_MODE,
        message_id: str | _Auto | None = AUTO,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[Receipt]:
        """Put a message into the buffer and return an awaitable for its receipt; needs a running event loop.

        The message is on its way when this returns, so many can be under way before the first is awaited, and
        they keep the order of the calls. While the buffer is full, messages wait in this process's memory
        without blocking the loop: await receipts from time to time.

        Parameters and errors are those of `publish`, except that `DeliveryFailed` comes from awaiting.
        Cancelling the awaitable does not call back a message that is already in the buffer.
        """
        loop = asyncio.get_running_loop()
        outbox = self._outboxes.get(loop) or self._new_outbox(loop)
        future: asyncio.Future[Receipt] = loop.create_future()
        sent_id, headers = self._headers(
            properties, correlation_id, type, priority, delivery_mode, message_id
        )
        raw_value, raw_key = self._raw(topic, value, key, headers)
        outgoing = (
            topic,
            raw_value,
            raw_key,
            -1 if partition is None else partition,
            timestamp or 0,
            headers,
            self._traced(topic, headers, partial(self._send_report, outbox, future, sent_id)),
        )
        try:
            # All callers wait behind a message that waits: the order of the calls is kept.
            if outbox.drainer is not None or not self._enqueue(*outgoing):
                outbox.waiting.append((outgoing, future))
                if outbox.drainer is None:
                    outbox.drainer = loop.create_task(self._drain(outbox))
        except DeliveryFailed as error:
            future.set_exception(error)
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every published message has its report, at most `timeout` seconds (None: for ever).

        Blocks; in an event loop await the receipts of `send` instead. Raises `DeliveryFailed` with the
        numbers of messages published since the last flush that failed (`failed`, by `reasons`) and, when the
        time was up, of those still under way (`pending`); a message whose failure a `send` has raised is not
        counted again. Without a limit it ends when Kafka's client gives up, after `delivery.timeout.ms`.
        Raises `ConnectionClosed` and `ForkedConnection`.
        """
        self._check_usable()
        self._raise_failures(pending=self._wait_for_reports(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Flush, at most `timeout` seconds (None: for ever), and release everything; twice is allowed.

        What is still under way when the time is up is given up. Raises `DeliveryFailed` like `flush`, after
        everything is released.
        """
        if self._closed or self._forked:
            # After a fork the threads of librdkafka are in the parent: here is nothing that could be closed.
            return
        self._closed = True
        try:
            self._wait_for_reports(timeout)
        finally:
            # Also when a signal ended the wait: librdkafka would otherwise wait on by itself.
            if len(self._kafka):
                self._kafka.purge()
                self._wait_for_reports(_POLL_SECONDS)
            self._stopped.set()
            self._poller.join()
            pending = len(self._kafka)
            release(self._kafka)
            if self._retired is not None:
                self._retired.purge()
                release(self._retired)
        self._raise_failures(pending=pending)

    def __enter__(self) -> Self:
        """Return the producer."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; a failed delivery does not hide the error that ended the block, it is noted on it."""
        try:
            self.close()
        except DeliveryFailed as failure:
            if exc is None:
                raise
            exc.add_note(str(failure))

    async def __aenter__(self) -> Self:
        """Return the producer."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let in what waits for room, then close without blocking the loop; errors as in `__exit__`."""
        outbox = self._outboxes.get(asyncio.get_running_loop())
        if outbox is not None and outbox.drainer is not None:
            await outbox.drainer
        await asyncio.to_thread(self.__exit__, exc_type, exc, traceback)

    # --- into the buffer ------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._forked:
            raise ForkedConnection(
                "The producer was made before this process was forked.",
                owner=f"process {self._pid}",
                remedy="connect after the fork",
            )
        if self._closed:
            raise ConnectionClosed("The producer is closed.", remedy="make a new one")

    def _headers(  # noqa: PLR0917 - passed on from publish and send
        self,
        properties: Mapping[str, Property] | None,
        correlation_id: str | None,
        jms_type: str | None,
        priority: int,
        delivery_mode: DeliveryMode,
        message_id: str | _Auto | None,
    ) -> tuple[str | None, list[tuple[str, bytes | None]]]:
        """Return the message id and the headers; a message with nothing but an id takes the short way."""
        if message_id is AUTO:
            message_id = self._message_id_prefix + str(next(self._message_numbers))
            if (
                not properties
                and correlation_id is None
                and jms_type is None
                and priority == DEFAULT_PRIORITY
                and delivery_mode == DEFAULT_DELIVERY_MODE
            ):
                return message_id, [(MESSAGE_ID_HEADER, message_id.encode()), *self._sender]
        fields = JmsFields(
            message_id=message_id,
            correlation_id=correlation_id,
            type=jms_type,
            priority=priority,
            delivery_mode=delivery_mode,
            client_id=self._client_id,
            connection_id=self._connection_id,
        )
        return message_id, encode(properties, fields)

    def _traced(self, topic: str, headers: Headers, report: Report) -> Report:
        """The report of a message, which ends its span if there is one."""
        return report if self._tracing is None else self._tracing.sending(topic, headers, report)

    def _raw(self, topic: str, value: Any, key: Any, headers: Headers) -> tuple[Any, Any]:  # noqa: ANN401
        """Return value and key as they are sent; what cannot be sent any more is not serialized at all."""
        if self._encoding is None:
            return value, key
        self._check_usable()
        return self._encoding.encode(topic, value, key, headers)

    def _enqueue(  # noqa: PLR0917 - the parts of `_Outgoing`
        self,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None,
        partition: int,
        timestamp: int,
        headers: Any,  # noqa: ANN401 - see `_Outgoing`
        report: Callable[[confluent_kafka.KafkaError | None, confluent_kafka.Message], None],
    ) -> bool:
        """Return whether the buffer took the message; raises `DeliveryFailed` if it never will."""
        try:
            return self._produce(topic, value, key, partition, timestamp, headers, report)
        except BaseException as error:
            _untold(report, error)
            raise

    def _produce(  # noqa: PLR0917 - the parts of `_Outgoing`
        self,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None,
        partition: int,
        timestamp: int,
        headers: Any,  # noqa: ANN401 - see `_Outgoing`
        report: Callable[[confluent_kafka.KafkaError | None, confluent_kafka.Message], None],
    ) -> bool:
        if self._closed or self._forked:
            self._check_usable()
        try:
            # By position, in the order of confluent-kafka's signature: by name costs a tenth more.
            self._kafka.produce(topic, value, key, partition, report, None, timestamp, headers)
        except BufferError:
            return False
        except confluent_kafka.KafkaException as error:
            raise _refused(error.args[0], topic) from error
        except RuntimeError:
            # Another thread closed the producer since the check above.
            self._check_usable()
            raise
        return True

    def _enqueue_when_room(self, outgoing: _Outgoing) -> None:
        """Block until the buffer takes the message; errors as in `_enqueue`."""
        with self._room:
            # Raised before the buffer is tried: reports served after the trial find it raised, and tell.
            self._blocked += 1
            try:
                while not self._enqueue(*outgoing):
                    try:
                        self._room.wait(_POLL_SECONDS)
                    except BaseException as error:  # interrupted
                        _untold(outgoing[-1], error)
                        raise
            finally:
                self._blocked -= 1

    def _tell_room(self) -> None:
        if self._blocked:
            with self._room:
                self._room.notify_all()

    def _new_outbox(self, loop: asyncio.AbstractEventLoop) -> _Outbox:
        with self._lock:
            for old in [known for known in self._outboxes if known.is_closed()]:
                del self._outboxes[old]
            return self._outboxes.setdefault(loop, _Outbox(loop))

    @property
    def drainer(self) -> asyncio.Task[None] | None:
        """Part of committing: what puts messages that wait for room in this loop into the buffer."""
        outbox = self._outboxes.get(asyncio.get_running_loop())
        return None if outbox is None else outbox.drainer

    async def _drain(self, outbox: _Outbox) -> None:
        """Let waiting messages into the buffer in their order; a thread waits for room, the loop does not."""
        try:
            while outbox.waiting:
                outgoing, future = outbox.waiting.popleft()
                if future.done():  # cancelled: the caller does not wait any more
                    _untold(outgoing[-1], asyncio.CancelledError())
                    continue
                try:
                    if not self._enqueue(*outgoing):
                        await asyncio.to_thread(self._enqueue_when_room, outgoing)
                except (DeliveryFailed, ConnectionClosed, ForkedConnection) as error:
                    if not future.done():
                        future.set_exception(error)
        finally:
            outbox.drainer = None

    # --- reports out of the buffer --------------------------------------------------------------------------

    def _make(self) -> confluent_kafka.Producer:
        return confluent_kafka.Producer(self._settings)

    def _serve_reports(self) -> None:
        while not self._stopped.is_set():
            self._poll()
            self._look_after()

    def _poll(self) -> None:
        """Wait a moment for reports and serve them."""
        try:
            if self._kafka.poll(_POLL_SECONDS):
                self._heard_at = time.monotonic()
            if self._retired is not None:  # a call that was under way may have put something into it
                self._retired.purge()
                self._retired.poll(0)
        except confluent_kafka.KafkaException as error:  # a fatal one: every caller is told, too
            _log.info("Kafka's client of a producer has failed: %s", error.args[0])
        except Exception:  # noqa: BLE001 - whatever a callback of the user raises
            # A callback of the user's configuration failed; the reports of other messages must go on coming
            # in.
            _log.exception("A callback of the producer's configuration failed.")
        self._tell_room()

    def _look_after(self) -> None:
        """Replace Kafka's client if it has lost Kafka for good, which another one finds.

        Its messages fail now: it is not known which were written, and they would fail when their time is up.
        """
        now, pending = time.monotonic(), len(self._kafka)
        if not pending or pending < self._pending:  # flush() in another thread serves reports, too
            self._heard_at = now
        self._pending = pending
        if now - self._heard_at < _LOST_SECONDS:
            self._found_at = None
            return
        if now - self._asked_at < SILENT_S or answers(self._kafka):
            return
        new = self._make()
        found = answers(new)
        self._asked_at = time.monotonic()
        if not found:
            self._found_at = None
        elif self._found_at is None:  # Kafka may have come back just now: this one has time to find it, too
            self._found_at = self._asked_at
        elif self._asked_at - self._found_at > _LOST_SECONDS:
            self._replace(new)
            return
        new.close()

    def _replace(self, new: confluent_kafka.Producer) -> None:
        _log.warning(
            "Kafka's client of a producer does not find Kafka any more; it was made anew. %d messages that "
            "it had fail; send them again.",
            self._pending,
        )
        old = self._kafka
        old.purge()
        self._wait_for_reports(_POLL_SECONDS)
        self._kafka, self._retired = new, old
        self._found_at = None
        self._tell_room()

    def _wait_for_reports(self, timeout: float | None) -> int:
        """Return how many messages have no report after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        # In slices, because a signal is only served between two calls of librdkafka.
        while True:
            left = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, deadline - time.monotonic())
            try:
                pending = self._kafka.flush(max(left, 0.0))
            except Exception:  # noqa: BLE001 - as in `_poll`
                _log.exception("A callback of the producer's configuration failed.")
                pending = len(self._kafka)
            self._tell_room()
            if not pending or (deadline is not None and time.monotonic() >= deadline):
                return pending

    def _count_report(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        """Serve the report of a `publish`."""
        if error is not None:
            with self._lock:
                self._failures[error.name()] += 1
        if self._on_delivery is not None:
            self._on_delivery(error, message)

    def _tell_report(
        self,
        on_report: Callable[[Receipt | DeliveryFailed], None],
        message_id: str | None,
        error: confluent_kafka.KafkaError | None,
        message: confluent_kafka.Message,
    ) -> None:
        """Serve the report of a `publish` that wants to hear of it."""
        on_report(_receipt(message, message_id) if error is None else _refused(error, message.topic()))
        if self._on_delivery is not None:
            self._on_delivery(error, message)

    def _send_report(
        self,
        outbox: _Outbox,
        future: asyncio.Future[Receipt],
        message_id: str | None,
        error: confluent_kafka.KafkaError | None,
        message: confluent_kafka.Message,
    ) -> None:
        """Serve the report of a `send`."""
        if error is None:
            outbox.report(future, _receipt(message, message_id))
        else:
            outbox.report(future, _refused(error, message.topic()))
        if self._on_delivery is not None:
            self._on_delivery(error, message)

    def _raise_failures(self, *, pending: int) -> None:
        with self._lock:
            reasons, self._failures = dict(self._failures), Counter()
        failed = sum(reasons.values())
        if not failed and not pending:
            return
        parts: list[str] = []
        if failed:
            listed = ", ".join(f"{name} {count}" for name, count in sorted(reasons.items()))
            parts.append(f"{failed} published messages were not delivered to Kafka ({listed}).")
        if pending:
            parts.append(f"{pending} published messages had no answer of Kafka when the time was up.")
        refusal = self._refusals.error("Kafka")
        remedy = "check the brokers and the topics" if refusal is None else refusal.remedy
        raise DeliveryFailed(
            " ".join(parts),
            failed=failed,
            pending=pending,
            reasons=reasons,
            state=None if refusal is None else refusal.state,
            owner="Kafka",
            remedy=f"{remedy}, then publish what is missing again",
        )


#: The producers of this process that are still in use.
_producers: weakref.WeakSet[Producer[Any, Any]] = weakref.WeakSet()


def _mark_forked() -> None:
    for producer in _producers:
        producer._forked = True  # noqa: SLF001 - of this module


# Told by the interpreter, because asking for the process id with every message would cost a system call.
os.register_at_fork(after_in_child=_mark_forked)


def _settings(config: Mapping[str, object], connection_id: str) -> dict[str, Any]:
    """Return `DEFAULTS` with the user's configuration over them."""
    if config.get("delivery.report.only.error"):
        raise IllegalState(
            "The setting delivery.report.only.error is not possible here.",
            state="receipts are made of the delivery reports it switches off",
            remedy="remove it from the producer's configuration",
        )
    defaults: dict[str, Any] = {**DEFAULTS, "client.id": f"kafkadur-{connection_id}"}
    acks = config.get("acks", config.get("request.required.acks", "all"))
    if str(acks) not in {"all", "-1"}:
        # A user who asks for fewer acknowledgements decides against idempotence: librdkafka refuses the two
        # together.
        del defaults["enable.idempotence"]
    # What librdkafka has to say goes where the rest of the library logs, not to stderr.
    defaults["logger"] = client_log
    return {**defaults, **config}


def _sender_headers(client_id: str | None, connection_id: str) -> list[tuple[str, bytes | None]]:
    """Return the headers that say who sends: the same for every message of a producer."""
    headers: list[tuple[str, bytes | None]] = []
    if client_id is not None:
        headers.append((CLIENT_ID_HEADER, client_id.encode()))
    headers.append((CONNECTION_ID_HEADER, connection_id.encode()))
    return headers


def _receipt(message: confluent_kafka.Message, message_id: str | None) -> Receipt:
    timestamp_type, timestamp = message.timestamp()
    return Receipt(
        topic=cast("str", message.topic()),
        partition=cast("int", message.partition()),
        offset=cast("int", message.offset()),
        timestamp=None if timestamp_type == confluent_kafka.TIMESTAMP_NOT_AVAILABLE else timestamp,
        message_id=message_id,
    )


def _describe(error: confluent_kafka.KafkaException) -> str:
    """Return librdkafka's sentence; for errors of its own it never contains a payload."""
    inner = error.args[0]
    return inner.str() if isinstance(inner, confluent_kafka.KafkaError) else str(inner)


def _untold(report: Report, error: BaseException) -> None:
    """End the span of a message, if there is one, that never got under way."""
    if isinstance(report, Sending):
        report.refused(error)


def _refused(error: confluent_kafka.KafkaError, topic: str | None) -> DeliveryFailed:
    return DeliveryFailed(
        f"A message was not delivered to topic {topic}: {error.str()} ({error.name()}).",
        failed=1,
        reasons={error.name(): 1},
        owner="Kafka",
        remedy="check the brokers, the topic and the message's size, then send it again",
    )
