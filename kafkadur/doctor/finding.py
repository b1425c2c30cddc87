"""The findings of the doctor: a check, its level, what was found and what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kafkadur_sharing.errors import KafkadurError


class Level(StrEnum):
    """The result of a check."""

    GOOD = "good"
    #: it works; but messages may come again, or be slow, without need
    WARNING = "warning"
    #: kafkadur does not work, or could lose state
    PROBLEM = "problem"
    #: it could not be checked
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check, with its reason."""

    #: the server and the subject: `redis version`
    check: str
    level: Level
    #: what was found
    state: str
    #: what to do; empty if there is nothing to do
    remedy: str = ""


def good(check: str, state: str) -> Finding:
    """Return a finding that needs no change."""
    return Finding(check=check, level=Level.GOOD, state=state)


def warning(check: str, state: str, remedy: str) -> Finding:
    """Return a finding that should be changed."""
    return Finding(check=check, level=Level.WARNING, state=state, remedy=remedy)


def problem(check: str, state: str, remedy: str) -> Finding:
    """Return a finding that must be changed."""
    return Finding(check=check, level=Level.PROBLEM, state=state, remedy=remedy)


def unknown(check: str, state: str, remedy: str = "") -> Finding:
    """Return the finding of a check that failed."""
    return Finding(check=check, level=Level.UNKNOWN, state=state, remedy=remedy)


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def timed(call: Callable[[], object]) -> float:
    """Return how long a call takes, ms."""
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1000


def failed(check: str, error: KafkadurError) -> Finding:
    """Return an error as a problem."""
    said = str(error.args[0]) if error.args else type(error).__name__
    summary = said.partition(" State:")[0].rstrip(".")
    state = f"{summary}: {error.state}" if error.state else summary
    return problem(check, state, error.remedy or "")
