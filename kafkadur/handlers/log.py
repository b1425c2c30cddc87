"""What is logged of handlers and their messages, under the name `kafkadur`; ids, never payloads."""

from __future__ import annotations

import logging
from typing import Any

from kafkadur.consumer.delivery import Delivery
from kafkadur.consumer.member import Member
from kafkadur.handlers.limits import BreakerState
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur")


def log_handler_error(delivery: Delivery[Any, Any], display: str) -> None:
    """A handler raised: the message is rolled back."""
    ids = {"subscription": display, "topic": delivery.topic}
    _log.exception("handler failed for %r; it is rolled back", delivery, extra=ids)


def log_undecodable(error: BaseException, member: Member) -> None:
    """A message cannot be deserialized: it becomes a dead letter."""
    ids = {"subscription": member.display, "topic": member.definition.topic}
    _log.warning("%s It becomes a dead letter.", error, extra=ids)


def log_breaker(display: str, state: BreakerState) -> None:
    """The circuit breaker of a subscription's handlers changed."""
    _log.warning("subscription %s: the circuit breaker of its handlers is %s", display, state)


def log_lost(error: KafkadurError) -> None:
    """A handler ended after its lease was lost, or its acknowledgement is less safe than was asked for."""
    _log.warning("%s", error)
