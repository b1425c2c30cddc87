"""A small TCP proxy whose connections can be cut, held back and delayed: a bad network for tests.

It forwards bytes without knowing their protocol; it can terminate TLS. It runs in a thread of the process
that created it.
"""

import asyncio
import contextlib
import functools
import socket
import ssl
import threading
from collections.abc import Coroutine
from typing import Any, Self

from kafkadur.stack.errors import port_taken
from kafkadur.stack.ports import HOST, free_ports

#: Most bytes that are read at once, and most such chunks that one direction of a connection holds back before
#: the sender must wait.
CHUNK_BYTES = 1 << 16
HELD_CHUNKS = 256

TRIES = 5


class TcpProxy:
    """Forward connections from a loopback port to a target. All methods are thread-safe and act at once."""

    def __init__(self, target: tuple[str, int], *, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a free loopback port and forward to ``target`` (host, port), which need not be up yet.

        With ``tls``, the context of a server, connections to the port are encrypted and those to the target
        are not: this adds TLS to a server without it.
        """
        self._target = target
        self._tls = tls
        self._delay = 0.0
        self._refusing = False
        self._connections: set[asyncio.Task[None]] = set()
        listener = _listen()
        #: The port to connect to.
        self.port: int = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._closing = asyncio.Event()
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="kafkadur-proxy", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """``host:port`` to connect to."""
        return f"{HOST}:{self.port}"

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def point_at(self, target: tuple[str, int]) -> None:
        """Forward new connections to another target, and close the open ones."""
        self._target = target
        self._await(self._drop_all())

    def cut(self, *, refuse: bool = False) -> None:
        """Close all connections and discard the bytes that they hold back.

        With ``refuse`` new connections are closed as well until :meth:`resume`.
        """
        self._refusing = self._refusing or refuse
        self._await(self._drop_all())

    def pause(self) -> None:
        """Forward nothing, in either direction, and close nothing until :meth:`resume`."""
        self._await(self._flow(on=False))

    def resume(self) -> None:
        """End :meth:`pause` and ``cut(refuse=True)``; forward the bytes that were held back."""
        self._refusing = False
        self._await(self._flow(on=True))

    def delay(self, seconds: float) -> None:
        """Delay every byte by ``seconds``, in each direction; 0 ends the delay."""
        self._delay = seconds

    def close(self) -> None:
        """Close all connections and the port. Idempotent."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _await(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _flow(self, *, on: bool) -> None:
        if on:
            self._flowing.set()
        else:
            self._flowing.clear()

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        # Not by asyncio's server: one that is closed while it accepts leaves the accepted connection open.
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept, listener)
        await self._closing.wait()
        self._loop.remove_reader(listener)
        listener.close()
        await self._drop_all()

    async def _drop_all(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the other end has gone already
            return
        if self._refusing:
            accepted.close()
            return
        task = self._loop.create_task(self._connect(accepted))
        self._connections.add(task)
        task.add_done_callback(functools.partial(self._ended, accepted))

    def _ended(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        accepted.close()  # a task that was cancelled before its first step has no transport to close
        self._connections.discard(task)

    async def _connect(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        reader = asyncio.StreamReader(CHUNK_BYTES, self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        # A broken or cut connection ends here; both its ends notice that themselves.
        with contextlib.suppress(OSError):
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._tls)
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            try:
                await self._join(reader, writer)
            finally:
                transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        target_reader, target_writer = await asyncio.open_connection(*self._target, limit=CHUNK_BYTES)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, target_writer))
                both.create_task(self._forward(target_reader, writer))
        except* OSError:  # one end broke the connection: both end
            pass
        finally:
            target_writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction: one task reads and stamps chunks, this one writes each when it is due."""
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD_CHUNKS)

        async def read() -> None:
            data = b"more"
            while data:
                data = await reader.read(CHUNK_BYTES)
                await held.put((self._loop.time() + self._delay, data))

        async with asyncio.TaskGroup() as both:
            both.create_task(read())
            while True:
                due, data = await held.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                await self._flowing.wait()
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        else:  # TLS has no half-closed connections
            writer.close()


def _listen() -> socket.socket:
    for _ in range(TRIES):
        (port,) = free_ports(1)
        with contextlib.suppress(OSError):
            return socket.create_server((HOST, port))
    raise port_taken(None, "The test proxy")
