"""What becomes of a message whose handler failed: another attempt after a delay, or a dead letter.

The redelivery policy of the subscription goes first; what it leaves open is decided here. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from random import random as any_random
from typing import Final, TypeAlias

from kafkadur.runtime.dead_letters import Cause
from kafkadur_sharing.errors import ConnectionClosed, IllegalState, LeaseLost, Undecodable
from kafkadur_sharing.numbers import check_delay, check_integer
from kafkadur_sharing.redelivery_policy import MOST_ATTEMPTS, Redelivery

#: Attempts at a message, where neither the redelivery policy nor the application sets their number.
ATTEMPTS: Final = 10
#: Where nothing sets a back-off: the longest wait before the second attempt, seconds.
FIRST_DELAY_S: Final = 1.0
#: Where nothing sets a back-off: the longest wait before any attempt, seconds.
LONGEST_DELAY_S: Final = 300.0
_MOST_DOUBLINGS: Final = 40

#: One class of exceptions, or several.
Exceptions: TypeAlias = type[Exception] | tuple[type[Exception], ...]
#: The delay before the next attempt, in seconds or as a timedelta: one for all exceptions, or by their class.
RetryDelay: TypeAlias = timedelta | float | Mapping[type[Exception], timedelta | float]


class Retries:
    """Decides about the failures of one handler."""

    def __init__(
        self,
        policy: Redelivery,
        *,
        attempts: int | None = ATTEMPTS,
        delay: RetryDelay | None = None,
        retry_on: Exceptions | None = None,
        reject_on: Exceptions = (),
        random: Callable[[], float] = any_random,
    ) -> None:
        """`policy` is that of the subscription; `random` returns a number from 0 to 1.

        The others are the parameters of `Subscription.run`. Raises `IllegalState` for one that is wrong.
        """
        if attempts is not None:
            attempts = check_integer("attempts", attempts, 1, MOST_ATTEMPTS, instead=", or None")
        #: attempts at a message; None: no limit
        self.attempts = attempts if policy.max_attempts is None else policy.max_attempts
        #: `attempts` if it was given and the policy sets another number; else an empty text
        self.overruled = "" if attempts in (self.attempts, ATTEMPTS) else f"attempts={attempts}"
        self._policy = policy
        self._delays = _delays(delay)
        self._retry_on = None if retry_on is None else _classes("retry_on", retry_on)
        self._reject_on = _classes("reject_on", reject_on)
        self._random = random

    def cause_to_give_up(self, error: BaseException, attempt: int) -> Cause | None:
        """Return the cause of a dead letter after this failure of an attempt (1 is the first one).

        None: the message is delivered again.
        """
        if isinstance(error, self._reject_on):
            return Cause.REJECTED
        retried = self._retry_on is None or isinstance(error, self._retry_on)
        if not retried and not says_nothing(error):
            return Cause.REJECTED
        if self.attempts is not None and attempt >= self.attempts:
            return Cause.ATTEMPTS
        return None

    def delay(self, error: BaseException, attempt: int) -> float | None:
        """Return the seconds until the next attempt; None: the back-off of the redelivery policy."""
        for each in type(error).__mro__:  # the nearest class first
            if (delay := self._delays.get(each)) is not None:
                return delay
        if self._policy.backoff:
            return None
        longest = min(FIRST_DELAY_S * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS), LONGEST_DELAY_S)
        return longest * (1 + self._random()) / 2


def says_nothing(error: BaseException) -> bool:
    """Whether an error says nothing about its message: something else failed, or the handler was ended."""
    if isinstance(error, Undecodable):
        return error.transient
    return isinstance(error, LeaseLost | ConnectionClosed) or not isinstance(error, Exception)


def _delays(delay: RetryDelay | None) -> dict[type, float]:
    """Return the delays in seconds by class of exceptions."""
    if delay is None:
        return {}
    if not isinstance(delay, Mapping):
        return {BaseException: check_delay("retry_delay", delay)}
    return {
        each: check_delay(f"retry_delay[{each.__name__}]", of_it)
        for kind, of_it in delay.items()
        for each in _classes("retry_delay", kind)
    }


def _classes(name: str, given: object) -> tuple[type[Exception], ...]:
    """Return classes of exceptions; raises `IllegalState` for anything else."""
    classes: list[type[Exception]] = []
    for each in given if isinstance(given, tuple) else (given,):
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise IllegalState(
                f"{name} cannot be {each!r}.",
                state=f"{name}={each!r} is no class of exceptions",
                owner="the caller",
                remedy="use a class such as ValueError, or a tuple of classes",
            )
        classes.append(each)
    return tuple(classes)
