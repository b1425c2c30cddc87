"""A session in the names of Jakarta Messaging: makes consumers and producers, and acknowledges."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Self

from kafkadur.jms.consumer import Listener, MessageConsumer
from kafkadur.jms.message import Message
from kafkadur.jms.modes import AUTOMATIC, AcknowledgeMode
from kafkadur.jms.producer import MessageProducer
from kafkadur.sync import Delivery, Subscription
from kafkadur_sharing.definition import SubscriptionType
from kafkadur_sharing.errors import ConnectionClosed, KafkadurError, LeaseLost
from kafkadur_sharing.redelivery import Redelivery

if TYPE_CHECKING:
    from kafkadur.jms.connection import Connection

_log = logging.getLogger("kafkadur.jms")


class Session:
    """Consumers and producers with one mode of acknowledgement; a context manager.

    Used by one thread at a time; listeners are called one at a time.
    """

    def __init__(self, connection: Connection, mode: AcknowledgeMode, redelivery: Redelivery | None) -> None:
        """Made by a connection."""
        self._connection = connection
        self.acknowledge_mode = mode
        self._redelivery = redelivery
        self._group = connection.plain.session()
        self._consumers: list[MessageConsumer] = []
        #: closed ones that wait for verdicts (rule K5)
        self._leaving: list[MessageConsumer] = []
        self._producers: list[MessageProducer] = []
        self._calling = threading.RLock()
        self._closed = False

    # -- consumers

    def create_consumer(
        self, topic: str, selector: str | None = None, *, no_local: bool = False
    ) -> MessageConsumer:
        """A consumer of a subscription of its own, from now on and until it is closed (rules V)."""
        return self._consumer(topic, selector, kind=self._connection.kind, no_local=no_local)

    def create_durable_consumer(
        self, topic: str, name: str, selector: str | None = None, *, no_local: bool = False
    ) -> MessageConsumer:
        """The one consumer of an unshared durable subscription (rules U); needs a client id.

        With the sharing policy `sharable` of the factory it is a shared one, as WebLogic makes it (rules P).
        """
        return self._consumer(topic, selector, durable=name, kind=self._connection.kind, no_local=no_local)

    def create_shared_consumer(self, topic: str, name: str, selector: str | None = None) -> MessageConsumer:
        """One of the consumers of a shared non-durable subscription (rules N)."""
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
            session=self._group,
        )
        consumer = MessageConsumer(self, subscription)
        self._consumers.append(consumer)
        return consumer

    def unsubscribe(self, name: str) -> None:
        """Delete a durable subscription of this connection's client id (rules X)."""
        self._use()
        self._connection.plain.unsubscribe(name)

    # -- producers

    def create_producer(self, topic: str | None = None) -> MessageProducer:
        """A producer to `topic`, or to the topic named with each message."""
        self._use()
        producer = MessageProducer(self._connection.plain.producer(), topic)
        self._producers.append(producer)
        return producer

    # -- acknowledging

    def recover(self) -> None:
        """Have everything delivered and not acknowledged come again, marked and counted (rule K3)."""
        self._use()
        self._group.recover()
        self._let_go()

    def received(self, delivery: Delivery) -> None:
        """Part of receiving: the application is about to get a message. Raises `LeaseLost`."""
        if self.acknowledge_mode is AcknowledgeMode.AUTO_ACKNOWLEDGE:
            delivery.ack()
        elif self.acknowledge_mode is AcknowledgeMode.DUPS_OK_ACKNOWLEDGE:
            delivery.ack_nowait()

    def acknowledge(self, delivery: Delivery) -> None:
        """Part of `Message.acknowledge`."""
        self._use()
        if self.acknowledge_mode is AcknowledgeMode.CLIENT_ACKNOWLEDGE:
            self._group.acknowledge()
        elif self.acknowledge_mode is AcknowledgeMode.INDIVIDUAL_ACKNOWLEDGE:
            delivery.ack()
        self._let_go()

    def call(self, listener: Listener, message: Message) -> None:
        """Part of listening: call a listener, and acknowledge what it returned from."""
        with self._calling:
            delivery, automatic = message.delivery, self.acknowledge_mode in AUTOMATIC
            try:
                listener(message)
            except Exception:  # noqa: BLE001 - whatever an application's code raises
                _log.exception("a listener failed for %r", message)
                if automatic:
                    delivery.rollback_nowait()
                return
            try:
                self.received(delivery)
            except LeaseLost as error:
                _log.warning("%s", error)

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
        """Part of closing a consumer: who waits looks again."""
        with self._connection.gate:
            self._connection.gate.notify_all()

    # -- the end

    def leave(self, consumer: MessageConsumer) -> None:
        """Part of closing a consumer: it leaves now, or when its messages have their verdicts."""
        self._consumers.remove(consumer)
        self._leaving.append(consumer)
        kept = consumer.take_kept()
        if kept is not None and not kept.lost:
            kept.release()
        self._let_go()

    def _let_go(self) -> None:
        """Have closed consumers leave whose messages have their verdicts."""
        done = [c for c in self._leaving if c.subscription.statistics()["in_hands"] == 0]
        self._leaving = [consumer for consumer in self._leaving if consumer not in done]
        for consumer in done:
            consumer.subscription.close()

    def close(self) -> None:
        """Close its consumers and producers; what is not acknowledged comes again (rule K6)."""
        if self._closed:
            return
        self._closed = True
        for consumer in list(self._consumers):
            consumer.close()
        for consumer in self._leaving:
            consumer.subscription.close()
        for producer in self._producers:
            producer.close()

    def _use(self) -> None:
        if self._closed:
            raise ConnectionClosed(owner="the session", remedy="create another one")

    def __enter__(self) -> Self:
        """It is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
