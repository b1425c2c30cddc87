"""The topics and queues that clients name, by address and capability. No I/O.

A queue is a topic of its name with one durable subscription that all its consumers share (`queue.NAME`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kafkadur.gateway.conditions import INVALID_FIELD, NOT_FOUND, NOT_IMPLEMENTED, Refused

#: Beginning of the names of the subscriptions of queues; others without a client id must not begin so.
QUEUE_PREFIX: Final = "queue."
_TOPIC, _QUEUE = "topic://", "queue://"


class Kind(IntEnum):
    """The kinds of destinations, as Qpid JMS numbers them in annotations of messages."""

    QUEUE = 0
    TOPIC = 1
    TEMPORARY_QUEUE = 2
    TEMPORARY_TOPIC = 3


@dataclass(frozen=True)
class Destination:
    """A place to which clients send, and from which they receive."""

    #: of the topic in Kafka
    topic: str
    is_queue: bool = False

    @property
    def subscription(self) -> str:
        """Name of the durable subscription of a queue."""
        return QUEUE_PREFIX + self.topic

    @property
    def kind(self) -> Kind:
        """Its kind, as annotations of messages name it."""
        return Kind.QUEUE if self.is_queue else Kind.TOPIC


def destination_of(
    address: str | None, capabilities: frozenset[str] = frozenset(), kind: object = None
) -> Destination:
    """Return the destination that an address means; raises `Refused`.

    The prefix `queue://` or `topic://` decides, else a capability of the link, else the kind that a message
    is annotated with; without any of them it is a topic.
    """
    text = address or ""
    if not text:
        raise Refused(INVALID_FIELD, "The message or the link names no address.")
    if kind in {Kind.TEMPORARY_QUEUE, Kind.TEMPORARY_TOPIC}:
        raise Refused(NOT_IMPLEMENTED, "The gateway has no temporary destinations yet.")
    is_queue = "queue" in capabilities or kind == Kind.QUEUE
    if text.startswith((_QUEUE, _TOPIC)):
        is_queue = text.startswith(_QUEUE)
    return Destination(name_in(text), is_queue)


def name_in(address: str) -> str:
    """Return an address without its prefix."""
    return address.removeprefix(_QUEUE).removeprefix(_TOPIC)


def no_topic(destination: Destination) -> Refused:
    """Return the refusal of a destination whose topic does not exist."""
    return Refused(NOT_FOUND, f"There is no topic {destination.topic!r}. Create it in Kafka.")
