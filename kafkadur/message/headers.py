"""The encoding of properties and JMS fields of a message as Kafka headers; writing and reading, no I/O.

Property `p` is header `p` as text: str as it is, int in decimal digits (int64), float as `repr` writes it,
bool as `true` or `false`, None as a null value, bytes as they are. One companion header lists the properties
that are neither str nor None: `kafkadur-types: amount=f;active=b;raw=x;n=i`. JMS fields are headers under
their JMS names, defaults are left out, and JMSTimestamp is the timestamp of the Kafka record. Names starting
with `JMS` or `kafkadur-` are reserved: they are never properties.

Writing is strict, reading never fails: a value without an entry in the companion is str if it is valid UTF-8,
else bytes, and a value that does not fit its entry is read the same way. The last of several headers with one
name counts. A delivery keeps the raw headers unchanged.

The sender of a message is a connection, and a client id if the connection has one. Messages with properties
name the connection in a header. Messages that have nothing but a message id of kafkadur leave that header
out, because these ids begin with the id of the connection (`sending_connection`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, Literal, NamedTuple

from kafkadur_sharing.definition import HeaderType
from kafkadur_sharing.errors import InvalidProperty
from kafkadur_sharing.names import RESERVED_PREFIXES, validate_property_name

#: The values of properties; an int is within int64.
Property = str | int | float | bool | bytes | None
#: The two delivery modes of JMS. Kafka keeps every message; the mode is only passed to the application.
DeliveryMode = Literal["PERSISTENT", "NON_PERSISTENT"]

TYPES_HEADER: Final = "kafkadur-types"
CLIENT_ID_HEADER: Final = "kafkadur-client-id"
CONNECTION_ID_HEADER: Final = "kafkadur-connection-id"
MESSAGE_ID_HEADER: Final = "JMSMessageID"
CORRELATION_ID_HEADER: Final = "JMSCorrelationID"
TYPE_HEADER: Final = "JMSType"
PRIORITY_HEADER: Final = "JMSPriority"
DELIVERY_MODE_HEADER: Final = "JMSDeliveryMode"
DELIVERY_TIME_HEADER: Final = "JMSDeliveryTime"
EXPIRATION_HEADER: Final = "JMSExpiration"

#: A message id that begins with the id of a connection (`message_id_prefix`), as a regular expression.
ID_OF_CONNECTION: Final = "ID:([0-9a-f]{32})-[0-9a-f]{8}-[0-9]{1,20}"
_ID_OF_CONNECTION: Final = re.compile(ID_OF_CONNECTION.encode())
#: Times, ms since 1970, lie before this one.
_BEYOND_TIME: Final = 10**15
DEFAULT_PRIORITY: Final = 4
MAX_PRIORITY: Final = 9
DEFAULT_DELIVERY_MODE: Final[DeliveryMode] = "PERSISTENT"

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
#: Cached companions. The producers of a topic use few different ones, unless an attacker invents them.
_CACHED_COMPANIONS: Final = 512
#: Longer companions are not cached, so that the cache stays below 512 times this many bytes.
_LONGEST_CACHED_COMPANION: Final = 4096


class JmsFields(NamedTuple):
    """The JMS fields and the sender of a message. A tuple: one is made for every message with headers."""

    #: `ID:` and a unique text; None if the sender gave none.
    message_id: str | None = None
    correlation_id: str | None = None
    #: JMSType: the kind of message, as the application names it.
    type: str | None = None
    #: 0 (lowest) to 9.
    priority: int = DEFAULT_PRIORITY
    delivery_mode: DeliveryMode = DEFAULT_DELIVERY_MODE
    #: Client id of the sending connection; with `connection_id` it serves rule U7 (noLocal).
    client_id: str | None = None
    connection_id: str | None = None
    #: Not delivered before this time; ms since 1970, None: at once.
    delivery_time: int | None = None
    #: Not delivered after this time; ms since 1970, None: it never expires.
    expiration: int | None = None


#: The fields of a message without headers.
NO_FIELDS: Final = JmsFields()


class Decoded(NamedTuple):
    """The result of `decode` for the headers of one message."""

    properties: dict[str, Property]
    fields: JmsFields


# --- writing ------------------------------------------------------------------------------------------------


def encode(
    properties: Mapping[str, Property] | None = None, fields: JmsFields = NO_FIELDS
) -> list[tuple[str, bytes | None]]:
    """Return the Kafka headers for `properties` and `fields`, with the companion last if one is needed.

    Raises `InvalidProperty` for a name that is reserved or not an identifier, a value of another type, an int
    beyond int64, text that cannot be encoded as UTF-8, a priority that is not 0 to 9, and an unknown delivery
    mode.
    """
    headers = encode_fields(fields)
    if properties:
        headers += encode_properties(properties)
    return headers


def message_id_prefix(connection_id: str, unique: str) -> str:
    """Return what the message ids of a producer begin with; a number follows.

    `unique`, 8 hexadecimal digits, tells the sequences of numbers of a connection apart.
    """
    return f"ID:{connection_id}-{unique}-"


def encode_properties(properties: Mapping[str, Property]) -> list[tuple[str, bytes | None]]:
    """Return the Kafka headers for the properties alone; raises `InvalidProperty` as `encode` does."""
    try:
        values = properties.values()
    except AttributeError:
        raise InvalidProperty(
            f"Properties are a mapping of names to values, not of type {type(properties).__name__}.",
            remedy="pass a dict",
        ) from None
    key: tuple[Any, ...] = (*properties, *map(type, values))
    layout = _layouts.get(key)
    if layout is None:
        layout = _layout(key[: len(properties)], key[len(properties) :])
        if len(_layouts) >= _MOST_LAYOUTS:
            _layouts.clear()
        _layouts[key] = layout
    writers, companion = layout
    try:
        headers = [(name, write(value)) for (name, write), value in zip(writers, values, strict=True)]
    except (OverflowError, UnicodeEncodeError):
        headers = [(name, _write_other(name, value)) for name, value in properties.items()]
    if companion is not None:
        headers.append(companion)
    return headers


def _write_int(value: int) -> bytes:
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise OverflowError
    return int.__repr__(value).encode()


#: How values of these very types are written; those of subclasses take a longer way.
_WRITERS: Final[Mapping[type, Callable[[Any], bytes | None]]] = {
    str: str.encode,
    bool: lambda value: b"true" if value else b"false",
    int: _write_int,
    float: lambda value: float.__repr__(value).encode(),
    bytes: lambda value: value,
    type(None): lambda _: None,
}
_LETTERS: Final[Mapping[type, str]] = {bool: "b", int: "i", float: "f", bytes: "x"}

#: Names with the functions that write their values, and the companion header if one is needed.
_Layout = tuple[tuple[tuple[str, Callable[[Any], bytes | None]], ...], tuple[str, bytes | None] | None]


#: The layouts of the last messages: names and types, mostly the same from message to message, are the key.
_layouts: dict[tuple[Any, ...], _Layout] = {}
_MOST_LAYOUTS: Final = 1024


def _layout(names: tuple[str, ...], types: tuple[type, ...]) -> _Layout:
    """Return how properties of these names and types are written; raises `InvalidProperty` for a name."""
    writers: list[tuple[str, Callable[[Any], bytes | None]]] = []
    companion: list[str] = []
    for name, kind in zip(names, types, strict=True):
        validate_property_name(name)
        writers.append((name, _WRITERS.get(kind, partial(_write_other, name))))
        letter = next((letter for known, letter in _LETTERS.items() if issubclass(kind, known)), "")
        if letter and not issubclass(kind, str):
            companion.append(f"{name}={letter}")
    return tuple(writers), (TYPES_HEADER, ";".join(companion).encode()) if companion else None


def _write_other(name: str, value: object) -> bytes | None:
    """Write a value of any type, subclasses included; raises `InvalidProperty` for what is no property."""
    return None if value is None else _encode_value(name, value)


def encode_fields(fields: JmsFields) -> list[tuple[str, bytes | None]]:
    """Return the Kafka headers for the JMS fields alone; raises `InvalidProperty` as `encode` does."""
    message_id, correlation_id, jms_type, priority, delivery_mode, client_id, connection_id, *times = fields
    headers: list[tuple[str, bytes | None]] = []
    if message_id is not None:
        headers.append((MESSAGE_ID_HEADER, _field_text(MESSAGE_ID_HEADER, message_id)))
    if correlation_id is not None:
        headers.append((CORRELATION_ID_HEADER, _field_text(CORRELATION_ID_HEADER, correlation_id)))
    if jms_type is not None:
        headers.append((TYPE_HEADER, _field_text(TYPE_HEADER, jms_type)))
    if priority != DEFAULT_PRIORITY:
        headers.append((PRIORITY_HEADER, _priority_text(priority)))
    if delivery_mode != DEFAULT_DELIVERY_MODE:
        headers.append((DELIVERY_MODE_HEADER, _delivery_mode_text(delivery_mode)))
    if client_id is not None:
        headers.append((CLIENT_ID_HEADER, _field_text(CLIENT_ID_HEADER, client_id)))
    if connection_id is not None:
        headers.append((CONNECTION_ID_HEADER, _field_text(CONNECTION_ID_HEADER, connection_id)))
    return headers + [
        (name, _time_text(name, time))
        for name, time in zip((DELIVERY_TIME_HEADER, EXPIRATION_HEADER), times, strict=True)
        if time is not None
    ]


def _encode_value(name: str, value: object) -> bytes:
    """Return the bytes of a value; raises `InvalidProperty`."""
    # Methods of the base types, because a subclass (an enum, a numpy float) may print differently. bool comes
    # before int because it is a subclass of int.
    if isinstance(value, str):
        try:
            return str.encode(value)
        except UnicodeEncodeError:
            raise InvalidProperty(
                f"Property {name!r} is text that has no UTF-8.",
                remedy="remove lone surrogates, or send it as bytes",
            ) from None
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int):
        if not _INT64_MIN <= value <= _INT64_MAX:
            raise InvalidProperty(
                f"Property {name!r} is an int beyond 64 bits.", remedy="send it as str or float"
            )
        return int.__repr__(value).encode()
    if isinstance(value, float):
        return float.__repr__(value).encode()
    if isinstance(value, bytes):
        return value
    raise InvalidProperty(
        f"Property {name!r} has type {type(value).__name__}.",
        remedy="use str, int, float, bool, bytes or None",
    )


def _field_text(header: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidProperty(f"{header} has type {type(value).__name__}.", remedy="use str or None")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidProperty(
            f"{header} is text that has no UTF-8.", remedy="remove lone surrogates"
        ) from None


def _priority_text(priority: int) -> bytes:
    if priority not in range(MAX_PRIORITY + 1):
        raise InvalidProperty(
            f"The priority {priority!r} does not exist.", remedy=f"use 0 (lowest) to {MAX_PRIORITY}"
        )
    return b"%d" % priority


def _time_text(header: str, time: object) -> bytes:
    if isinstance(time, bool) or not isinstance(time, int) or not 0 < time < _BEYOND_TIME:
        raise InvalidProperty(f"{header} cannot be {time!r}.", remedy="use ms since 1970, or None")
    return b"%d" % time


def _delivery_mode_text(delivery_mode: str) -> bytes:
    if delivery_mode != "NON_PERSISTENT":
        raise InvalidProperty(
            f"The delivery mode {delivery_mode!r} does not exist.",
            remedy="use 'PERSISTENT' or 'NON_PERSISTENT'",
        )
    return delivery_mode.encode()


# --- reading ------------------------------------------------------------------------------------------------

_Reader = Callable[[bytes], Property]


def decode(
    headers: Iterable[tuple[str, bytes | None]] | None, header_types: Mapping[str, HeaderType] | None = None
) -> Decoded:
    """Read the headers of one message as confluent-kafka returns them; never raises for their content.

    `header_types` is for plain producers: it is used for messages with neither a companion nor the header of
    a connection id. A message of a kafkadur producer without a companion has only text properties.
    """
    if not headers:
        return Decoded({}, NO_FIELDS)
    last = dict(headers)
    return Decoded(_read_properties(last, header_types), _read_fields(last))


def decode_properties(
    headers: Iterable[tuple[str, bytes | None]] | None, header_types: Mapping[str, HeaderType] | None = None
) -> dict[str, Property]:
    """Read only the properties, as `decode`, with half the work."""
    return _read_properties(dict(headers), header_types) if headers else {}


def decode_fields(headers: Iterable[tuple[str, bytes | None]] | None) -> JmsFields:
    """Read only the JMS fields, as `decode`, with half the work."""
    return _read_fields(dict(headers)) if headers else NO_FIELDS


def sending_connection(last: Mapping[str, bytes | None]) -> bytes | None:
    """Return the id of the connection that sent a message with these headers; None: unknown.

    It is in a header of its own. Without that header it is the beginning of the message id.
    """
    if CONNECTION_ID_HEADER in last:
        return last[CONNECTION_ID_HEADER]
    message_id = last.get(MESSAGE_ID_HEADER)
    found = None if message_id is None else _ID_OF_CONNECTION.fullmatch(message_id)
    return None if found is None else found[1]


def _read_properties(
    last: Mapping[str, bytes | None], header_types: Mapping[str, HeaderType] | None
) -> dict[str, Property]:
    companion = last.get(TYPES_HEADER)
    readers: Mapping[str, _Reader] = _NO_READERS
    if companion is not None:
        # The unwrapped function caches nothing.
        read = _readers if len(companion) <= _LONGEST_CACHED_COMPANION else _readers.__wrapped__
        readers = read(companion)
    elif header_types and CONNECTION_ID_HEADER not in last:
        readers = {name: _READER_OF_TYPE[kind] for name, kind in header_types.items()}
    return {
        name: None if raw is None else readers.get(name, _read_text)(raw)
        for name, raw in last.items()
        if not name.startswith(RESERVED_PREFIXES)
    }


def _read_fields(last: Mapping[str, bytes | None]) -> JmsFields:
    priority = last.get(PRIORITY_HEADER)
    delivery_mode = last.get(DELIVERY_MODE_HEADER)
    return JmsFields(
        _text_or_none(last.get(MESSAGE_ID_HEADER)),
        _text_or_none(last.get(CORRELATION_ID_HEADER)),
        _text_or_none(last.get(TYPE_HEADER)),
        DEFAULT_PRIORITY if priority is None else _PRIORITIES.get(priority, DEFAULT_PRIORITY),
        "NON_PERSISTENT" if delivery_mode == b"NON_PERSISTENT" else DEFAULT_DELIVERY_MODE,
        _text_or_none(last.get(CLIENT_ID_HEADER)),
        _text_or_none(sending_connection(last)),
        read_time(last.get(DELIVERY_TIME_HEADER)),
        read_time(last.get(EXPIRATION_HEADER)),
    )


def read_time(raw: bytes | None) -> int | None:
    """Return a time, ms since 1970; None for 0, which is none in JMS, and for what is no time."""
    if raw is None or _TIME.fullmatch(raw) is None:
        return None
    return int(raw) or None


_TIME: Final = re.compile(rb"[0-9]{1,15}")
_PRIORITIES: Final = {b"%d" % priority: priority for priority in range(MAX_PRIORITY + 1)}


def _text_or_none(raw: bytes | None) -> str | None:
    """Return text, or None if it is not UTF-8; the raw headers still have the bytes."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _read_text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


