"""What the doctor found: a check, how it came out, what is the case and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kafkadur_sharing.errors import KafkadurError


class Level(StrEnum):
    """How a check came out."""

    GOOD = "good"
    #: it works; something may come again, or be slow, that need not
    WARNING = "warning"
    #: kafkadur does not work like this, or could lose state
    PROBLEM = "problem"
    #: it could not be looked at
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check."""

    #: of what, and what: `redis version`
    check: str
    level: Level
    #: what is the case
    state: str
    #: what to do; empty where nothing is to be done
    remedy: str = ""


def good(check: str, state: str) -> Finding:
    """All is well."""
    return Finding(check=check, level=Level.GOOD, state=state)


def warning(check: str, state: str, remedy: str) -> Finding:
    """It works, but should be changed."""
    return Finding(check=check, level=Level.WARNING, state=state, remedy=remedy)


def problem(check: str, state: str, remedy: str) -> Finding:
    """It has to be changed."""
    return Finding(check=check, level=Level.PROBLEM, state=state, remedy=remedy)


def unknown(check: str, state: str, remedy: str = "") -> Finding:
    """It could not be looked at."""
    return Finding(check=check, level=Level.UNKNOWN, state=state, remedy=remedy)


def counted(number: int, thing: str) -> str:
    """A number of things, in words."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def failed(check: str, error: KafkadurError) -> Finding:
    """What an error says, as a problem."""
    said = str(error.args[0]) if error.args else type(error).__name__
    summary = said.partition(" State:")[0].rstrip(".")
    state = f"{summary}: {error.state}" if error.state else summary
    return problem(check, state, error.remedy or "")
