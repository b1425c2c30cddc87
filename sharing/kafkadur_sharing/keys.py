"""What identifies a subscription: its key, and the names derived from it.

The topic is no part of the key (it is a detail of the definition), so the same key on another topic is the
same subscription, replaced (rules U4, S3). What does not live here: what a subscription is like
(`definition.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final
from zlib import crc32

from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.names import (
    validate_client_id,
    validate_namespace,
    validate_subscription_name,
    validate_topic_member,
)


class ClientIdPolicy(StrEnum):
    """How many connections may hold a client id at the same time."""

    #: One live connection in the whole deployment (rule C1).
    RESTRICTED = "restricted"
    #: Any number of connections (rule C2).
    UNRESTRICTED = "unrestricted"


@dataclass(frozen=True, kw_only=True)
class SubscriptionKey:
    """The identity of a subscription; two subscriptions are the same exactly when their keys are equal.

    The same name under client id "x" and under none are two subscriptions (rule S6), so are a durable and a
    non-durable one of the same name (rule N5), and the two policies of one client id (rule C3). Raises
    `InvalidName` for a part that is no allowed name (rule U10).
    """

    #: The namespace: what separates deployments that share a Kafka and a Redis.
    namespace: str
    #: Whether the subscription outlives its consumers.
    durable: bool = True
    #: The client id of the connection; None when it has none.
    client_id: str | None = None
    #: The policy of the client id; always `RESTRICTED` without a client id, where it has nothing to say.
    policy: ClientIdPolicy = ClientIdPolicy.RESTRICTED
    #: The name of the subscription.
    name: str
    #: The member of a distributed topic that it is on (rule P1); None: it is on an ordinary topic.
    topic_member: str | None = None

    def __post_init__(self) -> None:
        """Validate the names and bring the policy to one form."""
        validate_namespace(self.namespace)
        validate_subscription_name(self.name)
        if self.client_id is not None:
            validate_client_id(self.client_id)
        if self.topic_member is not None:
            validate_topic_member(self.topic_member)
        policy = ClientIdPolicy.RESTRICTED if self.client_id is None else ClientIdPolicy(self.policy)
        object.__setattr__(self, "policy", policy)

    def to_record(self) -> dict[str, str | bool | None]:
        """The key as it stands in the journal."""
        member = {} if self.topic_member is None else {"topic_member": self.topic_member}
        return {
            "namespace": self.namespace,
            "durable": self.durable,
            "client_id": self.client_id,
            "policy": self.policy.value,
            "name": self.name,
            **member,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> SubscriptionKey:
        """Read a key as it stands in the journal; unknown fields are ignored.

        Raises `IllegalState` for what is none, and `InvalidName`.
        """
        namespace, name, client_id = record.get("namespace"), record.get("name"), record.get("client_id")
        try:
            policy = ClientIdPolicy(str(record.get("policy", ClientIdPolicy.RESTRICTED.value)))
        except ValueError:
            policy = None
        member = record.get("topic_member")
        named = isinstance(namespace, str) and isinstance(name, str) and isinstance(member, str | None)
        if policy is None or not named or not isinstance(client_id, str | None):
            raise IllegalState(
                "The record of a subscription's key is damaged.",
                owner="the journal",
                remedy="upgrade kafkadur in this process, if a newer version wrote it",
            )
        return cls(
            namespace=str(namespace),
            durable=record.get("durable") is not False,
            client_id=client_id,
            policy=policy,
            name=str(name),
            topic_member=None if member is None else str(member),
        )

    @cached_property
    def tag(self) -> str:
        """The first 16 hex digits of the SHA-256 of the key: the hash tag of all its Redis keys.

        What is hashed is the key as a JSON array `[namespace, durable, client id or null, policy, name]`,
        with the topic member behind it if there is one, without spaces: no two keys have the same text, and
        other languages can write it too.
        """
        parts = [self.namespace, self.durable, self.client_id, self.policy.value, self.name]
        if self.topic_member is not None:
            parts.append(self.topic_member)
        return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:16]

    @cached_property
    def group(self) -> str:
        """The Kafka consumer group under which the floor is mirrored, so that lag tools see the subscription.

        `kafkadur:{namespace}:{client id}:{name}`, with `:unrestricted`, `:nondurable` and `:@{topic member}`
        behind it where they apply. A name contains neither colon nor @, so two keys never share a group.
        """
        parts: list[str] = ["kafkadur", self.namespace, self.client_id or "", self.name]
        if self.policy is ClientIdPolicy.UNRESTRICTED:
            parts.append(self.policy.value)
        if not self.durable:
            parts.append("nondurable")
        if self.topic_member is not None:
            parts.append(f"@{self.topic_member}")
        return ":".join(parts)

    @cached_property
    def display(self) -> str:
        """The key for people: `client/name` or `name`, and behind it what is not the default.

        On a member of a distributed topic: `client/name@member`.
        """
        text = self.name if self.client_id is None else f"{self.client_id}/{self.name}"
        if self.topic_member is not None:
            text = f"{text}@{self.topic_member}"
        remarks: list[str] = []
        if self.policy is ClientIdPolicy.UNRESTRICTED:
            remarks.append(self.policy.value)
        if not self.durable:
            remarks.append("non-durable")
        return f"{text} ({', '.join(remarks)})" if remarks else text

    def __str__(self) -> str:
        """Return `display`."""
        return self.display


def client_id_tag(namespace: str, client_id: str) -> str:
    """Return the hash tag of the Redis keys of a client id: as that of a subscription, and never the same.

    It is made of the JSON array `[namespace, client id]`.
    """
    parts = [namespace, client_id]
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:16]


#: Shares that keys are spread over; a lane has some of them.
SLOTS: Final = 256


def key_slot(key: bytes | None, offset: int) -> int:
    """Return the slot of a key, 0 to 255: messages with one key are in one slot.

    It is the CRC-32 of the key, modulo 256; messages without a key have no order, and their slot is that of
    their offset. Part of what a key-ordered subscription is: it never changes.
    """
    return (offset if key is None else crc32(key)) % SLOTS
