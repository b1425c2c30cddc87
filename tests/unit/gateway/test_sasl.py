"""The server's side of SASL: mechanisms, users, and bytes that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from proton import Data, Described, symbol, ulong

from kafkadur.gateway.sasl import AMQP_HEADER, SASL_HEADER, ProtocolError, SaslServer


def init(mechanism: str, response: bytes = b"") -> bytes:
    """A client's choice of a mechanism."""
    data = Data()
    data.put_py_described(Described(ulong(0x41), [symbol(mechanism), response]))
    body = data.encode()
    return (8 + len(body)).to_bytes(4, "big") + b"\x02\x01\x00\x00" + bytes(body)


def server(*, anonymous: bool = False, certificate_name: str | None = None, users: bool = True) -> SaslServer:
    return SaslServer(anonymous=anonymous, passwords=users, certificate_name=certificate_name)


def answer(sasl: SaslServer) -> None:
    """Check the password that is to be checked."""
    if sasl.asked is not None:
        sasl.decide(accepted=sasl.asked == ("ada", "secret"))
        sasl.feed(b"")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_plain(size: int) -> None:
    sasl, said = server(), SASL_HEADER + init("PLAIN", b"\0ada\0secret") + AMQP_HEADER + b"rest"
    for start in range(0, len(said), size):
        sasl.feed(said[start : start + size])
    assert not sasl.done
    answer(sasl)
    assert (sasl.done, sasl.refused, sasl.user) == (True, False, "ada")
    assert sasl.take_rest() == AMQP_HEADER + b"rest"
    assert sasl.take_out().startswith(SASL_HEADER)
    assert sasl.take_out() == b""


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0ada\0wrong"),
        ("PLAIN", b"\0eve\0secret"),
        ("PLAIN", b"ada"),
        ("PLAIN", b"\xff\0\0"),
        ("PLAIN", b""),
        ("ANONYMOUS", b""),
        ("EXTERNAL", b""),
        ("SCRAM-SHA-1", b"x"),
    ],
)
def test_what_is_refused(mechanism: str, response: bytes) -> None:
    sasl = server()
    sasl.feed(SASL_HEADER + init(mechanism, response) + AMQP_HEADER)
    answer(sasl)
    assert (sasl.done, sasl.refused, sasl.user) == (False, True, None)


def test_anonymous_and_external() -> None:
    sasl = server(anonymous=True, users=False)
    sasl.feed(SASL_HEADER + init("ANONYMOUS") + AMQP_HEADER)
    assert (sasl.done, sasl.user) == (True, None)
    sasl = server(certificate_name="app")
    sasl.feed(SASL_HEADER + init("EXTERNAL") + AMQP_HEADER)
    assert (sasl.done, sasl.user) == (True, "app")


def test_a_client_without_sasl_is_anonymous_or_refused() -> None:
    sasl = server(anonymous=True)
    sasl.feed(AMQP_HEADER)
    assert (sasl.done, sasl.take_rest()) == (True, AMQP_HEADER)
    with pytest.raises(ProtocolError, match="authenticate"):
        server().feed(AMQP_HEADER)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"AMQP\x00\x00\x09\x01", SASL_HEADER + SASL_HEADER])
def test_another_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        server(anonymous=True).feed(data)


@given(st.binary(max_size=2000), st.integers(1, 100))
def test_random_bytes_end_in_an_error_or_wait_for_more(data: bytes, size: int) -> None:
    for begin in (b"", SASL_HEADER):
        sasl = server(anonymous=True)
        said = begin + data
        try:
            for start in range(0, len(said), size):
                sasl.feed(said[start : start + size])
        except ProtocolError:
            continue
        assert sasl.done or sasl.refused or len(said) < 1100
