"""A Spark driver in a process of its own, which dies where it is told to.

Run as a program this file is the driver; imported it is the handle that tests hold. What it reads of a batch
it writes into a file of the batch's own, and settles the batch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import kafkadur.sync
import kafkadur_spark
from tests.spark.helpers import LOCAL, At, records
from tests.subscriptions.workers import ANSWER_LIMIT_S, Child


class Driver(Child):
    """A driver that reads the subscription `d` on a topic to its end."""

    def __init__(self, settings: Mapping[str, Any], topic: str, folder: Path, *, die: str = "") -> None:
        """Start it; `die`: `before` the first batch is settled, or `after` it; else it leaves in order."""
        super().__init__("tests.spark.drivers")
        self.say({"connect": dict(settings), "topic": topic, "folder": str(folder), "die": die})

    def ended(self) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        return self._process.wait(ANSWER_LIMIT_S)


def written(folder: Path) -> list[At]:
    """What is in the files of all batches, in order."""
    return sorted((p, o) for file in folder.glob("*.json") for p, o in json.loads(file.read_text()))


def main() -> None:
    """Be a driver."""
    plan = json.loads(sys.stdin.readline())
    folder = Path(plan["folder"])
    spark = kafkadur_spark.session("driver", master="local[2]", config=LOCAL)
    with (
        kafkadur.sync.connect(**plan["connect"]) as connection,
        kafkadur_spark.hold(connection, plan["topic"], durable="d", start="earliest") as holder,
    ):
        options = {"maxOffsetsPerTrigger": "10"}
        reading = kafkadur_spark.read_stream(spark, holder, str(folder / "checkpoints"), options=options)

        def work(frame: DataFrame, batch: int) -> None:
            file = folder / f"{reading.generation}-{batch}.json"
            file.write_text(json.dumps(records(frame)))
            if plan["die"] == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            reading.ack_batch(batch)
            if plan["die"] == "after":
                os.kill(os.getpid(), signal.SIGKILL)

        reading.start(
            reading.frame.writeStream.foreachBatch(work).trigger(availableNow=True)
        ).awaitTermination()


if __name__ == "__main__":
    main()
