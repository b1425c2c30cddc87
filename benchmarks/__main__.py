"""The command line of the benchmarks: ``python -m benchmarks <workload>``.

``python -m benchmarks spark``, ``growth`` and ``gateway`` measure in ways of their own: `spark.py`,
`growth.py`, `gateway`; ``plan`` calculates what an installation needs: `plan`.

Servers come from ``--kafka`` and ``--redis`` or, without them, from the embedded stack. The report goes to
stdout, progress to stderr. Exit status 0 when every run finished, 1 when one failed or was void, whatever the
goals say.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from confluent_kafka import KafkaException
from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import recorder, systems, workloads
from benchmarks.children import BenchmarkError
from benchmarks.report import Report
from benchmarks.systems.base import Workload
from benchmarks.workloads import Plan, Servers

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

#: Columns of the tables when stdout is a file or a pipe.
_WIDTH = 140
_talk = Console(stderr=True)


@contextmanager
def _servers(kafka: str | None, redis: str | None) -> Generator[Servers]:
    """Use servers that run already, or start an embedded stack for the time of the benchmark."""
    if kafka and redis:
        yield Servers(kafka=kafka, redis=redis if "://" in redis else f"redis://{redis}")
        return
    if kafka or redis:
        message = "give both --kafka and --redis, or neither to have servers started"
        raise typer.BadParameter(message)
    from kafkadur.stack import embedded  # noqa: PLC0415 - only when servers are to be started

    with ExitStack() as stack:
        with _talk.status("starting Kafka and Valkey") as status:

            def show(done: int, total: int, text: str) -> None:
                status.update(f"starting Kafka and Valkey, {done} of {total}: {text}")

            servers = stack.enter_context(embedded(progress=show))
        yield Servers(kafka=servers.kafka, redis=servers.redis)


def _measure(report: Report, chosen: Sequence[str], messages: int | None, plan: Plan) -> bool:
    """Fill the report; True when every run finished and none was void."""
    complete = True
    subjects = workloads.subjects(report.workload, chosen, messages)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=_talk,
        transient=True,
    ) as progress:
        task = progress.add_task("writing the backlogs", total=len(subjects) * (report.runs + 1))
        for subject in subjects:
            progress.update(task, description=f"backlog: {subject.case.label}")
            plan.prepare(subject)
            progress.advance(task)
        progress.update(task, description="warming up")
        try:
            plan.warm_up(subjects)
        except BenchmarkError as error:
            _talk.print(f"warming up: {error}", markup=False)
        for index, subject in workloads.interleaved(subjects, report.runs):
            name = f"{subject.case.label}: {subject.system} {subject.variant.name}"
            progress.update(task, description=f"run {index} of {report.runs}, {name}")
            row = report.row(subject)
            try:
                run = plan.measure(subject)
            except BenchmarkError as error:
                complete = False
                _talk.print(f"run {index}, {name}: {error}", markup=False)
            else:
                row.add(run)
                if run.complaint is not None:
                    complete = False
                    _talk.print(f"run {index}, {name} is void: {run.complaint}", markup=False)
            progress.advance(task)
    return complete


def _main(
    workload: Annotated[Workload, typer.Argument(help="What to measure.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each system, interleaved.")] = 3,
    messages: Annotated[int | None, typer.Option(min=100, help="Messages of the largest case.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of a run of first and failover.")] = None,
    names: Annotated[
        str | None, typer.Option("--systems", help="Comma-separated; default: all there are.")
    ] = None,
    kafka: Annotated[str | None, typer.Option(help="Kafka that runs already, host:port.")] = None,
    redis: Annotated[
        str | None, typer.Option(help="Redis or Valkey that runs already, host:port or URL.")
    ] = None,
) -> None:
    """Measure kafkadur and its peers on the same servers in the same minutes."""
    counting = "--rounds" if workload in workloads.ROUNDS else "--messages"
    if (messages if workload in workloads.ROUNDS else rounds) is not None:
        message = f"the size of a run of {workload} is given by {counting}"
        raise typer.BadParameter(message)
    chosen = names.split(",") if names else systems.available()
    if unknown := set(chosen) - set(systems.available()):
        message = (
            f"unknown or missing: {', '.join(sorted(unknown))}; there are: {', '.join(systems.available())}"
        )
        raise typer.BadParameter(message)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C: members, topics and servers go
    report = Report(workload=workload, runs=runs, recorder_ns=recorder.cost_ns())
    try:
        with _servers(kafka, redis) as servers, Plan(servers) as plan:
            complete = _measure(report, chosen, messages or rounds, plan)
    except (KafkaException, RedisError) as error:
        _talk.print(
            f"A server stopped answering: {error}. Look at its log, or at --kafka and --redis.", markup=False
        )
        raise typer.Exit(1) from error
    if as_json:
        sys.stdout.write(json.dumps(report.as_json(), indent=2) + "\n")
    else:
        report.show(Console() if sys.stdout.isatty() else Console(width=_WIDTH))
    if not complete:
        raise typer.Exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["growth"]:
        from benchmarks.growth import main as _growth

        del sys.argv[1]
        typer.run(_growth)
    elif sys.argv[1:2] == ["spark"]:
        from benchmarks.spark import main as _spark

        del sys.argv[1]
        typer.run(_spark)
    elif sys.argv[1:2] == ["gateway"]:
        from benchmarks.gateway.command import main as _gateway

        del sys.argv[1]
        typer.run(_gateway)
    elif sys.argv[1:2] == ["plan"]:
        from benchmarks.plan.command import main as _plan

        del sys.argv[1]
        typer.run(_plan)
    else:
        typer.run(_main)
