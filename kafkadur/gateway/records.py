"""Messages of AMQP as records of Kafka, and records as messages. No I/O.

A text is the record's value, and so are bytes; another body is its value as AMQP encodes it. The header
`kafkadur-body` says which, and a record without it is a message of bytes. Application properties are typed
properties, and the header `kafkadur-numbers` keeps the exact types of numbers. The fields of JMS are those of
`kafkadur/message/headers.py`, and headers of their own for those that only AMQP has.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from proton import (
    Data,
    Message,
    byte,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)

from kafkadur.gateway.bodies import BINARY, BODY_HEADER, NULL, SEQUENCE, TEXT, VALUE, decoded
from kafkadur.gateway.conditions import DECODE_ERROR, NOT_IMPLEMENTED, Refused
from kafkadur.gateway.destinations import Destination, Kind, name_in
from kafkadur.message.headers import (
    MAX_PRIORITY,
    JmsFields,
    Property,
    decode,
    encode,
)

#: A `proton.Message`: the annotations of its attributes are narrower than what they take and give.
_Message: TypeAlias = Any
#: What a client sends: headers as Kafka's client takes them.
Headers = list[tuple[str, bytes | None]]

NUMBERS_HEADER: Final = "kafkadur-numbers"
CONTENT_TYPE_HEADER: Final = "kafkadur-content-type"
MESSAGE_TYPE_HEADER: Final = "kafkadur-message-type"
REPLY_TO_HEADER: Final = "JMSReplyTo"
REPLY_KIND_HEADER: Final = "kafkadur-reply-to-kind"
DESTINATION_HEADER: Final = "JMSDestination"
GROUP_ID_HEADER: Final = "JMSXGroupID"
GROUP_SEQUENCE_HEADER: Final = "JMSXGroupSeq"
USER_ID_HEADER: Final = "JMSXUserID"

_DELIVERY_TIME: Final = symbol("x-opt-delivery-time")
#: The types of destinations and messages, as Qpid JMS annotates them.
_TO_TYPE, _MESSAGE_TYPE = symbol("x-opt-jms-dest"), symbol("x-opt-jms-msg-type")
_REPLY_TYPE: Final = symbol("x-opt-jms-reply-to")
#: The kinds of messages of JMS: message, object, map, bytes, stream, text.
_MESSAGE_TYPES: Final = frozenset(b"%d" % kind for kind in range(6))
#: The kinds of destinations as a header has them.
_KINDS: Final = frozenset(b"%d" % kind for kind in Kind)
_INT32: Final = 2**31
#: The time to live of AMQP has 32 bits, in ms; the time of expiration says the same.
_LONGEST_TTL_S: Final = 4_294_967.0
_INT64: Final = 2**63

#: The exact types of numbers, by the word in the header: JMS has them, and Python has not.
_NUMBERS: Final[Mapping[str, type[int | float]]] = {
    "byte": byte, "short": short, "int": int32, "long": int, "float": float32, "double": float,
}  # fmt: skip
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "byte": (-128, 127), "short": (-(2**15), 2**15 - 1), "int": (-_INT32, _INT32 - 1),
}  # fmt: skip
_WORDS: Final[Mapping[type, str]] = {
    byte: "byte", short: "short", int32: "int", int: "long", float32: "float", float: "double",
    ubyte: "short", ushort: "int", uint: "long", ulong: "long", timestamp: "long",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A message of a client as a record of Kafka."""

    #: where it is to be sent, as the message says: address, and the kind that its annotation names
    address: str | None
    kind: object
    value: bytes | None
    headers: Headers
    #: the group of messages that it belongs to, whose order is kept
    group: bytes | None


@dataclass(frozen=True, kw_only=True)
class Sender:
    """The connection of the client that sends."""

    client_id: str | None
    connection_id: str
    user: str | None


