"""A worker: runs the handlers of an app until it is stopped, and stops in order.

What a subscription does meanwhile (`Serving`) is told to those who watch: `health.py` and `measuring.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from redis.backoff import ExponentialBackoff

from kafkadur.aio.connection import Connection
from kafkadur.aio.delivery import Delivery
from kafkadur.aio.subscription import Subscription
from kafkadur.handlers.results import check_result
from kafkadur.settings import Settings
from kafkadur.worker.app import App, Declared
from kafkadur_sharing.errors import (
    CoordinatorUnavailable,
    IllegalState,
    InvalidClientId,
    KafkadurError,
    LeaseLost,
    ResourceLimit,
    StateLost,
    SubscriptionActive,
)

_log = logging.getLogger("kafkadur.worker")

#: Another consumer has the subscription: the worker stands by until that one has left.
_OCCUPIED = (SubscriptionActive, ResourceLimit)
#: What passes by itself; anything else ends the worker.
_PASSING = (CoordinatorUnavailable, StateLost, LeaseLost)
#: How long is waited before something is tried again, seconds: longer each time, this at most.
_MOST_WAIT_S, _FIRST_WAIT_S = 10.0, 0.25
#: How many failures in a row make a wait longer; the power of a thousand of them is no number any more.
_MOST_FAILURES = 16
#: How long is waited before another connection is made when one was displaced, seconds.
_DISPLACED_WAIT_S = 1.0
#: What would end the process if it came from elsewhere.
_ENDINGS = (SystemExit, KeyboardInterrupt)
T = TypeVar("T")

#: How often the loop says that it runs, seconds.
_BEAT_S = 0.5
#: How long may pass between that the deadline has passed and that everything is given back, seconds.
_LAST_S = 3.0


def _say_nothing() -> None:
    """No stop was asked for."""


class State(StrEnum):
    """What a worker does about one subscription."""

    #: it attaches, or tries again to
    STARTING = "starting"
    #: another one has the subscription, or the client id; it is tried again
    STANDING_BY = "standing by"
    #: its messages come to the handler
    ATTACHED = "attached"
    #: it is not served any more
    ENDED = "ended"


class Serving:
    """One subscription of a worker, and its handler."""

    def __init__(self, declared: Declared) -> None:
        """Nothing is attached yet."""
        self.declared = declared
        self.state = State.STARTING
        #: why it is not attached, for people
        self.reason = ""
        self.subscription: Subscription[Any, Any] | None = None

    @property
    def ready(self) -> bool:
        """Whether it has its subscription, or waits behind the consumer that has it."""
        return self.state in (State.ATTACHED, State.STANDING_BY)


class Measures(Protocol):
    """Takes part in each call of a handler, to measure it."""

    def handling(self, declared: Declared, delivery: Delivery[Any, Any], /) -> AbstractContextManager[object]:
        """A context around one call; what the handler raises passes through it."""
        ...


class Worker:
    """Runs an app: one connection, all its subscriptions. `run` once."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        *,
        deadline: timedelta = timedelta(seconds=25),
        measures: Measures | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deadline`: how long after `stop` handlers may take to end what they have begun.

        Raises `IllegalState` for an app without a handler.
        """
        if not app.declared:
            raise IllegalState(
                "The app has no handler.", owner="the app", remedy="decorate one with @app.subscription(...)"
            )
        self._app = app
        self._settings = settings
        self._deadline = deadline.total_seconds()
        self._measures = measures
        self._monotonic = monotonic
        self.serving: Sequence[Serving] = tuple(Serving(declared) for declared in app.declared)
        self._stop = asyncio.Event()
        self._stop_at: float | None = None
        self._beat = monotonic()
        self._on_stop: Callable[[], None] = _say_nothing
        self._entering: asyncio.Timeout | None = None
        #: what had not ended when the deadline passed: handlers, by subscription; the lifespan's beginning
        self.given_up = 0

    # -- watched by others, from any thread

    @property
    def ready(self) -> bool:
        """Whether every subscription is served, or stands by, and the worker is not about to stop."""
        return self._stop_at is None and all(serving.ready for serving in self.serving)

    @property
    def silent(self) -> float:
        """Seconds since the loop last showed that it runs; a handler that blocks it keeps it from that."""
        return self._monotonic() - self._beat

    # -- running

    def stop(self) -> None:
        """Hand out nothing more, let handlers end, leave. In the loop, as a signal handler of it."""
        if self._stop_at is None:
            self._stop_at = self._monotonic()
            self._on_stop()
            _log.info("stopping: handlers have %.0f s to end", self._deadline)
            self._stop.set()
            if self._entering is not None:
                self._entering.reschedule(asyncio.get_running_loop().time() + self._deadline)
            for serving in self.serving:
                if serving.subscription is not None:
                    serving.subscription.stop()

    async def run(self, on_stop: Callable[[], None] = _say_nothing) -> None:
        """Serve until `stop`, or until a subscription cannot be served at all; raises why that is.

        `on_stop` is called when it is about to stop, for whatever reason.
        What a handler has not ended by then is given back, uncounted, and so is what no handler began.
        """
        self._on_stop = on_stop
        beating = asyncio.ensure_future(self._beats())
        try:
            while (connection := await self._connected()) is not None:
                try:
                    await self._serve(connection)
                    break
                except (
                    InvalidClientId
                ) as error:  # another one has it now: this connection is of no use any more
                    self._tell(self.serving, State.STANDING_BY, error)
                    await self._pause(_DISPLACED_WAIT_S)
        finally:
            beating.cancel()
            for serving in self.serving:
                serving.state = State.ENDED

    async def _beats(self) -> None:
        while True:
            self._beat = self._monotonic()
            await asyncio.sleep(_BEAT_S)

    async def _connected(self) -> Connection | None:
        """A connection; None: stopped before there was one."""

        async def connect() -> Connection:
            connection = Connection(self._settings)
            await connection.open()
            return connection

        return await self._persistently(connect, self.serving, (*_OCCUPIED, InvalidClientId))

    async def _serve(self, connection: Connection) -> None:
        """Serve until it is to stop; raises why a subscription cannot be served."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._closed, connection)
            if not await self._entered(stack, connection):
                return
            tasks: dict[asyncio.Future[None], Serving] = {
                asyncio.ensure_future(self._attend(connection, each)): each for each in self.serving
            }
            try:
                await self._until_over(tasks)
            finally:
                await self._end(tasks)
        if (error := next(_errors(tasks), None)) is not None:
            raise error

    async def _entered(self, stack: contextlib.AsyncExitStack, connection: Connection) -> bool:
        """Enter the lifespan; false: it was to stop before that was done."""
        if self._stop_at is not None or self._app.lifespan is None:
            return self._stop_at is None
        limit = self._entering = asyncio.timeout(None)
        try:
            async with limit:
                await stack.enter_async_context(self._app.lifespan(connection))
        except TimeoutError:
            if not limit.expired():
                raise
            self.given_up += 1
            _log.warning("the lifespan had not begun at the deadline")
            return False
        finally:
            self._entering = None
        return True

    async def _until_over(self, tasks: Iterable[asyncio.Future[None]]) -> None:
        """Wait until it is to stop, or one of the subscriptions has failed."""
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            waiting: list[asyncio.Future[Any]] = [stopped, *tasks]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if any(isinstance(error, InvalidClientId) for error in _errors(tasks)) and self._stop_at is None:
            return  # the worker goes on, with another connection
        self.stop()

    async def _end(self, tasks: Mapping[asyncio.Future[None], Serving]) -> None:
        """Let handlers end until the deadline; then have what they hold given back.

        Without a deadline, because the connection was lost, they are not waited for.
        """
        left = 0.0
        if self._stop_at is not None:
            left = max(0.0, self._stop_at + self._deadline - self._monotonic())
        _, late = await asyncio.wait(tasks, timeout=left)
        working = sum(tasks[task].subscription is not None for task in late)
        if working and self._stop_at is not None:
            _log.warning(
                "%d subscriptions had handlers at work at the deadline: what they hold is given back", working
            )
            self.given_up += working
        for task in late:
            task.cancel()
        if not late:
            return
        _, staying = await asyncio.wait(late, timeout=_LAST_S)
        if staying and self._stop_at is None:
            _log.error("%d handlers go on though their connection is lost: the worker ends", len(staying))
            self.given_up += len(staying)
            self.stop()

    async def _closed(self, connection: Connection) -> None:
        """Leave; what could not be confirmed comes again, and that is only said."""
        try:
            await connection.close()
        except KafkadurError as error:
            _log.warning("closing: %s", error)

    # -- one subscription

    async def _attend(self, connection: Connection, serving: Serving) -> None:
        """Serve a subscription until the worker stops; attach again when that ended by itself."""
        declared = serving.declared

        async def attach() -> Subscription[Any, Any]:
            return await connection.subscribe(declared.topic, durable=declared.durable, **declared.options)

        try:
            while (subscription := await self._persistently(attach, [serving])) is not None:
                await self._work(serving, subscription)
        except KafkadurError as error:
            _log.error("cannot be served: %s", error, extra=_ids(declared))
            raise
        finally:
            serving.state = State.ENDED

    async def _work(self, serving: Serving, subscription: Subscription[Any, Any]) -> None:
        """Run the handler until the worker stops, or until what it works on is lost for a while."""
        declared, ids = serving.declared, _ids(serving.declared, member=subscription.member_id)
        serving.subscription = subscription
        if self._stop.is_set():
            subscription.stop()
        serving.state, serving.reason = State.ATTACHED, ""
        _log.info("attached", extra=ids)
        # of this run alone: what does not end after it takes no place of what comes next
        threads = ThreadPoolExecutor(declared.concurrency, thread_name_prefix="kafkadur-handler")
        try:
            async with subscription:
                await subscription.run(self._measured(declared, threads), **declared.running)
        except (*_PASSING, *_OCCUPIED) as error:
            _log.warning("detached: %s", error, extra=ids)
            serving.state, serving.reason = State.STARTING, str(error)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            serving.subscription = None

    async def _persistently(
        self,
        act: Callable[[], Awaitable[T]],
        concerned: Iterable[Serving],
        occupied: tuple[type[KafkadurError], ...] = _OCCUPIED,
    ) -> T | None:
        """Do something until it succeeds; None: stopped before. What does not pass by itself is raised."""
        waits = ExponentialBackoff(cap=_MOST_WAIT_S, base=_FIRST_WAIT_S)
        waited_for: tuple[type[KafkadurError], ...] = (*occupied, *_PASSING)
        failures = 0
        while not self._stop.is_set():
            try:
                return await act()
            except waited_for as error:
                state = State.STANDING_BY if isinstance(error, occupied) else State.STARTING
                self._tell(concerned, state, error)
            await self._pause(waits.compute(failures))
            failures = min(failures + 1, _MOST_FAILURES)
        return None

    def _tell(self, concerned: Iterable[Serving], state: State, error: KafkadurError) -> None:
        """Why something is not attached; logged once."""
        for serving in concerned:
            if serving.reason != str(error):
                _log.warning("%s: %s", state, error, extra=_ids(serving.declared))
            serving.state, serving.reason = state, str(error)

    async def _pause(self, seconds: float) -> None:
        """Wait, unless it is to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    def _measured(
        self, declared: Declared, threads: ThreadPoolExecutor
    ) -> Callable[[Delivery[Any, Any]], Awaitable[None]]:
        """The handler as it is called here: a plain function in a thread, all of them measured."""
        handler, loop = declared.handler, asyncio.get_running_loop()
        plain = not inspect.iscoroutinefunction(handler)
        measures = self._measures

        async def handle(delivery: Delivery[Any, Any]) -> None:
            if plain:  # the span that it is part of, among others, is in the context
                context = contextvars.copy_context()
                result = await loop.run_in_executor(threads, _called, context, handler, delivery)
            else:
                result = handler(delivery)
            if inspect.isawaitable(result):  # also what a callable object returns
                try:
                    result = await result
                except _ENDINGS as error:
                    raise _no_end(error) from error
            check_result(result, handler)

        if measures is None:
            return handle

        async def measured(delivery: Delivery[Any, Any]) -> None:
            with measures.handling(declared, delivery):
                await handle(delivery)

        return measured


def _called(
    context: contextvars.Context, handler: Callable[[Any], Any], delivery: Delivery[Any, Any]
) -> object:
    """Call a handler in a thread; a future takes no `StopIteration`."""
    try:
        return context.run(handler, delivery)
    except (*_ENDINGS, StopIteration) as error:
        raise _no_end(error) from error


def _no_end(error: BaseException) -> RuntimeError:
    """What a handler raises is about its message: it does not end the worker, with other messages in hand."""
    return RuntimeError(f"the handler raised {type(error).__name__}")


def _errors(tasks: Iterable[asyncio.Future[None]]) -> Iterator[BaseException]:
    """What those raised that have ended."""
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            yield error


def _ids(declared: Declared, **more: str) -> dict[str, str]:
    """What logs say of a subscription."""
    return {"subscription": declared.name, "topic": declared.topic, **more}
