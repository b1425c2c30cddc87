"""How the process of a worker ends: asked for by signals, and certainly, whatever goes on in it.

Python waits at its end for threads and tasks, and a handler may be at work in one for ever; a handler may
also keep the loop from running at all. So a thread of ours watches, and ends the process when it is time.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from asyncio import AbstractEventLoop
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur.worker")

FAILED, INTERRUPTED = 1, 130
#: Seconds on top of the deadline until a worker that was told to stop is ended; Kubernetes, as the chart has
#: it, waits for ten.
_MARGIN_S = 8.0
#: Seconds that Python has for its own end when the worker has stopped.
_LAST_S = 5.0


def end_early(_number: int, _frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM until there is anything to stop: else the first process of a container ignores it."""
    raise SystemExit(0)


def leave(status: int) -> NoReturn:
    """End now, without waiting for anything."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Ending:
    """The end of one worker. The first signal has it stop in order, a second one ends the process at once."""

    def __init__(self, stop: Callable[[], None], deadline: float) -> None:
        """`stop` is called in the loop; `deadline`: seconds that handlers have."""
        self._stop = stop
        self._limit = deadline + _MARGIN_S
        self._told = 0
        self._asked = threading.Event()
        self._over = threading.Event()
        self._status = FAILED
        self._error: BaseException | None = None

    def listen(self, loop: AbstractEventLoop) -> None:
        """Take signals from now on. Called by the main thread."""

        def take(_number: int, _frame: FrameType | None) -> None:
            self._told += 1
            if self._told > 1:
                os.write(sys.stderr.fileno(), b"Interrupted.\n")
                os._exit(INTERRUPTED)
            self._asked.set()
            loop.call_soon_threadsafe(self._stop)

        # not those of the loop: it may be what does not run
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, take)
        threading.Thread(target=self._watch, name="kafkadur-ending", daemon=True).start()

    def stopped(self, status: int, error: BaseException | None = None) -> None:
        """The worker has stopped, or failed: what is left is Python's own end."""
        self._status, self._error = status, error
        self._over.set()
        self._asked.set()

    def _watch(self) -> None:
        self._asked.wait()
        if not self._over.wait(self._limit):
            _log.error("the worker has not stopped in time, and is ended")
            leave(FAILED)
        threading.Event().wait(_LAST_S)  # a daemon: it is not waited for
        if isinstance(self._error, KafkadurError):
            sys.stderr.write(f"{self._error}\n")
        elif self._error is not None:
            traceback.print_exception(self._error)
        _log.warning("a thread or a task goes on: the process is ended")
        leave(self._status)
