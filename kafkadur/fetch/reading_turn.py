"""Who reads for a member: the reader's own thread, or a thread of the application that waits for a record.

A thread that waits gets a record sooner, and with less work, if it reads itself: no other thread has to be
woken by Kafka's client, and to wake the one that waits. The client allows one thread at a time. The reader's
thread stays away for a moment after a thread of the application has read, because that one usually returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: How long the reader's thread stays away after a thread of the application has read, seconds.
_AWAY = 0.02
#: Longest time that a thread of the application waits for the reader's thread to let go, and how often it
#: looks, seconds.
_LET_GO, _LOOK = 0.005, 0.0002


class ReadingTurn:
    """The right to use one client of Kafka: whoever holds `lock` uses it.

    Both take the lock with `with` and nothing else: an exception of a signal handler, which may come between
    any two steps of the main thread, never leaves it locked then.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """`monotonic` returns seconds."""
        self.lock = threading.Lock()
        self._monotonic = monotonic
        self._lent_until = float("-inf")

    def away_for(self) -> float:
        """Return the seconds for which the reader's thread is to stay away; 0 or less: it reads."""
        return self._lent_until - self._monotonic()

    def ask(self, wake: Callable[[], None]) -> bool:
        """Have the reader's thread let go; `wake` ends its waiting for records.

        Returns whether a thread of the application can have the lock now; False: it does not let go in time.
        """
        self.lend(0.0)
        if not self.lock.locked():
            return True
        wake()
        until = self._monotonic() + _LET_GO
        while self.lock.locked():
            if self._monotonic() >= until:
                self.recall()
                return False
            time.sleep(_LOOK)  # polls for a condition, with a deadline
        return True

    def lend(self, wait: float) -> None:
        """A thread of the application waits at most `wait` seconds for records, and then comes back soon."""
        self._lent_until = self._monotonic() + wait + _AWAY

    def recall(self) -> None:
        """No thread of the application reads for now: the reader's thread does."""
        self._lent_until = float("-inf")
