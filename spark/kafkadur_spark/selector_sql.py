"""Selectors as conditions of Spark SQL over the columns of Spark's Kafka source: the client's own answers.

A part of a selector that is a value becomes several expressions, one for each type it can have, of which at
most one is not null for a message. None of them raises, with ANSI mode or without, and none holds an operand
so often that they grow beyond the square of what was written; a selector that would become longer than
`MAX_SQL`, has a pattern of more than `MAX_PATTERN` characters, or has no UTF-8, is evaluated by the client's
own code instead, in Spark's Python workers. What does not live here: reading headers (`header_sql.py`), what
a selector means (`kafkadur_sharing/selector.py`), and who filters (`source.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

from lark import Token, Transformer
from pyspark.sql import Column, functions
from pyspark.sql.types import BooleanType

from kafkadur.fetch.filtering import fields_and_properties
from kafkadur.message.headers import CLIENT_ID_HEADER, CONNECTION_ID_HEADER
from kafkadur_sharing.definition import Definition, HeaderType, Sharing
from kafkadur_sharing.selector import Selector, parse_selector, translated
from kafkadur_sharing.selector_compile import decimal_number, unquoted, whole_number
from kafkadur_sharing.selector_like import ANY_NUMBER, ANY_ONE, parts
from kafkadur_spark.header_sql import binary, call, field, last, properties, text

#: Longest SQL of a part of a selector, in characters.
MAX_SQL: Final = 30_000
#: Longest pattern of LIKE, in characters: Java's regular expressions recurse.
MAX_PATTERN: Final = 256


def taking(definition: Definition, *, client_id: str | None, connection_id: str) -> Column | None:
    """What a subscription takes, as `kafkadur.filtering.taking` says it; None: everything.

    The condition is over `headers` and `timestamp` of Spark's Kafka source; what is unknown is not taken.
    Raises `InvalidSelector`.
    """
    selector = parse_selector(definition.selector)
    selected = None if selector is None else condition(selector, definition.header_types)
    if not definition.no_local or definition.sharing is not Sharing.UNSHARED:
        return selected
    remote = functions.expr(_remote(client_id, connection_id))
    return remote if selected is None else remote & selected


def condition(selector: Selector, header_types: Mapping[str, HeaderType] | None = None) -> Column:
    """Return what a selector says of a message: true, false, or null for unknown.

    `header_types` as in a definition.
    """
    sql = native(selector, header_types)
    return _evaluated(selector, header_types) if sql is None else functions.expr(sql)


def native(selector: Selector, header_types: Mapping[str, HeaderType] | None = None) -> str | None:
    """Return the SQL of a selector; None: it is none that SQL evaluates (see above)."""
    found = over_properties(selector)
    if found is None or not selector.names:
        return found
    return f"get(transform({properties(selector.names, header_types)}, p -> {found}), 0)"


def over_properties(selector: Selector) -> str | None:
    """Return the SQL of a selector over `p`, what `header_sql.properties` holds; None as `native` does."""
    try:
        return _condition(translated(selector, _TRANSLATOR))
    except (_TooLongError, UnicodeEncodeError):
        return None


def _remote(client_id: str | None, connection_id: str) -> str:
    """What neither this connection nor another one with this client id sent."""
    own = [(CONNECTION_ID_HEADER, connection_id)]
    if client_id is not None:
        own.append((CLIENT_ID_HEADER, client_id))
    same = [f"coalesce({call('=', last(name), binary(value.encode()))}, false)" for name, value in own]
    return call("not", _all("or", same))


# --- by the client's own code -------------------------------------------------------------------------------


class _Header(Protocol):
    """What Spark's workers hand out for a header."""

    @property
    def key(self) -> str: ...
    @property
    def value(self) -> bytearray | None: ...


def _evaluated(selector: Selector, header_types: Mapping[str, HeaderType] | None) -> Column:
    written, types = selector.text, None if header_types is None else dict(header_types)

    def matches(headers: Sequence[_Header] | None, timestamp: int) -> bool | None:
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
    #: null where the value is of another type; None: it never is of this one
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
        """Raise `_TooLongError` for what is too long."""
        if any(len(sql or "") > MAX_SQL for sql in (self.truth, self.long, self.double, self.unknown)):
            raise _TooLongError

    @property
    def as_double(self) -> str:
        """Of a number: its value as a double."""
        if self.long is None:
            return str(self.double)
        long = f"double({self.long})"
        return long if self.double is None else f"coalesce({self.double}, {long})"


