"""A flag that threads wait for, which an exception of a signal handler cannot leave locked."""

from __future__ import annotations

import contextlib
import queue


class Flag:
    """Set by any thread; waited for by any thread.

    Like `threading.Event`, whose steps are in Python: where an exception of a signal handler, as of Ctrl-C,
    comes between two of them in the main thread, its lock may stay locked. The steps of this queue are in C.
    """

    def __init__(self) -> None:
        """Not set."""
        #: has an item while the flag is set
        self._items: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Wake the waiting threads."""
        if self._items.empty():
            self._items.put(None)

    def is_set(self) -> bool:
        """Whether it is set."""
        return not self._items.empty()

    def clear(self) -> None:
        """Not set from now on."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds; returns whether it is."""
        try:
            self._items.get(timeout=None if timeout is None else max(timeout, 0.0))
        except queue.Empty:
            return False
        self._items.put(None)  # for others that wait, too
        return True
