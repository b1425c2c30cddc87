"""A small TCP proxy whose connections can be cut, held back and delayed: a bad network for tests.

It moves bytes and understands no protocol, but for TLS where it is asked to end that. It runs
in a thread of the process that made it.
"""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from kafkadur.stack.errors import port_taken
from kafkadur.stack.ports import HOST, free_ports

#: Most bytes moved in one step, and most steps one direction of a connection holds back before the sender
#: must wait.
CHUNK_BYTES = 1 << 16
HELD_CHUNKS = 256

TRIES = 5

T = TypeVar("T")


class TcpProxy:
    """Forward connections from a loopback port to a target.

    All methods are thread-safe and take effect at once.
    """

    def __init__(self, target: tuple[str, int], *, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a free loopback port and forward to ``target`` (host, port), which need not be up yet.

        With ``tls``, the context of a server, connections to the port are encrypted; those to the target are
        not: so a server without TLS gets one.
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
        """How many connections are open now."""
        return self._on_loop(lambda: len(self._connections))

    def point_at(self, target: tuple[str, int]) -> None:
        """Forward new connections to another target, and close those that are open."""

        async def point() -> None:
            self._target = target
            await self._drop_all()

        self._await(point())

    def cut(self, *, refuse: bool = False) -> None:
        """Close all connections, with what they hold back.

        ``refuse`` closes new ones as well until :meth:`resume`.
        """

        async def cut() -> None:
            self._refusing = self._refusing or refuse
            await self._drop_all()

        self._await(cut())

    def pause(self) -> None:
        """Forward nothing, in either direction, and close nothing.

        The network is a black hole until :meth:`resume`.
        """
        self._on_loop(self._flowing.clear)

    def resume(self) -> None:
        """End :meth:`pause` and ``cut(refuse=True)``; what was held back goes on its way."""

        def resume() -> None:
            self._refusing = False
            self._flowing.set()

        self._on_loop(resume)

    def delay(self, seconds: float) -> None:
        """Have every byte arrive ``seconds`` later, in each direction; 0 ends it."""

        def delay() -> None:
            self._delay = seconds

        self._on_loop(delay)

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

    def _on_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._await(call())

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._accept, sock=listener, limit=CHUNK_BYTES, ssl=self._tls)
        await self._closing.wait()
        server.close()
        await self._drop_all()

    async def _drop_all(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this callback as a task
        self._connections.add(task)
        try:
            if not self._refusing:
                await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            # A broken or cut connection ends here; only its two ends can be told.
            pass
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        target_reader, target_writer = await asyncio.open_connection(*self._target, limit=CHUNK_BYTES)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._coordinator_thread(reader, target_writer))
                both.create_task(self._coordinator_thread(target_reader, writer))
        except* OSError:  # one end broke the connection: both end
            pass
        finally:
            target_writer.transport.abort()

    async def _coordinator_thread(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Move one direction: one task reads and stamps, this one waits until the stamp is due and writes."""
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
