"""Lengths of time on the command line, such as 90m, 12h and 7d."""

from __future__ import annotations

import re
from datetime import timedelta

import typer

_AGE = re.compile(r"(\d+)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def age(text: str) -> timedelta:
    """Return a length of time; raises `typer.BadParameter` for a text that is none."""
    found = _AGE.fullmatch(text)
    try:
        if found is not None:
            return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        pass
    raise typer.BadParameter(f"{text!r} is no age: a number with s, m, h, d or w behind it, such as 7d")
