"""Which AMQP error condition an error becomes, and which exceptions JMS clients raise for it. No I/O."""

from __future__ import annotations

from typing import Final

from kafkadur_sharing.errors import (
    CoordinatorRefused,
    IllegalState,
    InvalidClientId,
    InvalidDestination,
    InvalidName,
    InvalidProperty,
    InvalidSelector,
    InvalidSubscriptionSharing,
    KafkadurError,
    KafkaRefused,
    ResourceLimit,
    SubscriptionActive,
    SubscriptionDiffers,
    SubscriptionTypeMismatch,
    TopicChanged,
)
from kafkadur_sharing.readable_text import plain

NOT_FOUND: Final = "amqp:not-found"
NOT_ALLOWED: Final = "amqp:not-allowed"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
INVALID_FIELD: Final = "amqp:invalid-field"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
RESOURCE_LIMIT: Final = "amqp:resource-limit-exceeded"
RESOURCE_LOCKED: Final = "amqp:resource-locked"
INTERNAL_ERROR: Final = "amqp:internal-error"
DECODE_ERROR: Final = "amqp:decode-error"
MESSAGE_TOO_LARGE: Final = "amqp:link:message-size-exceeded"
TRANSACTION_ROLLBACK: Final = "amqp:transaction:rollback"
UNKNOWN_TRANSACTION: Final = "amqp:transaction:unknown-id"
FORCED: Final = "amqp:connection:forced"

#: Those that end a link or refuse it.
ALL_CONDITIONS: Final = (
    *(NOT_FOUND, NOT_ALLOWED, NOT_IMPLEMENTED, INVALID_FIELD, UNAUTHORIZED, RESOURCE_LIMIT, RESOURCE_LOCKED),
    *(INTERNAL_ERROR, DECODE_ERROR, MESSAGE_TOO_LARGE, TRANSACTION_ROLLBACK, UNKNOWN_TRANSACTION),
)

#: The first class that an error belongs to counts. Jakarta Messaging clients raise
#: InvalidDestinationException for not-found, ResourceAllocationException for resource-limit-exceeded,
#: JMSSecurityException for unauthorized-access, and JMSException for the others.
_CONDITIONS: Final[tuple[tuple[type[KafkadurError], str], ...]] = (
    (InvalidDestination, NOT_FOUND),
    (TopicChanged, NOT_FOUND),
    (InvalidClientId, INVALID_FIELD),
    (InvalidName, INVALID_FIELD),
    (InvalidProperty, INVALID_FIELD),
    (InvalidSelector, INVALID_FIELD),
    (ResourceLimit, RESOURCE_LIMIT),
    (SubscriptionActive, RESOURCE_LOCKED),
    (SubscriptionDiffers, NOT_ALLOWED),
    (SubscriptionTypeMismatch, NOT_ALLOWED),
    (InvalidSubscriptionSharing, NOT_ALLOWED),
    (IllegalState, NOT_ALLOWED),
    (KafkaRefused, UNAUTHORIZED),
    (CoordinatorRefused, INTERNAL_ERROR),
)


class Refused(Exception):
    """A request of a client is refused with an AMQP error condition."""

    def __init__(self, condition: str, description: str) -> None:
        """`condition` is a symbol of AMQP, `description` a text for people."""
        super().__init__(description)
        self.condition = condition
        self.description = plain(description)  # it may have text of a client, and is logged


def refused(error: KafkadurError | Refused) -> Refused:
    """Return the answer to a client for an error, which may be that answer."""
    if isinstance(error, Refused):
        return error
    for kind, condition in _CONDITIONS:
        if isinstance(error, kind):
            return Refused(condition, str(error))
    return Refused(INTERNAL_ERROR, str(error))
