"""One connection of a client: its open frame, its sessions, and the links that publish and consume."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, cast

from proton import Condition, Described, Endpoint, Event, Link, Receiver, Sender, Session, Terminus, symbol

from kafkadur.aio.connection import Connection
from kafkadur.gateway.browsing import Browsers, Browsing
from kafkadur.gateway.conditions import (
    FORCED,
    INTERNAL_ERROR,
    RESOURCE_LIMIT,
    UNAUTHORIZED,
    Refused,
    refused,
)
from kafkadur.gateway.consuming import Consuming
from kafkadur.gateway.engine import Engine
from kafkadur.gateway.identity import Asked, ReceivingLink, asked_for, check_name, client_id_of
from kafkadur.gateway.links import Limit, LinkFromClient, LinkToClient, capabilities_of, note_refusal, refuse
from kafkadur.gateway.nodes import Nodes
from kafkadur.gateway.options import GatewaySettings
from kafkadur.gateway.publishing import Load, Publishing
from kafkadur.gateway.records import Sender as SendingConnection
from kafkadur.gateway.temporary import Room
from kafkadur.gateway.transactions import Coordinator, LocalTransactions
from kafkadur.gateway.unsubscribing import Unsubscribing
from kafkadur.producer.forwarding import ForwardingProducer
from kafkadur_sharing.errors import ConnectionClosed, InvalidClientId, KafkadurError
from kafkadur_sharing.names import validate_client_id
from kafkadur_sharing.readable_text import plain

_log = logging.getLogger("kafkadur.gateway")

#: Capabilities that clients ask for: Qpid JMS uses shared subscriptions and delivery delay only where they
#: are offered.
_CAPABILITIES: Final = ("sole-connection-for-container", "DELAYED_DELIVERY", "ANONYMOUS-RELAY", "SHARED-SUBS")
#: Bytes that a client may have sent in a session and that were not read.
_SESSION_BYTES: Final = 4 * 2**20
#: Sessions that a connection may end: some KiB of each stay until the connection ends.
_MOST_ENDED_SESSIONS: Final = 20_000
#: The descriptors of filters of a source, as symbols and as numeric codes.
_SELECTORS: Final = frozenset[object]({"apache.org:selector-filter:string", 0x0000_468C_0000_0004})
_NO_LOCALS: Final = frozenset[object]({"apache.org:no-local-filter:list", 0x0000_468C_0000_0003})


class Services(Protocol):
    """The part of the gateway that a connection uses."""

    options: GatewaySettings
    name: str

    async def connect(
        self, client_id: str | None, on_displaced: Callable[[KafkadurError], None]
    ) -> Connection:
        """Open a connection of a client; `on_displaced` is called, in any thread, when it loses its id."""
        ...

    @property
    def host(self) -> Connection:
        """The connection without a client id, whose threads all others use."""
        ...

    @property
    def producer(self) -> ForwardingProducer:
        """The producer of all connections."""
        ...

    @property
    def nodes(self) -> Nodes:
        """The topics and queues."""
        ...

    @property
    def transacted(self) -> Limit:
        """The limit of coordinator links."""
        ...

    @property
    def producer_config(self) -> dict[str, Any]:
        """The settings of producers besides those of the connection."""
        ...

    @property
    def browsers(self) -> Browsers:
        """The readers of browsers of queues."""
        ...

    def ended(self, client: Client) -> None:
        """A connection has ended."""


class Client:
    """The handler of one connection. Everything happens in one event loop."""

    def __init__(self, engine: Engine, services: Services) -> None:
        """A connection whose client has authenticated."""
        self._engine = engine
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        #: resolved when the connection is open; its exception: it was refused
        self._opened: asyncio.Future[Connection] = self._loop.create_future()
        self._opened.add_done_callback(_heard)
        self._tasks: set[asyncio.Task[None]] = set()
        self._load = Load()
        self._allowed = services.options.permissions.of(engine.user)
        self._room = Room()
        self._transactions = LocalTransactions()
        #: sessions that a client has begun before the connection was open here
        self._begun: list[Session] = []
        #: links whose attach has come and whose end has not
        self._links: set[Link] = set()
        #: links whose end has come and was not answered yet
        self._detaching: set[Link] = set()
        self._ended_sessions = 0
        self._consuming: dict[Link, LinkToClient] = {}
        self._publishing: dict[Link, LinkFromClient] = {}
        self._closing = False
        self._acts = self._actions()

    # -- events of the engine

    def on_event(self, event: Event) -> None:
        """Take an event of Proton."""
        act = self._acts.get(event.type)
        if act is not None:
            act(event)

    def _actions(self) -> dict[Any, Callable[[Event], None]]:
        return {
            Event.CONNECTION_REMOTE_OPEN: self._on_open,
            Event.CONNECTION_REMOTE_CLOSE: self._on_close,
            Event.SESSION_REMOTE_OPEN: self._on_session,
            Event.SESSION_REMOTE_CLOSE: self._on_session_close,
            Event.LINK_REMOTE_OPEN: self._on_link,
            Event.LINK_REMOTE_CLOSE: lambda event: self._on_detach(event, closed=True),
            Event.LINK_REMOTE_DETACH: lambda event: self._on_detach(event, closed=False),
            Event.LINK_FLOW: self._on_flow,
            Event.DELIVERY: self._on_delivery,
            Event.TRANSPORT_ERROR: self._on_error,
        }

    @property
    def links(self) -> tuple[int, int]:
        """The numbers of links from and to the client; any thread."""
        return len(self._publishing), len(self._consuming)

    def on_writable(self) -> None:
        """The socket takes more bytes again."""
        for consuming in self._consuming.values():
            consuming.on_writable()

    def on_lost(self) -> None:
        """The socket is closed."""
        self._spawn(self._leave(lost=not self._closing))

    def _on_error(self, event: Event) -> None:
        condition = None if event.transport is None else event.transport.condition
        _log.info("the connection has failed: %s", condition, extra=self._engine.ids)

    # -- the connection

    def _on_open(self, _event: Event) -> None:
        if self._engine.opened():
            self._spawn(self._open())
        else:
            self._engine.fail("the client has opened its connection twice")

    async def _open(self) -> None:
        connection = self._engine.connection
        client_id = client_id_of(str(connection.remote_container or ""))
        if client_id is not None:
            self._engine.ids["client_id"] = plain(client_id)
        connection.container = self._services.name
        connection.offered_capabilities = [symbol(each) for each in _CAPABILITIES]
        properties: dict[Any, Any] = {symbol("product"): "kafkadur"}
        try:
            if client_id is not None:
                validate_client_id(client_id)
            self._allowed.check_connection(client_id)
            opened = await self._services.connect(client_id, self._on_displaced)
        except (KafkadurError, Refused) as error:
            properties[symbol("amqp:connection-establishment-failed")] = True
            connection.properties = properties
            connection.open()
            info: Any = None
            if isinstance(error, InvalidClientId):
                info = {symbol("invalid-field"): symbol("container-id")}
            answer = refused(error)
            level = logging.WARNING if answer.condition == UNAUTHORIZED else logging.INFO
            _log.log(level, "the connection is refused: %s", answer.description, extra=self._engine.ids)
            self._engine.counts.refused_connections += 1
            connection.condition = Condition(answer.condition, answer.description, info)
            connection.close()
            self._refuse_links(ConnectionClosed())
        else:
            self._connection = opened
            if self._engine.lost or self._closing:
                await opened.close()
                return
            _log.info("a client has connected", extra=self._engine.ids)
            connection.properties = properties
            connection.open()
            for session in self._begun:
                session.open()
            self._begun.clear()
            if not self._opened.done():
                self._opened.set_result(opened)
        self._engine.soon()

    def _on_displaced(self, _error: KafkadurError) -> None:
        """Another connection has the client id. Called in any thread."""
        self._loop.call_soon_threadsafe(self._end_displaced)

    def _end_displaced(self) -> None:
        self._spawn(self.stop("Another connection has taken the client id."))

    def _on_close(self, _event: Event) -> None:
        self._closing = True
        self._spawn(self._close())

    async def _close(self) -> None:
        await self._leave(lost=False)
        self._engine.connection.close()
        self._engine.soon()

    async def stop(self, reason: str = "The gateway stops.") -> None:
        """End the connection; clients may connect again, or to another gateway."""
        if self._closing:
            return
        self._closing = True
        await self._leave(lost=False)
        connection = self._engine.connection
        connection.condition = Condition(FORCED, reason)
        connection.close()
        self._engine.process()

    def _refuse_links(self, error: KafkadurError) -> None:
        """Have the links that wait for the connection to be open end."""
        if not self._opened.done():
            self._opened.set_exception(error)

    async def _leave(self, *, lost: bool) -> None:
        self._refuse_links(ConnectionClosed())
        senders = list(self._publishing.values())
        links, self._consuming, self._publishing = list(self._consuming.values()), {}, {}
        self._links.clear()
        self._detaching.clear()
        if lost:
            for sender in senders:
                sender.abandon()
            for link in links:
                link.abandon()
        # transactions end before their consumers, which give back what is not settled
        await asyncio.gather(*(each.close() for each in senders), return_exceptions=True)
        await asyncio.gather(*(each.close(unsubscribes=False) for each in links), return_exceptions=True)
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                _log.info("a client has gone", extra=self._engine.ids)
                await connection.close()
        except KafkadurError as error:
            _log.info("closing the connection of a client: %s", error, extra=self._engine.ids)
        finally:
            self._services.ended(self)

    # -- sessions

    def _on_session(self, event: Event) -> None:
        session = cast("Session", event.session)
        # a message is read when all of it is here
        session.incoming_capacity = max(_SESSION_BYTES, 2 * self._services.options.most_message_bytes)
        if self._engine.connection.state & Endpoint.LOCAL_ACTIVE:
            session.open()
        else:  # a begin must not be sent before the open
            self._begun.append(session)
        self._engine.soon()

    def _on_session_close(self, event: Event) -> None:
        session = cast("Session", event.session)
        self._begun = [each for each in self._begun if each != session]
        ended = [link for link in self._links if link.session == session]
        self._links.difference_update(ended)
        # Their links must not be used any more: Proton frees them with the session.
        self._detaching = {link for link in self._detaching if link.session != session}
        for link in ended:
            self._end_link(link)
        session.close()
        # It is not freed: Proton 0.40 would free its links twice, if anything still refers to one of them.
        self._ended_sessions += 1
        if self._ended_sessions == _MOST_ENDED_SESSIONS:
            self._spawn(self.stop(f"A connection may end {_MOST_ENDED_SESSIONS} sessions: connect again."))
        self._engine.soon()

    # -- links

    def _on_link(self, event: Event) -> None:
        link, most = cast("Link", event.link), self._services.options.most_links
        self._links.add(link)
        if len(self._links) > 2 * most:  # it does not stop where it is refused
            self._engine.fail(f"the client has attached more than {2 * most} links")
        elif len(self._links) > most:
            too_many = Refused(RESOURCE_LIMIT, f"A connection has at most {most} links.")
            refuse(link, too_many, self._engine)
        elif isinstance(link, Receiver):
            self._spawn(self._attach_publishing(link))
        elif isinstance(link, Sender):
            self._spawn(self._attach_consuming(link, _facts(link)))

    async def _opened_for(self, link: Link) -> Connection | None:
        """Wait until the connection is open; None: it was refused, or the link must not be used any more."""
        try:
            connection = await asyncio.shield(self._opened)
        except KafkadurError:
            return None
        return connection if link in self._links else None

    async def _attach_publishing(self, link: Receiver) -> None:
        connection = await self._opened_for(link)
        if connection is None:
            return
        publishing = self._taking(link, connection)
        self._publishing[link] = publishing
        await self._attach(publishing.attach(), publishing.refuse)

    def _taking(self, link: Receiver, connection: Connection) -> LinkFromClient:
        """Return what serves a link from the client."""
        services, engine = self._services, self._engine
        if link.remote_target.type == Terminus.COORDINATOR:
            return Coordinator(
                link,
                connection,
                engine=engine,
                transactions=self._transactions,
                limit=services.transacted,
                config=services.producer_config,
            )
        return Publishing(
            link,
            SendingConnection(
                client_id=connection.settings.client_id, connection_id=connection.id, user=engine.user
            ),
            engine=engine,
            producer=services.producer,
            nodes=services.nodes,
            load=self._load,
            room=self._room,
            transactions=self._transactions,
            allowed=self._allowed,
            most_bytes=services.options.most_message_bytes,
        )

    async def _attach_consuming(self, link: Sender, facts: ReceivingLink) -> None:
        connection = await self._opened_for(link)
        if connection is None:
            return
        try:
            asked = asked_for(facts)
            check_name(asked, connection.settings.client_id)
        except Refused as error:
            refuse(link, error, self._engine)
            return
        owner = self._services.host if asked.is_global else connection
        consuming = self._consuming[link] = self._serving(link, asked)
        await self._attach(consuming.attach(owner), consuming.refuse)

    def _serving(self, link: Sender, asked: Asked) -> LinkToClient:
        """Return what serves a link to the client."""
        services, engine = self._services, self._engine
        if asked.destination is None and asked.makes is None:
            return Unsubscribing(link, asked.durable or "", engine=engine, allowed=self._allowed)
        if asked.browses:
            return Browsing(
                link,
                asked,
                engine=engine,
                nodes=services.nodes,
                browsers=services.browsers,
                allowed=self._allowed,
            )
        return Consuming(
            link,
            asked,
            engine=engine,
            nodes=services.nodes,
            room=self._room,
            transactions=self._transactions,
            allowed=self._allowed,
            counts_released=services.options.counts_released,
            redelivery=services.options.redelivery,
            most_bytes=services.options.most_unsettled_bytes,
        )

    async def _attach(self, attaching: Awaitable[None], on_refused: Callable[[Refused], None]) -> None:
        try:
            await attaching
        except (Refused, KafkadurError) as error:
            on_refused(refused(error))
        self._engine.soon()

    def _on_flow(self, event: Event) -> None:
        consuming = self._consuming.get(cast("Link", event.link))
        if consuming is not None:
            consuming.on_flow()

    def _on_delivery(self, event: Event) -> None:
        link, delivery = cast("Link", event.link), event.delivery
        if isinstance(link, Receiver):
            publishing = self._publishing.get(link)
            if publishing is not None:
                publishing.read()
            return
        consuming = self._consuming.get(link)
        if consuming is not None and delivery is not None and delivery.updated:
            consuming.on_disposition(delivery)

    def _on_detach(self, event: Event, *, closed: bool) -> None:
        link = cast("Link", event.link)
        if link in self._links:
            self._links.discard(link)
            self._detaching.add(link)
            for each in (self._publishing.get(link), self._consuming.get(link)):
                if each is not None:
                    each.end()
            self._spawn(self._detach(link, closed=closed))

    async def _detach(self, link: Link, *, closed: bool) -> None:
        publishing = self._publishing.pop(link, None)
        if publishing is not None:
            await publishing.close()
        consuming = self._consuming.pop(link, None)
        answer: Refused | None = None
        if consuming is not None:
            try:
                await consuming.close(unsubscribes=closed)
            except (Refused, KafkadurError) as error:
                answer = refused(error)
        if link not in self._detaching:
            return  # its session has ended meanwhile: it must not be used
        self._detaching.discard(link)
        if answer is not None:
            note_refusal(link, answer, self._engine)
            link.condition = Condition(answer.condition, answer.description)
        if closed or answer is not None:
            link.close()
        else:
            link.detach()
        link.free()
        self._engine.soon()

    def _end_link(self, link: Link) -> None:
        publishing = self._publishing.pop(link, None)
        if publishing is not None:
            publishing.end()
            self._spawn(publishing.close())
        consuming = self._consuming.pop(link, None)
        if consuming is not None:
            consuming.end()
            self._spawn(self._left(consuming))

    async def _left(self, consuming: LinkToClient) -> None:
        """Leave a subscription whose link has ended with its session."""
        try:
            await consuming.close(unsubscribes=False)
        except KafkadurError as error:
            _log.info("leaving a subscription: %s", error, extra=self._engine.ids)

    # -- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        _log.error("the connection met a defect", exc_info=error, extra=self._engine.ids)
        connection = self._engine.connection
        connection.condition = Condition(INTERNAL_ERROR, "The gateway met a defect; its log says which.")
        connection.close()
        self._engine.soon()


def _facts(link: Sender) -> ReceivingLink:
    """Copy what a client asks for: a terminus must not be used after its link."""
    source = link.remote_source
    selector, no_local = _filters(source)
    return ReceivingLink(
        name=link.name,
        address=None if source.type == Terminus.UNSPECIFIED else source.address or "",
        dynamic=source.type == Terminus.SOURCE and source.dynamic,
        capabilities=capabilities_of(source) if source.type == Terminus.SOURCE else frozenset(),
        durable=source.durability != Terminus.NONDURABLE or source.expiry_policy == Terminus.EXPIRE_NEVER,
        selector=selector,
        no_local=no_local,
        copies=source.distribution_mode == Terminus.DIST_MODE_COPY,
    )


def _filters(source: Terminus) -> tuple[str | None, bool]:
    """Return the selector, and whether the client's own messages are left out."""
    data = source.filter
    data.rewind()
    if data.next() is None:
        return None, False
    filters = data.get_object()
    selector, no_local = None, False
    for value in filters.values() if isinstance(filters, dict) else ():
        if not isinstance(value, Described):
            continue
        if value.descriptor in _SELECTORS:
            selector = str(value.value)
        elif value.descriptor in _NO_LOCALS:
            no_local = True
    return selector, no_local


def _heard(future: asyncio.Future[Connection]) -> None:
    """Mark the error of opening as retrieved: a connection may have no link that waits for it."""
    if not future.cancelled():
        future.exception()
