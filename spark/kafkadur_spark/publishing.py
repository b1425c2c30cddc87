"""Publishing a frame: its rows as messages with properties and JMS fields, for Spark's own Kafka sink.

`kafkadur/message/headers.py` defines how headers carry properties; here Spark expressions write them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

import kafkadur.sync
from kafkadur.message.headers import (
    CORRELATION_ID_HEADER,
    MESSAGE_ID_HEADER,
    TYPE_HEADER,
    TYPES_HEADER,
    DeliveryMode,
    JmsFields,
    encode_fields,
)
from kafkadur_sharing.errors import InvalidProperty
from kafkadur_sharing.names import validate_property_name
from kafkadur_spark.java_settings import java_settings

#: The letter of the companion header for each type of a column; a text has no letter.
_LETTERS: Final[dict[type[DataType], str]] = {
    StringType: "",
    **dict.fromkeys((ByteType, ShortType, IntegerType, LongType), "i"),
    **dict.fromkeys((FloatType, DoubleType), "f"),
    BooleanType: "b",
    BinaryType: "x",
}


def messages(
    frame: DataFrame,
    *,
    value: str = "value",
    key: str | None = None,
    properties: Iterable[str] = (),
    type: str | None = None,  # noqa: A002 - the field's word
    correlation_id: str | None = None,
    message_id: str | None = None,
    priority: int = 4,
    delivery_mode: DeliveryMode = "PERSISTENT",
) -> DataFrame:
    """Return the rows of a frame as messages: the columns value, key and headers for Spark's Kafka sink.

    `value` and `key` are columns of strings or bytes. `properties` are columns of strings, integers, floats,
    booleans or bytes, each of which becomes the property of the same name; null is a property without a
    value. `type`, `correlation_id` and `message_id` are columns of strings for the JMS fields; null leaves
    the field out. `priority` is 0 to 9, for all messages. A task that Spark repeats publishes its rows again:
    use a `message_id` from the row if receivers need to detect that. Raises `InvalidProperty` for a name that
    is reserved or is not an identifier, for a column of another type, and for an unknown priority or delivery
    mode.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}
    named = {MESSAGE_ID_HEADER: message_id, CORRELATION_ID_HEADER: correlation_id, TYPE_HEADER: type}
    headers = [_where_given(header, frame[name]) for header, name in named.items() if name is not None]
    fields = JmsFields(priority=priority, delivery_mode=delivery_mode)
    headers += [_header(name, functions.lit(raw)) for name, raw in encode_fields(fields)]
    companion: list[str] = []
    for name in properties:
        validate_property_name(name)
        letter = _letter(name, types.get(name))
        headers.append(_header(name, _raw(frame[name], letter)))
        companion += [f"{name}={letter}"] if letter else []
    # also if it is empty, so that the header types of a subscription, for plain producers, do not apply
    headers.append(_header(TYPES_HEADER, functions.lit(";".join(companion).encode())))
    given = functions.filter(functions.array(*headers), lambda one: one.isNotNull())
    columns = [frame[value].alias("value"), given.alias("headers")]
    return frame.select(*columns, *([] if key is None else [frame[key].alias("key")]))


def kafka_options(connection: kafkadur.sync.Connection) -> dict[str, str]:
    """Return the options with which Spark's Kafka source and sink reach the Kafka of a connection.

    Use `messages(...).write.format("kafka").options(**kafka_options(connection)).option("topic", ...)`.
    Raises `IllegalState` for a setting that has no counterpart in Kafka's Java client.
    """
    return java_settings(connection.settings.kafka)


def _letter(name: str, kind: DataType | None) -> str:
    letter = None if kind is None else _LETTERS.get(kind.__class__)
    if letter is None:
        raise InvalidProperty(
            f"Property {name!r} has type {kind.simpleString()}."
            if kind is not None
            else f"There is no column {name!r}.",
            remedy="use columns of strings, integers, floats, booleans or bytes, and cast others to string",
        )
    return letter


def _raw(column: Column, letter: str) -> Column:
    """Return a column as the bytes of a property."""
    if letter == "x":
        return column
    return (column.cast("double") if letter == "f" else column).cast("string").cast("binary")


def _header(name: str, raw: Column) -> Column:
    return functions.struct(functions.lit(name).alias("key"), raw.cast("binary").alias("value"))


def _where_given(name: str, column: Column) -> Column:
    return functions.when(column.isNotNull(), _header(name, column.cast("string")))
