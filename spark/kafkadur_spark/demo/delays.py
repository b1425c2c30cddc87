"""What the demo's job computes, in Spark SQL: flights of messages, sums of a batch, totals of all sums."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from kafkadur.demo.bad_records import EMPTY, INCOMPLETE, NO_JSON, WRONG_TYPE

#: What of a flight is read; the last column has the text of what could not be read as one.
_SCHEMA: Final = (
    "carrier string, origin string, dest string, dep_time int, dep_delay int, arr_delay int, "
    "_corrupt_record string"
)
_REASON: Final = f"""
    case
        when text is null then '{EMPTY}'
        when try_parse_json(text) is null then '{NO_JSON}'
        when flight._corrupt_record is not null then '{WRONG_TYPE}'
        when flight.carrier is null or flight.origin is null or flight.dest is null then '{INCOMPLETE}'
    end
"""
_KEY: Final = ("carrier", "origin", "dest")
_SUMS: Final = ("flights", "cancelled", "departed", "departure_minutes", "arrived", "arrival_minutes")


def flights(messages: DataFrame) -> DataFrame:
    """Messages as flights: partition, offset, reason (why it is none, else null) and flight."""
    texts = messages.selectExpr("partition", "offset", "cast(value as string) as text")
    parsed = texts.selectExpr("*", f"from_json(text, '{_SCHEMA}') as flight")
    return parsed.selectExpr("partition", "offset", f"{_REASON} as reason", "flight")


def counted(read: DataFrame) -> tuple[int, list[tuple[int, int, str]]]:
    """The number of messages of a batch of `flights`, and (partition, offset, reason) of what is none."""
    which = "collect_list(if(reason is null, null, struct(partition, offset, reason)))"
    count, bad = read.selectExpr("count(*)", which).collect()[0]
    return count, sorted((row.partition, row.offset, row.reason) for row in bad)


def sums(read: DataFrame) -> DataFrame:
    """The sums of a batch of `flights`, by carrier and route; they can be added to those of others."""
    good = read.where("reason is null").select("flight.*")
    counted = good.selectExpr(
        *_KEY,
        "1 as flights",
        "if(dep_time is null, 1, 0) as cancelled",
        "if(dep_delay is null, 0, 1) as departed",
        "ifnull(dep_delay, 0) as departure_minutes",
        "if(arr_delay is null, 0, 1) as arrived",
        "ifnull(arr_delay, 0) as arrival_minutes",
    )
    return _added(counted)


def totals(written: DataFrame) -> DataFrame:
    """The report on the sums of all batches: columns as `kafkadur.demo.totals.Row` has them."""
    return (
        _added(written)
        .selectExpr(
            *_KEY,
            *_SUMS[:4],
            "departure_minutes / nullif(departed, 0) as departure_delay",
            *_SUMS[4:],
            "arrival_minutes / nullif(arrived, 0) as arrival_delay",
        )
        .orderBy(*_KEY)
    )


def _added(frame: DataFrame) -> DataFrame:
    return frame.groupBy(*_KEY).sum(*_SUMS).toDF(*_KEY, *_SUMS)
