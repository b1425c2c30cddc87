"""The process between an application and its embedded servers: it starts them and ends them with the owner.

:mod:`kafkadur.stack.supervision` runs it as a script and holds the other ends of its two pipes. It imports
only the standard library, so that it starts in a few milliseconds.

It is a separate process because the servers must end however their owner ends, SIGKILL included. The kernel
closes the owner's end of the pipe in every such case, and this process then stops the servers and removes the
temporary folder. It is the leader of a new session, so a Ctrl-C in the owner's terminal reaches only the
owner, which can then end in order.

Each request is a line with a JSON object on standard input. The reply is a line on standard output, with the
same ``id``:

``{"op": "start", "name": s, "argv": [s], "output": path}``  ->  ``{"pid": n}``
``{"op": "signal", "name": s, "number": n}``                 ->  ``{}``
``{"op": "poll", "name": s}``                                ->  ``{"code": n or null}``
``{"op": "hold", "ports": [n]}``                             ->  ``{}``; see ``ports.py``
``{"op": "detach"}``                                         ->  ``{}``; from now on SIGTERM ends it, not
the end of the pipe. Every request that fails is answered by ``{"error": text, "errno": n or null}``.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

#: Seconds between two checks of the parent's pid. The end of the pipe is noticed at once; the pid covers an
#: owner that has forked, because its child still holds the pipe open.
PARENT_CHECK_S = 0.5

#: ``PR_SET_PDEATHSIG`` of ``<sys/prctl.h>``.
PDEATHSIG = 1

#: Loaded before any fork: a child should do as little as possible between fork and exec.
LIBC = ctypes.CDLL(None)


class Supervisor:
    """The servers of one stack and their temporary folder."""

    def __init__(self, *, parent: int, grace: float, temporary: str | None) -> None:
        """Watch ``parent`` (a pid); allow ``grace`` seconds for an orderly end; remove ``temporary`` then."""
        self._parent = parent
        self._grace = grace
        self._temporary = temporary
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._held: list[socket.socket] = []
        self._attached = True

    def serve(self) -> None:
        """Answer requests until the owner is gone (attached) or SIGTERM arrives (always)."""
        buffer = bytearray()
        while True:
            if not self._attached:
                signal.pause()
                continue
            readable, _, _ = select.select([0], [], [], PARENT_CHECK_S)
            if os.getppid() != self._parent:
                return
            if not readable:
                continue
            chunk = os.read(0, 1 << 16)
            if not chunk:
                return
            buffer += chunk
            while (end := buffer.find(b"\n")) >= 0:
                request = json.loads(buffer[:end])
                del buffer[: end + 1]
                answer({"id": request["id"], **self._handle(request)})

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            match request["op"]:
                case "start":
                    return self._start(request["name"], request["argv"], request["output"])
                case "signal":
                    self._servers[request["name"]].send_signal(request["number"])
                case "poll":
                    return {"code": self._servers[request["name"]].poll()}
                case "hold":
                    self._hold(request["ports"])
                case "detach":
                    self._attached = False
                case unknown:
                    return {"error": f"unknown request {unknown!r}", "errno": None}
        except OSError as error:
            return {"error": error.strerror or str(error), "errno": error.errno}
        return {}

    def _start(self, name: str, argv: list[str], output: str) -> dict[str, Any]:
        with open(output, "ab") as log:  # noqa: PTH123 - pathlib would double this process' start-up time
            self._servers[name] = subprocess.Popen(  # noqa: S603 - built by kafkadur itself
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_supervisor,  # noqa: PLW1509 - this process has one thread
            )
        return {"pid": self._servers[name].pid}

    def _hold(self, ports: list[int]) -> None:
        """Hold the UDP ports of these numbers, except those that other programs use."""
        for port in ports:
            held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                held.bind(("127.0.0.1", port))
            except OSError:
                held.close()
            else:
                self._held.append(held)

    def end(self) -> None:
        """Stop every server, in order unless its data are temporary, and remove the temporary folder."""
        running = [server for server in self._servers.values() if server.poll() is None]
        for server in running:
            # A server frozen by SIGSTOP would never see SIGTERM.
            server.send_signal(signal.SIGKILL if self._temporary else signal.SIGTERM)
            server.send_signal(signal.SIGCONT)
        # All servers were signalled at the same time, so one time-out is enough for all of them.
        with contextlib.suppress(subprocess.TimeoutExpired):
            for server in running:
                server.wait(self._grace)
        for server in running:
            server.kill()
            server.wait()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)


def die_with_supervisor() -> None:
    """Have the kernel kill a server whose supervisor was killed; only Linux can do so."""
    if sys.platform == "linux":
        LIBC.prctl(PDEATHSIG, signal.SIGKILL)


def end_orderly(_number: int, _frame: object) -> None:
    """Turn SIGTERM into an exception, so that the clean-up runs."""
    sys.exit(0)


def answer(reply: dict[str, Any]) -> None:
    """Send one line to the owner; :meth:`Supervisor.serve` notices an owner that is gone."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(reply).encode() + b"\n")


def main() -> None:
    """Read the options (one JSON object, the only argument), greet, serve, and clean up in every case."""
    options = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, end_orderly)
    if options["lock"]:
        # Held while this process runs: so `status` and `down` know that the pid in the file is valid.
        held = os.open(options["lock"], os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            answer({"error": "locked", "errno": None})
            return
        os.ftruncate(held, 0)
        os.write(held, str(os.getpid()).encode())
    try:
        temporary = tempfile.mkdtemp(prefix="kafkadur-") if options["temporary"] else None
    except OSError as error:
        answer({"error": error.strerror or str(error), "errno": error.errno})
        return
    supervisor = Supervisor(parent=options["parent"], grace=options["grace"], temporary=temporary)
    try:
        answer({"pid": os.getpid(), "temporary": temporary})
        supervisor.serve()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        supervisor.end()


if __name__ == "__main__":
    main()
