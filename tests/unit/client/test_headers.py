"""The header codec: what is written comes back, others can read it, and nothing foreign is an error."""

from __future__ import annotations

import enum
import math
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkadur.message import headers
from kafkadur.message.headers import (
    NO_FIELDS,
    DeliveryMode,
    JmsFields,
    Property,
    decode,
    decode_fields,
    decode_properties,
    encode,
    message_id_prefix,
)
from kafkadur.producer.configuration import sender_headers
from kafkadur_sharing.definition import HeaderType
from kafkadur_sharing.errors import InvalidProperty
from kafkadur_sharing.names import SELECTOR_WORDS

Raw = list[tuple[str, bytes | None]]

# --- what is written comes back -----------------------------------------------------------------------------

names = st.one_of(
    st.text(string.ascii_letters + "_$", min_size=1, max_size=12),
    st.sampled_from(["größe", "变量", "a1", "$", "_", "jms", "x" * 300, "e", "inf"]),
).filter(lambda name: name.upper() not in SELECTOR_WORDS and not name.startswith("JMS"))
#: Text and bytes that look like something else.
nasty = st.sampled_from(
    ["", "12", "1.5", "true", "null", "\x00", "a=i;b=f", "kafkadur-types", "\ufeff", "é" * 50, "\U0001f600"]
)
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"])),
    nasty,
    st.binary(),
    nasty.map(str.encode),
)
texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]))
modes: st.SearchStrategy[DeliveryMode] = st.sampled_from(["PERSISTENT", "NON_PERSISTENT"])
times = st.none() | st.integers(1, 10**15 - 1)
fields_ = st.builds(
    JmsFields,
    message_id=texts,
    correlation_id=texts,
    type=texts,
    priority=st.integers(0, 9),
    delivery_mode=modes,
    client_id=texts,
    connection_id=texts,
    delivery_time=times,
    expiration=times,
)


def same(one: Property, other: Property) -> bool:
    """Equal in type and value; NaN equals NaN, and 0.0 is not -0.0."""
    if type(one) is not type(other):
        return False
    return repr(one) == repr(other) if isinstance(one, float) else one == other


@given(st.dictionaries(names, values, max_size=8), fields_)
def test_round_trip(properties: dict[str, Property], fields: JmsFields) -> None:
    decoded = decode(encode(properties, fields))
    assert list(decoded.properties) == list(properties)
    assert all(same(decoded.properties[name], value) for name, value in properties.items())
    assert decoded.fields == fields


@given(st.dictionaries(names, values, max_size=8), fields_)
def test_halves_are_the_halves_of_the_whole(properties: dict[str, Property], fields: JmsFields) -> None:
    raw = encode(properties, fields)
    whole = decode(raw)
    assert repr(decode_properties(raw)) == repr(whole.properties)
    assert decode_fields(raw) == whole.fields


@given(st.dictionaries(names, values, max_size=8))
def test_every_value_is_readable_text_for_others(properties: dict[str, Property]) -> None:
    raw = dict(encode(properties))
    for name, value in properties.items():
        if isinstance(value, bool):
            assert raw[name] == (b"true" if value else b"false")
        elif isinstance(value, bytes):
            assert raw[name] == value
        elif value is None:
            assert raw[name] is None
        else:
            assert (raw[name] or b"").decode() == str(value)


# --- exact bytes --------------------------------------------------------------------------------------------


def test_companion_lists_what_is_neither_text_nor_none() -> None:
    properties: dict[str, Property] = {
        "amount": 12.5,
        "active": True,
        "raw": b"\xff",
        "n": -7,
        "region": "EU",
        "nothing": None,
    }
    assert encode(properties) == [
        ("amount", b"12.5"),
        ("active", b"true"),
        ("raw", b"\xff"),
        ("n", b"-7"),
        ("region", b"EU"),
        ("nothing", None),
        ("kafkadur-types", b"amount=f;active=b;raw=x;n=i"),
    ]


def test_text_needs_no_companion_and_defaults_no_header() -> None:
    assert encode({"region": "EU"}) == [("region", b"EU")]
    assert encode() == []
    assert encode({}, JmsFields(priority=4, delivery_mode="PERSISTENT")) == []


