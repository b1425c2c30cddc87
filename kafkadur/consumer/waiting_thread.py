"""The thread of the application that waits for a message of one member: who wakes it, and what it does."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from kafkadur.consumer.fetch_state import Reading
from kafkadur.consumer.lag import Lag


class WaitingThread:
    """Wakes a thread that waits, or has it read from Kafka what it waits for."""

    #: set in the constructor of the member
    readers: Reading

    def __init__(self, tell: Callable[[], None], lag: Lag, *, reads: bool) -> None:
        """`tell` wakes a thread that waits anywhere but in Kafka's client; `reads`: whether it may read."""
        self._tell = tell
        self._lag = lag
        self._reads = reads

    def wake(self) -> None:
        """A block can be taken, or the state has changed. Any thread, without the member's lock."""
        self._tell()
        self.readers.interrupt()

    def read(self, timeout: float | None, is_over: Callable[[], bool]) -> bool:
        """Read a record in the calling thread, which waits for one; returns whether that was possible.

        Waits at most `timeout` seconds (None: for some time), and not once `is_over()`, which `wake` changes.
        While there is a backlog, the reader's thread reads ahead instead.
        """
        return (
            self._reads
            and self._lag.live
            and self.readers.read_inline(inf if timeout is None else timeout, is_over)
        )
