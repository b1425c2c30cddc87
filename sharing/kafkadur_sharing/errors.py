"""All errors of the project, below one base: `KafkadurError`.

The text of an error contains the state, the owner of what the error is about, and a remedy. The same three
are attributes, so that no text has to be parsed. The docstring of a class is its default message. This module
does not decide when an error is raised: `decisions.py` does for attaching and unsubscribing, the callers for
everything else.
"""

from __future__ import annotations

import inspect
from typing import Self

from kafkadur_sharing.readable_text import plain

__all__ = [
    "AlreadySettled",
    "ConnectionClosed",
    "CoordinatorRefused",
    "CoordinatorUnavailable",
    "DeliveryFailed",
    "Fenced",
    "ForkedConnection",
    "IllegalState",
    "InternalError",
    "InvalidClientId",
    "InvalidDestination",
    "InvalidName",
    "InvalidProperty",
    "InvalidSelector",
    "InvalidSubscriptionSharing",
    "KafkaRefused",
    "KafkaUnavailable",
    "KafkadurError",
    "LeaseLost",
    "LevelNotReached",
    "NotConnected",
    "ResourceLimit",
    "StateLost",
    "SubscriptionActive",
    "SubscriptionDiffers",
    "SubscriptionTypeMismatch",
    "TopicChanged",
    "TransactionRolledBack",
    "Undecodable",
    "Unencodable",
    "Unreached",
]


