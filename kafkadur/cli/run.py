"""`kafkadur run`: a worker, its port and its logs; with --reload a process that restarts it."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafkadur.cli.call import FAILED, Call, command, missing_extra
from kafkadur.monitoring.logs import LogFormat, LogLevel, announce, log_to_stderr
from kafkadur.service.access import in_url
from kafkadur.worker.ending import Ending, end_early, leave
from kafkadur.worker.loading import load
from kafkadur.worker.worker import Worker
from kafkadur_sharing.errors import IllegalState

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from kafkadur.settings import Settings

_PANEL = "Worker"
#: Seconds after its deadline until --reload kills a worker.
_GRACE_S = 10

_log = logging.getLogger("kafkadur.worker")


TargetArgument = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The app, as in billing.handlers:app.")
]
HostOption = Annotated[str, typer.Option("--host", help="Address of the port.", rich_help_panel=_PANEL)]
PortOption = Annotated[
    int,
    typer.Option(
        "--port", min=0, max=65535, rich_help_panel=_PANEL,
        help="Port of /livez, /readyz and /metrics; 0: any free port.",
    ),
]  # fmt: skip
DeadlineOption = Annotated[
    float,
    typer.Option(
        "--deadline", min=0, max=86_400, metavar="SECONDS", rich_help_panel=_PANEL,
        help="Time that handlers have to end after a stop; then their messages are given back.",
    ),
]  # fmt: skip
SilenceOption = Annotated[
    float,
    typer.Option(
        "--silence", min=1, metavar="SECONDS", rich_help_panel=_PANEL,
        help="/livez fails if the event loop has not run for longer.",
    ),
]  # fmt: skip
FolderOption = Annotated[
    Path,
    typer.Option(
        "--app-dir", exists=True, file_okay=False, rich_help_panel=_PANEL,
        help="The first folder in which the module is searched.",
    ),
]  # fmt: skip
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format", metavar="|".join(LogFormat), help="Format of the log.", rich_help_panel=_PANEL
    ),
]
LogLevelOption = Annotated[
    LogLevel,
    typer.Option(
        "--log-level", metavar="|".join(LogLevel), rich_help_panel=_PANEL,
        help="Lowest level that is logged.",
    ),
]  # fmt: skip
ReloadOption = Annotated[
    bool,
    typer.Option(
        "--reload", rich_help_panel=_PANEL,
        help="For development: restart when a Python file of the folder changes.",
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
    """Run the handlers of an app until SIGTERM or Ctrl-C; then they end, and other messages are given back.

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

        from kafkadur.monitoring.probes import Pages, ProbePort  # noqa: PLC0415

        log_to_stderr(log_format, log_level)
        # Without this call each counter has a useless second series.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
    except ImportError as error:
        raise missing_extra("A worker needs the packages of its extra.", error, "worker") from error
    worker = _worker(target, folder, settings, timedelta(seconds=deadline), REGISTRY)
    pages = Pages(worker, REGISTRY, silence=timedelta(seconds=silence))
    with ProbePort(pages, host, port) as served:
        said = f"Worker of {target}: http://{in_url(host)}:{served.port}/readyz"
        if log_format is LogFormat.JSON:
            announce(_log, said)
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
    worker = Worker(app, settings, deadline=deadline, measure=measures.handling)
    registry.register(MemberMetrics(settings.namespace, worker.serving))
    return worker


async def _until_stopped(worker: Worker, ending: Ending) -> None:
    """Run the worker until a signal, or until it fails; raise the error it fails with."""
    ending.listen(asyncio.get_running_loop())
    try:
        await worker.run(ending.began)
    except BaseException as error:
        ending.stopped(FAILED, error)
        raise
    ending.stopped(FAILED if worker.given_up else 0)


def _reloading(folder: Path, deadline: float) -> None:
    """Run this command without --reload, and again whenever a Python file of the folder changes."""
    try:
        from watchfiles import PythonFilter, watch  # noqa: PLC0415 - of the extra
    except ImportError as error:
        raise missing_extra("--reload needs watchfiles.", error, "worker") from error
    command = [sys.executable, "-m", "kafkadur.cli", *(each for each in sys.argv[1:] if each != "--reload")]
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    def begin() -> subprocess.Popen[bytes]:
        # In a session of its own: only this process gets Ctrl-C, and it stops the worker once.
        return subprocess.Popen(command, start_new_session=True)  # noqa: S603 - this same command

    process = begin()
    try:
        for _ in watch(folder, watch_filter=PythonFilter(), stop_event=stop, raise_interrupt=False):
            _end(process, deadline)
            process = begin()
    finally:
        _end(process, deadline)


def _end(process: subprocess.Popen[bytes], deadline: float) -> None:
    """Stop a worker in order; kill it if it does not end in time."""
    process.terminate()
    try:
        process.wait(deadline + _GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
