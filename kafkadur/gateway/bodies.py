"""Values of records as the bodies of AMQP messages that they are. A header says which kind of body it is."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka.serialization import SerializationContext
from proton import Data

BODY_HEADER: Final = "kafkadur-body"
#: Values of the header: a text; a binary value, which is no data section; none at all; another value; a list
#: of values. Without the header a value is a data section.
TEXT, BINARY, NULL, VALUE, SEQUENCE = b"text", b"binary", b"null", b"value", b"sequence"


def body(data: bytes | None, context: SerializationContext | None = None) -> object:
    """Return the body of a message that a client of AMQP has sent: a `value_deserializer` of `subscribe`.

    It is what the client has sent, as Python objects: str, bytes, None, dict for a map message, list for a
    stream message, numbers. `context` has the headers. A record without the header of the gateway is bytes.
    Raises `ValueError` for a value that is not of its kind.
    """
    headers: Any = None if context is None else context.headers
    return decoded(data, dict(headers or ()).get(BODY_HEADER))


def decoded(value: bytes | None, kind: bytes | None) -> object:
    """Return the body that a value of a kind is; raises `ValueError` for one that is not of its kind."""
    if kind == TEXT and value is not None:
        return value.decode()
    if kind not in {VALUE, SEQUENCE} or value is None:
        return value
    data = Data()
    try:
        data.decode(value)
        data.rewind()
        data.next()
        return _without_views(data.get_object())
    except Exception as error:  # Proton raises many kinds for malformed values
        message = "the value is not one that AMQP encodes"
        raise ValueError(message) from error


def _without_views(value: Any) -> Any:  # noqa: ANN401 - any value of AMQP
    """Return a value with bytes for views, whose memory ends with the decoder."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {_without_views(name): _without_views(each) for name, each in value.items()}
    return [_without_views(each) for each in value] if isinstance(value, list) else value
