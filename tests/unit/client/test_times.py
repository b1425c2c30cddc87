"""Delivery times and expirations: what is sent, what is read, and what is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Message

from kafkadur.message.headers import JmsFields, decode_fields, encode_fields
from kafkadur.message.times import Times, of_headers, of_messages, when_sent
from kafkadur_sharing.errors import IllegalState

NOW = 1_790_000_000.0
NOW_MS = 1_790_000_000_000


def sent(**asked: Any) -> Times:
    usual = {"delay": None, "not_before": None, "time_to_live": None}
    return when_sent(lambda: NOW, **(usual | asked))


@pytest.mark.parametrize(
    ("asked", "times"),
    [
        ({"delay": 1.5}, Times(NOW_MS + 1_500, None)),
        ({"delay": timedelta(days=400)}, Times(NOW_MS + 400 * 86_400_000, None)),
        ({"delay": 0}, Times(None, None)),
        ({"not_before": datetime.fromtimestamp(NOW + 60, UTC)}, Times(NOW_MS + 60_000, None)),
        ({"not_before": datetime(2020, 1, 1, tzinfo=UTC)}, Times(None, None)),
        ({"time_to_live": 2}, Times(None, NOW_MS + 2_000)),
        ({"time_to_live": timedelta(seconds=3), "delay": 2}, Times(NOW_MS + 2_000, NOW_MS + 3_000)),
    ],
)
def test_times_are_those_of_the_clock_when_it_is_sent(asked: dict[str, Any], times: Times) -> None:
    assert sent(**asked) == times


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"delay": -1}, "delay cannot be -1"),
        ({"delay": float("nan")}, "delay cannot be nan"),
        ({"delay": "5"}, "delay cannot be '5'"),
        ({"delay": True}, "delay cannot be True"),
        ({"delay": timedelta(days=4_000)}, "3,650 days"),
        ({"time_to_live": -1}, "time_to_live cannot be -1"),
        ({"time_to_live": 0}, "time_to_live=0 ends before it may be delivered"),
        ({"time_to_live": 2, "delay": 2}, "time_to_live=2 ends before it may be delivered"),
        ({"delay": 1, "not_before": datetime.now(UTC)}, "delay and not_before"),
        ({"not_before": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - this is refused
    ],
)
def test_times_that_cannot_be_are_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(IllegalState) as refused:
        sent(**asked)
    assert said in str(refused.value)


def test_a_message_may_be_delivered_between_its_times() -> None:
    times = Times(100, 200)
    assert [times.allow(now) for now in (99, 100, 199, 200)] == [False, True, True, False]
    assert [times.wait(now) for now in (70, 100, 200)] == [30, 0, 0]
    assert [times.is_over(now) for now in (199, 200)] == [False, True]
    assert Times(None, None).allow(0)


def test_times_are_headers() -> None:
    headers = encode_fields(JmsFields(delivery_time=5, expiration=6))
    assert headers == [("JMSDeliveryTime", b"5"), ("JMSExpiration", b"6")]
    fields = decode_fields(headers)
    assert (fields.delivery_time, fields.expiration) == (5, 6)
    assert of_headers(headers) == Times(5, 6)


@pytest.mark.parametrize("value", [None, b"", b"0", b"-5", b"5.0", b" 5", b"1" * 16, b"\xff"])
def test_a_header_that_is_no_time_does_not_count(value: bytes | None) -> None:
    assert of_headers([("JMSExpiration", value)]) is None
    assert decode_fields([("JMSExpiration", value)]).expiration is None


def test_only_messages_with_times_are_named() -> None:
    headers: list[Any] = [
        None,
        [("color", b"red")],
        [("JMSExpiration", b"5"), ("JMSExpiration", b"7")],
        [("JMSDeliveryTime", b"never")],
    ]
    messages = [Message(topic="t", value=b"x", headers=each) for each in headers]
    assert of_messages(messages) == {2: Times(None, 7)}, "the last header of a name counts"
