"""Serializers and deserializers by themselves: what they are called with, what becomes of their errors."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.serialization import (
    IntegerDeserializer,
    MessageField,
    SerializationContext,
    SerializationError,
    StringSerializer,
)

import kafkadur
from kafkadur import IllegalState, Undecodable, Unencodable
from kafkadur.message.serialization import RAW, Decoding, Encoding, may_heal


def record(value: bytes | None = b"v", key: bytes | None = b"k", **more: Any) -> Message:
    headers: Any = [("h", b"1")]
    return Message(topic="t", partition=2, offset=7, key=key, value=value, headers=headers, **more)


class Calls:
    """A callable that notes what it is called with."""

    def __init__(self, answer: object = "answer") -> None:
        self.answer = answer
        self.seen: list[tuple[object, str, MessageField, object]] = []

    def __call__(self, data: Any, context: SerializationContext) -> Any:
        assert type(context) is SerializationContext
        self.seen.append((data, context.topic, context.field, context.headers))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_deserializers_get_bytes_and_a_context() -> None:
    key, value = Calls(), Calls()
    decoding = Decoding(key=key, value=value)
    assert decoding.value(record()) == "answer"
    assert decoding.key(record()) == "answer"
    assert value.seen == [(b"v", "t", MessageField.VALUE, [("h", b"1")])]
    assert key.seen == [(b"k", "t", MessageField.KEY, [("h", b"1")])]


def test_deserializers_are_called_for_nothing_too() -> None:
    key, value = Calls(), Calls()
    decoding = Decoding(key=key, value=value)
    decoding.value(record(value=None))
    decoding.key(record(key=None))
    assert (value.seen[0][0], key.seen[0][0]) == (None, None)


def test_without_deserializers_bytes_stay_bytes() -> None:
    assert RAW.is_raw
    assert RAW.keeps_values
    only_key = Decoding(key=Calls())
    assert not only_key.is_raw
    assert only_key.keeps_values
    assert only_key.value(record()) == b"v"
    assert Decoding(value=Calls()).key(record()) == b"k"


def test_undecodable_says_where_and_why_and_shows_no_payload() -> None:
    decoding = Decoding(value=IntegerDeserializer(), display="orders/d")
    with pytest.raises(Undecodable) as caught:
        decoding.value(record(value=b"secret"))
    error = caught.value
    assert (error.field, error.topic, error.partition, error.offset) == ("value", "t", 2, 7)
    assert isinstance(error.__cause__, SerializationError)
    assert error.state == "t[2]@7, IntegerDeserializer raised SerializationError"
    assert error.owner == "subscription orders/d"
    assert "raw_value" in (error.remedy or "")
    assert "secret" not in str(error)
    assert not error.transient
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.offset, again.field) == (str(error), 7, "value")


class Answered(Exception):
    """As a schema registry's client raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.http_status_code = status


class ConnectFailed(Exception):
    """As an HTTP client raises it."""


ConnectFailed.__module__ = "httpx"


@pytest.mark.parametrize(
    ("error", "heals"),
    [
        (ValueError("x"), False),
        (SerializationError("x"), False),
        (json.JSONDecodeError("x", "y", 0), False),
        (ConnectionRefusedError("x"), True),
        (TimeoutError("x"), True),
        (ConnectFailed("x"), True),
        (Answered(404), False),
        (Answered(422), False),
        (Answered(401), True),
        (Answered(429), True),
        (Answered(500), True),
        (Answered(503), True),
        (Answered(-1), False),
    ],
)
def test_an_outage_is_told_from_a_bad_message(error: Exception, *, heals: bool) -> None:
    assert may_heal(error) is heals
    outer = ValueError("outer")
    outer.__cause__ = error
    assert may_heal(outer) is heals
    with pytest.raises(Undecodable) as caught:
        Decoding(value=Calls(error)).value(record())
    assert caught.value.transient is heals
    assert ("answers again" in (caught.value.remedy or "")) is heals


def test_an_error_that_is_its_own_cause_is_looked_at_once() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert not may_heal(first)


@pytest.mark.parametrize("wrong", [IntegerDeserializer, "json", 5, object()])
@pytest.mark.parametrize("field", ["key", "value"])
def test_what_cannot_be_called_is_refused(wrong: Any, field: str) -> None:
    for made in (Decoding, Encoding):
        with pytest.raises(IllegalState) as caught:
            made(**{field: wrong})
        assert f"{field}_" in str(caught.value)
        assert caught.value.remedy


def test_asynchronous_ones_are_refused_and_leave_no_coroutine() -> None:
    async def later(_data: object, _context: SerializationContext) -> bytes:
        return b""

    refused: Any = later
    with pytest.raises(IllegalState, match="asynchronous"):
        Decoding(value=refused).value(record())
    with pytest.raises(IllegalState, match="asynchronous"):
        Encoding(value=refused).encode("t", "v", None, [])


def test_serializers_get_key_first_and_may_add_headers() -> None:
    order: list[str] = []

    def stamp(data: Any, context: SerializationContext) -> bytes:
        order.append(str(context.field))
        assert isinstance(context.headers, list)
        context.headers.append((f"schema-{context.field}", b"id"))
        return str(data).encode()

    headers: list[tuple[str, bytes | None]] = [("mine", b"1")]
    assert Encoding(key=stamp, value=stamp).encode("t", 1, 2, headers) == (b"1", b"2")
    assert order == ["key", "value"]
    assert headers == [("mine", b"1"), ("schema-key", b"id"), ("schema-value", b"id")]


def test_none_is_a_tombstone_for_every_serializer() -> None:
    calls = Calls(b"x")
    assert Encoding(key=calls, value=calls).encode("t", None, None, []) == (None, None)
    assert calls.seen == []


def test_unencodable_says_what_was_wrong_and_shows_no_payload() -> None:
    with pytest.raises(Unencodable) as caught:
        Encoding(value=StringSerializer("ascii")).encode("t", "s\u00e9cret", None, [])
    error = caught.value
    assert (error.field, error.topic, error.transient) == ("value", "t", False)
    assert isinstance(error.__cause__, SerializationError)
    assert error.state == "topic t, StringSerializer raised SerializationError for str"
    assert "cret" not in str(error)
    assert pickle.loads(pickle.dumps(error)).topic == "t"


def test_delivery_types_can_be_written_at_run_time() -> None:
    assert kafkadur.Delivery[int].__origin__ is kafkadur.Delivery  # type: ignore[attr-defined]
    assert kafkadur.Delivery[int, str].__args__ == (int, str)  # type: ignore[attr-defined]
    assert kafkadur.Batch[int].__origin__ is kafkadur.Batch  # type: ignore[attr-defined]
    assert kafkadur.Producer[int].__origin__ is kafkadur.Producer  # type: ignore[attr-defined]
