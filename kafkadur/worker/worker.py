"""A worker: runs the handlers of an app until it is stopped, and stops in order.

`Worker.details` and `measuring.py` read the state of each subscription (`Serving`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from kafkadur.aio.connection import Connection
from kafkadur.aio.delivery import Delivery
from kafkadur.aio.distributed import Distributed
from kafkadur.aio.session import Session
from kafkadur.aio.subscription import Subscription
from kafkadur.handlers.arguments import with_arguments
from kafkadur.monitoring.heartbeat import Heartbeat
from kafkadur.settings import Settings
from kafkadur.worker.app import App, Declared
from kafkadur.worker.calling import callable_in_loop
from kafkadur.worker.transacting import Transacting
from kafkadur.worker.waits import GrowingWaits
from kafkadur_sharing.distributed import DistributedTopic
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
#: These errors pass by themselves; any other error ends the worker.
_PASSING = (CoordinatorUnavailable, StateLost, LeaseLost)
#: The first wait before a retry, seconds.
_FIRST_WAIT_S = 0.25
#: Wait before a new connection after another process took over the client id, seconds.
_DISPLACED_WAIT_S = 1.0
#: The longest time between the deadline and the return of the last message, seconds.
_LAST_S = 3.0

T = TypeVar("T")


class State(StrEnum):
    """The state of one subscription in a worker."""

    #: the worker attaches to it, or will try again
    STARTING = "starting"
    #: another consumer has the subscription, or the client id; the worker tries again
    STANDING_BY = "standing by"
    #: the handler gets its messages
    ATTACHED = "attached"
    #: it is not served any more
    ENDED = "ended"


@dataclass(eq=False)
class Serving:
    """One subscription of a worker, and its handler."""

    declared: Declared
    state: State = State.STARTING
    #: why it is not attached, for people
    reason: str = ""
    subscription: Subscription[Any, Any] | None = None

    @property
    def ready(self) -> bool:
        """Whether it has its subscription, or stands by for it."""
        return self.state in (State.ATTACHED, State.STANDING_BY)


class Worker:
    """Runs an app: one connection, all its subscriptions. `run` once."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        *,
        deadline: timedelta = timedelta(seconds=25),
        measure: Callable[[Declared], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """`deadline`: how long handlers may run after `stop`; `measure`: a context around each handler call.

        Raises `IllegalState` for an app without a handler.
        """
        if not app.declared:
            raise IllegalState(
                "The app has no handler.", owner="the app", remedy="decorate one with @app.subscription(...)"
            )
        self._app = app
        self._settings = settings
        self._deadline = deadline.total_seconds()
        self._measure = measure
        self.serving: Sequence[Serving] = tuple(Serving(declared) for declared in app.declared)
        self._stop = asyncio.Event()
        self._stop_at: float | None = None
        self._heartbeat = Heartbeat()
        self._on_stop: Callable[[], None] = lambda: None
        self._entering: asyncio.Timeout | None = None
        #: distributed topics on the present connection, by the identity of the topic
        self._opened: dict[int, Distributed] = {}
        #: number of subscriptions whose handlers, and of lifespans whose start, took longer than the deadline
        self.given_up = 0

    # -- read by other threads

    @property
    def ready(self) -> bool:
        """Whether every subscription is ready, and the worker is not about to stop."""
        return self._stop_at is None and all(serving.ready for serving in self.serving)

    def details(self) -> Mapping[str, Any]:
        """Return the state of each subscription; any thread."""
        return {
            "subscriptions": [
                {
                    "subscription": each.declared.name,
                    "topic": each.declared.topic,
                    "state": each.state.value,
                    "reason": each.reason,
                }
                for each in self.serving
            ]
        }

    @property
    def silent(self) -> float:
        """Seconds since the loop last showed that it runs; they grow while a handler blocks it."""
        return self._heartbeat.silent

    # -- running

    def stop(self) -> None:
        """Stop handing out messages, let handlers end, detach. Called in the event loop."""
        if self._stop_at is None:
            self._stop_at = time.monotonic()
            self._on_stop()
            _log.info("stopping: handlers have %.0f s to end", self._deadline)
            self._stop.set()
            if self._entering is not None:
                self._entering.reschedule(asyncio.get_running_loop().time() + self._deadline)
            for serving in self.serving:
                if serving.subscription is not None:
                    serving.subscription.stop()

    async def run(self, on_stop: Callable[[], None]) -> None:
        """Serve until `stop`, or until a subscription cannot be served at all; raise the error of that.

        `on_stop` is called when the worker is about to stop, for any reason. Messages that no handler has
        finished by the deadline are given back, not counted as an attempt.
        """
        self._on_stop = on_stop
        self._heartbeat.start()
        try:
            while (connection := await self._connected()) is not None:
                try:
                    await self._serve(connection)
                    break
                except InvalidClientId as error:  # another connection took it over: this one is useless
                    self._tell(self.serving, State.STANDING_BY, error)
                    await self._pause(_DISPLACED_WAIT_S)
        finally:
            self._heartbeat.stop()
            for serving in self.serving:
                serving.state = State.ENDED

    async def _connected(self) -> Connection | None:
        """Return an open connection; None if the worker was stopped before."""

        async def connect() -> Connection:
            connection = Connection(self._settings)
            await connection.open()
            return connection

        return await self._persistently(connect, self.serving, (*_OCCUPIED, InvalidClientId))

    async def _serve(self, connection: Connection) -> None:
        """Serve until the stop; raise the error if a subscription cannot be served."""
        self._opened.clear()
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
        """Enter the lifespan; return whether it was entered before the stop."""
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
        """Wait until the stop, or until one of the subscriptions has failed."""
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            waiting: list[asyncio.Future[Any]] = [stopped, *tasks]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if any(isinstance(error, InvalidClientId) for error in _errors(tasks)) and self._stop_at is None:
            return  # the worker goes on with another connection
        self.stop()

    async def _end(self, tasks: Mapping[asyncio.Future[None], Serving]) -> None:
        """Let handlers end until the deadline; then give their messages back.

        Without a deadline, because the connection was lost, it does not wait for them.
        """
        left = 0.0
        if self._stop_at is not None:
            left = max(0.0, self._stop_at + self._deadline - time.monotonic())
        _, late = await asyncio.wait(tasks, timeout=left)
        working = sum(tasks[task].subscription is not None for task in late)
        if working and self._stop_at is not None:
            _log.warning(
                "%d subscriptions had handlers at work at the deadline: their messages are given back",
                working,
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
        """Close; verdicts that could not be confirmed are only logged: their messages come again."""
        try:
            await connection.close()
        except KafkadurError as error:
            _log.warning("closing: %s", error)

    # -- one subscription

    async def _attend(self, connection: Connection, serving: Serving) -> None:
        """Serve a subscription until the worker stops; attach again after it was detached."""
        declared = serving.declared
        session: Session | None = None

        async def attach() -> tuple[Subscription[Any, Any], Session | None]:
            nonlocal session
            if declared.transacts:
                if session is None:  # it is kept while attaching fails: Kafka remembers each for a week
                    session = await _opened(connection)
                return await _subscribed(connection, declared, session), session
            if declared.distributed is None:
                return await _subscribed(connection, declared), None
            options = dict(declared.options)
            member = options.pop("topic_member")
            distributed = self._distributed(connection, declared.distributed)
            return await distributed.subscribe(member, durable=declared.durable, **options), None

        try:
            while (attached := await self._persistently(attach, [serving])) is not None:
                session = None  # it ends with the work
                await self._work(serving, *attached)
        except KafkadurError as error:
            _log.error("cannot be served: %s", error, extra=_ids(declared))
            raise
        finally:
            if session is not None:
                await session.close()
            serving.state = State.ENDED

    def _distributed(self, connection: Connection, topic: DistributedTopic) -> Distributed:
        """Return a distributed topic on a connection, which its members share."""
        found = self._opened.get(id(topic))
        if found is None:
            found = self._opened[id(topic)] = connection.distributed(topic)
        return found

    async def _work(
        self, serving: Serving, subscription: Subscription[Any, Any], session: Session | None
    ) -> None:
        """Run the handler until the worker stops, or until the subscription is lost for a while.

        `session`: that of a transacted subscription.
        """
        declared, ids = serving.declared, _ids(serving.declared, member=subscription.member_id)
        serving.subscription = subscription
        if self._stop.is_set():
            subscription.stop()
        serving.state, serving.reason = State.ATTACHED, ""
        _log.info("attached", extra=ids)
        # Of this run alone: a thread that does not end takes no place in the next run.
        threads = ThreadPoolExecutor(declared.concurrency, thread_name_prefix="kafkadur-handler")
        try:
            async with session or subscription:
                if session is None:
                    await subscription.run(self._measured(declared, threads), **declared.running)
                else:
                    await self._transacting(declared, session, subscription, threads).run()
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
        """Try until it succeeds; None if the worker was stopped before. Raises errors that do not pass."""
        waits = GrowingWaits(_FIRST_WAIT_S)
        waited_for: tuple[type[KafkadurError], ...] = (*occupied, *_PASSING)
        while not self._stop.is_set():
            try:
                return await act()
            except waited_for as error:
                state = State.STANDING_BY if isinstance(error, occupied) else State.STARTING
                self._tell(concerned, state, error)
            await self._pause(waits.next())
        return None

    def _tell(self, concerned: Iterable[Serving], state: State, error: KafkadurError) -> None:
        """Set the state of subscriptions that are not attached, and why; the reason is logged once."""
        for serving in concerned:
            if serving.reason != str(error):
                _log.warning("%s: %s", state, error, extra=_ids(serving.declared))
            serving.state, serving.reason = state, str(error)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not after the stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    def _measured(
        self, declared: Declared, threads: ThreadPoolExecutor
    ) -> Callable[[Delivery[Any, Any]], Awaitable[None]]:
        """Return the handler as the subscription calls it: measured, a plain function in a thread."""
        handler = with_arguments(declared.handler, f"subscription {declared.name}")
        call = callable_in_loop(handler, threads)

        async def handle(delivery: Delivery[Any, Any]) -> None:
            with self._measure(declared):
                await call(delivery)

        handle.__qualname__ = call.__qualname__  # for its failures
        return handle

    def _transacting(
        self,
        declared: Declared,
        session: Session,
        subscription: Subscription[Any, Any],
        threads: ThreadPoolExecutor,
    ) -> Transacting:
        return Transacting(
            session,
            subscription,
            declared=declared,
            handle=callable_in_loop(declared.handler, threads),
            measure=lambda: self._measure(declared),
            pause=self._pause,
            is_stopped=self._stop.is_set,
            ids=_ids(declared, member=subscription.member_id),
        )


async def _subscribed(
    connection: Connection, declared: Declared, session: Session | None = None
) -> Subscription[Any, Any]:
    return await connection.subscribe(
        declared.topic, durable=declared.durable, session=session, **declared.options
    )


async def _opened(connection: Connection) -> Session:
    """Return a transacted session that is open; one that cannot be opened closes itself."""
    session = connection.session(transacted=True)
    await session.open()
    return session


def _errors(tasks: Iterable[asyncio.Future[None]]) -> Iterator[BaseException]:
    """Yield the errors of the ended tasks."""
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            yield error


def _ids(declared: Declared, **more: str) -> dict[str, str]:
    """Return the fields of log records about a subscription."""
    return {"subscription": declared.name, "topic": declared.topic, **more}
