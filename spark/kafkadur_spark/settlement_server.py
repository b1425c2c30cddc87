"""The server to which the sinks of a driver send the verdicts on their batches: a socket on the loopback.

Spark commits a batch of a Python sink in a process of its own beside the driver. That process sends the
secret of the settlement server and the verdicts, in JSON, one line each, and waits for the answer: how many
offsets were settled, or why none was. A caller that does not know the secret gets no answer.
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
#: Seconds within which a connection must be made, and within which the secret must arrive.
_CONNECT_S = 10.0

#: Settles a batch, given its number, the verdicts, and whether all other offsets of it are settled, too.
Settle = Callable[[int, Sequence[Said], bool], int]


class SettlementServer:
    """Receives verdicts from the sinks of a reading until it is closed."""

    def __init__(self, settle: Settle) -> None:
        """Threads of the settlement server call `settle`; the sink gets the error that it raises."""
        self.secret = secrets.token_hex(32)
        secret = self.secret.encode()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.connection.settimeout(_CONNECT_S)
                told = self.rfile.readline(len(secret) + 2).strip()
                self.connection.settimeout(None)
                if hmac.compare_digest(told, secret):
                    self.wfile.write(_line(_answer(self.rfile.readline(_LONGEST + 1), settle)))

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        #: as host:port
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="kafkadur-settlement-server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _answer(line: bytes, settle: Settle) -> dict[str, object]:
    """Settle the batch in a line; return the number of settled offsets, or the error."""
    try:
        _check_size(line)
        asked = json.loads(line)
        said = [Said(p, start, end, Disposition(what), why) for p, start, end, what, why in asked["said"]]
        return {"settled": settle(asked["batch"], said, asked["all_else"])}
    except KafkadurError as error:
        _log.warning("a batch is not settled: %s", error)
        return {"error": str(error), "lost": isinstance(error, LeaseLost)}
    except Exception as error:  # noqa: BLE001 - the sink raises it
        _log.exception("a batch is not settled")
        return {"error": repr(error), "lost": False}


def _check_size(line: bytes) -> None:
    if len(line) > _LONGEST:
        raise IllegalState(
            "A batch says more than a sink can hand in.",
            state=f"{len(line)} bytes, at most {_LONGEST} can be",
            owner="the query",
            remedy='name the exceptions only, with the option unlisted="ack", or make the batches smaller '
            "with maxOffsetsPerTrigger",
        )


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def hand_in(address: str, secret: str, batch: int, said: Sequence[Said], *, all_else: bool) -> int:
    """Have the driver settle a batch; return the number of offsets that were settled.

    `address` and `secret` are those of a settlement server. Raises `LeaseLost` if the driver has lost the
    subscription or is gone, and `IllegalState` if the batch was not settled for another reason.
    """
    host, _, port = address.rpartition(":")
    gone = LeaseLost(
        "The driver that holds the subscription is gone.",
        state=f"nobody answers at {address}",
        owner="the query",
        remedy="start the query again: it reads the unsettled messages",
    )
    line = _line({"batch": batch, "said": said, "all_else": all_else})
    _check_size(line)
    try:
        with socket.create_connection((host, int(port)), _CONNECT_S) as connection:
            connection.settimeout(None)  # the driver limits the time itself
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
