"""Links: their capabilities, their end with an error, and the interfaces of both directions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from typing import Final, Protocol

import proton
from proton import Condition, Endpoint, Link, Receiver, Terminus

from kafkadur.aio.connection import Connection
from kafkadur.gateway.conditions import RESOURCE_LIMIT, UNAUTHORIZED, Refused
from kafkadur.gateway.counting import Counts

_log = logging.getLogger("kafkadur.gateway")

#: Seconds between two looks whether messages were sent.
_LOOK_EVERY_S: Final = 0.1


class LinkEngine(Protocol):
    """The part of the engine that a link uses."""

    writable: bool
    counts: Counts
    #: who the client is, for the log
    ids: dict[str, str]

    def soon(self) -> None:
        """Send what the link has said, in the next round of the loop."""

    def process(self) -> None:
        """Send it now."""


class LinkToClient(ABC):
    """A link that carries messages to a client, or asks for a subscription, from its attach to its end.

    Everything happens in one event loop. `end` may come while `attach` runs.
    """

    def __init__(self, link: Link, engine: LinkEngine) -> None:
        """A link whose attach has come and was not answered."""
        self._link = link
        self._engine = engine
        #: whether the link has ended, also while it is being attached: it must not be used then
        self._ended = False

    @abstractmethod
    async def attach(self, connection: Connection) -> None:
        """Answer the client's attach; `connection` is that of the client's subscriptions.

        Raises `Refused` and `KafkadurError` for an attach that is to be refused.
        """

    def on_flow(self) -> None:  # noqa: B027 - most kinds of links do nothing then
        """The client has given credit, or asks to drain it."""

    def on_writable(self) -> None:  # noqa: B027 - most kinds of links do nothing then
        """The socket takes bytes again."""

    def on_disposition(self, disposition: proton.Delivery) -> None:  # noqa: B027 - most kinds of links do nothing then
        """The client has settled a message, or said what becomes of it."""

    def refuse(self, error: Refused) -> None:
        """End the link with an error; before it was attached this refuses the attach."""
        if not self._ended:
            refuse(self._link, error, self._engine)

    def end(self) -> None:
        """The link must not be used any more; `close` or `lose` follows."""
        self._ended = True

    @abstractmethod
    async def close(self, *, unsubscribes: bool) -> None:
        """Leave the subscription. `unsubscribes`: the client has closed its link, not only detached it.

        Raises errors of unsubscribing.
        """

    def abandon(self) -> None:  # noqa: B027 - as above
        """The client is gone without a word: what it has counts as an attempt. `close` follows."""


class LinkFromClient(ABC):
    """A link that carries messages or requests of a client, from its attach to its end.

    Everything happens in one event loop. `end` may come while `attach` runs.
    """

    def __init__(self, link: Receiver, engine: LinkEngine) -> None:
        """A link whose attach has come and was not answered."""
        self._link = link
        self._engine = engine
        #: whether the link has ended, also while it is being attached: it must not be used then
        self._ended = False
        #: credit that the client has used up, and gets again
        self._used = 0

    def _give_credit(self, credit: int) -> None:
        """Give credit for one more message; the client has at most so much, and gets it in quarters."""
        self._used += 1
        if self._used >= credit // 4:
            self._link.flow(self._used)
            self._used = 0

    @abstractmethod
    async def attach(self) -> None:
        """Answer the client's attach; raises `Refused` and `KafkadurError` for one that is to be refused."""

    @abstractmethod
    def read(self) -> None:
        """Read what has come."""

    def refuse(self, error: Refused) -> None:
        """End the link with an error; before it was attached this refuses the attach."""
        if self._ended:
            return
        refuse(self._link, error, self._engine)
        self.end()

    def end(self) -> None:
        """The link must not be used any more."""
        self._ended = True

    def abandon(self) -> None:  # noqa: B027 - most kinds of links do nothing then
        """The client is gone without a word. `close` follows."""

    async def close(self) -> None:
        """End for good: the link or its connection has ended."""
        self.end()


class Limit:
    """How many of something the clients of a gateway may have at a time."""

    def __init__(self, most: int, things: str) -> None:
        """`things`: what they are, for people."""
        self._most = most
        self._things = things
        self._taken = 0

    @property
    def taken(self) -> int:
        """How many there are; any thread."""
        return self._taken

    def take(self) -> None:
        """Count one more; raises `Refused` if there are too many."""
        if self._taken >= self._most:
            raise Refused(RESOURCE_LIMIT, f"A gateway has at most {self._most} {self._things} at a time.")
        self._taken += 1

    def give_back(self) -> None:
        """One has ended."""
        self._taken -= 1


async def sent(link: Link, changed: asyncio.Event) -> None:
    """Wait until the socket has all messages of a link. `changed` is set when it may have more of them.

    Proton does not tell when a session's window opens again: this looks again and again.
    """
    while link.queued:
        changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY_S):
                await changed.wait()


def refuse(link: Link, error: Refused, engine: LinkEngine) -> None:
    """End a link with an error. Before it was attached this refuses the attach.

    A null terminus says that there is no such node: else a client takes the link for attached.
    """
    if link.state & Endpoint.LOCAL_CLOSED:
        return  # it was refused before
    note_refusal(link, error, engine)
    if not link.state & Endpoint.LOCAL_ACTIVE:
        if isinstance(link, Receiver):
            link.source.copy(link.remote_source)
            link.target.type = Terminus.UNSPECIFIED
        else:
            link.source.type = Terminus.UNSPECIFIED
            link.target.copy(link.remote_target)
        link.open()
    link.condition = Condition(error.condition, error.description)
    link.close()
    engine.soon()


def note_refusal(link: Link, error: Refused, engine: LinkEngine) -> None:
    """Log and count that a link is refused, or that deleting its subscription is."""
    level = logging.WARNING if error.condition == UNAUTHORIZED else logging.INFO
    _log.log(level, "the link %r is refused: %s", link.name, error.description, extra=engine.ids)
    engine.counts.refused_links[error.condition] += 1


def capabilities_of(terminus: Terminus) -> frozenset[str]:
    """Return the capabilities that a client names: one symbol, or an array of them."""
    data = terminus.capabilities
    data.rewind()
    found: set[str] = set()
    while data.next() is not None:
        value = data.get_object()
        found |= {str(each) for each in value} if isinstance(value, list | tuple) else _symbols(value)
    return frozenset(found)


def _symbols(value: object) -> set[str]:
    elements = getattr(value, "elements", None)
    return {str(value)} if elements is None else {str(each) for each in elements}
