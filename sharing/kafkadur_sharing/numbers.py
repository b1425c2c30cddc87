"""Checks of values that callers give: their type, the range of numbers, and that these are finite."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Final, SupportsIndex, TypeVar

from kafkadur_sharing.errors import IllegalState

#: The most records of a window, and of an unconfirmed budget.
MOST_RECORDS: Final = 1_000_000
#: The most bytes of a window: 1 TiB.
MOST_BYTES: Final = 1 << 40
#: Priorities of members lie between this and its negative.
MOST_PRIORITY: Final = 1_000_000
#: The longest delay before a message is delivered again.
LONGEST_DELAY: Final = timedelta(days=7)
#: The longest delay and time to live of a message that is sent.
LONGEST_AHEAD: Final = timedelta(days=3_650)
_LONGEST_SHOWN: Final = 40
_T = TypeVar("_T")


def check_integer(name: str, value: object, least: int, most: int, *, instead: str = "") -> int:
    """Return `value` as an int if it is an integer from `least` to `most`.

    Integers of other libraries count as integers, truth values do not. `name` is that of the parameter, and
    `instead` what may be given in place of an integer. Raises `IllegalState`.
    """
    if type(value) is int and least <= value <= most:  # the check below takes a microsecond
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = operator.index(value)
        if least <= number <= most:
            return number
    raise _refusal(name, value, f"use an integer from {least:,} to {most:,}{instead}")


def check_delay(name: str, value: object, longest: timedelta = LONGEST_DELAY) -> float:
    """Return `value`, a timedelta or a number of seconds, in seconds if it is from 0 to `longest`.

    Raises `IllegalState`.
    """
    if isinstance(value, timedelta):
        delay = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        delay = math.nan
    else:
        delay = value
    if 0 <= delay <= longest.total_seconds():  # not so for NaN
        return float(delay)
    raise _refusal(name, value, f"use a timedelta, or seconds, from 0 to {longest.days:,} days")


def check_bool(name: str, value: object) -> bool:
    """Return `value` if it is True or False. Raises `IllegalState`."""
    if isinstance(value, bool):
        return value
    raise _refusal(name, value, "use True or False")


def check_instance(name: str, value: object, kind: type[_T]) -> _T:
    """Return `value` if it is a `kind`. Raises `IllegalState`."""
    if isinstance(value, kind):
        return value
    raise _refusal(name, value, "use a str" if kind is str else f"use {kind.__name__}(...)")


def check_function(name: str, value: Callable[..., object] | None) -> None:
    """Raise `IllegalState` if `value` is neither a function nor None."""
    if value is not None and not callable(value):
        raise _refusal(name, value, "use a function, or None")


def _refusal(name: str, value: object, remedy: str) -> IllegalState:
    shown = repr(value)
    if len(shown) > _LONGEST_SHOWN:
        shown = f"{shown[:_LONGEST_SHOWN]}..."
    return IllegalState(
        f"{name} cannot be {shown}.", state=f"{name}={shown}", owner="the caller", remedy=remedy
    )
