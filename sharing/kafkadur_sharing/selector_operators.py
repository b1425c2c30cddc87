"""The operators of selectors: three-valued logic, comparison, arithmetic.

Each function takes the closures of its operands and returns the closure of the operation. None is unknown, in
logic and in arithmetic. `selector.py` describes what is done where the specification leaves it open;
`selector_compile.py` checks the operands.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

#: The values of properties; an int is an int64. Values of other types equal nothing.
Value: TypeAlias = str | int | float | bool | bytes | None
#: The properties of a message by name, the JMS fields under their JMS names.
Properties: TypeAlias = Mapping[str, Value]
#: Evaluates a part of a selector for a message.
Evaluate: TypeAlias = Callable[[Properties], Value]
#: The values with which arithmetic is possible.
Number: TypeAlias = int | float

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

#: Longest selector, in characters.
MAX_LENGTH: Final = 4096
#: The greatest depth to which parentheses, NOTs and signs may be nested.
MAX_NESTING: Final = 64
#: The JMS fields a selector can use. Of the other names with `JMS` only `JMSX...` and `JMS_...` are allowed.
JMS_HEADERS: Final = frozenset(
    {"JMSCorrelationID", "JMSDeliveryMode", "JMSMessageID", "JMSPriority", "JMSTimestamp", "JMSType"}
)


# --- three-valued logic -------------------------------------------------------------------------------------

# A value that is neither unknown nor True is false, so a property that is not a bool is false as well.


def conjunction(conditions: Sequence[Evaluate]) -> Evaluate:
    """Return AND of all `conditions`."""

    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = True
        for condition in conditions:
            truth = condition(properties)
            if truth is None:
                result = None
            elif truth is not True:
                return False
        return result

    return evaluate


def disjunction(conditions: Sequence[Evaluate]) -> Evaluate:
    """Return OR of all `conditions`."""

    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = False
        for condition in conditions:
            truth = condition(properties)
            if truth is True:
                return True
            if truth is None:
                result = None
        return result

    return evaluate


def negation(condition: Evaluate) -> Evaluate:
    """Return NOT `condition`."""

    def evaluate(properties: Properties) -> bool | None:
        truth = condition(properties)
        return None if truth is None else truth is not True

    return evaluate


# --- comparing ----------------------------------------------------------------------------------------------

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMBERS: Final[frozenset[type]] = frozenset({int, float})
_EQUATABLE: Final[frozenset[type]] = frozenset({int, float, str, bool})


def comparison(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    """Return the comparison of two operands; `sign` is one of `=`, `<>`, `<`, `<=`, `>`, `>=`."""
    compare = _COMPARE[sign]
    comparable = _EQUATABLE if sign in {"=", "<>"} else _NUMBERS

    def evaluate(properties: Properties) -> bool | None:
        value, other = left(properties), right(properties)
        if value is None or other is None:
            return None
        kind, other_kind = type(value), type(other)
        if kind is other_kind:
            return kind in comparable and compare(value, other)
        if kind in _NUMBERS and other_kind in _NUMBERS:
            # As in Java, an integer beyond 2**53 is rounded first; Python would compare exactly.
            return compare(float(value), float(other))
        return False

    return evaluate


def text_test(name: str, test: Callable[[str], bool], *, negated: bool) -> Evaluate:
    """Return whether a property passes a test for texts, or fails it if `negated`.

    Only a text can pass.
    """

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        if value is None:
            return None
        return (type(value) is str and test(value)) is not negated

    return evaluate


def member_test(name: str, members: Collection[str], *, negated: bool) -> Evaluate:
    """Return whether a property is one of some texts, or another text if `negated`.

    Compared with a text, a value of another type is false both ways, as with `=` and `<>`.
    """

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        if value is None:
            return None
        return type(value) is str and (value in members) is not negated

    return evaluate


# --- computing ----------------------------------------------------------------------------------------------


def _divide(value: Number, by: Number) -> Number | None:
    if isinstance(value, int) and isinstance(by, int):
        if by == 0:
            return None
        quotient = abs(value) // abs(by)
        return quotient if (value < 0) is (by < 0) else -quotient
    if by == 0:
        # 0/0 and NaN/0 are NaN; any other number divided by zero is infinite.
        infinite = math.copysign(math.inf, value) * math.copysign(1.0, by)
        return math.nan if value == 0 or math.isnan(value) else infinite
    return value / by


_COMPUTE: Final[Mapping[str, Callable[[Number, Number], Number | None]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}


def arithmetic(first: Evaluate, others: Sequence[tuple[str, Evaluate]]) -> Evaluate:
    """Return the computation from left to right; each of `others` has one of `+`, `-`, `*`, `/` before it."""
    steps = [(_COMPUTE[sign], operand) for sign, operand in others]

    def evaluate(properties: Properties) -> Number | None:
        result = _number(first(properties))
        for compute, operand in steps:
            other = _number(operand(properties))
            if result is None or other is None:
                return None
            result = _wrapped(compute(result, other))
        return result

    return evaluate


def signed(sign: str, operand: Evaluate) -> Evaluate:
    """Return an operand with `+` or `-` before it."""

    def evaluate(properties: Properties) -> Number | None:
        value = _number(operand(properties))
        return _wrapped(-value) if sign == "-" and value is not None else value

    return evaluate


def _number(value: Value) -> Number | None:
    return value if type(value) is int or type(value) is float else None


def _wrapped(value: Number | None) -> Number | None:
    """Return a result; an integer wraps like Java's long."""
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        return (value - INT64_MIN) % 2**64 + INT64_MIN
    return value
