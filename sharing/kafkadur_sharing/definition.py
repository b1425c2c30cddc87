"""The definition of a subscription: its type, topic, selector and the other values fixed at its creation.

This module does not contain its key (`keys.py`) or the rules for attaching and unsubscribing
(`decisions.py`), and does not write the definition to the journal and to Redis (`kafkadur_coordinators`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal, cast, get_args

from kafkadur_sharing.errors import IllegalState, InvalidProperty
from kafkadur_sharing.names import validate_property_name, validate_subscribed_topic
from kafkadur_sharing.numbers import check_bool, check_delay, check_instance, check_integer
from kafkadur_sharing.redelivery_policy import Redelivery, duration, in_ms, number, whole_ms

#: The type as which a header of a plain producer is read.
HeaderType = Literal["str", "int", "float", "bool", "bytes"]
#: Where a new subscription starts: after or before the present messages of the topic.
Start = Literal["latest", "earliest"]

#: What passes to the next member at the end of a turn: all partitions together, or each separately.
Scope = Literal["subscription", "partition"]

#: The names of the subscription types.
TypeName = Literal["exclusive", "priority", "serial", "shared", "key-ordered"]

#: Where an acknowledgement is stored when it is confirmed: in Redis, also in its replicas, or in Kafka.
AckLevel = Literal["redis", "replicated", "journal"]

#: Most key lanes that a partition can have.
MOST_LANES: Final = 64
#: The highest limit of consumers of a shared subscription.
MOST_CONSUMERS: Final = 1_000_000
#: The shortest and the longest time for which a delivery history is kept.
SHORTEST_HISTORY: Final = timedelta(minutes=1)
LONGEST_HISTORY: Final = timedelta(days=3_650)

#: Version of the records that `Definition.to_record` writes.
RECORD_FORMAT: Final = 1


class Sharing(StrEnum):
    """Whether a subscription can have more than one attached consumer."""

    UNSHARED = "unshared"
    SHARED = "shared"


class SubscriptionType(StrEnum):
    """Who gets the next message; part of the definition and never inferred."""

    #: One member; a second one is refused.
    EXCLUSIVE = "exclusive"
    #: The attached member with the best priority receives; the next one is on standby.
    PRIORITY = "priority"
    #: Members take turns; one at a time has messages in flight.
    SERIAL = "serial"
    #: Members work in parallel, round-robin.
    SHARED = "shared"
    #: Members work in parallel, each key with one member at a time.
    KEY_ORDERED = "key-ordered"

    @property
    def sharing(self) -> Sharing:
        """Unshared for exclusive, shared for all others."""
        return Sharing.UNSHARED if self is SubscriptionType.EXCLUSIVE else Sharing.SHARED


def validate_level(level: str) -> AckLevel:
    """Return an acknowledgement level; raises `IllegalState` if there is no such level."""
    if level not in get_args(AckLevel):
        raise IllegalState(
            f"There is no acknowledgement level {level!r}.",
            remedy=f"use one of {', '.join(get_args(AckLevel))}",
        )
    return cast("AckLevel", level)


@dataclass(frozen=True, kw_only=True)
class Details:
    """The parts that must be equal for a consumer to join an existing subscription (rules U3, U4, S2-S4)."""

    topic: str
    selector: str | None
    #: Always False for a shared subscription, where it is not a detail (disagreement D4).
    no_local: bool


@dataclass(frozen=True, kw_only=True)
class Definition:
    """The definition of a subscription, as the journal keeps it.

    An empty selector counts as no selector. Raises `InvalidDestination` for a name that is not one topic, and
    `InvalidProperty` for an unknown header type or a header that cannot be a property.
    """

    #: The type; it changes only by an explicit conversion.
    type: SubscriptionType
    #: The Kafka topic.
    topic: str
    #: The selector as it was written; None takes every message.
    selector: str | None = None
    #: Whether messages of the same connection or client id are left out (rule U7).
    no_local: bool = False
    #: Where the subscription starts when it is created; it has no effect afterwards.
    start: Start = "latest"
    #: The types of headers from producers that write no types; None: they are texts.
    header_types: Mapping[str, HeaderType] | None = field(default=None, hash=False)
    #: How messages that were not acknowledged are redelivered.
    redelivery: Redelivery = field(default_factory=Redelivery)
    #: Whether later messages wait for a message that was rolled back (types with an order).
    strict_order: bool = False
    #: For a serial subscription: whether members take turns on all partitions together or on each separately.
    scope: Scope = "subscription"
    #: The level for which `ack` waits by default.
    ack_level: AckLevel = "redis"
    #: How many consumers a shared subscription can have at a time (rule L1); None: any number.
    max_consumers: int | None = None
    #: For a key-ordered subscription: how many members can share a partition, each with a share of the keys.
    #: None: it is chosen when the subscription is created. Neither it nor the share of a key ever changes.
    key_lanes: int | None = None
    #: How long its delivery history is kept, in whole ms: which member had each message, when, and what
    #: became of it. None: it has no history.
    history: timedelta | None = None

    def __post_init__(self) -> None:
        """Validate, and normalize values that can be written in several ways."""
        object.__setattr__(self, "type", SubscriptionType(self.type))
        validate_subscribed_topic(self.topic)
        if self.start not in get_args(Start):
            raise IllegalState(
                f"A subscription cannot start at {self.start!r}.",
                remedy="use start='latest' or start='earliest'",
            )
        object.__setattr__(self, "selector", (self.selector or "").strip() or None)
        self._check()
        # A copy: the caller's mapping may change, a definition may not.
        types = dict(self.header_types or {})
        for name, header_type in types.items():
            validate_property_name(name)
            if header_type not in get_args(HeaderType):
                raise InvalidProperty(
                    f"Header {name!r} has the unknown type {header_type!r}.",
                    remedy=f"use one of {', '.join(get_args(HeaderType))}",
                )
        object.__setattr__(self, "header_types", types or None)
        if self.key_lanes is not None:
            lanes = check_integer("key_lanes", self.key_lanes, 1, MOST_LANES, instead=", or None")
            object.__setattr__(self, "key_lanes", lanes)
        if self.strict_order and self.type is SubscriptionType.SHARED:
            raise IllegalState(
                "A shared subscription has no order that could be strict.",
                remedy="use exclusive, priority, serial or key-ordered",
            )
        validate_level(self.ack_level)
        if self.max_consumers is not None:
            most = check_integer(
                "max_consumers", self.max_consumers, 1, MOST_CONSUMERS, instead=", or None for no limit"
            )
            object.__setattr__(self, "max_consumers", most)
        if self.history is not None:
            object.__setattr__(self, "history", _check_history(self.history))
        if self.scope not in get_args(Scope):
            raise IllegalState(
                f"Turns cannot have the scope {self.scope!r}.",
                remedy="use scope='subscription' or scope='partition'",
            )
        if self.scope != "subscription" and self.type is not SubscriptionType.SERIAL:
            raise IllegalState(
                f"A subscription of type {self.type} has no turns that could have a scope.",
                remedy="use type serial, or leave scope out",
            )

    def _check(self) -> None:
        """Raise an error for what cannot be, whatever the type."""
        for name in ("no_local", "strict_order"):
            check_bool(name, getattr(self, name))
        check_instance("redelivery", self.redelivery, Redelivery)
        if self.dead_letter_topic == self.topic:
            raise IllegalState(
                "The dead letters of a subscription cannot be sent to its own topic.",
                state=f"dead_letter_topic={self.topic!r}",
                owner="the caller",
                remedy="name another topic: each dead letter would be delivered as a new message",
            )

    @property
    def most_consumers(self) -> int:
        """How many consumers can be attached at a time; 0: any number."""
        return 1 if self.sharing is Sharing.UNSHARED else self.max_consumers or 0

    @property
    def policy(self) -> tuple[int, int, int, int, int, int]:
        """The values that the scripts need.

        Most attempts (0: no limit), back-off, longest back-off (ms), strict order, lanes per partition, and
        whether each partition has its own turns.
        """
        chosen = self.redelivery
        return (
            chosen.max_attempts or 0,
            in_ms(chosen.backoff),
            in_ms(chosen.max_backoff),
            int(self.strict_order),
            self.lanes,
            int(self.scope == "partition"),
        )

    @property
    def lanes(self) -> int:
        """Lanes per partition: the most members that can work on it, each with a share of its keys."""
        return (self.key_lanes or 1) if self.type is SubscriptionType.KEY_ORDERED else 1

    @property
    def dead_letter_topic(self) -> str:
        """The topic of its dead letters."""
        return self.redelivery.dead_letter_topic or f"{self.topic}.dead"

    @property
    def sharing(self) -> Sharing:
        """Whether more than one consumer may attach; the type determines it."""
        return self.type.sharing

    @property
    def details(self) -> Details:
        """Topic, selector and, for an unshared subscription only, no_local."""
        no_local = self.no_local and self.sharing is Sharing.UNSHARED
        return Details(topic=self.topic, selector=self.selector, no_local=no_local)

    def to_record(self) -> dict[str, object]:
        """Return a dict of plain values (str, bool, int, dict, None) with the format version."""
        return {
            "format": RECORD_FORMAT,
            "type": self.type.value,
            "topic": self.topic,
            "selector": self.selector,
            "no_local": self.no_local,
            "start": self.start,
            "header_types": None if self.header_types is None else dict(self.header_types),
            "redelivery": self.redelivery.to_record(),
            "strict_order": self.strict_order,
            "key_lanes": self.key_lanes,
            "scope": self.scope,
            "ack_level": self.ack_level,
            "max_consumers": self.max_consumers,
            "history": None if self.history is None else in_ms(self.history),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Definition:
        """Read what `to_record` wrote, also by a newer minor version: unknown fields are ignored.

        Raises `IllegalState` for a newer format and for a damaged record.
        """
        version = record.get("format")
        if not isinstance(version, int) or version < 1:
            raise IllegalState(
                "This is no record of a subscription's definition.", state=f"format {version!r}"
            )
        if version > RECORD_FORMAT:
            raise IllegalState(
                "The definition was written by a newer kafkadur.",
                state=f"format {version}, this version reads up to {RECORD_FORMAT}",
                remedy="upgrade kafkadur in this process",
            )
        try:
            return cls(
                type=SubscriptionType(_text(record, "type")),
                topic=_text(record, "topic"),
                selector=_text(record, "selector") if record.get("selector") is not None else None,
                no_local=record.get("no_local") is True,
                start="earliest" if record.get("start") == "earliest" else "latest",
                header_types=_header_types(record.get("header_types")),
                redelivery=Redelivery.from_record(record.get("redelivery")),
                strict_order=record.get("strict_order") is True,
                key_lanes=number(record, "key_lanes"),
                scope="partition" if record.get("scope") == "partition" else "subscription",
                ack_level=_level(record),
                max_consumers=number(record, "max_consumers"),
                history=duration(record, "history"),
            )
        except (ValueError, OverflowError) as error:
            raise IllegalState(
                "The record of a subscription's definition is damaged.", state=str(error)
            ) from error


def _check_history(kept: timedelta | float) -> timedelta:
    time = whole_ms(check_delay("history", kept, LONGEST_HISTORY))
    if time < SHORTEST_HISTORY:
        raise IllegalState(
            f"history cannot be {kept}.",
            owner="the caller",
            remedy="use a timedelta, or seconds, from one minute to 3,650 days, or None for no history",
        )
    return time


def _text(record: Mapping[str, object], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        msg = f"field {name!r} is no text"
        raise ValueError(msg)  # noqa: TRY004 - a damaged record is a wrong value, caught by the caller as such
    return value


def _level(record: Mapping[str, object]) -> AckLevel:
    # An unknown level, written by a newer version, is read as the safest one.
    known: dict[str, AckLevel] = {level: level for level in get_args(AckLevel)}
    return known.get(str(record.get("ack_level", "redis")), "journal")


def _header_types(value: object) -> dict[str, HeaderType] | None:
    if value is None:
        return None
    known: dict[str, HeaderType] = {name: name for name in get_args(HeaderType)}
    if not isinstance(value, Mapping):
        msg = "field 'header_types' is no mapping"
        raise ValueError(msg)  # noqa: TRY004 - as above
    # An unknown type, written by a newer version, is read as text, like a header without a type.
    types = cast("Mapping[object, object]", value)
    return {str(name): known.get(str(kind), "str") for name, kind in types.items()}
