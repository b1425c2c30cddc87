"""The identity of a subscription: its key, and the names derived from it.

The topic is not part of the key but a detail of the definition (`definition.py`), so the same key on another
topic is the same subscription, replaced (rules U4, S3).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal
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


#: The names of the policies.
PolicyName = Literal["restricted", "unrestricted"]


@dataclass(frozen=True, kw_only=True)
class SubscriptionKey:
    """The identity of a subscription; two subscriptions are the same exactly when their keys are equal.

    The same name with client id "x" and without a client id are two subscriptions (rule S6). So are a durable
    and a non-durable one of the same name (rule N5), and the two policies of one client id (rule C3). Raises
    `InvalidName` for a part that is not an allowed name (rule U10).
    """

    #: The namespace, which separates deployments that share a Kafka and a Redis.
    namespace: str
    #: Whether the subscription outlives its consumers.
    durable: bool = True
    #: The client id of the connection; None when it has none.
    client_id: str | None = None
    #: The policy of the client id; always `RESTRICTED` without a client id, where it has no effect.
    policy: ClientIdPolicy = ClientIdPolicy.RESTRICTED
    #: The name of the subscription.
    name: str
    #: The member of a distributed topic on which it is (rule P1); None: it is on an ordinary topic.
    topic_member: str | None = None

    def __post_init__(self) -> None:
        """Validate the names and normalize the policy."""
        validate_namespace(self.namespace)
        validate_subscription_name(self.name)
        if self.client_id is not None:
            validate_client_id(self.client_id)
        if self.topic_member is not None:
            validate_topic_member(self.topic_member)
        policy = ClientIdPolicy.RESTRICTED if self.client_id is None else ClientIdPolicy(self.policy)
        object.__setattr__(self, "policy", policy)

    def to_record(self) -> dict[str, str | bool | None]:
        """Return the key as the journal records it."""
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
        """Read a key as the journal records it; unknown fields are ignored.

        Raises `IllegalState` for a damaged record, and `InvalidName`.
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

        The hash is over the key as a JSON array `[namespace, durable, client id or null, policy, name]`,
        followed by the topic member if there is one, without spaces. No two keys have the same text, and
        other languages can produce it too.
        """
        parts = [self.namespace, self.durable, self.client_id, self.policy.value, self.name]
        if self.topic_member is not None:
            parts.append(self.topic_member)
        return digest(parts)

    @cached_property
    def group(self) -> str:
        """The Kafka consumer group to which the floor is mirrored, so that lag tools see the subscription.

        `kafkadur:{namespace}:{client id}:{name}`, followed by `:unrestricted`, `:nondurable` and
        `:@{topic member}` if they apply. Names contain neither colon nor @, so two keys never share a group.
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
        """The key for people: `client/name` or `name`, followed by the values that are not defaults.

        On a member of a distributed topic it is `client/name@member`.
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
    """Return the hash tag of the Redis keys of a client id; it never equals the tag of a subscription.

    It is the digest of the JSON array `[namespace, client id]`.
    """
    return digest([namespace, client_id])


def digest(parts: list[Any]) -> str:
    """Return the first 16 hex digits of the SHA-256 of a JSON array without spaces."""
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:16]


#: Slots over which keys are spread; each lane has some of them.
SLOTS: Final = 256


def key_slot(key: bytes | None, offset: int) -> int:
    """Return the slot of a key, 0 to 255: messages with one key are in one slot.

    It is the CRC-32 of the key, modulo 256. Messages without a key have no order, and their slot is their
    offset modulo 256. Key-ordered subscriptions depend on this function, so it never changes.
    """
    return (offset if key is None else crc32(key)) % SLOTS
