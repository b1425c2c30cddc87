"""A session in the names of Jakarta Messaging: it makes consumers and producers, and acknowledges."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Protocol

import kafkadur.sync
from kafkadur.jms.consumer import Listener, MessageConsumer
from kafkadur.jms.message import Message
from kafkadur.jms.modes import AUTOMATIC, AcknowledgeMode
from kafkadur.jms.producer import MessageProducer
from kafkadur.runtime.closing import close_all
from kafkadur.sync import Delivery, Subscription
from kafkadur.sync.waiting import ClosingContext
from kafkadur_sharing.definition import SubscriptionType
from kafkadur_sharing.errors import (
    AlreadySettled,
    ConnectionClosed,
    IllegalState,
    KafkadurError,
    LeaseLost,
    LevelNotReached,
)
from kafkadur_sharing.redelivery_policy import Redelivery

_log = logging.getLogger("kafkadur.jms")

#: Seconds after which a thread that waits to call a listener checks whether it has to end.
_LOOK_EVERY = 0.05
#: Seconds for which a consumer of a transacted session waits for a message at its turn.
_TURN_S = 0.01


class _Connection(Protocol):
    """The part of `Connection`, which imports this module, that a session uses."""

    plain: kafkadur.sync.Connection
    kind: SubscriptionType
    gate: threading.Condition
    is_started: bool

    def tell(self, error: KafkadurError) -> None: ...


class Session(ClosingContext):
    """Consumers and producers with one acknowledgement mode; a context manager.

    A session is used by one thread at a time, and calls one listener at a time.
    """

    def __init__(self, connection: _Connection, mode: AcknowledgeMode, redelivery: Redelivery | None) -> None:
        """Made by a connection."""
        self._connection = connection
        self.acknowledge_mode = mode
        self._redelivery = redelivery
        self._consumers: list[MessageConsumer] = []
        #: closed consumers with messages in flight (rule K5)
        self._leaving: list[MessageConsumer] = []
        self._producers: list[MessageProducer] = []
        #: the session that commits, if this one is transacted
        self._transacted: kafkadur.sync.Session | None = None
        if mode is AcknowledgeMode.SESSION_TRANSACTED:
            self._transacted = connection.plain.session(transacted=True)
            self._transacted.open()  # it closes itself on an error
        #: the deliveries that the application has to acknowledge, oldest first
        self._delivered: list[Delivery] = []
        self._lock = threading.Lock()
        #: held while a listener is called, and the thread that calls it
        self._calling = threading.Lock()
        self._caller: threading.Thread | None = None
        self._closing = False
        self._closed = False

    # -- consumers

    def create_consumer(
        self, topic: str, selector: str | None = None, *, no_local: bool = False
    ) -> MessageConsumer:
        """Return the consumer of a new subscription, which ends when the consumer is closed (rules V).

        Raises `IllegalState` in a transacted session, whose subscriptions are durable.
        """
        return self._consumer(topic, selector, kind=self._connection.kind, no_local=no_local)

    def create_durable_consumer(
        self, topic: str, name: str, selector: str | None = None, *, no_local: bool = False
    ) -> MessageConsumer:
        """Return the one consumer of an unshared durable subscription (rules U); needs a client id.

        With the factory's sharing policy `sharable` the subscription is shared, as in WebLogic (rules P).
        """
        return self._consumer(topic, selector, durable=name, kind=self._connection.kind, no_local=no_local)

    def create_shared_consumer(self, topic: str, name: str, selector: str | None = None) -> MessageConsumer:
        """Return a consumer of a shared non-durable subscription (rules N).

        Raises `IllegalState` in a transacted session, whose subscriptions are durable.
        """
        return self._consumer(topic, selector, shared=name, kind=SubscriptionType.SHARED)

    def create_shared_durable_consumer(
        self, topic: str, name: str, selector: str | None = None
    ) -> MessageConsumer:
        """Return a consumer of a shared durable subscription (rules S)."""
        return self._consumer(topic, selector, durable=name, kind=SubscriptionType.SHARED)

    def _consumer(
        self,
        topic: str,
        selector: str | None,
        *,
        kind: SubscriptionType,
        durable: str | None = None,
        shared: str | None = None,
        no_local: bool = False,
    ) -> MessageConsumer:
        self._use()
        subscription: Subscription = self._connection.plain.subscribe(
            topic,
            durable=durable,
            shared=shared,
            type=kind,
            selector=selector,
            no_local=no_local,
            redelivery=self._redelivery,
            on_change="replace",  # as the specification says (U4, S3)
            session=self._transacted,
        )
        consumer = MessageConsumer(self, subscription)
        self._consumers.append(consumer)
        return consumer

    def unsubscribe(self, name: str, topic: str | None = None) -> None:
        """Delete a durable subscription of this connection's client id (rules X).

        In the mode `weblogic` an unrestricted client id has to name the topic (X7).
        """
        self._use()
        self._connection.plain.unsubscribe(name, topic=topic)

    # -- producers

    def create_producer(self, topic: str | None = None) -> MessageProducer:
        """Return a producer to `topic`, or to the topic given with each message."""
        self._use()
        if self._transacted is not None:
            return MessageProducer(self._transacted.producer(), topic, waits=False)
        producer = MessageProducer(self._connection.plain.producer(), topic)
        self._producers.append(producer)
        return producer

    # -- acknowledging

    def recover(self) -> None:
        """Have all unacknowledged messages delivered again, marked and counted (rule K3).

        Raises `IllegalState` in a transacted session.
        """
        self._use()
        if self._transacted is not None:
            self._transacted.recover()
        self._settle(Delivery.rollback_nowait, Delivery.rollback)
        self._let_go()

    def received(self, delivery: Delivery) -> None:
        """Part of receiving: acknowledge a message in the automatic modes, else note that it was delivered.

        Raises as `Delivery.ack`.
        """
        if self.acknowledge_mode is AcknowledgeMode.AUTO_ACKNOWLEDGE:
            delivery.ack()
        elif self.acknowledge_mode is AcknowledgeMode.DUPS_OK_ACKNOWLEDGE:
            delivery.ack_nowait()
        elif self._transacted is None:
            with self._lock:
                self._delivered.append(delivery)

    def acknowledge(self, delivery: Delivery) -> None:
        """Part of `Message.acknowledge`: acknowledge as the mode says."""
        if self._closed:
            raise ConnectionClosed(owner="the session", remedy="create another one")
        if self.acknowledge_mode is AcknowledgeMode.CLIENT_ACKNOWLEDGE:
            self._settle(Delivery.ack_nowait, Delivery.ack)
        elif self.acknowledge_mode is AcknowledgeMode.INDIVIDUAL_ACKNOWLEDGE:
            with self._lock, suppress(ValueError):
                self._delivered.remove(delivery)
            delivery.ack()
        self._let_go()

    def _settle(self, settle: Callable[[Delivery], object], confirm: Callable[[Delivery], object]) -> None:
        """Settle all delivered messages, and wait for the confirmation of the last one of each chunk.

        Raises `LeaseLost` if a lease was lost, when all others are settled.
        """
        with self._lock:
            delivered, self._delivered = self._delivered, []
        lost: LeaseLost | None = None
        last = {delivery.chunk_id: index for index, delivery in enumerate(delivered)}
        for index, delivery in enumerate(delivered):
            try:
                (confirm if last[delivery.chunk_id] == index else settle)(delivery)
            except LeaseLost as error:
                lost = lost or error
            except AlreadySettled:  # the application has settled the delivery itself
                pass
        if lost is not None:
            raise lost

    # -- in transactions

    @property
    def is_transacted(self) -> bool:
        """Whether the session is transacted."""
        return self._transacted is not None

    def commit(self) -> None:
        """Commit the received and the sent messages together: all of them, or none.

        Raises as `kafkadur.sync.Session.commit`, and `IllegalState` in a session that is not transacted.
        """
        self._end_transaction("commit", kafkadur.sync.Session.commit)

    def rollback(self) -> None:
        """Roll back the received and the sent messages: the received ones are delivered again (rule K3).

        Raises as `kafkadur.sync.Session.rollback`, and `IllegalState` in a session that is not transacted.
        """
        self._end_transaction("roll back", kafkadur.sync.Session.rollback)

    def _end_transaction(self, what: str, end: Callable[[kafkadur.sync.Session], None]) -> None:
        if self._closed:  # a listener that runs while the session is being closed may still commit
            self._use()
        if self._transacted is None:
            raise IllegalState(
                f"A session that is not transacted cannot {what}.",
                state=f"mode {self.acknowledge_mode.name}",
                owner="the session",
                remedy="create it with AcknowledgeMode.SESSION_TRANSACTED",
            )
        for consumer in self._consumers:
            consumer.put_back_kept()
        end(self._transacted)
        with self._lock:  # closed consumers have no messages in flight any more
            done, self._leaving = self._leaving, []
        close_all(consumer.subscription for consumer in done)

    def take_and_call(self, consumer: MessageConsumer, listener: Listener) -> None:
        """Part of listening in a transacted session: receive a message and call a listener with it.

        Both are one turn, so that no received message waits for a listener while another listener commits.
        """
        with self._turn(consumer) as taken:
            delivery = consumer.next_within(_TURN_S) if taken else None
            if delivery is not None:
                self._call(listener, delivery)
        self._let_go()

    @contextmanager
    def _turn(self, consumer: MessageConsumer) -> Generator[bool]:
        """Wait for the turn to call a listener; gives False when the consumer is closed."""
        while not self._calling.acquire(timeout=_LOOK_EVERY):
            if consumer.is_closed:
                yield False
                return
        try:
            yield not consumer.is_closed
        finally:
            self._caller = None
            self._calling.release()

    # -- listening

    def call(self, consumer: MessageConsumer, listener: Listener, delivery: Delivery) -> bool:
        """Part of listening: call a listener, and acknowledge the message as the mode says.

        Returns whether it was called: not while the connection is stopped, nor when the consumer was closed.
        """
        with self._turn(consumer) as taken:
            if not taken or not self.is_started or delivery.lost:
                return False
            self._call(listener, delivery)
        self._let_go()
        return True

    def _call(self, listener: Listener, delivery: Delivery) -> None:
        self._caller = threading.current_thread()
        automatic = self.acknowledge_mode in AUTOMATIC
        if not automatic:
            self.received(delivery)
        message = Message(delivery, self.acknowledge)
        try:
            try:
                listener(message)
            except Exception:  # noqa: BLE001 - any error of the application
                _log.exception("a listener failed for %r", message)
                if automatic:
                    delivery.rollback_nowait()
            else:
                if automatic:
                    self.received(delivery)
        except (LeaseLost, AlreadySettled, LevelNotReached) as error:
            _log.warning("%s", error)

    @property
    def is_calling_here(self) -> bool:
        """Part of listening: whether this thread runs a listener of the session."""
        return self._caller is threading.current_thread()

    def wait_for_listener(self) -> None:
        """Part of stopping: wait until no listener is running."""
        with self._calling:
            pass

    def failed(self, error: KafkadurError) -> None:
        """Part of listening: report that a consumer has failed."""
        self._connection.tell(error)

    @property
    def is_started(self) -> bool:
        """Part of receiving: whether the connection is started."""
        return self._connection.is_started

    def wait_for_start(self, consumer: MessageConsumer, timeout: float | None) -> bool:
        """Part of receiving: wait, at most `timeout` seconds, for the start; returns whether to receive."""
        gate = self._connection.gate
        with gate:
            gate.wait_for(lambda: self.is_started or consumer.is_closed, timeout)
            return self.is_started and not consumer.is_closed

    def wake(self) -> None:
        """Part of closing a consumer: have waiting threads check again."""
        with self._connection.gate:
            self._connection.gate.notify_all()

    # -- the end

    def leave(self, consumer: MessageConsumer) -> None:
        """Part of closing a consumer: detach it when it has no messages in flight."""
        with self._lock:
            self._consumers.remove(consumer)
            self._leaving.append(consumer)
        self._let_go()

    def _let_go(self) -> None:
        """Detach closed consumers without messages in flight."""
        with self._lock:
            done = [c for c in self._leaving if c.subscription.statistics()["in_hands"] == 0]
            self._leaving = [consumer for consumer in self._leaving if consumer not in done]
        close_all(consumer.subscription for consumer in done)

    def close(self) -> None:
        """Close its consumers and producers; unacknowledged messages are delivered again (rule K6).

        Running listeners end first, and may acknowledge. Raises `IllegalState` within a listener, and the
        first error of closing, when all are closed.
        """
        if self._closed:
            return
        if self.is_calling_here:
            raise IllegalState(
                "A listener cannot close its session.",
                owner="the session",
                remedy="close it in another thread, or close the consumer",
            )
        self._closing = True
        try:
            close_all([*self._consumers, *(each.subscription for each in self._leaving), *self._producers])
        finally:
            self._closed = True
            # consumers that still had messages in flight
            last = [] if self._transacted is None else [self._transacted]
            close_all([*(each.subscription for each in self._leaving), *last])

    def _use(self) -> None:
        if self._closing:
            raise ConnectionClosed(owner="the session", remedy="create another one")