def test_fields_travel_under_their_jms_names() -> None:
    fields = JmsFields(
        message_id="ID:1",
        correlation_id="c",
        type="invoice",
        priority=9,
        delivery_mode="NON_PERSISTENT",
        client_id="app",
        connection_id="conn-1",
        delivery_time=1_790_000_000_000,
        expiration=1_790_000_000_001,
    )
    assert encode(None, fields) == [
        ("JMSMessageID", b"ID:1"),
        ("JMSCorrelationID", b"c"),
        ("JMSType", b"invoice"),
        ("JMSPriority", b"9"),
        ("JMSDeliveryMode", b"NON_PERSISTENT"),
        ("kafkadur-client-id", b"app"),
        ("kafkadur-connection-id", b"conn-1"),
        ("JMSDeliveryTime", b"1790000000000"),
        ("JMSExpiration", b"1790000000001"),
    ]


CONNECTION = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("message_id", "named", "expected"),
    [
        (f"ID:{CONNECTION}-00ff00ff-1", None, CONNECTION),
        (f"ID:{CONNECTION}-00ff00ff-12345678901234567890", None, CONNECTION),
        (f"ID:{CONNECTION}-00ff00ff-1", "conn-1", "conn-1"),
        ("ID:1", "conn-1", "conn-1"),
        ("ID:1", None, None),
        (None, None, None),
        *(
            (wrong, None, None)
            for wrong in (
                f"{CONNECTION}-00ff00ff-1",
                f"ID:{CONNECTION}",
                f"ID:{CONNECTION}-00ff00ff-",
                f"ID:{CONNECTION}-00ff00ff-1\n",
                f"ID:{CONNECTION}-00ff00ff-1:1",
                f"ID:{CONNECTION}-00ff00f-1",
                f"ID:{CONNECTION[1:]}-00ff00ff-1",
                f"ID:{CONNECTION.upper()}-00ff00ff-1",
                f"ID:{CONNECTION}-00ff00ff-123456789012345678901",
            )
        ),
    ],
)
def test_the_sender_is_in_a_header_or_in_the_message_id(
    message_id: str | None, named: str | None, expected: str | None
) -> None:
    headers = encode(None, JmsFields(message_id=message_id, connection_id=named))
    assert decode(headers).fields.connection_id == expected


def test_a_header_without_a_value_names_no_sender() -> None:
    headers = encode(None, JmsFields(message_id=f"ID:{CONNECTION}-00ff00ff-1"))
    assert decode([*headers, ("kafkadur-connection-id", None)]).fields.connection_id is None


@pytest.mark.parametrize(
    ("client_id", "connection_id", "brief"),
    [
        (None, CONNECTION, []),
        ("app", CONNECTION, ["kafkadur-client-id"]),
        ("app", "conn-1", ["kafkadur-client-id", "kafkadur-connection-id"]),
    ],
)
def test_a_message_leaves_out_the_header_that_its_id_makes_unnecessary(
    client_id: str | None, connection_id: str, brief: list[str]
) -> None:
    sender = sender_headers(client_id, connection_id, alone=True)
    assert [name for name, _ in sender.brief] == brief
    prefix = message_id_prefix(connection_id, "00ff00ff")
    for written in sender:
        fields = decode([("JMSMessageID", f"{prefix}7".encode()), *written]).fields
        assert (fields.client_id, fields.connection_id) == (client_id, connection_id)


def test_the_header_stays_where_others_may_add_headers() -> None:
    """Readers take types from a definition where nothing says that a producer of kafkadur sent a message."""
    sender = sender_headers(None, CONNECTION, alone=False)
    assert sender.brief == sender.full == [("kafkadur-connection-id", CONNECTION.encode())]


class Colour(enum.IntEnum):
    """An int that prints itself as something else."""

    RED = 3


class Loud(float):
    """A float that prints itself as something else, as numpy's do."""

    def __repr__(self) -> str:
        return "LOUD"


def test_subclasses_are_written_as_their_base() -> None:
    assert encode({"c": Colour.RED, "d": Loud(1.5)})[:2] == [("c", b"3"), ("d", b"1.5")]


