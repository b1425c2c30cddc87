"""Records as messages: whatever a record contains, a message comes of it."""

import time

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from hypothesis import given
from hypothesis import strategies as st
from proton import Message

from kafkadur.gateway.bodies import BODY_HEADER
from kafkadur.gateway.conditions import Refused
from kafkadur.gateway.destinations import Destination
from kafkadur.gateway.records import NUMBERS_HEADER, Sender, to_message, to_record

HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["n", "JMSExpiration", "JMSPriority", "JMSXGroupSeq", "JMSXGroupID", "JMSXUserID", "JMSReplyTo",
             "kafkadur-body", "kafkadur-numbers", "kafkadur-types", "kafkadur-content-type",
             "kafkadur-message-type", "JMSDeliveryTime", "JMSMessageID", "JMSType"]
        ),
        st.none()
        | st.binary(max_size=20)
        | st.sampled_from([b"n=byte", b"n=short", b"n=i", b"n=f", b"n=float", b"value", b"sequence", b"text",
                           b"null", b"binary", b"99999999999999", b"300"]),
    ),
    max_size=8,
)  # fmt: skip


def decoded(value: bytes | None, headers: list[tuple[str, bytes | None]]) -> Message:
    """Make a message of a record, and read it as a client does."""
    message = Message()
    message.decode(
        to_message(
            destination=Destination("t"),
            value=value,
            headers=headers,
            timestamp_ms=1,
            attempt=1,
            redelivered=False,
        )
    )
    return message


@given(st.none() | st.binary(max_size=50), HEADERS)
def test_any_record_is_a_message(value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    assert decoded(value, headers).delivery_count == 0


@pytest.mark.parametrize("days", [1, 49, 50, 3_650])
def test_an_expiration_may_be_far_away(days: int) -> None:
    at = int((time.time() + days * 86_400) * 1000)
    message = decoded(b"x", [("JMSExpiration", b"%d" % at)])
    assert message.expiry_time == pytest.approx(at / 1000)
    assert (message.ttl > 0) == (days < 50)


def test_numbers_that_their_type_cannot_hold_are_longer_ones() -> None:
    headers = [("n", b"300"), ("kafkadur-types", b"n=i"), (NUMBERS_HEADER, b"n=byte")]
    properties: object = decoded(b"x", [*headers]).properties
    assert properties == {"n": 300}


@pytest.mark.parametrize("value", [b"", b"\xff", b"\xc1\x05\x02\x45\x45", b"\xc0" * 2_000])
def test_a_value_that_is_no_amqp_goes_out_as_bytes(value: bytes) -> None:
    body: object = decoded(value, [(BODY_HEADER, b"value")]).body
    assert isinstance(body, memoryview | bytes | dict | list)


def test_a_value_that_amqp_encodes_as_null_is_no_body() -> None:
    assert decoded(b"\x40", [(BODY_HEADER, b"value")]).body is None


def test_a_message_that_cannot_be_decoded_is_refused_without_its_contents() -> None:
    secret = b"secret " * 10 + b"\xff"
    encoded = b"\x00\x53\x77\xa1" + bytes([len(secret)]) + secret  # a body that is said to be UTF-8
    with pytest.raises(Refused) as refusal:
        to_record(encoded, Sender(client_id=None, connection_id="c", user=None))
    assert "secret" not in str(refusal.value)
    assert "secret" not in refusal.value.description


def test_the_text_of_a_refusal_is_one_line() -> None:
    assert Refused("amqp:not-found", "no topic a\nb").description == "no topic a\\u000ab"
