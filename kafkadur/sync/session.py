# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.
"""A session: deliveries of several subscriptions that are acknowledged or recovered together (rules K1, K3).

A transacted session commits them together with the messages that it sends, in one transaction of Kafka, by
`kafkadur/runtime/transactions.py`. `kafkadur/sync/session.py` is generated from this file.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, Self

from kafkadur.consumer.chunk import Chunk
from kafkadur.consumer.delivery import Delivery, record_of
from kafkadur.producer.transacted import TransactedProducer
from kafkadur.runtime.closing import FirstError
from kafkadur.runtime.forked import forked
from kafkadur.runtime.transactions import Transaction, rolled_back
from kafkadur.sync.waiting import ClosingContext, drained, kept, outcome
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.errors import IllegalState, KafkadurError, LeaseLost, TransactionRolledBack
from kafkadur_sharing.redelivery_policy import Redelivery

if TYPE_CHECKING:
    from kafkadur.sync.subscription import Subscription
_log = logging.getLogger("kafkadur.session")
_Taken = tuple["Subscription[Any, Any]", list[tuple[Chunk, list[int]]]]


class Session(ClosingContext):
    """Groups the subscriptions opened with it; a context manager, made by `Connection.session`."""

    def __init__(
        self,
        transaction: Transaction | None = None,
        ended: Callable[[Session], None] = lambda _: None,
        place: object = None,
    ) -> None:
        """Begin without subscriptions.

        `transaction`: that of a transacted session. `ended` is called when a transacted session has ended.
        `place`: what is open of its connection, which others may share.
        """
        self._place = place
        self._subscriptions: list[Subscription[Any, Any]] = []
        self._transaction = transaction
        self._ended = ended
        self._taken: list[_Taken] = []
        self._doing: Literal["commit", "rollback"] | None = None
        self._job: Future[None] | None = None
        self._chosen: Sequence[Delivery[Any, Any]] | None = None
        self._closed = False
        self._pid = os.getpid()

    def join(self, subscription: Subscription[Any, Any]) -> None:
        """Part of subscribing: add a subscription. A selective session forgets those that were closed."""
        if self._transaction is not None and self._transaction.selective and (not self._taken):
            self._subscriptions = [each for each in self._subscriptions if not each.is_closed]
        self._subscriptions.append(subscription)

    def transaction_for(self, request: Request, place: object) -> Transaction | None:
        """Part of subscribing: return the transaction that settles a new subscription, if there is one.

        Raises `IllegalState` if the session has ended or is not open, or cannot settle such a subscription,
        which is one of a connection whose open parts are `place`.
        """
        self._check_open()
        if self._transaction is not None:
            if place is not self._place:
                raise IllegalState(
                    "A transacted session settles what is subscribed to on its own connection.",
                    state="it is another connection's",
                    owner="the session",
                    remedy="use a session of this connection",
                )
            _ = self._transaction.producer
            _check_transacted(request)
        return self._transaction

    @property
    def transaction(self) -> Transaction | None:
        """Part of subscribing: the transactions in Kafka; None if the session is not transacted."""
        return self._transaction

    def acknowledge(self) -> None:
        """Acknowledge everything delivered by the session so far, and wait until that is confirmed (rule K1).

        Raises `LeaseLost` if a lease was lost: its messages are delivered again, all others are acknowledged.
        Raises `IllegalState` in a transacted session, which commits instead.
        """
        self._not_transacted("acknowledge", "commit()")
        self._settle(acknowledge=True)

    def recover(self) -> None:
        """Roll back everything in flight: it is delivered again, counted as an attempt (rule K3).

        Raises `IllegalState` in a transacted session, which rolls back instead.
        """
        self._not_transacted("recover", "rollback()")
        self._settle(acknowledge=False)

    def _settle(self, *, acknowledge: bool) -> None:
        """Give all verdicts, then wait for them, so that cancelling the wait leaves nothing half done."""
        self._check_process()
        decided = [(each, each.decide_received(acknowledge=acknowledge)) for each in self._subscriptions]
        first = FirstError()
        for subscription, chunks in decided:
            with first:
                try:
                    subscription.confirm_received(chunks, acknowledge=acknowledge)
                except LeaseLost:
                    if acknowledge:
                        raise
        first.reraise()

    def _not_transacted(self, what: str, instead: str) -> None:
        if self._transaction is not None:
            raise IllegalState(
                f"A transacted session cannot {what}.",
                state="it is transacted",
                owner="the session",
                remedy=f"use {instead}",
            )

    def producer(self) -> TransactedProducer:
        """Return the producer of a transacted session, whose messages become visible at the commit.

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

    def commit(self, deliveries: Sequence[Delivery[Any, Any]] | None = None) -> None:
        """Commit the received and the sent messages together: all of them, or none.

        A selective session commits `deliveries`, in the place of everything delivered so far. The others stay
        in flight. To finish a commit that raised, pass the same object again.

        Everything delivered by the session so far is settled in the Kafka transaction in which its messages
        are sent, and is never delivered again, even if this process is killed at any moment. Raises
        `TransactionRolledBack` if nothing was committed: the messages are delivered again, counted as an
        attempt. Raises `KafkaUnavailable` or `KafkaRefused` while Kafka does not answer: call this again, or
        close the session; while the outcome of a commit is unknown, other members get no messages of the
        subscriptions. If a call is cancelled, the next call finishes its commit or rollback. Only one call
        may run at a time.
        """
        transaction = self._transacted()
        _check_chosen(transaction, deliveries)
        if self._doing == "rollback":
            self._finish(transaction)
            raise rolled_back("a rollback had begun before")
        again = self._doing == "commit" and deliveries is not None and (deliveries is self._chosen)
        self._finish(transaction)
        if again:
            return
        drained(transaction.producer)
        self._note_outcome(outcome_unknown=True)
        self._chosen = deliveries
        self._taken, missing = self._take(deliveries)
        with self._traced("commit", transaction):
            if missing:
                self._doing, self._job = ("rollback", transaction.roll_back(anew=True))
                self._finish(transaction)
                raise rolled_back(
                    "messages went to others before: a lease ended, or a subscription was closed"
                )
            parts = [part for each, records in self._taken for part in each.parts_of(records)]
            self._doing, self._job = ("commit", transaction.commit(parts))
            self._finish(transaction)

    def _take(self, deliveries: Sequence[Delivery[Any, Any]] | None) -> tuple[list[_Taken], int]:
        """Return the records to be committed, and how many of them are not in flight any more."""
        if deliveries is None:
            return ([(each, each.take_handed()) for each in self._subscriptions], self._take_lost())
        taken = [(each, each.take_chosen(deliveries)) for each in self._subscriptions]
        found = sum((len(indices) for _, records in taken for _, indices in records))
        return (taken, len({(id(chunk), index) for chunk, index in map(record_of, deliveries)}) - found)

    def rollback(self) -> None:
        """Roll back the received and the sent messages; a selective session rolls back the sent ones only.

        Received messages are delivered again, counted as an attempt; readers of committed messages never see
        the sent ones. A commit that has begun is finished first; if it succeeds, it stays. Raises
        `KafkaUnavailable` or `KafkaRefused` when Kafka does not answer: call this again, or close the
        session.
        """
        transaction = self._transacted()
        with contextlib.suppress(TransactionRolledBack):
            self._finish(transaction)
        drained(transaction.producer)
        self._doing, self._job = ("rollback", transaction.roll_back(anew=self._take_lost() > 0))
        with self._traced("rollback", transaction):
            self._finish(transaction)

    def _traced(self, name: str, transaction: Transaction) -> contextlib.AbstractContextManager[None]:
        """Surround a commit or rollback with a span, if there are spans."""
        if transaction.tracing is None:
            return contextlib.nullcontext()
        messages = [
            chunk.messages[index]
            for _, records in self._taken
            for chunk, indices in records
            for index in indices
        ]
        return transaction.tracing.committing(name, messages if name == "commit" else None)

    def _finish(self, transaction: Transaction) -> None:
        """Wait for the end of a commit or rollback, which a cancelled call may have begun."""
        if self._doing == "commit":
            self._finish_commit(transaction)
        elif self._doing == "rollback":
            self._finish_rollback(transaction)

    def _finish_commit(self, transaction: Transaction) -> None:
        """Wait until Kafka has committed, or look up whether it has; then settle the messages in Redis."""
        job = self._job = self._job or transaction.look_up()
        try:
            kept(job)
        except TransactionRolledBack:
            taken = self._taken
            self._end_doing()
            self._give_back(transaction, taken)
            raise
        except KafkadurError:
            self._job = None
            if not transaction.unknown:
                self._end_doing()
            raise
        taken = self._taken
        for each, records in taken:
            each.acknowledge_taken(records)
        self._end_doing()
        for each, records in taken:
            try:
                each.confirm_taken(records)
            except KafkadurError as error:
                _log.info("%s; it is committed, and is not delivered again", error)

    def _end_doing(self) -> None:
        self._doing, self._job, self._taken, self._chosen = (None, None, [], None)
        self._note_outcome(outcome_unknown=False)

    def _finish_rollback(self, transaction: Transaction) -> None:
        job = self._job = self._job or transaction.roll_back(anew=True)
        try:
            kept(job)
        except KafkadurError:
            self._job = None
            raise
        taken = self._taken
        self._end_doing()
        self._give_back(transaction, taken)

    def _give_back(self, transaction: Transaction, taken: list[_Taken]) -> None:
        """Roll back what was received; in a selective session the records that were to be committed."""
        if not transaction.selective:
            self._take_lost()
            self._settle(acknowledge=False)
            return
        for each, records in taken:
            with contextlib.suppress(LeaseLost):
                each.confirm_received(each.roll_back_taken(records), acknowledge=False)

    def _take_lost(self) -> int:
        return sum((each.take_lost() for each in self._subscriptions))

    def _note_outcome(self, *, outcome_unknown: bool) -> None:
        for each in self._subscriptions:
            each.note_outcome(outcome_unknown=outcome_unknown)

    def close(self) -> None:
        """Close its subscriptions, and roll back a transacted session (rule K6). Closing again does nothing.

        Raises the first error of closing a subscription, when all are closed.
        """
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        transaction, first = (self._transaction, FirstError())
        if transaction is not None and self._doing == "commit":
            with contextlib.suppress(KafkadurError):
                self._finish(transaction)
        for each in self._subscriptions:
            with first:
                each.close()
        if transaction is not None:
            self._end(transaction)
        first.reraise()

    def _end(self, transaction: Transaction) -> None:
        try:
            kept(transaction.close())
        except KafkadurError as error:
            _log.warning("%s The next member looks up what the session committed.", error)
        finally:
            self._ended(self)

    def open(self) -> None:
        """Connect a transacted session; opening again does nothing.

        Raises `KafkaUnavailable` and `KafkaRefused`, and `IllegalState` after it was closed.
        """
        transaction = self._transaction
        if transaction is None or (transaction.is_started and (not self._closed)):
            return
        self._check_open()
        try:
            outcome(transaction.start())
        except BaseException:
            self.close()
            raise

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise forked("the session")

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise IllegalState(
                "This session has ended.",
                state="it is closed",
                owner="the session",
                remedy="use another one: connection.session(transacted=True)",
            )

    def __enter__(self) -> Self:
        """Connect a transacted session; raises as `open`."""
        self.open()
        return self


