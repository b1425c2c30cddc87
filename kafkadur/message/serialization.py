"""Serializers and deserializers of an application, called as confluent-kafka's clients call theirs.

They are callables `(data, SerializationContext) -> data`: those of `confluent_kafka.serialization` and
`confluent_kafka.schema_registry`, and plain functions. `delivery.py` decides when a delivery is deserialized,
and `aio/running.py` handles messages that cannot be.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from confluent_kafka import Message
from confluent_kafka.serialization import MessageField, SerializationContext
from typing_extensions import TypeVar

from kafkadur_sharing.errors import IllegalState, Undecodable, Unencodable

T = TypeVar("T")

#: Makes an object from a value or key; also called for None (a tombstone, a message without a key).
Deserializer: TypeAlias = Callable[[bytes | None, SerializationContext], T]
#: Makes a value or key from an object; not called for None (a tombstone, no key).
Serializer: TypeAlias = Callable[[T, SerializationContext], str | bytes | None]
#: Kafka headers for a serializer, which may add some.
Headers: TypeAlias = list[tuple[str, bytes | None]]

#: Packages of HTTP clients, whose errors count as temporary.
_TRANSPORTS = ("httpx", "httpcore", "requests", "urllib3", "aiohttp")
#: HTTP status codes below 500 that may be temporary.
_MAY_CHANGE = (401, 403, 407, 408, 425, 429)


class Decoding:
    """The deserializers of one subscription."""

    __slots__ = ("_display", "_key", "_value")

    def __init__(
        self,
        *,
        key: Deserializer[Any] | None = None,
        value: Deserializer[Any] | None = None,
        display: str = "",
    ) -> None:
        """`display` is the subscription's name for people. Raises `IllegalState` for a wrong deserializer."""
        self._key = _checked(key, "key_deserializer")
        self._value = _checked(value, "value_deserializer")
        self._display = display

    @property
    def is_raw(self) -> bool:
        """Whether keys and values are bytes."""
        return self._key is None and self._value is None

    @property
    def keeps_values(self) -> bool:
        """Whether values are bytes."""
        return self._value is None

    def value(self, message: Message) -> Any:  # noqa: ANN401 - what the deserializer makes
        """Return the value of a record; raises `Undecodable`."""
        raw = message.value()
        return raw if self._value is None else self._decode(self._value, MessageField.VALUE, raw, message)

    def key(self, message: Message) -> Any:  # noqa: ANN401 - what the deserializer makes
        """Return the key of a record; raises `Undecodable`."""
        raw = message.key()
        return raw if self._key is None else self._decode(self._key, MessageField.KEY, raw, message)

    def _decode(
        self, deserializer: Deserializer[Any], field: MessageField, raw: bytes | None, message: Message
    ) -> object:
        headers: Any = message.headers()
        topic, partition, offset = message.topic() or "", message.partition(), message.offset()
        try:
            result = deserializer(raw, SerializationContext(topic, field, headers))
        except Exception as error:
            transient = may_heal(error)
            raise Undecodable(
                f"The {field} of the message cannot be deserialized.",
                field=str(field),
                topic=topic,
                partition=partition,
                offset=offset,
                transient=transient,
                state=f"{topic}[{partition}]@{offset}, {name_of(deserializer)} raised {type(error).__name__}",
                owner=f"subscription {self._display}",
                remedy="roll the message back until what the deserializer asks answers again"
                if transient
                else f"reject the message, or correct {field}_deserializer; the bytes are in raw_{field}",
            ) from error
        return _synchronous(result, deserializer, f"{field}_deserializer")


class Encoding:
    """The serializers of one producer."""

    __slots__ = ("_key", "_value")

    def __init__(self, *, key: Serializer[Any] | None = None, value: Serializer[Any] | None = None) -> None:
        """Raises `IllegalState` for a wrong serializer."""
        self._key = _checked(key, "key_serializer")
        self._value = _checked(value, "value_serializer")

    @property
    def is_raw(self) -> bool:
        """Whether there are no serializers."""
        return self._key is None and self._value is None

    def encode(self, topic: str, value: Any, key: Any, headers: Headers) -> tuple[Any, Any]:  # noqa: ANN401
        """Return value and key as they are sent; the key is serialized first, and both may add to `headers`.

        Raises `Unencodable`.
        """
        context = SerializationContext(topic, MessageField.KEY, headers)  # type: ignore[arg-type]  # as they are typed
        if self._key is not None and key is not None:
            key = self._encode(self._key, key, context)
        context.field = MessageField.VALUE
        if self._value is not None and value is not None:
            value = self._encode(self._value, value, context)
        return value, key

    @staticmethod
    def _encode(serializer: Serializer[Any], data: object, context: SerializationContext) -> object:
        try:
            result = serializer(data, context)
        except Exception as error:
            raise Unencodable(
                f"The {context.field} of a message cannot be serialized.",
                field=str(context.field),
                topic=context.topic,
                transient=may_heal(error),
                state=f"topic {context.topic}, {name_of(serializer)} raised {type(error).__name__} for "
                f"{type(data).__name__}",
                owner="the producer's caller",
                remedy=f"publish what {context.field}_serializer takes; nothing was sent",
            ) from error
        return _synchronous(result, serializer, f"{context.field}_serializer")


def not_encoded(*, value: object, key: object) -> IllegalState | None:
    """Return the error for a value or key that Kafka's client does not take: not str, bytes or None."""
    for part, given in (("value", value), ("key", key)):
        if given is not None and not isinstance(given, str | bytes):
            kind = type(given).__name__
            return IllegalState(
                f"The {part} of a message cannot be of type {kind}.",
                state=f"{part} is neither str, bytes nor None",
                owner="the caller",
                remedy=f"encode it, as json.dumps does, or make the producer with a {part}_serializer",
            )
    return None


def _checked(given: Any, parameter: str) -> Callable[..., Any] | None:  # noqa: ANN401 - checked here
    if given is None or (callable(given) and not inspect.isclass(given)):
        return given
    raise IllegalState(
        f"{parameter} cannot be used.",
        state=f"{given!r} is no callable (data, SerializationContext)",
        owner="the caller",
        remedy="give a function or an object such as StringSerializer(), not its class and not its builder",
    )


def _synchronous(result: object, used: Callable[..., Any], parameter: str) -> object:
    """Return the result of a callable; raises `IllegalState` for a coroutine."""
    if inspect.iscoroutine(result):
        result.close()
        raise IllegalState(
            f"{parameter} is asynchronous.",
            state=f"{name_of(used)} gave a coroutine",
            owner="the caller",
            remedy="use its synchronous twin: a value is deserialized where it is touched",
        )
    return result


def name_of(used: Callable[..., Any]) -> str:
    """Return the name of a callable for people."""
    return getattr(used, "__qualname__", None) or type(used).__name__


def may_heal(error: BaseException) -> bool:
    """Whether an error may be temporary, such as that of a schema registry that does not answer.

    True for errors of the operating system (such as time-outs and failed connections) and of HTTP clients,
    and for HTTP statuses (`http_status_code`) that say that the server cannot answer now, or not to this
    client.
    """
    return any(_is_outage(link) for link in _chain(error))


def _is_outage(error: BaseException) -> bool:
    status = getattr(error, "http_status_code", None)
    if isinstance(status, int):
        return status in _MAY_CHANGE or status >= 500  # noqa: PLR2004 - errors of the server
    return isinstance(error, OSError) or type(error).__module__.startswith(_TRANSPORTS)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and the errors that it was raised from or while handling."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


#: The decoding of a subscription without deserializers.
RAW = Decoding()
