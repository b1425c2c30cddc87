"""One socket of a client: SASL, then the protocol engine Proton, in the event loop.

Proton parses and makes frames, and keeps the state of sessions, links and deliveries. This module feeds it
with the bytes of the socket, sends its bytes, tells its events to a `Handler`, and keeps its clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Protocol, cast

import proton
from proton import Collector, Event, Transport

from kafkadur.gateway.counting import Counts
from kafkadur.gateway.options import GatewaySettings
from kafkadur.gateway.sasl import ProtocolError, SaslServer
from kafkadur_sharing.readable_text import plain

_log = logging.getLogger("kafkadur.gateway")

#: Seconds that a client has to take the last bytes.
_CLOSE_S: Final = 5.0
#: Bytes that Proton is asked to send at once.
_PIECE: Final = 65_536


class Handler(Protocol):
    """What a connection does."""

    def on_event(self, event: Event) -> None:
        """Take an event of Proton."""

    def on_writable(self) -> None:
        """The socket takes more bytes again."""

    def on_lost(self) -> None:
        """The socket is closed. Called once."""


class Engine(asyncio.Protocol):
    """The protocol engine of one connection. Everything happens in one event loop."""

    def __init__(
        self,
        options: GatewaySettings,
        handler: Callable[[Engine], Handler],
        *,
        counts: Counts,
        checking: Executor,
        admit: Callable[[Engine], bool],
        ended: Callable[[Engine], None],
    ) -> None:
        """`handler` makes the connection's handler when its client has authenticated.

        `counts` are the gateway's. Passwords are checked in `checking`. `admit` says whether there is room
        for one more connection, `ended` is called when its socket is closed.
        """
        self._options = options
        self.counts = counts
        self._passwords = checking
        self._admit = admit
        self._ended = ended
        self._make_handler = handler
        self._handler: Handler | None = None
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport | None = None
        self._sasl: SaslServer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._handshake: asyncio.TimerHandle | None = None
        self._collector = Collector()
        self.connection = proton.Connection()
        self.connection.collect(self._collector)
        self._pn = Transport(Transport.SERVER)
        self._pn.max_frame_size = options.most_frame_bytes
        self._pn.channel_max = options.most_sessions - 1
        self._pn.idle_timeout = options.idle_timeout
        self._processing = False
        #: whether a password is being checked
        self._checking = False
        self._scheduled = False
        #: whether the socket takes bytes without keeping them in memory
        self.writable = True
        #: whether the connection ends: what the client sends is not read any more
        self._ending = False
        self._opened = False
        #: the user that has authenticated
        self.user: str | None = None
        #: who the client is, for the log: `peer` (its address), `user`, `client_id`
        self.ids: dict[str, str] = {}
        self.lost = False

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with SASL."""
        self._socket = cast("asyncio.Transport", transport)
        host = self._socket.get_extra_info("peername") or ("?",)
        self.ids["peer"] = ":".join(map(str, host[:2]))
        if not self._admit(self):
            self.counts.refused_connections += 1
            self.fail("there are too many connections")
            return
        self._sasl = SaslServer(
            anonymous=self._options.anonymous,
            passwords=self._options.check_password is not None,
            certificate_name=_common_name(self._socket),
        )
        self._handshake = self._loop.call_later(self._options.handshake_timeout, self._late)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        if self.lost or self._ending:  # TLS may still have some after it was closed
            return
        if self._sasl is not None:
            try:
                data = self._authenticate(self._sasl, data)
            except ProtocolError as error:
                self.fail(f"{error}")
                return
        if self._sasl is None and data:
            self._push(data)
            self.process()

    def eof_received(self) -> bool:
        """The client sends nothing more: the connection ends."""
        return False

    def pause_writing(self) -> None:
        """The socket keeps bytes in memory."""
        self.writable = False

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self.writable = True
        self.process()
        if self._handler is not None:
            self._handler.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio gives it
        """The socket is closed."""
        if self.lost:
            return
        self.lost = True
        for timer in (self._timer, self._handshake):
            if timer is not None:
                timer.cancel()
        self._ended(self)
        if self._handler is not None:
            self._handler.on_lost()

    # -- authentication

    def _authenticate(self, sasl: SaslServer, data: bytes) -> bytes:
        """Go on with SASL; returns the bytes behind it."""
        try:
            sasl.feed(data)
        finally:
            self._write(sasl.take_out())
        if sasl.refused:
            self.counts.refused_connections += 1
            _log.warning("the credentials of a client are refused", extra=self.ids)
            self.fail("its credentials are refused")
            return b""
        if sasl.asked is not None and not self._checking:
            self._checking = True
            self.ids["user"] = plain(sasl.asked[0])
            asked = self._loop.run_in_executor(self._passwords, self._check, *sasl.asked)
            asked.add_done_callback(self._checked)
        if not sasl.done:
            return b""
        self.user, self._sasl = sasl.user, None
        if sasl.user is not None:
            self.ids["user"] = plain(sasl.user)
        self._pn.bind(self.connection)
        self._handler = self._make_handler(self)
        return sasl.take_rest()

    def _check(self, user: str, password: str) -> bool:
        """Check a password, in another thread: it takes long on purpose."""
        check = self._options.check_password
        return check is not None and check(user, password)

    def _checked(self, check: asyncio.Future[bool]) -> None:
        if self.lost or self._ending or self._sasl is None:
            return
        error = None if check.cancelled() else check.exception()
        if error is not None:
            _log.error("a password could not be checked", exc_info=error, extra=self.ids)
        self._sasl.decide(accepted=not check.cancelled() and error is None and check.result())
        self.data_received(b"")

    def opened(self) -> bool:
        """The client has sent its open frame; returns whether it is the first one."""
        first, self._opened = not self._opened, True
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        return first

    def _late(self) -> None:
        self._handshake = None
        self.fail(f"it did not open a connection within {self._options.handshake_timeout:g} s")

    def fail(self, reason: str) -> None:
        """End the connection without a word of AMQP."""
        _log.info("the connection ends: %s", reason, extra=self.ids)
        self._end()

    def _end(self) -> None:
        """Close the socket; a client that does not take what is left is cut off."""
        if self._socket is None or self._ending:
            return
        self._ending = True
        self._socket.close()
        self._loop.call_later(_CLOSE_S, self.abort)

    # -- the engine

    def soon(self) -> None:
        """Process events and send bytes in the next round of the loop, once for many calls."""
        if not self._scheduled and not self.lost:
            self._scheduled = True
            self._loop.call_soon(self._process_scheduled)

    def _process_scheduled(self) -> None:
        self._scheduled = False
        self.process()

    def process(self) -> None:
        """Tell the events of the engine, and send its bytes."""
        if self._processing or self.lost:
            return
        self._processing = True
        try:
            self._tell()
            self._tick()  # before sending: it may have a heartbeat to send, or end a silent connection
            self._send()
            self._tell()
        finally:
            self._processing = False

    def _push(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            room = self._pn.capacity()
            if room <= 0:
                if room == 0:
                    self._tell()
                    room = self._pn.capacity()
                if room <= 0:
                    return  # the engine takes nothing more: it has met an error, or was closed
            self._pn.push(bytes(rest[:room]))
            rest = rest[room:]

    def _tell(self) -> None:
        handler, collector = self._handler, self._collector
        while (event := collector.peek()) is not None:
            if event.type == Event.TRANSPORT_ERROR:  # the client may not take the frame that says why
                self._loop.call_later(_CLOSE_S, self.abort)
            if handler is not None and not self._ending:
                try:
                    handler.on_event(event)
                except Exception:  # noqa: BLE001 - any defect: other connections go on
                    _log.exception("the connection met a defect", extra=self.ids)
                    self.abort()
            collector.pop()

    def _send(self) -> None:
        while self.writable and (pending := self._pn.pending()) > 0:
            data = self._pn.peek(min(pending, _PIECE))
            if not data:
                break
            self._write(bytes(data))
            self._pn.pop(len(data))
            self._tell()
        if self._pn.pending() < 0:  # all was sent, and the connection is closed
            self._end()

    def _write(self, data: bytes) -> None:
        if data and self._socket is not None and not self._socket.is_closing():
            self._socket.write(data)

    def _tick(self) -> None:
        """Keep the clock of the engine: it sends heartbeats, and ends a connection that is silent."""
        now = time.monotonic()
        due = self._pn.tick(now)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due > 0 and not self.lost:
            self._timer = self._loop.call_later(max(due - now, 0.01), self.process)

    def abort(self) -> None:
        """Close the socket at once."""
        if self._socket is not None:
            self._socket.abort()


def _common_name(transport: asyncio.Transport) -> str | None:
    """Return the common name in the client's certificate, which TLS has verified; None: it has none."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return None
    for part in certificate.get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return str(value)
    return None
