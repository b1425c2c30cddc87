"""Waiting, the asynchronous way: signals from other threads, confirmations, a pool for handlers.

Its twin `kafkadur/sync/waiting.py` is written by hand; everything else of `kafkadur.sync` is generated.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from kafkadur.consumer.member import Member
from kafkadur.handlers.results import check_result
from kafkadur.producer.producer import Producer
from kafkadur.runtime.coordinator_thread import CoordinatorThread
from kafkadur_sharing.errors import KafkadurError

T = TypeVar("T")

#: The loop is left to others about this often, seconds.
_BREATHE_EVERY = 0.001


class Signal:
    """Set by any thread, waited for in the loop it was made in."""

    def __init__(self) -> None:
        """Not set."""
        self._loop = asyncio.get_running_loop()
        self._set = False
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Wake the waiting tasks; costs nothing if there are none."""
        self._set = True
        if self._waiters:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
                self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Not set from now on."""
        self._set = False

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, at most `timeout` seconds; whether it was."""
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            if self._set:  # set between clear() and here
                return True
            if timeout is None:
                await waiter
                return True
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True


class Confirmed:
    """One confirmation: resolved by any thread, awaited in the loop."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        """Not resolved."""
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def resolve(self, error: KafkadurError | None) -> None:
        """Tell the result."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
            self._loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: KafkadurError | None) -> None:
        if self._future.done():
            return
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)

    async def wait(self) -> None:
        """Wait for it; raises what it failed with."""
        await self._future


def exchange_inline(coordinator_thread: CoordinatorThread, _member: Member) -> bool:
    """Have the coordinator thread make a member's exchange: the loop itself does no I/O."""
    coordinator_thread.request_exchange()
    return False


async def outcome(future: concurrent.futures.Future[T]) -> T:
    """The result of a job of another thread."""
    return await asyncio.wrap_future(future)


async def kept(future: concurrent.futures.Future[T]) -> T:
    """Return the result of a job of another thread, which goes on if the waiting task is cancelled."""
    job = asyncio.wrap_future(future)
    job.add_done_callback(_heard)
    return await asyncio.shield(job)


def _heard(job: asyncio.Future[Any]) -> None:
    """Nobody need ask for an error again that somebody else may have been told."""
    if not job.cancelled():
        job.exception()


async def drained(producer: Producer[Any, Any]) -> None:
    """Wait until what was sent in this loop so far has found room in the producer's buffer."""
    drainer = producer.drainer
    if drainer is not None:
        await asyncio.wait([drainer])


class Breath:
    """Leaves the loop to others now and then."""

    def __init__(self) -> None:
        """Begin now."""
        self._last = time.monotonic()

    async def take(self) -> None:
        """Let others run if about a millisecond has passed."""
        if time.monotonic() - self._last > _BREATHE_EVERY:
            await asyncio.sleep(0)
            self._last = time.monotonic()


class Pool:
    """Runs handlers, at most so many at once."""

    def __init__(self, size: int) -> None:
        """`size` handlers at once."""
        self._room = asyncio.Semaphore(size)
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    async def __aenter__(self) -> Self:
        """Begin."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what runs; when the caller was cancelled, cancel it."""
        if error is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None and self._error is not None:
            raise self._error

    async def start(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run `work(*arguments)` as soon as there is room; raises what earlier work raised."""
        await self._room.acquire()
        if self._error is not None:
            self._room.release()
            raise self._error
        task = asyncio.ensure_future(self._run(work, arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Callable[..., Awaitable[None]], arguments: tuple[object, ...]) -> None:
        try:
            await work(*arguments)
        except Exception as error:  # noqa: BLE001 - it is raised by start() or at the end
            self._error = self._error or error
        finally:
            self._room.release()


async def call(handler: Callable[..., Any], argument: object) -> None:
    """Call a handler and wait for it if it is asynchronous."""
    result = handler(argument)
    if inspect.isawaitable(result):
        result = await result
    check_result(result, handler)


def interrupted(error: BaseException) -> bool:
    """Whether this ends the task that it was raised in: a handler may raise `CancelledError` by itself."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, SystemExit | KeyboardInterrupt)