def to_record(encoded: bytes, sender: Sender) -> Outgoing:
    """Return the record for a message as AMQP encodes it; raises `Refused` and `InvalidProperty`."""
    message = _message()
    try:
        message.decode(encoded)
        value, kind = _value_of(message)
        annotations = dict(message.annotations or {})
    except Exception as error:  # noqa: BLE001 - Proton raises many kinds for malformed values
        raise Refused(DECODE_ERROR, f"The message cannot be decoded: {type(error).__name__}.") from None
    properties, numbers = _properties_of(message.properties or {})
    headers = encode(properties, _fields_of(message, sender))
    more = (
        (BODY_HEADER, kind),
        (NUMBERS_HEADER, numbers),
        (CONTENT_TYPE_HEADER, _content_type(message)),
        (MESSAGE_TYPE_HEADER, _message_type(message)),
        (REPLY_TO_HEADER, _text(message.reply_to)),
        (REPLY_KIND_HEADER, _reply_kind(annotations)),
        (DESTINATION_HEADER, _text(name_in(message.address)) if message.address else None),
        (GROUP_ID_HEADER, _text(message.group_id)),
        (GROUP_SEQUENCE_HEADER, b"%d" % message.group_sequence if message.group_id else None),
        (USER_ID_HEADER, _text(sender.user)),
    )
    headers += [(name, text) for name, text in more if text is not None]
    return Outgoing(
        address=message.address,
        kind=annotations.get(_TO_TYPE),
        value=value,
        headers=headers,
        group=_text(message.group_id),
    )


def to_message(
    *,
    destination: Destination,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    timestamp_ms: int,
    attempt: int,
    redelivered: bool,
) -> bytes:
    """Return a record as AMQP encodes a message. Never raises for the contents of a record."""
    raw = dict(headers)
    found = decode(raw.items())
    fields = found.fields
    message = _message()
    _set_body(message, value, raw.get(BODY_HEADER))
    message.properties = _typed(found.properties, raw.get(NUMBERS_HEADER))
    message.durable = fields.delivery_mode == "PERSISTENT"
    message.priority = fields.priority
    message.id = fields.message_id
    message.correlation_id = fields.correlation_id
    message.subject = fields.type
    message.creation_time = timestamp_ms / 1000
    message.address = _read(raw.get(DESTINATION_HEADER)) or destination.name
    message.reply_to = _read(raw.get(REPLY_TO_HEADER))
    message.delivery_count = max(attempt - 1, int(redelivered))
    if fields.expiration is not None:
        message.expiry_time = fields.expiration / 1000
        if (left := fields.expiration / 1000 - time.time()) < _LONGEST_TTL_S:
            message.ttl = max(left, 0.001)
    if (content_type := _read(raw.get(CONTENT_TYPE_HEADER))) is not None:
        message.content_type = symbol(content_type)
    if (group := _read(raw.get(GROUP_ID_HEADER))) is not None:
        message.group_id = group
        sequence = _read(raw.get(GROUP_SEQUENCE_HEADER)) or ""
        message.group_sequence = (
            int(sequence) if sequence.isdecimal() and len(sequence) < len(str(_INT32)) else 0
        )
    if (user := raw.get(USER_ID_HEADER)) is not None:
        message.user_id = user
    message.annotations = _annotations(fields.delivery_time, destination.kind, raw)
    return bytes(message.encode())


def _message() -> _Message:
    return Message()


# -- the body


def _value_of(message: _Message) -> tuple[bytes | None, bytes | None]:
    """Return the value of the record and that of the header of the body."""
    body: Any = message.body
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), None if message.inferred else BINARY
    if body is None:
        return None, NULL
    if isinstance(body, str) and type(body) is str:
        return body.encode(), TEXT
    data = Data()
    data.put_object(body)
    return bytes(data.encode()), SEQUENCE if message.inferred else VALUE


def _set_body(message: _Message, value: bytes | None, kind: bytes | None) -> None:
    if kind == TEXT and value is not None:
        message.body = value.decode(errors="replace")
        return
    if kind in {VALUE, SEQUENCE} and value is not None:
        with contextlib.suppress(ValueError):  # a malformed value goes out as bytes
            message.body = decoded(value, kind)
            message.inferred = kind == SEQUENCE
            return
    if value is None and kind == NULL:
        message.body = None
        return
    message.inferred = kind != BINARY
    message.body = value or b""


# -- properties


def _properties_of(given: Mapping[Any, Any]) -> tuple[dict[str, Property], bytes | None]:
    """Return the properties, and the header with the exact types of numbers."""
    properties: dict[str, Property] = {}
    words: list[str] = []
    for name, value in given.items():
        properties[str(name)], word = _property(str(name), value)
        words += [f"{name}={word}"] if word else []
    return properties, ";".join(words).encode() if words else None


