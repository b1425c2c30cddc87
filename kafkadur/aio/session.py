"""A session: deliveries of several subscriptions that are acknowledged or recovered together (rules K1, K3).

A transacted one commits them together with what it sends, in one transaction of Kafka; that side of it is
`kafkadur/runtime/transactions.py`. `kafkadur/sync/session.py` is generated from this file.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from kafkadur.aio.waiting import drained, kept, outcome
from kafkadur.consumer.chunk import Chunk
from kafkadur.producer.transacted import TransactedProducer
from kafkadur.runtime.transactions import Transaction, rolled_back
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.errors import IllegalState, KafkadurError, LeaseLost, TransactionRolledBack

if TYPE_CHECKING:
    from kafkadur.aio.subscription import Subscription

_log = logging.getLogger("kafkadur.session")

#: What of one subscription a transaction settles.
_Taken = tuple["Subscription[Any, Any]", list[tuple[Chunk, list[int]]]]


class Session:
    """Groups the subscriptions opened with it; a context manager, made by `Connection.session`."""

    def __init__(
        self, transaction: Transaction | None = None, ended: Callable[..., None] = lambda *_, **__: None
    ) -> None:
        """No subscription belongs to it yet.

        `transaction`: that of a transacted session. `ended(session, in_order=)` is told when it has ended.
        """
        self._subscriptions: list[Subscription[Any, Any]] = []
        self._transaction = transaction
        self._ended = ended
        #: what the last commit settles
        self._taken: list[_Taken] = []
        #: what was begun and has not ended, as far as is known, and what of it runs in the thread
        self._doing: Literal["commit", "rollback"] | None = None
        self._job: Future[None] | None = None
        self._closed = False

    def join(self, subscription: Subscription[Any, Any]) -> None:
        """A subscription was opened with this session."""
        self._subscriptions.append(subscription)

    def transaction_for(self, request: Request) -> Transaction | None:
        """Part of subscribing: what is to settle a new subscription; None: the session is not transacted.

        Raises `IllegalState` if the session has ended or is not open, or cannot settle such a subscription.
        """
        self._check_open()
        if self._transaction is not None:
            self._transaction.require_open()
            _check_transacted(request)
        return self._transaction

    @property
    def transaction(self) -> Transaction | None:
        """Its transactions in Kafka; None: it is not transacted."""
        return self._transaction

    # -- acknowledged together

    async def acknowledge(self) -> None:
        """Acknowledge everything delivered by the session so far, and wait until that is confirmed (rule K1).

        Raises `LeaseLost` if a lease is gone: its messages are delivered again, all others are acknowledged.
        Raises `IllegalState` in a transacted session: that commits.
        """
        self._not_transacted("acknowledge", "commit()")
        await self._settle(acknowledge=True)

    async def recover(self) -> None:
        """Roll back everything delivered and not settled: it comes again, counted as an attempt (rule K3).

        Raises `IllegalState` in a transacted session: that rolls back.
        """
        self._not_transacted("recover", "rollback()")
        await self._settle(acknowledge=False)

    async def _settle(self, *, acknowledge: bool) -> None:
        """Give everything its verdict, then wait: who cancels the wait leaves nothing half done."""
        decided = [(each, each.decide_received(acknowledge=acknowledge)) for each in self._subscriptions]
        first: KafkadurError | None = None
        for subscription, chunks in decided:
            try:
                await subscription.confirm_received(chunks, acknowledge=acknowledge)
            except LeaseLost as error:  # what is rolled back comes again anyway
                first = first or (error if acknowledge else None)
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

    # -- in transactions

    def producer(self) -> TransactedProducer:
        """The producer of a transacted session: what it sends is seen when the session is committed.

        Raises `IllegalState` in a session that is not transacted.
        """
        return self._transacted().producer

    def _transacted(self) -> Transaction:
        self._check_open()
        if self._transaction is None:
            raise IllegalState(
                "This session has no transactions.",
                state="it is not transacted",
                owner="the session",
                remedy="use connection.session(transacted=True)",
            )
        return self._transaction

    async def commit(self) -> None:
        """Commit what was received and what was sent, together: both hold, or neither does.

        Everything delivered by the session so far is settled, in the same transaction of Kafka that its
        messages are sent in, and never delivered again, whatever ends this process when. Raises
        `TransactionRolledBack` if neither holds: the messages come again, counted as an attempt. Raises
        `StateLost` or `KafkaRefused` while Kafka cannot be asked: call it again, or close the session; until
        it is known what a commit came to, nothing of the subscriptions goes to others. What was begun by a
        call that was cancelled is finished by the next one. Not to be called twice at once.
        """
        transaction = self._transacted()
        if self._doing == "rollback":
            await self._finish(transaction)
            raise rolled_back("it was being rolled back before")
        await self._finish(transaction)
        await drained(transaction.producer)
        self._note_outcome(outcome_unknown=True)  # a subscription that is closed now gives nothing back
        self._taken = [(each, each.take_handed()) for each in self._subscriptions]
        if self._take_lost():
            self._begin("rollback", transaction.roll_back(anew=True))
            await self._finish(transaction)
            raise rolled_back("messages went to others before: a lease ended, or a subscription was closed")
        parts = [part for each, records in self._taken for part in each.parts_of(records)]
        self._begin("commit", transaction.commit(parts))
        await self._finish(transaction)

    async def rollback(self) -> None:
        """Roll back what was received and what was sent.

        The messages come again, counted as an attempt; what was sent is never seen by who reads what is
        committed. A commit that was begun is finished first, and stays if it was done. Raises `StateLost` or
        `KafkaRefused` when Kafka cannot be asked: call it again, or close the session.
        """
        transaction = self._transacted()
        with contextlib.suppress(TransactionRolledBack):
            await self._finish(transaction)
        await drained(transaction.producer)
        self._begin("rollback", transaction.roll_back(anew=self._take_lost() > 0))
        await self._finish(transaction)

    def _begin(self, what: Literal["commit", "rollback"], job: Future[None]) -> None:
        self._doing, self._job = what, job

    async def _finish(self, transaction: Transaction) -> None:
        """See the end of what was begun, if anything was, by this call or by one that was cancelled."""
        if self._doing == "commit":
            await self._finish_commit(transaction)
        elif self._doing == "rollback":
            await self._finish_rollback(transaction)

    async def _finish_commit(self, transaction: Transaction) -> None:
        """Have Kafka commit, or say what it did; then tell Redis."""
        job = self._job = self._job or transaction.look_up()
        try:
            await kept(job)
        except TransactionRolledBack:
            self._end_doing()
            self._take_lost()
            await self._settle(acknowledge=False)
            raise
        except KafkadurError:
            self._job = None
            if not transaction.unknown:  # nothing was begun
                self._end_doing()
            raise
        taken = self._taken
        for each, records in taken:
            each.acknowledge_taken(records)
        self._end_doing()
        for each, records in taken:
            try:
                await each.confirm_taken(records)
            except KafkadurError as error:
                _log.info("%s; it is committed, and is not delivered again", error)

    def _end_doing(self) -> None:
        self._doing, self._job, self._taken = None, None, []
        self._note_outcome(outcome_unknown=False)

    async def _finish_rollback(self, transaction: Transaction) -> None:
        job = self._job = self._job or transaction.roll_back(anew=True)
        try:
            await kept(job)
        except KafkadurError:
            self._job = None
            raise
        self._end_doing()
        await self._settle(acknowledge=False)

    def _take_lost(self) -> int:
        return sum(each.take_lost() for each in self._subscriptions)

    def _note_outcome(self, *, outcome_unknown: bool) -> None:
        for each in self._subscriptions:
            each.note_outcome(outcome_unknown=outcome_unknown)

    # -- the end

    async def close(self) -> None:
        """Close its subscriptions; a transacted session is rolled back (rule K6). Twice is fine.

        Raises what closing a subscription raises.
        """
        if self._closed:
            return
        self._closed = True
        transaction, failed = self._transaction, None
        if transaction is not None and self._doing == "commit":
            with contextlib.suppress(KafkadurError):
                await self._finish(transaction)
        for each in self._subscriptions:
            try:
                await each.close()
            except KafkadurError as error:
                failed = failed or error
        if transaction is not None:
            await self._end(transaction)
        if failed is not None:
            raise failed

    async def _end(self, transaction: Transaction) -> None:
        try:
            await kept(transaction.close())
        except KafkadurError as error:
            _log.warning("%s What the session committed is looked up by whoever comes next.", error)
        finally:
            self._ended(self, in_order=transaction.closed_in_order)

    async def open(self) -> None:
        """Connect a transacted session. Twice is fine.

        Raises `StateLost` and `KafkaRefused`, and `IllegalState` after it was closed: then it is of no use.
        """
        transaction = self._transaction
        if transaction is None or (transaction.is_started and not self._closed):
            return
        self._check_open()
        try:
            await outcome(transaction.start())
        except BaseException:
            await self.close()
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalState(
                "This session has ended.",
                state="it is closed",
                owner="the session",
                remedy="use another one: connection.session(transacted=True)",
            )

    async def __aenter__(self) -> Self:
        """Connect a transacted session; raises as `open`."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an error on the way out does not hide the one that led here."""
        try:
            await self.close()
        except KafkadurError:
            if error is None:
                raise


def _check_transacted(request: Request) -> None:
    """What a subscription of a transacted session has to be; raises `IllegalState`."""
    if not request.key.durable:
        raise IllegalState(
            "A non-durable subscription is in no journal, so nothing of it can be in a transaction.",
            state="its session is transacted",
            owner=f"subscription {request.key}",
            remedy="give durable=, or use a session that is not transacted",
        )
    if request.definition.redelivery.max_hold is not None:
        raise IllegalState(
            "A message of a transacted session cannot be taken back while it is held.",
            state="the redelivery policy has a max_hold",
            owner=f"subscription {request.key}",
            remedy="leave max_hold out: Kafka's transaction.timeout.ms bounds a transaction",
        )
