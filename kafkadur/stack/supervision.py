"""The owner's side of a supervisor process (``supervisor.py``): start it, send it requests, end it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from kafkadur.stack.errors import StackError, file_error

#: Seconds an orderly end of all servers may take before they are killed.
GRACE_S = 15.0

SCRIPT = Path(__file__).with_name("supervisor.py")


class LockedError(StackError):
    """Another supervisor holds the lock file."""


class Supervisor:
    """A supervisor process and the servers it runs.

    Thread-safe; a forked child must not use it and cannot end it.
    """

    def __init__(self, *, temporary: bool, lock: Path | None = None, output: Path | None = None) -> None:
        """Start the process.

        With ``temporary`` it creates a folder that it removes at the end, and kills servers instead of
        stopping them. ``lock`` is a file that it holds locked while it runs. ``output`` takes its standard
        error. Raises StackError if it cannot create the temporary folder, LockedError if ``lock`` is held.
        """
        options = {
            "parent": os.getpid(),
            "grace": GRACE_S,
            "temporary": temporary,
            "lock": str(lock.resolve()) if lock else None,
        }
        with contextlib.ExitStack() as files:
            stderr = files.enter_context(output.open("ab")) if output else subprocess.DEVNULL
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own script
                [sys.executable, "-I", "-S", str(SCRIPT), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                cwd="/",
            )
        self._owner = os.getpid()
        self._mutex = threading.Lock()
        self._requests = 0
        try:
            greeting = self._read()
        except BaseException:
            self.close()
            raise
        if greeting.get("error"):
            self.close()
            if greeting["error"] == "locked":
                raise LockedError(
                    f"{lock} is held by another kafkadur process; use that stack or stop it first."
                )
            raise StackError(
                f"Cannot make a temporary folder: {greeting['error']}. Free space or set TMPDIR."
            )
        #: Process id of the supervisor.
        self.pid: int = greeting["pid"]
        #: The folder that is removed at the end, None if none was asked for.
        self.temporary = Path(greeting["temporary"]) if greeting["temporary"] else None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def start(self, name: str, argv: Sequence[str], output: Path) -> int:
        """Start a server and return its pid; its output is appended to ``output``. Raises StackError."""
        reply = self._ask(op="start", name=name, argv=list(argv), output=str(output))
        if reply.get("error"):
            raise file_error(OSError(reply["errno"], reply["error"]), output)
        return int(reply["pid"])

    def hold(self, ports: Sequence[int]) -> None:
        """Keep other stacks from choosing these ports, until the supervisor ends."""
        self._ask(op="hold", ports=list(ports))

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a server that has not ended."""
        self._ask(op="signal", name=name, number=int(number))

    def exit_code(self, name: str) -> int | None:
        """Return a server's exit code (negative: the signal that killed it), None while it runs."""
        code = self._ask(op="poll", name=name)["code"]
        return None if code is None else int(code)

    def detach(self) -> None:
        """Let the servers outlive this process; from now on only SIGTERM to the supervisor ends them."""
        self._ask(op="detach")
        with self._mutex:
            self._close_pipes()
            # The supervisor goes on; without this, Popen would warn that no process waited for it.
            self._process.returncode = 0

    def close(self) -> None:
        """End all servers and the supervisor and wait for it. Idempotent; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        with self._mutex:
            self._close_pipes()
            try:
                self._process.wait(GRACE_S * 2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _ask(self, **request: object) -> dict[str, Any]:
        with self._mutex:
            pipe = self._process.stdin
            if pipe is None or pipe.closed:
                raise StackError("The embedded stack has been stopped; start a new one.")
            self._requests += 1
            try:
                pipe.write(json.dumps({"id": self._requests, **request}).encode() + b"\n")
                pipe.flush()
            except BrokenPipeError:
                raise _gone() from None
            # A Ctrl-C may have left the reply to an earlier request unread.
            while (reply := self._read())["id"] != self._requests:
                pass
            return reply

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else b""
        if not line:
            raise _gone()
        reply: dict[str, Any] = json.loads(line)
        return reply


def _gone() -> StackError:
    return StackError(
        "The supervisor of the embedded stack was killed, and its servers with it; start the stack again."
    )
