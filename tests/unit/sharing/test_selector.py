"""Selectors by example: the specification's rows, truth tables, the grammar, types, limits and errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import pytest

from kafkadur_sharing.errors import InvalidSelector
from kafkadur_sharing.names import SELECTOR_WORDS
from kafkadur_sharing.selector import (
    JMS_HEADERS,
    MAX_LENGTH,
    MAX_NESTING,
    Properties,
    Selector,
    Value,
    parse_selector,
)

#: `u` is in none of the selectors' messages.
PROPERTIES: Properties = {
    "name": "James",
    "rank": 123,
    "version": 2,
    "t": True,
    "f": False,
    "foo": "_foo",
    "quote": "'In God We Trust'",
    "N": "2",
    "e": "XD7xlJIQn_",
    "d": 123.0,
    "data": b"James",
    "none": None,
}


def truth(text: str, **properties: Value) -> bool | None:
    return Selector(text).matches({**PROPERTIES, **properties})


def refusal(text: str) -> InvalidSelector:
    with pytest.raises(InvalidSelector) as caught:
        Selector(text)
    return caught.value


# --- the rows -----------------------------------------------------------------------------------------------

ROWS = {
    1: ("name = 'James' and rank < 200", True),
    2: ("name = 'Foo' or rank > 200", False),
    3: ("(t OR f) AND f", False),
    4: ("not not t", True),
    5: ("u <> 0", None),
    6: ("not(u <> 0)", None),
    7: ("not(f AND u)", True),
    9: ("t OR u", True),
    10: ("u NOT IN ('zero')", None),
    13: ("u IS NULL", True),
    14: ("N > 1", False),
    15: ("rank + 2 = 125", True),
    17: ("rank between 10 and 120", False),
    18: ("name not in ('Gromit','Bob')", True),
    19: ("quote = '''In God We Trust'''", True),
    20: ("foo LIKE '!_%' ESCAPE '!'", True),
    21: ("quote LIKE '!_%' ESCAPE '!'", False),
    23: ("d = 123", True),
    25: ("NAME = 'James'", None),
    26: ("$x IS NULL", True),
}


@pytest.mark.parametrize(("text", "expected"), ROWS.values(), ids=[f"row-{number}" for number in ROWS])
def test_row(text: str, expected: bool | None) -> None:
    assert truth(text) is expected


@pytest.mark.parametrize(
    "text", ["3+5", "True AND 3+5", "=TEST 'test'", "a = 1 AMD b = 2"], ids=lambda text: f"row-27-{text}"
)
def test_row_invalid(text: str) -> None:
    assert refusal(text).position is not None


# --- three-valued logic -------------------------------------------------------------------------------------

T, F, U = True, False, None
#: Result by operands.
Table: TypeAlias = dict[tuple[bool | None, bool | None], bool | None]

AND: Table = {
    (T, T): T, (T, F): F, (T, U): U,
    (F, T): F, (F, F): F, (F, U): F,
    (U, T): U, (U, F): F, (U, U): U,
}  # fmt: skip
OR: Table = {
    (T, T): T, (T, F): T, (T, U): T,
    (F, T): T, (F, F): F, (F, U): U,
    (U, T): T, (U, F): U, (U, U): U,
}  # fmt: skip
NOT: dict[bool | None, bool | None] = {T: F, F: T, U: U}

#: Conditions of each truth: properties, comparisons, and all in parentheses.
CONDITIONS = {T: ["t", "TRUE", "rank = 123", "(t)"], F: ["f", "FALSE", "rank = 0", "(f)"], U: ["u", "u = 0"]}


@pytest.mark.parametrize(("left", "right"), AND)
def test_and(left: bool | None, right: bool | None) -> None:
    for a in CONDITIONS[left]:
        for b in CONDITIONS[right]:
            assert truth(f"{a} AND {b}") is AND[left, right]


@pytest.mark.parametrize(("left", "right"), OR)
def test_or(left: bool | None, right: bool | None) -> None:
    for a in CONDITIONS[left]:
        for b in CONDITIONS[right]:
            assert truth(f"{a} OR {b}") is OR[left, right]


@pytest.mark.parametrize("operand", NOT)
def test_not(operand: bool | None) -> None:
    for a in CONDITIONS[operand]:
        assert truth(f"NOT {a}") is NOT[operand]


@pytest.mark.parametrize("a", [T, F, U])
@pytest.mark.parametrize("b", [T, F, U])
@pytest.mark.parametrize("c", [T, F, U])
def test_chains(a: bool | None, b: bool | None, c: bool | None) -> None:
    assert truth("a AND b AND c", a=a, b=b, c=c) is AND[AND[a, b], c]
    assert truth("a OR b OR c", a=a, b=b, c=c) is OR[OR[a, b], c]
    assert truth("a OR b AND c", a=a, b=b, c=c) is OR[a, AND[b, c]]
    assert truth("(a OR b) AND c", a=a, b=b, c=c) is AND[OR[a, b], c]
    assert truth("NOT a AND b", a=a, b=b) is AND[NOT[a], b]
    assert truth("NOT (a AND b)", a=a, b=b) is NOT[AND[a, b]]
    assert truth("NOT a OR NOT b", a=a, b=b) is OR[NOT[a], NOT[b]]


# --- the grammar --------------------------------------------------------------------------------------------


GRAMMAR = [
    # Comparisons.
    ("rank = 123", T), ("rank = 122", F),
    ("rank <> 122", T), ("rank <> 123", F),
    ("rank < 124", T), ("rank < 123", F),
    ("rank <= 123", T), ("rank <= 122", F),
    ("rank > 122", T), ("rank > 123", F),
    ("rank >= 123", T), ("rank >= 124", F),
    ("123 = rank", T), ("200 > rank", T), ("rank = rank", T), ("'a' = 'a'", T), ("1 = 2", F),
    ("t = TRUE", T), ("t <> TRUE", F), ("f = FALSE", T), ("TRUE = t", T),
    ("(rank > 1) = t", T), ("(u > 1) = t", U), ("TRUE", T), ("FALSE", F),
    # Arithmetic.
    ("1 + 2 * 3 = 7", T), ("(1 + 2) * 3 = 9", T), ("10 - 3 - 2 = 5", T), ("16 / 4 / 2 = 2", T),
    ("2 * 3 + 4 * 5 = 26", T), ("7 - -7 = 14", T), ("- rank = -123", T), ("-(rank) = -123", T),
    ("+rank = 123", T), ("- + - rank = 123", T), ("-rank + 124 = 1", T), ("-7*2 = -14", T),
    ("rank-1 = 122", T), ("rank -1 = 122", T), ("(((rank))) = 123", T), ("-1.5 + 2 = 0.5", T),
    # BETWEEN.
    ("rank BETWEEN 123 AND 123", T), ("rank BETWEEN 124 AND 200", F), ("rank BETWEEN 1 AND 122", F),
    ("rank NOT BETWEEN 1 AND 122", T), ("rank NOT BETWEEN 124 AND 200", T),
    ("rank NOT BETWEEN 123 AND 123", F), ("rank BETWEEN version AND version * 100 AND t", T),
    ("rank + 1 BETWEEN 124 AND 62 * 2", T), ("rank BETWEEN 200 AND 1", F), ("5 BETWEEN 1 AND rank", T),
    ("rank BETWEEN 1.5 AND 1e3", T),
    ("u BETWEEN 1 AND 2", U), ("u NOT BETWEEN 1 AND 2", U),
    ("rank BETWEEN u AND 200", U), ("rank BETWEEN u AND 100", F), ("rank BETWEEN 200 AND u", F),
    ("rank NOT BETWEEN u AND 200", U), ("rank NOT BETWEEN u AND 100", T),
    ("NOT rank BETWEEN 1 AND 2", T),
    # IN.
    ("name IN ('James')", T), ("name IN ('Bob', 'James')", T), ("name IN ('james')", F),
    ("name NOT IN ('James')", F), ("name NOT IN ('Bob')", T), ("u IN ('a')", U), ("u NOT IN ('a')", U),
    ("quote IN ('''In God We Trust''')", T), ("NOT name IN ('Bob')", T), ("none IN ('a')", U),
    # LIKE; what patterns match is tested beside `selector_like.py`.
    ("name LIKE 'J%'", T), ("name LIKE 'j%'", F), ("name NOT LIKE 'J%'", F), ("name NOT LIKE 'B%'", T),
    ("u LIKE '%'", U), ("u NOT LIKE '%'", U), ("foo LIKE '\\_%' ESCAPE '\\'", T),
    ("foo NOT LIKE '!_%' ESCAPE '!'", F), ("quote LIKE '''%'''", T),
    ("quote LIKE '''''%' ESCAPE ''''", T),
    ("NOT name LIKE 'B%'", T),
    # NULL.
    ("name IS NULL", F), ("name IS NOT NULL", T), ("u IS NOT NULL", F), ("none IS NULL", T),
    ("none IS NOT NULL", F), ("NOT u IS NULL", F), ("data IS NOT NULL", T), ("f IS NULL", F),
    # Precedence between all of them.
    ("NOT f AND t", T), ("NOT rank = 1", T), ("t OR u AND f", T), ("f AND f OR t", T),
    ("rank + 2 * version = 127 AND name LIKE 'J%' OR u", T),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), GRAMMAR)
def test_grammar(text: str, expected: bool | None) -> None:
    assert truth(text) is expected


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("57", 57), ("0", 0), ("00", 0), ("007", 7), ("0173", 123), ("-0173L", -123),
        ("0x7B", 123), ("0X7bL", 123), ("-0x7B", -123), ("0b1111011", 123),
        ("1_000", 1_000), ("0x7F_FF", 32_767), ("0_17", 15),
        ("0x7fffffffffffffff", 2**63 - 1), ("-0x8000000000000000", -(2**63)),
        ("0777777777777777777777", 2**63 - 1), ("1__0", 10),
        ("57L", 57), ("57l", 57), ("+57", 57), ("-57", -57),
        ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)),
        ("- 9223372036854775808", -(2**63)),
    ],
)  # fmt: skip
def test_integer_literals(literal: str, value: int) -> None:
    assert truth(f"x = {literal}", x=value) is True
    assert truth(f"(1 + 0 * {literal}) / 2 = 0") is True


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("7.", 7.0), (".5", 0.5), ("7.5", 7.5), ("-57.9E2", -5790.0), ("57.9e-2", 0.579), ("1e3", 1e3),
        ("1E+3", 1e3), ("1.e3", 1e3), ("57D", 57.0), ("57f", 57.0), ("5.5F", 5.5), ("1e3d", 1e3),
        ("1e-999", 0.0), ("9223372036854775808.", 2.0**63),
    ],
)  # fmt: skip
def test_float_literals(literal: str, value: float) -> None:
    assert truth(f"x = {literal}", x=value) is True
    assert truth(f"(1 + 0 * {literal}) / 2 = 0.5") is True


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("''", ""),
        ("'it''s'", "it's"),
        ("''''", "'"),
        ("''''''", "''"),
        ("'\n \"\\'", '\n "\\'),
        ("'ä😀'", "ä😀"),
    ],
)
def test_text_literals(literal: str, value: str) -> None:
    assert truth(f"x = {literal}", x=value) is True
    assert truth(f"x IN ({literal})", x=value) is True


@pytest.mark.parametrize("case", [str.lower, str.upper, str.title, str.swapcase])
def test_keywords_in_any_case(case: Callable[[str], str]) -> None:
    for text in (
        f"t {case('and')} {case('not')} f {case('or')} f",
        f"rank {case('not between')} 1 {case('and')} 2",
        f"name {case('not in')} ('Bob')",
        f"name {case('not like')} 'B!%' {case('escape')} '!'",
        f"name {case('is not null')}",
        f"u {case('is null')}",
        f"t = {case('true')}",
        f"f = {case('false')}",
    ):
        assert truth(text) is True, text


def test_identifiers_mind_their_case() -> None:
    assert truth("a = 1 AND A = 2", a=1, A=2) is True


@pytest.mark.parametrize(
    "name", ["$", "_", "a1", "größe", "nots", "orders", "Android", "in_", "true1", "li\u212ae", "JMSX_a"]
)
def test_identifiers(name: str) -> None:
    assert Selector(f"{name} = 1").matches({name: 1}) is True


@pytest.mark.parametrize("name", sorted(JMS_HEADERS | {"JMSXGroupID", "JMS_vendor"}))
def test_jms_names(name: str) -> None:
    assert Selector(f"{name} = 'a'").matches({name: "a"}) is True


def test_words_of_the_language_are_the_reserved_words() -> None:
    for word in SELECTOR_WORDS:
        assert refusal(f"{word} IS NULL").remedy


@pytest.mark.parametrize("blank", [" ", "\t", "\n", "\r\n", "\f"])
def test_white_space(blank: str) -> None:
    text = blank.join(["", "rank", "NOT", "BETWEEN", "1", "AND", "2", "AND", "(", "t", ")", ""])
    assert truth(text) is True
    assert truth("rank>=1AND(t)AND name='James'AND'a'='a'") is True


# --- types --------------------------------------------------------------------------------------------------

#: One value of each type.
VALUES: Properties = {"number": 1, "text": "1", "truth": True, "bytes": b"1"}


@pytest.mark.parametrize("sign", ["=", "<>", "<", "<=", ">", ">="])
@pytest.mark.parametrize("a", VALUES)
@pytest.mark.parametrize("b", VALUES)
def test_unlike_types_compare_false(sign: str, a: str, b: str) -> None:
    if a != b:
        assert truth(f"a {sign} b", a=VALUES[a], b=VALUES[b]) is False
        assert truth(f"NOT (a {sign} b)", a=VALUES[a], b=VALUES[b]) is True


@pytest.mark.parametrize(
    "text", ["name = 1", "name <> 1", "rank = '123'", "t = 1", "t <> 'a'", "1 <> 'a'", "d = TRUE"]
)
def test_unlike_literals_compare_false(text: str) -> None:
    assert truth(text) is False
    assert truth(f"NOT {text}") is True


@pytest.mark.parametrize("value", ["a", True, b"a"])
def test_texts_bools_and_bytes_have_no_order(value: Value) -> None:
    for sign in ("<", "<=", ">", ">="):
        assert truth(f"a {sign} b", a=value, b=value) is False
    assert truth("a BETWEEN b AND b", a=value, b=value) is False
    assert truth("a NOT BETWEEN b AND b", a=value, b=value) is False


def test_texts_and_bools_are_equal_or_not() -> None:
    assert truth("name = other", other="James") is True
    assert truth("name <> other", other="Bob") is True
    assert truth("t = other", other=True) is True
    assert truth("t <> other", other=False) is True


def test_bytes_are_unlike_themselves() -> None:
    assert truth("data = data") is False
    assert truth("data <> data") is False


@pytest.mark.parametrize("value", [1, 1.0, True, b"a"])
def test_what_is_no_text_is_in_no_list_and_like_nothing(value: Value) -> None:
    assert truth("a IN ('1')", a=value) is False
    assert truth("a NOT IN ('1')", a=value) is False, "as a <> '1' is"
    assert truth("NOT (a IN ('1'))", a=value) is True
    assert truth("a LIKE '%'", a=value) is False
    assert truth("a NOT LIKE '%'", a=value) is True


@pytest.mark.parametrize("value", [1, 0.0, "TRUE", "", b"a"])
def test_a_property_that_is_no_bool_is_a_false_condition(value: Value) -> None:
    assert truth("a", a=value) is False
    assert truth("NOT a", a=value) is True
    assert truth("a OR t", a=value) is True
    assert truth("a AND u", a=value) is False


@pytest.mark.parametrize("value", [None, "2", True, b"2"])
def test_arithmetic_on_what_is_no_number_is_unknown(value: Value) -> None:
    for term in ("a + 1", "1 + a", "a - 1", "a * 0", "0 / a", "-a", "+a", "1 + 2 * a", "a + 1 + 1"):
        assert truth(f"{term} = 0", a=value) is None
        assert truth(f"{term} <> 0", a=value) is None
        assert truth(f"NOT ({term} > 0)", a=value) is None


ARITHMETIC = [
    ("rank / version", 61), ("7 / 2", 3), ("-7 / 2", -3), ("7 / -2", -3), ("-7 / -2", 3), ("-1 / 2", 0),
    ("7. / 2", 3.5), ("7 / 2.", 3.5), ("d / 2", 61.5), ("1 / 2 * 2.0", 0.0), ("1 * 2.0 / 4", 0.5),
    ("9223372036854775807 + 1", -(2**63)), ("-9223372036854775808 - 1", 2**63 - 1),
    ("4611686018427387904 * 2", -(2**63)), ("4611686018427387904 * 4", 0),
    ("-(-9223372036854775808)", -(2**63)),
    ("-9223372036854775808 / -1", -(2**63)), ("9223372036854775807 + 1 - 1", 2**63 - 1),
    ("9223372036854775807 + 1.0", 2.0**63), ("1e308 * 10", math.inf), ("1. / 0", math.inf),
    ("-1 / 0.", -math.inf), ("1 / -0.", -math.inf),
]  # fmt: skip


@pytest.mark.parametrize(("term", "value"), ARITHMETIC)
def test_arithmetic_is_that_of_java(term: str, value: float) -> None:
    assert truth(f"{term} = x", x=value) is True
    assert truth(f"{term} <> x", x=value) is False


def test_an_integer_divided_by_zero_is_unknown() -> None:
    assert truth("1 / 0 = 1") is None
    assert truth("0 / 0 <> 1") is None


@pytest.mark.parametrize("term", ["0. / 0", "x - x", "nan", "nan / 0", "0 * x"])
def test_what_is_not_a_number_is_unequal_to_all(term: str) -> None:
    for sign, expected in (("=", F), ("<>", T), ("<", F), (">=", F)):
        assert truth(f"{term} {sign} {term}", x=math.inf, nan=math.nan) is expected


def test_integers_and_floats_compare_as_doubles() -> None:
    assert truth("x = 9007199254740993.", x=2**53 + 1) is True
    assert truth("x = y", x=2**53 + 1, y=2.0**53) is True
    assert truth("x = y", x=2**53 + 1, y=2**53) is False
    assert truth("0. = -0.") is True


# --- the object ---------------------------------------------------------------------------------------------


def test_text_and_names() -> None:
    selector = Selector(" a = b AND NOT (c OR a IN ('d')) AND e LIKE 'f' AND TRUE ")
    assert selector.text == " a = b AND NOT (c OR a IN ('d')) AND e LIKE 'f' AND TRUE "
    assert selector.names == {"a", "b", "c", "e"}
    assert Selector("1 = 1").names == frozenset()
    assert repr(Selector("a = 'b'")) == "Selector(\"a = 'b'\")"


def test_equal_by_text() -> None:
    assert Selector("a = 1") == Selector("a = 1")
    assert hash(Selector("a = 1")) == hash(Selector("a = 1"))
    assert Selector("a = 1") != Selector("a  = 1")
    assert Selector("a = 1") != "a = 1"


@pytest.mark.parametrize("text", [None, "", " ", "\t\n"])
def test_nothing_is_no_selector(text: str | None) -> None:
    assert parse_selector(text) is None


def test_something_is_a_selector() -> None:
    assert parse_selector("a = 1") == Selector("a = 1")


class Counting(Mapping[str, Value]):
    """Properties that count how often one is looked up."""

    def __init__(self, properties: Properties) -> None:
        self.properties = properties
        self.count = 0

    def __getitem__(self, name: str) -> Value:
        self.count += 1
        return self.properties[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.properties)

    def __len__(self) -> int:
        return len(self.properties)


@pytest.mark.parametrize(
    ("part", "most"),
    [
        ("(a = 1 OR ", 1),
        ("NOT (a = 1 AND ", 1),
        ("(a + 1 BETWEEN 2 AND 3 AND ", 2),
        ("TRUE = (a = 1 AND ", 1),
    ],
)
def test_every_name_is_looked_up_once_and_before_between_twice(part: str, most: int) -> None:
    levels = MAX_NESTING // 2
    counting = Counting({"a": 1})
    Selector(part * levels + "a = 1" + ")" * levels).matches(counting)
    assert 0 < counting.count <= most * levels + 1


# --- limits -------------------------------------------------------------------------------------------------


def test_longest() -> None:
    text = "a = 1".ljust(MAX_LENGTH)
    assert Selector(text).matches({"a": 1}) is True
    error = refusal(text + " ")
    assert error.position == MAX_LENGTH
    assert f"limit is {MAX_LENGTH} characters" in str(error)


@pytest.mark.parametrize(
    ("before", "after"),
    [("(", ")"), ("NOT ", ""), ("(t AND f OR ", ")"), ("t = (", ")")],
)
def test_deepest_condition(before: str, after: str) -> None:
    Selector(before * MAX_NESTING + "t" + after * MAX_NESTING).matches(PROPERTIES)
    error = refusal(f"t AND {before}" + before * MAX_NESTING + "t" + after * (MAX_NESTING + 1))
    assert error.position == len("t AND ") + max(0, before.find("("))
    assert f"limit of {MAX_NESTING} levels" in str(error)


@pytest.mark.parametrize(
    ("before", "inner", "after"),
    [("(", "rank", ")"), ("-", "rank", ""), ("+", "1", ""), ("(1 + 2 * ", "rank", ")"), ("-(", "1", ")")],
)
def test_deepest_term(before: str, inner: str, after: str) -> None:
    levels = MAX_NESTING // (before.count("(") + before.count("-") + (before == "+"))
    Selector("0 = " + before * levels + inner + after * levels).matches(PROPERTIES)
    error = refusal("0 = " + before * (levels + 1) + inner + after * (levels + 1))
    assert error.position == len("0 = ") + (levels == MAX_NESTING // 2)
    assert f"limit of {MAX_NESTING} levels" in str(error)


def test_wide_is_not_deep() -> None:
    assert truth(" AND ".join(["(NOT f)"] * 300)) is True
    assert truth("300 = " + " + ".join(["(--1)"] * 300)) is True


# --- errors -------------------------------------------------------------------------------------------------

REFUSED = [
    # Ends too early, or not where it should.
    ("", 0, "expected a name or a value"),
    ("a =", 3, "expected a name or a value"),
    ("(a", 2, "expected ')'"),
    ("a)", 1, "expected the end"),
    ("a AND", 5, "expected a name or a value"),
    ("a = 1 b", 6, "expected AND, OR, an operator or the end"),
    ("a = b = c", 6, "expected AND, OR or the end"),
    ("NOT", 3, "expected a name or a value"),
    ("-", 1, "expected a name or a value"),
    ("()", 1, "expected a name or a value"),
    ("a == 1", 3, "expected a name or a value"),
    ("a =< 1", 3, "expected a name or a value"),
    ("a < > 1", 4, "expected a name or a value"),
    ("a BETWEEN 1", 11, "expected AND"),
    ("a BETWEEN 1 OR 2", 12, "expected AND"),
    ("a NOT = 1", 6, "expected BETWEEN, IN or LIKE"),
    ("a NOT 1", 6, "expected BETWEEN, IN or LIKE"),
    ("a IS 1", 5, "expected NOT or NULL"),
    ("a IS NOT", 8, "expected NULL"),
    ("a = NULL", 4, "expected a name or a value"),
    ("a IN", 4, "expected '('"),
    ("a IN 'b'", 5, "expected '('"),
    ("a IN ()", 6, "expected a text in quotes"),
    ("a IN (1)", 6, "expected a text in quotes"),
    ("a IN ('b' 'c')", 10, "expected ')' or ','"),
    ("a IN ('b',)", 10, "expected a text in quotes"),
    ("a LIKE b", 7, "expected a text in quotes"),
    ("a LIKE 'b' ESCAPE", 17, "expected a text in quotes"),
    ("a LIKE 'b' ESCAPE !", 18, "'!' is no part"),
    ("a = 'b' 'c'", 8, "or the end"),
    ("3abc = 1", 1, "or the end"),
    ("a = 0x1G", 7, "or the end"),
    ("a = 0x", 5, "or the end"),
    ("a = 0b12", 7, "or the end"),
    ("a = 1_", 5, "or the end"),
    ("a = 08", 4, "octal"),
    ("a = -0179", 5, "octal"),
    ("a = 0x8000000000000000", 4, "beyond int64"),
    ("a = 01000000000000000000000", 4, "beyond int64"),
    # Characters of other languages.
    ("a = 'b", 4, "is no part"),
    ("a = 'b''", 4, "is no part"),
    ("a != 1", 2, "write <>"),
    ("a || 'b' = 'c'", 2, "texts are not joined"),
    ("a && b", 2, "write AND"),
    ("a.b = 1", 1, "without a point"),
    ("a % 2 = 1", 2, "'%' is no part"),
    ("²a = 1", 0, "no name"),
    ("b = 1 AND a\u00a0= 1", 10, "no name"),
    # Types.
    ("5", 0, "a number stands where a condition is expected"),
    ("'a'", 0, "a text stands where a condition is expected"),
    ("t AND 'a'", 6, "a text stands where a condition is expected"),
    ("t OR -a", 5, "a number stands where a condition is expected"),
    ("NOT (a + 1)", 4, "a number stands where a condition is expected"),
    ("a < 'b'", 4, "a text stands where a number is expected"),
    ("'b' > a", 0, "a text stands where a number is expected"),
    ("a >= TRUE", 5, "a condition stands where a number is expected"),
    ("(a = 1) < 2", 0, "a condition stands where a number is expected"),
    ("a BETWEEN 'b' AND 'c'", 10, "a text stands where a number is expected"),
    ("a BETWEEN 1 AND 'c'", 16, "a text stands where a number is expected"),
    ("TRUE BETWEEN 1 AND 2", 0, "a condition stands where a number is expected"),
    ("a = -'b'", 5, "a text stands where a number is expected"),
    ("a = 1 + TRUE", 8, "a condition stands where a number is expected"),
    ("a = 2 * (b = 1)", 8, "a condition stands where a number is expected"),
    ("'a' IN ('a')", 0, "IN needs a property"),
    ("1 in ('a')", 0, "IN needs a property"),
    ("t AND (a) LIKE 'b'", 6, "LIKE needs a property"),
    ("a + 1 IS NULL", 0, "IS needs a property"),
    # Literals.
    ("a = 9223372036854775808", 4, "beyond int64"),
    ("a = -(9223372036854775808)", 6, "beyond int64"),
    ("a -9223372036854775808 = 1", 3, "beyond int64"),
    ("a = -9223372036854775809", 5, "beyond int64"),
    ("a = 1e999", 4, "beyond a double"),
    ("a LIKE 'b' ESCAPE ''", 18, "not one character"),
    ("a LIKE 'b' ESCAPE '!!'", 18, "not one character"),
    ("a LIKE 'b!' ESCAPE '!'", 7, "ends with its escape character"),
    # Names.
    ("JMSReplyTo = 'a'", 0, "no JMS field a selector can use"),
    ("a = 1 AND JMSDestination IS NULL", 10, "no JMS field a selector can use"),
    ("jmsfoo = 1 AND JMS = 1", 15, "no JMS field a selector can use"),
    # Extensions of other products.
    ("name + '!' = 'James!'", 7, "a text stands where a number is expected"),
    ('"name" = \'James\'', 0, "names without any"),
    ("`name` = 'James'", 0, "'`' is no part"),
    ("XPATH '//a'", 6, "or the end"),
    ("xpath('//a')", 5, "or the end"),
    ("lower(name) = 'james'", 5, "or the end"),
    ("rank IN (1, 2)", 9, "expected a text in quotes"),
    ("name LIKE 'a' OR name REGEXP 'b'", 22, "or the end"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "position", "part"), REFUSED, ids=[text for text, _, _ in REFUSED])
def test_refused(text: str, position: int, part: str) -> None:
    error = refusal(text)
    assert error.position == position
    assert f"Column {position + 1} of the selector" in str(error)
    assert part in str(error)
    assert error.remedy


def test_an_error_shows_the_place() -> None:
    assert refusal("a = 1 AMD b = 2").state == "from there it reads 'AMD b = 2'"
    assert refusal("a = 1 AND").state == "that is its end"
    state = refusal("a = 1 AMD " + "b" * 1000).state
    assert state is not None
    assert state.endswith("...'")
    assert len(state) < 100
