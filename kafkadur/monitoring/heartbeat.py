"""Whether an event loop runs, as other threads see it."""

from __future__ import annotations

import asyncio
import time

#: Seconds between two beats.
_BEAT_S = 0.5


class Heartbeat:
    """Shows that an event loop runs: `silent` grows while something blocks it."""

    def __init__(self) -> None:
        """It beats from `start` to `stop`."""
        self._at = time.monotonic()
        self._next: asyncio.TimerHandle | None = None

    @property
    def silent(self) -> float:
        """Seconds since the last beat; any thread."""
        return time.monotonic() - self._at

    def start(self) -> None:
        """Beat from now on, in the loop that runs."""
        self._at = time.monotonic()
        self._next = asyncio.get_running_loop().call_later(_BEAT_S, self.start)

    def stop(self) -> None:
        """Beat no more. Called in the loop."""
        if self._next is not None:
            self._next.cancel()
