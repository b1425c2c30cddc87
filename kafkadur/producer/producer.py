"""The producer: messages with JMS fields and typed properties, sent in batches, each with a delivery report.

`publish` puts a message into the buffer and returns; `flush` and `close` raise failed deliveries. `send`
returns an awaitable receipt. `headers.py` encodes properties as headers; librdkafka does batching, retries,
partitioning and the connection to Kafka, as its configuration says.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from types import MethodType
from typing import Any, Final, Generic

import confluent_kafka
from typing_extensions import TypeVar

from kafkadur.message.headers import (
    DEFAULT_DELIVERY_MODE,
    DEFAULT_PRIORITY,
    MESSAGE_ID_HEADER,
    DeliveryMode,
    JmsFields,
    Property,
    encode,
    encode_properties,
    message_id_prefix,
)
from kafkadur.message.serialization import Encoding, Headers, Serializer, not_encoded
from kafkadur.message.times import Times, when_sent
from kafkadur.message.tracing import Report, Tracing
from kafkadur.producer.client import awaited, counts_alone, new_client, release, retire, usual_way
from kafkadur.producer.configuration import producer_settings, sender_headers
from kafkadur.producer.context import FlushingContext
from kafkadur.producer.outbox import Outbox, Outgoing, untold
from kafkadur.producer.receipt import Receipt, describe, not_delivered, result_of, several_not_delivered
from kafkadur.runtime.forked import refuse_forks_of
from kafkadur_coordinators.kafka_refusal import Refusals
from kafkadur_coordinators.lost_brokers import SILENT_S, answers
from kafkadur_sharing.errors import ConnectionClosed, DeliveryFailed, ForkedConnection, IllegalState
from kafkadur_sharing.numbers import check_integer

_log = logging.getLogger(__name__)

#: Seconds without a report, while messages wait, after which the client is checked; and seconds that it has
#: to find Kafka after another client has found it.
_LOST_SECONDS: Final = 10.0
#: Longest wait inside librdkafka, seconds: signals and the end of the producer wait for it.
_POLL_SECONDS: Final = 0.1
_MOST_PARTITION: Final = (1 << 31) - 1
_MOST_TIMESTAMP: Final = (1 << 63) - 1

#: Types of values and keys; the defaults are those without a serializer.
V_contra = TypeVar("V_contra", contravariant=True, default=str | bytes | None)
K_contra = TypeVar("K_contra", contravariant=True, default=str | bytes | None)


class _Auto(Enum):
    AUTO = auto()


#: For `message_id`: generate one.
AUTO: Final = _Auto.AUTO


class Producer(FlushingContext, Generic[V_contra, K_contra]):
    """Sends messages to Kafka, from any thread and event loop; a sync and an async context manager.

    `config` is confluent-kafka configuration on top of `DEFAULTS`; `client_id` and `connection_id` are those
    of the connection, and are sent with every message (rule U7). Serializers are called in the publishing
    thread, like those of confluent-kafka's SerializingProducer: with the object and a SerializationContext
    that has the list of headers to send. None (a tombstone, or no key) is sent as it is. Raises
    `IllegalState` for a configuration that librdkafka refuses.
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
        client: Callable[[Mapping[str, Any]], confluent_kafka.Producer] = new_client,
    ) -> None:
        """Start the producer; it connects by itself when needed.

        `tracing` makes spans of sent messages. `client` makes its client of Kafka from the configuration.
        """
        self._make_client = client
        self._tracing = tracing
        encoding = Encoding(key=key_serializer, value=value_serializer)
        self._encoding = None if encoding.is_raw else encoding
        settings = producer_settings(config, connection_id)
        self._on_delivery = settings.get("on_delivery") or settings.get("dr_cb")
        self._refusals = settings["error_cb"] = Refusals(settings.get("error_cb"))
        self._settings = settings
        try:
            self._kafka = self._make()
        except confluent_kafka.KafkaException as error:
            raise IllegalState(
                "The configuration of the producer is refused.",
                state=describe(error),
                owner="librdkafka",
                remedy="correct the setting it names",
            ) from error
        #: The reports of a message that has none of its own: of every end, and of failures alone.
        count = self._count_report
        self._usual = (None, count) if counts_alone(self._kafka) else (count, None)
        self._client_id = client_id
        self._connection_id = connection_id
        alone = self._encoding is None and tracing is None
        self._sender = sender_headers(client_id, connection_id, alone=alone)
        self._message_id_prefix = message_id_prefix(connection_id, secrets.token_hex(4))
        self._message_numbers = itertools.count(1)
        self._shorten()
        self._pid = os.getpid()
        self._closed = False
        self._forked = False
        refuse_forks_of(self)
        self._lock = threading.Lock()
        #: Notified after each round of reports, when the buffer may have room again.
        self._room = threading.Condition()
        self._blocked = 0
        #: Numbers of failed messages, by topic and error name.
        self._failures: Counter[tuple[str, str]] = Counter()
        self._outboxes: dict[asyncio.AbstractEventLoop, Outbox] = {}
        #: The replaced client, which had lost Kafka; and when Kafka last reported, was last checked, and was
        #: first found by another client.
        self._retired: confluent_kafka.Producer | None = None
        self._pending = 0
        self._heard_at = self._asked_at = time.monotonic()
        self._found_at: float | None = None
        self._stopped = False
        #: Set when reports are to be served at once.
        self._wanted = threading.Event()
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
        delay: timedelta | float | None = None,
        not_before: datetime | None = None,
        time_to_live: timedelta | float | None = None,
        on_report: Callable[[Receipt | DeliveryFailed], None] | None = None,
    ) -> None:
        """Put a message into the buffer; `flush` or `close` raises a failed delivery.

        While the buffer is full this blocks until there is room: no message is dropped. In an event loop use
        `send`.

        The message is delivered when `delay` is over, or at the time `not_before` (with a time zone), and not
        after its `time_to_live`, which begins now. Both are seconds, or a timedelta.

        `value` None is a tombstone. `timestamp` is in milliseconds since 1970 (default: now; 0 is written as
        1, because Kafka's client takes it for now), `partition` overrides the partitioner, `message_id` None
        sends no id. `on_report` is called with the result in another thread, and must return quickly; a
        failure that it gets is not raised elsewhere. Raises `InvalidProperty` for a property that cannot be a
        header, `IllegalState` for a partition, timestamp or time out of range, and for a value or key that is
        not str, bytes or None without a serializer, `Unencodable` if a serializer fails, `DeliveryFailed` if
        Kafka's client refuses the message at once (too large, for example), `ConnectionClosed` and
        `ForkedConnection`.
        """
        times = None
        if delay is not None or not_before is not None or time_to_live is not None:
            times = when_sent(time.time, delay=delay, not_before=not_before, time_to_live=time_to_live)
        sent_id, headers = self._headers(
            properties, correlation_id, type, priority, delivery_mode, message_id, times
        )
        report = None if on_report is None else partial(self._tell_report, on_report, sent_id)
        outgoing = self._outgoing(topic, value, key, partition, timestamp, headers, report)
        if not self._enqueue(outgoing):
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
        delay: timedelta | float | None = None,
        not_before: datetime | None = None,
        time_to_live: timedelta | float | None = None,
    ) -> asyncio.Future[Receipt]:
        """Put a message into the buffer and return an awaitable for its receipt; needs a running event loop.

        The message is on its way when this returns: many can be under way before the first is awaited. They
        keep the order of the calls. While the buffer is full, messages wait in the memory of this process.

        Parameters and errors as of `publish`; awaiting raises `DeliveryFailed`. Cancelling withdraws nothing.
        """
        loop = asyncio.get_running_loop()
        outbox = self._outbox(loop)
        future: asyncio.Future[Receipt] = loop.create_future()
        times = None
        if delay is not None or not_before is not None or time_to_live is not None:
            times = when_sent(time.time, delay=delay, not_before=not_before, time_to_live=time_to_live)
        sent_id, headers = self._headers(
            properties, correlation_id, type, priority, delivery_mode, message_id, times
        )
        report = partial(self._send_report, outbox, future, sent_id)
        outgoing = self._outgoing(topic, value, key, partition, timestamp, headers, report)
        self._put(outgoing, future, outbox)
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every published message has its report, at most `timeout` seconds (None: for ever).

        Blocks; in an event loop await the receipts of `send` instead. Raises `DeliveryFailed` with the
        number of messages published since the last flush that failed (`failed`, by `reasons`) and the number
        still under way at the time-out (`pending`); failures that `send` has raised are not counted. Without
        a time-out it ends when Kafka's client gives up, after `delivery.timeout.ms`. Raises
        `ConnectionClosed` and `ForkedConnection`.
        """
        self._check_usable()
        self._raise_failures(pending=self._wait_for_reports(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Flush, at most `timeout` seconds (None: for ever), and close; closing again does nothing.

        Messages still under way at the time-out are given up. Raises `DeliveryFailed` like `flush`, after
        everything is released.
        """
        if self._closed or self._forked:
            # After a fork librdkafka's threads are in the parent process: there is nothing to close here.
            return
        retire(self._kafka)  # else other threads might publish for as long as this one waits
        self._closed = True
        try:
            self._wait_for_reports(timeout)
        finally:
            if len(self._kafka):  # a signal ended the wait: librdkafka would go on waiting
                self._kafka.purge()
                self._wait_for_reports(_POLL_SECONDS)
            self._stopped = True
            self._wanted.set()
            self._poller.join()
            pending = self._unreported()
            release(self._kafka)
            if self._retired is not None:
                self._retired.purge()
                release(self._retired)
        self._raise_failures(pending=pending)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait until all messages are in the buffer, then close without blocking the loop."""
        if self.drainer is not None:
            await self.drainer
        await super().__aexit__(kind, error, trace)

    def _shorten(self) -> None:
        """Let the compiled client publish usual messages, without a step in Python, if there is one.

        Not where each message is serialized or traced, or where a subclass has a `publish` of its own.
        """
        if self._encoding is None and self._tracing is None and type(self).publish is Producer.publish:
            prefix = message_id_prefix(self._connection_id, secrets.token_hex(4))
            own = usual_way(
                self._kafka, prefix, self._sender, self._count_report, MethodType(Producer.publish, self)
            )
            if own is not None:
                vars(self)["publish"] = own

    # --- into the buffer ------------------------------------------------------------------------------------

    def note_fork(self) -> None:
        """Part of forking: this process is a forked child, and the producer its parent's."""
        self._forked = True

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
        times: Times | None,
    ) -> tuple[str | None, list[tuple[str, bytes | None]]]:
        """Return the message id and the headers; a message with an id and properties takes a shorter path."""
        if message_id is AUTO:
            message_id = self._message_id_prefix + str(next(self._message_numbers))
            if (
                correlation_id is None
                and jms_type is None
                and priority == DEFAULT_PRIORITY
                and delivery_mode == DEFAULT_DELIVERY_MODE
                and times is None
            ):
                sender, brief = self._sender
                more = [*sender, *encode_properties(properties)] if properties else brief
                return message_id, [(MESSAGE_ID_HEADER, message_id.encode()), *more]
        fields = JmsFields(
            message_id=message_id,
            correlation_id=correlation_id,
            type=jms_type,
            priority=priority,
            delivery_mode=delivery_mode,
            client_id=self._client_id,
            connection_id=self._connection_id,
            delivery_time=None if times is None else times.delivery_time,
            expiration=None if times is None else times.expiration,
        )
        return message_id, encode(properties, fields)

    def _outgoing(  # noqa: PLR0917 - passed on from publish and send
        self,
        topic: str,
        value: Any,  # noqa: ANN401 - the type of the serializer
        key: Any,  # noqa: ANN401 - as above
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
        report: Report | None,
    ) -> Outgoing:
        """Serialize a message; its report ends its span, if there is one. `report` None: failures count."""
        if self._encoding is not None:
            self._check_usable()  # before serializing, which may be expensive
            value, key = self._encoding.encode(topic, value, key, headers)
        if self._tracing is not None:
            report = self._tracing.sending(topic, headers, report or self._count_report)
        at = -1 if partition is None else check_integer("partition", partition, -1, _MOST_PARTITION)
        # librdkafka takes 0 for now
        when = 0 if timestamp is None else max(check_integer("timestamp", timestamp, 0, _MOST_TIMESTAMP), 1)
        if report is None:
            report, on_failure = self._usual
            return topic, value, key, at, report, on_failure, when, headers
        return topic, value, key, at, report, None, when, headers

    def _enqueue(self, outgoing: Outgoing) -> bool:
        """Return whether the buffer took the message; raises `DeliveryFailed` if it never will."""
        try:
            return self._produce(outgoing)
        except BaseException as error:
            untold(outgoing, error)
            raise

    def _produce(self, outgoing: Outgoing) -> bool:
        if self._closed or self._forked:
            self._check_usable()
        try:
            self._kafka.produce(*outgoing)
        except BufferError:
            return False
        except confluent_kafka.KafkaException as error:
            raise not_delivered(error.args[0], outgoing[0]) from error
        except TypeError as error:
            raise not_encoded(value=outgoing[1], key=outgoing[2]) or error from None
        except RuntimeError:
            # Another thread closed the producer since the check above.
            self._check_usable()
            raise
        if not self._wanted.is_set():
            self._wanted.set()
        return True

    def _enqueue_when_room(self, outgoing: Outgoing) -> None:
        """Block until the buffer takes the message; errors as in `_enqueue`."""
        with self._room:
            # Increased before the buffer is tried: then reports served after the attempt notify.
            self._blocked += 1
            self._wanted.set()
            try:
                while not self._enqueue(outgoing):
                    try:
                        self._room.wait(_POLL_SECONDS)
                    except BaseException as error:  # interrupted
                        untold(outgoing, error)
                        raise
            finally:
                self._blocked -= 1

    def _tell_room(self) -> None:
        if self._blocked:
            with self._room:
                self._room.notify_all()

    def _put(self, outgoing: Outgoing, future: asyncio.Future[Receipt], outbox: Outbox) -> None:
        """Put a message of a loop into the buffer, behind those that wait: the order of calls is kept."""
        try:
            if outbox.drainer is not None or not self._enqueue(outgoing):
                outbox.waiting.append((outgoing, future))
                if outbox.drainer is None:
                    outbox.drainer = outbox.loop.create_task(self._drain(outbox))
        except DeliveryFailed as error:
            future.set_exception(error)

    def _outbox(self, loop: asyncio.AbstractEventLoop) -> Outbox:
        known = self._outboxes.get(loop)
        if known is not None:
            return known
        with self._lock:
            for old in [known for known in self._outboxes if known.is_closed()]:
                del self._outboxes[old]
            return self._outboxes.setdefault(loop, Outbox(loop))

    @property
    def drainer(self) -> asyncio.Task[None] | None:
        """Part of committing: the task that puts the waiting messages of this loop into the buffer."""
        outbox = self._outboxes.get(asyncio.get_running_loop())
        return None if outbox is None else outbox.drainer

    async def _drain(self, outbox: Outbox) -> None:
        """Put waiting messages into the buffer in order; a thread waits for room, so the loop does not."""
        try:
            while outbox.waiting:
                outgoing, future = outbox.waiting.popleft()
                if future.done():  # cancelled: the caller no longer waits
                    untold(outgoing, asyncio.CancelledError())
                    continue
                try:
                    if not self._enqueue(outgoing):
                        await asyncio.to_thread(self._enqueue_when_room, outgoing)
                except (DeliveryFailed, ConnectionClosed, ForkedConnection) as error:
                    if not future.done():
                        future.set_exception(error)
        finally:
            outbox.drainer = None

    # --- reports out of the buffer --------------------------------------------------------------------------

    def _make(self) -> confluent_kafka.Producer:
        return self._make_client(self._settings)

    def _serve_reports(self) -> None:
        while not self._stopped:
            if self._blocked or awaited(self._kafka):
                self._poll(_POLL_SECONDS)
            else:
                self._wanted.wait(_POLL_SECONDS)
                self._wanted.clear()
                self._poll(0)
            self._look_after()

    def _poll(self, seconds: float) -> int:
        """Wait at most so long for reports, and serve them; returns how many events were served."""
        served = 0
        try:
            served = self._kafka.poll(seconds)
            if served:
                self._heard_at = time.monotonic()
            if self._retired is not None:  # a concurrent call may have put a message into it
                self._retired.purge()
                self._retired.poll(0)
        except confluent_kafka.KafkaException as error:  # a fatal error, which every caller gets, too
            _log.info("Kafka's client of a producer has failed: %s", error.args[0])
        except Exception:  # noqa: BLE001 - any error of a callback of the user
            # The reports of other messages must still be served.
            _log.exception("A callback of the producer's configuration failed.")
            served = 1
        self._tell_room()
        return served

    def _unreported(self) -> int:
        """Return how many messages have no report.

        The length of the client counts events that wait, too, such as a broken connection: they are served.
        """
        while (left := len(self._kafka)) and self._poll(0):
            pass
        return left

    def _look_after(self) -> None:
        """Replace the client if it has lost Kafka for good while a new client finds Kafka.

        Its messages fail now: it is unknown which were written, and they would fail at their time-out anyway.
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
        elif self._found_at is None:  # Kafka may have come back just now: this client has time to find it
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
        retire(old)
        self._shorten()
        self._found_at = None
        self._tell_room()

    def _wait_for_reports(self, timeout: float | None) -> int:
        """Return how many messages have no report after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:  # in slices, because signals are served only between two calls of librdkafka
            left = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, deadline - time.monotonic())
            try:
                pending = self._kafka.flush(max(left, 0.0))
            except Exception:  # noqa: BLE001 - as in `_poll`
                _log.exception("A callback of the producer's configuration failed.")
                pending = len(self._kafka)
            self._tell_room()
            if not pending:
                return 0
            if deadline is not None and time.monotonic() >= deadline:
                return self._unreported()

    def _count_report(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        """Serve the report of a `publish`."""
        if error is not None:
            with self._lock:
                self._failures[str(message.topic()), error.name()] += 1
        if self._on_delivery is not None:
            self._on_delivery(error, message)

    def _tell_report(
        self,
        on_report: Callable[[Receipt | DeliveryFailed], None],
        message_id: str | None,
        error: confluent_kafka.KafkaError | None,
        message: confluent_kafka.Message,
    ) -> None:
        """Serve the report of a `publish` with `on_report`."""
        on_report(result_of(error, message, message_id))
        if self._on_delivery is not None:
            self._on_delivery(error, message)

    def _send_report(
        self,
        outbox: Outbox,
        future: asyncio.Future[Receipt],
        message_id: str | None,
        error: confluent_kafka.KafkaError | None,
        message: confluent_kafka.Message,
    ) -> None:
        """Serve the report of a `send`."""
        outbox.report(future, result_of(error, message, message_id))
        if self._on_delivery is not None:
            self._on_delivery(error, message)

    def _raise_failures(self, *, pending: int) -> None:
        with self._lock:
            failures, self._failures = self._failures, Counter()
        if failures or pending:
            raise several_not_delivered(failures, pending, self._refusals.error("Kafka"))
