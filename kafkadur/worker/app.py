"""An app: handlers with their subscriptions. It only declares them; `worker.py` runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, overload

from typing_extensions import Unpack

from kafkadur.aio.connection import Connection
from kafkadur.aio.running import OnUndecodable
from kafkadur.aio.session import check_max_hold
from kafkadur.aio.subscribing import definition_asked, type_named
from kafkadur.handlers.arguments import with_arguments
from kafkadur.handlers.failures import FailureDetail, check_detail
from kafkadur.handlers.limits import CircuitBreaker, RateLimit, check_limits
from kafkadur.handlers.results import check_handler
from kafkadur.handlers.retries import ATTEMPTS, Exceptions, RetryDelay
from kafkadur.runtime.members import FLOW, check_flow
from kafkadur.worker.options import (
    AnyHandler,
    ExclusiveHandler,
    KeyOrderedHandler,
    PriorityHandler,
    SerialHandler,
    SharedHandler,
    SubscribeOptions,
)
from kafkadur_sharing.decisions import OTHER_PARTS, parts_given, validate_on_change
from kafkadur_sharing.definition import SubscriptionType
from kafkadur_sharing.distributed import DistributedTopic
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.numbers import MOST_PRIORITY, MOST_RECORDS, check_function, check_integer
from kafkadur_sharing.readable_text import meant

Handler = TypeVar("Handler", bound=Callable[..., Any])
#: Provides the resources of a running app, such as a producer of the worker's connection.
Lifespan = Callable[[Connection], AbstractAsyncContextManager[object]]


def check_options(topic: str, options: SubscribeOptions) -> None:
    """Refuse what `Connection.subscribe` would refuse, as far as it needs no connection to tell.

    `no_local` of types with several consumers passes: the mode of the connection decides.
    """
    definition_asked(
        type_named(options.get("type", SubscriptionType.SHARED), stacklevel=4),
        topic,
        options.get("selector"),
        no_local=options.get("no_local", False),
        priority=check_integer("priority", options.get("priority", 0), -MOST_PRIORITY, MOST_PRIORITY),
        preempt=options.get("preempt", False),
        parts=parts_given(**{part: options.get(part) for part in OTHER_PARTS}),
        mode="weblogic",
    )
    for name, value in options.items():
        if name in FLOW:
            check_flow(name, value)
    validate_on_change(options.get("on_change"))
    check_function("on_event", options.get("on_event"))


def _check_names(
    topic: str | DistributedTopic, options: SubscribeOptions, running: Mapping[str, object]
) -> None:
    """Raise `IllegalState` for an option that there is not."""
    if unknown := sorted(options.keys() - SubscribeOptions.__annotations__.keys()):
        known = ["durable", *SubscribeOptions.__annotations__, *running]
        raise IllegalState(
            f"A subscription of an app has no option {unknown[0]!r}.",
            owner=f"the handler of topic {(topic if isinstance(topic, str) else topic.name)!r}",
            remedy=meant(unknown[0], known),
        )


def _check_takes_two(handler: Callable[..., Any]) -> None:
    """Raise `IllegalState` for a handler that cannot be called with a batch and a producer."""
    try:
        inspect.signature(handler).bind(None, None)
    except ValueError:  # a built-in function tells nothing about its parameters
        return
    except TypeError as error:
        raise IllegalState(
            "The handler of a transaction is called with a batch of messages and a producer.",
            state=str(error),
            owner=f"handler {getattr(handler, '__qualname__', handler)}",
            remedy="give it these two parameters",
        ) from error


def _places(topic: str | DistributedTopic, options: SubscribeOptions) -> list[tuple[str, SubscribeOptions]]:
    """Return the Kafka topics of a declaration, each with the options of its subscription.

    Raises `InvalidDestination` for a topic member that the distributed topic does not have.
    """
    if isinstance(topic, str):
        return [(topic, options)]
    named = options.get("topic_member")
    members = topic.members if named is None else (topic.member(named),)
    return [(member.topic, {**options, "topic_member": member.name}) for member in members]


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A handler and the subscription it works on."""

    handler: Callable[..., Any]
    topic: str
    durable: str | None
    #: those of `SubscribeOptions`
    options: Mapping[str, Any]
    #: arguments of `Subscription.run`; of a transacted subscription `messages`, the most in a transaction
    running: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: the distributed topic of which `topic` is a member
    distributed: DistributedTopic | None = None

    @property
    def name(self) -> str:
        """The name of the subscription in logs and labels."""
        name = self.durable or self.options.get("shared") or self.topic
        member = self.options.get("topic_member")
        return name if member is None else f"{name}@{member}"

    @property
    def transacts(self) -> bool:
        """Whether each call of the handler is a transaction (`App.transacted`)."""
        return "messages" in self.running

    @property
    def concurrency(self) -> int:
        """The most calls of the handler at the same time."""
        return int(self.running.get("concurrency", 1))


