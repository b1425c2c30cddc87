"""The port of a worker or gateway: liveness, readiness, metrics. Served by threads of its own.

Therefore it still answers, and reports that the process is not live, if something blocks the event loop.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Protocol, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from kafkadur_sharing.errors import IllegalState

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_READY, _NOT_READY, _NOT_FOUND = "200 OK", "503 Service Unavailable", "404 Not Found"
_PAGES = "/livez, /readyz, /metrics"
#: Seconds after which a client that sends nothing is disconnected.
_PATIENCE_S = 10


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind; the base class would also look up a name of the address, and DNS can be slow."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Write nothing: probes come every few seconds."""


class Probed(Protocol):
    """A worker or gateway that is asked how it is, by any thread."""

    @property
    def silent(self) -> float:
        """Seconds since its event loop last showed that it runs."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it does its work."""
        ...

    def details(self) -> Mapping[str, Any]:
        """Return what else the page of readiness shows."""
        ...


class Pages:
    """The three pages, as a WSGI application."""

    def __init__(self, probed: Probed, registry: CollectorRegistry, *, silence: timedelta) -> None:
        """`silence`: a process whose event loop has not run for longer is not live."""
        self._probed = probed
        self._silence = silence.total_seconds()
        # Its annotation asks for a plain dictionary as environment.
        self._metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        page = {"/livez": self._live, "/readyz": self._ready}.get(path)
        good, told = page() if page is not None else (False, {"error": f"the pages are {_PAGES}"})
        status = _NOT_FOUND if page is None else _READY if good else _NOT_READY
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [json.dumps(told).encode() + b"\n"]

    def _live(self) -> tuple[bool, dict[str, Any]]:
        silent = self._probed.silent
        return silent <= self._silence, {"seconds_since_loop_ran": round(silent, 3)}

    def _ready(self) -> tuple[bool, dict[str, Any]]:
        details, ready = self._probed.details(), self._probed.ready
        return ready, {"ready": ready, **details}


class ProbePort:
    """Serves the pages while its context is entered."""

    def __init__(self, pages: Pages, host: str, port: int, *, option: str = "--port") -> None:
        """Listen; port 0: any free port. `option` names the port on the command line.

        Raises `IllegalState` if the port cannot be opened.
        """
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            server = _Server6 if family == socket.AF_INET6 else _Server
            self._server = make_server(host, port, pages, server_class=server, handler_class=_Handler)
        except OSError as error:
            raise IllegalState(
                "The port of probes and metrics cannot be opened.",
                state=str(error),
                owner=f"{host}:{port}",
                remedy=f"name a free port with {option}, or another address",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="kafkadur-probes", daemon=True
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_port

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
