"""How the process of a worker ends: asked for by signals, and certainly, whatever goes on in it.

Python waits at its end for threads and tasks, and a handler may be at work in one for ever; a handler may
also keep the loop from running at all. So a thread of ours watches, and ends the process when it is time.
What it cannot do anything about is a library that never gives the interpreter to other threads.
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
#: Seconds on top of the deadline until the process of a worker that was told to stop is gone; Kubernetes, as
#: the chart has it, waits for ten.
_MARGIN_S = 8.0
#: Seconds that Python has for its own end when the worker has stopped.
_LAST_S = 5.0
#: Seconds that what is still to be written may take.
_WRITE_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: What is told besides signals, none of which has such a number: it is about to stop, and it has stopped.
BEGAN, STOPPED = 250, 251


def latest(until: float, what: int, now: float, limit: float) -> float:
    """When the process ends at the latest, after something was told `now`; it was `until` before (seconds).

    `limit` is how long it may take from the first signal or beginning on: what comes later never prolongs it.
    """
    if what == STOPPED:
        return min(until, now + _LAST_S)
    return min(until, now + limit) if what in {BEGAN, *_SIGNALS} else until


def end_early(_number: int, _frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM until there is anything to stop: else the first process of a container ignores it."""
    raise SystemExit(0)


def leave(status: int) -> NoReturn:
    """End now, without waiting for anything but what is to be written, and for that not long."""
    hurry = threading.Timer(_WRITE_S, os._exit, (status,))
    hurry.daemon = True
    hurry.start()
    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # the reader may have gone
        os._exit(status)


class Ending:
    """The end of one worker. The first signal has it stop in order, a second one ends the process at once."""

    def __init__(self, stop: Callable[[], None], deadline: float) -> None:
        """`stop` is called in the loop; `deadline`: seconds that handlers have."""
        self._stop = stop
        self._limit = deadline + _MARGIN_S - _WRITE_S
        self._heard, self._told = socket.socketpair()
        self._status = FAILED
        self._error: BaseException | None = None

    def listen(self, loop: AbstractEventLoop) -> None:
        """Take signals from now on. Called by the main thread."""

        def take(_number: int, _frame: FrameType | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
                loop.call_soon_threadsafe(self._stop)

        # Not the handlers of the loop: it may be what does not run. The interpreter writes the number of a
        # signal as it comes, also while the main thread is in a long call of a library.
        self._told.setblocking(False)
        signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, take)
        threading.Thread(target=self._watch, name="kafkadur-ending", daemon=True).start()

    def began(self) -> None:
        """The worker is about to stop, for whatever reason."""
        self._tell(BEGAN)

    def stopped(self, status: int, error: BaseException | None = None) -> None:
        """The worker has stopped, or failed: what is left is Python's own end."""
        self._status, self._error = status, error
        self._tell(STOPPED)

    def _tell(self, what: int) -> None:
        with contextlib.suppress(BlockingIOError):  # it has heard a lot already
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
        """What is told next; None: nothing until then."""
        left = until - time.monotonic()
        self._heard.settimeout(None if left == float("inf") else max(left, 0.001))
        try:
            return self._heard.recv(1)[0]
        except TimeoutError:
            return None


def _late(text: str) -> None:
    """Say why without the log: the thread that holds its lock may be the one that hangs."""
    os.write(sys.stderr.fileno(), f"kafkadur: {text}\n".encode())
