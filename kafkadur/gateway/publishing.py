"""A link that carries messages from a client: each is accepted when Kafka has reported that it is written."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import proton
from proton import Condition, Described, Link, Receiver, ulong

from kafkadur.gateway.conditions import MESSAGE_TOO_LARGE, UNKNOWN_TRANSACTION, Refused, refused
from kafkadur.gateway.counting import ACCEPTED, REJECTED, TRANSACTED
from kafkadur.gateway.destinations import Destination, destination_of, not_found
from kafkadur.gateway.identity import kind_to_make
from kafkadur.gateway.links import LinkEngine, LinkFromClient, capabilities_of
from kafkadur.gateway.nodes import Nodes, Place
from kafkadur.gateway.outcomes import TRANSACTIONAL, transaction_of
from kafkadur.gateway.permissions import Action, Allowed
from kafkadur.gateway.records import Outgoing, Sender, to_record
from kafkadur.gateway.temporary import TO_HEADER, Room, Temporary
from kafkadur.gateway.transactions import LocalTransaction, LocalTransactions
from kafkadur.producer.forwarding import ForwardingProducer
from kafkadur.producer.receipt import Receipt
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur.gateway")

#: Messages that a client may send before the first of them is settled.
_CREDIT: Final = 500
#: Bytes of messages of one connection that are on their way to Kafka; the client waits beyond.
_MOST_BYTES: Final = 16 * 2**20
#: Destinations of a link without a target of its own that are remembered.
_MOST_KNOWN: Final = 100
#: Bytes that a message takes in memory besides its own.
_OBJECTS_BYTES: Final = 2_048
_ACCEPTED: Final = int(proton.Delivery.ACCEPTED)


class _Message(NamedTuple):
    """A message of a client on its way to Kafka."""

    delivery: proton.Delivery
    record: Outgoing
    to: Destination
    #: bytes that it takes in memory
    size: int
    #: None: it is not part of one
    transaction: LocalTransaction | None


class Load:
    """The bytes of one connection on their way to Kafka, and the links that wait for room."""

    def __init__(self) -> None:
        """Nothing is on its way."""
        self._bytes = 0
        self._waiting: list[Callable[[], None]] = []

    def has_room(self, when: Callable[[], None]) -> bool:
        """Whether there is room for a message; else `when` is called when there is."""
        if self._bytes < _MOST_BYTES:
            return True
        if when not in self._waiting:
            self._waiting.append(when)
        return False

    def begin(self, size: int) -> None:
        """A message of so many bytes is sent."""
        self._bytes += size

    def end(self, size: int) -> None:
        """Kafka has reported on a message of so many bytes."""
        self._bytes -= size
        if self._waiting and self._bytes < _MOST_BYTES:
            waiting, self._waiting = self._waiting, []
            for read in waiting:
                read()


class Publishing(LinkFromClient):
    """One link of a client that sends messages."""

    def __init__(
        self,
        link: Receiver,
        sender: Sender,
        *,
        engine: LinkEngine,
        producer: ForwardingProducer,
        nodes: Nodes,
        load: Load,
        room: Room,
        transactions: LocalTransactions,
        allowed: Allowed,
        most_bytes: int,
    ) -> None:
        """`nodes` finds destinations; `load`, `room` and `transactions` are those of the connection.

        `allowed`: what the user may do. `most_bytes`: of a message.
        """
        super().__init__(link, engine)
        self._allowed = allowed
        self._sender = sender
        self._transactions = transactions
        self._producer = producer
        self._nodes = nodes
        self._load = load
        self._room = room
        #: the temporary destination that this link has made, and that ends with it
        self._made: Temporary | None = None
        self._most_bytes = most_bytes
        #: None: each message says where it is to be sent
        self._destination: Destination | None = None
        #: decides which partition of a topic this link writes to
        self._number = zlib.crc32(f"{sender.connection_id}/{link.name}".encode())
        #: the partitions that this link writes to: its messages stay in order
        self._known: dict[Destination, Place] = {}
        #: messages that wait for the answer whether a topic exists, in order, and the task that sends them
        self._waiting: deque[_Message] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def attach(self) -> None:
        """Answer the client's attach; raises `Refused`."""
        link = self._link
        address = link.remote_target.address
        capabilities = capabilities_of(link.remote_target)
        if link.remote_target.dynamic:
            self._made = await self._nodes.temporary.make(kind_to_make(capabilities), self._room)
            self._destination = self._made.destination
        elif address is not None:
            self._destination = destination_of(address, capabilities)
            if not await self._is_known(self._destination):
                raise not_found(self._destination)
        if self._ended:  # the link has ended meanwhile: it must not be used
            self.end()
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        if self._made is not None:
            link.target.address = self._made.destination.name
        link.rcv_settle_mode = Link.RCV_FIRST
        link.max_message_size = self._most_bytes
        self._transactions.senders[self] = self._read_all
        link.open()
        link.flow(_CREDIT)
        self._engine.soon()

    async def _is_known(self, destination: Destination) -> bool:
        if destination in self._known:
            return True
        self._allowed.check(Action.PUBLISH, destination)
        place = await self._nodes.place(destination, self._number, self._allowed)
        if place is None:
            return False
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[destination] = place
        return True

    # -- messages

    def read(self) -> None:
        """Read the messages that have come, as long as there is room for them."""
        self._read(in_any_case=False)

    def _read_all(self) -> None:
        """Read the messages that have come, because a transaction that they may be part of ends."""
        self._read(in_any_case=True)

    def _read(self, *, in_any_case: bool) -> None:
        link = self._link
        while not self._ended and (current := link.current) is not None and current.readable:
            if current.pending > self._most_bytes:
                self.refuse(Refused(MESSAGE_TOO_LARGE, f"A message has at most {self._most_bytes} bytes."))
                return
            if current.aborted:
                link.advance()
                current.settle()
                self._give_credit(_CREDIT)
                continue
            if current.partial or not (in_any_case or self._load.has_room(self.read)):
                return
            encoded = bytes(link.recv(current.pending) or b"")
            link.advance()
            self._take(current, encoded)

    def _take(self, delivery: proton.Delivery, encoded: bytes) -> None:
        transaction: LocalTransaction | None = None
        try:
            number = transaction_of(delivery)
            transaction = None if number is None else self._transactions.find(number)
            record = to_record(encoded, self._sender)
            to = self._destination or destination_of(record.address, kind=record.kind)
            if to.is_temporary and not self._nodes.temporary.exists(to):
                raise not_found(to)
        except (Refused, KafkadurError) as error:
            reason = refused(error)
            if transaction is not None:  # it must not be committed without this message
                transaction.fail(reason)
            self._reject(delivery, reason)
        else:
            message = _Message(delivery, record, to, len(encoded) + _OBJECTS_BYTES, transaction)
            self._load.begin(message.size)
            if transaction is not None:
                transaction.sending()
            if self._sending is None and to in self._known and (transaction is None or transaction.has_begun):
                self._send(message)
            else:
                self._waiting.append(message)
                self._sending = self._sending or asyncio.create_task(self._send_waiting())

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                message = self._waiting[0]
                try:
                    known = await self._is_known(message.to)
                    await _begin(message.transaction)
                except (Refused, KafkadurError) as error:
                    self._give_up(message, refused(error))
                else:
                    if known:
                        self._send(message)
                    else:
                        self._give_up(message, not_found(message.to))
                self._waiting.popleft()
        finally:
            self._sending = None

    def _send(self, message: _Message) -> None:
        transaction, record, to = message.transaction, message.record, message.to

        def reported(result: asyncio.Future[Receipt]) -> None:
            self._load.end(message.size)
            error = result.exception()
            if error is not None and not isinstance(error, KafkadurError):
                raise error
            if transaction is not None:
                if error is not None:
                    transaction.fail(refused(error))
            elif error is None:
                self._engine.counts.published[ACCEPTED] += 1
                self._settle(message.delivery, proton.Delivery.ACCEPTED)
            else:
                self._reject(message.delivery, refused(error))

        place, headers = self._known[to], record.headers
        in_place = record.group is None or to.is_temporary
        if to.is_temporary:
            headers = [*headers, (TO_HEADER, to.name.encode())]
        producer = self._producer if transaction is None else transaction.producer
        try:
            sending = producer.forward(
                place.topic,
                record.value,
                headers=headers,
                key=record.group,
                partition=place.partition if in_place else None,
            )
        except KafkadurError as error:
            self._give_up(message, refused(error))
            return
        sending.add_done_callback(reported)
        if transaction is not None:  # Kafka's report is awaited by the commit
            self._engine.counts.published[TRANSACTED] += 1
            transaction.sent()
            if not self._ended:
                state: Any = [transaction.id, Described(ulong(_ACCEPTED), [])]  # its annotation is too narrow
                message.delivery.local.data = state
            self._settle(message.delivery, TRANSACTIONAL)

    def _give_up(self, message: _Message, error: Refused) -> None:
        """Reject a message that cannot be sent; a transaction of it cannot be committed any more."""
        self._load.end(message.size)
        if message.transaction is not None:
            message.transaction.fail(error)
            message.transaction.sent()
        self._reject(message.delivery, error)

    def _reject(self, delivery: proton.Delivery, error: Refused) -> None:
        self._engine.counts.published[REJECTED] += 1
        if self._ended:
            return
        if delivery.settled:
            lost = "a message that the client had settled already is lost: %s"
            _log.warning(lost, error.description, extra=self._engine.ids)
        delivery.local.condition = Condition(error.condition, error.description)
        self._settle(delivery, proton.Delivery.REJECTED)

    def _settle(self, delivery: proton.Delivery, state: int) -> None:
        if self._ended:
            return
        delivery.update(state)
        delivery.settle()
        self._give_credit(_CREDIT)
        self._engine.soon()

    # -- the end

    def end(self) -> None:
        """The link has ended: messages that have come are written, and nobody is told."""
        super().end()
        self._transactions.senders.pop(self, None)
        if self._made is not None:
            self._nodes.temporary.end(self._made)
            self._made = None


async def _begin(transaction: LocalTransaction | None) -> None:
    """Begin a transaction before its first message is sent; raises `Refused` if it has ended meanwhile."""
    if transaction is not None and not (transaction.has_begun or transaction.has_ended):
        await transaction.begin()
    if transaction is not None and transaction.has_ended:
        raise Refused(UNKNOWN_TRANSACTION, "The transaction of the message has ended.")
