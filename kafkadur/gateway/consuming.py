"""A link to a client that consumes a subscription, a queue or a temporary destination."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeAlias

import proton
from proton import Link

from kafkadur.aio.connection import Connection
from kafkadur.aio.session import Session
from kafkadur.aio.subscription import Subscription
from kafkadur.consumer.delivery import Batch, Delivery, is_in_flight
from kafkadur.fetch.filtering import taking
from kafkadur.gateway.conditions import (
    INTERNAL_ERROR,
    NOT_ALLOWED,
    TRANSACTION_ROLLBACK,
    Refused,
    refused,
)
from kafkadur.gateway.destinations import Destination, not_found
from kafkadur.gateway.identity import Asked
from kafkadur.gateway.links import LinkEngine, LinkToClient, sent
from kafkadur.gateway.nodes import Nodes
from kafkadur.gateway.outcomes import (
    PROCESSED,
    UNSAID,
    Outcome,
    outcome_in_transaction,
    outcome_of,
    transaction_of,
)
from kafkadur.gateway.permissions import Action, Allowed
from kafkadur.gateway.records import to_message
from kafkadur.gateway.temporary import Room, Temporary, TemporaryConsumer, TemporaryDelivery
from kafkadur.gateway.transactions import LocalTransactions
from kafkadur_coordinators.changes import definition_of
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import (
    AlreadySettled,
    ConnectionClosed,
    KafkadurError,
    KafkaUnavailable,
    LeaseLost,
)
from kafkadur_sharing.numbers import MOST_RECORDS
from kafkadur_sharing.redelivery_policy import Redelivery
from kafkadur_sharing.selector import parse_selector

_log = logging.getLogger("kafkadur.gateway")

#: Messages that are taken and sent at once.
_AT_ONCE: Final = 100
#: Bytes of messages that are made before the socket gets them.
_WRITE_BYTES: Final = 65_536
#: The window with which a consumer attaches. The credit of the client sets it from then on; it must not be 1,
#: because then it could not change.
_FIRST_WINDOW: Final = 2
#: A window is made smaller when the client has less than this part of it.
_SHRINK_BELOW: Final = 0.7
#: Seconds after which a client gets an answer to a drain also where Kafka does not tell whether a message
#: waits.
_DRAIN_S: Final = 5.0
#: The same in a transacted session: Qpid JMS drains each consumer when it rolls back, and waits for that.
_TRANSACTED_DRAIN_S: Final = 1.0
#: Acknowledgements of a consumer that may be unconfirmed.
_UNCONFIRMED: Final = 1_000


#: Messages that were received together.
_Received: TypeAlias = "Batch | Sequence[TemporaryDelivery]"


_GIVEN_BACK: Final = Refused(TRANSACTION_ROLLBACK, "A message of it was given back, and comes again.")
_ENDED: Final = Refused(NOT_ALLOWED, "The coordinator link of its session has ended.")


class Consuming(LinkToClient):
    """One consumer of a subscription."""

    def __init__(
        self,
        link: Link,
        asked: Asked,
        *,
        engine: LinkEngine,
        nodes: Nodes,
        room: Room,
        transactions: LocalTransactions,
        allowed: Allowed,
        counts_released: bool,
        redelivery: Redelivery | None,
        most_bytes: int,
    ) -> None:
        """`nodes` makes queues; `room` and `transactions` are of the connection.

        `allowed`: what the user may do. `counts_released`: a message that a client releases counts as an
        attempt.

        `redelivery`: the policy of a subscription that is created. `most_bytes`: of messages that the client
        has and has not settled.
        """
        super().__init__(link, engine)
        self._nodes = nodes
        self._transactions = transactions
        self._allowed = allowed
        self._redelivery = redelivery
        self._most_bytes = most_bytes
        self._asked = asked
        #: empty: it is to be made
        self._destination = asked.destination or Destination("")
        self._room = room
        #: the temporary destination that this link has made, and that ends with it
        self._made: Temporary | None = None
        self._counts_released = counts_released
        self._connection: Connection | None = None
        self._subscription: Subscription | TemporaryConsumer | None = None
        self._delivering: asyncio.Task[None] | None = None
        #: set when credit, drain mode or the socket may have changed
        self._changed = asyncio.Event()
        self._tags = itertools.count(1)
        #: messages that the client has and has not settled, by the tag of their delivery
        self._unsettled: dict[str, Delivery | TemporaryDelivery] = {}
        #: messages whose outcome is part of an open transaction, by the tag of their delivery
        self._parts: dict[str, _InTransaction] = {}
        #: the session that settles messages in transactions; None: there is none
        self._session: Session | None = None
        self._window = _FIRST_WINDOW
        #: whether the client's attach was accepted, and its link not ended by the gateway since
        self._accepted = False
        self._amqp_session = link.session
        self._presettled = link.remote_snd_settle_mode == Link.SND_SETTLED

    # -- the beginning

    async def attach(self, connection: Connection) -> None:
        """Attach to the subscription, and answer the client's attach; raises errors of `subscribe`."""
        subscription = await self._subscribe(connection)
        while self._must_enter():  # a coordinator link was attached meanwhile
            await _left(subscription)
            subscription = await self._subscribe(connection)
        if self._ended:  # the link has ended meanwhile: it must not be used
            self.end()
            await _left(subscription)
            return
        self._connection, self._subscription, self._accepted = connection, subscription, True
        self._transactions.consumers[self] = self.enter
        link = self._link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        if self._made is not None:
            link.source.address = self._made.destination.name
        link.snd_settle_mode = Link.SND_SETTLED if self._presettled else Link.SND_UNSETTLED
        link.rcv_settle_mode = Link.RCV_FIRST
        link.open()
        self._fit_window()
        self._delivering = asyncio.create_task(self._deliver(subscription))
        self._engine.soon()

    def _must_enter(self) -> bool:
        """Whether its session of AMQP is transacted, and its subscription does not belong to that."""
        if self._ended or self._session is not None or not self._in_journal:
            return False
        return self._transactions.coordinator(self._amqp_session) is not None

    async def enter(self) -> None:
        """Attach anew, because a coordinator link was attached in its session of AMQP.

        Messages that the client has are given back and come again; a transaction of them is rolled back.
        """
        connection, before = self._connection, self._subscription
        if connection is None or before is None or not self._must_enter():
            return
        if self._delivering is not None:
            self._delivering.cancel()
            await asyncio.wait((self._delivering,))
        self._unsettled.clear()
        await _left(before)
        try:
            subscription = await self._subscribe(connection)
        except (Refused, KafkadurError) as error:
            self.refuse(refused(error))
        else:
            if self._ended:
                await _left(subscription)
                return
            self._subscription, self._window = subscription, _FIRST_WINDOW
            self._fit_window()
            self._delivering = asyncio.create_task(self._deliver(subscription))

    async def _subscribe(self, connection: Connection) -> Subscription | TemporaryConsumer:
        asked = self._asked
        if asked.makes is not None:
            self._made = await self._nodes.temporary.make(asked.makes, self._room)
            self._destination = self._made.destination
        destination = self._destination
        if destination.is_temporary:
            return self._consume_temporary(connection)
        self._allowed.check(Action.CONSUME, destination)
        if destination.is_queue and not await self._nodes.partitions(destination, self._allowed):
            raise not_found(destination)
        creates, replaces = await self._may_change(connection)
        coordinator = self._transactions.coordinator(self._amqp_session)
        if self._in_journal and coordinator is not None:
            self._session = await coordinator.session()
        return await connection.subscribe(
            destination.name,
            session=self._session,
            type=asked.type,
            durable=destination.subscription if destination.is_queue else asked.durable,
            shared=asked.shared,
            start="earliest" if destination.is_queue else None,  # it may have been deleted just now
            selector=asked.selector,
            no_local=asked.no_local and asked.type is SubscriptionType.EXCLUSIVE,
            window=_FIRST_WINDOW,
            window_bytes=self._most_bytes,
            unconfirmed=_UNCONFIRMED,
            redelivery=self._redelivery,
            on_change="replace" if asked.replaces and replaces else None,  # as JMS says (U4, S3)
            create=creates,
        )

    async def _may_change(self, connection: Connection) -> tuple[bool, bool]:
        """Whether the user may create the durable subscription, and replace the one that there is.

        Raises `Refused` if it does not exist and the user must not create it, and for one of another topic
        that the user has no permission for.
        """
        allowed, name = self._allowed, self._asked.durable
        if allowed.allows_all or not self._in_journal:
            return True, True
        creates = allowed.allows(Action.CREATE, self._destination.name)
        if name is None:  # of a queue, which is there by now
            return creates, False
        known = await connection.known(name)
        if known is None:
            allowed.check(Action.CREATE, self._destination)
            return True, False
        topic = definition_of(known).topic
        if not allowed.allows(Action.CONSUME, topic):
            raise allowed.refusal(f"for the durable subscription {name!r}")
        return creates, creates and allowed.allows(Action.CREATE, topic)

    @property
    def _in_journal(self) -> bool:
        """Whether the subscription is durable, so that transactions of Kafka can settle its messages."""
        return self._asked.durable is not None or self._destination.is_queue

    def _consume_temporary(self, connection: Connection) -> TemporaryConsumer:
        asked = self._asked
        parse_selector(asked.selector)
        wanted = Definition(
            type=SubscriptionType.EXCLUSIVE, topic="-", selector=asked.selector, no_local=asked.no_local
        )
        takes = taking(wanted, client_id=connection.settings.client_id, connection_id=connection.id)
        return self._nodes.temporary.consume(self._destination, self._room, takes)

    # -- what the client says

    def on_flow(self) -> None:
        """The client has given credit, or asks to drain it."""
        if self._subscription is not None:
            self._fit_window()
            self._changed.set()

    def on_writable(self) -> None:
        """The socket takes bytes again."""
        self._changed.set()

    def on_disposition(self, disposition: proton.Delivery) -> None:
        """The client has settled a message, or said what becomes of it."""
        number = transaction_of(disposition)
        if number is not None:
            self._enrol(disposition, number)
            return
        part = self._parts.get(str(disposition.tag))
        if part is not None:
            if disposition.settled:
                part.forget_disposition()
            return
        outcome = outcome_of(disposition)
        if outcome is None and not disposition.settled:
            return
        delivery = self._unsettled.pop(str(disposition.tag), None)
        if delivery is not None:
            self._settle(delivery, outcome or UNSAID)
        if not disposition.settled:
            disposition.update(disposition.remote_state)
        disposition.settle()
        self._fit_window()
        self._engine.soon()

    def _settle(self, delivery: Delivery | TemporaryDelivery, outcome: Outcome) -> None:
        self._engine.counts.settled[outcome.word] += 1
        outcome.settle(delivery, counts_released=self._counts_released)

    def _enrol(self, disposition: proton.Delivery, number: bytes) -> None:
        """Make an outcome part of a transaction: it comes about when that is committed."""
        outcome, tag = outcome_in_transaction(disposition), str(disposition.tag)
        if (part := self._parts.get(tag)) is not None and disposition.settled:
            part.forget_disposition()
        if outcome is None or part is not None:
            return
        try:
            transaction = self._transactions.find(number)
        except Refused as error:
            self.refuse(error)
            return
        if tag not in self._unsettled:
            transaction.fail(_GIVEN_BACK)
            return
        part = _InTransaction(self, disposition, self._unsettled.pop(tag), outcome)
        self._parts[tag] = part
        transaction.enrolled.append(part)

    def settles_in_kafka(self, outcome: Outcome) -> bool:
        """Part of a transaction: whether a transaction of Kafka settles a message with this outcome."""
        return self._session is not None and outcome.is_accepted

    def commit(self, part: _InTransaction) -> None:
        """Part of a transaction: it was committed."""
        del self._parts[part.tag]
        if part.in_kafka is None:
            self._settle(part.delivery, part.outcome)
        else:
            self._engine.counts.settled[part.outcome.word] += 1
        if part.disposition is not None and not self._ended:
            part.disposition.update(proton.Delivery.ACCEPTED)
            part.disposition.settle()
        self._fit_window()
        self._engine.soon()

    def roll_back(self, part: _InTransaction) -> None:
        """Part of a transaction: it was rolled back. A client keeps a message that it had not settled."""
        del self._parts[part.tag]
        if part.disposition is None or self._ended:
            with contextlib.suppress(AlreadySettled, LeaseLost):
                part.delivery.rollback_nowait()
        elif part.is_in_flight:
            self._unsettled[part.tag] = part.delivery
        else:  # it comes again, because Kafka has rolled the commit back
            part.disposition.update(proton.Delivery.RELEASED)
            part.disposition.settle()
        self._fit_window()

    def _fit_window(self) -> None:
        """Let the subscription hold what the client has, and has credit for."""
        if self._ended:
            return
        held = len(self._unsettled) + len(self._parts)
        wanted = min(held + max(self._link.credit, 0), MOST_RECORDS)
        # a client without credit is granted nothing more; one with credit may have a bit less than its window
        slack = self._link.credit > 0 and self._window * _SHRINK_BELOW < wanted <= self._window
        if self._subscription is None or slack:
            return
        if wanted != self._window:
            self._window = wanted
            self._subscription.set_window(wanted)

    # -- delivering

    async def _deliver(self, subscription: Subscription | TemporaryConsumer) -> None:
        try:
            while not subscription.is_stopping:
                await self._deliver_some(subscription)
            self.refuse(_ENDED)
        except ConnectionClosed:
            self.refuse(_ENDED)
        except KafkadurError as error:
            ends = "a consumer of %s ends: %s"
            _log.warning(ends, self._destination.name, error, extra=self._engine.ids)
            self.refuse(refused(error))
        except Exception:  # noqa: BLE001 - any defect: the client learns of it
            met = "a consumer of %s met a defect"
            _log.exception(met, self._destination.name, extra=self._engine.ids)
            self.refuse(Refused(INTERNAL_ERROR, "The gateway met a defect; its log says which."))

    async def _deliver_some(self, subscription: Subscription | TemporaryConsumer) -> None:
        self._changed.clear()
        link = self._link
        most = min(link.credit, _AT_ONCE)
        if most <= 0 or not self._engine.writable:
            await self._changed.wait()
            return
        batch = await subscription.receive_batch(most, 0)
        if batch is None and link.drain_mode:
            batch = await self._unless_changed(self._available(subscription, most))
            if batch is None and not self._changed.is_set():
                link.drained()
                self._fit_window()
                self._engine.soon()
        elif batch is None:
            batch = await self._unless_changed(subscription.receive_batch(most))
        if batch is not None:
            await self._send(batch)
            await asyncio.sleep(0)  # other links have their turn

    async def _available(self, subscription: Subscription | TemporaryConsumer, most: int) -> _Received | None:
        """Receive what waits; None if nothing does, or if Kafka does not tell in time."""
        try:
            longest = _DRAIN_S if self._session is None else _TRANSACTED_DRAIN_S
            return await subscription.receive_available(most, longest)
        except KafkaUnavailable as error:
            _log.info("a drain of %s is answered without certainty: %s", self._destination.name, error)
            return None

    async def _unless_changed(self, receiving: Coroutine[Any, Any, _Received | None]) -> _Received | None:
        """Receive until the client says something else; None then."""
        task = asyncio.create_task(receiving)
        change = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait((task, change), return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            return None

    async def _send(self, batch: _Received) -> None:
        link, size = self._link, 0
        for delivery in batch:
            if size > _WRITE_BYTES:
                self._engine.process()
                size = 0
            while not self._engine.writable:  # a client that reads slowly does not fill the memory
                self._changed.clear()
                await self._changed.wait()
            encoded = _encoded(delivery, self._destination)
            if encoded is None:
                continue
            tag = str(next(self._tags))
            size += len(encoded)
            transfer = link.delivery(tag)
            link.stream(encoded)
            link.advance()
            self._unsettled[tag] = delivery
            self._engine.counts.delivered += 1
            if self._presettled:
                transfer.settle()
        if self._presettled:
            await self._acknowledge_sent()
        self._engine.soon()

    async def _acknowledge_sent(self) -> None:
        """Acknowledge messages that the client takes as settled, when the socket has them."""
        self._engine.process()
        await sent(self._link, self._changed)
        for delivery in self._unsettled.values():
            self._settle(delivery, PROCESSED)
        self._unsettled.clear()
        self._fit_window()

    # -- the end

    def refuse(self, error: Refused) -> None:
        """End the link with an error; before it was attached this refuses the attach."""
        if not self._ended:
            self._accepted = False
        super().refuse(error)

    def end(self) -> None:
        """The link must not be used any more; `close` or `lose` follows."""
        super().end()
        self._transactions.consumers.pop(self, None)
        if self._made is not None:
            self._nodes.temporary.end(self._made)
            self._made = None
        if self._delivering is not None:
            self._delivering.cancel()

    async def close(self, *, unsubscribes: bool) -> None:
        """Detach from the subscription; messages that the client has not settled are given back, uncounted.

        `unsubscribes`: the client has closed its link, which deletes a durable subscription. It does not when
        the client only answers that the gateway has refused or ended the link. Raises `Refused` and errors of
        unsubscribing.
        """
        unsubscribes = unsubscribes and self._accepted
        await self._leave()
        if unsubscribes and self._asked.durable is not None and self._connection is not None:
            self._allowed.check(Action.CREATE, self._destination)
            await self._connection.unsubscribe(self._asked.durable, topic=self._destination.name)

    def abandon(self) -> None:
        """The client is gone: messages that it had not settled come again, and count as attempts."""
        for delivery in self._unsettled.values():
            with contextlib.suppress(AlreadySettled, LeaseLost):
                delivery.rollback_nowait()
        self._unsettled.clear()

    async def _leave(self) -> None:
        self.end()
        if self._delivering is not None:
            await asyncio.wait((self._delivering,))
        self._unsettled.clear()
        if self._subscription is not None:
            await _left(self._subscription)


class _InTransaction:
    """A message whose outcome is part of a transaction."""

    def __init__(
        self,
        consuming: Consuming,
        disposition: proton.Delivery,
        delivery: Delivery | TemporaryDelivery,
        outcome: Outcome,
    ) -> None:
        self._consuming = consuming
        self.tag = str(disposition.tag)
        self.delivery, self.outcome = delivery, outcome
        self.in_kafka: Delivery | None = None
        if isinstance(delivery, Delivery) and consuming.settles_in_kafka(outcome):
            self.in_kafka = delivery
        #: None: the client has settled it; else the gateway does when the transaction is committed. A settled
        #: one must not be kept: Proton answers no drain as long as it is there.
        self.disposition: proton.Delivery | None = disposition
        if disposition.settled:
            self.forget_disposition()

    def forget_disposition(self) -> None:
        """The client has settled it."""
        if self.disposition is not None:
            self.disposition.settle()
            self.disposition = None

    @property
    def is_in_flight(self) -> bool:
        """Whether the client may have it still."""
        return not isinstance(self.delivery, Delivery) or is_in_flight(self.delivery)

    def committed(self) -> None:
        """The transaction was committed."""
        self._consuming.commit(self)

    def rolled_back(self) -> None:
        """The transaction was rolled back."""
        self._consuming.roll_back(self)


def _encoded(delivery: Delivery | TemporaryDelivery, destination: Destination) -> bytes | None:
    """Return a message as AMQP encodes it; None for one that cannot be encoded: it becomes a dead letter."""
    try:
        return to_message(
            destination=destination,
            value=delivery.raw_value,
            headers=delivery.headers,
            timestamp_ms=delivery.timestamp,
            attempt=delivery.attempt,
            redelivered=delivery.redelivered,
        )
    except Exception:  # noqa: BLE001 - of any malformed record: the others are delivered
        _log.exception("%r cannot be a message of AMQP: it becomes a dead letter", delivery)
        with contextlib.suppress(AlreadySettled, LeaseLost):
            delivery.reject_nowait("it cannot be made a message of AMQP")
        return None


async def _left(subscription: Subscription | TemporaryConsumer) -> None:
    """Close a subscription; acknowledgements that failed are of messages that come again."""
    with contextlib.suppress(LeaseLost):
        await subscription.close()
