"""The server's side of SASL in AMQP 1.0, without I/O: which mechanisms are offered, and who the client is."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from proton import UNDESCRIBED, Array, Data, Described, ProtonException, symbol, ubyte, ulong

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
_HEADER_SIZE: Final = 8
_FRAME_HEADER: Final = struct.Struct(">IBBH")
#: The frames of SASL must fit into this many bytes (AMQP 1.0, section 5.3.1).
_LARGEST_FRAME: Final = 512
#: Bytes that a client may send before it knows whether its password is right.
_LARGEST_REST: Final = 65_536
_SASL_FRAME: Final = 1
_MECHANISMS, _INIT, _OUTCOME = 0x40, 0x41, 0x44

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"

#: Says whether a user has this password.
CheckPassword = Callable[[str, str], bool]


class _Code(IntEnum):
    OK = 0
    AUTH = 1
    SYS = 2


class ProtocolError(Exception):
    """The client does not speak AMQP 1.0 as the specification says."""


class SaslServer:
    """The negotiation with one client, from its first byte to its AMQP header."""

    def __init__(self, *, anonymous: bool, passwords: bool, certificate_name: str | None) -> None:
        """`anonymous`: clients need not say who they are. `passwords`: there is PLAIN.

        `certificate_name`: the name in the client's certificate; None: it has none, and there is no EXTERNAL.
        """
        self._anonymous = anonymous
        self._passwords = passwords
        self._certificate_name = certificate_name
        self._buffer = b""
        self._begun = False
        self._last = False
        #: what is to be sent
        self.out = b""
        #: whether the negotiation is over: `rest` is what follows
        self.done = False
        #: user and password that somebody is to check: `decide` tells the answer; None: there are none
        self.asked: tuple[str, str] | None = None
        #: whether the client was refused
        self.refused = False
        #: the name of the user; None: it said none
        self.user: str | None = None

    def feed(self, data: bytes) -> None:
        """Take bytes of the client; raises `ProtocolError`."""
        self._buffer += data
        while self._step():
            pass
        most = _LARGEST_REST if self.asked is not None else 2 * _LARGEST_FRAME
        if not self.done and len(self._buffer) > most:
            raise ProtocolError("a frame of SASL is too long")

    def take_rest(self) -> bytes:
        """Return the bytes behind the negotiation."""
        rest, self._buffer = self._buffer, b""
        return rest

    def take_out(self) -> bytes:
        """Return the bytes to be sent."""
        out, self.out = self.out, b""
        return out

    def _step(self) -> bool:
        if self.done or self.refused or self.asked is not None:
            return False
        if not self._begun or self._last:
            return self._take_header()
        if len(self._buffer) < _FRAME_HEADER.size:
            return False
        size, offset, kind, _ = _FRAME_HEADER.unpack_from(self._buffer)
        if kind != _SASL_FRAME or not _FRAME_HEADER.size <= 4 * offset <= size <= _LARGEST_FRAME:
            raise ProtocolError("a frame of SASL is malformed")
        if len(self._buffer) < size:
            return False
        body, self._buffer = self._buffer[4 * offset : size], self._buffer[size:]
        self._init(_decoded(body))
        return True

    def _take_header(self) -> bool:
        if len(self._buffer) < _HEADER_SIZE:
            if not AMQP_HEADER.startswith(self._buffer[:4]):
                raise ProtocolError("the client does not begin with the header of AMQP")
            return False
        header = self._buffer[:_HEADER_SIZE]
        if header == SASL_HEADER and not self._begun:
            self._buffer = self._buffer[_HEADER_SIZE:]
            self._begun = True
            self.out += SASL_HEADER + _frame(_MECHANISMS, [_symbols(self._mechanisms())])
            return True
        if header == AMQP_HEADER and (self._last or self._anonymous):
            self.done = True  # the header belongs to what follows
            return False
        if header == AMQP_HEADER:
            self.out += SASL_HEADER
            raise ProtocolError("the client has to authenticate by SASL")
        self.out += AMQP_HEADER
        raise ProtocolError("the client asks for another protocol")

    def _mechanisms(self) -> list[str]:
        offered = [EXTERNAL] if self._certificate_name is not None else []
        offered += [PLAIN] if self._passwords else []
        return offered + ([ANONYMOUS] if self._anonymous else [])

    def _init(self, frame: tuple[object, list[Any]]) -> None:
        code, fields = frame
        if code != _INIT or not fields:
            raise ProtocolError("the client does not choose a mechanism of SASL")
        mechanism, *more = fields
        response = more[0] if more and isinstance(more[0], bytes) else b""
        if str(mechanism) not in self._mechanisms():
            self._tell(accepted=False)
        elif mechanism == PLAIN:
            self._ask(response)
        else:
            self.user = self._certificate_name if mechanism == EXTERNAL else None
            self._tell(accepted=True)

    def _ask(self, response: bytes) -> None:
        try:
            _, user, password = response.decode().split("\0")
        except ValueError:
            self._tell(accepted=False)
        else:
            self.asked = user, password

    def decide(self, *, accepted: bool) -> None:
        """Tell whether the user that `asked` names has the password."""
        if self.asked is not None:
            self.user = self.asked[0] if accepted else None
            self.asked = None
            self._tell(accepted=accepted)

    def _tell(self, *, accepted: bool) -> None:
        self.out += _frame(_OUTCOME, [ubyte(_Code.OK if accepted else _Code.AUTH)])
        self._last = accepted
        self.refused = not accepted


def _symbols(names: list[str]) -> Array:
    no_descriptor: Any = UNDESCRIBED  # its annotation is that of the constant, not of the parameter
    return Array(no_descriptor, Data.SYMBOL, *map(symbol, names))


def _frame(code: int, fields: list[Any]) -> bytes:
    data = Data()
    data.put_py_described(Described(ulong(code), fields))
    body = data.encode()
    return _FRAME_HEADER.pack(_FRAME_HEADER.size + len(body), 2, _SASL_FRAME, 0) + body


def _decoded(body: bytes) -> tuple[object, list[Any]]:
    """Return the code and the fields of a frame; raises `ProtocolError`."""
    data = Data()
    try:
        data.decode(body)
        data.rewind()
        data.next()
        frame = data.get_object()
    except ProtonException as error:
        raise ProtocolError("a frame of SASL is malformed") from error
    fields: Any = frame.value if isinstance(frame, Described) else None
    if not isinstance(frame, Described) or not isinstance(fields, list):
        raise ProtocolError("a frame of SASL is malformed")
    # binary values are views of memory that ends with `data`
    return frame.descriptor, [bytes(each) if isinstance(each, memoryview) else each for each in fields]
