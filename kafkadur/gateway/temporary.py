"""Temporary queues and topics: they are in the memory of one gateway, and end with the link that made them.

All gateways of a namespace share one topic in Kafka for their messages, so that a client of any gateway can
reply. `temporary_reader.py` reads the partition of this gateway.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from bisect import bisect
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

from confluent_kafka import Message

from kafkadur.fetch.filtering import Takes
from kafkadur.gateway.conditions import NOT_ALLOWED, Refused
from kafkadur.gateway.destinations import Destination, Kind, home_of, not_found, temporary
from kafkadur.gateway.temporary_reader import TemporaryReader
from kafkadur.message.times import Times, now_ms, of_headers
from kafkadur_sharing.errors import ConnectionClosed, InvalidDestination, KafkadurError, ResourceLimit
from kafkadur_sharing.redelivery_policy import Redelivery, in_ms

#: The address of a temporary destination, in a message to it.
TO_HEADER: Final = "kafkadur-temporary"

_log = logging.getLogger("kafkadur.gateway")

#: Bytes of messages that wait in the temporary destinations of one connection.
_MOST_BYTES: Final = 32 * 2**20
#: Bytes that a message takes in memory besides its value.
_OBJECT_BYTES: Final = 1_024


class Room:
    """The memory that the temporary destinations of one connection may take; it tells whose they are."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._bytes = 0

    def take(self, message: Message) -> bool:
        """Take room for a message; returns whether there is any."""
        size = _size(message)
        if self._bytes + size > _MOST_BYTES:
            return False
        self._bytes += size
        return True

    def give_back(self, message: Message) -> None:
        """A message is settled."""
        self._bytes -= _size(message)


def _size(message: Message) -> int:
    named = sum(len(name) + len(value or b"") for name, value in headers_of(message))
    return len(message.value() or b"") + named + _OBJECT_BYTES


