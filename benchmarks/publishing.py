"""What publishing costs beside confluent-kafka's own producer: ``python -m benchmarks.publishing``.

Each run is a process of its own that writes so many messages of 100 bytes to a topic of four partitions, and
waits until Kafka has them all. Systems take turns, run by run. A figure is the median with its range; a ratio
is that of the medians. The configuration of both is the same: that of kafkadur's producer.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kafkadur.producer.configuration import DEFAULTS
from kafkadur.stack import embedded
from kafkadur.stack.kafka import quiet_admin

_SIZE = 100
_PARTITIONS = 4
_FLUSH_S = 120.0
#: Messages that may wait for Kafka: what both wait for when it is reached is Kafka.
_BUFFER = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 2_000_000}
_PROPERTIES = {"carrier": "UA", "month": 1, "dep_delay": -3.5}
_HEADERS: list[tuple[str, str | bytes | None]] = [("carrier", b"UA"), ("month", b"1"), ("dep_delay", b"-3.5")]

#: kafkadur's row, the row it is compared with, and the ratio aimed at.
_GOALS = (("kafkadur, 3 properties", "raw, 3 headers", 0.8), ("kafkadur, no property", "raw, no header", 0.9))


#: Writes one message, writes so many messages, waits until Kafka has all.
_Writer = tuple[Callable[[], None], Callable[[int], None], Callable[[], None]]


def _raw(kafka: str, topic: str, *, headers: bool) -> _Writer:
    producer = Producer({"bootstrap.servers": kafka, **DEFAULTS, **_BUFFER})
    payload = b"x" * _SIZE
    more: dict[str, Any] = {"headers": _HEADERS} if headers else {}
    produce, poll = producer.produce, producer.poll

    def write(count: int) -> None:
        for number in range(count):
            produce(topic, payload, **more)
            if not number % 1_000:
                poll(0)

    def flush() -> None:
        if left := producer.flush(_FLUSH_S):
            raise RuntimeError(f"{left} messages were not written")

    return partial(write, 1), write, flush


def _kafkadur(kafka: str, topic: str, *, properties: bool) -> _Writer:
    from kafkadur import Producer as KafkadurProducer  # noqa: PLC0415 - the other rows do without

    connection_id = uuid.uuid4().hex  # as connections have them
    producer = KafkadurProducer({"bootstrap.servers": kafka, **_BUFFER}, None, connection_id)
    payload = b"x" * _SIZE
    more: dict[str, Any] = {"properties": _PROPERTIES} if properties else {}
    publish = producer.publish

    def write(count: int) -> None:
        for _ in range(count):
            publish(topic, payload, **more)

    return partial(write, 1), write, partial(producer.flush, _FLUSH_S)


_ROWS: dict[str, Callable[[str, str], _Writer]] = {
    "raw, 3 headers": partial(_raw, headers=True),
    "raw, no header": partial(_raw, headers=False),
    "kafkadur, 3 properties": partial(_kafkadur, properties=True),
    "kafkadur, no property": partial(_kafkadur, properties=False),
}


def _run_here(row: str, kafka: str, topic: str, count: int) -> None:
    """Measure one run in this process, and print it as JSON. The clock starts when Kafka has one message."""
    first, write, flush = _ROWS[row](kafka, topic)
    first()
    flush()
    began, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    write(count)
    handed = time.perf_counter() - began
    flush()
    took, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    seconds = used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime
    found = {
        "rate": count / took,
        "call_us": handed * 1e6 / count,
        "cpu_s_per_100k": seconds * 100_000 / count,
    }
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # the topic is deleted now: nothing is waited for


def _run(row: str, kafka: str, topic: str, count: int) -> dict[str, float]:
    """Measure one run in a process of its own, on a topic of its own."""
    admin = quiet_admin(kafka)
    admin.create_topics([NewTopic(topic, _PARTITIONS)])[topic].result()
    try:
        command = (sys.executable, "-m", "benchmarks.publishing", "--here", row, kafka, topic, str(count))
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found: dict[str, float] = json.loads(done.stdout)
        return found
    finally:
        admin.delete_topics([topic])[topic].result()


def main(
    *,
    here: Annotated[tuple[str, str, str, int] | None, typer.Option("--here", hidden=True)] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs of each row.")] = 5,
    messages: Annotated[int, typer.Option("--messages", min=1_000, help="Messages of a run.")] = 300_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure publishing, with properties and without, beside confluent-kafka's producer."""
    if here:
        _run_here(*here)
        return
    found: dict[str, list[dict[str, float]]] = {row: [] for row in _ROWS}
    with embedded() as stack, Progress(console=Console(stderr=True), transient=True) as progress:
        for number in progress.track(range(runs + 1)):
            for index, row in enumerate(_ROWS):
                measured = _run(row, stack.kafka, f"publishing-{number}-{index}", messages)
                if number:  # the first run warms the broker up
                    found[row].append(measured)
    medians = {row: statistics.median(run["rate"] for run in of) for row, of in found.items()}
    goals = [(ours, peer, medians[ours] / medians[peer], goal) for ours, peer, goal in _GOALS]
    if as_json:
        typer.echo(json.dumps({"runs": runs, "messages": messages, "rows": found, "ratios": goals}))
        return
    _print(found, medians, goals)


def _print(
    found: dict[str, list[dict[str, float]]],
    medians: dict[str, float],
    goals: list[tuple[str, str, float, float]],
) -> None:
    table = Table("row", "messages a second", "range", "us a call", "CPU s for 100,000")
    for row, of in found.items():
        rates = [run["rate"] for run in of]
        call, cpu = (statistics.median(run[name] for run in of) for name in ("call_us", "cpu_s_per_100k"))
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        table.add_row(row, f"{medians[row]:,.0f}", spread, f"{call:.2f}", f"{cpu:.2f}")
    judged = Table("goal", "reached", "")
    for ours, peer, reached, goal in goals:
        judged.add_row(f"{ours} >= {goal} x {peer}", f"{reached:.2f}", "met" if reached >= goal else "short")
    console = Console()
    console.print(table)
    console.print(judged)


if __name__ == "__main__":
    typer.run(main)