# --- refused on the way out ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"JMSPriority": 3}, "reserved"),
        ({"JMSXAnything": "x"}, "reserved"),
        ({"kafkadur-types": "x"}, "reserved"),
        ({"kafkadur-own": "x"}, "reserved"),
        ({"a-b": 1}, "identifier"),
        ({"": 1}, "identifier"),
        ({"and": 1}, "selector"),
        ({"n": 2**63}, "64 bits"),
        ({"n": -(2**63) - 1}, "64 bits"),
        ({"s": "\ud800"}, "UTF-8"),
        ({"l": [1]}, "list"),
        ({"o": object()}, "object"),
    ],
)
def test_what_cannot_be_a_property_is_refused(properties: dict[str, Property], text: str) -> None:
    for _ in range(2):  # The second time a cache might have forgotten that the name is wrong.
        with pytest.raises(InvalidProperty, match=text) as caught:
            encode(properties)
        assert caught.value.remedy


@pytest.mark.parametrize(
    "fields",
    [
        JmsFields(priority=10),
        JmsFields(priority=-1),
        JmsFields(delivery_mode="SOMETIMES"),  # type: ignore[arg-type]
        JmsFields(correlation_id=7),  # type: ignore[arg-type]
        JmsFields(type="\udfff"),
        JmsFields(expiration=0),
        JmsFields(expiration=-1),
        JmsFields(delivery_time=10**15),
        JmsFields(delivery_time=1.5),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_a_field_is_refused(fields: JmsFields) -> None:
    with pytest.raises(InvalidProperty):
        encode(None, fields)


def test_a_refusal_shows_no_value() -> None:
    with pytest.raises(InvalidProperty) as caught:
        encode({"secret": "hunter2\ud800"})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


# --- reading what others wrote ------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.text(max_size=12) | st.sampled_from(["kafkadur-types", "JMSPriority", "a"]),
            st.none() | st.binary(),
        )
    )
)
def test_reading_never_fails(raw: Raw) -> None:
    decode(raw, {"a": "int", "b": "bool"})


@given(st.dictionaries(names, st.binary(), max_size=4), st.text("abc=;ifbx$é", max_size=40))
def test_a_made_up_companion_never_loses_a_value(values_: dict[str, bytes], companion: str) -> None:
    raw: Raw = [*values_.items(), ("kafkadur-types", companion.encode())]
    properties = decode(raw).properties
    assert list(properties) == list(values_)


@pytest.mark.parametrize(
    ("letter", "raw", "value"),
    [
        ("i", b"x", "x"),
        ("i", b"", ""),
        ("i", b"1.5", "1.5"),
        ("i", b" 1", " 1"),
        ("i", b"1_0", "1_0"),
        ("i", "\u0661".encode(), "\u0661"),
        ("i", b"9223372036854775807", 2**63 - 1),
        ("i", b"9223372036854775808", "9223372036854775808"),
        ("i", b"9" * 5000, "9" * 5000),
        ("i", b"\xff", b"\xff"),
        ("i", b"+7", 7),
        ("f", b"1.0E10", 1e10),
        ("f", b"Infinity", math.inf),
        ("f", b"-inf", -math.inf),
        ("f", b"1_0.0", "1_0.0"),
        ("f", b"1e", "1e"),
        ("f", b".", "."),
        ("f", b"", ""),
        ("f", b"\xff", b"\xff"),
        ("b", b"true", True),
        ("b", b"false", False),
        ("b", b"True", "True"),
        ("b", b"1", "1"),
        ("x", b"plain", b"plain"),
        ("?", b"12", "12"),
        ("", b"12", "12"),
    ],
)
def test_a_value_that_is_not_what_its_entry_says_is_read_as_text(
    letter: str, raw: bytes, value: Property
) -> None:
    read = decode([("p", raw), ("kafkadur-types", f"p={letter}".encode())]).properties["p"]
    assert same(read, value)


def test_nan_is_read() -> None:
    read = decode([("p", b"NaN"), ("kafkadur-types", b"p=f")]).properties["p"]
    assert isinstance(read, float)
    assert math.isnan(read)


@pytest.mark.parametrize("companion", [b"", b";", b"p", b"p=", b"=i", b"p=i=i", b"\xff\xfe", b"q=i", None])
def test_a_damaged_companion_leaves_text(companion: bytes | None) -> None:
    assert decode([("p", b"12"), ("kafkadur-types", companion)]).properties == {"p": "12"}


def test_good_entries_of_a_damaged_companion_count() -> None:
    assert decode([("p", b"12"), ("kafkadur-types", b"nonsense;p=i;;")]).properties == {"p": 12}


