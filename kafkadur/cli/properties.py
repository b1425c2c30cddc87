"""Reads message properties from the command line: NAME=VALUE or NAME:TYPE=VALUE.

The names are checked by `kafkadur.message.headers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import typer

from kafkadur.message.headers import Property

#: Digits that begin with 0 are a code, such as a postal code, and no number.
_INT: Final = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})")
_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?")
_BOOLS: Final[Mapping[str, bool]] = {"true": True, "false": False}

_READERS: Final[Mapping[str, Callable[[str], Property]]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": _BOOLS.__getitem__,
    "bytes": str.encode,
}


def parse_properties(texts: Iterable[str]) -> dict[str, Property]:
    """Read the values of -p. Raises typer.BadParameter for a text that is not a property."""
    return dict(_parse(text) for text in texts)


def _parse(text: str) -> tuple[str, Property]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} has no '='; write NAME=VALUE", param_hint="-p")
    name, colon, kind = name.partition(":")
    if not colon:
        return name, guess(value)
    reader = _READERS.get(kind)
    if reader is None:
        raise typer.BadParameter(
            f"{kind!r} in {text!r} is not a type; use one of {', '.join(_READERS)}", param_hint="-p"
        )
    try:
        return name, reader(value)
    except (ValueError, KeyError):
        raise typer.BadParameter(f"{value!r} in {text!r} is not of type {kind}", param_hint="-p") from None


def guess(value: str) -> Property:
    """Return an int, a float or a bool if the value is written like one, else the text itself."""
    if _INT.fullmatch(value):
        return int(value)
    if _FLOAT.fullmatch(value):
        return float(value)
    return _BOOLS.get(value, value)
