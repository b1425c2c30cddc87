"""What the rules of `selector.lark` mean: each is checked and becomes a closure from properties to a value.

What does not live here: reading the text and telling where it goes wrong (`selector.py`), what operators do
to values (`selector_operators.py`), and LIKE on a text (`selector_like.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from lark import Token, Transformer

from kafkadur_sharing.selector_like import like
from kafkadur_sharing.selector_operators import (
    INT64_MAX,
    INT64_MIN,
    Evaluate,
    arithmetic,
    comparison,
    conjunction,
    disjunction,
    negation,
    signed,
    text_test,
)

#: How many parentheses, NOTs and signs may be open inside each other.
MAX_NESTING: Final = 64
#: The JMS fields a selector can use. Of the other names with `JMS` only `JMSX...` and `JMS_...` are allowed.
JMS_HEADERS: Final = frozenset(
    {"JMSCorrelationID", "JMSDeliveryMode", "JMSMessageID", "JMSPriority", "JMSTimestamp", "JMSType"}
)


class Fault(Exception):
    """What is wrong at one position; becomes an `InvalidSelector` where the whole text is known."""

    def __init__(self, position: int, problem: str, remedy: str) -> None:
        super().__init__(position, problem, remedy)
        self.position = position
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A part of a selector, compiled, with what is known of it before there is a message."""

    kind: Literal["a condition", "a number", "a text", "a property"]
    evaluate: Evaluate
    #: Where it starts in the selector.
    position: int
    #: How many parentheses, NOTs and signs are open inside each other in it.
    levels: int = 0
    #: The name of a property that stands bare, without parentheses.
    name: str | None = None


class Compiler(Transformer[Token, Node]):
    """Makes a node of each rule of the grammar, called by the parser when it has read one.

    Working from the leaves up, it does not recurse over what somebody wrote. It keeps no state: all selectors
    of a process share it.
    """

    def disjunction(self, children: list[Any]) -> Node:
        """Compile `a OR b OR ...`."""
        return _joined(disjunction, children[::2])

    def conjunction(self, children: list[Any]) -> Node:
        """Compile `a AND b AND ...`."""
        return _joined(conjunction, children[::2])

    def negation(self, children: list[Any]) -> Node:
        """Compile `NOT a`."""
        word, node = children
        return Node(
            kind="a condition",
            evaluate=negation(as_condition(node)),
            position=start(word),
            levels=_deeper(word, node),
        )

    def comparison(self, children: list[Any]) -> Node:
        """Compile `a = b` and the like."""
        left, sign, right = children
        if sign not in {"=", "<>"}:
            _as_number(left)
            _as_number(right)
        return _condition(comparison(str(sign), left.evaluate, right.evaluate), left, right)

    def between(self, children: list[Any]) -> Node:
        """Compile `a [NOT] BETWEEN b AND c`."""
        node, negated, _between, low, _and, high = children
        a, b, c = _as_number(node), _as_number(low), _as_number(high)
        if negated is None:
            within = conjunction([comparison(">=", a, b), comparison("<=", a, c)])
        else:
            within = disjunction([comparison("<", a, b), comparison(">", a, c)])
        return _condition(within, node, low, high)

    def membership(self, children: list[Any]) -> Node:
        """Compile `name [NOT] IN ('text', ...)`."""
        node, negated, word, *texts = children
        members = frozenset(unquoted(text) for text in texts)
        test = text_test(_bare(node, word), members.__contains__, negated=negated is not None)
        return _condition(test, node)

    def like(self, children: list[Any]) -> Node:
        """Compile `name [NOT] LIKE 'pattern' [ESCAPE 'character']`."""
        node, negated, word, pattern, _escape, quoted = children
        escape = None if quoted is None else _one_character(quoted)
        try:
            matches = like(unquoted(pattern), escape)
        except ValueError as error:
            raise Fault(start(pattern), str(error), "write the escape character twice") from None
        return _condition(text_test(_bare(node, word), matches, negated=negated is not None), node)

    def nullness(self, children: list[Any]) -> Node:
        """Compile `name IS [NOT] NULL`."""
        node, word, negated, _null = children
        name, null = _bare(node, word), negated is None
        return _condition(lambda properties: (properties.get(name) is None) is null, node)

    def sum(self, children: list[Any]) -> Node:
        """Compile `a + b - ...`."""
        return _computed(children)

    def product(self, children: list[Any]) -> Node:
        """Compile `a * b / ...`."""
        return _computed(children)

    def sign(self, children: list[Any]) -> Node:
        """Compile a sign before anything but an integer."""
        sign, node = children
        return Node(
            kind="a number",
            evaluate=signed(str(sign), _as_number(node)),
            position=start(sign),
            levels=_deeper(sign, node),
        )

    def integer(self, children: list[Any]) -> Node:
        """Compile an integer, with its sign if it has one."""
        *signs, token = children
        value = whole_number(children)
        if not INT64_MIN <= value <= INT64_MAX:
            raise Fault(
                start(token),
                "the integer is beyond int64",
                "write it as a float, with a point or an exponent",
            )
        return Node(kind="a number", evaluate=lambda _: value, position=start(children[0]), levels=len(signs))

    def decimal(self, children: list[Any]) -> Node:
        """Compile a float."""
        (token,) = children
        value = decimal_number(token)
        if math.isinf(value):
            raise Fault(start(token), "the number is beyond a double", "write a smaller one")
        return Node(kind="a number", evaluate=lambda _: value, position=start(token))

    def text(self, children: list[Any]) -> Node:
        """Compile a text in quotes."""
        (token,) = children
        value = unquoted(token)
        return Node(kind="a text", evaluate=lambda _: value, position=start(token))

    def truth(self, children: list[Any]) -> Node:
        """Compile TRUE and FALSE."""
        (token,) = children
        value: bool = token.type == "TRUE"
        return Node(kind="a condition", evaluate=lambda _: value, position=start(token))

    def identifier(self, children: list[Any]) -> Node:
        """Compile the name of a property."""
        (token,) = children
        name = _checked_name(token)
        return Node(
            kind="a property",
            evaluate=lambda properties: properties.get(name),
            position=start(token),
            name=name,
        )

    def group(self, children: list[Any]) -> Node:
        """Compile what stands in parentheses."""
        opening, node, _closing = children
        inside: Node = node
        return replace(inside, position=start(opening), levels=_deeper(opening, inside), name=None)


