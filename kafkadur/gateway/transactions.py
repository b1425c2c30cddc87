"""Local transactions of AMQP clients: a link to the coordinator begins and ends them, one after the other.

Each coordinator link has a selective session of its own, whose commits are transactions of Kafka. Messages of
durable subscriptions and queues are settled in them. Those of non-durable subscriptions and temporary
destinations, which end with their consumers, are settled after the commit.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import proton
from confluent_kafka import KafkaException
from proton import Condition, Described, Link, Receiver

from kafkadur.aio.connection import Connection
from kafkadur.aio.session import Session
from kafkadur.consumer.delivery import Delivery
from kafkadur.gateway.conditions import (
    DECODE_ERROR,
    INTERNAL_ERROR,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    TRANSACTION_ROLLBACK,
    UNKNOWN_TRANSACTION,
    Refused,
)
from kafkadur.gateway.counting import COMMITTED, ROLLED_BACK
from kafkadur.gateway.links import Limit, LinkEngine, LinkFromClient
from kafkadur.gateway.outcomes import DECLARED
from kafkadur.producer.transacted import TransactedProducer
from kafkadur_sharing.errors import ConnectionClosed, KafkadurError, TransactionRolledBack

_log = logging.getLogger("kafkadur.gateway")

#: Requests that a client may send before the first is answered, and bytes of one.
_CREDIT, _MOST_BYTES = 100, 65_536
#: Seconds between two tries to learn from Kafka how a transaction has ended.
_AGAIN_S: Final = 1.0
_DECLARE: Final = frozenset[object]({0x31, "amqp:declare:list"})
_DISCHARGE: Final = frozenset[object]({0x32, "amqp:discharge:list"})


class Enrolled(Protocol):
    """A message that a client has settled in a transaction."""

    @property
    def in_kafka(self) -> Delivery[Any, Any] | None:
        """The delivery that the transaction of Kafka settles; None: it is settled after that."""

    def committed(self) -> None:
        """The transaction was committed."""

    def rolled_back(self) -> None:
        """The transaction was rolled back."""


class LocalTransaction:
    """One transaction of a client, from its declaration to its end."""

    def __init__(self, number: bytes, producer: TransactedProducer) -> None:
        """`number` is its id, `producer` sends its messages."""
        self.id = number
        self.producer = producer
        self.enrolled: list[Enrolled] = []
        #: the first reason for which it cannot be committed
        self.failed: Refused | None = None
        self.has_begun = False
        #: whether it was discharged, or its coordinator link has ended: nothing more can be part of it
        self.has_ended = False
        #: messages that are not in the producer's buffer yet
        self._under_way = 0
        self._all_sent = asyncio.Event()
        self._all_sent.set()

    async def begin(self) -> None:
        """Begin the transaction of Kafka before the first message is sent; raises `Refused`."""
        try:
            await asyncio.to_thread(self.producer.begin)
        except (KafkaException, RuntimeError) as error:  # the latter: the producer was closed meanwhile
            raise Refused(INTERNAL_ERROR, f"No transaction can be begun: {error}") from error
        self.has_begun = True

    def sending(self) -> None:
        """A message of it has come."""
        self._under_way += 1
        self._all_sent.clear()

    def sent(self) -> None:
        """A message of it is in the producer's buffer, or was refused."""
        self._under_way -= 1
        if not self._under_way:
            self._all_sent.set()

    def fail(self, error: Refused) -> None:
        """It cannot be committed."""
        self.failed = self.failed or error

    async def all_sent(self) -> None:
        """Wait until every message that has come is in the buffer."""
        await self._all_sent.wait()

    def roll_back(self) -> None:
        """Have its messages come again."""
        for each in self.enrolled:
            each.rolled_back()
        self.enrolled.clear()


class LocalTransactions:
    """The transactions and coordinator links of one connection."""

    def __init__(self) -> None:
        """There are none."""
        self._open: dict[bytes, LocalTransaction] = {}
        self._coordinators: list[Coordinator] = []
        self._numbers = itertools.count(1)
        #: the links that send messages: each reads the messages that have come
        self.senders: dict[object, Callable[[], None]] = {}
        #: the consumers: each attaches anew if it is not part of the transacted session that it is in
        self.consumers: dict[object, Callable[[], Awaitable[None]]] = {}

    def find(self, number: bytes) -> LocalTransaction:
        """Return an open transaction; raises `Refused`."""
        found = self._open.get(number)
        if found is None:
            raise Refused(UNKNOWN_TRANSACTION, "There is no such transaction, or it has ended.")
        return found

    def begin(self, producer: TransactedProducer) -> LocalTransaction:
        """Begin a transaction."""
        number = b"%d-%s" % (next(self._numbers), secrets.token_hex(4).encode())
        begun = self._open[number] = LocalTransaction(number, producer)
        return begun

    def end(self, transaction: LocalTransaction) -> None:
        """A transaction has ended."""
        transaction.has_ended = True
        self._open.pop(transaction.id, None)

    async def all_sent(self, transaction: LocalTransaction) -> None:
        """Wait until every message that came before the discharge is in the producer's buffer."""
        for read in list(self.senders.values()):
            read()
        await transaction.all_sent()

    def add(self, coordinator: Coordinator) -> None:
        """A coordinator link was attached."""
        self._coordinators.append(coordinator)

    def remove(self, coordinator: Coordinator) -> None:
        """A coordinator link has ended."""
        if coordinator in self._coordinators:
            self._coordinators.remove(coordinator)

    def coordinator(self, session: proton.Session) -> Coordinator | None:
        """Return the coordinator of a session of AMQP; None: it is not transacted."""
        return next((each for each in self._coordinators if each.is_in(session)), None)


