"""`kafkadur run`: a worker, its port and its logs; and with --reload a process that starts it anew."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafkadur.cli.call import FAILED, Call, command
from kafkadur.worker.ending import Ending, end_early, leave
from kafkadur.worker.loading import load
from kafkadur.worker.worker import Worker
from kafkadur_sharing.errors import IllegalState

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from kafkadur.settings import Settings

_PANEL = "Worker"
#: Seconds that a worker started anew by --reload has on top of its deadline before it is killed.
_GRACE_S = 10


_log = logging.getLogger("kafkadur.worker")


class LogFormat(StrEnum):
    """How log records are written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """From which level on."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


TargetArgument = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The app, as in billing.handlers:app.")
]
HostOption = Annotated[str, typer.Option("--host", help="Address of the port.", rich_help_panel=_PANEL)]
PortOption = Annotated[
    int,
    typer.Option(
        "--port", min=0, max=65535, rich_help_panel=_PANEL,
        help="Port of /livez, /readyz and /metrics; 0: any that is free.",
    ),
]  # fmt: skip
DeadlineOption = Annotated[
    float,
    typer.Option(
        "--deadline", min=0, max=86_400, metavar="SECONDS", rich_help_panel=_PANEL,
        help="How long handlers may take to end when it is stopped; then what they hold is given back.",
    ),
]  # fmt: skip
SilenceOption = Annotated[
    float,
    typer.Option(
        "--silence", min=1, metavar="SECONDS", rich_help_panel=_PANEL,
        help="A loop that has not run for longer makes /livez fail.",
    ),
]  # fmt: skip
FolderOption = Annotated[
    Path,
    typer.Option(
        "--app-dir", exists=True, file_okay=False, rich_help_panel=_PANEL,
        help="Where the module is looked for first.",
    ),
]  # fmt: skip
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="How it logs.", rich_help_panel=_PANEL)
]
LogLevelOption = Annotated[
    LogLevel, typer.Option("--log-level", help="What it logs.", rich_help_panel=_PANEL)
]
ReloadOption = Annotated[
    bool,
    typer.Option(
        "--reload", rich_help_panel=_PANEL,
        help="For development: start anew when a Python file of the folder changes.",
    ),
]  # fmt: skip


@command
def run(
    call: Call,
    target: TargetArgument,
    *,
    host: HostOption = "127.0.0.1",
    port: PortOption = 9465,
    deadline: DeadlineOption = 25.0,
    silence: SilenceOption = 30.0,
    app_dir: FolderOption = Path(),
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    reload: ReloadOption = False,
) -> None:
    """Run the handlers of an app until SIGTERM or Ctrl-C; then they end, and the rest is given back.

    Exit status 0: stopped, and every handler ended; 1: failed, or handlers were at work at the deadline.
    """
    folder = app_dir.resolve()
    if math.isnan(deadline) or math.isnan(silence):
        raise IllegalState("--deadline and --silence are numbers of seconds.", remedy="give numbers")
    if reload:
        _reloading(folder, deadline)
        return
    signal.signal(signal.SIGTERM, end_early)
    settings = call.settings()
    try:
        from prometheus_client import REGISTRY, disable_created_metrics  # noqa: PLC0415 - of the extra

        from kafkadur.worker.health import HealthPort, Pages  # noqa: PLC0415
        from kafkadur.worker.logs import log_to_stderr  # noqa: PLC0415

        log_to_stderr(log_format.value, log_level.value)
        # a second series for each counter, which is of no use
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
    except ImportError as error:
        raise IllegalState(
            "A worker needs what belongs to its extra.",
            state=str(error),
            owner="this Python",
            remedy="pip install 'kafkadur[worker]'",
        ) from error
    worker = _worker(target, folder, settings, timedelta(seconds=deadline), REGISTRY)
    pages = Pages(worker, REGISTRY, silence=timedelta(seconds=silence))
    with HealthPort(pages, host, port) as served:
        where = f"[{host}]" if ":" in host else host
        said = f"Worker of {target}: http://{where}:{served.port}/readyz"
        if log_format is LogFormat.JSON:
            _log.info("%s", said)
        else:
            call.out.say(f"{said}; Ctrl-C ends it.")
        asyncio.run(_until_stopped(worker, Ending(worker.stop, deadline)))
    if worker.given_up:
        leave(FAILED)


def _worker(
    target: str, folder: Path, settings: Settings, deadline: timedelta, registry: CollectorRegistry
) -> Worker:
    from kafkadur.worker.measuring import HandlerMeasures, MemberMetrics  # noqa: PLC0415 - of the extra

    app = load(target, folder)
    measures = HandlerMeasures(registry, settings.namespace, app.declared)
    worker = Worker(app, settings, deadline=deadline, measures=measures)
    registry.register(MemberMetrics(settings.namespace, worker.serving))
    return worker


async def _until_stopped(worker: Worker, ending: Ending) -> None:
    """Run it until a signal, or until it fails; what it fails with is raised."""
    ending.listen(asyncio.get_running_loop())
    try:
        await worker.run(ending.began)
    except BaseException as error:
        ending.stopped(FAILED, error)
        raise
    ending.stopped(FAILED if worker.given_up else 0)


def _reloading(folder: Path, deadline: float) -> None:
    """Run this very command without --reload, and again whenever a Python file of the folder changes."""
    try:
        from watchfiles import PythonFilter, watch  # noqa: PLC0415 - of the extra
    except ImportError as error:
        raise IllegalState(
            "--reload needs watchfiles.",
            state=str(error),
            owner="this Python",
            remedy="pip install 'kafkadur[worker]'",
        ) from error
    command = [sys.executable, "-m", "kafkadur.cli", *(each for each in sys.argv[1:] if each != "--reload")]
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    def begin() -> subprocess.Popen[bytes]:
        # in a session of its own: Ctrl-C is ours, and it is told once
        return subprocess.Popen(command, start_new_session=True)  # noqa: S603 - this very command

    process = begin()
    try:
        for _ in watch(folder, watch_filter=PythonFilter(), stop_event=stop, raise_interrupt=False):
            _end(process, deadline)
            process = begin()
    finally:
        _end(process, deadline)


def _end(process: subprocess.Popen[bytes], deadline: float) -> None:
    """Have a worker stop in order, and kill it when it does not."""
    process.terminate()
    try:
        process.wait(deadline + _GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
