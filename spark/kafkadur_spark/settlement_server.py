"""Where the sinks of a driver hand in what their batches say: a socket on this machine's loopback.

Spark commits a batch of a Python sink in a process of its own beside the driver. That process sends the
settlement server's secret and the verdicts, in JSON, one line each, and waits for the answer: how much was
settled, or why nothing was. A caller that does not know the secret gets no answer.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable, Sequence

from kafkadur_sharing.errors import IllegalState, KafkadurError, LeaseLost
from kafkadur_spark.dispositions import Disposition, Said

_log = logging.getLogger("kafkadur.spark")

#: Longest line, bytes: about a million stretches.
_LONGEST = 64 * 1024 * 1024
#: Seconds to find the settlement server, and to say its secret.
_CONNECT_S = 10.0
_ENCODING = "utf-8"

#: Settles a batch: its number, what was said of it, and whether all else of it is settled, too.
Settle = Callable[[int, Sequence[Said], bool], int]


class SettlementServer:
    """Takes what the sinks of a reading hand in, until its holder lets go."""

    def __init__(self, settle: Settle) -> None:
        """`settle` is called in threads of the settlement server; what it raises is told to the sink."""
        self.secret = secrets.token_hex(32)
        secret = self.secret

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.connection.settimeout(_CONNECT_S)
                told = self.rfile.readline(len(secret) + 2).strip()
                self.connection.settimeout(None)
                if hmac.compare_digest(told, secret.encode()):
                    self.wfile.write(_answer(self.rfile.readline(_LONGEST + 1), settle))

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="kafkadur-settlement-server", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it is, as host:port."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """Take nothing more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _answer(line: bytes, settle: Settle) -> bytes:
    """What is answered to one line: a JSON object."""
    try:
        answer = {"settled": settle(*_asked(line))}
    except KafkadurError as error:
        _log.warning("a batch is not settled: %s", error)
        return _line({"error": str(error), "lost": isinstance(error, LeaseLost)})
    except Exception as error:  # noqa: BLE001 - the sink raises it
        _log.exception("a batch is not settled")
        return _line({"error": repr(error), "lost": False})
    return _line(answer)


def _asked(line: bytes) -> tuple[int, list[Said], bool]:
    """What is handed in: a batch, what was said of it, and whether all else is settled."""
    if not line.endswith(b"\n"):
        raise _too_much(len(line))
    asked = json.loads(line)
    said = [Said(p, start, end, Disposition(what), why) for p, start, end, what, why in asked["said"]]
    return asked["batch"], said, asked["all_else"]


def _too_much(size: int) -> IllegalState:
    return IllegalState(
        "A batch says more than a sink can hand in.",
        state=f"{size} bytes, at most {_LONGEST} can be",
        owner="the query",
        remedy='name the exceptions only, with the option unlisted="ack", or make the batches smaller with '
        "maxOffsetsPerTrigger",
    )


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode(_ENCODING) + b"\n"


def hand_in(address: str, secret: str, batch: int, said: Sequence[Said], *, all_else: bool) -> int:
    """Have the driver settle a batch; returns how many offsets were settled by it.

    `address` and `secret` are those of a settlement server. Raises `LeaseLost` if the subscription is not
    held any more or its driver is gone, and `IllegalState` if the batch was not settled for another reason.
    """
    host, _, port = address.rpartition(":")
    gone = LeaseLost(
        "The driver that holds the subscription is gone.",
        state=f"nobody answers at {address}",
        owner="the query",
        remedy="start the query again: it reads what is not settled",
    )
    line = _line({"batch": batch, "said": said, "all_else": all_else})
    if len(line) > _LONGEST:
        raise _too_much(len(line))
    try:
        with socket.create_connection((host, int(port)), _CONNECT_S) as connection:
            connection.settimeout(None)  # the driver has bounds of its own
            connection.sendall(secret.encode() + b"\n" + line)
            with connection.makefile("rb") as file:
                answered = file.readline()
    except OSError as error:
        raise gone from error
    if not answered:
        raise gone
    answer = json.loads(answered)
    if "error" in answer:
        kind = LeaseLost if answer["lost"] else IllegalState
        raise kind(answer["error"])
    return int(answer["settled"])
