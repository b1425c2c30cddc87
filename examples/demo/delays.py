"""What the demo's job computes, in Spark SQL: flights of messages, sums of a batch, totals of all sums."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from examples.demo.bad_records import EMPTY, INCOMPLETE, NO_JSON, NO_NUMBER
from examples.demo.totals import Delays

_KEY: Final = ("carrier", "origin", "dest")
_NUMBERS: Final = ("dep_time", "dep_delay", "arr_delay")
#: What of a flight is read. Numbers as text, too: `from_json` reads only the fields that a plan needs, and so
#: does not say in every plan that one of them is no number.
_SCHEMA: Final = ", ".join(f"{name} string" for name in (*_KEY, *_NUMBERS))
_MISSING: Final = " or ".join(f"said.{name} is null" for name in _KEY)
_ODD: Final = " or ".join(f"said.{name} is not null and {name} is null" for name in _NUMBERS)
_REASON: Final = f"""
    case
        when text is null then '{EMPTY}'
        when try_parse_json(text) is null then '{NO_JSON}'
        when {_MISSING} then '{INCOMPLETE}'
        when {_ODD} then '{NO_NUMBER}'
    end
"""
_SUMS: Final = Delays._fields


def flights(messages: DataFrame) -> DataFrame:
    """Messages as flights: partition, offset, reason (why it is none, else null) and what is read of it."""
    texts = messages.selectExpr("partition", "offset", "cast(value as string) as text")
    parsed = texts.selectExpr("*", f"from_json(text, '{_SCHEMA}') as said")
    keys = (f"said.{name}" for name in _KEY)
    numbers = (f"try_cast(said.{name} as int) as {name}" for name in _NUMBERS)
    return parsed.selectExpr("*", *keys, *numbers).selectExpr(
        "partition", "offset", f"{_REASON} as reason", *_KEY, *_NUMBERS
    )


def counted(read: DataFrame) -> tuple[int, list[tuple[int, int, str]]]:
    """The number of messages of a batch of `flights`, and (partition, offset, reason) of what is none."""
    which = "collect_list(if(reason is null, null, struct(partition, offset, reason)))"
    count, bad = read.selectExpr("count(*)", which).collect()[0]
    return count, sorted((row.partition, row.offset, row.reason) for row in bad)


def sums(read: DataFrame) -> DataFrame:
    """The sums of a batch of `flights`, by carrier and route; they can be added to those of others."""
    ones = read.where("reason is null").selectExpr(
        *_KEY,
        "1 as flights",
        "if(dep_time is null, 1, 0) as cancelled",
        "if(dep_delay is null, 0, 1) as departed",
        "ifnull(dep_delay, 0) as departure_minutes",
        "if(arr_delay is null, 0, 1) as arrived",
        "ifnull(arr_delay, 0) as arrival_minutes",
    )
    return _added(ones)


def totals(written: DataFrame) -> DataFrame:
    """The report on the sums of all batches: columns as `examples.demo.totals.Row` has them."""
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
