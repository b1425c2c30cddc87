# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.
"""A session: deliveries of several subscriptions that are acknowledged or recovered together (rules K1, K3).

A transacted one commits them together with what it sends, in one transaction of Kafka; that side of it is
`kafkadur/transactions.py`. `kafkadur/sync/session.py` is generated from this file.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kafkadur.delivery import Chunk
from kafkadur.sync.waiting import outcome
from kafkadur.transacted_producer import TransactedProducer
from kafkadur.transactions import Transaction
from kafkadur_sharing.errors import IllegalState, KafkadurError, TransactionRolledBack

if TYPE_CHECKING:
    from kafkadur.sync.subscription import Subscription
_log = logging.getLogger("kafkadur.session")
_Taken = tuple["Subscription[Any, Any]", list[tuple[Chunk, list[int]]]]


class Session:
    """Groups the subscriptions opened with it; a context manager, made by `Connection.session`."""

    def __init__(
        self, transaction: Transaction | None = None, ended: Callable[[Session], None] = lambda _: None
    ) -> None:
        """No subscription belongs to it yet.

        `transaction`: that of a transacted session. `ended` is told when that has ended in order.
        """
        self._subscriptions: list[Subscription[Any, Any]] = []
        self._transaction = transaction
        self._ended = ended
        self._taken: list[_Taken] = []
        self._closed = False

    def join(self, subscription: Subscription[Any, Any]) -> None:
        """A subscription was opened with this session."""
        self._subscriptions.append(subscription)

    @property
    def subscriptions(self) -> tuple[Subscription[Any, Any], ...]:
        """The subscriptions opened with it."""
        return tuple(self._subscriptions)

    @property
    def transaction(self) -> Transaction | None:
        """Its transactions in Kafka; None: it is not transacted."""
        return self._transaction

    def acknowledge(self) -> None:
        """Acknowledge everything delivered by the session so far, and wait until that is confirmed (rule K1).

        Raises `LeaseLost` if a lease is gone: its messages are delivered again, all others are acknowledged.
        Raises `IllegalState` in a transacted session: that commits.
        """
        self._not_transacted("acknowledge", "commit()")
        self._settle(acknowledge=True)

    def recover(self) -> None:
        """Roll back everything delivered and not settled: it comes again, counted as an attempt (rule K3).

        Raises `IllegalState` in a transacted session: that rolls back.
        """
        self._not_transacted("recover", "rollback()")
        self._settle(acknowledge=False)

    def _settle(self, *, acknowledge: bool) -> None:
        first: KafkadurError | None = None
        for subscription in self._subscriptions:
            try:
                subscription.settle_received(acknowledge=acknowledge)
            except KafkadurError as error:
                first = first or error
        if first is not None:
            raise first

    def _not_transacted(self, what: str, instead: str) -> None:
        if self._transaction is not None:
            raise IllegalState(
                f"A transacted session cannot {what}.",
                state="it is transacted",
                owner="the session",
                remedy=f"use {instead}",
            )

    def producer(self) -> TransactedProducer[str | bytes | None, str | bytes | None]:
        """The producer of a transacted session: what it sends is seen when the session is committed.

        Raises `IllegalState` in a session that is not transacted.
        """
        return self._transacted().producer

    def _transacted(self) -> Transaction:
        if self._transaction is None or self._closed:
            raise IllegalState(
                "This session has no transactions.",
                state="it is closed" if self._closed else "it is not transacted",
                owner="the session",
                remedy="use connection.session(transacted=True)",
            )
        return self._transaction

    def commit(self) -> None:
        """Commit what was received and what was sent, together: both hold, or neither does.

        Everything delivered by the session so far is settled, in the same transaction of Kafka that its
        messages are sent in, and never delivered again, whatever ends this process when. Raises
        `TransactionRolledBack` if neither holds: the messages come again, counted as an attempt. Raises
        `StateLost` while Kafka does not say what a commit came to: call it again, or close the session; until
        it is known nothing of the subscriptions goes to others. Not to be called twice at once.
        """
        transaction = self._transacted()
        if transaction.unknown:
            self._look_up(transaction)
        self._taken = [(each, each.take_handed()) for each in self._subscriptions]
        if self._take_lost():
            self._undo(transaction, anew=True)
            raise TransactionRolledBack(
                state="leases ended before the commit",
                owner="the session",
                remedy="do nothing: their messages come again",
            )
        parts = [part for each, records in self._taken for part in each.parts_of(records)]
        self._answered(transaction, lambda: transaction.commit(parts))

    def _look_up(self, transaction: Transaction) -> None:
        """Find out what the last commit came to; raises as `commit`."""
        self._answered(transaction, transaction.look_up)

    def _answered(self, transaction: Transaction, ask: Callable[[], Future[None]]) -> None:
        """Have Kafka commit, or say what it did; then tell Redis."""
        self._note_doubt(in_doubt=True)
        try:
            outcome(ask())
        except TransactionRolledBack:
            self._take_lost()
            self._settle(acknowledge=False)
            raise
        finally:
            self._note_doubt(in_doubt=transaction.unknown)
        for each, records in self._taken:
            try:
                each.settle_taken(records)
            except KafkadurError as error:
                _log.info("%s; it is committed, and is not delivered again", error)
        self._taken = []

    def _take_lost(self) -> int:
        return sum((each.take_lost() for each in self._subscriptions))

    def _note_doubt(self, *, in_doubt: bool) -> None:
        for each in self._subscriptions:
            each.note_doubt(in_doubt=in_doubt)

    def rollback(self) -> None:
        """Roll back what was received and what was sent.

        The messages come again, counted as an attempt; what was sent is never seen by who reads what is
        committed. A commit whose outcome was not known is looked up first, and stays if it was done. Raises
        `StateLost` when Kafka does not answer: it rolls back by itself in the end.
        """
        transaction = self._transacted()
        if transaction.unknown:
            with contextlib.suppress(TransactionRolledBack):
                self._look_up(transaction)
        self._undo(transaction, anew=self._take_lost() > 0)

    def _undo(self, transaction: Transaction, *, anew: bool) -> None:
        try:
            outcome(transaction.roll_back(anew=anew))
        finally:
            self._settle(acknowledge=False)

    def close(self) -> None:
        """Close its subscriptions; a transacted session is rolled back (rule K6). Twice is fine.

        Raises what closing a subscription raises.
        """
        if self._closed:
            return
        self._closed = True
        transaction, failed = (self._transaction, None)
        if transaction is not None and transaction.unknown:
            with contextlib.suppress(KafkadurError):
                self._look_up(transaction)
        for each in self._subscriptions:
            try:
                each.close()
            except KafkadurError as error:
                failed = failed or error
        if transaction is not None:
            self._end(transaction)
        if failed is not None:
            raise failed

    def _end(self, transaction: Transaction) -> None:
        try:
            outcome(transaction.close())
        except KafkadurError as error:
            _log.warning("%s What the session committed is looked up by whoever comes next.", error)
        else:
            if not transaction.unknown:
                self._ended(self)

    def open(self) -> None:
        """Connect a transacted session. Raises `StateLost` and `KafkaRefused`. Twice is fine."""
        if self._transaction is not None and (not self._transaction.is_started):
            outcome(self._transaction.start())

    def __enter__(self) -> Self:
        """Connect a transacted session; raises as `open`."""
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an error on the way out does not hide the one that led here."""
        try:
            self.close()
        except KafkadurError:
            if error is None:
                raise
