"""Runs the handler of a transacted subscription: each call and what it publishes is one transaction."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from kafkadur.aio.session import Session
from kafkadur.aio.subscription import Subscription
from kafkadur.aio.waiting import interrupted
from kafkadur.consumer.delivery import Batch
from kafkadur.handlers.failures import FailureDetail, describe
from kafkadur.producer.transacted import TransactedProducer
from kafkadur.worker.app import Declared
from kafkadur.worker.waits import GrowingWaits
from kafkadur_sharing.errors import IllegalState, KafkaUnavailable, TransactionRolledBack

_log = logging.getLogger("kafkadur.worker")

#: The first wait after a transaction that failed, seconds.
_FIRST_WAIT_S = 0.1

Handle = Callable[[Batch[Any, Any], Any], Awaitable[None]]


class CallProducer:
    """The producer of a session, for one call of a handler: it refuses to publish after the call.

    Else a task or thread that the handler left behind would publish in the transaction of another call.
    """

    def __init__(self, producer: TransactedProducer, display: str) -> None:
        """The call begins; `display` is the subscription for people."""
        self._producer = producer
        self._display = display
        self._ended = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        """Return an attribute of the producer. Raises `IllegalState` after the call."""
        if self._ended:
            raise IllegalState(
                "The handler that was called with this producer has ended.",
                state="its transaction is over",
                owner=f"a handler of subscription {self._display}",
                remedy="publish before the handler returns: await the tasks that it begins",
            )
        return getattr(self._producer, name)

    def end(self) -> None:
        """The call has ended."""
        self._ended = True


class Transacting:
    """The transactions of one subscription, one after the other."""

    def __init__(
        self,
        session: Session,
        subscription: Subscription[Any, Any],
        *,
        declared: Declared,
        handle: Handle,
        measure: Callable[[], AbstractContextManager[object]],
        pause: Callable[[float], Awaitable[None]],
        is_stopped: Callable[[], bool],
        ids: Mapping[str, str],
    ) -> None:
        """`session` is open, and `subscription` its only one.

        `handle` calls the handler, and `measure` gives a context around each call; `pause(seconds)` waits,
        but not after the stop; `ids`: fields of log records.
        """
        self._session = session
        self._subscription = subscription
        self._declared = declared
        self._handle = handle
        self._measure = measure
        self._pause = pause
        self._is_stopped = is_stopped
        self._ids = dict(ids)
        self._waits = GrowingWaits(_FIRST_WAIT_S)

    async def run(self) -> None:
        """Run transactions until the subscription is stopped.

        Raises the error that made the subscription unusable, and `KafkaRefused`.
        """
        # one that always fails must not take others along each time, in whichever worker it comes again
        self._subscription.dispatch_failed_alone()
        while True:
            batch = await self._subscription.receive_batch(self._declared.running["messages"])
            if batch is None:
                return
            if await self._transact(batch):
                self._waits.reset()
            else:
                await self._pause(self._waits.next())

    async def _transact(self, batch: Batch[Any, Any]) -> bool:
        """Call the handler, and commit or roll back; returns whether it is committed."""
        producer = CallProducer(self._session.producer(), self._declared.name)
        try:
            await self._call(batch, producer)
        except BaseException as error:
            if interrupted(error):
                raise
            self._tell_failure(batch, error)
            await self._persistently(self._session.rollback)
            return False
        try:
            await self._persistently(self._session.commit)
        except TransactionRolledBack as error:
            _log.warning("%s", error, extra=self._ids)
            return False
        return True

    async def _call(self, batch: Batch[Any, Any], producer: CallProducer) -> None:
        """Call the handler, with a producer that ends with the call. Raises the exception of the handler."""
        try:
            with self._measure():
                await self._handle(batch, producer)
        finally:
            producer.end()

    def _tell_failure(self, batch: Batch[Any, Any], error: BaseException) -> None:
        """Log why a transaction is rolled back: one line, and the traceback at the level DEBUG."""
        detail: FailureDetail = self._declared.running["failure_detail"]
        first, reason = batch[0], describe(error, self._declared.handler, detail)
        _log.warning(
            "handler failed for %d messages from %r on; they are rolled back and delivered again: %s",
            len(batch),
            first,
            " ".join(reason.split()),
            exc_info=error if detail != "class" and _log.isEnabledFor(logging.DEBUG) else None,
            extra=self._ids,
        )

    async def _persistently(self, act: Callable[[], Awaitable[None]]) -> None:
        """Commit or roll back, until Kafka answers; raises `KafkaUnavailable` after the stop."""
        waits = GrowingWaits(_FIRST_WAIT_S)
        while True:
            try:
                return await act()
            except KafkaUnavailable as error:
                if self._is_stopped():
                    raise
                _log.warning("%s", error, extra=self._ids)
            await self._pause(waits.next())
