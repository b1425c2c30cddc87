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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar

from redis.backoff import ExponentialBackoff

from kafkadur.aio.connection import Connection
from kafkadur.aio.subscription import Delivery, Subscription
from kafkadur.service.app import App, Declared
from kafkadur.settings import Settings
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

#: Somebody else has it: the worker stands by until that one has left.
_OCCUPIED = (SubscriptionActive, InvalidClientId, ResourceLimit)
#: What passes by itself; anything else ends the worker.
_PASSING = (CoordinatorUnavailable, StateLost, LeaseLost)
#: How long is waited before something is tried again, seconds: longer each time, this at most.
_MOST_WAIT_S, _FIRST_WAIT_S = 10.0, 0.25
T = TypeVar("T")

#: How often the loop says that it runs, seconds.
_BEAT_S = 0.5
#: How long may pass between that the deadline has passed and that everything is given back, seconds.
_LAST_S = 5.0


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
        """Whether it has what it can have: its subscription, or a place behind who has it."""
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
        self._threads = ThreadPoolExecutor(
            max(1, sum(each.concurrency for each in app.declared)), thread_name_prefix="kafkadur-handler"
        )
        #: handlers that had not ended when the deadline passed
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
            _log.info("stopping: handlers have %.0f s to end", self._deadline)
            self._stop.set()
            for serving in self.serving:
                if serving.subscription is not None:
                    serving.subscription.stop()

    async def run(self) -> None:
        """Serve until `stop`, or until a subscription cannot be served at all; raises why that is.

        What a handler has not ended by then is given back, uncounted, and so is what no handler began.
        """
        beating = asyncio.ensure_future(self._beats())
        try:
            connection = await self._connected()
            if connection is not None:
                await self._serve(connection)
        finally:
            beating.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)
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

        return await self._persistently(connect, self.serving)

    async def _serve(self, connection: Connection) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._closed, connection)
            if self._app.lifespan is not None:
                await stack.enter_async_context(self._app.lifespan(connection))
            tasks = [asyncio.ensure_future(self._attend(connection, each)) for each in self.serving]
            try:
                await self._until_over(tasks)
            finally:
                await self._end(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _until_over(self, tasks: Iterable[asyncio.Future[None]]) -> None:
        """Wait until it is to stop, or one of the subscriptions has failed."""
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            waiting: list[asyncio.Future[Any]] = [stopped, *tasks]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        self.stop()

    async def _end(self, tasks: Iterable[asyncio.Future[None]]) -> None:
        """Let handlers end until the deadline; then have what they hold given back."""
        begun = self._monotonic() if self._stop_at is None else self._stop_at
        left = max(0.0, begun + self._deadline - self._monotonic())
        _, late = await asyncio.wait(tasks, timeout=left)
        for task in late:
            task.cancel()
        if late:
            _log.warning(
                "%d subscriptions had handlers at work at the deadline: what they hold is given back",
                len(late),
            )
            self.given_up = len(late)
            await asyncio.wait(late, timeout=_LAST_S)

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
            where = f"subscription {declared.name} of topic {declared.topic}"
            _log.error("%s cannot be served: %s", where, error, extra=_ids(declared))
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
        try:
            async with subscription:
                await subscription.run(self._measured(declared), **declared.running)
        except _PASSING as error:
            _log.warning("detached: %s", error, extra=ids)
            serving.state, serving.reason = State.STARTING, str(error)
        finally:
            serving.subscription = None

    async def _persistently(self, act: Callable[[], Awaitable[T]], concerned: Iterable[Serving]) -> T | None:
        """Do something until it succeeds; None: stopped before. What does not pass by itself is raised."""
        waits = ExponentialBackoff(cap=_MOST_WAIT_S, base=_FIRST_WAIT_S)
        failures = 0
        while not self._stop.is_set():
            try:
                return await act()
            except (*_OCCUPIED, *_PASSING) as error:
                state = State.STANDING_BY if isinstance(error, _OCCUPIED) else State.STARTING
                for serving in concerned:
                    if serving.reason != str(error):
                        _log.warning("%s: %s", state, error, extra=_ids(serving.declared))
                    serving.state, serving.reason = state, str(error)
            wait = waits.compute(failures)
            failures += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait)
        return None

    def _measured(self, declared: Declared) -> Callable[[Delivery[Any, Any]], Awaitable[None]]:
        """The handler as it is called here: a plain function in a thread, all of them measured."""
        handler, loop = declared.handler, asyncio.get_running_loop()
        plain = not inspect.iscoroutinefunction(handler)
        measures = self._measures

        async def handle(delivery: Delivery[Any, Any]) -> None:
            if plain:  # the span that it is part of, among others, is in the context
                called = partial(contextvars.copy_context().run, handler, delivery)
                result = await loop.run_in_executor(self._threads, called)
            else:
                result = handler(delivery)
            if inspect.isawaitable(result):  # also what a callable object returns
                await result

        if measures is None:
            return handle

        async def measured(delivery: Delivery[Any, Any]) -> None:
            with measures.handling(declared, delivery):
                await handle(delivery)

        return measured


def _ids(declared: Declared, **more: str) -> dict[str, str]:
    """What logs say of a subscription."""
    return {"subscription": declared.name, "topic": declared.topic, **more}
