"""One copy of each message for every instance of an application, or for the whole application (rules O1, O2).

This module chooses the client id, its policy, and the name and type of the subscription. Pass on what it
returns: `connect(**copies.connection)`, `subscribe(topic, **copies.subscription)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafkadur_sharing.definition import Sharing, SubscriptionType, TypeName
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.keys import ClientIdPolicy
from kafkadur_sharing.names import validate_client_id, validate_subscription_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Copies:
    """How to connect, and how to subscribe."""

    #: For `connect`: client id and policy.
    connection: Mapping[str, Any]
    #: For `subscribe`: name and type.
    subscription: Mapping[str, Any]


def one_copy_per_instance(application: str, instance: str, *, durable: str | None = None) -> Copies:
    """Each instance of an application gets every message, in order (rule O1).

    `instance` names this instance, and stays the same after a restart, such as the name of a pod of a
    StatefulSet. Two instances with the same name cannot be connected at the same time (rule C1). With
    `durable` an instance also gets the messages that come while it is away. Raises `InvalidName`.
    """
    name = {} if durable is None else {"durable": validate_subscription_name(durable)}
    return Copies(
        connection={
            "client_id": validate_client_id(f"{application}.{instance}"),
            "client_id_policy": ClientIdPolicy.RESTRICTED,
        },
        subscription={**name, "type": SubscriptionType.EXCLUSIVE},
    )


def one_copy_per_application(
    application: str,
    *,
    durable: str | None = None,
    type: SubscriptionType | TypeName = "shared",  # noqa: A002 - the field's word
) -> Copies:
    """All instances of an application together get each message once (rule O2).

    `type` is any type but exclusive. With `durable` messages wait while no instance is connected. The result
    is for one topic: for another topic use another `durable`, or without `durable` another connection.
    Raises `InvalidName`, and `IllegalState` for a type that cannot be shared.
    """
    try:
        kind = SubscriptionType(type)
    except ValueError as error:
        raise IllegalState(
            f"There is no subscription type {type!r}.",
            remedy=f"use one of {', '.join(item.value for item in SubscriptionType)}",
        ) from error
    if kind.sharing is Sharing.UNSHARED:
        raise IllegalState(
            f"Instances cannot share a subscription of type {kind.value}.",
            owner=f"application {application}",
            remedy="use shared, serial, priority or key-ordered, or one_copy_per_instance",
        )
    name = {"shared": application} if durable is None else {"durable": validate_subscription_name(durable)}
    return Copies(
        connection={
            "client_id": validate_client_id(application),
            "client_id_policy": ClientIdPolicy.UNRESTRICTED,
        },
        subscription={**name, "type": kind},
    )
