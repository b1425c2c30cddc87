"""Distributed topics: a named set of Kafka topics, and where a message for it goes (rules M1-M3, X6, X7).

Each of the Kafka topics is a *topic member*; they may lie on different Kafka clusters. A subscription is on
one of them: its name is part of the key, so consumers share within it alone (M1), and the same key on two of
them is two subscriptions (M2). What does not live here: sending and connecting.
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

#: What a producer does with a message: one topic member gets it, or all of them do.
Forwarding = Literal["partitioned", "replicated"]


@dataclass(frozen=True, kw_only=True)
class TopicMember:
    """One Kafka topic of a distributed topic."""

    name: str
    topic: str
    #: confluent-kafka configuration of its cluster, on top of the connection's; None: the connection's
    #: cluster. Not shown: there may be passwords in it.
    kafka: Mapping[str, Any] | None = field(default=None, hash=False, repr=False)

    def __post_init__(self) -> None:
        """Validate the names; raises `InvalidName` and `InvalidDestination`."""
        validate_topic_member(self.name)
        validate_topic(self.topic)


@dataclass(frozen=True, kw_only=True)
class DistributedTopic:
    """A named set of topic members, and how messages are forwarded to them.

    Raises `IllegalState` for no member, two of one name, or a forwarding that does not exist.
    """

    name: str
    members: tuple[TopicMember, ...]
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
        """The topic member of this name; raises `InvalidDestination` for none."""
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
        """Where a message goes: it is sent to each of these.

        Replicated: to all. Partitioned: a key has one member, whatever else is the case, so its messages keep
        their order; without a key the `number` of the message decides, among the members that neither are
        `avoided` nor have `refused` it; if there is none, among those that have not refused it, or else all.
        """
        if self.forwarding == "replicated":
            return self.members
        if key is not None:
            return (self.members[crc32(key) % len(self.members)],)
        left = [member for member in self.members if member.name not in refused] or list(self.members)
        usable = [member for member in left if member.name not in avoided] or left
        return (usable[number % len(usable)],)

    def to_unsubscribe(self, policy: ClientIdPolicy, member: str | None) -> tuple[TopicMember, ...] | Refuse:
        """On which topic members a subscription is deleted when `member`, or none, is named (X6, X7).

        With an unrestricted client id one has to be named. Raises `InvalidDestination` for one that it has
        not.
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
