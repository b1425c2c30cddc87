"""Selectors as SQL against the client's answers, in real Spark: many selectors and messages in each job."""

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from typing import TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import Column, DataFrame, SparkSession, functions

from kafkadur.fetch.filtering import fields_and_properties
from kafkadur.message.headers import CLIENT_ID_HEADER, CONNECTION_ID_HEADER, JmsFields, Property, encode
from kafkadur_sharing.definition import Definition, HeaderType, SubscriptionType
from kafkadur_sharing.selector import JMS_HEADERS, MAX_NESTING, Selector, Value
from kafkadur_spark.header_sql import properties
from kafkadur_spark.selector_sql import condition, native, over_properties, taking
from tests.unit.sharing.test_selector import ARITHMETIC, CONDITIONS, GRAMMAR, PROPERTIES, ROWS
from tests.unit.sharing.test_selector_model import NAMES, conditions
from tests.unit.sharing.test_selector_model import PROPERTIES as RANDOM_PROPERTIES

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]

T = TypeVar("T")
Headers = list[tuple[str, bytes | None]] | None
Types = Mapping[str, HeaderType] | None
Truth = bool | None

#: ms
TIMESTAMP = 1_700_000_000_123
#: How many selectors one expression evaluates here: Spark takes long to look at each.
TOGETHER = 25


