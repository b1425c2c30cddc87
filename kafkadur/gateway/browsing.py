"""Browsers of queues: copies of the messages that wait, read beside the subscription; none is consumed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import Message
from proton import Link

from kafkadur.admin.browse import selected_by
from kafkadur.admin.inspector import Inspector
from kafkadur.admin.peek import Peeked
from kafkadur.aio.connection import Connection
from kafkadur.gateway.conditions import INTERNAL_ERROR, Refused, refused
from kafkadur.gateway.destinations import Destination, not_found
from kafkadur.gateway.identity import Asked
from kafkadur.gateway.links import Limit, LinkEngine, LinkToClient, sent
from kafkadur.gateway.nodes import Nodes
from kafkadur.gateway.permissions import Action, Allowed
from kafkadur.gateway.records import to_message
from kafkadur.gateway.temporary import headers_of
from kafkadur.message.times import now_ms, of_headers
from kafkadur.settings import Settings
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.selector import parse_selector

_log = logging.getLogger("kafkadur.gateway")

#: Messages that are read and sent at once.
_AT_ONCE: Final = 100
#: Bytes of values after which messages are sent, and seconds that one browser may use the thread.
_BYTES, _TURN_S = 1_048_576, 0.1
#: Browsers of all clients that may be open: each has a client of Kafka.
_MOST_BROWSERS: Final = 100

T = TypeVar("T")


class Browsers:
    """Reads what waits in subscriptions, in a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        """`settings` are those of connections to Kafka and Redis."""
        self._thread = ThreadPoolExecutor(1, "kafkadur-browsers")
        self._inspector = Inspector(settings)
        self.limit = Limit(_MOST_BROWSERS, "browsers")

    async def run(self, work: Callable[[], T]) -> T:
        """Do work of a browser in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def waiting(self, queue: Destination, selector: str | None) -> Generator[Message | None]:
        """Yield the messages that wait in a queue and are chosen by a selector. To be used in the thread.

        Yields None for each that is not chosen. Raises as `Inspector.peek`.
        """
        wanted = Definition(type=SubscriptionType.SHARED, topic=queue.name, selector=selector)
        takes = selected_by(wanted)
        for each in self._inspector.peek(self._inspector.key(queue.subscription)):
            chosen = _is_shown(each) and (takes is None or takes(each.message))
            yield each.message if chosen else None

    def close(self) -> None:
        """Wait for what the thread does, and close the clients."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._inspector.close()


def _is_shown(peeked: Peeked) -> bool:
    """Whether a browser shows a message: not one that waits for its time, or has expired."""
    due, times, now = peeked.explanation.due, of_headers(peeked.message.headers()), now_ms()
    return (due is None or due <= now) and (times is None or times.allow(now))


def _first(messages: Iterable[Message | None], most: int) -> tuple[Sequence[Message], bool]:
    """Return the next messages, and whether there may be more of them.

    They are at most so many, not much more than `_BYTES`, and those found within `_TURN_S`: other browsers
    wait for the thread.
    """
    found: list[Message] = []
    size, until = 0, time.monotonic() + _TURN_S
    for message in messages:
        if message is not None:
            found.append(message)
            size += len(message.value() or b"")
        if len(found) == most or size > _BYTES or time.monotonic() > until:
            return found, True
    return found, False


class Browsing(LinkToClient):
    """A link that shows the messages of a queue, as they are when the client gives the first credit."""

    def __init__(
        self,
        link: Link,
        asked: Asked,
        *,
        engine: LinkEngine,
        nodes: Nodes,
        browsers: Browsers,
        allowed: Allowed,
    ) -> None:
        """`nodes` makes queues. `allowed`: what the user may do."""
        super().__init__(link, engine)
        self._allowed = allowed
        assert asked.destination is not None  # noqa: S101 - only an unsubscribing link has none
        self._queue = asked.destination
        self._selector = asked.selector
        self._nodes = nodes
        self._browsers = browsers
        self._messages: Generator[Message | None] | None = None
        self._showing: asyncio.Task[None] | None = None
        #: whether credit, drain mode or the socket may have changed
        self._changed = asyncio.Event()
        self._tags = itertools.count(1)

    async def attach(self, connection: Connection) -> None:  # noqa: ARG002 - queues belong to no client
        """Answer the client's attach; raises `Refused`, `InvalidSelector` and errors of making the queue."""
        parse_selector(self._selector)
        self._allowed.check(Action.CONSUME, self._queue)
        if not await self._nodes.partitions(self._queue, self._allowed):
            raise not_found(self._queue)
        if self._ended:
            return
        self._browsers.limit.take()
        link = self._link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode = Link.SND_SETTLED  # a copy: nothing becomes of it
        link.rcv_settle_mode = Link.RCV_FIRST
        link.open()
        self._messages = self._browsers.waiting(self._queue, self._selector)
        self._showing = asyncio.create_task(self._show(self._messages))

    def on_flow(self) -> None:
        """The client has given credit, or asks to drain it."""
        self._changed.set()

    def on_writable(self) -> None:
        """The socket takes bytes again."""
        self._changed.set()

    async def _show(self, messages: Generator[Message | None]) -> None:
        try:
            more = True
            while True:
                self._changed.clear()
                most = min(self._link.credit, _AT_ONCE)
                if most > 0 and more and self._engine.writable:
                    some, more = await self._browsers.run(partial(_first, messages, most))
                    await self._send(some)
                elif most > 0 and not more and self._link.drain_mode:
                    self._link.drained()
                    self._engine.soon()
                else:
                    await self._changed.wait()
        except KafkadurError as error:
            _log.info("a browser of %s ends: %s", self._queue.name, error, extra=self._engine.ids)
            self.refuse(refused(error))
        except Exception:  # noqa: BLE001 - any defect: the client learns of it
            _log.exception("a browser of %s met a defect", self._queue.name, extra=self._engine.ids)
            self.refuse(Refused(INTERNAL_ERROR, "The gateway met a defect; its log says which."))

    async def _send(self, messages: Sequence[Message]) -> None:
        """Send messages, and wait until the socket has them: a client that reads slowly fills no memory."""
        link = self._link
        for message in messages:
            encoded = to_message(
                destination=self._queue,
                value=message.value(),
                headers=headers_of(message),
                timestamp_ms=message.timestamp()[1],
                attempt=1,
                redelivered=False,
            )
            copy: Any = link.delivery(str(next(self._tags)))
            link.stream(encoded)
            link.advance()
            copy.settle()
        self._engine.process()
        await sent(link, self._changed)

    def end(self) -> None:
        """The link must not be used any more."""
        super().end()
        if self._showing is not None:
            self._showing.cancel()

    async def close(self, *, unsubscribes: bool) -> None:  # noqa: ARG002 - a queue stays
        """End the reading."""
        self.end()
        messages, self._messages = self._messages, None
        if messages is None:
            return
        if self._showing is not None:
            await asyncio.wait((self._showing,))
        await self._browsers.run(messages.close)
        self._browsers.limit.give_back()