class TemporaryDelivery:
    """A message of a temporary destination in a client's hands."""

    def __init__(self, consumer: TemporaryConsumer, message: Message, attempt: int) -> None:
        """`attempt` counts from 1."""
        self._consumer = consumer
        self.message = message
        self.attempt = attempt

    @property
    def raw_value(self) -> bytes | None:
        """The value."""
        return self.message.value()

    @property
    def headers(self) -> Iterable[tuple[str, bytes | None]]:
        """The headers."""
        return headers_of(self.message)

    @property
    def timestamp(self) -> int:
        """When it was sent, ms since 1970."""
        return self.message.timestamp()[1]

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before."""
        return self.attempt > 1

    def ack_nowait(self) -> None:
        """It is done."""
        self._consumer.settle(self)

    def reject_nowait(self, reason: str) -> None:
        """It is not delivered again: temporary destinations have no dead letters."""
        _log.info("a message of %s is dropped: %s", self._consumer.name, reason)
        self._consumer.settle(self)

    def rollback_nowait(self) -> None:
        """It comes again, counted as an attempt."""
        self._consumer.put_back(self, counted=True)

    def release_nowait(self) -> None:
        """It comes again, uncounted."""
        self._consumer.put_back(self, counted=False)


class _Item(NamedTuple):
    """A message that waits: its place in the order, and how often it was delivered."""

    number: int
    message: Message
    attempts: int
    times: Times | None


class Temporary:
    """One temporary queue or topic."""

    def __init__(self, destination: Destination, room: Room, redelivery: Redelivery) -> None:
        """`room` is that of the connection that made it."""
        self.destination = destination
        self.room = room
        self.redelivery = redelivery
        self.consumers: list[TemporaryConsumer] = []
        #: the messages that wait in a queue
        self._items: deque[_Item] = deque()
        self._is_queue = destination.kind is Kind.TEMPORARY_QUEUE
        self._numbers = itertools.count()
        #: the timers of messages that wait for their time
        self._timers: dict[asyncio.TimerHandle, Message] = {}

    def consumer(
        self, takes: Takes | None, caught_up: Callable[[float], Awaitable[bool]]
    ) -> TemporaryConsumer:
        """Add a consumer. `takes`: which messages of a topic it gets; None: all.

        `caught_up` waits at most so many seconds until all written messages are here.
        """
        items = self._items if self._is_queue else deque[_Item]()
        consumer = TemporaryConsumer(self, items, takes, caught_up)
        self.consumers.append(consumer)
        return consumer

    def put(self, message: Message) -> bool:
        """Take a message; returns False if there is no room for it."""
        item = _Item(next(self._numbers), message, 0, of_headers(message.headers()))
        targets = (
            [self._items]
            if self._is_queue
            else [each.items for each in self.consumers if each.takes is None or each.takes(message)]
        )
        for items in targets:
            if not self.room.take(message):
                return False
            self.insert(items, item, 0 if item.times is None else item.times.wait(now_ms()))
        return True

    def insert(self, items: deque[_Item], item: _Item, wait: float) -> None:
        """Have a message wait in its place, in so many ms."""
        if wait > 0:

            def insert() -> None:
                del self._timers[timer]
                if self._is_queue or any(each.items is items for each in self.consumers):
                    self.insert(items, item, 0)
                else:  # its consumer was closed
                    self.room.give_back(item.message)

            timer = asyncio.get_running_loop().call_later(wait / 1000, insert)
            self._timers[timer] = item.message
            return
        if not items or items[-1].number < item.number:
            items.append(item)
        elif items[0].number > item.number:
            items.appendleft(item)
        else:
            items.insert(bisect(items, item.number, key=lambda each: each.number), item)
        for consumer in self.consumers:
            consumer.wake()

    def end(self, error: KafkadurError) -> None:
        """End it: its consumers raise the error, and its messages are gone."""
        for timer, message in self._timers.items():
            timer.cancel()
            self.room.give_back(message)
        self._timers.clear()
        for consumer in self.consumers:
            consumer.fail(error)
            if not self._is_queue:
                consumer.forget()
        for item in self._items:
            self.room.give_back(item.message)
        self._items.clear()


class TemporaryConsumer:
    """A consumer of a temporary destination, with the methods of a subscription that a link uses."""

    def __init__(
        self,
        temporary: Temporary,
        items: deque[_Item],
        takes: Takes | None,
        caught_up: Callable[[float], Awaitable[bool]],
    ) -> None:
        """`items` wait for it; the consumers of a queue share them."""
        self.name = temporary.destination.name
        self.items = items
        self.takes = takes
        self._temporary = temporary
        self._caught_up = caught_up
        self._held: dict[TemporaryDelivery, _Item] = {}
        self._error: KafkadurError | None = None
        self._changed = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether it is closed."""
        return isinstance(self._error, ConnectionClosed)

    def set_window(self, window: int) -> None:
        """A link asks for as much as it has credit for: there is no window."""

    async def receive_batch(
        self, most: int, timeout: float | None = None
    ) -> Sequence[TemporaryDelivery] | None:
        """Return the next messages; None after the time-out, in seconds. Raises if it has ended."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._changed.clear()
                    if found := self._take(most):
                        return found
                    await self._changed.wait()
        except TimeoutError:
            return None

    async def receive_available(self, most: int, timeout: float) -> Sequence[TemporaryDelivery] | None:
        """Return what waits; None if nothing does, or if Kafka does not tell within the time-out, seconds."""
        found = self._take(most)
        if not found:
            await self._caught_up(timeout)
            found = self._take(most)
        return found or None

    def _take(self, most: int) -> Sequence[TemporaryDelivery]:
        if self._error is not None:
            raise self._error
        found: list[TemporaryDelivery] = []
        now = now_ms()
        while self.items and len(found) < most:
            item = self.items.popleft()
            if item.times is not None and item.times.is_over(now):
                self._temporary.room.give_back(item.message)
            else:
                delivery = TemporaryDelivery(self, item.message, item.attempts + 1)
                self._held[delivery] = item
                found.append(delivery)
        return found

    def wake(self) -> None:
        """A message has come, or the end."""
        self._changed.set()

    def settle(self, delivery: TemporaryDelivery) -> None:
        """Part of settling: the message is gone."""
        if self._held.pop(delivery, None) is not None:
            self._temporary.room.give_back(delivery.message)

    def put_back(self, delivery: TemporaryDelivery, *, counted: bool) -> None:
        """Part of settling: the message comes again, in its place, unless its attempts are used up."""
        policy = self._temporary.redelivery
        if counted and policy.max_attempts is not None and delivery.attempt >= policy.max_attempts:
            delivery.reject_nowait(f"it has had {delivery.attempt} attempts")
            return
        item = self._held.pop(delivery, None)
        if item is not None:
            wait = _backoff_ms(policy, delivery.attempt) if counted else 0
            again = item._replace(attempts=delivery.attempt - (0 if counted else 1))
            self._temporary.insert(self.items, again, wait)

    def fail(self, error: KafkadurError) -> None:
        """Its destination has ended."""
        if self._error is None:
            self._error = error
        for delivery in list(self._held):
            self.settle(delivery)
        self.wake()

    def forget(self) -> None:
        """Its messages are gone."""
        for item in self.items:
            self._temporary.room.give_back(item.message)
        self.items.clear()

    async def close(self) -> None:
        """End; what was not settled comes again to the next consumer of a queue, uncounted."""
        if self in self._temporary.consumers:
            for delivery in list(self._held):
                delivery.release_nowait()
            self._temporary.consumers.remove(self)
            if self._temporary.destination.kind is Kind.TEMPORARY_TOPIC:
                self.forget()
        self._error = self._error or ConnectionClosed()
        self.wake()


def _backoff_ms(policy: Redelivery, attempts: int) -> float:
    """Return how long a message waits after so many attempts, ms."""
    doubled = in_ms(policy.backoff) * 2.0 ** min(attempts - 1, 30)
    return min(doubled, in_ms(policy.max_backoff))


class TemporaryDestinations:
    """The temporary destinations of one gateway. Used in one event loop."""

    def __init__(self, reader: TemporaryReader, redelivery: Redelivery | None) -> None:
        """`reader` reads the partition in Kafka that their messages come by."""
        self._reader = reader
        self._redelivery = redelivery or Redelivery()
        #: part of their addresses, which no other gateway has
        self._id = secrets.token_hex(6)
        self._found: dict[str, Temporary] = {}
        self._starting = asyncio.Lock()

    @property
    def topic(self) -> str:
        """The topic in Kafka of the temporary destinations of all gateways."""
        return self._reader.topic

    async def make(self, kind: Kind, room: Room) -> Temporary:
        """Make a temporary queue or topic of a connection; raises `KafkaUnavailable` and `KafkaRefused`."""
        async with self._starting:
            partition = await self._reader.start(self._take)
        destination = temporary(kind, partition=partition, gateway=self._id, secret=secrets.token_hex(8))
        made = self._found[destination.name] = Temporary(destination, room, self._redelivery)
        return made

    def consume(self, destination: Destination, room: Room, takes: Takes | None) -> TemporaryConsumer:
        """Add a consumer; raises `Refused` if it has ended, or another connection has made it."""
        found = self._found.get(destination.name)
        if found is None:
            raise not_found(destination)
        if found.room is not room:
            raise Refused(NOT_ALLOWED, f"Another connection has made {destination.name!r}.")
        return found.consumer(takes, self._reader.caught_up)

    def exists(self, destination: Destination) -> bool:
        """Whether a message can be sent to it: it exists, or another gateway has it."""
        return home_of(destination)[1] != self._id or destination.name in self._found

    def end(self, made: Temporary) -> None:
        """End a temporary destination. Ending again does nothing."""
        name = made.destination.name
        if self._found.pop(name, None) is not None:
            made.end(InvalidDestination("The temporary destination has ended.", owner=name))

    def _take(self, messages: Sequence[Message]) -> None:
        for message in messages:
            name = dict(headers_of(message)).get(TO_HEADER) or b""
            found = self._found.get(name.decode(errors="replace"))
            if found is not None and not found.put(message):
                _log.warning("%s ends: it has no room for its messages", name)
                del self._found[found.destination.name]
                found.end(
                    ResourceLimit(
                        "Too much waits in the temporary destinations of a connection.",
                        state=f"more than {_MOST_BYTES} bytes",
                        owner=found.destination.name,
                        remedy="consume faster, or use a queue",
                    )
                )

    async def prepare(self) -> None:
        """Create the topic before a message is written to it.

        Raises `KafkaUnavailable` and `KafkaRefused`.
        """
        async with self._starting:
            await asyncio.to_thread(self._reader.ensure)

    async def close(self) -> None:
        """End the reader."""
        await asyncio.to_thread(self._reader.close)


def headers_of(message: Message) -> Iterable[tuple[str, bytes | None]]:
    """Return the headers of a message of Kafka."""
    headers: Any = message.headers() or ()  # the stub has another type
    return cast("Iterable[tuple[str, bytes | None]]", headers)
