"""Which parts of a definition a type has, and how a definition changes part by part. Pure functions.

`decisions.py` decides whether a consumer that asks for another definition changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final, TypedDict, cast

from kafkadur_sharing.decisions import Mode, no_client_id
from kafkadur_sharing.definition import (
    AckLevel,
    Definition,
    HeaderType,
    Scope,
    Sharing,
    Start,
    SubscriptionType,
    TypeName,
)
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.redelivery_policy import Redelivery
from kafkadur_sharing.selector import parse_selector


class Changes(TypedDict, total=False):
    """The parts of a definition that can change; what is left out stays.

    The last six are parts of the redelivery policy, which `redelivery` replaces as a whole.
    """

    type: SubscriptionType | TypeName
    selector: str | None
    no_local: bool
    header_types: Mapping[str, HeaderType] | None
    strict_order: bool
    key_lanes: int | None
    scope: Scope
    ack_level: AckLevel
    max_consumers: int | None
    history: timedelta | float | None
    redelivery: Redelivery
    max_attempts: int | None
    backoff: timedelta | float
    max_backoff: timedelta | float
    max_hold: timedelta | float | None
    dead_letter_topic: str | None
    rescue: bool


#: Parts that may be None; None for any other one says that it stays.
_NONE: Final = frozenset(
    {
        "selector", "header_types", "key_lanes", "max_consumers", "max_attempts", "max_hold",
        "dead_letter_topic", "history",
    }
)  # fmt: skip
_REDELIVERY: Final = frozenset(each.name for each in fields(Redelivery))


def changed(key: SubscriptionKey, before: Definition, changes: Changes, *, mode: Mode = "jms") -> Definition:
    """Return a definition with some parts changed.

    With another type, parts that only the old type has get their default. Raises `IllegalState` for an
    unknown part, a wrong value, a part that the type does not have, and for the type exclusive without a
    client id (rule U1); `InvalidProperty` for wrong header types.
    """
    unknown = sorted(set(changes) - set(Changes.__annotations__))
    if unknown:
        raise IllegalState(
            f"A definition has no part {unknown[0]!r} that could change.",
            state=f"{unknown[0]}={cast('Mapping[str, Any]', changes)[unknown[0]]!r}",
            owner=f"subscription {key}",
            remedy=f"use one of {', '.join(Changes.__annotations__)}",
        )
    given = {name: value for name, value in changes.items() if value is not None or name in _NONE}
    parts: dict[str, Any] = {name: value for name, value in given.items() if name not in _REDELIVERY}
    policy: dict[str, Any] = {name: value for name, value in given.items() if name in _REDELIVERY}
    kind = subscription_type(parts.get("type", before.type))
    if kind is not before.type:
        parts = _defaults_of(kind, mode) | parts
    parts["type"] = kind
    parts["redelivery"] = replace(parts.get("redelivery", before.redelivery), **policy)
    check_parts(kind, {name: value for name, value in parts.items() if name in given}, mode=mode)
    if kind is SubscriptionType.EXCLUSIVE and key.client_id is None:
        raise IllegalState(
            f"Subscription {key} cannot be exclusive.",
            state="it has no client id, so that no consumer could attach to it (rule U1)",
            owner=f"subscription {key}",
            remedy=f"make a copy under a client id, `kafkadur sub fork {key} CLIENT_ID/{key.name}`, "
            "and change the type of the copy",
        )
    return replace(before, **parts)


def created(
    key: SubscriptionKey, topic: str, start: Start, parts: Changes, *, mode: Mode = "jms"
) -> Definition:
    """Return the definition of a new durable subscription, which is shared unless `parts` say otherwise.

    Raises `IllegalState` for wrong parts and for an exclusive one without a client id (rule U1), and
    `InvalidSelector`.
    """
    parse_selector(parts.get("selector"))
    kind = subscription_type(parts.get("type", SubscriptionType.SHARED))
    if kind is SubscriptionType.EXCLUSIVE and key.client_id is None:
        raise no_client_id(key)
    return changed(key, Definition(type=kind, topic=topic, start=start), parts, mode=mode)


def _defaults_of(kind: SubscriptionType, mode: Mode) -> dict[str, Any]:
    """Return the parts to set when a subscription becomes one of this type, which may not have them."""
    parts: dict[str, Any] = {"key_lanes": None, "scope": "subscription"}
    if kind is SubscriptionType.SHARED:
        parts["strict_order"] = False
    if kind.sharing is Sharing.UNSHARED:
        parts["max_consumers"] = None
    elif mode != "weblogic":
        parts["no_local"] = False
    return parts


def check_parts(kind: SubscriptionType, parts: Mapping[str, Any], *, mode: Mode = "jms") -> None:
    """Refuse parts that a type does not have, by parameters of `subscribe` and their values.

    A value that says that the part is not used is allowed. `no_local` of a shared subscription counts in the
    mode weblogic only (disagreement D4). Raises `IllegalState`.
    """
    unshared = kind.sharing is Sharing.UNSHARED
    has = {
        "key_lanes": kind is SubscriptionType.KEY_ORDERED,
        "scope": kind is SubscriptionType.SERIAL,
        "strict_order": kind is not SubscriptionType.SHARED,
        "no_local": unshared or mode == "weblogic",
        "max_consumers": not unshared,
        "priority": kind is SubscriptionType.PRIORITY,
        "preempt": kind is SubscriptionType.PRIORITY,
    }
    for name, value in parts.items():
        if has.get(name, True) or value in (None, False, 0, "subscription"):
            continue
        raise IllegalState(
            f"A subscription of the type {kind} has no {name}.",
            state=f"type={kind.value!r}, {name}={value!r}",
            owner="the caller",
            remedy=f"leave {name} out, or use {_TYPES_WITH[name]}",
        )


_TYPES_WITH: Final = {
    "key_lanes": "type='key-ordered'",
    "scope": "type='serial'",
    "strict_order": "exclusive, priority, serial or key-ordered",
    "no_local": "type='exclusive'",
    "max_consumers": "a type with several consumers",
    "priority": "type='priority'",
    "preempt": "type='priority'",
}


def subscription_type(name: SubscriptionType | str) -> SubscriptionType:
    """Return a subscription type by its name; raises `IllegalState` for an unknown one."""
    try:
        return SubscriptionType(name)
    except ValueError as error:
        raise IllegalState(
            f"There is no subscription type {name!r}.", remedy=f"use one of {', '.join(SubscriptionType)}"
        ) from error
