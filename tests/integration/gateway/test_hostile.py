"""Clients that send nonsense, read slowly or not at all, or come in crowds: others are unharmed."""

import asyncio
import contextlib
import gc
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from hypothesis import given, settings
from hypothesis import strategies as st
from proton import Connection, ConnectionException, Endpoint, Transport

from kafkadur.gateway.sasl import AMQP_HEADER, SASL_HEADER
from tests.integration.gateway.crowd import crowd
from tests.integration.gateway.running import ANSWER_S, BlockingConnection, Message, Serving, bodies, client
from tests.integration.subscriptions.helpers import Place, wait_until

#: Clients that are connected at the same time.
_CROWD = 1_000


def conversation() -> bytes:
    """The first bytes of a client, without SASL: it opens a connection, a session and two links."""
    transport, connection = Transport(), Connection()
    transport.bind(connection)
    connection.container = "ID:hostile"
    connection.open()
    session = connection.session()
    session.open()
    for link in (session.sender("sending"), session.receiver("receiving")):
        link.source.address = link.target.address = "topic"
        link.open()
    said = bytes(transport.peek(transport.pending()) or b"")
    transport.unbind()
    return said


CONVERSATION = conversation()


def test_the_gateway_survives_any_bytes(port: int) -> None:
    @settings(deadline=None, max_examples=100)
    @given(
        st.sampled_from([b"", SASL_HEADER, AMQP_HEADER, CONVERSATION]),
        st.binary(max_size=300),
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=5),
        st.integers(0, 400),
    )
    def survives(begin: bytes, rest: bytes, flips: list[tuple[int, int]], cut: int) -> None:
        said = bytearray(begin + rest)
        for place, value in flips:
            if place < len(said):
                said[place] = value
        sending = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        with sending, contextlib.suppress(OSError):
            sending.sendall(bytes(said[: max(len(said) - cut, 0)] or said))
            sending.shutdown(socket.SHUT_WR)
            while sending.recv(65_536):
                pass

    survives()
    with client(port) as connection:
        assert connection.conn.remote_container == "kafkadur"


def test_a_client_that_says_nothing_is_cut_off(gateway: Callable[..., int]) -> None:
    with socket.create_connection(("127.0.0.1", gateway(handshake_timeout=0.5)), timeout=ANSWER_S) as silent:
        begun = time.monotonic()
        assert silent.recv(1) == b""
        assert time.monotonic() - begun >= 0.4


@pytest.mark.long
def test_a_silent_connection_ends_with_the_idle_timeout(gateway: Callable[..., int], place: Place) -> None:
    topic = place.topic()
    port = gateway(idle_timeout=1.0)
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as silent:
        silent.sendall(CONVERSATION)
        said = b""
        with contextlib.suppress(OSError):
            while data := silent.recv(65_536):
                said += data
        assert b"amqp:resource-limit-exceeded" in said
    with client(port) as connection:
        connection.create_sender(topic).send(Message(body="served"))


@pytest.mark.long
def test_connections_beyond_the_limit_are_closed_and_the_others_served(
    gateway: Callable[..., int], place: Place
) -> None:
    topic = place.topic()
    port = gateway(most_connections=20)
    with client(port) as connection, contextlib.ExitStack() as stack:
        crowd = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S))
            for _ in range(40)
        ]
        closed = sum(_is_closed(each) for each in crowd[19:])
        assert closed == 21
        connection.create_sender(topic).send(Message(body="served"))


def _is_closed(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


@pytest.mark.long
def test_a_client_that_does_not_read_takes_no_memory_and_harms_no_other(
    gateway: Callable[..., int], place: Place
) -> None:
    topic = place.topic()
    port = gateway(most_unsettled_bytes=8 * 2**20)
    value = b"x" * 200_000
    slow = BlockingConnection(
        f"amqp://127.0.0.1:{port}", timeout=ANSWER_S, reconnect=False, allowed_mechs="ANONYMOUS"
    )
    slow.create_receiver(topic, credit=1_000)  # nothing reads this socket from here on
    with client(port) as connection:
        receiver = connection.create_receiver(topic, credit=50)
        before = resident()
        for _ in range(36):
            place.publish_values(topic, [value] * 50)
            assert len(bodies(receiver, 50)) == 50
        assert resident() - before < 256 * 2**20  # of 360 MB that the slow one does not take
    slow.timeout = 1
    with contextlib.suppress(ConnectionException):
        slow.close()


def resident(process: int | str = "self") -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


@pytest.mark.long
def test_a_thousand_connections_are_served(place: Place) -> None:
    """Each sends a message; one client receives all of them, and the connections take little memory."""
    topic = place.topic(partitions=4)
    few_files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (few_files, most_files))
        serving = stack.enter_context(Serving(place))
        connection = stack.enter_context(client(serving.port))
        receiver = connection.create_receiver(topic, credit=_CROWD)

        async def come_and_go(size: int) -> tuple[list[str], int]:
            async with crowd(serving.port, topic, size):
                return await asyncio.to_thread(bodies, receiver, size), resident(serving.process)

        _, before = asyncio.run(come_and_go(10))  # everything is imported by then
        found, most = asyncio.run(come_and_go(_CROWD))
        assert sorted(map(int, found)) == list(range(_CROWD))
        assert most - before < _CROWD * 100_000
        connection.create_sender(topic).send(Message(body="still served"))


@pytest.mark.long
def test_a_storm_of_attaches_leaves_no_subscription_behind(port: int, place: Place) -> None:
    topic = place.topic()
    with client(port) as connection:
        for number in range(30):
            receiver = connection.create_receiver(topic, name=f"link-{number}")
            receiver.close()
        connection.create_sender(topic).send(Message(body="served"))
    with place.connect_sync(client_id=None) as python:
        wait_until(lambda: python.known("link-1") is None, "no subscription")


@pytest.mark.parametrize("detaches", [False, True])
def test_sessions_that_end_at_any_time_harm_nothing(port: int, place: Place, *, detaches: bool) -> None:
    topic = place.topic()
    with client(port) as connection:
        for round_ in range(20):
            session = connection.conn.session()
            session.open()
            sender, receiver = session.sender(f"s{round_}"), session.receiver(f"r{round_}")
            sender.target.address = receiver.source.address = topic
            for link in (sender, receiver):
                link.open()
            receiver.flow(10)
            connection.wait(lambda sender=sender: sender.credit > 0)
            for _ in range(30):  # nothing waits for their receipts
                sender.send(Message(body="m"))
            if detaches:
                sender.close()
                receiver.close()
            session.close()
            connection.wait(lambda session=session: not session.state & Endpoint.REMOTE_ACTIVE)
        gc.collect()
        connection.create_sender(topic).send(Message(body="served"))
