"""The options of `App.subscription` by the type of the subscription, as type checkers see them."""

from __future__ import annotations

from typing import Any, TypedDict

from kafkadur.aio.running import OnUndecodable
from kafkadur.handlers.failures import FailureDetail
from kafkadur.handlers.limits import CircuitBreaker, RateLimit
from kafkadur.handlers.retries import Exceptions, RetryDelay
from kafkadur.message.serialization import Deserializer
from kafkadur.options import (
    AnyOptions,
    ExclusiveOptions,
    KeyOrderedOptions,
    PriorityOptions,
    SerialOptions,
    SharedOptions,
)
from kafkadur_sharing.definition import SubscriptionType, TypeName


class SubscribeOptions(AnyOptions, total=False):
    """The options that `App.subscription` passes to `Connection.subscribe`, which documents them."""

    type: SubscriptionType | TypeName
    key_deserializer: Deserializer[Any]
    value_deserializer: Deserializer[Any]


class HandlerOptions(TypedDict, total=False):
    """The options of a handler, whatever the type of its subscription. `App.subscription` documents them."""

    durable: str | None
    concurrency: int
    attempts: int | None
    retry_delay: RetryDelay | None
    retry_on: Exceptions | None
    reject_on: Exceptions
    confirm: bool
    ordered_by_key: bool
    rate_limit: RateLimit | None
    breaker: CircuitBreaker | None
    on_undecodable: OnUndecodable
    failure_detail: FailureDetail
    key_deserializer: Deserializer[Any]
    value_deserializer: Deserializer[Any]


class SharedHandler(SharedOptions, HandlerOptions, total=False):
    """The options of a handler of a shared subscription."""


class ExclusiveHandler(ExclusiveOptions, HandlerOptions, total=False):
    """The options of a handler of an exclusive subscription."""


class PriorityHandler(PriorityOptions, HandlerOptions, total=False):
    """The options of a handler of a priority subscription."""


class SerialHandler(SerialOptions, HandlerOptions, total=False):
    """The options of a handler of a serial subscription."""


class KeyOrderedHandler(KeyOrderedOptions, HandlerOptions, total=False):
    """The options of a handler of a key-ordered subscription."""


class AnyHandler(AnyOptions, HandlerOptions, total=False):
    """The options of a handler of a subscription whose type is known at run time only."""
