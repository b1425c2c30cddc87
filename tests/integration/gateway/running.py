"""A gateway in a thread of its own, and clients that block: those of Proton."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, Self

import proton
import proton.utils
from proton import UNDESCRIBED, Array, Data, Described, symbol, ulong
from proton.reactor import Container, Filter, ReceiverOption

from kafkadur.gateway.gateway import Gateway
from kafkadur.gateway.options import GatewaySettings
from kafkadur.settings import settings
from kafkadur.stack.ports import free_ports
from tests.integration.subscriptions.helpers import Place, wait_until

#: Proton annotates messages, and what blocks, in part only.
Message: Any = proton.Message
BlockingConnection: Any = proton.utils.BlockingConnection

#: Seconds within which a client must have its answer.
ANSWER_S = 60


@contextlib.contextmanager
def running(place: Place, **options: Any) -> Generator[int]:
    """Run a gateway for as long as the block lasts; gives its port."""
    with running_with(place.settings(client_id_policy="restricted"), **options) as port:
        yield port


@contextlib.contextmanager
def running_with(given: dict[str, Any], **options: Any) -> Generator[int]:
    """Run a gateway with these settings, except the client id, as `running` does."""
    chosen = settings({name: value for name, value in given.items() if name != "client_id"})
    started: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stopped = asyncio.Event()
        async with Gateway(chosen, GatewaySettings(port=0, **options)) as serving:
            started.set_result((serving.port, asyncio.get_running_loop(), stopped))
            await stopped.wait()

    def main() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=main, name="gateway")
    thread.start()
    port, loop, stopped = started.result(ANSWER_S)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()


class Serving:
    """A gateway in a process of its own, which can be killed and started again at the same port."""

    def __init__(self, place: Place, *options: str) -> None:
        """`options` are those of `kafkadur gateway`."""
        (self.port,) = free_ports(1)
        self._command = [
            sys.executable, "-m", "kafkadur.cli", "gateway", "--port", str(self.port), *options,
            "--kafka", place.stack.kafka, "--redis", place.stack.redis, "--namespace", place.namespace,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns when it listens."""
        self._process = subprocess.Popen(self._command)
        wait_until(self._listens, "the gateway listens")

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5):
            return True
        return False

    @property
    def process(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and wait until it has ended."""
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(ANSWER_S) == 0
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextlib.contextmanager
def client(port: int, container: str | None = None, **more: Any) -> Generator[Any]:
    """A connection of a client, which is closed at the end; without a container id it has no client id."""
    kind = Container()
    kind.container_id = container or "ID:none"
    connection = BlockingConnection(
        f"amqp://127.0.0.1:{port}", timeout=ANSWER_S, container=kind, **{"allowed_mechs": "ANONYMOUS", **more}
    )
    try:
        yield connection
    finally:
        connection.close()


class Source(ReceiverOption):
    """What a receiver asks of its source."""

    def __init__(
        self, *, durable: bool = False, capabilities: tuple[str, ...] = (), null: bool = False
    ) -> None:
        self._durable, self._capabilities, self._null = durable, capabilities, null

    def apply(self, receiver: Any) -> None:
        """Set it."""
        source = receiver.source
        if self._null:
            source.type = source.UNSPECIFIED
        if self._durable:
            source.durability = source.DELIVERIES
            source.expiry_policy = source.EXPIRE_NEVER
        if self._capabilities:
            no_descriptor: Any = UNDESCRIBED  # its annotation is that of the constant
            symbols = Array(no_descriptor, Data.SYMBOL, *map(symbol, self._capabilities))
            source.capabilities.put_py_array(symbols)


def selecting(selector: str) -> Filter:
    """A selector, as Qpid JMS sends it."""
    return Filter({symbol("jms-selector"): Described(ulong(0x0000_468C_0000_0004), selector)})


def not_local() -> Filter:
    """NoLocal, as other clients send it."""
    named = symbol("apache.org:no-local-filter:list")
    return Filter({symbol("no-local"): Described(named, "NoLocalFilter{}")})


def detach(receiver: Any) -> None:
    """Detach a link without closing it, as a client that keeps its durable subscription."""
    answers: list[object] = []
    receiver.fetcher.on_link_remote_detach = answers.append
    receiver.link.detach()
    receiver.connection.wait(lambda: bool(answers), msg="the gateway detaches")
    receiver.link.free()


def bodies(receiver: Any, count: int) -> list[Any]:
    """Receive and accept so many messages."""
    found: list[Any] = []
    for _ in range(count):
        found.append(receiver.receive(timeout=ANSWER_S).body)
        receiver.accept()
    return found


def drained(receiver: Any, credit: int) -> None:
    """Give credit and have the gateway use it, or take it back."""
    receiver.link.drain(credit)
    receiver.connection.wait(lambda: receiver.link.credit == 0, msg="the gateway drains the link")
