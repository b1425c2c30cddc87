"""A run shows something only of faults that really happened, and of subscriptions that were inspected."""

from __future__ import annotations

from collections.abc import Iterator

from tests.end_to_end.histories.faults import FAULTS
from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import History


def check(history: History) -> Iterator[Finding]:
    """Chosen faults that never happened; subscriptions that were never inspected."""
    happened = {fault.kind for fault in history.faults if fault.certain}
    for name in history.plan.faults:
        if name not in happened:
            text = f"{name} ({FAULTS[name].text}) was to be injected and never was: let it run for longer"
            yield Finding(invariant="run", kind="fault never injected", text=text)
    inspected = {inspection.subscription for inspection in history.inspections}
    for name in history.plan.subscriptions.keys() - history.ended:
        if name not in inspected:
            yield Finding(invariant="run", kind="never inspected", text=f"{name} was never inspected")
