"""The proxy forwards, holds back, delays and cuts; before a real Valkey and before plain sockets."""

# redis-py and confluent-kafka type their methods in part only.
# pyright: reportUnknownMemberType=false

import contextlib
import gc
import socket
import time
from collections.abc import Generator, Iterator

import pytest
import redis

from kafkadur.stack import TcpProxy
from kafkadur.stack.ports import HOST, free_ports
from tests.integration.embedded.helpers import wait_until

Ends = tuple[socket.socket, socket.socket]


@contextlib.contextmanager
def through(proxy: TcpProxy, listener: socket.socket) -> Generator[Ends, None, None]:
    """Yield both ends of a connection through a proxy."""
    with socket.create_connection((HOST, proxy.port)) as near:
        far, _ = listener.accept()
        with far:
            near.settimeout(10)
            far.settimeout(10)
            yield near, far


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(10)
        yield server


@pytest.fixture
def proxy(listener: socket.socket) -> Iterator[TcpProxy]:
    with TcpProxy(listener.getsockname()) as made:
        yield made


def receive(end: socket.socket, count: int) -> bytes:
    """Read exactly ``count`` bytes."""
    data = b""
    while len(data) < count and (more := end.recv(count - len(data))):
        data += more
    return data


def test_forwards_both_ways_and_ends_with_either_end(proxy: TcpProxy, listener: socket.socket) -> None:
    large = bytes(range(256)) * 4_000
    with through(proxy, listener) as (near, far):
        near.sendall(b"ping")
        assert receive(far, 4) == b"ping"
        far.sendall(large[:100_000])
        assert receive(near, 100_000) == large[:100_000]
        near.shutdown(socket.SHUT_WR)
        assert receive(far, 1) == b""
        far.sendall(b"last words")
        assert receive(near, 10) == b"last words"
    wait_until(lambda: proxy.connections == 0, "the end of the connection")


def test_pause_holds_back_and_resume_delivers(proxy: TcpProxy, listener: socket.socket) -> None:
    with through(proxy, listener) as (near, far):
        proxy.pause()
        near.sendall(b"held")
        far.settimeout(0.3)
        with pytest.raises(TimeoutError):
            far.recv(1)
        far.settimeout(10)
        proxy.resume()
        assert receive(far, 4) == b"held"


def test_cut_closes_and_drops_what_was_held(proxy: TcpProxy, listener: socket.socket) -> None:
    with through(proxy, listener) as (near, far):
        proxy.pause()
        near.sendall(b"held")
        proxy.cut()
        proxy.resume()
        for end in (near, far):
            with contextlib.suppress(ConnectionResetError):
                assert end.recv(10) == b""
    with through(proxy, listener) as (near, far):
        near.sendall(b"new")
        assert receive(far, 3) == b"new"


def test_refusing_lasts_until_resume(proxy: TcpProxy, listener: socket.socket) -> None:
    proxy.cut(refuse=True)
    with socket.create_connection((HOST, proxy.port)) as near, contextlib.suppress(ConnectionResetError):
        near.settimeout(10)
        assert near.recv(1) == b""
    proxy.resume()
    with through(proxy, listener) as (near, far):
        near.sendall(b"x")
        assert receive(far, 1) == b"x"


def test_delay_is_a_minimum_and_keeps_order(proxy: TcpProxy, listener: socket.socket) -> None:
    with through(proxy, listener) as (near, far):
        proxy.delay(0.2)
        began = time.monotonic()
        near.sendall(b"1")
        near.sendall(b"2")
        assert receive(far, 2) == b"12"
        assert time.monotonic() - began >= 0.2


def test_no_connection_stays_open_when_it_arrives_while_the_proxy_closes(listener: socket.socket) -> None:
    ends: list[socket.socket] = []
    for _ in range(200):
        with TcpProxy(listener.getsockname()) as proxy:
            ends += [socket.create_connection((HOST, proxy.port)) for _ in range(2)]
    for end in ends:
        with end, contextlib.suppress(ConnectionResetError):
            end.settimeout(10)
            assert end.recv(1) == b"", "the proxy has closed its end"
    ends.clear()
    gc.collect()  # a socket that was left open is reported now, as a warning


def test_target_that_is_down_closes_the_connection() -> None:
    (port,) = free_ports(1)
    with TcpProxy((HOST, port)) as proxy, socket.create_connection((HOST, proxy.port)) as near:
        near.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert near.recv(1) == b""


def test_valkey_behind_a_proxy() -> None:
    from kafkadur.stack import embedded

    with (
        embedded(kafka=False, proxy=True) as stack,
        redis.Redis.from_url(stack.redis, socket_timeout=0.3) as client,
    ):
        assert stack.redis_proxy is not None
        assert client.ping()
        stack.redis_proxy.pause()
        with pytest.raises(redis.TimeoutError):
            client.execute_command("PING")
        stack.redis_proxy.resume()
        wait_until(lambda: bool(client.ping()), "an answer after the pause")
        stack.redis_proxy.cut(refuse=True)
        with pytest.raises(redis.ConnectionError):
            client.execute_command("PING")


def test_points_at_another_target(proxy: TcpProxy, listener: socket.socket) -> None:
    with socket.create_server((HOST, 0)) as other:
        other.settimeout(10)
        with through(proxy, listener) as (near, far):
            proxy.point_at(other.getsockname())
            assert near.recv(1) == b"", "open connections end"
            assert far.recv(1) == b""
        with through(proxy, other) as (near, far):
            near.sendall(b"there")
            assert receive(far, 5) == b"there"
