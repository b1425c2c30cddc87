"""A handle on one server: stop, kill, freeze, and start it again on the same port with the same data."""

import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from kafkadur.stack.errors import StackError, disk_full, port_taken
from kafkadur.stack.ports import HOST, is_free
from kafkadur.stack.supervision import Supervisor

#: Seconds a server may take to answer after its start, and to end after SIGTERM.
START_LIMIT_S = 90.0
STOP_LIMIT_S = 30.0

#: Seconds between two looks at a server that starts or stops.
POLL_S = 0.02

#: Last lines of a log that are searched for the reason of a failed start.
TAIL_LINES = 400


class Server(ABC):
    """One server of a stack. All methods but `launch` wait for the result; not thread-safe."""

    def __init__(
        self, supervisor: Supervisor, *, name: str, ports: Sequence[int], logs: Path, data: Path
    ) -> None:
        """``name`` is unique in the stack, ``ports`` begin with that of clients, the rest are folders."""
        #: Name in the stack, for example ``broker-1``.
        self.name = name
        #: The loopback port it listens on (with a proxy: behind it).
        self.port = ports[0]
        #: Process id of the latest start, 0 before the first one.
        self.pid = 0
        #: The log file.
        self.log = logs / f"{name}.log"
        self._output = logs / f"{name}.out"
        self._supervisor = supervisor
        self._ports = ports
        self._folder = data

    @property
    def address(self) -> str:
        """``host:port`` of the server itself."""
        return f"{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the process runs; a frozen process runs, too."""
        return bool(self.pid) and self._supervisor.exit_code(self.name) is None

    def start(self) -> None:
        """Start it, on the same port and with its data, and wait until it answers. Does nothing if it runs.

        Raises PortTakenError if the port is in use, StackError for every other reason.
        """
        if not self.running:
            self.launch()
            self.wait_ready()

    def launch(self) -> None:
        """Start the process without waiting for it."""
        for port in self._ports:
            if not is_free(port):
                raise port_taken(port, self.name)
        if not self.pid:
            self._supervisor.hold(self._ports)
        for log in (self.log, self._output):
            # `_failure` searches these files for a reason; those of an earlier run must not be found.
            if log.exists():
                log.replace(log.with_name(log.name + ".1"))
        self._folder.mkdir(parents=True, exist_ok=True)
        self.pid = self._supervisor.start(self.name, self._command(), self._output)

    def wait_ready(self) -> None:
        """Wait until a launched server answers. Raises as :meth:`start`."""
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            if not self.running:
                raise self._failure("ended while starting")
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure(f"did not answer within {START_LIMIT_S:g} s")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it in order (SIGTERM); one that does not end within 30 s is killed."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Suspend the process (SIGSTOP), like a host that hangs, until :meth:`thaw`."""
        self._supervisor.signal(self.name, signal.SIGSTOP)
        # The signal returns before the threads on other cores stop, and they may still answer a client.
        while self.running and not self._is_suspended():
            time.sleep(POLL_S)

    def thaw(self) -> None:
        """Resume a frozen server."""
        self._supervisor.signal(self.name, signal.SIGCONT)

    def failure(self) -> StackError | None:
        """Return why it ended, as far as its logs say; None while it runs, and before its first start."""
        code = self._supervisor.exit_code(self.name) if self.pid else None
        if code is None:
            return None
        return self._failure(
            f"ended by itself, with status {code}" if code >= 0 else f"was ended by signal {-code}"
        )

    def _is_suspended(self) -> bool:
        """Whether no thread of the process runs, by their states in ``proc``."""
        try:
            stats = [stat.read_bytes() for stat in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        except OSError:  # a thread ended meanwhile
            return False
        return all(stat.rpartition(b")")[2].split()[0] == b"T" for stat in stats)

    def _end(self, number: signal.Signals) -> None:
        if not self.running:
            return
        self._supervisor.signal(self.name, number)
        self.thaw()
        deadline = time.monotonic() + STOP_LIMIT_S
        while self.running:
            if time.monotonic() > deadline:
                self._supervisor.signal(self.name, signal.SIGKILL)
            time.sleep(POLL_S)

    def _failure(self, what: str) -> StackError:
        tail = _tail(self._output) + _tail(self.log)
        if any("No space left on device" in line for line in tail):
            return disk_full(self._folder)
        if any("Address already in use" in line for line in tail):
            return port_taken(None, self.name)
        reasons = [
            line.strip()
            for line in tail
            if any(sign in line for sign in ("ERROR", "FATAL", "Error:", "# ")) and "WARNING" not in line
        ]
        reason = f": {reasons[-1][:300]}" if reasons else ""
        return StackError(
            f"{self.name} {what}{reason}. Its log, {self.log}, tells more; settle that and start again."
        )

    @abstractmethod
    def _command(self) -> list[str]:
        """Write the files that the server needs, and return its command line."""

    @abstractmethod
    def _answers(self) -> bool:
        """Ask the server whether it is ready; never raise because it is not."""


def _tail(file: Path) -> list[str]:
    try:
        with file.open(errors="replace") as lines:
            return list(deque(lines, TAIL_LINES))
    except OSError:
        return []
