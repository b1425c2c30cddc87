"""Who reads for a member: the reader's own thread, or a thread of the application that waits for a record.

A thread that waits gets a record sooner, and with less work, if it reads itself: no other thread has to be
woken by Kafka's client, and to wake the one that waits. The client allows one thread at a time. The reader's
thread stays away for a moment after a thread of the application has read, because that one usually returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

#: How long the reader's thread stays away after a thread of the application has read, seconds.
_AWAY = 0.02
#: Longest time that a thread of the application waits for the reader's thread to let go, seconds.
_LET_GO = 0.005


class ReadingTurn:
    """The right to use one client of Kafka."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """`monotonic` returns seconds."""
        #: held while the client is used
        self.lock = threading.Lock()
        self._monotonic = monotonic
        self._lent_until = float("-inf")

    def away_for(self) -> float:
        """Return the seconds for which the reader's thread is to stay away; 0 or less: it reads."""
        return self._lent_until - self._monotonic()

    def borrow(self, wake: Callable[[], None]) -> bool:
        """Take the turn in a thread of the application; `wake` ends the reader's waiting for records.

        Returns False if the reader's thread does not let go in time.
        """
        self._lent_until = self._monotonic() + _AWAY
        if self.lock.acquire(blocking=False):
            return True
        wake()
        if self.lock.acquire(timeout=_LET_GO):
            return True
        self.recall()
        return False

    def recall(self) -> None:
        """No thread of the application reads for now: the reader's thread does."""
        self._lent_until = float("-inf")

    def lend(self, wait: float) -> None:
        """The thread that has borrowed the turn waits at most `wait` seconds for records."""
        self._lent_until = self._monotonic() + wait + _AWAY

    def give_back(self, *, comes_back: bool) -> None:
        """The thread that has borrowed the turn has read; `comes_back`: it will probably do so again soon."""
        if comes_back:
            self._lent_until = self._monotonic() + _AWAY
        else:
            self.recall()
        self.lock.release()
