"""Distributed topics: a named set of Kafka topics, and the choice of one for a message (rules M1-M3, X6, X7).

Each of the Kafka topics is a *topic member*; they may be on different Kafka clusters. A subscription is on
one topic member, whose name is part of the key: consumers share only within it (M1), and the same
subscription name on two topic members denotes two subscriptions (M2). Sending and connecting happen
elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from zlib import crc32

from kafkadur_sharing.decisions import Refuse
from kafkadur_sharing.errors import IllegalState, InvalidDestination
from kafkadur_sharing.keys import ClientIdPolicy
from kafkadur_sharing.names import validate_topic, validate_topic_member

#: Whether a producer sends a message to one topic member or to all of them.
Forwarding = Literal["partitioned", "replicated"]


@dataclass(frozen=True, kw_only=True)
class TopicMember:
    """One Kafka topic of a distributed topic."""

    #: Its name, which is part of the key of its subscriptions.
    name: str
    #: The Kafka topic.
    topic: str
    #: confluent-kafka configuration of its cluster, which overrides the connection's; None: the connection's
    #: cluster. It is not shown, because it may contain passwords.
    kafka: Mapping[str, Any] | None = field(default=None, hash=False, repr=False)

    def __post_init__(self) -> None:
        """Validate the names; raises `InvalidName` and `InvalidDestination`."""
        validate_topic_member(self.name)
        validate_topic(self.topic)


@dataclass(frozen=True, kw_only=True)
class DistributedTopic:
    """A named set of topic members, and how messages are forwarded to them.

    Raises `IllegalState` for no member, for two of the same name, and for an unknown forwarding.
    """

    #: Its name, for people.
    name: str
    #: The topic members, one or more.
    members: tuple[TopicMember, ...]
    #: "partitioned": each message to one member; "replicated": to all.
    forwarding: Forwarding = "partitioned"

    def __post_init__(self) -> None:
        """Validate."""
        validate_topic(self.name)
        names = [member.name for member in self.members]
        if not names or len(set(names)) < len(names):
            raise IllegalState(
                f"The members of distributed topic {self.name} are not told apart by their names.",
                state=", ".join(names) or "there is none",
                remedy="give it one topic member or more, each with a name of its own",
            )
        if self.forwarding not in get_args(Forwarding):
            raise IllegalState(
                f"There is no forwarding {self.forwarding!r}.",
                owner=f"distributed topic {self.name}",
                remedy="use 'partitioned' or 'replicated'",
            )

    def member(self, name: str) -> TopicMember:
        """Return the topic member of this name; raises `InvalidDestination` if there is none."""
        for member in self.members:
            if member.name == name:
                return member
        raise InvalidDestination(
            f"Distributed topic {self.name} has no member {name!r}.",
            state=f"it has {', '.join(member.name for member in self.members)}",
            owner=f"distributed topic {self.name}",
            remedy="name one of them",
        )

    def targets(
        self, key: bytes | None, number: int, avoided: Collection[str] = (), refused: Collection[str] = ()
    ) -> tuple[TopicMember, ...]:
        """Return the topic members to which a message is sent.

        Replicated: all of them. Partitioned: a key always has the same member, so that its messages keep
        their order. Without a key, the `number` of the message selects one of the members that are not
        `avoided` and have not `refused` it; if there is none, one that has not refused it, or else any.
        """
        if self.forwarding == "replicated":
            return self.members
        if key is not None:
            return (self.members[crc32(key) % len(self.members)],)
        left = [member for member in self.members if member.name not in refused] or list(self.members)
        usable = [member for member in left if member.name not in avoided] or left
        return (usable[number % len(usable)],)

    def to_unsubscribe(self, policy: ClientIdPolicy, member: str | None) -> tuple[TopicMember, ...] | Refuse:
        """Return the topic members on which a subscription is deleted: `member`, or all (X6, X7).

        With an unrestricted client id `member` must be named. Raises `InvalidDestination` for an unknown one.
        """
        if member is not None:
            return (self.member(member),)
        if policy is ClientIdPolicy.UNRESTRICTED:
            error = InvalidDestination(
                "With an unrestricted client id a subscription is deleted on one topic member at a time.",
                state=f"distributed topic {self.name}, no topic member is named",
                remedy=f"name one of {', '.join(each.name for each in self.members)}",
            )
            return Refuse(rule="X7", error=error)
        return self.members
