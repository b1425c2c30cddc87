"""``up``, ``status`` and ``down``: a stack that outlives the command that started it, and its state file.

The supervisor of such a stack holds a lock on a file in the stack's folder while it runs. The lock tells
reliably whether the stack runs; a pid can be reused, and a state file can be stale.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from confluent_kafka import KafkaException

from kafkadur.stack.errors import StackError, file_error
from kafkadur.stack.jars import Progress
from kafkadur.stack.kafka import distribution, quiet_admin
from kafkadur.stack.stack import Plan, launch, prepare_logs, silent
from kafkadur.stack.supervision import GRACE_S, LockedError, Supervisor
from kafkadur.stack.valkey import answers

#: Default folder of the state, relative to the current folder.
FOLDER = Path(".kafkadur")

STATE, LOCK, DATA, LOGS = "state.json", "supervisor.lock", "data", "logs"

#: Seconds a server may take to answer a question about its state.
ASK_S = 2.0

POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class RunningStack:
    """The addresses of a stack started by :func:`up`; the content of its state file."""

    #: Bootstrap servers.
    kafka: str
    #: URL of Valkey.
    redis: str
    #: URL of the replica, None without one.
    replica_redis: str | None
    #: Number of brokers.
    brokers: int
    #: Folders of the data and of the logs, absolute.
    data: str
    logs: str
    #: Process id of the supervisor.
    pid: int
    #: Start of the stack, seconds since 1970.
    started: float


@dataclass(frozen=True, kw_only=True)
class StackStatus:
    """The result of :func:`status`."""

    #: The stack, None if none runs.
    stack: RunningStack | None
    #: Whether Kafka and Valkey answer now.
    kafka_answers: bool = False
    redis_answers: bool = False


def up(
    folder: Path = FOLDER,
    *,
    brokers: int = 1,
    replica: bool = False,
    data: Path | None = None,
    kafka_port: int | None = None,
    valkey_port: int | None = None,
    progress: Progress | None = None,
) -> RunningStack:
    """Start a stack that outlives this process, or return the one that already runs from ``folder``.

    ``folder`` takes state, data and logs; ``data`` is another folder for data and logs, which :func:`down`
    does not remove. The other parameters are those of :func:`embedded`. Raises StackError like
    :func:`embedded`, and if a different stack runs here.
    """
    folder = folder.absolute()
    plan = Plan(brokers=brokers, replica=replica, kafka_port=kafka_port, valkey_port=valkey_port)
    if (running := _running(folder)) is not None:
        return _same(running, plan)
    parts = distribution(progress or silent)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            supervisor = Supervisor(temporary=False, lock=folder / LOCK)
        except LockedError:
            if (running := _running(folder)) is not None:
                return _same(running, plan)
            raise StackError(
                f"Another command is starting a stack in {folder}; wait for it and try again."
            ) from None
        with ExitStack() as undo:
            undo.callback(_remove, folder)
            undo.callback(supervisor.close)
            place = data.absolute() if data else folder / DATA
            stack = launch(
                plan, supervisor, parts, data=place, logs=prepare_logs(data.absolute() if data else folder),
                progress=progress or silent, running=undo,
            )  # fmt: skip
            running = RunningStack(
                kafka=stack.kafka,
                redis=stack.redis,
                replica_redis=stack.replica.url if stack.replica else None,
                brokers=brokers,
                data=str(stack.data),
                logs=str(stack.logs),
                pid=supervisor.pid,
                started=time.time(),
            )
            unfinished = folder / f"{STATE}.new"
            unfinished.write_text(json.dumps(asdict(running), indent=2) + "\n")
            unfinished.replace(folder / STATE)
            supervisor.detach()
            undo.pop_all()
    except OSError as error:
        raise file_error(error, folder) from error
    return running


def status(folder: Path = FOLDER) -> StackStatus:
    """Return the stack that runs from ``folder`` and whether its servers answer now. Raises StackError."""
    running = _running(folder.absolute())
    if running is None:
        return StackStatus(stack=None)
    try:
        kafka_answers = len(quiet_admin(running.kafka).list_topics(timeout=ASK_S).brokers) > 0
    except KafkaException:
        kafka_answers = False
    return StackStatus(stack=running, kafka_answers=kafka_answers, redis_answers=answers(running.redis))


def down(folder: Path = FOLDER) -> bool:
    """Stop the stack that runs from ``folder`` and remove the files of :func:`up`; return whether one ran.

    A ``data`` folder given to :func:`up` stays. Raises StackError if the stack does not stop.
    """
    folder = folder.absolute()
    pid = _holder(folder / LOCK)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 2 * GRACE_S
        while _holder(folder / LOCK) is not None:
            if time.monotonic() > deadline:
                raise StackError(f"The stack in {folder} does not stop; end process {pid} and try again.")
            time.sleep(POLL_S)
    _remove(folder)
    return pid is not None


def _same(running: RunningStack, plan: Plan) -> RunningStack:
    if (running.brokers, running.replica_redis is not None) != (plan.brokers, plan.replica):
        raise StackError(
            f"A stack of another shape runs here: {running.brokers} broker(s), process {running.pid}. "
            "Stop it first: kafkadur down."
        )
    for what, address in (
        ("Kafka", running.kafka.partition(",")[0]),
        ("Valkey", urlsplit(running.redis).netloc),
    ):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=ASK_S).close()
        except OSError as error:
            raise StackError(
                f"A stack runs here, but its {what} at {address} does not answer "
                f"({error.strerror or error}); its logs are in {running.logs}. "
                "Stop it and start again: kafkadur down, kafkadur up."
            ) from error
    return running


def _running(folder: Path) -> RunningStack | None:
    """Return the stack of a running supervisor; None if there is none or it is still starting."""
    pid = _holder(folder / LOCK)
    if pid is None:
        return None
    try:
        running = RunningStack(**json.loads((folder / STATE).read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise StackError(
            f"{folder / STATE} is not readable: {error}. Stop the stack with: kafkadur down."
        ) from error
    # With another pid it is the state file of a stack that was killed, and a supervisor is just starting.
    return running if running.pid == pid else None


def _holder(lock: Path) -> int | None:
    """Return the pid of the process that holds a lock file, None if no process holds it."""
    try:
        with lock.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # The holder writes its pid right after it has locked.
                while not (text := file.read()):
                    file.seek(0)
                return int(text)
            return None
    except FileNotFoundError:
        return None


def _remove(folder: Path) -> None:
    """Remove the files of :func:`up` in its folder, and the folder if it is empty then."""
    for name in (DATA, LOGS):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (STATE, f"{STATE}.new", LOCK):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
