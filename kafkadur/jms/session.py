"""A session in the names of Jakarta Messaging: makes consumers and producers, and acknowledges."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol, Self

import kafkadur.sync
from kafkadur.jms.closing import close_all
from kafkadur.jms.consumer import Listener, MessageConsumer
from kafkadur.jms.message import Message
from kafkadur.jms.modes import AUTOMATIC, AcknowledgeMode
from kafkadur.jms.producer import MessageProducer
from kafkadur.sync import Delivery, Subscription
from kafkadur_sharing.definition import SubscriptionType
from kafkadur_sharing.errors import (
    AlreadySettled,
    ConnectionClosed,
    IllegalState,
    KafkadurError,
    LeaseLost,
    LevelNotReached,
)
from kafkadur_sharing.redelivery import Redelivery

_log = logging.getLogger("kafkadur.jms")

#: How often a thread that waits to call a listener checks whether it has to end, seconds.
_LOOK_EVERY = 0.05
#: How long a consumer of a transacted session waits for a message at its turn, seconds.
_TURN_S = 0.01


class SessionConnection(Protocol):
    """The connection of a session, as that sees it."""

    @property
    def plain(self) -> kafkadur.sync.Connection:
        """The connection that it is over."""
        ...

    @property
    def kind(self) -> SubscriptionType:
        """The type of subscriptions that are not shared by name."""
        ...

    @property
    def gate(self) -> threading.Condition:
        """Where threads wait for the start."""
        ...

    @property
    def is_started(self) -> bool:
        """Whether messages may come."""
        ...

    def tell(self, error: KafkadurError) -> None:
        """Tell the exception listener."""


class Session:
    """Consumers and producers with one mode of acknowledgement; a context manager.

    Used by one thread at a time; listeners are called one at a time.
    """

    def __init__(
        self, connection: SessionConnection, mode: AcknowledgeMode, redelivery: Redelivery | None
    ) -> None:
        """Made by a connection."""
        self._connection = connection
        self.acknowledge_mode = mode
        self._redelivery = redelivery
        self._consumers: list[MessageConsumer] = []
        #: closed ones that wait for verdicts (rule K5)
        self._leaving: list[MessageConsumer] = []
        self._producers: list[MessageProducer] = []
        #: what commits, in a transacted session
        self._transacted: kafkadur.sync.Session | None = None
        if mode is AcknowledgeMode.SESSION_TRANSACTED:
            self._transacted = connection.plain.session(transacted=True)
            self._transacted.open()  # closes itself if it cannot
        #: what the application got and has to acknowledge, oldest first
        self._delivered: list[Delivery] = []
        self._lock = threading.Lock()
        #: held while a listener is called, and the thread that it is called in
        self._calling = threading.Lock()
        self._caller: threading.Thread | None = None
        self._closing = False
        self._closed = False

    # -- consumers

    def create_consumer(
        self, topic: str, selector: str | None = None, *, no_local: bool = False
    ) -> MessageConsumer:
        """A consumer of a subscription of its own, from now on and until it is closed (rules V).

        Raises `IllegalState` in a transacted session, whose subscriptions are durable.
        """
        return self._consumer(topic, selector, kind=self._connection.kind, no_local=no_local)

    def create_durable_consumer(
        self, topic: str, name: str, selector: str | None = None, *, no_local: bool = False
    ) -> MessageConsumer:
        """The one consumer of an unshared durable subscription (rules U); needs a client id.

        With the sharing policy `sharable` of the factory it is a shared one, as WebLogic makes it (rules P).
        """
        return self._consumer(topic, selector, durable=name, kind=self._connection.kind, no_local=no_local)

    def create_shared_consumer(self, topic: str, name: str, selector: str | None = None) -> MessageConsumer:
        """One of the consumers of a shared non-durable subscription (rules N).

        Raises `IllegalState` in a transacted session, whose subscriptions are durable.
        """
        return self._consumer(topic, selector, shared=name, kind=SubscriptionType.SHARED)

    def create_shared_durable_consumer(
        self, topic: str, name: str, selector: str | None = None
    ) -> MessageConsumer:
        """One of the consumers of a shared durable subscription (rules S)."""
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
        """A producer to `topic`, or to the topic named with each message."""
        self._use()
        if self._transacted is not None:
            return MessageProducer(self._transacted.producer(), topic, waits=False)
        producer = MessageProducer(self._connection.plain.producer(), topic)
        self._producers.append(producer)
        return producer

    # -- acknowledging

    def recover(self) -> None:
        """Have everything delivered and not acknowledged come again, marked and counted (rule K3).

        Raises `IllegalState` in a transacted session.
        """
        self._use()
        if self._transacted is not None:
            self._transacted.recover()
        self._settle(self._take(), Delivery.rollback_nowait, Delivery.rollback)
        self._let_go()

    def received(self, delivery: Delivery) -> None:
        """Part of receiving: the application gets a message.

        In the automatic modes it is acknowledged; raises as `Delivery.ack`.
        """
        if self.acknowledge_mode is AcknowledgeMode.AUTO_ACKNOWLEDGE:
            delivery.ack()
        elif self.acknowledge_mode is AcknowledgeMode.DUPS_OK_ACKNOWLEDGE:
            delivery.ack_nowait()
        elif self._transacted is None:
            with self._lock:
                self._delivered.append(delivery)

    def acknowledge(self, delivery: Delivery) -> None:
        """Part of `Message.acknowledge`."""
        if self._closed:
            raise ConnectionClosed(owner="the session", remedy="create another one")
        if self.acknowledge_mode is AcknowledgeMode.CLIENT_ACKNOWLEDGE:
            self._settle(self._take(), Delivery.ack_nowait, Delivery.ack)
        elif self.acknowledge_mode is AcknowledgeMode.INDIVIDUAL_ACKNOWLEDGE:
            with self._lock, suppress(ValueError):
                self._delivered.remove(delivery)
            delivery.ack()
        self._let_go()

    def _take(self) -> list[Delivery]:
        """What the application got and did not acknowledge; it is not asked for again."""
        with self._lock:
            delivered, self._delivered = self._delivered, []
            return delivered

    @staticmethod
    def _settle(
        delivered: Iterable[Delivery],
        settle: Callable[[Delivery], object],
        confirm: Callable[[Delivery], object],
    ) -> None:
        """Settle all, the last of each chunk so that it is confirmed; raises `LeaseLost` if one was lost."""
        lost: LeaseLost | None = None
        some = list(delivered)
        last = {delivery.chunk_id: index for index, delivery in enumerate(some)}
        for index, delivery in enumerate(some):
            try:
                (confirm if last[delivery.chunk_id] == index else settle)(delivery)
            except LeaseLost as error:
                lost = lost or error
            except AlreadySettled:  # by the application, past the session
                pass
        if lost is not None:
            raise lost

    # -- in transactions

    @property
    def is_transacted(self) -> bool:
        """Whether it commits."""
        return self._transacted is not None

    def commit(self) -> None:
        """Commit everything received and sent: both hold, or neither does.

        Raises as `kafkadur.sync.Session.commit`, and `IllegalState` in a session that is not transacted.
        """
        self._end_transaction("commit", kafkadur.sync.Session.commit)

    def rollback(self) -> None:
        """Take everything received and sent back: what was received comes again, marked and counted.

        Raises as `kafkadur.sync.Session.rollback`, and `IllegalState` in a session that is not transacted.
        """
        self._end_transaction("roll back", kafkadur.sync.Session.rollback)

    def _end_transaction(self, what: str, end: Callable[[kafkadur.sync.Session], None]) -> None:
        if self._closed:  # a listener that is running while it is closed may commit
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
        with self._lock:  # closed ones have their verdicts now
            done, self._leaving = self._leaving, []
        close_all(consumer.subscription for consumer in done)

    def take_and_call(self, consumer: MessageConsumer, listener: Listener) -> None:
        """Part of listening in a transacted session: have a listener called with what comes in a moment.

        Nothing is received that no listener has got when another one commits.
        """
        if not self._take_turn(consumer):
            return
        try:
            delivery = None if consumer.is_closed else consumer.next_within(_TURN_S)
            if delivery is not None:
                self._caller = threading.current_thread()
                self._call(listener, delivery)
        finally:
            self._caller = None
            self._calling.release()
        self._let_go()

    def _take_turn(self, consumer: MessageConsumer) -> bool:
        """Wait for the turn to call a listener; not once the consumer was closed."""
        while not self._calling.acquire(timeout=_LOOK_EVERY):
            if consumer.is_closed:
                return False
        return True

    # -- listening

    def call(self, consumer: MessageConsumer, listener: Listener, delivery: Delivery) -> bool:
        """Part of listening: call a listener, and acknowledge what it returned from.

        Returns whether it was called: not while the connection is stopped, nor when the consumer was closed.
        """
        if not self._take_turn(consumer):
            return False
        try:
            if consumer.is_closed or not self.is_started or delivery.lost:
                return False
            self._caller = threading.current_thread()
            self._call(listener, delivery)
        finally:
            self._caller = None
            self._calling.release()
        self._let_go()
        return True

    def _call(self, listener: Listener, delivery: Delivery) -> None:
        automatic = self.acknowledge_mode in AUTOMATIC
        if not automatic:
            self.received(delivery)
        message = Message(delivery, self.acknowledge)
        try:
            try:
                listener(message)
            except Exception:  # noqa: BLE001 - whatever an application's code raises
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
        """Whether this thread is in a listener of the session."""
        return self._caller is threading.current_thread()

    def wait_for_listener(self) -> None:
        """Part of stopping: wait until no listener is called."""
        with self._calling:
            pass

    def failed(self, error: KafkadurError) -> None:
        """Part of listening: a consumer cannot go on."""
        self._connection.tell(error)

    @property
    def is_started(self) -> bool:
        """Whether messages may come."""
        return self._connection.is_started

    def wait_for_start(self, consumer: MessageConsumer, timeout: float | None) -> bool:
        """Part of receiving: wait, at most `timeout` seconds, until messages may come to a consumer."""
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
        """Part of closing a consumer: it leaves now, or when its messages have their verdicts."""
        with self._lock:
            self._consumers.remove(consumer)
            self._leaving.append(consumer)
        self._let_go()

    def _let_go(self) -> None:
        """Have closed consumers leave whose messages have their verdicts."""
        with self._lock:
            done = [c for c in self._leaving if c.subscription.statistics()["in_hands"] == 0]
            self._leaving = [consumer for consumer in self._leaving if consumer not in done]
        close_all(consumer.subscription for consumer in done)

    def close(self) -> None:
        """Close its consumers and producers; what is not acknowledged comes again (rule K6).

        Listeners come to their end first, and may acknowledge. Raises `IllegalState` from within one, and
        the first error of closing when all is closed.
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
            # those that waited for verdicts until just now
            last = [] if self._transacted is None else [self._transacted]
            close_all([*(each.subscription for each in self._leaving), *last])

    def _use(self) -> None:
        if self._closing:
            raise ConnectionClosed(owner="the session", remedy="create another one")

    def __enter__(self) -> Self:
        """It is open."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close it; an error on the way out does not hide the one that led here."""
        try:
            self.close()
        except KafkadurError:
            if error is None:
                raise