def _check_chosen(transaction: Transaction, deliveries: object) -> None:
    """Raise `IllegalState` unless exactly a selective session is told which deliveries to commit."""
    if transaction.selective != (deliveries is not None):
        raise IllegalState(
            "A selective session commits deliveries that it is given, and no other session does.",
            state="it is selective" if transaction.selective else "it is not selective",
            owner="the session",
            remedy="commit(deliveries) with connection.session(transacted=True, selective=True), or commit()",
        )


def _check_transacted(request: Request) -> None:
    """Raise `IllegalState` for a subscription that a transacted session cannot settle."""
    if not request.key.durable:
        raise IllegalState(
            "A non-durable subscription is in no journal, so nothing of it can be in a transaction.",
            state="its session is transacted",
            owner=f"subscription {request.key}",
            remedy="give durable=, or use a session that is not transacted",
        )
    check_max_hold(f"subscription {request.key}", request.definition.redelivery)


def check_max_hold(owner: str, redelivery: Redelivery | None) -> None:
    """Part of declaring handlers: raise `IllegalState` for a policy that takes held messages back.

    `owner` is named in the error.
    """
    if redelivery is not None and redelivery.max_hold is not None:
        raise IllegalState(
            "A message of a transacted session cannot be taken back while it is held.",
            state="the redelivery policy has a max_hold",
            owner=owner,
            remedy="leave max_hold out: Kafka's transaction.timeout.ms bounds a transaction",
        )