# Numbers as other languages print them are read (Java's `1.0E10`, `NaN`, `Infinity`), but not forms that only
# Python's int() and float() accept (spaces, underscores, digits of other scripts), so that every reader of a
# topic sees the same values.
_INT: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_FLOAT: Final = re.compile(
    rb"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf(?:inity)?)", re.IGNORECASE
)


def _read_int(raw: bytes) -> Property:
    if _INT.fullmatch(raw) is not None:
        value = int(raw)
        if _INT64_MIN <= value <= _INT64_MAX:
            return value
    return _read_text(raw)


def _read_float(raw: bytes) -> Property:
    return float(raw) if _FLOAT.fullmatch(raw) is not None else _read_text(raw)


def _read_bool(raw: bytes) -> Property:
    if raw == b"true":
        return True
    return False if raw == b"false" else _read_text(raw)


def _read_bytes(raw: bytes) -> Property:
    return raw


_NO_READERS: Final[Mapping[str, _Reader]] = {}
_READER_OF_LETTER: Final[Mapping[str, _Reader]] = {
    "i": _read_int,
    "f": _read_float,
    "b": _read_bool,
    "x": _read_bytes,
}
_READER_OF_TYPE: Final[Mapping[HeaderType, _Reader]] = {
    "str": _read_text,
    "int": _read_int,
    "float": _read_float,
    "bool": _read_bool,
    "bytes": _read_bytes,
}


@lru_cache(maxsize=_CACHED_COMPANIONS)
def _readers(companion: bytes) -> Mapping[str, _Reader]:
    """Return the readers of the properties in a companion; unknown entries are ignored."""
    entries = (entry.partition("=") for entry in companion.decode(errors="replace").split(";"))
    return {name: _READER_OF_LETTER[letter] for name, _, letter in entries if letter in _READER_OF_LETTER}
