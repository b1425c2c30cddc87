"""The topics and queues that clients name, by address and capability. No I/O.

A queue is a topic of its name with one durable subscription that all its consumers share (`queue.NAME`). The
address of a temporary destination says which gateway has it (`temporary.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kafkadur.gateway.conditions import INVALID_FIELD, NOT_FOUND, Refused
from kafkadur_sharing.names import TEMPORARY_PREFIX

#: Beginning of the names of the subscriptions of queues; others without a client id must not begin so.
QUEUE_PREFIX: Final = "queue."
_TOPIC, _QUEUE = "topic://", "queue://"
_TEMPORARY: Final = re.compile(
    re.escape(TEMPORARY_PREFIX)
    + r"(?P<kind>queue|topic)\.(?P<partition>\d{1,4})\.(?P<gateway>[0-9a-f]{12})\.[0-9a-f]{16}"
)


class Kind(IntEnum):
    """The kinds of destinations, as Qpid JMS numbers them in annotations of messages."""

    QUEUE = 0
    TOPIC = 1
    TEMPORARY_QUEUE = 2
    TEMPORARY_TOPIC = 3


@dataclass(frozen=True)
class Destination:
    """A place to which clients send, and from which they receive."""

    #: of the topic in Kafka, except of a temporary destination
    name: str
    kind: Kind = Kind.TOPIC

    @property
    def is_queue(self) -> bool:
        """Whether it is a queue in Kafka."""
        return self.kind is Kind.QUEUE

    @property
    def is_temporary(self) -> bool:
        """Whether it ends with the link of a client."""
        return self.kind in {Kind.TEMPORARY_QUEUE, Kind.TEMPORARY_TOPIC}

    @property
    def subscription(self) -> str:
        """Name of the durable subscription of a queue."""
        return QUEUE_PREFIX + self.name


def destination_of(
    address: str | None, capabilities: frozenset[str] = frozenset(), kind: object = None
) -> Destination:
    """Return the destination that an address means; raises `Refused`.

    The prefix of the address decides, else a capability of the link, else the kind that a message is
    annotated with; without any of them it is a topic.
    """
    text = address or ""
    if not text:
        raise Refused(INVALID_FIELD, "The message or the link names no address.")
    if found := _TEMPORARY.fullmatch(text):
        return Destination(text, Kind.TEMPORARY_QUEUE if found["kind"] == "queue" else Kind.TEMPORARY_TOPIC)
    if name_in(text).startswith("__"):
        raise not_found(Destination(name_in(text)))  # Kafka's own
    is_queue = "queue" in capabilities or kind == Kind.QUEUE
    if text.startswith((_QUEUE, _TOPIC)):
        is_queue = text.startswith(_QUEUE)
    return Destination(name_in(text), Kind.QUEUE if is_queue else Kind.TOPIC)


def name_in(address: str) -> str:
    """Return an address without its prefix."""
    return address.removeprefix(_QUEUE).removeprefix(_TOPIC)


def temporary(kind: Kind, *, partition: int, gateway: str, secret: str) -> Destination:
    """Return a temporary destination of a gateway, whose messages are in a partition.

    Whoever knows the address can send to it: `secret`, 16 hexadecimal digits, keeps others from guessing it.
    """
    word = "queue" if kind is Kind.TEMPORARY_QUEUE else "topic"
    return Destination(f"{TEMPORARY_PREFIX}{word}.{partition}.{gateway}.{secret}", kind)


def home_of(destination: Destination) -> tuple[int, str]:
    """Return the partition and the gateway of a temporary destination."""
    found = _TEMPORARY.fullmatch(destination.name)
    assert found is not None  # noqa: S101 - `destination_of` has seen it
    return int(found["partition"]), found["gateway"]


def not_found(destination: Destination) -> Refused:
    """Return the refusal of a destination that does not exist."""
    if destination.is_temporary:
        return Refused(NOT_FOUND, f"The temporary destination {destination.name!r} has ended.")
    return Refused(NOT_FOUND, f"There is no topic {destination.name!r}. Create it in Kafka.")