def _condition(part: Part) -> str:
    """Return a part as a condition; what is no bool is false."""
    if part.truth is not None:
        return part.truth
    return f"if({part.unknown}, null, coalesce({part.boolean}, false))"


class Translator(Transformer[Token, Part]):
    """Makes the part of each rule of the grammar; the parser calls it as it calls the compiler. No state."""

    def disjunction(self, children: list[Any]) -> Part:
        """Translate `a OR b OR ...`."""
        return _joined("or", children[::2])

    def conjunction(self, children: list[Any]) -> Part:
        """Translate `a AND b AND ...`."""
        return _joined("and", children[::2])

    def negation(self, children: list[Any]) -> Part:
        """Translate `NOT a`."""
        _word, part = children
        return Part(truth=call("not", _condition(part)))

    def comparison(self, children: list[Any]) -> Part:
        """Translate `a = b` and the like."""
        left, sign, right = children
        return Part(truth=_compared(left, str(sign), right))

    def between(self, children: list[Any]) -> Part:
        """Translate `a [NOT] BETWEEN b AND c`."""
        part, negated, _between, low, _and, high = children
        if negated is None:
            truth = call("and", _compared(part, ">=", low), _compared(part, "<=", high))
        else:
            truth = call("or", _compared(part, "<", low), _compared(part, ">", high))
        return Part(truth=truth)

    def membership(self, children: list[Any]) -> Part:
        """Translate `name [NOT] IN ('text', ...)`."""
        part, negated, _word, *texts = children
        test = call("in", str(part.text), *(text(unquoted(each)) for each in texts))
        return _tested(part, test, negated=negated is not None)

    def like(self, children: list[Any]) -> Part:
        """Translate `name [NOT] LIKE 'pattern' [ESCAPE 'character']`."""
        part, negated, _word, pattern, _escape, quoted = children
        pieces = parts(unquoted(pattern), None if quoted is None else unquoted(quoted))
        if len(pieces) > MAX_PATTERN:
            raise _TooLongError
        return _tested(part, f"rlike({part.text}, {text(_regex(pieces))})", negated=negated is not None)

    def nullness(self, children: list[Any]) -> Part:
        """Translate `name IS [NOT] NULL`."""
        part, _word, negated, _null = children
        return Part(truth=part.unknown if negated is None else call("not", part.unknown))

    def sum(self, children: list[Any]) -> Part:
        """Translate `a + b - ...`."""
        return _computed(children)

    def product(self, children: list[Any]) -> Part:
        """Translate `a * b / ...`."""
        return _computed(children)

    def sign(self, children: list[Any]) -> Part:
        """Translate a sign before anything but an integer."""
        sign, part = children
        long, double = part.long, part.double
        if sign == "-":
            long = None if long is None else _wrapped("0L", "-", long)
            double = None if double is None else f"negative({double})"
        return _number(long, double, part.floats)

    def integer(self, children: list[Any]) -> Part:
        """Translate an integer, with its sign if it has one."""
        value = whole_number(children)
        return Part(long=f"{value}L" if value >= 0 else f"bigint('{value}')", number=value)

    def decimal(self, children: list[Any]) -> Part:
        """Translate a float."""
        (token,) = children
        value = decimal_number(token)
        return Part(double=f"double('{value!r}')", floats="true", number=value)

    def text(self, children: list[Any]) -> Part:
        """Translate a text in quotes."""
        (token,) = children
        return Part(text=text(unquoted(token)))

    def truth(self, children: list[Any]) -> Part:
        """Translate TRUE and FALSE."""
        (token,) = children
        return Part(truth=token.type.lower())

    def identifier(self, children: list[Any]) -> Part:
        """Translate the name of a property."""
        (token,) = children
        found = f"p.{field(str(token))}"
        return Part(
            text=f"{found}.t",
            long=f"{found}.l",
            double=f"{found}.d",
            boolean=f"{found}.b",
            unknown=f"{found}.n",
            floats=f"isnotnull({found}.d)",
        )

    def group(self, children: list[Any]) -> Part:
        """Translate what stands in parentheses."""
        _opening, part, _closing = children
        inside: Part = part
        return inside


_TRANSLATOR: Final = Translator()


def _joined(word: str, children: list[Part]) -> Part:
    return Part(truth=_all(word, [_condition(part) for part in children]))


def _all(word: str, conditions: Sequence[str]) -> str:
    """Return conditions joined by `and` or `or`, as flat as can be."""
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    return call(word, _all(word, conditions[:middle]), _all(word, conditions[middle:]))


