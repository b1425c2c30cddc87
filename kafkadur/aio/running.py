"""One `run` of a subscription: parallel handlers, order by key, rate limit and circuit breaker.

`kafkadur/handlers/limits.py` and `kafkadur/handlers/order_by_key.py` decide which handler may begin; this
module waits for it.
`kafkadur/sync/running.py` is generated from this file.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Generic, Literal, Protocol

from kafkadur.aio.delivery import Delivery
from kafkadur.aio.waiting import AWAITS, Pool, Signal, interrupted
from kafkadur.consumer.delivery import K_co, V_co
from kafkadur.consumer.member import Member
from kafkadur.events import Event
from kafkadur.handlers.arguments import with_arguments
from kafkadur.handlers.failures import FailureDetail, check_detail, describe
from kafkadur.handlers.limits import (
    Breaker,
    BreakerState,
    CircuitBreaker,
    RateLimit,
    TokenBucket,
    check_limits,
)
from kafkadur.handlers.order_by_key import HandlerKeyQueue
from kafkadur.handlers.results import Reject, check_handler
from kafkadur.handlers.retries import Retries, says_nothing
from kafkadur.message.tracing import processing
from kafkadur.runtime.dead_letters import Cause
from kafkadur_sharing.errors import IllegalState, LeaseLost, LevelNotReached, Undecodable
from kafkadur_sharing.numbers import check_integer

_log = logging.getLogger("kafkadur")

#: The verdict on a message that cannot be deserialized.
OnUndecodable = Literal["rollback", "reject"]
#: The most handlers of one `run`.
_MOST_HANDLERS = 100_000
#: The event that tells the application of a state of the circuit breaker.
_BREAKER_EVENTS = {
    BreakerState.OPEN: Event.BREAKER_OPENED,
    BreakerState.HALF_OPEN: Event.BREAKER_HALF_OPENED,
    BreakerState.CLOSED: Event.BREAKER_CLOSED,
}


class _Receiving(AsyncIterable[Delivery[V_co, K_co]], Protocol[V_co, K_co]):
    """The part of `Subscription`, which imports this module, that a run uses."""

    @property
    def is_stopping(self) -> bool: ...
    async def receive_next(self) -> Delivery[V_co, K_co] | None: ...
    async def receive_one(self) -> Delivery[V_co, K_co] | None: ...
    def give_back_block(self) -> None: ...


class Run(Generic[V_co, K_co]):
    """Calls a handler with the deliveries of a subscription.

    It logs ids of messages, not their payloads; an exception of the handler is logged as `failure_detail`
    says.
    """

    def __init__(
        self,
        subscription: _Receiving[V_co, K_co],
        handler: Callable[..., Any],
        *,
        member: Member,
        bell: Signal,
        concurrency: int,
        retries: Retries,
        confirm: bool,
        ordered_by_key: bool,
        rate_limit: RateLimit | None,
        breaker: CircuitBreaker | None,
        on_undecodable: OnUndecodable,
        failure_detail: FailureDetail,
    ) -> None:
        """See `Subscription.run`.

        `bell` rings when the subscription is stopped.
        """
        check_handler(handler, awaits=AWAITS)
        concurrency = check_integer("concurrency", concurrency, 1, _MOST_HANDLERS)
        if on_undecodable not in ("rollback", "reject"):
            raise IllegalState(
                f"on_undecodable cannot be {on_undecodable!r}.",
                state=f"on_undecodable={on_undecodable!r}",
                owner=f"subscription {member.display}",
                remedy="use 'rollback' or 'reject'",
            )
        check_detail(failure_detail, f"subscription {member.display}")
        check_limits(rate_limit, breaker)
        self._failure_detail: FailureDetail = failure_detail
        self._subscription = subscription
        self._handler = with_arguments(handler, f"subscription {member.display}")
        self._member = member
        self._bell = bell
        self._pool = Pool(concurrency)
        self._retries = retries
        if retries.overruled:
            _log.warning(
                "subscription %s: %s has no effect, because its redelivery policy has max_attempts=%s",
                member.display, retries.overruled, retries.attempts,
            )  # fmt: skip
        self._confirm = confirm
        self._rejects_undecodable = on_undecodable == "reject"
        self._bucket = None if rate_limit is None else TokenBucket(rate_limit, member.now)
        self._plan = breaker
        self._breaker = None if breaker is None else Breaker(breaker, member.now, self._breaker_changed)
        # a key-ordered subscription delivers one message of a key at a time anyway
        self._lines = self._key_lines() if ordered_by_key and not member.by_key else None

    def _key_lines(self) -> HandlerKeyQueue[Delivery[V_co, K_co]]:
        member = self._member
        policy = member.definition.redelivery
        first, longest = policy.backoff.total_seconds(), policy.max_backoff.total_seconds()
        return HandlerKeyQueue(
            ordered=member.ordered,
            monotonic=member.now,
            back_off=lambda attempt: min(first * 2.0 ** min(attempt - 1, 40), longest),
            patience=member.session,
            handovers=lambda: member.losses if member.passes else 0,
        )

    async def go(self) -> None:
        """Work until the subscription is stopped and all handlers have ended."""
        lines = self._lines
        governed = self._bucket is not None or self._breaker is not None
        deliveries: AsyncIterable[Delivery[V_co, K_co]] = self._governed() if governed else self._subscription
        if lines is not None and self._member.ordered:
            self._member.verdicts.on_rolled_back = lines.rolled_back
        try:
            async with self._pool as pool:
                try:
                    async for delivery in deliveries:
                        if lines is None or lines.enter(delivery):
                            await pool.start(self._work, delivery)
                finally:
                    if lines is not None:
                        lines.close()
        finally:
            self._member.verdicts.on_rolled_back = None
            if self._member.gate.resting:
                self._member.wake_up()

    # -- receiving

    async def _governed(self) -> AsyncIterator[Delivery[V_co, K_co]]:
        """Yield deliveries as fast as rate limit and breaker allow."""
        subscription, breaker, bucket = self._subscription, self._breaker, self._bucket
        while True:
            self._bell.clear()  # before the checks, so that a later change ends the wait
            if subscription.is_stopping:
                return
            if self._must_wait():
                await self._bell.wait(self._wait())
                continue
            trial = breaker is not None and breaker.state is BreakerState.HALF_OPEN
            delivery = await (subscription.receive_one() if trial else subscription.receive_next())
            if delivery is None:
                return
            if bucket is not None:
                bucket.take()
            yield delivery

    def _must_wait(self) -> bool:
        if self._breaker is not None and self._breaker.state is BreakerState.OPEN:
            self._rest()
        wait = self._wait()
        return wait is None or wait > 0

    def _wait(self) -> float | None:
        """Seconds until a message may be received; None: until the bell rings."""
        wait = 0.0
        if self._breaker is not None:
            wait = self._breaker.wait()
            if wait <= 0 and self._member.gate.resting:
                self._member.wake_up()
            if self._breaker.trying:
                return None
        return wait if self._bucket is None else max(wait, self._bucket.wait())

    def _rest(self) -> None:
        """Give back the messages that no handler has begun, so that other members get them."""
        if self._member.gate.resting:
            return
        if self._lines is not None:
            self._lines.give_back_waiting()
        self._subscription.give_back_block()
        self._member.rest()

    def _breaker_changed(self, state: BreakerState) -> None:
        member = self._member
        _log.warning("subscription %s: the circuit breaker of its handlers is %s", member.display, state)
        member.teller.note(_BREAKER_EVENTS[state])
        member.teller.tell()
        self._bell.set()

    # -- handling

    async def _work(self, delivery: Delivery[V_co, K_co]) -> None:
        """Handle a delivery, and then the later deliveries of its key that waited for it."""
        if self._lines is None:
            await self._guarded(delivery)
            return
        following: Delivery[V_co, K_co] | None = delivery
        while following is not None:
            await self._guarded(following)
            following = self._lines.leave(following)

    async def _guarded(self, delivery: Delivery[V_co, K_co]) -> None:
        """Handle a delivery, unless the run was stopped or the breaker opened before its turn."""
        if self._subscription.is_stopping:
            self._give_back(delivery)
            return
        breaker = self._breaker
        if breaker is None:
            await self._handle(delivery, None, 0)
            return
        ticket = breaker.admit()
        if ticket is None:
            self._give_back(delivery)
            return
        try:
            await self._handle(delivery, breaker, ticket)
        finally:  # a second report has no effect
            breaker.report(ticket, failed=None)
            self._bell.set()

    def _give_back(self, delivery: Delivery[V_co, K_co]) -> None:
        """Have a delivery that no handler has begun delivered again at once, and later ones of its key."""
        if self._lines is not None:
            self._lines.rolled_back(delivery.partition, delivery.offset, 0)
        delivery.release_later(0)

    async def _handle(self, delivery: Delivery[V_co, K_co], breaker: Breaker | None, ticket: int) -> None:
        member = self._member
        with processing(member.tracing, delivery.message, member.display, delivery.attempt) as failed:
            try:
                await self._pool.call(self._handler, delivery)
            except BaseException as error:
                failed(error)
                if interrupted(error):  # this counts no attempt
                    if delivery.undecided:
                        with suppress(LeaseLost):
                            delivery.release_nowait()
                    raise
                self._not_processed(delivery, error)
                if breaker is not None and self._is_failure(error):
                    breaker.report(ticket, failed=True)
                return
            if breaker is not None:
                breaker.report(ticket, failed=False)
            if delivery.undecided:
                await self._acknowledge(delivery)

    async def _acknowledge(self, delivery: Delivery[V_co, K_co]) -> None:
        try:
            if self._confirm:
                await delivery.ack()
            else:
                delivery.ack_nowait()
        except (LeaseLost, LevelNotReached) as error:
            # a lost message is delivered again; one that did not reach its level is acknowledged all the same
            _log.warning("%s", error)

    def _not_processed(self, delivery: Delivery[V_co, K_co], error: BaseException) -> None:
        if not delivery.undecided:
            return
        try:
            if isinstance(error, Reject):
                delivery.reject_nowait(error.reason)
            else:
                self._give_up(delivery, error)
        except LeaseLost as lost:
            _log.warning("%s", lost)  # the message is delivered again anyway

    def _give_up(self, delivery: Delivery[V_co, K_co], error: BaseException) -> None:
        """Give the verdict after a failure, and log it: each retry is one line."""
        ids = {"subscription": self._member.display, "topic": delivery.topic}
        undecodable = _is_undecodable(error, delivery)
        if self._rejects_undecodable and undecodable and isinstance(error, Undecodable):
            cause = error.__cause__
            why = error.state if cause is None else f"{type(cause).__name__}: {cause}"
            reason = f"{error.message.rstrip('.')}: {why}"
            delivery.reject_as(Cause.UNDECODABLE, reason)
            _log.warning("%s It becomes a dead letter.", error, extra=ids)
            return
        retries, reason = self._retries, describe(error, self._handler, self._failure_detail)
        cause_given = retries.cause_to_give_up(error, delivery.attempt)
        if cause_given is Cause.ATTEMPTS and self._is_outage(error):
            cause_given = None
        told = self._failure_detail != "class"  # else the log has no text of the exception
        if cause_given is not None:
            rejected_undecodable = undecodable and cause_given is Cause.REJECTED
            delivery.reject_as(Cause.UNDECODABLE if rejected_undecodable else cause_given, reason)
            _log.error(
                "handler failed for %r; it becomes a dead letter: %s", delivery, " ".join(reason.split()),
                exc_info=error if told else None, extra=ids,
            )  # fmt: skip
            return
        attempts = "" if retries.attempts is None else f" of {retries.attempts}"
        delay = retries.delay(error, delivery.attempt)
        delivery.rollback_failed(delay, reason)
        again = "" if delay is None else f" after {delay:.3g} s"
        _log.warning(
            "handler failed for %r%s; it is delivered again%s: %s",
            delivery, attempts, again, " ".join(reason.split()),
            exc_info=error if told and _log.isEnabledFor(logging.DEBUG) else None, extra=ids,
        )  # fmt: skip

    def _is_outage(self, error: BaseException) -> bool:
        """Whether a failure says nothing about its message: such failures make no dead letters."""
        if self._breaker is not None and self._breaker.state is not BreakerState.CLOSED:
            return True
        return says_nothing(error) and isinstance(error, Exception)

    def _is_failure(self, error: BaseException) -> bool:
        """Whether an exception counts as a failure for the circuit breaker."""
        if isinstance(error, Reject):
            return False
        own = isinstance(error, LeaseLost) or (isinstance(error, Undecodable) and not error.transient)
        return not own and not (self._plan is not None and isinstance(error, self._plan.ignore))


def _is_undecodable(error: BaseException, delivery: Delivery[Any, Any]) -> bool:
    """Whether a handler failed because its own message can never be deserialized."""
    if not isinstance(error, Undecodable) or error.transient:
        return False
    place = (error.topic, error.partition, error.offset)
    return place == (delivery.topic, delivery.partition, delivery.offset)
