# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.
"""One `run` of a subscription: handlers in parallel, by key in order, not too fast, and not while all fails.

`kafkadur/handlers/limits.py` and `kafkadur/handlers/key_queue.py` decide what may begin; here is the waiting.
`kafkadur/sync/running.py` is generated from this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Generic, Literal, Protocol

from kafkadur.consumer.delivery import K_co, V_co
from kafkadur.consumer.member import Member
from kafkadur.handlers.key_queue import HandlerKeyQueue
from kafkadur.handlers.limits import Breaker, BreakerState, CircuitBreaker, RateLimit, TokenBucket
from kafkadur.handlers.log import log_handler_error, log_lost, log_undecodable
from kafkadur.handlers.results import Reject, check_handler
from kafkadur.message.tracing import processing
from kafkadur.runtime.dead_letters import Cause
from kafkadur.sync.delivery import Delivery
from kafkadur.sync.waiting import Pool, Signal, call, interrupted
from kafkadur_sharing.errors import IllegalState, LeaseLost, Undecodable

OnUndecodable = Literal["rollback", "reject"]


class Receiving(Iterable[Delivery[V_co, K_co]], Protocol[V_co, K_co]):
    """The subscription, as a run sees it."""

    @property
    def is_stopping(self) -> bool:
        """Whether nothing more is handed out."""
        ...

    def receive_next(self) -> Delivery[V_co, K_co] | None:
        """The next delivery, without a span."""
        ...

    def receive_one(self) -> Delivery[V_co, K_co] | None:
        """The next delivery; nothing else is taken for the application."""
        ...

    def give_back_block(self) -> None:
        """Give back, uncounted, what was taken ahead and not received."""

    def settle(self, delivery: Delivery[Any, Any], *, confirm: bool) -> None:
        """Acknowledge what a handler has processed."""


class Run(Generic[V_co, K_co]):
    """Calls a handler with the deliveries of a subscription."""

    def __init__(
        self,
        subscription: Receiving[V_co, K_co],
        handler: Callable[[Delivery[V_co, K_co]], Any],
        *,
        member: Member,
        bell: Signal,
        concurrency: int,
        delay: float | None,
        confirm: bool,
        ordered_by_key: bool,
        rate_limit: RateLimit | None,
        breaker: CircuitBreaker | None,
        on_undecodable: OnUndecodable,
        on_breaker: Callable[[BreakerState], None],
    ) -> None:
        """See `Subscription.run`.

        `delay` (seconds) of what a handler could not process; None: as the policy says. `bell` rings when the
        subscription is stopped.
        """
        check_handler(handler)
        if concurrency < 1:
            raise IllegalState(
                "At least one handler must run.",
                state=f"concurrency={concurrency}",
                owner=f"subscription {member.display}",
                remedy="give 1 or more; `Admin.pause` stops a subscription",
            )
        if on_undecodable not in ("rollback", "reject"):
            raise IllegalState(
                f"on_undecodable cannot be {on_undecodable!r}.",
                state=f"on_undecodable={on_undecodable!r}",
                owner=f"subscription {member.display}",
                remedy="use 'rollback' or 'reject'",
            )
        self._subscription = subscription
        self._handler = handler
        self._member = member
        self._bell = bell
        self._concurrency = concurrency
        self._delay = delay
        self._confirm = confirm
        self._rejects_undecodable = on_undecodable == "reject"
        self._bucket = None if rate_limit is None else TokenBucket(rate_limit, member.now)
        self._plan = breaker
        self._on_breaker = on_breaker
        self._breaker = None if breaker is None else Breaker(breaker, member.now, self._breaker_changed)
        self._lines = self._key_lines() if ordered_by_key and (not member.by_key) else None

    def _key_lines(self) -> HandlerKeyQueue[Delivery[V_co, K_co]]:
        member = self._member
        policy = member.definition.redelivery
        first, longest = (policy.backoff.total_seconds(), policy.max_backoff.total_seconds())
        return HandlerKeyQueue(
            ordered=member.ordered,
            monotonic=member.now,
            back_off=lambda attempt: min(first * 2.0 ** min(attempt - 1, 40), longest),
            patience=member.session,
            handovers=lambda: member.losses if member.passes else 0,
        )

    def go(self) -> None:
        """Work until the subscription is stopped and all handlers have ended."""
        lines = self._lines
        governed = self._bucket is not None or self._breaker is not None
        deliveries: Iterable[Delivery[V_co, K_co]] = self._governed() if governed else self._subscription
        if lines is not None and self._member.ordered:
            self._member.verdicts.on_rolled_back = lines.rolled_back
        try:
            with Pool(self._concurrency) as pool:
                try:
                    for delivery in deliveries:
                        if lines is None or lines.enter(delivery):
                            pool.start(self._work, delivery)
                finally:
                    if lines is not None:
                        lines.close()
        finally:
            self._member.verdicts.on_rolled_back = None
            if self._member.gate.resting:
                self._member.wake_up()

    def _governed(self) -> Iterator[Delivery[V_co, K_co]]:
        """Deliveries when rate limit and breaker let them through."""
        subscription, breaker, bucket = (self._subscription, self._breaker, self._bucket)
        while True:
            self._bell.clear()
            if subscription.is_stopping:
                return
            if self._must_wait():
                self._bell.wait(self._wait())
                continue
            trial = breaker is not None and breaker.state is BreakerState.HALF_OPEN
            delivery = subscription.receive_one() if trial else subscription.receive_next()
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
        """Give back what was not begun; others may have it."""
        if self._member.gate.resting:
            return
        if self._lines is not None:
            self._lines.give_back_waiting()
        self._subscription.give_back_block()
        self._member.rest()

    def _breaker_changed(self, state: BreakerState) -> None:
        self._on_breaker(state)
        self._bell.set()

    def _work(self, delivery: Delivery[V_co, K_co]) -> None:
        """Handle a delivery, and then those of its key that were waiting behind it."""
        if self._lines is None:
            self._guarded(delivery)
            return
        following: Delivery[V_co, K_co] | None = delivery
        while following is not None:
            self._guarded(following)
            following = self._lines.leave(following)

    def _guarded(self, delivery: Delivery[V_co, K_co]) -> None:
        """Handle a delivery, unless it was to stop, or the breaker opened, while it waited for its turn."""
        if self._subscription.is_stopping:
            self._give_back(delivery)
            return
        breaker = self._breaker
        if breaker is None:
            self._handle(delivery, None, 0)
            return
        ticket = breaker.admit()
        if ticket is None:
            self._give_back(delivery)
            return
        try:
            self._handle(delivery, breaker, ticket)
        finally:
            breaker.report(ticket, failed=None)
            self._bell.set()

    def _give_back(self, delivery: Delivery[V_co, K_co]) -> None:
        """Nothing was begun: it comes again at once, and what follows it in its line, too."""
        if self._lines is not None:
            self._lines.rolled_back(delivery.partition, delivery.offset, 0)
        delivery.release_later(0)

    def _handle(self, delivery: Delivery[V_co, K_co], breaker: Breaker | None, ticket: int) -> None:
        member = self._member
        with processing(member.tracing, delivery.message, member.display, delivery.attempt) as told:
            try:
                call(self._handler, delivery)
            except BaseException as error:
                told.failed(error)
                if interrupted(error):
                    if not delivery.settled:
                        with suppress(LeaseLost):
                            delivery.release_nowait()
                    raise
                self._not_processed(delivery, error)
                if breaker is not None and self._is_failure(error):
                    breaker.report(ticket, failed=True)
                return
            if breaker is not None:
                breaker.report(ticket, failed=False)
            if not delivery.settled:
                self._subscription.settle(delivery, confirm=self._confirm)

    def _not_processed(self, delivery: Delivery[V_co, K_co], error: BaseException) -> None:
        if delivery.settled:
            return
        try:
            if isinstance(error, Reject):
                delivery.reject_nowait(error.reason)
            else:
                self._give_up(delivery, error)
        except LeaseLost as lost:
            log_lost(lost)

    def _give_up(self, delivery: Delivery[V_co, K_co], error: BaseException) -> None:
        if self._rejects_undecodable and _is_undecodable(error, delivery):
            log_undecodable(error, self._member)
            cause = error.__cause__
            reason = f"{error.args[0].partition('.')[0]}: {type(cause).__name__}: {cause}"
            delivery.reject_as(Cause.UNDECODABLE, reason)
            return
        log_handler_error(delivery, self._member.display)
        delivery.rollback_nowait(self._delay)

    def _is_failure(self, error: BaseException) -> bool:
        """Whether an exception says that what the handler depends on does not work."""
        if isinstance(error, Reject):
            return False
        own = isinstance(error, LeaseLost) or (isinstance(error, Undecodable) and (not error.transient))
        return not own and (not (self._plan is not None and isinstance(error, self._plan.ignore)))


def _is_undecodable(error: BaseException, delivery: Delivery[Any, Any]) -> bool:
    """Whether a handler failed because its own message, and nothing else, is at fault."""
    if not isinstance(error, Undecodable) or error.transient:
        return False
    place = (error.topic, error.partition, error.offset)
    return place == (delivery.topic, delivery.partition, delivery.offset)
