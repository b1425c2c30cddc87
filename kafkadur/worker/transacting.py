"""Runs the handler of a transacted subscription: each call and what it publishes is one transaction."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from redis.backoff import ExponentialBackoff

from kafkadur.aio.session import Session
from kafkadur.aio.subscription import Subscription
from kafkadur.consumer.delivery import Batch
from kafkadur.producer.transacted import TransactedProducer
from kafkadur_sharing.errors import KafkaUnavailable, TransactionRolledBack

_log = logging.getLogger("kafkadur.worker")

#: The longest and the first wait after a transaction that failed, seconds; waits grow with each failure.
_MOST_WAIT_S, _FIRST_WAIT_S = 10.0, 0.1
#: The most failures in a row that the backoff counts.
_MOST_FAILURES = 16

Handle = Callable[[Batch[Any, Any], TransactedProducer], Awaitable[None]]


class Transacting:
    """The transactions of one subscription, one after the other."""

    def __init__(
        self,
        session: Session,
        subscription: Subscription[Any, Any],
        *,
        handle: Handle,
        most: int,
        measure: Callable[[], AbstractContextManager[object]],
        pause: Callable[[float], Awaitable[None]],
        is_stopped: Callable[[], bool],
        ids: Mapping[str, str],
    ) -> None:
        """`session` is open, and `subscription` its only one; `most`: messages of a transaction.

        `measure`: a context around each transaction; `pause(seconds)` waits, but not after the stop; `ids`:
        fields of log records.
        """
        self._session = session
        self._subscription = subscription
        self._handle = handle
        self._most = most
        self._measure = measure
        self._pause = pause
        self._is_stopped = is_stopped
        self._ids = dict(ids)
        #: messages that were rolled back: so many next ones have transactions of their own, so that one that
        #: always fails does not take the others along each time
        self._alone = 0
        self._failures = 0
        self._waits = ExponentialBackoff(cap=_MOST_WAIT_S, base=_FIRST_WAIT_S)

    async def run(self) -> None:
        """Run transactions until the subscription is stopped.

        Raises the error that made the subscription unusable, and `KafkaRefused`.
        """
        while True:
            batch = await self._subscription.receive_batch(1 if self._alone else self._most)
            if batch is None:
                return
            if await self._transact(batch):
                self._failures = 0
                self._alone = max(self._alone - len(batch), 0)
                continue
            self._alone = max(self._alone, len(batch))
            await self._pause(self._waits.compute(self._failures))
            self._failures = min(self._failures + 1, _MOST_FAILURES)

    async def _transact(self, batch: Batch[Any, Any]) -> bool:
        """Call the handler, and commit or roll back; returns whether it is committed."""
        try:
            with self._measure():
                await self._handle(batch, self._session.producer())
        except Exception:  # noqa: BLE001 - whatever it is concerns these messages
            _log.exception("the handler failed: its transaction is rolled back", extra=self._ids)
            await self._persistently(self._session.rollback)
            return False
        try:
            await self._persistently(self._session.commit)
        except TransactionRolledBack as error:
            _log.warning("%s", error, extra=self._ids)
            return False
        return True

    async def _persistently(self, act: Callable[[], Awaitable[None]]) -> None:
        """Commit or roll back, until Kafka answers; raises `KafkaUnavailable` after the stop."""
        failures = 0
        while True:
            try:
                return await act()
            except KafkaUnavailable as error:
                if self._is_stopped():
                    raise
                _log.warning("%s", error, extra=self._ids)
            await self._pause(self._waits.compute(failures))
            failures = min(failures + 1, _MOST_FAILURES)
