"""All checks of a history. Each is a function of the history alone, in a file of its own in `checks/`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.end_to_end.histories.checks import (
    attempts,
    conservation,
    fairness,
    faults,
    fencing,
    floors,
    holders,
    invention,
    liveness,
    loss,
    order,
    settled,
    times,
    windows,
)
from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import History

CHECKS: tuple[Callable[[History], Iterable[Finding]], ...] = (
    loss.check,
    invention.check,
    fencing.check,
    settled.check,
    holders.check,
    order.check,
    windows.check,
    attempts.check,
    times.check,
    conservation.check,
    floors.check,
    fairness.check,
    liveness.check,
    faults.check,
)


def check(history: History) -> list[Finding]:
    """Everything that is wrong with a history."""
    return [finding for one in CHECKS for finding in one(history)]
