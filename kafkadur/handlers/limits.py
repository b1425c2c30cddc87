"""How fast handlers are called, and when not for a while: rate limit and circuit breaker.

Values and state machines over a clock that is passed in; no I/O, no waiting: that is `aio/running.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from kafkadur_sharing.errors import IllegalState

_OWNER = "the caller"


@dataclass(frozen=True, kw_only=True, slots=True)
class RateLimit:
    """Most calls of a handler; of one `run`, not of all consumers together.

    Raises `IllegalState` for a value out of its range.
    """

    #: Calls a second in the long run, above 0; 0.1 is one in ten seconds.
    per_second: float
    #: Calls that may be made at once after a rest, at least 1; None: what comes in a tenth of a second.
    burst: int | None = None

    def __post_init__(self) -> None:
        """Validate."""
        if not 0 < self.per_second < float("inf"):
            raise IllegalState(
                "A rate limit is above 0.",
                state=f"per_second={self.per_second}",
                owner=_OWNER,
                remedy="give calls a second, or no rate limit; `Admin.pause` stops a subscription",
            )
        if self.burst is not None and self.burst < 1:
            raise IllegalState(
                "A burst is at least one call.",
                state=f"burst={self.burst}",
                owner=_OWNER,
                remedy="give 1 or more",
            )

    @property
    def most_at_once(self) -> float:
        """Calls that may be made at once."""
        return float(self.burst) if self.burst is not None else max(1.0, self.per_second / 10)


class TokenBucket:
    """Says when the next call may be made. Used by one thread."""

    def __init__(self, limit: RateLimit, monotonic: Callable[[], float]) -> None:
        """Full: a whole burst may be made at once."""
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
        # what is missing by rounding must not make anybody wait a nanosecond for ever
        return 0.0 if self._tokens >= 1 - 1e-9 else (1 - self._tokens) / self._rate

    def take(self) -> None:
        """A call is made."""
        self._tokens -= 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CircuitBreaker:
    """When a handler fails so often that messages had better wait.

    After `failures` failures in a row the breaker is *open*: nothing is handed out, and what is in hand and
    not begun is given back uncounted. After `pause` it is *half open*: one message is tried; if that succeeds
    the breaker is *closed* again, else it is open for another `pause`. A failure is an exception of the
    handler, other than `Reject`, `LeaseLost`, an `Undecodable` that is the message's own fault, and those in
    `ignore`: they count neither as failure nor as success. Raises `IllegalState` for a value out of its
    range.
    """

    #: Failures in a row that open it, at least 1.
    failures: int = 5
    #: The time in which they must come; None: no limit.
    within: timedelta | None = None
    #: How long it is open, above 0.
    pause: timedelta = timedelta(seconds=30)
    #: Exceptions that say nothing about what the handler depends on.
    ignore: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        """Validate."""
        if self.failures < 1:
            raise IllegalState(
                "A circuit breaker opens after at least one failure.",
                state=f"failures={self.failures}",
                owner=_OWNER,
                remedy="give 1 or more",
            )
        for name in ("within", "pause"):
            time = getattr(self, name)
            if time is not None and time <= timedelta(0):
                raise IllegalState(
                    f"The time {name} of a circuit breaker is above 0.",
                    state=f"{name}={time}",
                    owner=_OWNER,
                    remedy="give a longer time",
                )


class BreakerState(StrEnum):
    """What a circuit breaker lets through."""

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
        """Closed. `tell` hears of every change, in the thread that makes it."""
        self._plan = plan
        self._monotonic = monotonic
        self._tell = tell
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        #: times of the last failures in a row, monotonic seconds
        self._failed: deque[float] = deque(maxlen=plan.failures)
        self._open_until = 0.0
        #: rises with every change: what was begun before it says nothing about now
        self._phase = 0
        self._trying = False

    @property
    def state(self) -> BreakerState:
        """What it lets through."""
        return self._state

    @property
    def trying(self) -> bool:
        """Whether the one message of a half-open breaker is on its way."""
        return self._trying

    def wait(self) -> float:
        """Seconds until an open breaker is half open; 0: it is not open (any more)."""
        with self._lock:
            if self._state is not BreakerState.OPEN:
                return 0.0
            left = self._open_until - self._monotonic()
            if left > 0:
                return left
            self._change(BreakerState.HALF_OPEN)
        self._tell(BreakerState.HALF_OPEN)
        return 0.0

    def admit(self) -> int | None:
        """A message is about to be handled: a ticket for `report`, or None: give it back."""
        with self._lock:
            if self._state is BreakerState.OPEN or self._trying:
                return None
            self._trying = self._state is BreakerState.HALF_OPEN
            return self._phase

    def report(self, ticket: int, *, failed: bool | None) -> None:
        """A message was handled; None: that says neither."""
        told: BreakerState | None = None
        with self._lock:
            if ticket != self._phase:
                return
            if self._state is BreakerState.HALF_OPEN:
                self._trying = False
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
        self._state = state
        self._phase += 1
        self._trying = False
        self._failed.clear()
        if state is BreakerState.OPEN:
            self._open_until = self._monotonic() + self._plan.pause.total_seconds()
