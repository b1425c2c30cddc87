"""I14: no message is delivered before its delivery time, or to a call that began after its expiration."""

from __future__ import annotations

from collections.abc import Iterator

from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import CLOCKS_DIFFER, History


def check(history: History) -> Iterator[Finding]:
    """What came too early or too late."""
    for delivery in history.deliveries:
        message = history.truth.get(delivery.place)
        if message is None:
            continue
        if message.due is not None and delivery.at < message.due - CLOCKS_DIFFER:
            kind, text = "too early", f"{delivery.place} came before {history.time(message.due)} s, its time"
        elif message.over is not None and delivery.called > message.over + CLOCKS_DIFFER:
            kind, text = "too late", f"{delivery.place} came, and expired at {history.time(message.over)} s"
        else:
            continue
        yield Finding(invariant="I14", kind=kind, text=text, lines=history.tell(delivery))
