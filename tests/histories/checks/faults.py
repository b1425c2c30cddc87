"""A run shows something only of faults that really happened: each that was chosen has to, at least once."""

from __future__ import annotations

from collections.abc import Iterator

from tests.histories.faults import FAULTS
from tests.histories.findings import Finding
from tests.histories.history import History


def check(history: History) -> Iterator[Finding]:
    """Chosen faults that never happened."""
    happened = {fault.kind for fault in history.faults if fault.certain}
    for name in history.plan.faults:
        if name not in happened:
            text = f"{name} ({FAULTS[name].text}) was to be injected and never was: let it run for longer"
            yield Finding(invariant="run", kind="fault never injected", text=text)
