"""Writes the Lua that checks whether each field of a request has its type and keeps its bounds.

The classes of `wire.py` say what the fields are. A script that has the line `--- @shape AttachRequest` gets a
function `read_request`, which returns the request, or nil if it is not a `Request` followed by an
`AttachRequest`. So whatever bytes a client sends, a script works with integers within their bounds, texts
that are not too long, and lists of such. `lua/include/shape.lua` has the tests of single values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from kafkadur_coordinators.bounds import Bounds
from kafkadur_coordinators.redis import wire


def lua(name: str) -> str:
    """Return the Lua source of `read_request` for the class of this name; `KeyError` if there is none."""
    classes = list(dict.fromkeys([*_parts_of(wire.Request), *_parts_of(vars(wire)[name])]))
    functions = [line for each in classes for line in _function(each)]
    both = "fits.Request(request)" + ("" if name == "Request" else f" and fits.{name}(request)")
    return "\n".join(
        [
            '--- @include "shape"',
            "local fits = {}",
            *functions,
            "local function read_request()",
            "  local whole, request = pcall(cmsgpack.unpack, ARGV[1])",
            f"  return whole and {both} and has_clock(request[Request.clock]) and request or nil",
            "end",
        ]
    )


def _parts_of(fields: type) -> Iterator[type]:
    """The classes of the fields of a class, innermost first, and the class itself."""
    for kind in _hints(fields).values():
        for part in _named_in(kind):
            yield from _parts_of(part)
    yield fields


def _named_in(kind: Any) -> Iterator[type]:  # noqa: ANN401 - a type, or a form of one
    if hasattr(kind, "_fields"):
        yield kind
    elif get_origin(kind) is not Annotated:
        for part in get_args(kind):
            yield from _named_in(part)


@cache
def _hints(fields: type) -> dict[str, Any]:
    return get_type_hints(fields, include_extras=True)


def _function(fields: type) -> list[str]:
    tests = [_test(kind, f"v[{fields.__name__}.{name}]") for name, kind in _hints(fields).items()]
    return [
        f"function fits.{fields.__name__}(v)",
        "  return type(v) == 'table'",
        *(f"    and {test}" for test in tests),
        "end",
    ]


def _test(kind: Any, value: str) -> str:  # noqa: ANN401 - as above
    """The expression that tests a value of this type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "(" + " or ".join(f"{value} == '{text}'" for text in arguments) + ")"
    if origin is UnionType:  # of a class and an empty tuple
        (some,) = (part for part in arguments if part != tuple[()])
        return f"(is_empty({value}) or {_test(some, value)})"
    if origin is Sequence and hasattr(arguments[0], "_fields"):
        return f"is_list({value}, fits.{arguments[0].__name__})"
    if origin is Sequence:
        return f"are_integers({value}, {_bounds(arguments[0])})"
    if origin is Annotated:
        return f"{'is_text' if arguments[0] is str else 'is_integer'}({value}, {_bounds(kind)})"
    return f"type({value}) == 'string'" if kind is bytes else f"fits.{kind.__name__}({value})"


def _bounds(kind: Any) -> str:  # noqa: ANN401 - as above
    bounds = next(one for one in get_args(kind) if isinstance(one, Bounds))
    return f"{bounds.least}, {bounds.most}"
