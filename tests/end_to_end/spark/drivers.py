"""A Spark driver in a process of its own, which dies where it is told to.

Run as a program this file is the driver; imported it is the handle that tests hold. What it reads of a batch
it writes into a file of the batch's own, and settles the batch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row

import kafkadur.sync
import kafkadur_spark
from tests.end_to_end.spark.cluster import ON_CLUSTER
from tests.end_to_end.spark.helpers import LOCAL, At
from tests.integration.subscriptions.workers import ANSWER_LIMIT_S, Child

#: In SQL, the id of the Java process that says it.
_JAVA = "reflect('java.lang.ProcessHandle', 'current')"


class Process(NamedTuple):
    """Where a record was read: ids of the Java process and of its Python, and which Python that is."""

    java: int
    python: int
    executable: str


class Driver(Child):
    """A driver that reads the subscription `d` on a topic to its end."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        folder: Path,
        *,
        die: str = "",
        at: int = 0,
        master: str = "local[2]",
    ) -> None:
        """Start it, on the Spark of `master`.

        `die`: `during` the tasks of batch `at`, of which one kills it, `before` that is settled, or `after`
        it; else it leaves in order.
        """
        super().__init__("tests.end_to_end.spark.drivers")
        plan = {"connect": dict(settings), "topic": topic, "folder": str(folder), "master": master}
        self.say(plan | {"die": die, "at": at})

    def ended(self) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        return self._process.wait(ANSWER_LIMIT_S)


def written(folder: Path) -> list[At]:
    """What is in the files of all batches, in order."""
    return sorted((p, o) for batch in _batches(folder) for p, o in batch["records"])


def drivers(folder: Path) -> set[Process]:
    """The drivers that have written the batches."""
    return {Process(*batch["driver"]) for batch in _batches(folder)}


def readers(folder: Path) -> set[Process]:
    """The processes that have read the records of the batches."""
    return {Process(*reader) for batch in _batches(folder) for reader in batch["readers"]}


def _batches(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def _located(victim: int | None) -> Callable[[Iterable[Row]], Iterator[tuple[int, int, int, int, str]]]:
    """For each record where it lies and where it is read; `victim` is killed at the first one."""

    def located(rows: Iterable[Row]) -> Iterator[tuple[int, int, int, int, str]]:
        for row in rows:
            if victim is not None:
                os.kill(victim, signal.SIGKILL)
            yield row.partition, row.offset, int(row.java), os.getpid(), sys.executable

    return located


def main() -> None:
    """Be a driver."""
    plan = json.loads(sys.stdin.readline())
    folder = Path(plan["folder"])
    spark = kafkadur_spark.session("driver", master=plan["master"], config=LOCAL | ON_CLUSTER)
    jvm: Any = getattr(spark, "_jvm", None)
    driver = Process(jvm.java.lang.ProcessHandle.current().pid(), os.getpid(), sys.executable)
    with (
        kafkadur.sync.connect(**plan["connect"]) as connection,
        kafkadur_spark.hold(connection, plan["topic"], durable="d", start="earliest") as holder,
    ):
        options = {"maxOffsetsPerTrigger": "10"}
        reading = kafkadur_spark.read_stream(spark, holder, str(folder / "checkpoints"), options=options)

        def die(moment: str, batch: int) -> bool:
            return (plan["die"], plan["at"]) == (moment, batch)

        def work(frame: DataFrame, batch: int) -> None:
            found = frame.selectExpr("partition", "offset", f"{_JAVA} as java").rdd
            rows = found.mapPartitions(_located(os.getpid() if die("during", batch) else None)).collect()
            content = {
                "records": sorted(row[:2] for row in rows),
                "driver": driver,
                "readers": sorted({row[2:] for row in rows}),
            }
            file = folder / f"{reading.generation}-{batch}.json"
            file.write_text(json.dumps(content))
            if die("before", batch):
                os.kill(os.getpid(), signal.SIGKILL)
            reading.ack_batch(batch)
            if die("after", batch):
                os.kill(os.getpid(), signal.SIGKILL)

        reading.start(
            reading.frame.writeStream.foreachBatch(work).trigger(availableNow=True)
        ).awaitTermination()


if __name__ == "__main__":
    main()
