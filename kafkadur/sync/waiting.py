"""Waiting, the blocking way: signals from other threads, confirmations, a pool for handlers.

The twin of `kafkadur/aio/waiting.py`, written by hand; everything else of `kafkadur.sync` is generated.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from kafkadur.consumer.member import Member
from kafkadur.handlers.results import check_result
from kafkadur.producer.producer import Producer
from kafkadur.runtime.coordinator_thread import CoordinatorThread
from kafkadur_sharing.errors import KafkadurError

T = TypeVar("T")

#: Seconds after which a busy thread lets others run.
_BREATHE_EVERY = 0.001


class Signal:
    """Set by any thread, waited for by any thread."""

    def __init__(self) -> None:
        """Not set."""
        self._event = threading.Event()

    def set(self) -> None:
        """Wake who waits."""
        if not self._event.is_set():
            self._event.set()

    def clear(self) -> None:
        """Not set from now on."""
        self._event.clear()

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, at most `timeout` seconds; whether it was."""
        if timeout is not None:
            return self._event.wait(timeout)
        while not self._event.wait(1.0):  # wakes now and then, so that Ctrl-C is seen at once everywhere
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
        """Tell the result."""
        self._error = error
        self._lock.release()

    def wait(self) -> None:
        """Wait for it; raises what it failed with."""
        with self._lock:
            if self._error is not None:
                raise self._error


def exchange_inline(coordinator_thread: CoordinatorThread, member: Member) -> bool:
    """Make a member's exchange in this thread, which waits for it anyway; whether it was made."""
    return coordinator_thread.assist(member)


def outcome(future: concurrent.futures.Future[T]) -> T:
    """The result of a job of another thread."""
    return future.result()


def kept(future: concurrent.futures.Future[T]) -> T:
    """The result of a job of another thread that goes on when who waits is interrupted."""
    return future.result()


def drained(_producer: Producer[Any, Any]) -> None:
    """Return at once: `publish` has waited for room."""


class Breath:
    """Leaves the interpreter to the reading and the coordinator's thread now and then.

    A busy thread keeps it for 5 ms.
    """

    def __init__(self) -> None:
        """Begin now."""
        self._last = time.monotonic()

    def take(self) -> None:
        """Let others run if about a millisecond has passed."""
        if time.monotonic() - self._last > _BREATHE_EVERY:
            time.sleep(0)
            self._last = time.monotonic()


class Pool:
    """Runs handlers in threads, at most so many at once; a pool of one runs them in the caller's thread."""

    def __init__(self, size: int) -> None:
        """`size` handlers at once."""
        self._executor = concurrent.futures.ThreadPoolExecutor(size, "kafkadur-handler") if size > 1 else None
        self._room = threading.Semaphore(size)
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what runs."""
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


def call(handler: Callable[..., Any], argument: object) -> None:
    """Call a handler."""
    check_result(handler(argument), handler)


def interrupted(error: BaseException) -> bool:
    """Whether this is to end `run`, and with it, perhaps, the program."""
    return isinstance(error, SystemExit | KeyboardInterrupt)