def test_a_huge_companion_is_read_too() -> None:
    companion = b";".join(b"n%d=i" % number for number in range(3000))
    assert len(companion) > 4096
    assert decode([("n2999", b"5"), ("kafkadur-types", companion)]).properties == {"n2999": 5}


def test_of_two_headers_with_one_name_the_last_wins() -> None:
    raw: Raw = [("p", b"1"), ("kafkadur-types", b"p=f"), ("p", b"2"), ("kafkadur-types", b"p=i")]
    assert decode(raw).properties == {"p": 2}


def test_reserved_headers_are_no_properties() -> None:
    raw: Raw = [("JMSXGroupID", b"g"), ("kafkadur-later", b"x"), ("p", b"1")]
    assert decode(raw).properties == {"p": "1"}


def test_no_headers() -> None:
    empty: Raw = []
    for nothing in (None, empty):
        assert decode(nothing) == ({}, NO_FIELDS)
        assert decode_properties(nothing) == {}
        assert decode_fields(nothing) == NO_FIELDS
    first = decode(None).properties
    first["mine"] = 1
    assert decode(None).properties == {}


@pytest.mark.parametrize(
    ("header", "raw", "field", "value"),
    [
        ("JMSPriority", b"high", "priority", 4),
        ("JMSPriority", b"10", "priority", 4),
        ("JMSPriority", None, "priority", 4),
        ("JMSDeliveryMode", b"2", "delivery_mode", "PERSISTENT"),
        ("JMSMessageID", b"\xff", "message_id", None),
        ("JMSMessageID", b"", "message_id", ""),
    ],
)
def test_a_bad_field_is_its_default(header: str, raw: bytes | None, field: str, value: object) -> None:
    assert getattr(decode([(header, raw)]).fields, field) == value


# --- plain producers ----------------------------------------------------------------------------------------

TYPES: dict[str, HeaderType] = {
    "amount": "int",
    "rate": "float",
    "active": "bool",
    "blob": "bytes",
    "name": "str",
}


def test_header_types_read_a_plain_producer() -> None:
    raw: Raw = [
        ("amount", b"5"),
        ("rate", b"0.5"),
        ("active", b"true"),
        ("blob", b"b"),
        ("name", b"7"),
        ("other", b"9"),
    ]
    assert decode(raw, TYPES).properties == {
        "amount": 5,
        "rate": 0.5,
        "active": True,
        "blob": b"b",
        "name": "7",
        "other": "9",
    }


def test_header_types_fall_back_as_the_companion_does() -> None:
    assert decode([("amount", b"many"), ("rate", b"\xff")], TYPES).properties == {
        "amount": "many",
        "rate": b"\xff",
    }


def test_header_types_do_not_touch_what_says_its_types_itself() -> None:
    by_kafkadur = encode({"amount": "5"}, JmsFields(connection_id="conn-1"))
    assert decode(by_kafkadur, TYPES).properties == {"amount": "5"}
    assert decode([("amount", b"5"), ("n", b"1"), ("kafkadur-types", b"n=i")], TYPES).properties == {
        "amount": "5",
        "n": 1,
    }


class Color(enum.IntEnum):
    """A value of a subclass."""

    RED = 3


def test_layouts_of_many_names_are_forgotten() -> None:
    for number in range(3_000):
        assert encode({f"n{number}": 1})[0] == (f"n{number}", b"1")
    assert len(headers._layouts) <= headers._MOST_LAYOUTS  # noqa: SLF001 - nothing else shows what is kept


def test_the_same_names_with_other_types() -> None:
    cases: list[tuple[Any, bytes, str]] = [
        (1, b"1", "i"), (True, b"true", "b"), (1.5, b"1.5", "f"), (Color.RED, b"3", "i"), (b"1", b"1", "x"),
    ]  # fmt: skip
    for value, raw, letter in cases:
        assert encode({"x": value}) == [("x", raw), ("kafkadur-types", f"x={letter}".encode())]
    assert encode({"x": "text"}) == [("x", b"text")]
    assert encode({"x": None}) == [("x", None)]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "\ud800", [], object()])
def test_a_bad_value_among_good_ones_is_named(value: Any) -> None:
    for _ in range(2):  # with and without its layout
        with pytest.raises(InvalidProperty, match="'bad'"):
            encode({"good": 1, "bad": value, "other": "x"})
