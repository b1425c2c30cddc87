"""Spark SQL that reads the properties of a message from its headers, like `kafkadur/message/headers.py`.

A property becomes a struct in which at most one of `t` (text), `l` (bigint), `d` (double) and `b` (boolean)
is not null; all are null for bytes. `n` is true if the property is unknown. No expression raises, with ANSI
mode or without: a failed cast is null. `selector_sql.py` uses these structs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from kafkadur.message.headers import (
    CONNECTION_ID_HEADER,
    CORRELATION_ID_HEADER,
    DEFAULT_DELIVERY_MODE,
    DEFAULT_PRIORITY,
    DELIVERY_MODE_HEADER,
    MESSAGE_ID_HEADER,
    PRIORITY_HEADER,
    TYPE_HEADER,
    TYPES_HEADER,
)
from kafkadur_sharing.definition import HeaderType
from kafkadur_sharing.names import RESERVED_PREFIXES

#: Text that needs no escapes, whatever the settings of the Spark session are.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_=; -]*")
#: The text of an int and of a float, as regular expressions of Java.
_INT: Final = r"\A[+-]?[0-9]{1,19}\z"
_FLOAT: Final = (
    r"\A[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    r"|[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)\z"
)
#: The letter of the companion header for each type of a header in a definition.
_LETTERS: Final[Mapping[HeaderType, str]] = {"str": "", "int": "i", "float": "f", "bool": "b", "bytes": "x"}

_TEXTS: Final = frozenset({MESSAGE_ID_HEADER, CORRELATION_ID_HEADER, TYPE_HEADER})
_TIMESTAMP: Final = "JMSTimestamp"


def text(value: str) -> str:
    """Return the SQL of a text. Raises `UnicodeEncodeError` if it cannot be encoded in UTF-8."""
    raw = value.encode()
    return f"'{value}'" if _PLAIN.fullmatch(value) else f"string({binary(raw)})"


def binary(value: bytes) -> str:
    """Return the SQL of bytes."""
    return f"X'{value.hex().upper()}'"


def call(name: str, *arguments: str) -> str:
    """Return the SQL of a call, also of an operator: Spark's parser handles parentheses slowly."""
    return f"`{name}`({', '.join(arguments)})"


def last(name: str) -> str:
    """Return the SQL of the binary value of the last header with a name; null if there is none."""
    return f"try_element_at(filter(headers, h -> {call('=', 'h.key', text(name))}), -1).value"


def has(name: str) -> str:
    """Return the SQL of whether there is a header with a name; null without headers."""
    return f"exists(headers, h -> {call('=', 'h.key', text(name))})"


def field(name: str) -> str:
    """Return the field name of a property; Spark may ignore the case of fields, properties have case."""
    return f"x{name.encode().hex()}"


def properties(names: Iterable[str], header_types: Mapping[str, HeaderType] | None) -> str:
    """Return the SQL of an array that holds one struct, with a field (`field`) for each of `names`.

    `names` are those of properties and JMS fields, at least one; `header_types` is that of a definition. The
    array is made in steps, so that nothing is computed twice. The columns are those of Spark's Kafka source.
    """
    known = sorted(names)
    types = header_types or {}
    raw = {field(name): last(name) for name in known if _is_read(name)}
    raw["types"] = f"string({last(TYPES_HEADER)})"
    raw["typed"] = "false"
    if any(name in types for name in known):  # then it counts whether a kafkadur producer sent the message
        raw["typed"] = f"coalesce({has(CONNECTION_ID_HEADER)}, false)"
    raw["ms"] = "unix_millis(timestamp)" if _TIMESTAMP in known else "0L"
    texts: dict[str, str] = {"raw": "r"}
    for name in known:
        if _is_property(name):
            texts[f"t{field(name)}"] = _valid(f"r.{field(name)}")
            texts[f"k{field(name)}"] = _letter(name, types.get(name, "str"))
    values = {field(name): _value(name) for name in known}
    return f"transform(transform(array({_struct(raw)}), r -> {_struct(texts)}), q -> {_struct(values)})"


