"""Bytes that the Consumers of a process received from brokers, from librdkafka's statistics.

Counted is what came over the wire for one topic's Consumers, dropped records and requests' answers included.
"""

from __future__ import annotations

import json
import threading
from typing import Any

#: Milliseconds between two statistics.
EVERY_MS = 100
#: Seconds after which everything received was told in statistics once, if somebody asks for them.
TOLD_S = 3 * EVERY_MS / 1_000


class Traffic:
    """Adds up what all Consumers tell whose configuration has `settings`."""

    def __init__(self, topic: str) -> None:
        """Count the Consumers that read ``topic``."""
        self._topic = topic
        self._lock = threading.Lock()
        self._received: dict[str, int] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """Return what a Consumer's configuration must have."""
        return {"statistics.interval.ms": EVERY_MS, "stats_cb": self._hear}

    @property
    def received(self) -> int:
        """Return the bytes received; all of them when the Consumers were closed `TOLD_S` after the last."""
        with self._lock:
            return sum(self._received.values())

    def _hear(self, text: str) -> None:
        """Take in what one client tells; its counts only rise."""
        told = json.loads(text)
        if self._topic in told["topics"]:
            with self._lock:
                self._received[told["name"]] = sum(broker["rxbytes"] for broker in told["brokers"].values())