class App:
    """Handlers of messages, each declared with its subscription. An app makes no connection itself."""

    def __init__(self, *, lifespan: Lifespan | None = None) -> None:
        """`lifespan(connection)` is an asynchronous context manager, entered before the first message.

        It is left before the connection is closed.
        """
        self.lifespan = lifespan
        self._declared: list[Declared] = []

    @property
    def declared(self) -> tuple[Declared, ...]:
        """All handlers, in the order in which they were declared."""
        return tuple(self._declared)

    # for type checkers: each type has its own options
    @overload
    def subscription(
        self,
        topic: str | DistributedTopic,
        *,
        type: Literal["shared"] = "shared",
        **options: Unpack[SharedHandler],
    ) -> Callable[[Handler], Handler]: ...
    @overload
    def subscription(
        self,
        topic: str | DistributedTopic,
        *,
        type: Literal["exclusive"],
        **options: Unpack[ExclusiveHandler],
    ) -> Callable[[Handler], Handler]: ...
    @overload
    def subscription(
        self, topic: str | DistributedTopic, *, type: Literal["priority"], **options: Unpack[PriorityHandler]
    ) -> Callable[[Handler], Handler]: ...
    @overload
    def subscription(
        self, topic: str | DistributedTopic, *, type: Literal["serial"], **options: Unpack[SerialHandler]
    ) -> Callable[[Handler], Handler]: ...
    @overload
    def subscription(
        self,
        topic: str | DistributedTopic,
        *,
        type: Literal["key-ordered"],
        **options: Unpack[KeyOrderedHandler],
    ) -> Callable[[Handler], Handler]: ...
    @overload
    def subscription(
        self, topic: str | DistributedTopic, *, type: SubscriptionType, **options: Unpack[AnyHandler]
    ) -> Callable[[Handler], Handler]: ...
    def subscription(
        self,
        topic: str | DistributedTopic,
        *,
        durable: str | None = None,
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
        **options: Unpack[SubscribeOptions],
    ) -> Callable[[Handler], Handler]:
        """Decorate the handler of a subscription; the function itself is not changed.

        The handler is called with each delivery, or with what its parameters ask for. A coroutine function is
        awaited in the worker's loop, any other function is called in a thread, up to `concurrency` at once.
        `attempts` to `failure_detail` are those of `Subscription.run`. As there, a handler that returns
        acknowledges its message, `Reject` sends it to dead letters, and any other exception rolls it back;
        after ten failed attempts it becomes a dead letter, unless `attempts` or the redelivery policy say
        otherwise. The other options are those of `Connection.subscribe`. On a distributed topic the handler
        is called for each topic member, which has a subscription of its own (M2), or for the one that
        `topic_member` names; a member that cannot be reached does not stop the others. Raises `IllegalState`
        if two handlers would share a name, for an unknown option, for values that `Connection.subscribe`
        would refuse for any connection, for a parameter that asks for nothing known, and for a generator
        function, because calling it runs nothing. Raises `InvalidSelector` and `InvalidDestination` as well.
        """
        running = {
            "concurrency": concurrency,
            "attempts": attempts,
            "retry_delay": retry_delay,
            "retry_on": retry_on,
            "reject_on": reject_on,
            "confirm": confirm,
            "ordered_by_key": ordered_by_key,
            "rate_limit": rate_limit,
            "breaker": breaker,
            "on_undecodable": on_undecodable,
            "failure_detail": failure_detail,
        }
        _check_names(topic, options, running)
        places = _places(topic, options)
        for place, its_options in places:
            check_options(place, its_options)
        check_limits(rate_limit, breaker)

        def declare(handler: Handler) -> Handler:
            check_handler(handler)
            with_arguments(handler, "the app", later=True)  # raises for an unknown parameter
            made = [
                Declared(
                    handler=handler,
                    topic=place,
                    durable=durable,
                    options=its_options,
                    running=running,
                    distributed=None if isinstance(topic, str) else topic,
                )
                for place, its_options in places
            ]
            for each in made:
                self._check_new(each)
            self._declared += made
            return handler

        return declare

    def transacted(
        self,
        topic: str,
        *,
        durable: str,
        messages: int = 1_000,
        failure_detail: FailureDetail = "message",
        **options: Unpack[SubscribeOptions],
    ) -> Callable[[Handler], Handler]:
        """Decorate a handler that is called with a batch of messages and a producer, in one transaction.

        The handler takes a `Batch` of 1 to `messages` deliveries, as many as are there, and a
        `Producer`, which it may use until it ends. When it returns, the messages that it received and those
        that it published are committed together. When it raises an exception, `Reject` included, both are
        rolled back: its messages come again, each in a transaction of its own, and an attempt is counted.
        `redelivery` says after how many attempts a message becomes a dead letter; without it a message that
        always fails comes again without end. Await what `send` returns: a message that was refused is else
        not part of the transaction. A coroutine function is awaited in the worker's loop, any other function
        is called in a thread; one transaction runs at a time. `failure_detail`: what the log says of an
        exception, as in `Subscription.run`. The other options are those of `Connection.subscribe`. Raises as
        `subscription` does, and `IllegalState` for a `redelivery` with `max_hold`, and for a handler that
        does not take two arguments.
        """
        check_detail(failure_detail, f"the handler of topic {topic!r}")
        running: dict[str, object] = {
            "messages": check_integer("messages", messages, 1, MOST_RECORDS),
            "failure_detail": failure_detail,
        }
        _check_names(topic, options, running)
        check_options(topic, options)
        check_max_hold(f"the handler of topic {topic!r}", options.get("redelivery"))

        def declare(handler: Handler) -> Handler:
            check_handler(handler)
            _check_takes_two(handler)
            made = Declared(handler=handler, topic=topic, durable=durable, options=options, running=running)
            self._check_new(made)
            self._declared.append(made)
            return handler

        return declare

    def _check_new(self, made: Declared) -> None:
        """Raise `IllegalState` if there is a handler for this subscription."""
        if any((each.name, each.topic) == (made.name, made.topic) for each in self._declared):
            raise IllegalState(
                "An app has one handler for a subscription.",
                state=f"a second handler for {made.name!r} of topic {made.topic!r}",
                owner="the app",
                remedy="raise concurrency= of the first, or give the second a subscription of its own",
            )
