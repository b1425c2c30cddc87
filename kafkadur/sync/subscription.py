# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.
"""A subscription of an application: receive, iterate, run a handler, settle.

`kafkadur/consumer/dispatcher.py` dispatches records in chunks, verdicts are bytes in them, and the
coordinator thread makes the exchanges. The event loop does no I/O here. A thread that waits in
`kafkadur.sync` may make an exchange, or read Kafka, itself. `kafkadur/sync/subscription.py` is generated from
this file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from itertools import chain
from typing import Any, Generic

from confluent_kafka import Message

from kafkadur.consumer.chunk import LOST, Chunk, one_by_one
from kafkadur.consumer.delivery import Batch, K_co, V_co, in_transaction, record_of
from kafkadur.consumer.delivery import Delivery as AnyDelivery
from kafkadur.consumer.delivery_path import deal, pure_deal
from kafkadur.durations import seconds
from kafkadur.handlers.failures import FailureDetail
from kafkadur.handlers.limits import CircuitBreaker, RateLimit
from kafkadur.handlers.retries import ATTEMPTS, Exceptions, Retries, RetryDelay
from kafkadur.runtime.forked import forked
from kafkadur.runtime.served import Served
from kafkadur.runtime.transactions import Part
from kafkadur.sync.delivery import Delivery, class_for, confirm, confirm_all, refused_acks
from kafkadur.sync.running import OnUndecodable, Run
from kafkadur.sync.waiting import Breath, ClosingContext, Signal, flattened, in_thread, kept
from kafkadur_coordinators.lifecycle import Subscription as Attachment
from kafkadur_sharing.errors import ConnectionClosed, IllegalState, KafkadurError, LeaseLost
from kafkadur_sharing.numbers import MOST_RECORDS, check_integer

_SHORT_BLOCK, _LONG_BLOCK = (500, 2000)
_LOOK_EVERY = 0.01


class Subscription(ClosingContext, Generic[V_co, K_co]):
    """An open consumer of a subscription: a context manager, an iterator of deliveries.

    Leaving the context gives back all messages that are not settled, uncounted, and raises `LeaseLost` if
    acknowledgements made without waiting could not be confirmed. One subscription belongs to one event loop,
    whose tasks may share it.
    """

    def __init__(
        self, leave: Callable[[Served], Future[int]], served: Served, signal: Signal, bell: Signal
    ) -> None:
        """Made by `Connection.subscribe`.

        `leave` detaches the member and gives the number of unconfirmed acknowledgements. `signal` is set when
        a block can be taken, `bell` when the subscription is stopped or a handler's turn may have come.
        """
        self._leave = leave
        self._served = served
        self._member = member = served.member
        self._signal = signal
        self._bell = bell
        self._make: type[Delivery[V_co, K_co]] = class_for(member)
        self._left = 0
        self._block: Iterator[Delivery[V_co, K_co]] = iter(())
        self._losses = 0
        self._unreceived = member.unreceived
        block = min(max(member.window // 10, _SHORT_BLOCK), _LONG_BLOCK)
        self._block_size = max(min(member.window // 4, block), 1)
        self._one_by_one = member.one_by_one
        self._rested = False
        self._stopping = False
        self._closed = False
        self._pid = os.getpid()

    @property
    def definition(self) -> Attachment:
        """The attached subscription: key, id, version, definition, topic."""
        return self._served.membership.subscription

    @property
    def member_id(self) -> str:
        """The id of this member."""
        return self._served.session.member

    def statistics(self) -> dict[str, int]:
        """Return the current numbers of this member, by name.

        `leases`: leases held. `in_hands`: records in flight. `buffered`: records read ahead. `exchanges`:
        exchanges made. `live`: 1 after the member has caught up and until it falls behind, else 0. `lag`:
        records that wait for this member, read or not. `followed`: partitions that it reads at the live end.
        `ranges_read`: older ranges of offsets that it has read. `records_read`: records that it has read.
        `records_used`: those of them that it had leased. `parked`: messages behind stuck keys, of which
        only the offsets are kept. `promised`: reserved offsets. `dead_letters`: those that it has written.
        `outdated`: messages that expired before they were delivered. `compiled`: 1 if the compiled client
        reads.
        """
        self._check_process()
        return self._member.statistics()

    def receive(self, timeout: timedelta | float | None = None) -> Delivery[V_co, K_co] | None:
        """Return the next message; None when `timeout` (seconds or a timedelta) passes, or after `stop`.

        Raises `ConnectionClosed`, and the error that made the subscription unusable.
        """
        tracing = self._member.tracing
        if tracing is None:
            return self.receive_next(timeout)
        begun = time.time_ns()
        delivery = self.receive_next(timeout)
        if delivery is not None:
            tracing.received(delivery.topic, self._member.display, (delivery.message,), begun)
        return delivery

    def receive_next(self, timeout: timedelta | float | None = None) -> Delivery[V_co, K_co] | None:
        """Part of running handlers: as `receive`, without a span."""
        if self._member.losses == self._losses and (not self._stopping):
            delivery = next(self._block, None)
            if delivery is not None:
                return delivery
        deadline = None if timeout is None else self._member.now() + seconds(timeout)
        while True:
            delivery = None if self._stopping else next(self._block, None)
            if delivery is not None:
                if self._is_stale(delivery):
                    continue
                return delivery
            block = self._next_deliveries(deadline)
            if block is None:
                return None
            self._block = block

    def receive_batch(
        self, most: int = 1000, timeout: timedelta | float | None = None
    ) -> Batch[V_co, K_co] | None:
        """Return the next messages, 1 to `most`, as soon as there are any; None as in `receive`.

        The batch makes Delivery objects only when they are touched. Raises as `receive` does, and
        `IllegalState` for a number out of range.
        """
        most = max(check_integer("most", most, 0, MOST_RECORDS), 1)
        tracing, begun = (self._member.tracing, time.time_ns())
        batch = self._receive_batch(most, timeout)
        if tracing is not None and batch is not None:
            messages = batch.messages()
            tracing.received(messages[0].topic() or "", self._member.display, messages, begun)
        return batch

    def _receive_batch(self, most: int, timeout: timedelta | float | None) -> Batch[V_co, K_co] | None:
        deadline = None if timeout is None else self._member.now() + seconds(timeout)
        while True:
            for held in self._block:
                if not self._is_stale(held):
                    return Batch(held._chunk, held._index, held._index + 1)
            block = self._next_block(most, deadline)
            if block is None or not self._one_by_one:
                return None if block is None else Batch(*block)
            chunk, start, _ = block
            taken = sum((1 for _ in one_by_one(self._make, *block)))
            if taken:
                return Batch(chunk, start, start + taken)

    def receive_available(
        self, most: int = 1000, timeout: timedelta | float | None = None
    ) -> Batch[V_co, K_co] | None:
        """Return the messages that wait now, 1 to `most`; None if it is certain that there are none.

        It is certain when this consumer has asked Kafka where the topic ends, and knows of every message
        before that end that it is settled, in flight, not due yet, or with another consumer. None also when
        `timeout` passes, and after `stop`. Raises as `receive_batch` does, and `KafkaUnavailable`.
        """
        deadline = None if timeout is None else self._member.now() + seconds(timeout)
        batch = self.receive_batch(most, 0)
        if batch is not None:
            return batch
        ends = in_thread(self._served.ends)
        mark = self._member.flow.look_again()
        while batch is None and (not self._stopping):
            batch = self.receive_batch(most, _LOOK_EVERY)
            late = deadline is not None and self._member.now() >= deadline
            if batch is None and (late or self._member.flow.is_empty(mark, ends)):
                return None
        return batch

    def set_window(self, window: int) -> None:
        """Change the most records in flight. With 0 no message is received.

        A smaller window takes nothing from the application. A consumer of a shared subscription gives the
        messages that it has read, and that its window has no room for, back to other consumers. Raises
        `IllegalState` for a number out of range, and if the window was 1 when the consumer attached: it
        dispatches one message after the other.
        """
        window = check_integer("window", window, 0, MOST_RECORDS)
        if self._member.single:
            raise IllegalState(
                "The window of this consumer cannot change.",
                state="it was 1 when it attached",
                owner=f"subscription {self._member.display}",
                remedy="subscribe with a larger window, and set it to 1",
            )
        if self._member.flow.set_window(window):
            self.give_back_block()
        self._signal.set()

    def __iter__(self) -> Iterator[Delivery[V_co, K_co]]:
        """Yield deliveries until `stop` or `close`."""
        return flattened(self._blocks())

    def _blocks(self) -> Iterator[Iterator[Delivery[V_co, K_co]]]:
        """Yield the deliveries block by block; closing the subscription gives the rest of a block back."""
        breath = Breath()
        while True:
            self._check_process()
            yield self._member.sift(self._block, self._losses, self._is_stale)
            if self._stopping:
                return
            block = self._next_deliveries()
            if block is None:
                return
            self._block = block
            if not self._rested:
                breath.take()

    def _is_stale(self, delivery: Delivery[V_co, K_co]) -> bool:
        """Whether a delivery was taken before its lease ended, or before the subscription was paused."""
        return delivery.lost or self._put_back(delivery)

    def _put_back(self, delivery: Delivery[V_co, K_co]) -> bool:
        """Give back the rest of the block if the subscription is paused; returns whether it is."""
        if not self._member.gate.paused:
            return False
        for item in (delivery, *self._block):
            if not item.lost:
                item.put_back()
        return True

    def receive_one(self) -> Delivery[V_co, K_co] | None:
        """Part of running handlers: as `receive_next`, but take only one message from the member."""
        size, self._block_size = (self._block_size, 1)
        try:
            return self.receive_next()
        finally:
            self._block_size = size

    def give_back_block(self) -> None:
        """Part of running handlers: give back, uncounted, the records that were taken and not received."""
        for chunk, index in self._unreceived.records():
            chunk.release(index)
        self._unreceived.clear()
        self._block = iter(())
        self._member.request_exchange()

    def _next_deliveries(self, deadline: float | None = None) -> Iterator[Delivery[V_co, K_co]] | None:
        losses = self._member.losses
        notes, size = (self._member.notes, self._block_size)
        if notes is not None and (not self._one_by_one):
            size = notes.paced(size)
        block = self._next_block(size, deadline)
        if block is None:
            return None
        chunk, _, end = block
        make: Callable[..., Any] = self._make_timely if chunk.times else self._make
        if self._one_by_one:
            self._losses = losses
            deliveries = one_by_one(make, *block)
            return filter(None, deliveries) if chunk.times else deliveries
        made: Iterator[Any]
        if chunk.times:
            made, left = pure_deal(make, *block)
            made = filter(None, made)
        else:
            made, left = deal(self._make, *block)
        if self._unreceived.add(chunk, end, left):
            return chain(self._block, made)
        self._losses = losses
        return made

    def _make_timely(self, chunk: Chunk, index: int, message: Message) -> Delivery[V_co, K_co] | None:
        """Make a delivery; None if its message has expired."""
        return self._make(chunk, index, message) if self._member.is_timely(chunk, index) else None

    def _next_block(self, most: int, deadline: float | None) -> tuple[Chunk, int, int] | None:
        self._check_process()
        member = self._member
        self._rested = False
        while True:
            self._signal.clear()
            block = member.next_run(most) if self._one_by_one else member.next_block(most)
            if block is not None:
                return block
            if member.failed is not None:
                raise member.failed
            if self._closed:
                raise ConnectionClosed(owner=f"subscription {member.display}", remedy="subscribe again")
            if self._stopping:
                return None
            left = None if deadline is None else deadline - member.now()
            if left is not None and left <= 0:
                return None
            self._rested = True
            if not member.exchange_inline() and (not member.waiting.read(left, self._signal.is_set)):
                self._signal.wait(left)

    def run(
        self,
        handler: Callable[..., Any],
        *,
        concurrency: int = 1,
        attempts: int | None = ATTEMPTS,
        retry_delay: RetryDelay | None = None,
        retry_on: Exceptions | None = None,
        reject_on: Exceptions = (),
        confirm: bool = True,
        ordered_by_key: bool = False,
        rate_limit: RateLimit | None = None,
        breaker: CircuitBreaker | None = None,
        on_undecodable: OnUndecodable = "rollback",
        failure_detail: FailureDetail = "message",
    ) -> None:
        """Call `handler` with every delivery, at most `concurrency` calls at the same time, until `stop`.

        A handler with one parameter gets the delivery, of this class. Others say by names and annotations
        what they get: `value`, `key`, `properties` and `delivery`, each converted to its annotation by
        pydantic; a parameter with a pydantic model as annotation is the value; `Annotated[str, Part.KEY]`
        says it for any name. Bytes are read as JSON unless `str` or `bytes` is asked for. What does not fit
        raises `Undecodable`.

        A coroutine function is awaited. Any other function is called in a thread, so it may block; in the
        synchronous surface with a `concurrency` of 1 that is the caller's thread. A thread cannot be
        cancelled: if this call is, a message may be delivered again while its function still works on it.

        A handler that returns acknowledges its message (and waits for the confirmation unless `confirm` is
        False). A handler that raises `Reject` sends it to dead letters. Any other exception rolls it back,
        and it is delivered again. A handler may also settle its message itself. This method returns when all
        handlers have ended.

        - `attempts`: the attempts after which a message whose handler fails becomes a dead letter; None:
          never. Deliveries that ended with the death of a process count, too. If the redelivery policy of the
          subscription has `max_attempts`, that number counts instead. A failure
          while the circuit breaker is not closed, or because a value cannot be deserialized at the moment
          (`Undecodable.transient`), makes no dead letter unless that policy says so.
        - `retry_delay`: the time until the next attempt, in seconds or as a timedelta; or a mapping of
          classes of exceptions to such times, of which the class nearest to the exception counts. By default
          it is the back-off of the redelivery policy; if that has none, 0.5 to 1 s after the first attempt,
          doubled with each further one, at most 5 minutes.
        - `reject_on`: a class of exceptions, or a tuple of them, that send the message to dead letters at
          once.
        - `retry_on`: the exceptions after which a message is delivered again; any other one sends it to dead
          letters at once, unless it says nothing about the message (`LeaseLost`, `ConnectionClosed`, what is
          no `Exception`). `reject_on` goes first.

        A failure is logged in one line, with its traceback if it is the last attempt or the level is DEBUG,
        unless `failure_detail` is "class".

        With `ordered_by_key` the handlers of one key (of a partition) run one after the other, in the order
        of offsets; messages without a key have no order. On a type with an order, messages of a key that are
        received while an earlier message of the key waits for redelivery are released, uncounted, and
        delivered after it; where the lane can pass to another consumer (priority, serial) this holds until
        the lane passes. On a shared subscription other consumers get messages of the same key, so handlers
        of one key do not overlap in this consumer only. A key-ordered subscription keeps keys in order
        anyway, over all consumers.

        `rate_limit` limits how often the handler is called. `breaker` pauses the calls when the handler fails
        repeatedly: messages that no handler has begun are released, uncounted; the log and `on_event` of
        `subscribe` report it.

        A handler that reads a value that cannot be deserialized raises `Undecodable`, an exception like any
        other; with `on_undecodable="reject"` such a message becomes a dead letter (cause `undecodable`) at
        once, unless the error may be temporary (`Undecodable.transient`), such as a schema registry that does
        not answer.

        A dead letter after the last attempt says which exception the handler raised: with
        `failure_detail="message"` its class and the first 300 characters of its message; with "class" no
        message, which may contain parts of the payload; with "stack" also the last five frames.

        Raises `IllegalState` for a parameter out of its range.
        """
        if self._member.judged_by_session:
            raise in_transaction()
        policy = self.definition.definition.redelivery
        retries = Retries(
            policy, attempts=attempts, delay=retry_delay, retry_on=retry_on, reject_on=reject_on
        )
        Run(
            self,
            handler,
            member=self._member,
            bell=self._bell,
            concurrency=concurrency,
            retries=retries,
            confirm=confirm,
            ordered_by_key=ordered_by_key,
            rate_limit=rate_limit,
            breaker=breaker,
            on_undecodable=on_undecodable,
            failure_detail=failure_detail,
        ).go()

    def flush(self) -> None:
        """Have all verdicts that were given so far confirmed now, and wait until they are.

        Verdicts given without waiting (`ack_nowait`, for example) are confirmed soon anyway; after this call
        they are. Dead letters of rejected messages are written first. Raises `LeaseLost` if acknowledgements
        could not be confirmed: those messages are delivered again. Raises `LevelNotReached` as `Delivery.ack`
        does, and `IllegalState` in a transacted session, which commits instead.
        """
        self._check_process()
        if self._member.judged_by_session:
            raise in_transaction()
        confirm_all(self._member)

    def take_handed(self) -> list[tuple[Chunk, list[int]]]:
        """Part of committing: return the records that were received and not settled: chunks, and indices."""
        return self._member.verdicts.handed(self._unreceived.records())

    def take_chosen(self, deliveries: Sequence[AnyDelivery[Any, Any]]) -> list[tuple[Chunk, list[int]]]:
        """Part of committing: return those deliveries that are of this subscription and not settled."""
        return [] if self._closed else self._member.verdicts.chosen(map(record_of, deliveries))

    def roll_back_taken(self, records: list[tuple[Chunk, list[int]]]) -> list[Chunk]:
        """Part of committing: roll back records; `confirm_received` waits for it."""
        return self._member.verdicts.roll_back_records(records)

    def take_lost(self) -> int:
        """Part of committing: return how many records ended in flight since the last call.

        Their lease was lost, or the subscription was closed.
        """
        lost, self._left = (self._member.verdicts.take_lost() + self._left, 0)
        return lost

    def parts_of(self, records: list[tuple[Chunk, list[int]]]) -> list[Part]:
        """Part of committing: return the records as parts of a transaction, by lane and incarnation."""
        lanes: dict[tuple[int, int], list[int]] = {}
        for chunk, indices in records:
            place = (chunk.lease.partition, chunk.lease.incarnation)
            lanes.setdefault(place, []).extend((chunk.offset(index) for index in indices))
        return [
            Part(self.definition, lane, incarnation, tuple(some))
            for (lane, incarnation), some in lanes.items()
        ]

    def acknowledge_taken(self, records: list[tuple[Chunk, list[int]]]) -> None:
        """Part of committing: acknowledge committed records, also those whose lease was lost meanwhile."""
        self._left -= self._member.verdicts.acknowledge(records)

    def confirm_taken(self, records: list[tuple[Chunk, list[int]]]) -> None:
        """Part of committing: wait until Redis has settled the committed records. Raises `LeaseLost`."""
        for chunk, indices in records:
            confirm(chunk, len(indices))

    def note_outcome(self, *, outcome_unknown: bool) -> None:
        """Part of committing: note whether the outcome is unknown; while it is, others get no messages."""
        self._member.gate.outcome_unknown = outcome_unknown

    def decide_received(self, *, acknowledge: bool) -> list[Chunk]:
        """Part of sessions: acknowledge or roll back all in flight; `confirm_received` waits for it."""
        return self._member.verdicts.settle_handed(
            acknowledge=acknowledge,
            but=self._unreceived.records(),
            delay=-1 if self._member.transacted else 0,
        )

    def dispatch_failed_alone(self) -> None:
        """Part of transactions in workers: from now on a message comes alone after a failed attempt."""
        self._member.gate.failed_alone = True

    def confirm_received(self, chunks: list[Chunk], *, acknowledge: bool) -> None:
        """Part of sessions: wait until the verdicts of `decide_received` are confirmed.

        Raises `LeaseLost` if a message could not be acknowledged because its lease was lost.
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

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise forked(f"subscription {self._member.display}")

    @property
    def is_closed(self) -> bool:
        """Part of sessions: whether `close` was called."""
        return self._closed

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` or `close` was called."""
        return self._stopping

    def fail(self, error: KafkadurError) -> None:
        """Part of losing a client id: the next call raises `error`. Any thread."""
        self._member.fail(error)

    def stop(self) -> None:
        """Hand out no further messages, so that iterators and `run` end. Any thread, and signal handlers."""
        self._stopping = True
        if self._pid == os.getpid():
            self._member.begin_close()

    def close(self) -> None:
        """Give back unsettled messages (uncounted), confirm the others, and detach.

        Closing again does nothing. Raises `LeaseLost` if acknowledgements made without waiting could not be
        confirmed.
        """
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._member.gate.silent = self._member.gate.outcome_unknown
        self.stop()
        self.give_back_block()
        if self._member.judged_by_session and (not self._member.gate.outcome_unknown):
            self._left += sum((len(indices) for _, indices in self.take_handed()))
        unconfirmed = kept(self._leave(self._served))
        if unconfirmed:
            raise refused_acks(unconfirmed, self._member.display)
