"""Time-outs at the surface: a timedelta, or a number of seconds."""

from __future__ import annotations

from datetime import timedelta
from typing import SupportsFloat

#: Longer waits are cut to a year: Python's locks cannot wait for any number of seconds.
_LONGEST_S = 365 * 86_400.0


def seconds(duration: timedelta | float) -> float:
    """Return the duration in seconds, at most `_LONGEST_S`.

    Raises `ValueError` if it is negative or NaN, and `TypeError` if it is no number.
    """
    value = _in_seconds(duration)
    if not value >= 0:
        msg = f"a duration can't be negative, or no number: {duration!r}"
        raise ValueError(msg)
    return min(value, _LONGEST_S)


def _in_seconds(duration: object) -> float:
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, float) or type(duration) is int:  # else a look at what it supports takes 5 µs
        return duration
    if isinstance(duration, SupportsFloat) and not isinstance(duration, bool):
        return float(duration)
    msg = f"a duration is a timedelta or a number of seconds, not {duration!r}"
    raise TypeError(msg)
