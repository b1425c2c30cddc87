"""I12: when everything is whole again the backlog drains; and no process ended by itself."""

from __future__ import annotations

from collections.abc import Iterator

from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import History


def check(history: History) -> Iterator[Finding]:
    """What never came to its end."""
    for end in history.ends:
        if end.drained is None:
            text = (
                f"{end.subscription} was not drained within {history.plan.drain:g} s after everything was "
                f"whole again: {end.backlog} messages are left"
            )
            yield Finding(invariant="I12", kind="never drained", text=text)
    for name, words in history.crashed.items():
        yield Finding(
            invariant="run", kind="process ended", text=f"{name} ended by itself", lines=words.splitlines()
        )
