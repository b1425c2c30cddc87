"""Spark's Kafka source: the options that a user may set, and the offsets that a frame leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, DataFrameReader, SparkSession, functions
from pyspark.sql.streaming.readwriter import DataStreamReader

from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.ranges import Ranges
from kafkadur_spark.attachment import Attachment
from kafkadur_spark.java_settings import java_settings
from kafkadur_spark.ranges import split, words
from kafkadur_spark.selector_sql import taking

#: Options that determine what is read, in lower case: a user may not set them.
_OURS: Final = (
    "subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets", "startingtimestamp",
    "endingtimestamp", "startingoffsetsbytimestamp", "endingoffsetsbytimestamp", "kafka.group.id",
    "groupidprefix", "kafka.isolation.level",
)  # fmt: skip
#: The most ranges that are left out by a condition each; others are left out by a join with words.
_MOST_LONG: Final = 100


def checked(options: Mapping[str, str], owner: str) -> dict[str, str]:
    """Return the options; raises `IllegalState` if one of them determines what is read."""
    wrong = [name for name in options if name.lower() in _OURS]
    if wrong:
        raise IllegalState(
            "What is read is said by the subscription.",
            state=f"option {', '.join(wrong)}",
            owner=f"subscription {owner}",
            remedy="leave it out; a subscription is moved with `kafkadur sub seek`",
        )
    return dict(options)


def loaded(
    reader: DataFrameReader | DataStreamReader, attachment: Attachment, options: Mapping[str, str]
) -> DataFrame:
    """Return the messages of a subscription, read committed, with the columns that the options select.

    `options` are those of the user; the settings of the connection are translated for Kafka's Java client.
    """
    reader = reader.option("kafka.isolation.level", "read_committed")
    for name, value in (java_settings(attachment.settings.kafka) | dict(options)).items():
        reader = reader.option(name, value)
    condition = taking(
        attachment.definition.definition,
        client_id=attachment.settings.client_id,
        connection_id=attachment.connection_id,
    )
    plain = reader.load()
    if condition is None:
        return plain
    return reader.option("includeHeaders", "true").load().where(condition).select(*plain.columns)


def leave_out(spark: SparkSession, frame: DataFrame, skip: Mapping[int, Ranges]) -> DataFrame:
    """Return the frame without the offsets in `skip`, by partition."""
    columns = frame.columns
    few, rest = split(skip, most=_MOST_LONG)
    for partition, ranges in few.items():
        for start, end in ranges:
            frame = frame.where(f"partition <> {partition} or offset < {start} or offset >= {end}")
    skipped = words(rest)
    if not skipped:
        return frame
    table = functions.broadcast(
        spark.createDataFrame(skipped, "_skip_partition int, _skip_word long, _skip_bits long")
    )
    same = "partition = _skip_partition and shiftright(offset, 6) = _skip_word"
    bit = "shiftright(_skip_bits, cast(offset & 63 as int)) & 1"
    together = frame.join(table, functions.expr(same), "left")
    return together.where(f"_skip_bits is null or {bit} = 0").select(*columns)