def _is_property(name: str) -> bool:
    return not name.startswith(RESERVED_PREFIXES)


def _is_read(name: str) -> bool:
    return _is_property(name) or name in {*_TEXTS, PRIORITY_HEADER, DELIVERY_MODE_HEADER}


def _letter(name: str, header_type: HeaderType) -> str:
    """Return the type of a property: from the last valid entry of the companion, or from the definition."""
    entry = name.replace("$", r"\$")
    pattern = rf"(?s)\A(?:.*;)?{entry}=([ifbx])(?:;.*)?\z"
    listed = f"regexp_extract(r.types, {text(pattern)}, 1)"
    given = f"if(r.typed, '', '{_LETTERS[header_type]}')"
    return f"if(isnull(r.types), {given}, {listed})"


def _valid(raw: str) -> str:
    """Return the text in bytes; null if they are not UTF-8."""
    return f"try_validate_utf8(string({raw}))"


def _value(name: str) -> str:
    raw = f"q.raw.{field(name)}"
    if _is_property(name):
        return _typed(field(name))
    if name in _TEXTS:
        return _typed_struct(unknown=f"isnull({_valid(raw)})", t=_valid(raw))
    if name == PRIORITY_HEADER:
        digit = f"if({call('=', f'length({raw})', '1')}, try_cast(string({raw}) as bigint), null)"
        return _typed_struct(l=f"coalesce({digit}, {DEFAULT_PRIORITY}L)")
    if name == DELIVERY_MODE_HEADER:
        other = "NON_PERSISTENT"
        mode = f"if({call('=', raw, binary(other.encode()))}, '{other}', '{DEFAULT_DELIVERY_MODE}')"
        return _typed_struct(t=mode)
    if name == _TIMESTAMP:
        return _typed_struct(l="q.raw.ms")
    return _typed_struct(unknown="true")  # no header or property can have such a name


def _typed(name: str) -> str:
    """Return the struct of a property, from its bytes, their text and the letter of its type."""
    t, k = f"q.t{name}", f"q.k{name}"
    is_int = call("and", _is(k, "i"), f"rlike({t}, {text(_INT)})")
    whole = f"if({is_int}, try_cast({t} as bigint), null)"
    # of these texts only NaN and the infinities contain an n, and only NaN an a
    infinite = f"if(startswith({t}, '-'), '-Infinity', 'Infinity')"
    special = f"if(contains(lower({t}), 'a'), 'NaN', {infinite})"
    is_float = call("and", _is(k, "f"), f"rlike({t}, {text(_FLOAT)})")
    double = f"if({is_float}, try_cast(if(contains(lower({t}), 'n'), {special}, {t}) as double), null)"
    truth = f"if({_is(t, 'true')}, true, if({_is(t, 'false')}, false, null))"
    boolean = f"if({_is(k, 'b')}, {truth}, null)"
    other = f"coalesce(string({whole}), string({double}), string({boolean}), if({_is(k, 'x')}, '', null))"
    return _typed_struct(
        unknown=f"isnull(q.raw.{name})",
        t=f"if(isnull({other}), {t}, null)",
        l=whole,
        d=double,
        b=boolean,
    )


def _is(sql: str, word: str) -> str:
    return call("=", sql, f"'{word}'")


def _typed_struct(
    *,
    unknown: str = "false",
    t: str = "string(null)",
    l: str = "bigint(null)",  # noqa: E741 - the field of the struct
    d: str = "double(null)",
    b: str = "boolean(null)",
) -> str:
    return _struct({"n": unknown, "t": t, "l": l, "d": d, "b": b})


def _struct(fields: Mapping[str, str]) -> str:
    listed = ", ".join(f"'{name}', {value}" for name, value in fields.items())
    return f"named_struct({listed})"
