"""The command line of the benchmark: it starts both servers, drives the load and prints the table."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.children import BenchmarkError
from kafkadur.stack import Stack, embedded
from kafkadur.stack.ports import free_ports

_FOLDER = Path(__file__).parent
_TOPIC = "load"
_BYTES = 200
#: Quantiles of the latency.
_MIDDLE, _LAST = 50, 99
_talk = Console(stderr=True)
#: What is shown, by its name in the JSON document.
_SHOWN = {
    "publish": "published, messages/s",
    "publish_cpu_us": "CPU of the gateway or of Artemis, us/message",
    "consume": "received, messages/s",
    "consume_cpu_us": "CPU as above, us/message",
    "p50_ms": "one by one: p50, ms",
    "p99_ms": "p99, ms",
}


class _Server(NamedTuple):
    """A server under load."""

    name: str
    port: int
    #: its process: Kafka and Redis behind a gateway are not counted
    pid: int


def _built() -> str:
    """Compile the programs, and return their class path."""
    maven = shutil.which("mvn")
    if maven is None:
        message = "Maven is not installed: it fetches Qpid JMS and Artemis"
        raise BenchmarkError(message)
    listed = _FOLDER / "target" / "classpath"
    goals = ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={listed}"]
    done = subprocess.run([maven, "-q", *goals], cwd=_FOLDER, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(done.stdout[-2_000:])
    return f"{_FOLDER / 'target' / 'classes'}:{listed.read_text().strip()}"


@contextmanager
def _gateway(stack: Stack) -> Generator[_Server]:
    (port,) = free_ports(1)
    command = [
        sys.executable, "-m", "kafkadur.cli", "gateway", "--port", str(port), "--log-level", "warning",
        "--kafka", stack.kafka, "--redis", stack.redis, "--namespace", "load",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = ""
            for line in process.stderr or ():
                said += line
                if "amqp://" in line:
                    break
            else:
                raise BenchmarkError(said)
            yield _Server("kafkadur gateway", port, process.pid)
        finally:
            process.terminate()


@contextmanager
def _artemis(classes: str, folder: Path) -> Generator[_Server]:
    (port,) = free_ports(1)
    command = ["java", "-XX:+UseSerialGC", "-cp", classes, "benchmarks.Broker", str(port), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            if next(iter(process.stdout or ()), "").strip() != "ready":
                message = "Artemis has not started"
                raise BenchmarkError(message)
            yield _Server("Artemis", port, process.pid)
        finally:
            process.kill()


def _cpu(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _loaded(server: _Server, classes: str, messages: int) -> dict[str, float]:
    """Put the load on a server; returns the figures."""
    command = ["java", "-XX:+UseSerialGC", "-cp", classes, "benchmarks.Load"]
    arguments = [f"amqp://127.0.0.1:{server.port}", _TOPIC, str(messages), str(_BYTES)]
    found: dict[str, float] = {}
    with subprocess.Popen(
        [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise AssertionError
        try:
            for line in process.stdout:  # the name of a step, which begins when it gets a line
                name, before = line.strip(), _cpu(server.pid)
                process.stdin.write("\n")
                process.stdin.flush()
                said = process.stdout.readline().removeprefix(name).split()
                if not said:
                    break
                found |= _figures(name, [float(each) for each in said], _cpu(server.pid) - before, messages)
        finally:
            process.kill()
    if "p50_ms" not in found:
        message = f"the load on {server.name} has failed; see above"
        raise BenchmarkError(message)
    return found


def _figures(step: str, measured: Sequence[float], cpu: float, messages: int) -> dict[str, float]:
    if len(measured) == 1:
        return {step: messages / measured[0], f"{step}_cpu_us": cpu / messages * 1e6}
    quantiles = statistics.quantiles(measured, n=100)
    return {"p50_ms": quantiles[_MIDDLE - 1] / 1e6, "p99_ms": quantiles[_LAST - 1] / 1e6}


def _measured(messages: int, runs: int) -> Mapping[str, Sequence[Mapping[str, float]]]:
    """Return the figures of each run, by server; the servers are new in each run."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    with Progress(console=_talk, transient=True) as progress:
        task = progress.add_task("fetching Artemis", total=2 * runs)
        classes = _built()
        for run in range(runs):
            progress.update(task, description=f"run {run + 1} of {runs}")
            with embedded() as stack:
                admin = AdminClient({"bootstrap.servers": stack.kafka, "log_level": 0})
                admin.create_topics([NewTopic(_TOPIC, 1)])[_TOPIC].result()
                with _gateway(stack) as server:
                    found[server.name].append(_loaded(server, classes, messages))
            progress.advance(task)
            with tempfile.TemporaryDirectory() as folder, _artemis(classes, Path(folder)) as server:
                found[server.name].append(_loaded(server, classes, messages))
            progress.advance(task)
    return found


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each server, interleaved.")] = 3,
    messages: Annotated[
        int, typer.Option(min=100, help="Messages that are published and received.")
    ] = 20_000,
) -> None:
    """Measure one gateway process with Qpid JMS, and Artemis beside it."""
    try:
        found = _measured(messages, runs)
    except BenchmarkError as error:
        _talk.print(f"{error}", markup=False)
        raise typer.Exit(1) from error
    if as_json:
        sys.stdout.write(json.dumps({"messages": messages, "bytes": _BYTES, "runs": found}, indent=2) + "\n")
        return
    table = Table(
        title=f"Qpid JMS, {messages} messages of {_BYTES} bytes: median (least to most) of {runs} runs"
    )
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    for figure, shown in _SHOWN.items():
        cells: list[str] = []
        for each in found.values():
            numbers = sorted(run[figure] for run in each)
            digits = 2 if figure.endswith("_ms") else 0
            low, middle, high = (
                f"{number:,.{digits}f}" for number in (numbers[0], statistics.median(numbers), numbers[-1])
            )
            cells.append(f"{middle} ({low} to {high})")
        table.add_row(shown, *cells)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
