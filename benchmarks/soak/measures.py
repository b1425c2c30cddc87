"""What is made of the figures of a soak: slopes with their error, and percentiles by time. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Values next to each other depend on each other: slopes are those of the means of so many stretches of time.
_STRETCHES = 16
#: How many standard errors a slope must be away from what is allowed to count.
_SURE = 2.0


class Point(NamedTuple):
    """A value at a time (seconds)."""

    at: float
    value: float


class Slope(NamedTuple):
    """How a value changes with time."""

    #: mean of the values
    mean: float
    #: change and its standard error, per hour
    per_hour: float
    error: float

    def grows(self, tolerated: float, hours: float) -> bool:
        """Return whether the value certainly grows by more than this part of its mean in so many hours."""
        return (self.per_hour - _SURE * self.error) * hours > tolerated * self.mean


def slope(points: Sequence[Point]) -> Slope:
    """Return the slope of a straight line through the means of stretches of time, by least squares.

    Raises `ValueError` for fewer than three stretches with values.
    """
    means = _means(points) if points else []
    if len(means) < 3:  # noqa: PLR2004 - two points lie on a line
        message = f"{len(points)} values are too few for a slope"
        raise ValueError(message)
    line = statistics.linear_regression([p.at for p in means], [p.value for p in means])
    middle = statistics.fmean(p.at for p in means)
    left = sum((p.value - line.intercept - line.slope * p.at) ** 2 for p in means)
    spread = sum((p.at - middle) ** 2 for p in means)
    error = math.sqrt(left / (len(means) - 2) / spread)
    return Slope(statistics.fmean(p.value for p in points), line.slope * 3_600, error * 3_600)


def _means(points: Sequence[Point]) -> list[Point]:
    """Return the means of stretches of the same length of time."""
    first, last = points[0].at, points[-1].at
    length = max(last - first, 1e-9) / _STRETCHES
    stretches: defaultdict[int, list[Point]] = defaultdict(list)
    for point in points:
        stretches[min(int((point.at - first) / length), _STRETCHES - 1)].append(point)
    return [
        Point(statistics.fmean(p.at for p in some), statistics.fmean(p.value for p in some))
        for _, some in sorted(stretches.items())
    ]


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which this part of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def outside(points: Iterable[Point], stretches: Sequence[tuple[float, float]]) -> list[Point]:
    """Return the points that are in none of these stretches of time."""
    return [point for point in points if not any(start <= point.at <= end for start, end in stretches)]
