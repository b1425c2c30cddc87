"""A long run at half of the peak rate, with restarts, visitors and small faults: ``make soak HOURS=1``.

Every message goes to a shared, a priority and a key-ordered subscription, and each has three members. One
process with a member of each stays. Two such processes are restarted in turns: closed, or killed. A visitor
connects, joins the shared subscription, creates and removes one of its own, and disconnects, again and again.
Redis and Kafka stand still for a second in turns, and connections to Redis are cut. It fails if a message was
not handled, if memory or delays grow, and for warnings while nothing is disturbed.
"""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import Progress

from benchmarks.children import BenchmarkError
from benchmarks.soak import report
from benchmarks.soak.driving import PARTITIONS, SETTLING_S, Driver
from benchmarks.soak.working import Place
from kafkadur.stack import embedded
from kafkadur.stack.kafka import quiet_admin

#: Messages a second that are tried first, how many times as many come next, and for how long, seconds.
_SLOWEST, _FASTER, _STEP_S = 1_000.0, 1.25, 10.0
_talk = Console(stderr=True)


def main(
    *,
    hours: Annotated[float, typer.Option(min=0.03, help="How long, without the peak.")] = 1.0,
    every: Annotated[
        float, typer.Option(min=1.5 * SETTLING_S, help="Seconds between two disturbances.")
    ] = 45.0,
    rate: Annotated[float, typer.Option(min=0, help="Messages a second; 0: half of the peak.")] = 0.0,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("build/soak"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
) -> None:
    """Run for hours, and say what grew, was lost, or was logged; ends with status 1 if anything did."""
    out.mkdir(parents=True, exist_ok=True)
    topic = f"soak-{uuid.uuid4().hex[:8]}"
    with (
        Progress(console=_talk, transient=True) as progress,
        embedded() as stack,
        tempfile.TemporaryDirectory() as folder,
    ):
        # what is older than this was handled long ago
        config = {"retention.ms": "1800000", "segment.ms": "60000"}
        admin = quiet_admin(stack.kafka)
        admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(20)
        place = Place(kafka=stack.kafka, redis=stack.redis, namespace=topic, topic=topic)
        driver = Driver(stack, place, Path(folder))
        try:
            task = progress.add_task("measuring the peak", total=None)
            peak = 2 * rate or _peak(driver)
            driver.publish(peak / 2)
            driver.record.began = time.monotonic()
            progress.update(task, description="soaking", total=hours * 3_600, completed=0)
            broken = None
            try:
                for left in driver.run(hours * 3_600, every=every):
                    progress.update(task, completed=hours * 3_600 - left)
                progress.update(task, description="handling the last messages")
                driver.finish()
            except BenchmarkError as error:  # what was seen until then is reported all the same
                driver.record.ended, broken = time.monotonic(), str(error)
        finally:
            driver.close()
    record = driver.record
    found = report.judge(record, peak, peak / 2)
    found.faults += [broken] if broken else []
    (out / "soak.json").write_text(json.dumps(found.as_json(), indent=2), encoding="utf-8")
    report.draw(record, out / "soak.png")
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        report.show(found, Console())
    if found.faults:
        raise typer.Exit(1)


def _peak(driver: Driver) -> float:
    """Return the highest rate, messages a second, with which all subscriptions keep up."""
    rate = _SLOWEST
    while _keeps_up(driver, rate * _FASTER):
        rate *= _FASTER
    driver.publish(0)
    while driver.record.slowest() < driver.record.published:
        for _ in driver.run(1):
            pass
    return rate


def _keeps_up(driver: Driver, rate: float) -> bool:
    """Return whether all messages are handled within a second at this rate."""
    driver.publish(rate)
    for _ in driver.run(_STEP_S):
        pass
    return driver.record.slowest() > driver.record.published - rate


if __name__ == "__main__":
    typer.run(main)
