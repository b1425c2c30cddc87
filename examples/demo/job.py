"""The job of the demo's report: flights of a durable subscription, read by Spark, summed up batch by batch.

It takes orders and tells what happens like the other workers (`examples/demo/worker.py`). The sums of a batch
are in a folder of the batch's own, so that a batch that comes again is written over; a batch is settled when
it is written. Where the demo wants it killed, it stands still in the middle of a batch and waits.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kafkadur.sync
from examples.demo import delays
from examples.demo.chart import draw
from examples.demo.report import CHART, PARQUET, TEMPORARY, read
from examples.demo.worker import GO, REPORT, REPORT_TOPIC, Job, Orders, client_id, tell
from kafkadur.stack.errors import file_error
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.keys import ClientIdPolicy
from kafkadur_spark import Reading, hold, read_stream, session

#: Where the sums lie, by generation and batch.
_BATCHES: Final = "batches"


class Tell(Protocol):
    """Tells the demo what happened."""

    def __call__(self, event: str, /, **more: Any) -> None:  # noqa: ANN401 - whatever JSON takes
        """Tell it."""
        ...


class Work:
    """The work on the batches of a query."""

    def __init__(self, job: Job, reading: Reading, orders: Orders, told: Tell) -> None:
        """Nothing is done yet."""
        self._job = job
        self._reading = reading
        self._orders = orders
        self._tell = told
        self._done = 0

    def batch(self, messages: DataFrame, number: int) -> None:
        """Write the sums of a batch, reject what is no flight, settle it."""
        read = delays.flights(messages).persist()
        count, bad = delays.counted(read)
        generation = self._reading.generation
        folder = Path(self._job.ledger, _BATCHES, f"generation={generation}", f"batch={number}")
        again = folder.exists()
        delays.sums(read).coalesce(1).write.mode("overwrite").parquet(str(folder))
        read.unpersist()
        told = {"generation": generation, "batch": number, "messages": count, "rejected": bad}
        to_die = bool(self._job.last_stand and self._done >= self._job.last_stand and bad)
        if to_die and not self._job.settles_first:
            self._wait_for_the_end(told)
        settled = self._reading.ack_batch(number, rejected=bad)
        self._done += settled
        self._tell("progress", done=self._done, redelivered=0)
        self._tell("batch", **told, settled=settled, again=again)
        if to_die:
            self._wait_for_the_end(told)

    def _wait_for_the_end(self, told: dict[str, Any]) -> NoReturn:
        self._tell("standing", **told)
        while True:
            self._orders.wait_for(GO)


def work(job: Job, orders: Orders, told: Tell) -> None:
    """Read all there is and write the report."""
    folder = Path(job.ledger)
    spark = started(folder)
    with (
        kafkadur.sync.connect(
            kafka=job.kafka,
            redis=job.redis,
            client_id=client_id(REPORT),
            client_id_policy=ClientIdPolicy.UNRESTRICTED,
        ) as connection,
        hold(connection, REPORT_TOPIC, durable=REPORT, start="earliest", name=job.name) as holder,
    ):
        told("attached")
        orders.wait_for(GO)
        options = {"maxOffsetsPerTrigger": str(job.report_every)}
        reading = read_stream(spark, holder, str(folder / "checkpoints"), options=options)
        batches = Work(job, reading, orders, told)
        writer = reading.frame.writeStream.foreachBatch(batches.batch).trigger(availableNow=True)
        reading.start(writer).awaitTermination()
    output = folder.parent
    report = delays.totals(spark.read.parquet(str(folder / _BATCHES)))
    pq.write_table(report.toArrow(), output / PARQUET)
    draw(read(output / PARQUET), output / CHART)
    spark.stop()


def started(folder: Path) -> SparkSession:
    """Spark, small and on this machine alone; all it leaves behind is in `folder`."""
    temporary = folder / TEMPORARY
    temporary.mkdir(exist_ok=True)
    os.chdir(temporary)  # it makes folders in its working directory
    os.environ["TMPDIR"] = str(temporary)
    spark = session(
        "kafkadur demo",
        master="local[2]",
        config={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(temporary),
            "spark.sql.warehouse.dir": str(temporary / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            # it lives for seconds: starting fast is worth more than running fast
            "spark.driver.extraJavaOptions": (
                f'-Djava.io.tmpdir="{temporary}" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC'
            ),
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(argument: str) -> int:
    """Do the job; returns the exit status."""
    job = Job(**json.loads(argument))
    # Standard output is for telling the demo: what Java says there goes to standard error.
    out = os.dup(1)
    os.dup2(2, 1)
    told: Tell = partial(tell, out=out)
    orders = Orders()
    try:
        work(job, orders, told)
    except KafkadurError as error:
        told("failed", text=str(error))
        return 1
    except PySparkException as error:
        told("failed", text=next(iter(str(error).splitlines()), repr(error)))
        return 1
    except OSError as error:
        told("failed", text=str(file_error(error, Path(job.ledger))))
        return 1
    told("confirmed", at=time.monotonic())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
