"""Ends the process of a worker after a signal, even if its handlers do not end.

At its end Python waits for threads and tasks, and a handler may run in one for ever, or block the event loop.
Therefore a thread of this module watches, and ends the process when its time is up. Only a library that never
releases the interpreter to other threads can prevent that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from asyncio import AbstractEventLoop
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from kafkadur_sharing.errors import KafkadurError

FAILED, INTERRUPTED = 1, 130
#: Seconds after the deadline until the process of a stopped worker has ended; Kubernetes, as the chart sets
#: it, waits for ten.
_MARGIN_S = 8.0
#: Seconds that Python has to end after the worker has stopped.
_LAST_S = 5.0
#: Seconds that the last output may take.
_WRITE_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Events besides signals, which have no such numbers: the worker is about to stop, and has stopped.
BEGAN, STOPPED = 250, 251


def latest(until: float, what: int, now: float, limit: float) -> float:
    """Return when the process must end (seconds), after an event at the time `now`; before it was `until`.

    `limit` is the time from the first signal or `BEGAN`: later events never prolong it.
    """
    if what == STOPPED:
        return min(until, now + _LAST_S)
    return min(until, now + limit) if what in {BEGAN, *_SIGNALS} else until


def end_early(_number: int, _frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM before the worker runs: the first process of a container would ignore it."""
    raise SystemExit(0)


def leave(status: int) -> NoReturn:
    """End now; wait only for the last output, and not long."""
    hurry = threading.Timer(_WRITE_S, os._exit, (status,))
    hurry.daemon = True
    hurry.start()
    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also if the reader has gone
        os._exit(status)


class Ending:
    """The end of one worker. The first signal stops it in order, a second one ends the process at once."""

    def __init__(self, stop: Callable[[], None], deadline: float) -> None:
        """`stop` is called in the event loop; `deadline`: seconds that handlers have."""
        self._stop = stop
        self._limit = deadline + _MARGIN_S - _WRITE_S
        self._heard, self._told = socket.socketpair()
        self._status = FAILED
        self._error: BaseException | None = None

    def listen(self, loop: AbstractEventLoop) -> None:
        """Handle signals from now on. Called by the main thread."""

        def take(_number: int, _frame: FrameType | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
                loop.call_soon_threadsafe(self._stop)

        # Not with handlers of the event loop: it may be blocked. The interpreter writes the number of a
        # signal at once, even while the main thread is in a long call of a library.
        self._told.setblocking(False)
        signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, take)
        threading.Thread(target=self._watch, name="kafkadur-ending", daemon=True).start()

    def began(self) -> None:
        """The worker is about to stop, for any reason."""
        self._tell(BEGAN)

    def stopped(self, status: int, error: BaseException | None = None) -> None:
        """The worker has stopped, or failed: only Python itself has still to end."""
        self._status, self._error = status, error
        self._tell(STOPPED)

    def _tell(self, what: int) -> None:
        with contextlib.suppress(BlockingIOError):  # the buffer is full of earlier events
            self._told.send(bytes([what]))

    def _watch(self) -> None:
        signals, until, stopped = 0, float("inf"), False
        while (what := self._next(until)) is not None:
            signals += what in _SIGNALS
            if signals > 1:
                os.write(sys.stderr.fileno(), b"Interrupted.\n")
                os._exit(INTERRUPTED)
            stopped = stopped or what == STOPPED
            until = latest(until, what, time.monotonic(), self._limit)
        if not stopped:
            _late("the worker has not stopped in time, and is ended")
        elif isinstance(self._error, KafkadurError):
            _late(str(self._error))
        elif self._error is not None:
            _late("".join(traceback.format_exception(self._error)))
        leave(self._status if stopped else FAILED)

    def _next(self, until: float) -> int | None:
        """Return the next event; None if there is none until then."""
        left = until - time.monotonic()
        self._heard.settimeout(None if left == float("inf") else max(left, 0.001))
        try:
            return self._heard.recv(1)[0]
        except TimeoutError:
            return None


def _late(text: str) -> None:
    """Write the reason without the log: its lock may be held by the thread that hangs."""
    os.write(sys.stderr.fileno(), f"kafkadur: {text}\n".encode())
