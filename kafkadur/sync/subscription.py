# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.
"""A subscription as an application holds it: receive, iterate, run a handler, settle.

The application's thread does no I/O here: records come in chunks from `kafkadur/consumer/dispatcher.py`,
verdicts go back as bytes, and the coordinator thread makes the exchanges. `kafkadur/sync/subscription.py` is
generated from this file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from itertools import chain, repeat
from types import TracebackType
from typing import Any, Generic, Protocol, Self

from kafkadur.consumer.chunk import LOST, Chunk, one_by_one
from kafkadur.consumer.delivery import Batch, K_co, V_co, in_transaction
from kafkadur.durations import seconds
from kafkadur.events import Event
from kafkadur.handlers.limits import BreakerState, CircuitBreaker, RateLimit
from kafkadur.handlers.log import log_breaker, log_lost
from kafkadur.runtime.coordinator_thread import Served
from kafkadur.runtime.transactions import Part
from kafkadur.sync.delivery import Delivery, class_for, confirm
from kafkadur.sync.running import OnUndecodable, Run
from kafkadur.sync.waiting import Breath, Signal, kept
from kafkadur_coordinators.lifecycle import Subscription as Attachment
from kafkadur_sharing.errors import ConnectionClosed, ForkedConnection, LeaseLost, LevelNotReached


class Opener(Protocol):
    """The connection that a subscription was opened on."""

    def leave(self, served: Served) -> Future[int]:
        """Detach and stop reading; gives the number of unconfirmed acknowledgements."""
        ...


_LONGEST_BLOCK = 500
_BREAKER_EVENTS = {
    BreakerState.OPEN: Event.BREAKER_OPENED,
    BreakerState.HALF_OPEN: Event.BREAKER_HALF_OPENED,
    BreakerState.CLOSED: Event.BREAKER_CLOSED,
}


class Subscription(Generic[V_co, K_co]):
    """An open consumer of a durable subscription: a context manager, an iterator of deliveries.

    Leaving the context gives back what is not settled, uncounted, and raises `LeaseLost` if
    acknowledgements made without waiting turned out to be refused. One subscription is used by one loop
    (tasks may share it).
    """

    def __init__(self, connection: Opener, served: Served, signal: Signal, bell: Signal) -> None:
        """Made by `Connection.subscribe`."""
        self._connection = connection
        self._served = served
        self._member = served.member
        self._signal = signal
        self._bell = bell
        self._make: type[Delivery[V_co, K_co]] = class_for(served.member)
        self._left = 0
        self._block: Iterator[Delivery[V_co, K_co]] = iter(())
        self._unreceived = served.member.unreceived
        self._block_size = max(min(served.member.window // 4, _LONGEST_BLOCK), 1)
        member = served.member
        self._one_by_one = member.one_by_one
        self._rested = False
        self._stopping = False
        self._closed = False
        self._pid = os.getpid()

    @property
    def definition(self) -> Attachment:
        """The subscription attached to: key, id, version, definition, topic."""
        return self._served.membership.subscription

    @property
    def member_id(self) -> str:
        """Id of this member."""
        return self._served.session.member

    def statistics(self) -> dict[str, int]:
        """Numbers of this member at this moment, by name.

        `leases` held; `in_hands` and `buffered` (read ahead), records; `exchanges` made; `live`: 1 after it
        has caught up and until it falls behind; `lag`: records that wait for this member, read or not.
        How it reads: `followed` partitions; `ranges_read` by themselves so far; `records_read` so far, and
        `records_used`: those of them that were this member's. `parked`: messages behind stuck keys of which
        only the offsets are kept; `promised`: offsets that are not written yet, and this member's alone.
        """
        return self._member.statistics()

    def receive(self, timeout: timedelta | float | None = None) -> Delivery[V_co, K_co] | None:
        """The next message; None when `timeout` (seconds or a timedelta) passes, or after `stop`.

        Raises `ConnectionClosed`, and what made the subscription unusable.
        """
        tracing, begun = (self._member.tracing, time.time_ns())
        delivery = self.receive_next(timeout)
        if tracing is not None and delivery is not None:
            tracing.received(delivery.topic, self._member.display, (delivery.message,), begun)
        return delivery

    def receive_next(self, timeout: timedelta | float | None = None) -> Delivery[V_co, K_co] | None:
        """Part of running handlers: as `receive`, without a span."""
        left = None if timeout is None else seconds(timeout)
        deadline = None if left is None else self._member.now() + left
        while True:
            delivery = None if self._stopping else next(self._block, None)
            if delivery is not None:
                if delivery.lost or self._put_back(delivery):
                    continue
                return delivery
            block = self._next_deliveries(left)
            if block is None:
                return None
            self._block = block
            left = None if deadline is None else max(deadline - self._member.now(), 0.0)

    def receive_batch(
        self, most: int = 1000, timeout: timedelta | float | None = None
    ) -> Batch[V_co, K_co] | None:
        """The next messages, 1 to `most`, as soon as there are any; None as in `receive`.

        The batch makes Delivery objects only when they are touched.
        """
        tracing, begun = (self._member.tracing, time.time_ns())
        batch = self._receive_batch(most, timeout)
        if tracing is not None and batch is not None:
            messages = batch.messages()
            tracing.received(messages[0].topic() or "", self._member.display, messages, begun)
        return batch

    def _receive_batch(self, most: int, timeout: timedelta | float | None) -> Batch[V_co, K_co] | None:
        left = None if timeout is None else seconds(timeout)
        deadline = None if left is None else self._member.now() + left
        while True:
            for held in self._block:
                if not (held.lost or self._put_back(held)):
                    return Batch(held._chunk, held._index, held._index + 1)
            block = self._next_block(max(most, 1), left, one=self._one_by_one)
            if block is None or not self._one_by_one:
                return None if block is None else Batch(*block)
            chunk, start, _ = block
            taken = sum((1 for _ in one_by_one(self._make, *block)))
            if taken:
                return Batch(chunk, start, start + taken)
            left = None if deadline is None else max(deadline - self._member.now(), 0.0)

    def __iter__(self) -> Iterator[Delivery[V_co, K_co]]:
        """Deliveries until `stop` or `close`."""
        breath = Breath()
        while True:
            losses = self._member.losses
            for delivery in self._block:
                if self._member.losses != losses and (delivery.lost or self._put_back(delivery)):
                    continue
                yield delivery
                if self._stopping:
                    return
            block = self._next_deliveries(None)
            if block is None:
                return
            self._block = block
            if not self._rested:
                breath.take()

    def _put_back(self, delivery: Delivery[V_co, K_co]) -> bool:
        """Give back what was taken in advance if the subscription is paused; returns whether it is."""
        if not self._member.gate.paused:
            return False
        for item in (delivery, *self._block):
            if not item.lost:
                item.put_back()
        return True

    def receive_one(self) -> Delivery[V_co, K_co] | None:
        """Part of running handlers: as `receive`, and nothing else is taken for the application."""
        size, self._block_size = (self._block_size, 1)
        try:
            return self.receive_next()
        finally:
            self._block_size = size

    def give_back_block(self) -> None:
        """Part of running handlers: give back, uncounted, what was taken ahead and not received."""
        for chunk, index in self._unreceived.records():
            chunk.release(index)
        self._unreceived.clear()
        self._block = iter(())
        self._member.request_exchange()

    def _next_deliveries(self, timeout: timedelta | float | None) -> Iterator[Delivery[V_co, K_co]] | None:
        block = self._next_block(self._block_size, timeout, one=True)
        if block is None:
            return None
        if self._one_by_one:
            return one_by_one(self._make, *block)
        chunk, start, end = block
        indices = iter(range(start, end))
        made = map(self._make, repeat(chunk), indices, chunk.messages[start:end])
        return chain(self._block, made) if self._unreceived.add(chunk, end, indices) else made

    def _next_block(
        self, most: int, timeout: timedelta | float | None, *, one: bool = False
    ) -> tuple[Chunk, int, int] | None:
        if self._pid != os.getpid():
            raise ForkedConnection(remedy="connect anew in the child process")
        member = self._member
        left = None if timeout is None else seconds(timeout)
        deadline = None if left is None else member.now() + left
        self._rested = False
        while True:
            self._signal.clear()
            block = member.next_run(most) if one and self._one_by_one else member.next_block(most)
            if block is not None:
                return block
            if member.failed is not None:
                raise member.failed
            if self._closed:
                raise ConnectionClosed(owner=f"subscription {member.display}", remedy="subscribe again")
            if self._stopping:
                return None
            if deadline is not None:
                left = deadline - member.now()
                if left <= 0:
                    return None
            self._rested = True
            if not member.exchange_inline():
                self._signal.wait(left)

    def run(
        self,
        handler: Callable[[Delivery[V_co, K_co]], Any],
        *,
        concurrency: int = 1,
        retry_delay: timedelta | float | None = None,
        confirm: bool = True,
        ordered_by_key: bool = False,
        rate_limit: RateLimit | None = None,
        breaker: CircuitBreaker | None = None,
        on_undecodable: OnUndecodable = "rollback",
    ) -> None:
        """Call `handler` with every delivery, at most `concurrency` at once, until `stop`.

        Returning acknowledges (waiting for the confirmation unless `confirm` is False), raising `Reject`
        writes a dead letter, raising anything else rolls back: to come again after `retry_delay` (seconds or
        a timedelta), by default after the redelivery policy's back-off, or a second if it has none. A handler
        may settle by itself. Ends when all handlers have ended.

        With `ordered_by_key` the handlers of one key (of a partition) run one after the other, in the order
        of offsets; messages without a key have no order. On a type with an order, what is received of a key
        while an earlier message of it waits to come again is released, uncounted, and comes after it; where
        the lane can pass to another consumer (priority, serial) that holds until it does. On a shared
        subscription other consumers have messages of the same key: there handlers of one key do not overlap
        in this consumer, no more. A key-ordered subscription keeps keys in order by itself, over all
        consumers.

        `rate_limit` bounds how often the handler is called; `breaker` stops calling it for a while when it
        keeps failing: what was not begun is released, uncounted, and the log and `on_event` of `subscribe`
        tell.

        A handler that touches a value that cannot be deserialized raises `Undecodable`, an exception like
        any other; with `on_undecodable="reject"` such a message becomes a dead letter (cause `undecodable`)
        at once, unless something else is at fault (`Undecodable.transient`), such as a schema registry that
        does not answer. Raises `IllegalState` for a parameter out of its range.
        """
        if self._member.transacted:
            raise in_transaction()
        backoff = bool(self.definition.definition.redelivery.backoff)
        Run(
            self,
            handler,
            member=self._member,
            bell=self._bell,
            concurrency=concurrency,
            delay=(None if backoff else 1.0) if retry_delay is None else seconds(retry_delay),
            confirm=confirm,
            ordered_by_key=ordered_by_key,
            rate_limit=rate_limit,
            breaker=breaker,
            on_undecodable=on_undecodable,
            on_breaker=self._breaker_changed,
        ).go()

    def _breaker_changed(self, state: BreakerState) -> None:
        log_breaker(self._member.display, state)
        self._member.teller.note(_BREAKER_EVENTS[state])
        self._member.teller.tell()

    def take_handed(self) -> list[tuple[Chunk, list[int]]]:
        """Return what the application has received and not settled: records of chunks, by index."""
        return self._member.verdicts.handed(self._unreceived.records())

    def take_lost(self) -> int:
        """Records that went while they were in the application's hands, since this was asked last.

        Their lease was lost, or the subscription closed.
        """
        lost, self._left = (self._member.verdicts.take_lost() + self._left, 0)
        return lost

    def parts_of(self, records: list[tuple[Chunk, list[int]]]) -> list[Part]:
        """What a transaction settles, by partition or lane of keys."""
        lanes: dict[tuple[int, int], list[int]] = {}
        for chunk, indices in records:
            place = (chunk.lease.partition, chunk.lease.incarnation)
            lanes.setdefault(place, []).extend((chunk.offset(index) for index in indices))
        return [
            Part(self.definition, lane, incarnation, tuple(some))
            for (lane, incarnation), some in lanes.items()
        ]

    def acknowledge_taken(self, records: list[tuple[Chunk, list[int]]]) -> None:
        """Acknowledge what was committed; what went meanwhile is settled all the same."""
        self._left -= self._member.verdicts.acknowledge(records)

    def confirm_taken(self, records: list[tuple[Chunk, list[int]]]) -> None:
        """Wait until Redis knows what was committed. Raises `LeaseLost`."""
        for chunk, indices in records:
            confirm(chunk, len(indices))

    def note_outcome(self, *, outcome_unknown: bool) -> None:
        """Whether it is not known what a commit came to: until it is nothing goes to others."""
        self._member.gate.outcome_unknown = outcome_unknown

    def decide_received(self, *, acknowledge: bool) -> list[Chunk]:
        """Acknowledge or roll back everything received and unsettled (rules K1, K3).

        `confirm_received` waits for it.
        """
        return self._member.verdicts.settle_handed(acknowledge=acknowledge, but=self._unreceived.records())

    def confirm_received(self, chunks: list[Chunk], *, acknowledge: bool) -> None:
        """Wait for what was decided.

        Raises `LeaseLost` if something could not be acknowledged because its lease is gone.
        """
        level = self._member.definition.ack_level
        but = self._unreceived.records()
        try:
            for chunk in chunks:
                confirm(chunk, chunk.acks(), level if acknowledge else "redis")
        finally:
            lost = self._member.verdicts.take_lost() - sum(
                (chunk.verdicts[index] == LOST for chunk, index in but)
            )
        if lost > 0 and acknowledge:
            raise LeaseLost(
                f"The leases of {lost} deliveries ended before they were acknowledged.",
                owner=f"subscription {self._member.display}",
                remedy="do nothing: they are delivered again",
            )

    def settle(self, delivery: Delivery[Any, Any], *, confirm: bool) -> None:
        """Part of running handlers: acknowledge.

        A lost lease is logged, the message comes again; so is an acknowledgement that is less safe than asked
        for: it is there all the same.
        """
        try:
            if confirm:
                delivery.ack()
            else:
                delivery.ack_nowait()
        except (LeaseLost, LevelNotReached) as error:
            log_lost(error)

    @property
    def is_stopping(self) -> bool:
        """Whether nothing more is handed out: `stop` or `close` was called."""
        return self._stopping

    def stop(self) -> None:
        """Hand out nothing more.

        Iterators and `run` come to their end. Any thread, signal handlers included.
        """
        self._stopping = True
        self._member.begin_close()

    def close(self) -> None:
        """Give back what is not settled (uncounted), confirm what is, and leave. Closing twice is fine.

        Raises `LeaseLost` if acknowledgements made without waiting could not be confirmed.
        """
        if self._closed:
            return
        self._closed = True
        self._member.gate.silent = self._member.gate.outcome_unknown
        self.stop()
        self.give_back_block()
        if self._member.transacted and (not self._member.gate.outcome_unknown):
            self._left += sum((len(indices) for _, indices in self.take_handed()))
        unconfirmed = kept(self._connection.leave(self._served))
        if unconfirmed:
            raise LeaseLost(
                f"{unconfirmed} acknowledgements made without waiting were not confirmed.",
                owner=f"subscription {self._member.display}",
                remedy="do nothing: those messages are delivered again",
            )

    def __enter__(self) -> Self:
        """The subscription is open already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an error on the way out does not hide the one that led here."""
        try:
            self.close()
        except LeaseLost:
            if error is None:
                raise
