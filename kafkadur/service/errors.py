"""Errors as answers: their documents, and the status of each kind."""

from __future__ import annotations

from typing import Final

from typing_extensions import TypedDict

from kafkadur.service.prometheus import PrometheusUnavailable
from kafkadur_sharing.errors import (
    CoordinatorRefused,
    CoordinatorUnavailable,
    DeliveryFailed,
    IllegalState,
    InvalidDestination,
    InvalidName,
    InvalidProperty,
    InvalidSelector,
    KafkadurError,
    KafkaRefused,
    LeaseLost,
    ResourceLimit,
    StateLost,
    SubscriptionActive,
    SubscriptionDiffers,
    SubscriptionTypeMismatch,
    TopicChanged,
)


class Trouble(TypedDict):
    """An error: what failed, in which state, of whom, and what to do."""

    error: str
    message: str
    state: str | None
    owner: str | None
    remedy: str | None


_STATUS: Final[tuple[tuple[type[KafkadurError], int], ...]] = (
    (InvalidDestination, 404),
    (InvalidName, 400),
    (InvalidSelector, 400),
    (InvalidProperty, 400),
    (IllegalState, 409),
    (SubscriptionActive, 409),
    (SubscriptionDiffers, 409),
    (SubscriptionTypeMismatch, 409),
    (TopicChanged, 409),
    (ResourceLimit, 409),
    (LeaseLost, 409),
    (DeliveryFailed, 503),
    (CoordinatorUnavailable, 503),
    (CoordinatorRefused, 503),
    (KafkaRefused, 503),
    (StateLost, 503),
    (PrometheusUnavailable, 503),
)


def trouble(error: KafkadurError) -> Trouble:
    """Return the document of an error."""
    return {
        "error": type(error).__name__,
        "message": error.message,
        "state": error.state,
        "owner": error.owner,
        "remedy": error.remedy,
    }


def status_of(error: KafkadurError) -> int:
    """Return the status of an answer that is an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
