"""Many clients in one event loop: each opens a connection and a link, and sends a message."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import proton
from proton import Transport

from tests.integration.gateway.running import ANSWER_S, Message

#: Connections that are opened at the same time.
_AT_ONCE = 50


class Peer(asyncio.Protocol):
    """One client with a sending link; its connection stays open."""

    def __init__(self, topic: str, body: str) -> None:
        """The message is sent when the gateway gives credit."""
        self._encoded = Message(body=body).encode()
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._socket: Any = None
        self._transport: Any = Transport()
        self._connection: Any = proton.Connection()
        self._transport.bind(self._connection)
        self._connection.container = "ID:crowd"
        self._connection.open()
        session = self._connection.session()
        session.open()
        self._sender = session.sender("sending")
        self._sender.target.address = topic
        self._sender.open()
        self._sent: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first frames."""
        self._socket = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Read frames, and go on."""
        self._transport.push(data)
        if self._sent is None and self._sender.credit:
            self._sent = self._sender.delivery("one")
            self._sender.stream(self._encoded)
            self._sender.advance()
        if self._sent is not None and self._sent.settled and not self.accepted.done():
            assert self._sent.remote_state == proton.Delivery.ACCEPTED
            self.accepted.set_result(None)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if not self.accepted.done():
            self.accepted.set_exception(exc or ConnectionError("the gateway has closed it"))

    def _send(self) -> None:
        while (pending := self._transport.pending()) > 0:
            self._socket.write(bytes(self._transport.peek(pending)))
            self._transport.pop(pending)


@asynccontextmanager
async def crowd(port: int, topic: str, size: int) -> AsyncGenerator[None]:
    """Connect so many clients, each of which sends its number; they stay connected as long as the block."""
    loop, places = asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)
    sockets: list[asyncio.Transport] = []

    async def one(number: int) -> None:
        async with places:
            made, peer = await loop.create_connection(lambda: Peer(topic, str(number)), "127.0.0.1", port)
            sockets.append(made)
            await asyncio.wait_for(peer.accepted, ANSWER_S)

    try:
        await asyncio.gather(*(one(number) for number in range(size)))
        yield
    finally:
        for each in sockets:
            each.abort()
        await asyncio.sleep(0)  # so that the loop closes them
