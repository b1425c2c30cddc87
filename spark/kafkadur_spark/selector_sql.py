"""Selectors as conditions of Spark SQL over the columns of Spark's Kafka source, with the client's results.

A value in a selector becomes several expressions, one for each type that it can have; at most one of them is
not null for a message. No expression raises, with ANSI mode or without, and none repeats an operand so often
that its length exceeds the square of what was written. The client's own code evaluates a selector in Spark's
Python workers instead if its SQL would be longer than `MAX_SQL` or nested deeper than `MAX_DEPTH`, if a
pattern in it has more than `MAX_PATTERN` characters, or if a text in it cannot be encoded in UTF-8. This
module does not read headers (`header_sql.py`), does not define what a selector means
(`kafkadur_sharing/selector.py`), and does not apply the filter (`source.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

from lark import Token, Transformer, v_args
from pyspark.sql import Column, Row, functions
from pyspark.sql.types import BooleanType

from kafkadur.fetch.filtering import fields_and_properties
from kafkadur.message.headers import (
    CLIENT_ID_HEADER,
    CONNECTION_ID_HEADER,
    ID_OF_CONNECTION,
    MESSAGE_ID_HEADER,
)
from kafkadur_sharing.definition import Definition, HeaderType, Sharing
from kafkadur_sharing.selector import Selector, parse_selector
from kafkadur_sharing.selector_compile import decimal_number, unquoted, whole_number
from kafkadur_sharing.selector_like import ANY_NUMBER, ANY_ONE, parts
from kafkadur_sharing.selector_parse import translated
from kafkadur_spark.header_sql import binary, call, field, has, last, properties, text

#: A message id that begins with the id of a connection, as a regular expression of Java.
_MESSAGE_ID: Final = rf"\A{ID_OF_CONNECTION}\z"
#: Longest SQL of a part of a selector, in characters.
MAX_SQL: Final = 30_000
#: Most parentheses of the SQL within each other: Spark's parser recurses, in a stack of 1 MiB by default.
MAX_DEPTH: Final = 250
#: Longest pattern of LIKE, in characters: Java's regular expressions recurse.
MAX_PATTERN: Final = 256


def taking(definition: Definition, *, client_id: str | None, connection_id: str) -> Column | None:
    """Return the condition for the messages of a subscription, like `kafkadur.fetch.filtering.taking`.

    The condition is over `headers` and `timestamp` of Spark's Kafka source; a message for which it is
    unknown is not taken. None: every message is taken. Raises `InvalidSelector`.
    """
    selector = parse_selector(definition.selector)
    selected = None if selector is None else condition(selector, definition.header_types)
    if not definition.no_local or definition.sharing is not Sharing.UNSHARED:
        return selected
    remote = functions.expr(_remote(client_id, connection_id))
    return remote if selected is None else remote & selected


def condition(selector: Selector, header_types: Mapping[str, HeaderType] | None = None) -> Column:
    """Return the condition of a selector: true, false, or null for unknown.

    `header_types` is that of a definition.
    """
    sql = native(selector, header_types)
    return _evaluated(selector, header_types) if sql is None else functions.expr(sql)


def native(selector: Selector, header_types: Mapping[str, HeaderType] | None = None) -> str | None:
    """Return the SQL of a selector; None if SQL does not evaluate it (see above)."""
    found = over_properties(selector)
    if found is None or not selector.names:
        return found
    return f"get(transform({properties(selector.names, header_types)}, p -> {found}), 0)"


def over_properties(selector: Selector) -> str | None:
    """Return the SQL of a selector over `p`, a struct of `header_sql.properties`; None as `native` does."""
    try:
        sql = _condition(translated(selector.text, _TRANSLATOR))
    except (_TooLongError, UnicodeEncodeError):
        return None
    return sql if depth(sql) <= MAX_DEPTH else None


def depth(sql: str) -> int:
    """Return how many parentheses lie within each other, without those in texts."""
    code = re.sub("'[^']*'", "", sql)
    return max(accumulate(((each == "(") - (each == ")") for each in code), initial=0))


def _remote(client_id: str | None, connection_id: str) -> str:
    """Return the condition that neither this connection nor another one with this client id sent it."""
    named = call("=", last(CONNECTION_ID_HEADER), binary(connection_id.encode()))
    sender = f"regexp_extract(string({last(MESSAGE_ID_HEADER)}), {text(_MESSAGE_ID)}, 1)"
    same = [f"if({has(CONNECTION_ID_HEADER)}, {named}, {call('=', sender, text(connection_id))})"]
    if client_id is not None:
        same.append(call("=", last(CLIENT_ID_HEADER), binary(client_id.encode())))
    return call("not", _all("or", [f"coalesce({each}, false)" for each in same]))


# --- evaluating with the client's own code ------------------------------------------------------------------


def _evaluated(selector: Selector, header_types: Mapping[str, HeaderType] | None) -> Column:
    written, types = selector.text, None if header_types is None else dict(header_types)

    def matches(headers: Sequence[Row] | None, timestamp: int) -> bool | None:
        pairs = [(h.key, None if h.value is None else bytes(h.value)) for h in headers or ()]
        return _selector(written).matches(fields_and_properties(pairs, timestamp, types))

    at = functions.expr("unix_millis(timestamp)")
    return functions.udf(matches, BooleanType())(functions.col("headers"), at)


@lru_cache
def _selector(written: str) -> Selector:
    return Selector(written)


# --- the parts of a selector --------------------------------------------------------------------------------


class _TooLongError(Exception):
    """The SQL is too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a selector: a condition, or a value with an expression for each type it can have."""

    #: of a condition: a boolean, null for unknown
    truth: str | None = None
    #: of a value: null if it has another type; None: it never has this type
    text: str | None = None
    long: str | None = None
    double: str | None = None
    boolean: str | None = None
    #: of a value: whether it is unknown; never null
    unknown: str = "false"
    #: of a value: whether it is a double, if it is known; never null
    floats: str = "false"
    #: of a literal
    number: float | None = None

    def __post_init__(self) -> None:
        """Raise `_TooLongError` if an expression is too long."""
        if any(len(sql or "") > MAX_SQL for sql in (self.truth, self.long, self.double, self.unknown)):
            raise _TooLongError

    @property
    def as_double(self) -> str:
        """The value of a number as a double."""
        if self.long is None:
            return str(self.double)
        long = f"double({self.long})"
        return long if self.double is None else f"coalesce({self.double}, {long})"


def _condition(part: Part) -> str:
    """Return a part as a condition; a value that is not a bool is false."""
    if part.truth is not None:
        return part.truth
    return f"if({part.unknown}, null, coalesce({part.boolean}, false))"


@v_args(inline=True)
class Translator(Transformer[Token, Part]):
    """Makes a part of each rule of the grammar; the parser calls it as it calls the compiler. No state."""

    def disjunction(self, *children: Any) -> Part:  # noqa: ANN401 - parts and the words between them
        """Translate `a OR b OR ...`."""
        return Part(truth=_all("or", [_condition(part) for part in children[::2]]))

    def conjunction(self, *children: Any) -> Part:  # noqa: ANN401 - as above
        """Translate `a AND b AND ...`."""
        return Part(truth=_all("and", [_condition(part) for part in children[::2]]))

    def negation(self, _word: Token, part: Part) -> Part:
        """Translate `NOT a`."""
        return Part(truth=call("not", _condition(part)))

    def comparison(self, left: Part, sign: Token, right: Part) -> Part:
        """Translate `a = b` and the like."""
        return Part(truth=_compared(left, str(sign), right))

    def between(
        self, part: Part, negated: Token | None, _between: Token, low: Part, _and: Token, high: Part
    ) -> Part:
        """Translate `a [NOT] BETWEEN b AND c`."""
        word, *signs = ("and", ">=", "<=") if negated is None else ("or", "<", ">")
        return Part(truth=call(word, _compared(part, signs[0], low), _compared(part, signs[1], high)))

    def membership(self, part: Part, negated: Token | None, _word: Token, *texts: Token) -> Part:
        """Translate `name [NOT] IN ('text', ...)`."""
        test = call("in", str(part.text), *(text(unquoted(each)) for each in texts))
        # null if it is no text: that is false both ways
        wanted = f"coalesce({test if negated is None else call('not', test)}, false)"
        return Part(truth=f"if({part.unknown}, null, {wanted})")

    def like(
        self,
        part: Part,
        negated: Token | None,
        _word: Token,
        pattern: Token,
        _escape: Token | None,
        quoted: Token | None,
    ) -> Part:
        """Translate `name [NOT] LIKE 'pattern' [ESCAPE 'character']`."""
        pieces = parts(unquoted(pattern), None if quoted is None else unquoted(quoted))
        if len(pieces) > MAX_PATTERN:
            raise _TooLongError
        return _tested(part, f"rlike({part.text}, {text(_regex(pieces))})", negated=negated is not None)

    def nullness(self, part: Part, _word: Token, negated: Token | None, _null: Token) -> Part:
        """Translate `name IS [NOT] NULL`."""
        return Part(truth=part.unknown if negated is None else call("not", part.unknown))

    def sum(self, first: Part, *others: Any) -> Part:  # noqa: ANN401 - operators, each with a part behind it
        """Translate operands with operators of one rank between them: `a + b - ...`."""
        result = first
        for sign, other in zip(map(str, others[::2]), others[1::2], strict=True):
            long = None
            if result.long is not None and other.long is not None:
                divides = sign == "/"
                long = _divided(result.long, other) if divides else _wrapped(result.long, sign, other.long)
            floats = _either(result.floats, other.floats)
            result = _number(long, _computed_doubles(result, sign, other), floats)
        return result

    product = sum  # noqa: A003 - a rule of the grammar

    def sign(self, sign: Token, part: Part) -> Part:
        """Translate a sign before anything but an integer."""
        long, double = part.long, part.double
        if sign == "-":
            long = None if long is None else _wrapped("0L", "-", long)
            double = None if double is None else f"negative({double})"
        return _number(long, double, part.floats)

    def integer(self, *tokens: Token) -> Part:
        """Translate an integer, with its sign if it has one."""
        value = whole_number(tokens)
        return Part(long=f"{value}L" if value >= 0 else f"bigint('{value}')", number=value)

    def decimal(self, token: Token) -> Part:
        """Translate a float."""
        value = decimal_number(token)
        return Part(double=f"double('{value!r}')", floats="true", number=value)

    def text(self, token: Token) -> Part:
        """Translate a text in quotes."""
        return Part(text=text(unquoted(token)))

    def truth(self, token: Token) -> Part:
        """Translate TRUE and FALSE."""
        return Part(truth=token.type.lower())

    def identifier(self, token: Token) -> Part:
        """Translate the name of a property."""
        found = f"p.{field(str(token))}"
        return Part(
            text=f"{found}.t",
            long=f"{found}.l",
            double=f"{found}.d",
            boolean=f"{found}.b",
            unknown=f"{found}.n",
            floats=f"isnotnull({found}.d)",
        )

    def group(self, _opening: Token, part: Part, _closing: Token) -> Part:
        """Translate an expression in parentheses."""
        return part


_TRANSLATOR: Final = Translator()


def _all(word: str, conditions: Sequence[str]) -> str:
    """Return conditions joined by `and` or `or`, as a balanced tree."""
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    return call(word, _all(word, conditions[:middle]), _all(word, conditions[middle:]))


# --- comparing ----------------------------------------------------------------------------------------------


def _compared(left: Part, sign: str, right: Part) -> str:
    """Return a comparison of the type that both have, else false, or null if one is unknown."""
    if left.truth is not None or right.truth is not None:
        return _same_truth(left, sign, right)
    found: list[str] = []
    if sign in {"=", "<>"}:
        found += [
            _sign(one, sign, other)
            for one, other in ((left.text, right.text), (left.boolean, right.boolean))
            if one is not None and other is not None
        ]
    if left.long is not None and right.long is not None:
        found.append(_sign(left.long, sign, right.long))
    if _numeric(left) and _numeric(right) and (left.double is not None or right.double is not None):
        found.append(_compared_doubles(left, sign, right))
    return f"coalesce({', '.join([*found, _unlike(left, right)])})"


def _sign(one: str, sign: str, other: str) -> str:
    return call("not", call("=", one, other)) if sign == "<>" else call(sign, one, other)


def _numeric(part: Part) -> bool:
    return part.long is not None or part.double is not None


def _unlike(left: Part, right: Part) -> str:
    unknown = [part.unknown for part in (left, right) if part.unknown != "false"]
    return f"if({_all('or', unknown)}, null, false)" if unknown else "false"


def _compared_doubles(left: Part, sign: str, right: Part) -> str:
    """Return a comparison in which NaN is unequal to everything; Spark makes it equal to itself and greatest.

    A comparison with NaN is null, except `<>`; `_unlike` then makes it false.
    """
    plain = _sign(left.as_double, sign, right.as_double)
    greater = left if sign in {">", ">=", "="} else right
    if sign == "<>":
        if left.double is None or right.double is None:
            return plain
        return call("or", plain, call("and", f"isnan({left.double})", f"isnan({right.double})"))
    return plain if greater.double is None else f"if(isnan({greater.double}), null, {plain})"


def _same_truth(left: Part, sign: str, right: Part) -> str:
    """Return whether two truth values are equal, at least one of them a condition; each is written once.

    They are unequal if one is equal to the opposite of the other.
    """
    condition, other = (left, right) if left.truth is not None else (right, left)
    truth = str(condition.truth)
    return call("=", _code(other), f"int({call('not', truth) if sign == '<>' else truth})")


def _code(part: Part) -> str:
    """Return 0 for false, 1 for true, 2 for a value that is not a bool, null for unknown."""
    if part.truth is not None:
        return f"int({part.truth})"
    code = "2" if part.boolean is None else f"coalesce(int({part.boolean}), 2)"
    return code if part.unknown == "false" else f"if({part.unknown}, null, {code})"


def _tested(part: Part, test: str, *, negated: bool) -> Part:
    """Return whether a property passes a test for texts, or fails it; only a text passes."""
    passed = f"coalesce({test}, false)"
    return Part(truth=f"if({part.unknown}, null, {call('not', passed) if negated else passed})")


# --- LIKE ---------------------------------------------------------------------------------------------------


def _regex(pieces: list[object]) -> str:
    """Return the Java regular expression for a pattern; it does not backtrack between two %."""
    stretches: list[str] = [""]
    for piece in pieces:
        if piece is ANY_NUMBER:
            stretches.append("")
        else:
            stretches[-1] += "." if piece is ANY_ONE else _quoted(str(piece))
    first, *middle = stretches
    if not middle:
        return rf"(?s)\A{first}\z"
    *middle, end = middle
    between = "".join(f"(?>.*?{stretch})" for stretch in middle if stretch)
    return rf"(?s)\A{first}{between}.*{end}\z"


def _quoted(char: str) -> str:
    return f"\\{char}" if char.isascii() and not char.isalnum() else char


# --- computing ----------------------------------------------------------------------------------------------


def _number(long: str | None, double: str | None, floats: str) -> Part:
    absent = [f"isnull({sql})" for sql in (long, double) if sql is not None]
    return Part(long=long, double=double, unknown=_all("and", absent), floats=floats)


def _either(*floats: str) -> str:
    """Return whether any of some values is a double."""
    if "true" in floats:
        return "true"
    some = [each for each in floats if each != "false"]
    return _all("or", some) if some else "false"


def _wrapped(left: str, sign: str, right: str) -> str:
    """Return a bigint that wraps like Java's long; a product of two has at most 38 digits."""
    exact = call(sign, f"cast({left} as decimal(19, 0))", f"cast({right} as decimal(19, 0))")
    moved = call("+", exact, str(2**63))
    return f"bigint({call('-', f'pmod({moved}, {2**64})', str(2**63))})"


