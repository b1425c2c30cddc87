"""What settling costs a Spark query: ``python -m benchmarks spark``.

A backlog is read to its end by Spark's own Kafka source and written to nowhere, once without kafkadur and
once with each way of settling; the same Spark, the same topic, one after the other in each run. What counts
is the ratio of rows a second to the bare source's. Every message has a header; the selector takes a fifth of
the messages by it, and is compared with the bare source and a condition on the header that Spark's
documentation would suggest. A run that leaves something unsettled is void.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import kafkadur.sync
import kafkadur_spark
from benchmarks import payload
from benchmarks.children import BenchmarkError
from benchmarks.source import Backlog, Shape, fill
from benchmarks.systems.base import Store
from kafkadur.stack import Stack, embedded
from kafkadur_spark.generations import Acking

_TOPIC = "rows"
#: Least ratio to the bare source that is aimed at.
_AIMS = {"ack_batch": 0.9, "sink": 0.8}
#: Values of the header. Each partition has all of them: they are as many as have no factor in common with the
#: usual number of partitions.
_REGIONS = 5
_SELECTOR = "region = 'region-3'"
_CONDITION = "exists(headers, h -> h.key = 'region' and h.value = cast('region-3' as binary))"
#: Ways that are compared with another one than `bare`.
_COMPARED = {"selector": "bare condition"}
_talk = Console(stderr=True)
#: Reads all, and returns how long that took, seconds.
_Way = Callable[[], float]


class _Ways:
    """The ways of reading the backlog, each a query of its own."""

    def __init__(self, spark: SparkSession, stack: Stack, rows: int, folder: Path) -> None:
        self._spark = spark
        self._stack = stack
        self._rows = rows
        self._folder = folder

    def all(self) -> dict[str, _Way]:
        """By name; the bare ones first."""
        return {
            "bare": self._bare,
            "bare foreachBatch": self._bare_batches,
            "bare condition": lambda: self._bare(_CONDITION),
            "ack_batch": lambda: self._settling("batch"),
            "progress": lambda: self._settling("progress"),
            "sink": lambda: self._settling("batch", sink=True),
            "selector": lambda: self._settling("batch", selector=_SELECTOR),
        }

    def _source(self, *, headers: bool = False) -> DataFrame:
        reader = self._spark.readStream.format("kafka").option("subscribe", _TOPIC)
        reader = reader.option("includeHeaders", headers)
        reader = reader.option("kafka.bootstrap.servers", self._stack.kafka)
        return reader.option("startingOffsets", "earliest").load()

    def _new(self) -> str:
        return str(self._folder / uuid.uuid4().hex)

    def _bare(self, condition: str | None = None) -> float:
        source = self._source(headers=condition is not None)
        taken = source if condition is None else source.where(condition)
        writer = taken.writeStream.format("noop").option("checkpointLocation", self._new())
        began = time.monotonic()
        writer.trigger(availableNow=True).start().awaitTermination()
        return time.monotonic() - began

    def _bare_batches(self) -> float:
        writer = self._source().writeStream.foreachBatch(lambda frame, _: _to_nowhere(frame))
        writer = writer.option("checkpointLocation", self._new())
        began = time.monotonic()
        writer.trigger(availableNow=True).start().awaitTermination()
        return time.monotonic() - began

    def _settling(self, acking: Acking, *, sink: bool = False, selector: str | None = None) -> float:
        name = uuid.uuid4().hex
        with (
            kafkadur.sync.connect(
                kafka=self._stack.kafka, redis=self._stack.redis, client_id="spark"
            ) as connection,
            kafkadur_spark.hold(
                connection, _TOPIC, durable=name, start="earliest", selector=selector
            ) as holder,
        ):
            reading = kafkadur_spark.read_stream(self._spark, holder, self._new(), acking=acking)
            writer = reading.frame.writeStream

            def work(frame: DataFrame, number: int) -> None:
                _to_nowhere(frame)
                reading.ack_batch(number)

            if sink:
                writer = reading.frame.select("partition", "offset").writeStream
                writer = writer.format("kafkadur").options(**reading.sink)
            else:
                writer = writer.foreachBatch(work) if acking == "batch" else writer.format("noop")
            began = time.monotonic()
            reading.start(writer.trigger(availableNow=True)).awaitTermination()
            took = time.monotonic() - began
            if acking == "progress":  # what Spark committed last is settled behind the query's end
                deadline = time.monotonic() + 10
                while _settled(holder) < self._rows and time.monotonic() < deadline:
                    time.sleep(0.05)
            if _settled(holder) != self._rows:
                message = f"{acking}: {_settled(holder):,} of {self._rows:,} are settled"
                raise BenchmarkError(message)
            return took


def _to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _settled(holder: kafkadur_spark.Holder) -> int:
    return sum(place.floor for place in holder.whereabouts().settlements.values())


def main(
    *,
    rows: Annotated[int, typer.Option(min=1_000, help="Of the backlog.")] = 4_000_000,
    partitions: Annotated[int, typer.Option(min=1, max=100, help="Of the topic.")] = 4,
    runs: Annotated[int, typer.Option(min=1, help="Of each way, interleaved.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
) -> None:
    """Measure rows a second with each way of settling against the bare source."""
    found: dict[str, list[float]] = {}
    backlog = Backlog(
        store=Store.KAFKA,
        name=_TOPIC,
        shape=Shape.BIG,
        partitions=partitions,
        messages=rows,
        regions=_REGIONS,
    )
    with Progress(console=_talk, transient=True) as progress, embedded() as stack:
        task = progress.add_task("writing the backlog", total=None)
        fill(backlog, kafka=stack.kafka, redis_at=stack.redis)
        progress.remove_task(task)
        config = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
        }
        spark = kafkadur_spark.session("benchmark", master="local[2]", config=config)
        spark.sparkContext.setLogLevel("ERROR")
        with tempfile.TemporaryDirectory() as folder:
            ways = _Ways(spark, stack, rows, Path(folder)).all()
            task = progress.add_task("reading", total=(runs + 1) * len(ways))
            for run in range(runs + 1):  # the first one warms up
                for name, way in ways.items():
                    progress.update(task, description=name)
                    took = way()
                    if run:
                        found.setdefault(name, []).append(rows / took)
                    progress.advance(task)
        spark.stop()
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    ratios = {name: rate / medians[_COMPARED.get(name, "bare")] for name, rate in medians.items()}
    if as_json:
        document = {
            "rows": rows,
            "partitions": partitions,
            "rows_per_s": found,
            "ratios": ratios,
            "compared": _COMPARED,
            "aims": _AIMS,
        }
        typer.echo(json.dumps(document, indent=2))
        return
    table = Table(title=f"{rows:,} rows of {payload.SIZE} bytes in {partitions} partitions")
    for name in ("way", "rows a second, median", "lowest", "ratio to bare", "aim"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for name, rates in found.items():
        aim = f"{_AIMS[name]:.2f}" if name in _AIMS else ""
        ratio = f"{ratios[name]:.2f}"
        if name in _COMPARED:
            ratio += f" of {_COMPARED[name]}"
        table.add_row(name, f"{medians[name]:,.0f}", f"{min(rates):,.0f}", ratio, aim)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
