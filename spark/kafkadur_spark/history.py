"""The delivery history of a subscription as a frame."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

import kafkadur.sync
from kafkadur.history.entries import FORMAT, topic_of
from kafkadur_spark.java_settings import java_settings

#: A message of the history topic (`kafkadur/history/entries.py`).
_MESSAGE: Final = (
    "format int, subscription string, member string, name string, entries array<struct<partition: int, "
    "offsets: array<bigint>, attempt: int, handed: bigint, outcome: string, at: bigint, delay: bigint, "
    "cause: string>>"
)
_RUNS: Final = (
    "transform(sequence(0, size(entry.offsets) - 2, 2), "
    "i -> struct(entry.offsets[i] as start, entry.offsets[i + 1] as end))"
)
_COLUMNS: Final = (
    "subscription", "entry.partition as partition", "run.start as start", "run.end as end",
    "entry.attempt as attempt", "member", "name", "timestamp_millis(entry.handed) as handed",
    "entry.outcome as outcome", "timestamp_millis(entry.at) as at", "entry.delay as delay_ms",
    "entry.cause as cause",
)  # fmt: skip


def history(spark: SparkSession, connection: kafkadur.sync.Connection, durable: str) -> DataFrame:
    """Return the delivery history of the durable subscription `durable` of a connection.

    A row is about the offsets [start, end) of a partition: `member` and `name` (str) had them from `handed`
    on (timestamp; null: no member had them, or it is not known), as attempt number `attempt` (int; null as
    `handed`), and `outcome` (str) was so at `at` (timestamp). `delay_ms` (long) is the delay of a rollback,
    -1: as the redelivery policy says; `cause` (str) is why there is a dead letter. `subscription` (str) is
    the id of the subscription: one that was deleted and created again has another id. A delivery that lasts
    longer than a second has a row with the outcome "handed out", too. The subscription needs a `history`;
    without one the frame fails when it is read.

    Raises `IllegalState` for a setting that has no counterpart in Kafka's Java client.
    """
    reader = spark.read.format("kafka").options(**java_settings(connection.settings.kafka))
    topic = topic_of(connection.key(durable))
    read = reader.option("subscribe", topic).option("kafka.isolation.level", "read_committed").load()
    message = read.selectExpr(f"from_json(cast(value as string), '{_MESSAGE}') as message").where(
        f"message.format <= {FORMAT}"
    )
    entries = message.selectExpr(
        "message.subscription as subscription",
        "message.member as member",
        "message.name as name",
        "explode(message.entries) as entry",
    )
    return (
        entries.where("size(entry.offsets) >= 2")
        .selectExpr("*", f"explode({_RUNS}) as run")
        .selectExpr(*_COLUMNS)
    )