def _divided(left: str, right: Part) -> str:
    """Return an integer quotient, truncated; null for a division by zero. Only -1 can overflow a bigint."""
    opposite, by = _wrapped("0L", "-", left), str(right.long)
    if right.number is not None:
        return {0: "bigint(null)", -1: opposite}.get(int(right.number), call("div", left, by))
    quotient = call("div", left, f"nullif({by}, 0L)")
    return f"if({call('=', by, 'bigint(-1)')}, {opposite}, {quotient})"


def _computed_doubles(left: Part, sign: str, right: Part) -> str | None:
    """Return the result if one operand is a double; null if both are integers."""
    if left.double is None and right.double is None:
        return None
    # If one operand is always or never an integer, that determines which form the other one needs.
    one = left.double if right.double is None else left.as_double
    other = right.double if left.double is None else right.as_double
    if sign != "/":
        found = call(sign, str(one), str(other))
    elif right.number:
        found = f"try_divide({one}, {other})"
    else:
        # A division by zero is null in Spark, and never infinite.
        found = f"coalesce(try_divide({one}, {other}), {call('*', str(one), f'power({other}, -1D)')})"
    sure = left.double is None or right.double is None or left.long is None or right.long is None
    return found if sure else f"if({_either(left.floats, right.floats)}, {found}, null)"
