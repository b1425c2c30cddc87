"""The compiler of selectors: it checks each rule of `selector.lark` and makes a closure of it.

A closure takes the properties of a message and returns a value. This module does not parse the text
(`selector_parse.py`), does not define the operators (`selector_operators.py`) and does not match LIKE
patterns (`selector_like.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from lark import Token, Transformer, v_args

from kafkadur_sharing.selector_like import like
from kafkadur_sharing.selector_operators import (
    INT64_MAX,
    INT64_MIN,
    JMS_HEADERS,
    MAX_NESTING,
    Evaluate,
    arithmetic,
    comparison,
    conjunction,
    disjunction,
    member_test,
    negation,
    signed,
    text_test,
)


class Fault(Exception):
    """An error at one position; `selector_parse.py` makes an `InvalidSelector` of it."""

    def __init__(self, position: int, problem: str, remedy: str) -> None:
        super().__init__(position, problem, remedy)
        self.position = position
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A compiled part of a selector, with what is known about it before there is a message."""

    kind: Literal["a condition", "a number", "a text", "a property"]
    evaluate: Evaluate
    #: The position in the selector at which it starts.
    position: int
    #: The depth to which parentheses, NOTs and signs are nested in it.
    levels: int = 0
    #: The name of a property that is written without parentheses.
    name: str | None = None


@v_args(inline=True)
class Compiler(Transformer[Token, Node]):
    """Makes a node of each rule of the grammar; the parser calls a method when it has read the rule.

    The parser works from the leaves up, so nothing recurses over the selector. The compiler keeps no state:
    all selectors of a process share it.
    """

    def disjunction(self, *children: Any) -> Node:  # noqa: ANN401 - nodes and the words between them
        """Compile `a OR b OR ...`."""
        parts = children[::2]
        return _made("a condition", disjunction([evaluated(part, "a condition") for part in parts]), *parts)

    def conjunction(self, *children: Any) -> Node:  # noqa: ANN401 - as above
        """Compile `a AND b AND ...`."""
        parts = children[::2]
        return _made("a condition", conjunction([evaluated(part, "a condition") for part in parts]), *parts)

    def negation(self, word: Token, node: Node) -> Node:
        """Compile `NOT a`."""
        evaluate = negation(evaluated(node, "a condition"))
        return replace(_deeper(word, node), kind="a condition", evaluate=evaluate)

    def comparison(self, left: Node, sign: Token, right: Node) -> Node:
        """Compile `a = b` and the like."""
        if sign not in {"=", "<>"}:
            evaluated(left, "a number")
            evaluated(right, "a number")
        return _made("a condition", comparison(str(sign), left.evaluate, right.evaluate), left, right)

    def between(
        self, node: Node, negated: Token | None, _between: Token, low: Node, _and: Token, high: Node
    ) -> Node:
        """Compile `a [NOT] BETWEEN b AND c`."""
        a, b, c = (evaluated(part, "a number") for part in (node, low, high))
        if negated is None:
            within = conjunction([comparison(">=", a, b), comparison("<=", a, c)])
        else:
            within = disjunction([comparison("<", a, b), comparison(">", a, c)])
        return _made("a condition", within, node, low, high)

    def membership(self, node: Node, negated: Token | None, word: Token, *texts: Token) -> Node:
        """Compile `name [NOT] IN ('text', ...)`."""
        members = frozenset(unquoted(text) for text in texts)
        test = member_test(_bare(node, word), members, negated=negated is not None)
        return _made("a condition", test, node)

    def like(
        self,
        node: Node,
        negated: Token | None,
        word: Token,
        pattern: Token,
        _escape: Token | None,
        quoted: Token | None,
    ) -> Node:
        """Compile `name [NOT] LIKE 'pattern' [ESCAPE 'character']`."""
        escape = None if quoted is None else unquoted(quoted)
        if quoted is not None and len(unquoted(quoted)) != 1:
            raise Fault(start(quoted), "the escape is not one character", "write one character")
        try:
            matches = like(unquoted(pattern), escape)
        except ValueError as error:
            raise Fault(start(pattern), str(error), "write the escape character twice") from None
        test = text_test(_bare(node, word), matches, negated=negated is not None)
        return _made("a condition", test, node)

    def nullness(self, node: Node, word: Token, negated: Token | None, _null: Token) -> Node:
        """Compile `name IS [NOT] NULL`."""
        name, null = _bare(node, word), negated is None
        return _made("a condition", lambda properties: (properties.get(name) is None) is null, node)

    def sum(self, *children: Any) -> Node:  # noqa: ANN401 - nodes and the operators between them
        """Compile operands with operators of one rank between them: `a + b - ...`."""
        parts = children[::2]
        first, *others = [evaluated(part, "a number") for part in parts]
        steps = zip(map(str, children[1::2]), others, strict=True)
        return _made("a number", arithmetic(first, list(steps)), *parts)

    product = sum  # noqa: A003 - a rule of the grammar

    def sign(self, sign: Token, node: Node) -> Node:
        """Compile a sign before anything but an integer."""
        evaluate = signed(str(sign), evaluated(node, "a number"))
        return replace(_deeper(sign, node), kind="a number", evaluate=evaluate)

    def integer(self, *tokens: Token) -> Node:
        """Compile an integer, with its sign if it has one."""
        value = whole_number(tokens)
        if not INT64_MIN <= value <= INT64_MAX:
            raise Fault(
                start(tokens[-1]),
                "the integer is beyond int64",
                "write it as a float, with a point or an exponent",
            )
        levels = len(tokens) - 1
        return Node(kind="a number", evaluate=lambda _: value, position=start(tokens[0]), levels=levels)

    def decimal(self, token: Token) -> Node:
        """Compile a float."""
        value = decimal_number(token)
        if math.isinf(value):
            raise Fault(start(token), "the number is beyond a double", "write a smaller one")
        return Node(kind="a number", evaluate=lambda _: value, position=start(token))

    def text(self, token: Token) -> Node:
        """Compile a text in quotes."""
        value = unquoted(token)
        return Node(kind="a text", evaluate=lambda _: value, position=start(token))

    def truth(self, token: Token) -> Node:
        """Compile TRUE and FALSE."""
        value = token.type == "TRUE"
        return Node(kind="a condition", evaluate=lambda _: value, position=start(token))

    def identifier(self, token: Token) -> Node:
        """Compile the name of a property."""
        name = _checked_name(token)
        return Node(
            kind="a property", evaluate=lambda found: found.get(name), position=start(token), name=name
        )

    def group(self, opening: Token, node: Node, _closing: Token) -> Node:
        """Compile an expression in parentheses."""
        return _deeper(opening, node)


