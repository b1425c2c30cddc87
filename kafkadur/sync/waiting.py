"""Waiting, the blocking way: signals from other threads, confirmations, a pool for handlers.

The twin of `kafkadur/aio/waiting.py`, written by hand; the rest of `kafkadur.sync` is generated.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import TracebackType
from typing import Any, Self, TypeVar

from kafkadur.handlers.results import check_result
from kafkadur.producer.producer import Producer
from kafkadur.runtime.flag import Flag
from kafkadur_sharing.errors import KafkadurError

T = TypeVar("T")

#: Whether a caller that waits for an exchange makes it itself.
INLINE = True
#: Seconds after which a busy thread lets other threads run.
_BREATHE_EVERY = 0.002

#: Whether a handler may be a coroutine function.
AWAITS = False


class ClosingContext(ABC):
    """A context manager that is closed at the end of its block."""

    @abstractmethod
    def close(self) -> None:
        """Close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an error of closing does not hide the error that ended the block."""
        try:
            self.close()
        except KafkadurError:
            if error is None:
                raise


class Signal(Flag):
    """Set by any thread; waited for by any thread."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds; returns whether it is."""
        if timeout is not None:
            return super().wait(timeout)
        while not super().wait(1.0):  # in slices, so that Ctrl-C is seen on every platform
            pass
        return True


class Confirmed:
    """One confirmation: resolved by any thread, waited for by one."""

    __slots__ = ("_error", "_lock")

    def __init__(self) -> None:
        """Not resolved."""
        self._error: KafkadurError | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def resolve(self, error: KafkadurError | None) -> None:
        """Give the result: no error, or the error that `wait` raises."""
        self._error = error
        self._lock.release()

    def wait(self) -> None:
        """Wait for the confirmation; raises the error that it was resolved with."""
        with self._lock:
            if self._error is not None:
                raise self._error


def outcome(future: concurrent.futures.Future[T]) -> T:
    """Wait for the result of a job of another thread."""
    return future.result()


def in_thread(job: Callable[[], T]) -> T:
    """Run a job that blocks; the calling thread may wait."""
    return job()


def kept(future: concurrent.futures.Future[T]) -> T:
    """Wait for the result of a job of another thread; the job goes on if the waiting is interrupted."""
    return future.result()


def drained(_producer: Producer[Any, Any]) -> None:
    """Return at once: `publish` has waited until its message was in the buffer."""


def flattened(blocks: Iterator[Iterable[T]]) -> Iterator[T]:
    """Yield the items of all blocks, without a step of Python for each."""
    return chain.from_iterable(blocks)


class Breath:
    """Lets the reader and coordinator threads run from time to time: a busy thread keeps the GIL for 5 ms."""

    def __init__(self) -> None:
        """Start the clock."""
        self._last = time.monotonic()

    def take(self) -> None:
        """Let other threads run if two milliseconds have passed."""
        if time.monotonic() - self._last > _BREATHE_EVERY:
            time.sleep(0)
            self._last = time.monotonic()


class Pool:
    """Runs handlers in threads, at most `size` at the same time; a pool of one uses the caller's thread."""

    def __init__(self, size: int) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(size, "kafkadur-handler") if size > 1 else None
        self._room = threading.Semaphore(size)
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait for the running handlers; after an error, drop the ones that have not begun."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=error is not None)
        if error is None and self._error is not None:
            raise self._error

    def start(self, work: Callable[..., None], *arguments: object) -> None:
        """Run `work(*arguments)` as soon as there is room; raises what earlier work raised."""
        if self._executor is None:
            work(*arguments)
            return
        self._room.acquire()
        if self._error is not None:
            self._room.release()
            raise self._error
        self._executor.submit(self._run, work, arguments)

    def _run(self, work: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - it is raised by start() or at the end
            self._error = self._error or error
        finally:
            self._room.release()

    def call(self, handler: Callable[..., Any], argument: object) -> None:
        """Call a handler."""
        check_result(handler(argument), handler)


def interrupted(error: BaseException) -> bool:
    """Whether an error ends `run`."""
    return isinstance(error, SystemExit | KeyboardInterrupt)