class Coordinator(LinkFromClient):
    """A link to the coordinator."""

    def __init__(
        self,
        link: Receiver,
        connection: Connection,
        *,
        engine: LinkEngine,
        transactions: LocalTransactions,
        limit: Limit,
        config: Mapping[str, Any],
    ) -> None:
        """`transactions` are those of the connection, `config` is the configuration of its producer."""
        super().__init__(link, engine)
        self._limit = limit
        self._config = config
        self._connection = connection
        self._transactions = transactions
        self._amqp_session = link.session
        #: resolved when consumers can be attached; its exception: the link was refused
        self._ready: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._session: Session | None = None
        self._transaction: LocalTransaction | None = None
        self._requests: deque[tuple[proton.Delivery, bytes]] = deque()
        self._answering: asyncio.Task[None] | None = None
        #: whether a commit has begun, which is finished in any case
        self._committing = False
        transactions.add(self)

    def is_in(self, session: proton.Session) -> bool:
        """Whether the link is in this session of AMQP."""
        return bool(self._amqp_session == session)

    async def session(self) -> Session:
        """Return the session that commits, when it is open; raises the reason if it cannot be opened."""
        return await asyncio.shield(self._ready)

    async def attach(self) -> None:
        """Answer the client's attach; raises errors of opening a transacted session."""
        try:
            self._limit.take()
            session = self._session = self._connection.session(
                transacted=True, selective=True, config=self._config
            )
            await session.open()
        except (Refused, KafkadurError) as error:
            self._forget_session()
            if not self._ready.done():
                self._ready.set_exception(error)
            raise
        if not self._ready.done():
            self._ready.set_result(session)
        await asyncio.gather(*(enter() for enter in list(self._transactions.consumers.values())))
        if self._ended:  # the link has ended meanwhile: it must not be used
            return  # `close` ends the session
        link = self._link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.rcv_settle_mode = Link.RCV_FIRST
        link.open()
        link.flow(_CREDIT)

    def _forget_session(self) -> Session | None:
        session, self._session = self._session, None
        if session is not None:
            self._limit.give_back()
        return session

    # -- requests

    def read(self) -> None:
        """Read the requests that have come; they are answered in their order."""
        link = self._link
        while not self._ended and (current := link.current) is not None and current.readable:
            if current.pending > _MOST_BYTES:
                self.refuse(Refused(DECODE_ERROR, "A request to the coordinator is too long."))
                return
            if current.partial:
                return
            encoded = bytes(link.recv(current.pending) or b"")
            link.advance()
            self._requests.append((current, encoded))
        if self._requests and self._answering is None:
            self._answering = asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        try:
            while self._requests:
                delivery, encoded = self._requests.popleft()
                try:
                    state, data = await self._result(encoded)
                except Refused as error:
                    self._settle(delivery, proton.Delivery.REJECTED, error=error)
                else:
                    self._settle(delivery, state, data=data)
        except Exception:  # noqa: BLE001 - any defect: the client learns of it, and what was sent comes again
            _log.exception("a coordinator met a defect", extra=self._engine.ids)
            self.refuse(Refused(INTERNAL_ERROR, "The gateway met a defect; its log says which."))
        finally:
            self._answering = None

    async def _result(self, encoded: bytes) -> tuple[int, list[Any] | None]:
        """Do what a request asks for; returns the state of its delivery. Raises `Refused`."""
        descriptor, fields = _request(encoded)
        if descriptor in _DECLARE:
            return DECLARED, [self._declare(fields)]
        if descriptor in _DISCHARGE:
            await self._discharge(fields)
            return int(proton.Delivery.ACCEPTED), None
        raise Refused(NOT_IMPLEMENTED, f"The coordinator does not know {descriptor}.")

    def _declare(self, fields: Sequence[Any]) -> bytes:
        if fields and fields[0] is not None:
            raise Refused(NOT_IMPLEMENTED, "The gateway has local transactions only.")
        if self._transaction is not None:
            raise Refused(RESOURCE_LIMIT, "A coordinator link has one transaction at a time.")
        assert self._session is not None  # noqa: S101 - credit is given when it is open
        self._committing = False
        self._transaction = self._transactions.begin(self._session.producer())
        return self._transaction.id

    async def _discharge(self, fields: Sequence[Any]) -> None:
        transaction = self._transaction
        if transaction is None or fields[:1] != [transaction.id]:
            raise Refused(UNKNOWN_TRANSACTION, "There is no such transaction, or it has ended.")
        await self._transactions.all_sent(transaction)
        self._transactions.end(transaction)  # from now on nothing more is part of it
        if fields[1:2] == [True]:
            await self._roll_back(transaction)
        else:
            await self._commit(transaction)
        self._transaction = None

    async def _commit(self, transaction: LocalTransaction) -> None:
        session = self._session
        assert session is not None  # noqa: S101 - see above
        chosen = [each.in_kafka for each in transaction.enrolled if each.in_kafka is not None]
        while transaction.failed is None:
            self._committing = True
            try:
                await session.commit(chosen)
            except TransactionRolledBack as error:
                transaction.fail(Refused(TRANSACTION_ROLLBACK, str(error)))
            except KafkadurError as error:
                under = session.transaction
                if under is None or not under.unknown:
                    transaction.fail(Refused(TRANSACTION_ROLLBACK, str(error)))
                else:
                    _log.warning("%s It is asked again.", error, extra=self._engine.ids)
                    await asyncio.sleep(_AGAIN_S)
            else:
                self._engine.counts.transactions[COMMITTED] += 1
                for each in transaction.enrolled:
                    each.committed()
                transaction.enrolled.clear()
                return
        reason = transaction.failed.description
        await self._roll_back(transaction)
        self._transaction = None
        raise Refused(TRANSACTION_ROLLBACK, reason)

    async def _roll_back(self, transaction: LocalTransaction) -> None:
        assert self._session is not None  # noqa: S101 - see above
        transaction.roll_back()
        while True:
            try:
                await self._session.rollback()
            except KafkadurError as error:
                _log.warning("%s The rollback is tried again.", error, extra=self._engine.ids)
                await asyncio.sleep(_AGAIN_S)
            else:
                self._engine.counts.transactions[ROLLED_BACK] += 1
                return

    def _settle(
        self,
        delivery: proton.Delivery,
        state: int,
        *,
        data: list[Any] | None = None,
        error: Refused | None = None,
    ) -> None:
        if self._ended:
            return
        if data is not None:
            delivery.local.data = data
        if error is not None:
            delivery.local.condition = Condition(error.condition, error.description)
        delivery.update(state)
        delivery.settle()
        self._give_credit(_CREDIT)
        self._engine.soon()

    # -- the end

    def abandon(self) -> None:
        """The client is gone: an open transaction is rolled back, counted."""
        if self._transaction is not None and not self._committing:
            self._transactions.end(self._transaction)
            # else a discharge that waits would commit what was sent without what was received
            self._transaction.fail(Refused(TRANSACTION_ROLLBACK, "The client of the transaction is gone."))
            self._transaction.roll_back()

    async def close(self) -> None:
        """End: an open transaction is rolled back, and a commit that has begun is finished."""
        self.end()
        self._transactions.remove(self)
        if not self._ready.done():
            self._ready.set_exception(ConnectionClosed())
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait((self._answering,))
        self.abandon()
        session = self._forget_session()
        try:
            if session is not None:
                await session.close()
        except KafkadurError as error:
            _log.info("a transacted session of a client ends: %s", error, extra=self._engine.ids)
        finally:
            if self._transaction is not None:  # what the commit that had begun did not settle
                if not self._committing:
                    self._engine.counts.transactions[ROLLED_BACK] += 1
                self._transactions.end(self._transaction)
                self._transaction.roll_back()


def _request(encoded: bytes) -> tuple[object, list[Any]]:
    """Return the descriptor and the fields of a request; raises `Refused`."""
    message: Any = proton.Message()
    try:
        message.decode(encoded)
        body = message.body
        fields = [bytes(each) if isinstance(each, memoryview) else each for each in body.value]
        descriptor = str(body.descriptor) if isinstance(body.descriptor, str) else int(body.descriptor)
    except Exception as error:  # noqa: BLE001 - Proton raises many kinds for malformed values
        kind = type(error).__name__
        raise Refused(DECODE_ERROR, f"The request to the coordinator cannot be read: {kind}.") from None
    if not isinstance(body, Described):
        raise Refused(DECODE_ERROR, "The request to the coordinator is malformed.")
    return descriptor, fields
