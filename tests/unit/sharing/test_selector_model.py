"""Selectors at random: written from trees whose truth is worked out beside, and from any text at all."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, example, find, given, settings

from kafkadur_sharing.errors import InvalidSelector
from kafkadur_sharing.selector import Properties, Selector, Value

NAMES: tuple[str, ...] = ("a", "b", "c", "$d", "größe", "JMSType")

INTEGERS = (
    st.integers(-10, 10)
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1])
)
FLOATS = (
    st.sampled_from([0.0, -0.0, 0.5, 3.0, -3.0, 2.0**53, 1e308, math.inf, -math.inf, math.nan]) | st.floats()
)
TEXTS = st.text("ab%_!'", max_size=4)
PROPERTIES = st.dictionaries(
    st.sampled_from(NAMES), st.one_of(st.none(), INTEGERS, FLOATS, TEXTS, st.booleans(), st.just(b"a"))
)


@dataclass(frozen=True)
class Tree:
    """A part of a selector as text, and the value it should have."""

    text: str
    #: How strongly it holds together: what needs more is put in parentheses.
    rank: int
    value: Callable[[Properties], Value] = field(repr=False)

    def within(self, rank: int) -> str:
        """Return the text as it is written where `rank` is needed."""
        return self.text if self.rank >= rank else f"({self.text})"


#: The ranks, the weakest first.
OR, AND, NOT, PREDICATE, SUM, PRODUCT, SIGN, OPERAND = range(8)


# The other way to write the logic: false, unknown and true are -1, 0 and 1.


def degree(value: Value) -> int:
    return 0 if value is None else 1 if value is True else -1


def as_truth(number: int) -> bool | None:
    return {-1: False, 0: None, 1: True}[number]


def compare(sign: str, a: Value, b: Value) -> bool | None:
    if a is None or b is None:
        return None
    if isinstance(a, bytes) or isinstance(b, bytes):
        return False
    if isinstance(a, (str, bool)) or isinstance(b, (str, bool)):
        return type(a) is type(b) and ((sign == "=" and a == b) or (sign == "<>" and a != b))
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
    if math.isnan(a) or math.isnan(b):
        return sign == "<>"
    return sign in {(True, False): ("<", "<=", "<>"), (False, True): (">", ">=", "<>")}.get(
        (a < b, a > b), ("=", "<=", ">=")
    )


def compute(sign: str, a: Value, b: Value) -> Value:
    if isinstance(a, (str, bytes, bool)) or isinstance(b, (str, bytes, bool)) or a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        if sign == "/" and b == 0:
            return None
        exact = {"+": a + b, "-": a - b, "*": a * b}.get(sign)
        return ctypes.c_int64(math.trunc(Fraction(a, b)) if exact is None else exact).value
    a, b = float(a), float(b)
    if sign == "/":
        return divide(a, b)
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def divide(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a == 0 or math.isnan(a):
        return math.nan
    return math.inf if math.copysign(1, a) == math.copysign(1, b) else -math.inf


def literal(value: float) -> Tree:
    return Tree(repr(value), SIGN if math.copysign(1, value) < 0 else OPERAND, lambda _: value)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def prop(name: str) -> Tree:
    return Tree(name, OPERAND, lambda properties: properties.get(name))


def signed(sign: str, tree: Tree) -> Tree:
    def value(properties: Properties) -> Value:
        return compute("*", tree.value(properties), -1 if sign == "-" else 1)

    return Tree(f"{sign} {tree.within(SIGN)}", SIGN, value)


def computed(a: Tree, sign: str, b: Tree) -> Tree:
    rank = SUM if sign in "+-" else PRODUCT
    text = f"{a.within(rank)} {sign} {b.within(rank + 1)}"
    return Tree(text, rank, lambda properties: compute(sign, a.value(properties), b.value(properties)))


def compared(a: Tree, sign: str, b: Tree) -> Tree:
    text = f"{a.within(SUM)}{sign}{b.within(SUM)}"
    return Tree(text, PREDICATE, lambda properties: compare(sign, a.value(properties), b.value(properties)))


def between(a: Tree, word: str, low: Tree, high: Tree) -> Tree:
    text = f"{a.within(SUM)} {word} {low.within(SUM)} and {high.within(SUM)}"

    def value(properties: Properties) -> Value:
        x, y, z = (tree.value(properties) for tree in (a, low, high))
        if "not" in word.lower():
            return as_truth(max(degree(compare("<", x, y)), degree(compare(">", x, z))))
        return as_truth(min(degree(compare(">=", x, y)), degree(compare("<=", x, z))))

    return Tree(text, PREDICATE, value)


def member(name: str, word: str, texts: list[str]) -> Tree:
    text = f"{name} {word} ({','.join(map(quoted, texts))})"
    negated = "not" in word.lower()

    def value(properties: Properties) -> Value:
        x = properties.get(name)
        if x is None:
            return None
        return type(x) is str and any(x == text for text in texts) != negated

    return Tree(text, PREDICATE, value)


def begins(name: str, word: str, beginning: str) -> Tree:
    """LIKE for what can be said in another way; all of it is tested beside `selector_like.py`."""
    escaped = "".join(f"!{char}" for char in beginning)
    negated = "not" in word.lower()

    def value(properties: Properties) -> Value:
        x = properties.get(name)
        return None if x is None else (isinstance(x, str) and x.startswith(beginning)) != negated

    return Tree(f"{name} {word} {quoted(escaped + '%')} escape '!'", PREDICATE, value)


def null(name: str, word: str) -> Tree:
    return Tree(
        f"{name} {word}",
        PREDICATE,
        lambda properties: (properties.get(name) is None) != ("not" in word.lower()),
    )


def negated(word: str, tree: Tree) -> Tree:
    return Tree(
        f"{word} {tree.within(NOT)}", NOT, lambda properties: as_truth(-degree(tree.value(properties)))
    )


def joined(a: Tree, word: str, b: Tree) -> Tree:
    rank, choose = (OR, max) if word.upper() == "OR" else (AND, min)
    text = f"{a.within(rank)} {word} {b.within(rank + 1)}"
    return Tree(
        text,
        rank,
        lambda properties: as_truth(choose(degree(a.value(properties)), degree(b.value(properties)))),
    )


def words(*choices: str) -> st.SearchStrategy[str]:
    return st.sampled_from([case(word) for word in choices for case in (str.upper, str.lower, str.title)])


name = st.sampled_from(NAMES)
numbers = st.recursive(
    st.builds(literal, INTEGERS | FLOATS.filter(math.isfinite)) | name.map(prop),
    lambda inner: (
        st.builds(signed, st.sampled_from("+-"), inner)
        | st.builds(computed, inner, st.sampled_from("+-*/"), inner)
    ),
    max_leaves=6,
)
equatable = (
    numbers
    | TEXTS.map(lambda text: Tree(quoted(text), OPERAND, lambda _: text))
    | st.builds(Tree, words("TRUE"), st.just(OPERAND), st.just(lambda _: True))
    | st.builds(Tree, words("FALSE"), st.just(OPERAND), st.just(lambda _: False))
)
equality = st.sampled_from(["=", "<>"])
predicates = (
    name.map(prop)
    | st.builds(compared, equatable, equality, equatable)
    | st.builds(compared, numbers, st.sampled_from(["<", "<=", ">", ">="]), numbers)
    | st.builds(between, numbers, words("BETWEEN", "NOT BETWEEN"), numbers, numbers)
    | st.builds(member, name, words("IN", "NOT IN"), st.lists(TEXTS, min_size=1, max_size=3))
    | st.builds(begins, name, words("LIKE", "NOT LIKE"), TEXTS)
    | st.builds(null, name, words("IS NULL", "IS NOT NULL"))
)
conditions = st.recursive(
    predicates,
    lambda inner: (
        st.builds(negated, words("NOT"), inner)
        | st.builds(joined, inner, words("AND", "OR"), inner)
        | st.builds(compared, inner, equality, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(tree=conditions, properties=PROPERTIES)
def test_a_tree_evaluates_as_worked_out(tree: Tree, properties: Properties) -> None:
    expected = as_truth(degree(tree.value(properties)))
    assert Selector(tree.text).matches(properties) is expected


@pytest.mark.parametrize("expected", [True, False, None])
def test_trees_reach_each_truth(expected: bool | None) -> None:
    joined_trees = conditions.filter(lambda tree: tree.rank < PREDICATE)
    find(
        st.tuples(joined_trees, PROPERTIES),
        lambda found: as_truth(degree(found[0].value(found[1]))) is expected,
        # that there is one is enough: it need not be the simplest
        settings=settings(max_examples=2_000, deadline=None, database=None, phases=[Phase.generate]),
    )


#: Of each token and character class one, and some that are almost a token.
PIECES = [
    "a", "JMSType", "JMSFoo", "1", "9223372036854775808", "1.5", "1e999", "'x'", "''", "'", '"', "!", "%",
    "(", ")", "(" * 70, ",", "+", "-", "*", "/", "=", "<>", "<", "<=", ">", ">=", "and", "OR", "Not",
    "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", " ", "\n", "\u00a0", "\x00", "ä", "²",
    "😀", "\ud800",
]  # fmt: skip
PIECE = st.sampled_from(PIECES)


@settings(deadline=None)
@given(text=st.text() | st.lists(PIECE).map("".join) | st.lists(PIECE).map(" ".join), properties=PROPERTIES)
@example(text="a = 1 AND \x00", properties={})
@example(text="(" * 4096, properties={})
@example(text="-" * 4095 + "1", properties={})
@example(text="NOT " * 1000 + "a", properties={})
@example(text="9" * 4096, properties={})
@example(text="'" * 4095, properties={})
def test_any_text_is_a_selector_or_invalid(text: str, properties: Properties) -> None:
    position: int | None = 0
    try:
        selector = Selector(text)
    except InvalidSelector as error:
        position = error.position
    else:
        assert selector.matches(properties) in {True, False, None}
        assert all(name in text for name in selector.names)
    assert position is not None
    assert 0 <= position <= len(text)