def _property(name: str, value: Any) -> tuple[Property, str | None]:  # noqa: ANN401 - of any type of AMQP
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value, None
    if isinstance(value, bytes | memoryview):
        return bytes(value), None
    if isinstance(value, uuid.UUID):
        return str(value), None
    word = _WORDS.get(type(value))
    if word is None or (isinstance(value, int) and not -_INT64 <= value < _INT64):
        raise Refused(
            NOT_IMPLEMENTED, f"The property {name} has a type or a value that a message cannot have."
        )
    return float(value) if isinstance(value, float) else int(value), word


def _typed(properties: Mapping[str, Property], numbers: bytes | None) -> dict[str, Any] | None:
    entries = (entry.partition("=") for entry in (numbers or b"").decode(errors="replace").split(";"))
    words = {name: word for name, _, word in entries}
    return {name: _number(value, words.get(name)) for name, value in properties.items()} or None


def _number(value: Property, word: str | None) -> Any:  # noqa: ANN401 - of a type of AMQP
    """Return a value with its exact type; an int that has none is as short as it can be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    kind = _NUMBERS.get(word or "")
    least, most = _RANGES.get(word or "", (-_INT64, _INT64 - 1))
    if (
        kind is not None
        and issubclass(kind, type(value))
        and (isinstance(value, float) or least <= value <= most)
    ):
        return kind(value)
    return int32(value) if isinstance(value, int) and -_INT32 <= value < _INT32 else value


# -- fields


def _fields_of(message: _Message, sender: Sender) -> JmsFields:
    annotations: Mapping[Any, Any] = message.annotations or {}
    delivery_time = annotations.get(_DELIVERY_TIME)
    return JmsFields(
        message_id=_id_text(message.id),
        correlation_id=_id_text(message.correlation_id),
        type=message.subject,
        priority=min(message.priority, MAX_PRIORITY),
        delivery_mode="PERSISTENT" if message.durable else "NON_PERSISTENT",
        client_id=sender.client_id,
        connection_id=sender.connection_id,
        delivery_time=int(delivery_time) if isinstance(delivery_time, int) and delivery_time > 0 else None,
        expiration=_expiration(message),
    )


def _expiration(message: _Message) -> int | None:
    """Return when a message expires, ms since 1970: its time to live counts from now."""
    live, until = float(message.ttl), float(message.expiry_time)
    if live:
        return round((time.time() + live) * 1000)
    return round(until * 1000) if until else None


def _content_type(message: _Message) -> bytes | None:
    """Return the content type; Proton reads one that is missing as a word without a slash."""
    text = str(message.content_type)
    return text.encode() if "/" in text else None


def _message_type(message: _Message) -> bytes | None:
    """Return the kind of message of JMS, if the client names it."""
    kind = (message.annotations or {}).get(_MESSAGE_TYPE)
    return b"%d" % kind if isinstance(kind, int) else None


def _reply_kind(annotations: Mapping[Any, Any]) -> bytes | None:
    """Return the kind of the destination of replies, if the client names it."""
    kind = annotations.get(_REPLY_TYPE)
    return b"%d" % kind if isinstance(kind, int) else None


def _annotations(delivery_time: int | None, kind: Kind, raw: Mapping[str, bytes | None]) -> dict[Any, Any]:
    annotations: dict[Any, Any] = {_TO_TYPE: byte(kind)}
    message_type, reply_kind = raw.get(MESSAGE_TYPE_HEADER), raw.get(REPLY_KIND_HEADER)
    if message_type is not None and message_type in _MESSAGE_TYPES:
        annotations[_MESSAGE_TYPE] = byte(int(message_type))
    if reply_kind is not None and reply_kind in _KINDS:
        annotations[_REPLY_TYPE] = byte(int(reply_kind))
    if delivery_time is not None:
        annotations[_DELIVERY_TIME] = timestamp(delivery_time)
    return annotations


def _id_text(value: Any) -> str | None:  # noqa: ANN401 - text, number, UUID or bytes
    if value is None:
        return None
    if isinstance(value, bytes | memoryview):
        return f"ID:AMQP_BINARY:{bytes(value).hex().upper()}"
    if isinstance(value, uuid.UUID):
        return f"ID:AMQP_UUID:{value}"
    if isinstance(value, int):
        return f"ID:AMQP_ULONG:{int(value)}"
    return str(value)


def _text(value: str | None) -> bytes | None:
    return None if value is None else str(value).encode()


def _read(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")