def _made(kind: Literal["a condition", "a number"], evaluate: Evaluate, *parts: Node) -> Node:
    """Return a node made of parts, in the order in which they are written."""
    levels = max(part.levels for part in parts)
    return Node(kind=kind, evaluate=evaluate, position=parts[0].position, levels=levels)


def start(token: Token) -> int:
    """Return where a token starts in the selector, counted from 0."""
    return token.start_pos or 0


def unquoted(token: Token) -> str:
    """Return the text in quotes."""
    return token[1:-1].replace("''", "'")


#: Bases of integers by what they begin with; all others are decimal.
_BASES: Final = {"0x": 16, "0b": 2, "0": 8}


def whole_number(tokens: Sequence[Token]) -> int:
    """Return the integer written as an optional sign and a literal of Java.

    Raises `Fault` for an octal literal with the digit 8 or 9.
    """
    *signs, literal = tokens
    digits = literal.rstrip("lL").lower().replace("_", "")
    prefix = "0" if digits.startswith("0") and digits.isdecimal() and digits.strip("0") else digits[:2]
    try:
        value = int(digits, _BASES.get(prefix, 10))
    except ValueError:
        raise Fault(
            start(literal),
            "an integer that begins with 0 is octal, and has the digits 0 to 7",
            "write it without the 0 for a decimal integer",
        ) from None
    return -value if "-" in signs else value


def decimal_number(token: Token) -> float:
    """Return the float written in a token; infinite if it is beyond a double."""
    return float(token.rstrip("dDfF"))


# --- refusing -----------------------------------------------------------------------------------------------


def evaluated(node: Node, kind: Literal["a condition", "a number"]) -> Evaluate:
    """Return what evaluates a node of a kind, or a property. Raises `Fault` for a node of another kind."""
    if node.kind not in {kind, "a property"}:
        raise Fault(
            node.position,
            f"{node.kind} stands where {kind} is expected",
            "compare it with something"
            if kind == "a condition"
            else "texts and conditions can only be compared, with = and <>",
        )
    return node.evaluate


def _bare(node: Node, word: Token) -> str:
    """Return the name of the property before `word`. Raises `Fault` if anything else stands there."""
    if node.name is None:
        raise Fault(
            node.position,
            f"{word.upper()} needs a property before it",
            "write the name of a property, without parentheses",
        )
    return node.name


def _deeper(opening: Token, inside: Node) -> Node:
    """Return a node inside what `opening` opens. Raises `Fault` if the nesting is too deep."""
    if inside.levels == MAX_NESTING:
        raise Fault(
            start(opening),
            f"parentheses, NOT and signs are nested deeper than the limit of {MAX_NESTING} levels",
            "write the selector with fewer levels",
        )
    return replace(inside, position=start(opening), levels=inside.levels + 1, name=None)


def _checked_name(token: Token) -> str:
    """Return the name in a token. Raises `Fault` for a name that no property and no usable JMS field has."""
    name = str(token)
    if not name.replace("$", "_").isidentifier():
        raise Fault(
            start(token),
            "this is no name",
            "start with a letter, '_' or '$' and go on with letters, digits, '_' and '$'",
        )
    if name.startswith("JMS") and not name.startswith(("JMSX", "JMS_")) and name not in JMS_HEADERS:
        raise Fault(
            start(token),
            "this is no JMS field a selector can use",
            f"use one of {', '.join(sorted(JMS_HEADERS))}",
        )
    return name