# --- making nodes of nodes ----------------------------------------------------------------------------------


def _condition(evaluate: Evaluate, *parts: Node) -> Node:
    """Return the node of a condition that is made of some parts, in the order they are written in."""
    return Node(
        kind="a condition",
        evaluate=evaluate,
        position=parts[0].position,
        levels=max(part.levels for part in parts),
    )


def _joined(join: Callable[[Sequence[Evaluate]], Evaluate], parts: list[Node]) -> Node:
    return _condition(join([as_condition(part) for part in parts]), *parts)


def _computed(children: list[Any]) -> Node:
    """Return the node of operands with operators of one rank between them."""
    parts: list[Node] = children[::2]
    first, *others = [_as_number(part) for part in parts]
    return Node(
        kind="a number",
        evaluate=arithmetic(
            first, [(str(s), other) for s, other in zip(children[1::2], others, strict=True)]
        ),
        position=parts[0].position,
        levels=max(part.levels for part in parts),
    )


def start(token: Token) -> int:
    """Return where a token starts in the selector, counted from 0."""
    return token.start_pos or 0


def unquoted(token: Token) -> str:
    """Return the text in quotes."""
    return token[1:-1].replace("''", "'")


def whole_number(tokens: Sequence[Token]) -> int:
    """Return the integer that a sign, if there is one, and digits are."""
    return int("".join(tokens).rstrip("lL"))


def decimal_number(token: Token) -> float:
    """Return the float a token is; infinite where it is beyond a double."""
    return float(token.rstrip("dDfF"))


# --- what is refused ----------------------------------------------------------------------------------------


def as_condition(node: Node) -> Evaluate:
    """Return what evaluates a node that stands as a condition. Raises `Fault` if it is none."""
    if node.kind not in {"a condition", "a property"}:
        raise Fault(
            node.position,
            f"{node.kind} stands where a condition is expected",
            "compare it with something",
        )
    return node.evaluate


def _as_number(node: Node) -> Evaluate:
    """Return what evaluates a node that stands as a number. Raises `Fault` if it is none."""
    if node.kind not in {"a number", "a property"}:
        raise Fault(
            node.position,
            f"{node.kind} stands where a number is expected",
            "texts and conditions can only be compared, with = and <>",
        )
    return node.evaluate


def _bare(node: Node, word: Token) -> str:
    """Return the name of the property `word` is said of. Raises `Fault` if it is said of anything else."""
    if node.name is None:
        raise Fault(
            node.position,
            f"{word.upper()} needs a property before it",
            "write the name of a property, without parentheses",
        )
    return node.name


def _one_character(quoted: Token) -> str:
    """Return the character in quotes. Raises `Fault` if it is more or none."""
    escape = unquoted(quoted)
    if len(escape) != 1:
        raise Fault(start(quoted), "the escape is not one character", "write one character")
    return escape


def _deeper(opening: Token, inside: Node) -> int:
    """Return the levels of what `opening` opens. Raises `Fault` if they are too many."""
    if inside.levels == MAX_NESTING:
        raise Fault(
            start(opening),
            f"parentheses, NOT and signs are nested deeper than the limit of {MAX_NESTING} levels",
            "write the selector with fewer levels",
        )
    return inside.levels + 1


def _checked_name(token: Token) -> str:
    """Return the name a token is. Raises `Fault` if no property and no JMS field of use has it."""
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