# --- comparing ----------------------------------------------------------------------------------------------


def _compared(left: Part, sign: str, right: Part) -> str:
    """Return a comparison: that of the type both have, else false, or null if one is unknown."""
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
    """Return a comparison in which NaN is unequal to all; to Spark it is equal to itself and the greatest.

    Null is what compares with NaN, unless it is unequal: then false comes of being unlike.
    """
    plain = _sign(left.as_double, sign, right.as_double)
    greater = left if sign in {">", ">=", "="} else right
    if sign == "<>":
        if left.double is None or right.double is None:
            return plain
        return call("or", plain, call("and", f"isnan({left.double})", f"isnan({right.double})"))
    return plain if greater.double is None else f"if(isnan({greater.double}), null, {plain})"


def _same_truth(left: Part, sign: str, right: Part) -> str:
    """Return whether two are the same truth, one of them a condition; each is written once.

    To be unequal is to be the same as the opposite.
    """
    condition, other = (left, right) if left.truth is not None else (right, left)
    truth = str(condition.truth)
    return call("=", _code(other), f"int({call('not', truth) if sign == '<>' else truth})")


def _code(part: Part) -> str:
    """Return 0 for false, 1 for true, 2 for what is no truth, null for unknown."""
    if part.truth is not None:
        return f"int({part.truth})"
    code = "2" if part.boolean is None else f"coalesce(int({part.boolean}), 2)"
    return code if part.unknown == "false" else f"if({part.unknown}, null, {code})"


def _tested(part: Part, test: str, *, negated: bool) -> Part:
    """Return whether a property passes a test for texts, or does not; what is no text does not pass."""
    passed = f"coalesce({test}, false)"
    return Part(truth=f"if({part.unknown}, null, {call('not', passed) if negated else passed})")


# --- LIKE ---------------------------------------------------------------------------------------------------


def _regex(pieces: list[object]) -> str:
    """Return the regular expression of Java for a pattern; it never looks twice for what is between two %."""
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


def _computed(children: list[Any]) -> Part:
    result: Part = children[0]
    for sign, other in zip(children[1::2], children[2::2], strict=True):
        long = None
        if result.long is not None and other.long is not None:
            long = (_divided if sign == "/" else _wrapped_parts)(result, str(sign), other)
        floats = _either(result.floats, other.floats)
        result = _number(long, _computed_doubles(result, str(sign), other), floats)
    return result


def _either(*floats: str) -> str:
    """Return whether any is a double."""
    if "true" in floats:
        return "true"
    some = [each for each in floats if each != "false"]
    return _all("or", some) if some else "false"


def _wrapped_parts(left: Part, sign: str, right: Part) -> str:
    return _wrapped(str(left.long), sign, str(right.long))


def _wrapped(left: str, sign: str, right: str) -> str:
    """Return a bigint as Java's long keeps it; a product of two is within 38 digits."""
    exact = call(sign, f"cast({left} as decimal(19, 0))", f"cast({right} as decimal(19, 0))")
    moved = call("+", exact, str(2**63))
    return f"bigint({call('-', f'pmod({moved}, {2**64})', str(2**63))})"


def _divided(left: Part, _sign: str, right: Part) -> str:
    """Return an integer quotient, cut; null by zero. Only by -1 can it be beyond a bigint."""
    opposite = _wrapped("0L", "-", str(left.long))
    if right.number is not None:
        simple = {0: "bigint(null)", -1: opposite}
        return simple.get(int(right.number), call("div", str(left.long), str(right.long)))
    by = str(right.long)
    quotient = call("div", str(left.long), f"nullif({by}, 0L)")
    return f"if({call('=', by, 'bigint(-1)')}, {opposite}, {quotient})"


def _computed_doubles(left: Part, sign: str, right: Part) -> str | None:
    """Return what is computed where one is a double; null where both are integers."""
    if left.double is None and right.double is None:
        return None
    # One that is always an integer, or never, says what the other one has to be.
    one = left.double if right.double is None else left.as_double
    other = right.double if left.double is None else right.as_double
    if sign != "/":
        found = call(sign, str(one), str(other))
    elif right.number:
        found = f"try_divide({one}, {other})"
    else:
        # Of Spark it is null by zero, and never infinite.
        found = f"coalesce(try_divide({one}, {other}), {call('*', str(one), f'power({other}, -1D)')})"
    sure = left.double is None or right.double is None or left.long is None or right.long is None
    return found if sure else f"if({_either(left.floats, right.floats)}, {found}, null)"
