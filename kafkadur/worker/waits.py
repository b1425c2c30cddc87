"""Waits before retries, which grow with each failure in a row."""

from __future__ import annotations

from redis.backoff import ExponentialBackoff

#: The longest wait, seconds.
_MOST_S = 10.0
#: The most failures in a row that are counted: the power of the backoff overflows at about a thousand.
_MOST_FAILURES = 16


class GrowingWaits:
    """The waits of one series of attempts: each is twice as long as the one before, at most 10 s."""

    def __init__(self, first: float) -> None:
        """`first`: seconds of the first wait."""
        self._backoff = ExponentialBackoff(cap=_MOST_S, base=first)
        self._failures = 0

    def next(self) -> float:
        """Return the seconds to wait after one more failure."""
        seconds = self._backoff.compute(self._failures)
        self._failures = min(self._failures + 1, _MOST_FAILURES)
        return float(seconds)

    def reset(self) -> None:
        """Begin anew: an attempt succeeded."""
        self._failures = 0