class KafkadurError(Exception):
    """Something in kafkadur failed."""

    #: What failed, without the other parts.
    message: str
    #: The state, as a short phrase; None if the message is complete without it.
    state: str | None
    #: The owner of what the error is about (a member, a subscription, a server); None if there is none.
    owner: str | None
    #: What the reader can do next, in the imperative; None if there is nothing to do.
    remedy: str | None

    def __init__(
        self,
        message: str | None = None,
        *,
        state: str | None = None,
        owner: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """Build the text from `message` (default: the docstring of the class) and the other parts."""
        if message is None:
            message = (
                (inspect.getdoc(type(self)) or type(self).__name__).partition("\n\n")[0].replace("\n", " ")
            )
        named = (("State", state), ("Owner", owner), ("Remedy", remedy))
        parts = [message.rstrip(), *(f"{name}: {part}" for name, part in named if part)]
        text = " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts)
        # Only the finished text goes into `args`, so that an error can be pickled: unpickling calls the class
        # with its `args` and restores the keyword-only attributes from the instance's `__dict__`. `plain`,
        # because a part from elsewhere (a member's name, a server's answer) must not begin a line of a log.
        super().__init__(plain(text))
        self.message = plain(message.rstrip())
        self.state = state
        self.owner = owner
        self.remedy = remedy


# --- names, subscriptions, attaching ------------------------------------------------------------------------


class IllegalState(KafkadurError):
    """The call is not allowed in the present state (rules U1, X4)."""


class InvalidClientId(KafkadurError):
    """The client id is held by another live connection (rule C1)."""


class InvalidDestination(KafkadurError):
    """The topic or the subscription does not exist, or cannot be used like this (rules U8, X2, X5)."""


class InvalidName(KafkadurError):
    """The name is empty, too long, or contains a character that is not allowed (rule U10)."""


class InvalidProperty(KafkadurError):
    """The message property or message field cannot be written as a Kafka header."""


class InvalidSelector(KafkadurError):
    """The selector cannot be understood."""

    #: Index of the character in the selector at which reading stopped, from 0; None if unknown.
    position: int | None

    def __init__(
        self,
        message: str | None = None,
        *,
        position: int | None = None,
        state: str | None = None,
        owner: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """Build the error; `position` is an index into the selector, in characters."""
        super().__init__(message, state=state, owner=owner, remedy=remedy)
        self.position = position


class InvalidSubscriptionSharing(KafkadurError):
    """The subscription exists with another kind of sharing: unshared against shared (rules U6, S5, P3-P5)."""


class ResourceLimit(KafkadurError):
    """A limit is reached, such as the number of members of a subscription (rule L2)."""


class SubscriptionActive(KafkadurError):
    """The subscription has an open consumer (rules U5, S4, X3)."""

    #: The names of the attached members, oldest first; empty if they are unknown.
    holders: tuple[str, ...]

    def __init__(
        self,
        message: str | None = None,
        *,
        holders: tuple[str, ...] = (),
        state: str | None = None,
        owner: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """Build the error; `owner` defaults to the names of `holders`."""
        super().__init__(message, state=state, owner=owner or ", ".join(holders) or None, remedy=remedy)
        self.holders = holders

    @property
    def holder(self) -> str | None:
        """The first of the attached members; None if unknown."""
        return self.holders[0] if self.holders else None


class SubscriptionDiffers(KafkadurError):
    """The subscription exists with another definition than asked for (rules U4, S3, P8, on_change)."""

    #: What differs: the part of the definition, its present value, and the value asked for, as texts.
    differences: tuple[tuple[str, str, str], ...]
    #: How many messages wait in the subscription; None if that is unknown.
    waiting: int | None

    def __init__(
        self,
        message: str | None = None,
        *,
        differences: tuple[tuple[str, str, str], ...] = (),
        waiting: int | None = None,
        state: str | None = None,
        owner: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """Build the error; `state` begins with what differs."""
        told = [f"{part} is {have}, asked for is {want}" for part, have, want in differences]
        if waiting is not None:
            told.append(f"{waiting:,} {'message waits' if waiting == 1 else 'messages wait'}")
        told += [state] if state else []
        super().__init__(message, state="; ".join(told) or None, owner=owner, remedy=remedy)
        self.differences = differences
        self.waiting = waiting
        self._message = message

    def with_waiting(self, waiting: int | None) -> Self:
        """Return this error, with the number of messages that wait."""
        return type(self)(
            self._message,
            differences=self.differences,
            waiting=waiting,
            owner=self.owner,
            remedy=self.remedy,
        )


class Unreached(KafkadurError):
    """Members of a distributed topic could not be reached; what they have stays as it is (rule M3)."""

    #: The names of the members that were not reached, and of those on which the call was completed.
    members: tuple[str, ...]
    done: tuple[str, ...]

    def __init__(
        self,
        message: str | None = None,
        *,
        members: tuple[str, ...] = (),
        done: tuple[str, ...] = (),
        state: str | None = None,
        owner: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """Build the error; `owner` defaults to the names of `members`."""
        super().__init__(message, state=state, owner=owner or ", ".join(members) or None, remedy=remedy)
        self.members = members
        self.done = done


class SubscriptionTypeMismatch(KafkadurError):
    """The subscription exists with another type; the type belongs to the definition."""


# --- settling -----------------------------------------------------------------------------------------------


class AlreadySettled(KafkadurError):
    """The delivery already has its verdict; a second one is not possible."""


class LeaseLost(KafkadurError):
    """The lease of the delivery is over; the message may be delivered again."""


class Fenced(LeaseLost):
    """The fencing token is stale: the lease has another holder, and nothing was changed."""


class TransactionRolledBack(KafkadurError):
    """The transaction was rolled back: nothing of it is settled, and nothing it sent is seen."""


# --- defects ------------------------------------------------------------------------------------------------


class InternalError(KafkadurError):
    """Kafkadur met a defect of its own; what was raised is the cause."""

    @classmethod
    def by(cls, error: BaseException, owner: str) -> Self:
        """Return the error for an unexpected exception in the work of `owner`; no message is lost by it."""
        made = cls(
            state=repr(error),
            owner=owner,
            remedy="subscribe again: unsettled messages are redelivered; report the log",
        )
        made.__cause__ = error
        return made


# --- connections and servers --------------------------------------------------------------------------------


class NotConnected(KafkadurError):
    """There is no connection: it was never opened."""


class ConnectionClosed(NotConnected):
    """The connection, or what was opened on it, is closed."""


class ForkedConnection(KafkadurError):
    """The process was forked after connecting; a connection belongs to the process that opened it."""


class CoordinatorUnavailable(KafkadurError):
    """Redis, which coordinates the subscriptions, does not answer."""


class CoordinatorRefused(KafkadurError):
    """Redis cannot be used as it is: it is too old, or set up so that coordination state could be evicted."""


class KafkaRefused(KafkadurError):
    """Kafka refuses who connects, how, or what they ask for."""


class StateLost(KafkadurError):
    """Redis lost coordination state; messages may be delivered again, none is lost."""


# A StateLost, because a caller that waits until lost state is rebuilt waits for Kafka, too.
class KafkaUnavailable(StateLost):
    """Kafka does not answer, so that state cannot be read or written now; nothing is lost."""


class TopicChanged(KafkadurError):
    """The topic was deleted and created again: its name is the same, its topic id and offsets are not."""


class DeliveryFailed(KafkadurError):
    """Messages were not delivered to Kafka."""

    #: The number of messages that failed for good.
    failed: int
    #: The number of messages for which Kafka had not answered in time.
    pending: int
    #: The number of messages that failed for each reason, by Kafka's error name (`MSG_SIZE_TOO_LARGE`).
    reasons: dict[str, int]

    def __init__(
        self,
        message: str | None = None,
        *,
        failed: int = 0,
        pending: int = 0,
        reasons: dict[str, int] | None = None,
        state: str | None = None,
        owner: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """Build the error; the counts are numbers of messages."""
        super().__init__(message, state=state, owner=owner, remedy=remedy)
        self.failed = failed
        self.pending = pending
        self.reasons = dict(reasons or {})


# --- serializers --------------------------------------------------------------------------------------------


class LevelNotReached(KafkadurError):
    """An acknowledgement is settled in Redis, but did not reach the level that was asked for in time."""


class Undecodable(KafkadurError):
    """A key or value cannot be deserialized; what the deserializer raised is the cause."""

    #: `key` or `value`.
    field: str
    #: The position of the message; None if unknown.
    topic: str | None
    partition: int | None
    offset: int | None
    #: Whether the cause seems to be outside the message, such as a registry that does not answer.
    transient: bool

    def __init__(
        self,
        message: str | None = None,
        *,
        field: str = "value",
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        transient: bool = False,
        state: str | None = None,
        owner: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """Build the error; topic, partition and offset identify the message."""
        super().__init__(message, state=state, owner=owner, remedy=remedy)
        self.field = field
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.transient = transient


class Unencodable(KafkadurError):
    """A key or value cannot be serialized, and nothing was sent; what the serializer raised is the cause."""

    #: `key` or `value`.
    field: str
    #: The topic to which it was to be sent; None if unknown.
    topic: str | None
    #: Whether the cause seems to be outside the message, such as a registry that does not answer.
    transient: bool

    def __init__(
        self,
        message: str | None = None,
        *,
        field: str = "value",
        topic: str | None = None,
        transient: bool = False,
        state: str | None = None,
        owner: str | None = None,
        remedy: str | None = None,
    ) -> None:
        """Build the error."""
        super().__init__(message, state=state, owner=owner, remedy=remedy)
        self.field = field
        self.topic = topic
        self.transient = transient