@pytest.fixture(
    scope="module",
    params=[pytest.param("true", id="ansi"), pytest.param("false", id="lenient", marks=pytest.mark.long)],
)
def session(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    """Provide Spark with ANSI mode and without, in a time zone that is not Kafka's."""
    spark.conf.set("spark.sql.ansi.enabled", request.param)
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    yield spark
    spark.conf.unset("spark.sql.ansi.enabled")
    spark.conf.unset("spark.sql.session.timeZone")


def source(spark: SparkSession, messages: Sequence[Headers]) -> DataFrame:
    """Return a frame with the columns of the Kafka source that matter."""
    at = dt.datetime.fromtimestamp(TIMESTAMP / 1000, dt.UTC)
    return spark.createDataFrame(
        [(headers, at) for headers in messages],
        "headers array<struct<key: string, value: binary>>, timestamp timestamp",
    )


def answers(spark: SparkSession, columns: Sequence[Column], messages: Sequence[Headers]) -> list[list[Truth]]:
    """Return what Spark says, by column and message."""
    named = [column.alias(f"c{number}") for number, column in enumerate(columns)]
    rows = source(spark, messages).select(*named).collect()
    return [[row[number] for row in rows] for number in range(len(columns))]


def client(text: str, messages: Sequence[Headers], types: Types = None) -> list[Truth]:
    """Return what the client says."""
    selector = Selector(text)
    return [selector.matches(fields_and_properties(headers, TIMESTAMP, types)) for headers in messages]


def together(texts: Sequence[str], types: Types) -> Column:
    """Return the answers of many selectors, which have names, as one array."""
    selectors = [Selector(text) for text in texts]
    names = frozenset[str]().union(*(selector.names for selector in selectors))
    found = [over_properties(selector) for selector in selectors]
    assert None not in found, "not SQL"
    all_of_them = ", ".join(f"boolean({sql})" for sql in found)
    return functions.expr(f"get(transform({properties(names, types)}, p -> array({all_of_them})), 0)")


def assert_same(
    spark: SparkSession, texts: Sequence[str], messages: Sequence[Headers], types: Types = None
) -> None:
    """Compare Spark's answers with the client's, of all messages for all selectors."""
    columns = [
        together(texts[first : first + TOGETHER], types).alias(f"c{first}")
        for first in range(0, len(texts), TOGETHER)
    ]
    rows = [list(chain.from_iterable(row)) for row in source(spark, messages).select(*columns).collect()]
    for number, text in enumerate(texts):
        found = [row[number] for row in rows]
        expected = client(text, messages, types)
        assert found == expected, [
            (text, *each) for each in zip(messages, found, expected, strict=True) if each[1] is not each[2]
        ][:3]


def drawn(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """Return so many values: a Spark job for each of them would take too long."""
    found: list[T] = []

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(strategy)
    def collect(value: T) -> None:
        found.append(value)

    collect()
    return found


def sent(some: Mapping[str, Value]) -> Headers:
    """Return the headers of a message with these properties; the JMS type is a field."""
    kind = some.get("JMSType")
    fields = JmsFields(type=kind if isinstance(kind, str) else None)
    return list(encode({name: value for name, value in some.items() if name != "JMSType"}, fields))


# --- selectors ----------------------------------------------------------------------------------------------


def test_the_table(session: SparkSession) -> None:
    rows = [*ROWS.values(), *GRAMMAR, *((text, truth) for truth in CONDITIONS for text in CONDITIONS[truth])]
    texts = [text for text, _ in rows]
    assert [client(text, [sent(PROPERTIES)]) for text in texts] == [[truth] for _, truth in rows]
    assert_same(session, texts, [sent(PROPERTIES), [], None])


#: Each of what arithmetic and comparing make a difference between.
EDGES: list[Property] = [
    0, 1, -1, 2, -(2**63), 2**63 - 1, 2**53 + 1, 2.0**53, 0.0, -0.0, 0.5, math.inf, -math.inf, math.nan,
    2.0**63,     "1", "", True, False, b"1", None,
]  # fmt: skip
TERMS = [
    *(f"a {sign} b {compare} {n}" for sign in "+-*/" for compare in ("=", "<", "<>") for n in ("1", "0.")),
    *(f"a {sign} {n} = b" for sign in "+-*/" for n in ("0", "-1", "2", "0.", "-0.", "(1 - 1)", "(0 - 1)")),
    *(f"{n} {sign} a = b" for sign in "+-*/" for n in ("0", "-1", "-9223372036854775808", "1.", "-0.")),
    *(f"a {compare} b" for compare in ("=", "<>", "<", "<=", ">", ">=")),
    *(f"a {compare} {n}" for compare in ("=", "<>", "<", ">=") for n in ("1", "1.", "-(0. / 0.)")),
    *(f"a {compare} {n}" for compare in ("=", "<>") for n in ("'1'", "TRUE", "(b = 1)", "(b)", "''")),
    "1 / (a / b) < 0", "a / -b / b = 1", "a BETWEEN b AND b", "a NOT BETWEEN b AND 1", "-a = b", "+a = b",
    "- -a = b", "a = 0x7B", "a = -01", "a <> 0b1", "a NOT IN ('1', '')", "NOT (a IN ('1'))", "a NOT LIKE '1'",
    "a = 9007199254740993", "a <> 9007199254740993.", "a < 9007199254740993",
    "a * b - a / b > 0", "a", "a AND b", "a OR NOT b", "1 / 0 = 1", "a * 0.1 + b * 3 - 7 = 0",
]  # fmt: skip


def test_numbers_and_what_is_none(session: SparkSession) -> None:
    messages = [encode({"a": a, "b": b}) for a, b in product(EDGES, EDGES)]
    assert_same(session, TERMS, messages)
    terms = [f"{term} {sign} x" for term, _ in ARITHMETIC for sign in ("=", "<>", "<")]
    assert_same(session, terms, [sent({**PROPERTIES, "x": value}) for _, value in ARITHMETIC])


@pytest.mark.long
def test_random_selectors(session: SparkSession) -> None:
    texts = [tree.text for tree in drawn(conditions, 50)]
    texts = [text for text in texts if over_properties(Selector(text)) is not None]
    assert len(texts) > 40
    messages = [sent({**some}) for some in drawn(RANDOM_PROPERTIES, 80)]
    assert_same(session, texts, [*messages, None])


PIECE = st.sampled_from([*"ab%_!.\\$^[(|", "é", "😀", "\n", "\r", "E", "Q"])


@pytest.mark.long
def test_random_patterns(spark: SparkSession) -> None:
    """Texts are made of the patterns' characters, so that some match."""
    patterns = [text.replace("'", "''") for text in drawn(st.lists(PIECE, max_size=8).map("".join), 100)]
    patterns += ["%a" * 20 + "%", "a%a", "a_%", "%", "", "%%", "_" * 5, "%_%"]
    texts = [f"a LIKE '{text}'" for text in patterns]
    texts += [
        f"a NOT LIKE '{text}' ESCAPE '!'" for text in patterns if not text.replace("!!", "").endswith("!")
    ]
    values = [*drawn(st.lists(PIECE, max_size=8).map("".join), 200), *patterns, "a" * 1000 + "b"]
    assert_same(spark, texts, [sent({"a": value}) for value in values])


DEEP_OR_WIDE = {
    "not": "NOT " * MAX_NESTING + "a",
    "parentheses": "(" * MAX_NESTING + "a = 1" + ")" * MAX_NESTING,
    "equal": "a = (" * MAX_NESTING + "a" + ")" * MAX_NESTING,
    "unequal": "TRUE <> (a = 1 AND " * MAX_NESTING + "a" + ")" * MAX_NESTING,
    "or": "(a <> 2 OR a AND " * MAX_NESTING + "a" + ")" * MAX_NESTING,
    "signs": "1 = " + "-(1 + " * (MAX_NESTING // 4) + "a" + ")" * (MAX_NESTING // 4),
    "wide": " OR ".join(["a = 1"] * 120),
    "many": "a IN (" + ", ".join(f"'{number}'" for number in range(600)) + ")",
    "pattern": "a LIKE '" + "_a%" * 80 + "'",
}
#: `make test` tries these; the others repeat their parts.
DEEP_AND_SHORT = {"unequal", "wide", "pattern"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=name, marks=() if name in DEEP_AND_SHORT else pytest.mark.long)
        for name, text in DEEP_OR_WIDE.items()
    ],
)
def test_what_is_deep_or_wide_is_sql(spark: SparkSession, text: str) -> None:
    assert native(Selector(text)) is not None
    messages = [sent({"a": value}) for value in (1, 2, True, False, None, "1", "xa" * 80)]
    (found,) = answers(spark, [condition(Selector(text))], messages)
    assert found == client(text, messages)


def test_what_is_no_sql_is_evaluated_by_the_clients_code(spark: SparkSession) -> None:
    texts = [
        "+".join("a" * 2_000) + " > 100",
        "1 = " + "-(1 + " * (MAX_NESTING // 2) + "a" + ")" * (MAX_NESTING // 2),
        "a" + " / b" * 500 + " = 0",
        " OR ".join(["a + b > JMSPriority"] * 170),
        "a = '\ud800' OR JMSTimestamp = 1700000000123",
        "b IS NULL AND a LIKE '" + "_a" * 1_000 + "'",
    ]
    assert [native(Selector(text)) for text in texts] == [None] * len(texts)
    some: list[tuple[Value, Value]] = [(1, 2), (3.5, 2), ("x", 2), (1, None), (1.5, 0)]
    messages: list[Headers] = [[], None, *(sent({"a": a, "b": b}) for a, b in some)]
    messages.append([("b", None), ("a", b"\xff")])
    messages.append([("a", b"1"), ("a", b"7"), ("b", b"8")])
    types: Types = {"a": "int"}
    found = answers(spark, [condition(Selector(text), types) for text in texts], messages)
    assert found == [client(text, messages, types) for text in texts]


# --- headers ------------------------------------------------------------------------------------------------

RAW: list[bytes | None] = [
    None, b"", b"1", b"+1", b"-1", b"-0", b"007", b"+", b" 1", b"1 ", b"1\n",
    b"\x001", b"1_0", b"1.0", b"0x1", b"1L",
    "\u0661".encode(), b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808",
    b"-9223372036854775809", b"9999999999999999999", b"00000000000000000001", b"0000000000000000001",
    b"1.", b".5", b".", b"-.5", b"+1.5e3", b"1E+5", b"1e", b"1e400", b"-1e400", b"1e-400",
    b"0e999999999999999",
    b"1e99999999999999999999", b"4.9e-324", b"2.4703282292062327e-324", b"1.7976931348623159e308", b"-0.0",
    b"0.1000000000000000055511151231257827021181583404541015625", b"9" * 400, b"0." + b"0" * 400 + b"1",
    b"9007199254740993", b"9007199254740992.99999999999999999999999", b"1.5f", b"1d", b"0x1p3", b"1e5\n",
    b"nan", b"NaN", b"-nan", b"+NAN", b"inf", b"-INF", b"+Infinity", b"-infinity", b"infinit", b"nann", b"na",
    b"true", b"false", b"True", b"true ", b"TRUE",
    "ä😀".encode(), b"\xff", b"a\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xc3", b"\x00",
]  # fmt: skip
ENTRY = st.sampled_from([
    "a=i", "a=f", "a=b", "a=x", "b=i", "b=f", "$d=i", "$d=b", "größe=f", "größe=x", "a=", "a=z", "a", "a=i=f",
    "=i", "", " a=i", "a=i ", "xa=i", "a=ii", "A=f", "a=f\n", "\na=f", "d=f", "a=I",
])  # fmt: skip
STRANGE = [None, b"\xffa=i", b"a=i\xff", b"a=i;\xff", b"gr\xc3;a=f", b"a=x;" * 2_000 + b"a=i", b"b=i\n"]
COMPANION = st.sampled_from(STRANGE) | st.lists(ENTRY, max_size=4).map(lambda some: ";".join(some).encode())
RESERVED = [CONNECTION_ID_HEADER, "JMSXa", "JMS_a", "kafkadur-x"]
PRIORITIES = [b"0", b"9", b"10", b"x", b"", b"-", b" ", b"\xb2", None]
MODES = [b"NON_PERSISTENT", b"PERSISTENT", b"non_persistent", b"", None]
DIGITS = st.from_regex(r"[+-]?[0-9.e]{1,22}", fullmatch=True).map(str.encode)
HEADER: st.SearchStrategy[tuple[str, bytes | None]] = st.one_of(
    st.tuples(st.sampled_from(["a", "b", "A", "$d", "größe"]), st.sampled_from(RAW) | st.binary(max_size=4)),
    st.tuples(st.sampled_from(["a", "b"]), DIGITS),
    st.tuples(st.just("kafkadur-types"), COMPANION),
    st.tuples(st.just("kafkadur-types"), COMPANION),
    st.tuples(st.sampled_from(RESERVED), st.sampled_from([None, b"1"])),
    st.tuples(st.just("JMSPriority"), st.sampled_from(PRIORITIES)),
    st.tuples(st.just("JMSDeliveryMode"), st.sampled_from(MODES)),
    st.tuples(st.sampled_from(["JMSMessageID", "JMSType", "JMSCorrelationID"]), st.sampled_from(RAW)),
)
ASKED = sorted({*NAMES, "A", "JMSXa", "JMS_a", *JMS_HEADERS})


def assert_same_properties(spark: SparkSession, messages: Sequence[Headers], types: Types) -> None:
    """Compare the very values that Spark and the client read."""
    column = functions.expr(f"get({properties(ASKED, types)}, 0)").alias("p")
    rows = [row.p for row in source(spark, messages).select(column).collect()]
    for headers, row in zip(messages, rows, strict=True):
        expected = fields_and_properties(headers, TIMESTAMP, types)
        for name, found in zip(ASKED, row, strict=True):
            values = [value for value in found[1:] if value is not None]
            value = expected.get(name)
            assert found.n is (value is None), (name, headers)
            # NaN is unlike itself, and 0.0 equal to -0.0
            expected_values = [value] if isinstance(value, str | int | float) else []
            assert repr(values) == repr(expected_values), (name, headers)


@pytest.mark.parametrize(
    "types",
    [
        {"a": "int", "b": "float", "$d": "bool"},
        pytest.param(None, marks=pytest.mark.long),
        pytest.param({"a": "str", "b": "bytes", "größe": "int"}, marks=pytest.mark.long),
    ],
)
def test_properties_are_read_as_the_client_does(session: SparkSession, types: Types) -> None:
    messages: list[Headers] = [None, []]
    for letter in (b"i", b"f", b"b", b"x"):
        messages += [[("a", raw), ("kafkadur-types", b"a=" + letter)] for raw in RAW]
    messages += [[("a", raw), ("b", raw), ("$d", raw), ("größe", raw)] for raw in RAW]
    messages += [[("a", b"1"), (CONNECTION_ID_HEADER, value)] for value in (b"c", None)]
    messages += drawn(st.lists(HEADER, max_size=8), 500)
    assert_same_properties(session, messages, types)


# --- what a subscription takes ------------------------------------------------------------------------------


def test_what_a_subscription_takes(spark: SparkSession) -> None:
    def subscription(kind: SubscriptionType, *, selector: str | None, no_local: bool) -> Definition:
        return Definition(
            type=kind, topic="t", selector=selector, no_local=no_local, header_types={"a": "int"}
        )

    exclusive, shared = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
    assert (
        taking(subscription(shared, selector=None, no_local=True), client_id="c", connection_id="x") is None
    )
    own = "0123456789abcdef" * 2
    messages: list[Headers] = [
        None,
        [("a", b"1")],
        [("a", b"1"), (CLIENT_ID_HEADER, b"c"), (CONNECTION_ID_HEADER, b"y")],
        [("a", b"1"), ("kafkadur-types", b"a=i"), (CONNECTION_ID_HEADER, own.encode())],
        [("a", b"1"), (CONNECTION_ID_HEADER, own.encode()), (CONNECTION_ID_HEADER, None)],
        [("a", b"2"), (CONNECTION_ID_HEADER, b"y"), ("kafkadur-types", b"a=i")],
        [("a", b"1"), ("JMSMessageID", f"ID:{own}-00ff00ff-17".encode())],
        [("a", b"1"), ("JMSMessageID", f"ID:{own}-00ff00ff-17".encode()), (CONNECTION_ID_HEADER, b"y")],
        [("a", b"1"), ("JMSMessageID", f"ID:{own}-00ff00ff-17".encode()), (CONNECTION_ID_HEADER, None)],
        [("a", b"1"), ("JMSMessageID", f"ID:{own}-00ff00ff-17\n".encode())],
        [("a", b"1"), ("JMSMessageID", b"ID:\xff")],
        [("a", b"1"), ("JMSMessageID", None)],
    ]
    asked = [
        (subscription(exclusive, selector=None, no_local=True), "c"),
        (subscription(exclusive, selector=None, no_local=True), None),
        (subscription(exclusive, selector="a = 1", no_local=True), "c"),
        (subscription(shared, selector="a = 1", no_local=True), "c"),
    ]
    columns = [taking(definition, client_id=client_id, connection_id=own) for definition, client_id in asked]
    found = answers(spark, [column for column in columns if column is not None], messages)
    assert [[truth is True for truth in truths] for truths in found] == [
        [True, True, False, False, True, True, False, True, True, True, True, True],
        [True, True, True, False, True, True, False, True, True, True, True, True],
        [False, True, False, False, False, False, False, False, False, True, True, True],
        [False, True, False, True, False, False, True, False, False, True, True, True],
    ]
