"""Waiting, the asynchronous way: signals from other threads, confirmations, a pool for handlers.

Its twin `kafkadur/sync/waiting.py` is written by hand; the rest of `kafkadur.sync` is generated.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from kafkadur.handlers.results import check_result, is_coroutine_function
from kafkadur.producer.producer import Producer
from kafkadur_sharing.errors import KafkadurError

T = TypeVar("T")

#: Whether a caller that waits for an exchange makes it itself: no, the loop does no I/O.
INLINE = False
#: Seconds after which a busy task lets other tasks run.
_BREATHE_EVERY = 0.001

#: Whether a handler may be a coroutine function.
AWAITS = True


class ClosingContext(ABC):
    """An asynchronous context manager that is closed at the end of its block."""

    @abstractmethod
    async def close(self) -> None:
        """Close."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an error of closing does not hide the error that ended the block."""
        try:
            await self.close()
        except KafkadurError:
            if error is None:
                raise


class Signal:
    """Set by any thread; waited for in the loop that it was made in."""

    def __init__(self) -> None:
        """Not set."""
        self._loop = asyncio.get_running_loop()
        self._set = False
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Wake the waiting tasks."""
        self._set = True
        if self._waiters:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
                self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def clear(self) -> None:
        """Not set from now on."""
        self._set = False

    async def wait(self, timeout: float | None) -> None:
        """Wait until it is set, at most `timeout` seconds."""
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            if not self._set:  # it may have been set since clear()
                async with asyncio.timeout(timeout):
                    await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)


class Confirmed:
    """One confirmation: resolved by any thread, awaited in the loop."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        """Not resolved."""
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def resolve(self, error: KafkadurError | None) -> None:
        """Give the result: no error, or the error that `wait` raises."""
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
        """Wait for the confirmation; raises the error that it was resolved with."""
        await self._future


async def outcome(future: concurrent.futures.Future[T]) -> T:
    """Wait for the result of a job of another thread."""
    return await asyncio.wrap_future(future)


async def in_thread(job: Callable[[], T]) -> T:
    """Run a job that blocks in a thread, and return its result."""
    return await asyncio.to_thread(job)


async def kept(future: concurrent.futures.Future[T]) -> T:
    """Wait for the result of a job of another thread; the job goes on if the waiting task is cancelled."""
    job = asyncio.wrap_future(future)
    job.add_done_callback(_heard)
    return await asyncio.shield(job)


def _heard(job: asyncio.Future[Any]) -> None:
    """Mark the error of a job as retrieved, so that asyncio does not log it."""
    if not job.cancelled():
        job.exception()


async def drained(producer: Producer[Any, Any]) -> None:
    """Wait until all messages that were sent in this loop so far are in the producer's buffer."""
    drainer = producer.drainer
    if drainer is not None:
        await asyncio.wait([drainer])


async def flattened(blocks: AsyncIterator[Iterable[T]]) -> AsyncIterator[T]:
    """Yield the items of all blocks."""
    async for block in blocks:
        for item in block:
            yield item


class Breath:
    """Lets the other tasks of the loop run from time to time."""

    def __init__(self) -> None:
        """Start the clock."""
        self._last = time.monotonic()

    async def take(self) -> None:
        """Let other tasks run if a millisecond has passed."""
        if time.monotonic() - self._last > _BREATHE_EVERY:
            await asyncio.sleep(0)
            self._last = time.monotonic()


class Pool:
    """Runs handlers as tasks, at most `size` at the same time; plain functions in as many threads."""

    def __init__(self, size: int) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(size, "kafkadur-handler")
        self._room = asyncio.Semaphore(size)
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait for the running handlers; after an error, cancel them first. A thread cannot be cancelled."""
        if error is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
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

    async def call(self, handler: Callable[..., Any], argument: object) -> None:
        """Await a coroutine function; call any other function in a thread, in the context of the caller."""
        if is_coroutine_function(handler):
            result = await handler(argument)
        else:
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(
                self._threads, lambda: context.run(_called, handler, argument)
            )
            if inspect.isawaitable(result):  # a function can return one, too
                result = await result
        check_result(result, handler)


def _called(handler: Callable[..., Any], argument: object) -> object:
    """Call a handler in a thread; a future cannot hold a `StopIteration`."""
    try:
        return handler(argument)
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error


def interrupted(error: BaseException) -> bool:
    """Whether an error ends the task: a `CancelledError` may also be the handler's own."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, SystemExit | KeyboardInterrupt)
