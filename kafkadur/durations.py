"""Durations at the surface: a timedelta, or a number of seconds."""

from __future__ import annotations

from datetime import timedelta


def seconds(duration: timedelta | float) -> float:
    """The duration in seconds; raises `ValueError` for a negative one."""
    value = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if value < 0:
        msg = f"a duration can't be negative: {duration!r}"
        raise ValueError(msg)
    return value
