"""The gateway: it listens for clients of AMQP 1.0 and serves their connections, all in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Self

from kafkadur.aio.connection import Connection
from kafkadur.gateway.browsing import Browsers
from kafkadur.gateway.client import Client
from kafkadur.gateway.counting import Counts
from kafkadur.gateway.engine import Engine
from kafkadur.gateway.links import Limit
from kafkadur.gateway.nodes import Nodes
from kafkadur.gateway.options import GatewaySettings
from kafkadur.gateway.temporary import TemporaryDestinations
from kafkadur.gateway.temporary_reader import TemporaryReader
from kafkadur.monitoring.heartbeat import Heartbeat
from kafkadur.producer.forwarding import ForwardingProducer
from kafkadur.runtime.clients import topics_of
from kafkadur.settings import Settings
from kafkadur_sharing.errors import IllegalState, KafkadurError

_log = logging.getLogger("kafkadur.gateway")

#: Milliseconds that the producer waits for further messages. A client that sends one at a time waits so, too.
_LINGER_MS: Final = 1
#: Bytes of a record besides its message's body.
_HEADER_BYTES: Final = 65_536
#: Transacted sessions of all clients: each has a producer, an admin client and threads of its own.
_MOST_TRANSACTED: Final = 500
#: Seconds that clients have to take the end of their connections when the gateway stops.
_STOP_S: Final = 5.0


class Standing(NamedTuple):
    """What clients have open now."""

    connections: int
    #: links that carry messages from clients, coordinator links included, and those to clients
    from_clients: int
    to_clients: int
    transacted: int


class Gateway:
    """A gateway; an asynchronous context manager."""

    def __init__(self, settings: Settings, options: GatewaySettings) -> None:
        """`settings` are those of connections to Kafka and Redis; they have no client id."""
        if settings.client_id is not None:
            raise IllegalState(
                "A gateway has no client id: each of its clients has its own.",
                state=f"client id {settings.client_id}",
                owner="the settings",
                remedy="leave client_id out",
            )
        self._settings = settings
        self.options = options
        self.name = "kafkadur"
        self.counts = Counts()
        self.transacted = Limit(_MOST_TRANSACTED, "transacted sessions")
        # a record has headers, too, which the limit of the gateway does not count
        config = {"linger.ms": _LINGER_MS, "message.max.bytes": options.most_message_bytes + _HEADER_BYTES}
        self.producer_config = {name: value for name, value in config.items() if name not in settings.kafka}
        self._host: Connection | None = None
        self._producer: ForwardingProducer | None = None
        self._nodes: Nodes | None = None
        self._browsers: Browsers | None = None
        self._checking = ThreadPoolExecutor(2, "kafkadur-passwords")
        self._clients: set[Client] = set()
        #: the connections, also those whose clients have not authenticated
        self._engines: set[Engine] = set()
        self._server: asyncio.Server | None = None
        self._heartbeat = Heartbeat()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None  # noqa: S101 - a caller's mistake
        return int(self._server.sockets[0].getsockname()[1])

    # -- how it is

    @property
    def silent(self) -> float:
        """Seconds since the event loop last showed that it runs; any thread."""
        return self._heartbeat.silent

    @property
    def ready(self) -> bool:
        """Whether it takes clients; any thread."""
        return self._server is not None and self._server.is_serving()

    def details(self) -> Mapping[str, Any]:
        """Return the number of connections; any thread."""
        return {"connections": len(self._clients)}

    def standing(self) -> Standing:
        """Return how much its clients have open; any thread."""
        clients = list(self._clients)
        links = [client.links for client in clients]
        return Standing(
            connections=len(clients),
            from_clients=sum(sending for sending, _ in links),
            to_clients=sum(receiving for _, receiving in links),
            transacted=self.transacted.taken,
        )

    # -- what a connection uses

    @property
    def host(self) -> Connection:
        """The connection without a client id, whose threads all others use."""
        assert self._host is not None  # noqa: S101 - it is open
        return self._host

    @property
    def producer(self) -> ForwardingProducer:
        """The producer of all connections."""
        assert self._producer is not None  # noqa: S101 - it is open
        return self._producer

    @property
    def nodes(self) -> Nodes:
        """The topics and queues."""
        assert self._nodes is not None  # noqa: S101 - it is open
        return self._nodes

    @property
    def browsers(self) -> Browsers:
        """The readers of browsers of queues."""
        assert self._browsers is not None  # noqa: S101 - it is open
        return self._browsers

    async def connect(
        self, client_id: str | None, on_displaced: Callable[[KafkadurError], None]
    ) -> Connection:
        """Open a connection of a client; raises as `Connection.open`.

        `on_displaced` is called, in any thread, when another connection has taken the client id.
        """
        return await self.host.for_client(client_id, on_displaced)

    def ended(self, client: Client) -> None:
        """A connection has ended."""
        self._clients.discard(client)

    # -- from the beginning to the end

    async def __aenter__(self) -> Self:
        """Connect to Kafka and Redis, and listen; raises their errors and `IllegalState`."""
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop."""
        await self.close()

    async def _open(self) -> None:
        self._heartbeat.start()
        settings, options = self._settings, self.options
        self._host = Connection(settings)
        await self._host.open()
        self._producer = ForwardingProducer({**self.producer_config, **settings.kafka}, None, self._host.id)
        topics = topics_of(settings)
        most_bytes = {**self.producer_config, **settings.kafka}["message.max.bytes"]
        reader = TemporaryReader(settings.kafka, settings.namespace, topics, most_bytes=int(most_bytes))
        temporary = TemporaryDestinations(reader, options.redelivery)
        self._nodes = Nodes(self._host, topics, options, temporary)
        self._browsers = Browsers(settings)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._accept,
                options.host,
                options.port,
                ssl=options.tls,
                ssl_handshake_timeout=None if options.tls is None else options.handshake_timeout,
            )
        except OSError as error:
            raise IllegalState(
                "The gateway cannot listen.",
                state=str(error),
                owner=f"{options.host}:{options.port}",
                remedy="name a free port with --port, or another address with --host",
            ) from error

    def _accept(self) -> Engine:
        return Engine(
            self.options,
            self._serve,
            counts=self.counts,
            checking=self._checking,
            admit=self._admit,
            ended=self._engines.discard,
        )

    def _admit(self, engine: Engine) -> bool:
        if len(self._engines) >= self.options.most_connections:
            return False
        self._engines.add(engine)
        return True

    def _serve(self, engine: Engine) -> Client:
        client = Client(engine, self)
        self._clients.add(client)
        return client

    async def close(self) -> None:
        """Refuse further clients, end the connections, and disconnect. Never raises for a client."""
        self._heartbeat.stop()
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await asyncio.gather(*(each.stop() for each in list(self._clients)), return_exceptions=True)
        for engine in list(self._engines):
            engine.abort()
        self._checking.shutdown(wait=False, cancel_futures=True)
        if self._producer is not None:
            await asyncio.to_thread(self._flush)
        if self._nodes is not None:
            await self._nodes.close()
        if self._browsers is not None:
            await asyncio.to_thread(self._browsers.close)
        if self._host is not None:
            await self._host.close()

    def _flush(self) -> None:
        assert self._producer is not None  # noqa: S101 - see above
        try:
            self._producer.close(_STOP_S)
        except KafkadurError as error:
            _log.warning("%s", error)
