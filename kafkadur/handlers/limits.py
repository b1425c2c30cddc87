"""Rate limit and circuit breaker for the calls of handlers.

Values and state machines with a clock that is passed in. No I/O and no waiting: `aio/running.py` waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.numbers import check_delay, check_instance, check_integer

#: The highest number of calls, or of failures, that can be given.
_MOST_CALLS = 1_000_000
_OWNER = "the caller"


@dataclass(frozen=True, kw_only=True, slots=True)
class RateLimit:
    """The maximum rate of the handler calls of one `run`, not of all consumers together.

    Raises `IllegalState` for a value out of its range.
    """

    #: Average calls per second, above 0; 0.1 is one call in ten seconds.
    per_second: float
    #: Calls that may be made at once after a pause, at least 1; None: the calls of a tenth of a second.
    burst: int | None = None

    def __post_init__(self) -> None:
        """Validate."""
        if not _is_rate(self.per_second):
            raise IllegalState(
                "A rate limit is above 0.",
                state=f"per_second={self.per_second!r}",
                owner=_OWNER,
                remedy="give calls a second, or no rate limit; `Admin.pause` stops a subscription",
            )
        if self.burst is not None:
            check_integer("burst", self.burst, 1, _MOST_CALLS)

    @property
    def most_at_once(self) -> float:
        """Calls that may be made at once."""
        return float(self.burst) if self.burst is not None else max(1.0, self.per_second / 10)


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def check_limits(rate_limit: RateLimit | None, breaker: CircuitBreaker | None) -> None:
    """Raise `IllegalState` for a rate limit or a circuit breaker that is a number, say, and no settings."""
    if rate_limit is not None:
        check_instance("rate_limit", rate_limit, RateLimit)
    if breaker is not None:
        check_instance("breaker", breaker, CircuitBreaker)


class TokenBucket:
    """Computes when the next call may be made. Used by one thread."""

    def __init__(self, limit: RateLimit, monotonic: Callable[[], float]) -> None:
        """Begin full, so that a whole burst may be made at once."""
        self._rate = limit.per_second
        self._most = limit.most_at_once
        self._monotonic = monotonic
        self._tokens = self._most
        self._counted_at = monotonic()

    def wait(self) -> float:
        """Seconds until a call may be made; 0: now."""
        now = self._monotonic()
        self._tokens = min(self._tokens + (now - self._counted_at) * self._rate, self._most)
        self._counted_at = now
        # a rounding error must not cause endless waits of a nanosecond
        return 0.0 if self._tokens >= 1 - 1e-9 else (1 - self._tokens) / self._rate

    def take(self) -> None:
        """Count a call."""
        self._tokens -= 1


@dataclass(frozen=True, init=False)
class CircuitBreaker:
    """Settings of a circuit breaker, which pauses the calls of a handler that fails repeatedly.

    After `failures` failures in a row the breaker is *open*: no messages are handed out, and messages in
    flight that no handler has begun are given back uncounted. After `pause` it is *half open*: one message is
    tried. If that succeeds, the breaker is *closed* again, else it is open for another `pause`. A failure is
    an exception of the handler, other than `Reject`, `LeaseLost`, an `Undecodable` caused by the message
    itself, and the exceptions in `ignore`: these count neither as failure nor as success. Raises
    `IllegalState` for a value out of its range.
    """

    #: Failures in a row that open the breaker, at least 1.
    failures: int
    #: The time in which they must occur; None: no limit.
    within: timedelta | None
    #: How long the breaker is open, above 0.
    pause: timedelta
    #: Exceptions that say nothing about the systems that the handler depends on.
    ignore: tuple[type[Exception], ...]

    def __init__(
        self,
        *,
        failures: int = 5,
        within: timedelta | float | None = None,
        pause: timedelta | float = timedelta(seconds=30),
        ignore: tuple[type[Exception], ...] = (),
    ) -> None:
        """Validate; a time is a timedelta or a number of seconds."""
        values = {
            "failures": check_integer("failures", failures, 1, _MOST_CALLS),
            "within": None if within is None else _time("within", within),
            "pause": _time("pause", pause),
            "ignore": ignore,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _time(name: str, time: timedelta | float) -> timedelta:
    """Return a time of a circuit breaker; raises `IllegalState` for one that is not above 0."""
    seconds = check_delay(name, time)
    if seconds <= 0:
        raise IllegalState(
            f"The time {name} of a circuit breaker is above 0.",
            state=f"{name}={time}",
            owner=_OWNER,
            remedy="give a longer time",
        )
    return timedelta(seconds=seconds)


class BreakerState(StrEnum):
    """The state of a circuit breaker: which messages it lets through."""

    #: everything
    CLOSED = "closed"
    #: nothing
    OPEN = "open"
    #: one message
    HALF_OPEN = "half-open"


class Breaker:
    """The state of a circuit breaker. Any thread."""

    def __init__(
        self,
        plan: CircuitBreaker,
        monotonic: Callable[[], float],
        tell: Callable[[BreakerState], None] = lambda _: None,
    ) -> None:
        """Begin closed. `tell` is called with every change of the state, in the thread that makes it."""
        self._plan = plan
        self._monotonic = monotonic
        self._tell = tell
        self._lock = threading.Lock()
        self.state = BreakerState.CLOSED
        #: times of the last failures in a row, monotonic seconds
        self._failed: deque[float] = deque(maxlen=plan.failures)
        self._open_until = 0.0
        #: rises with every change, so that results of earlier messages do not count
        self._phase = 0
        #: whether the one message of a half-open breaker is being handled
        self.trying = False

    def wait(self) -> float:
        """Return the seconds until an open breaker is half open; 0 if it is not open."""
        with self._lock:
            if self.state is not BreakerState.OPEN:
                return 0.0
            left = self._open_until - self._monotonic()
            if left > 0:
                return left
            self._change(BreakerState.HALF_OPEN)
        self._tell(BreakerState.HALF_OPEN)
        return 0.0

    def admit(self) -> int | None:
        """Return a ticket for `report` if a message may be handled; None if it has to be given back."""
        with self._lock:
            if self.state is BreakerState.OPEN or self.trying:
                return None
            self.trying = self.state is BreakerState.HALF_OPEN
            return self._phase

    def report(self, ticket: int, *, failed: bool | None) -> None:
        """Report the result of a handled message; None: neither success nor failure."""
        told: BreakerState | None = None
        with self._lock:
            if ticket != self._phase:
                return
            if self.state is BreakerState.HALF_OPEN:
                self.trying = False
                if failed is not None:
                    told = BreakerState.OPEN if failed else BreakerState.CLOSED
            elif failed:
                self._failed.append(self._monotonic())
                if self._is_too_much():
                    told = BreakerState.OPEN
            elif failed is not None:
                self._failed.clear()
            if told is not None:
                self._change(told)
        if told is not None:
            self._tell(told)

    def _is_too_much(self) -> bool:
        if len(self._failed) < self._plan.failures:
            return False
        within = self._plan.within
        return within is None or self._failed[-1] - self._failed[0] <= within.total_seconds()

    def _change(self, state: BreakerState) -> None:
        self.state = state
        self._phase += 1
        self.trying = False
        self._failed.clear()
        if state is BreakerState.OPEN:
            self._open_until = self._monotonic() + self._plan.pause.total_seconds()
