"""The rules for attaching and unsubscribing as two pure functions; each rule is tested under its id.

`decide` and `decide_unsubscribe` compare an existing subscription with a request and return a decision. They
do not carry it out: the coordinator applies a decision by compare-and-set on the definition's version, and
decides again if another process was faster. So only one of two racing processes succeeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Final, Literal, cast, get_args

from kafkadur_sharing.definition import Definition, Sharing
from kafkadur_sharing.errors import (
    IllegalState,
    InvalidDestination,
    InvalidSubscriptionSharing,
    KafkadurError,
    SubscriptionActive,
    SubscriptionDiffers,
    SubscriptionTypeMismatch,
)
from kafkadur_sharing.keys import ClientIdPolicy, SubscriptionKey, digest
from kafkadur_sharing.redelivery_policy import Redelivery

#: Which rules apply where the sources disagree: Jakarta Messaging's or WebLogic's (rules P1-P8).
Mode = Literal["jms", "weblogic"]

#: The effect on a subscription that exists with another definition: it stays and the request is refused; it
#: is deleted and created anew; its definition changes and its messages are kept. None: another topic,
#: selector or no_local is refused, and with other parts that differ the consumer attaches with a warning.
OnChange = Literal["refuse", "replace", "alter"]

#: The parts of a definition other than its type, topic, selector and no_local.
OTHER_PARTS: Final = (
    "start", "header_types", "redelivery", "strict_order", "scope", "ack_level", "max_consumers", "key_lanes",
    "history",
)  # fmt: skip
#: The part that has no effect any more once a subscription is created.
START: Final = "start"
#: What differs: the part, its present value, and the value asked for.
Difference = tuple[str, Any, Any]


def validate_on_change(value: str | None) -> OnChange | None:
    """Return a value of `on_change`; raises `IllegalState` if there is no such value."""
    if value is not None and value not in get_args(OnChange):
        raise IllegalState(
            f"on_change cannot be {value!r}.",
            state=f"on_change={value!r}",
            owner="the caller of subscribe",
            remedy=f"use one of {', '.join(get_args(OnChange))}, or None",
        )
    return cast("OnChange | None", value)


def parts_given(**parts: Any) -> dict[str, Any]:  # noqa: ANN401 - checked by Definition
    """Return those of `OTHER_PARTS` that a consumer gave: the ones that are not None."""
    return {part: value for part, value in parts.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Existing:
    """The present state of a subscription."""

    definition: Definition
    #: How many consumers are attached; the subscription is active when there is one.
    members: int = 0
    #: The names of attached consumers as far as they are known, oldest first.
    holders: tuple[str, ...] = ()
    #: Whether messages are still in flight, possibly of a consumer that is closed (rule K5).
    unsettled: bool = False
    #: Whether consumers may come back: Redis has restarted, or the consumer that asks was attached before.
    awaited: bool = False

    @property
    def active(self) -> bool:
        """Whether a consumer is attached."""
        return self.members > 0


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request of a consumer to attach."""

    key: SubscriptionKey
    #: The requested definition.
    definition: Definition
    mode: Mode = "jms"
    #: Whether an inactive subscription may change its type, keeping its messages (rule L3, disagreement D1).
    allow_conversion: bool = False
    on_change: OnChange | None = None
    #: Those of `OTHER_PARTS` that the consumer asked for; the others are as the subscription has them.
    given: frozenset[str] = frozenset()
    #: Whether the subscription may be created, replaced or converted; else it is there as it is asked for.
    create: bool = True


@dataclass(frozen=True, kw_only=True)
class UnsubscribeRequest:
    """The request to delete a subscription with its waiting messages."""

    key: SubscriptionKey
    mode: Mode = "jms"
    #: The topic on which it must be; None: any topic.
    topic: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Attached:
    #: The definition in force afterwards.
    definition: Definition
    rule: str


@dataclass(frozen=True, kw_only=True)
class Attach(_Attached):
    """Join the existing subscription; its messages are kept."""

    #: Parts of the definition that were asked for otherwise, and stay as they are.
    differences: tuple[Difference, ...] = ()


class Create(_Attached):
    """Create the subscription, then attach."""


@dataclass(frozen=True, kw_only=True)
class Replace(_Attached):
    """Delete the existing subscription with its waiting messages, create it anew, then attach."""

    #: The definition that is deleted.
    replaced: Definition


@dataclass(frozen=True, kw_only=True)
class Convert(_Attached):
    """Change the definition of the existing subscription, keep its messages, then attach."""

    #: Parts that were given, differ and cannot change: a warning.
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Delete:
    """Delete the subscription with its waiting messages."""

    rule: str


@dataclass(frozen=True, kw_only=True)
class Refuse:
    """Change nothing and raise `error`."""

    error: KafkadurError
    rule: str


def decide(existing: Existing | None, request: Request) -> Attach | Create | Replace | Convert | Refuse:
    """Decide whether and how a consumer attaches.

    The rules are U1-U6, U9, S1-S6, S10, N1-N3, V1, L3, and P3-P8 for durable subscriptions; "type" is the
    rule that the type belongs to the definition. `existing` is the subscription with exactly the key of the
    request; None if there is none. Never raises; a refusal contains the error to raise.
    """
    decision = _decide(existing, request)
    if request.create or isinstance(decision, Attach | Refuse):
        return decision
    return Refuse(rule=decision.rule, error=_must_stay(existing, request))


def _decide(existing: Existing | None, request: Request) -> Attach | Create | Replace | Convert | Refuse:
    """Decide for a consumer that may create and change the subscription."""
    key, wanted = request.key, request.definition
    unshared = wanted.sharing is Sharing.UNSHARED
    if key.durable and unshared and key.client_id is None:
        return Refuse(rule="U1", error=no_client_id(key))
    if existing is None:
        rules = ("U2", "S1") if key.durable else ("V1", "N1")
        return Create(definition=wanted, rule=rules[0] if unshared else rules[1])
    if not key.durable and not existing.active and not existing.awaited:
        # A non-durable subscription ends with its last consumer (N4, V3): this one waits to be swept.
        return Replace(definition=wanted, replaced=existing.definition, rule="V1" if unshared else "N1")
    if wanted.sharing is not existing.definition.sharing:
        return _other_sharing(existing, request)
    if wanted.type is not existing.definition.type:
        return _other_type(existing, request)
    return _unshared(existing, request) if unshared else _shared(existing, request)


def decide_unsubscribe(existing: Existing | None, request: UnsubscribeRequest) -> Delete | Refuse:
    """Decide whether a subscription is deleted (rules X1-X7).

    `existing` is the subscription with exactly the key of the request: another client id or policy is another
    key and finds nothing (X2). Never raises; a refusal contains the error to raise.
    """
    key = request.key
    if not key.durable:
        error: KafkadurError = InvalidDestination(
            f"Subscription {key} is not durable; only durable ones are unsubscribed.",
            remedy="close its consumers: it ends with the last one",
        )
        return Refuse(rule="X5", error=error)
    if (wrong := _wrong_destination(existing, request)) is not None:
        return wrong
    if existing is None:
        error = InvalidDestination(
            f"There is no durable subscription {key} in namespace {key.namespace}.",
            remedy="check the name, the client id and its policy; `kafkadur sub ls` shows what exists",
        )
        return Refuse(rule="X2", error=error)
    if existing.active:
        return Refuse(
            rule="X3",
            error=_active(existing, request.key, "It is in use: it cannot be changed or unsubscribed now."),
        )
    if existing.unsettled:
        error = IllegalState(
            f"Subscription {key} cannot be unsubscribed: an application still holds messages of it.",
            state="inactive, with deliveries that have no verdict",
            remedy="settle them (ack, rollback or reject) or let their lease end, then unsubscribe",
        )
        return Refuse(rule="X4", error=error)
    return Delete(rule="X1")


def _wrong_destination(existing: Existing | None, request: UnsubscribeRequest) -> Refuse | None:
    """Apply rules X6 and X7: which topic is named, and whether one must be named."""
    key = request.key
    unrestricted = key.policy is ClientIdPolicy.UNRESTRICTED
    if request.mode == "weblogic" and unrestricted and request.topic is None and key.topic_member is None:
        error = InvalidDestination(
            f"To unsubscribe {key} its topic has to be named.",
            state="the client id is unrestricted",
            remedy="unsubscribe(name, topic=...)",
        )
        return Refuse(rule="X7", error=error)
    if existing is not None and request.topic not in (None, existing.definition.topic):
        error = InvalidDestination(
            f"There is no durable subscription {key} on topic {request.topic}.",
            state=f"it is on topic {existing.definition.topic}",
            remedy="name that topic",
        )
        return Refuse(rule="X6", error=error)
    return None


def nondurable_name(
    definition: Definition, *, client_id: str | None, shared: str | None, mode: Mode, anonymous: str
) -> str:
    """Return the name in the key of a non-durable subscription.

    It is `shared` if that is given (rules N). Otherwise the subscription has one consumer, and its name is
    `anonymous` (V1). With WebLogic's rules and a client id, consumers with the same client id and policy
    share a subscription if their details are equal (P2); other details are another subscription (P6).
    """
    if shared is not None:
        return shared
    if mode == "weblogic" and client_id is not None:
        return f"details-{digest([definition.topic, definition.selector, definition.no_local])}"
    return anonymous


def _other_sharing(existing: Existing, request: Request) -> Replace | Convert | Refuse:
    """Apply rules U6 and S5; L3 if conversion is allowed; P3, P4, P7 and P8 in WebLogic mode."""
    to_unshared = request.definition.sharing is Sharing.UNSHARED
    if request.mode == "weblogic" and not existing.active:
        if _same_but_type(existing, request):
            return _convert(existing, request, rule="P7")
        return _change(existing, request, "P8")
    if _may_convert(existing, request):
        return _convert(existing, request, rule="L3")
    rules = ("P4", "P3") if request.mode == "weblogic" else ("U6", "S5")
    return Refuse(rule=rules[0] if to_unshared else rules[1], error=_sharing_error(existing, request))


def _other_type(existing: Existing, request: Request) -> Convert | Refuse:
    """Refuse another type, which belongs to the definition, unless conversion is asked for (L3)."""
    if _may_convert(existing, request):
        return _convert(existing, request, rule="L3")
    error = SubscriptionTypeMismatch(
        f"Subscription {request.key} has type {existing.definition.type}, not {request.definition.type}.",
        state=_state(existing),
        owner=", ".join(existing.holders) or None,
        remedy=f"attach with type={existing.definition.type.value!r}, or convert it while it is inactive",
    )
    return Refuse(rule="type", error=error)


def _unshared(existing: Existing, request: Request) -> Attach | Convert | Replace | Refuse:
    """Apply rules U3, U4 and U5 (U9: the backlog is kept while closed); P3 and P8 in WebLogic mode."""
    if existing.active:
        if request.mode == "weblogic":
            return Refuse(rule="P3", error=_sharing_error(existing, request))
        return Refuse(rule="U5", error=_active(existing, request.key, "An exclusive one has one consumer."))
    if _same_details(existing, request):
        return _join(existing, request, "U3")
    return _change(existing, request, "P8" if request.mode == "weblogic" else "U4")


def _shared(existing: Existing, request: Request) -> Attach | Convert | Replace | Refuse:
    """Apply rules S2, S3, S4 and S10; N2 and N3 if it is not durable; P5 and P8 in WebLogic mode."""
    weblogic = request.mode == "weblogic"
    if _same_details(existing, request):
        if not request.key.durable:
            return _join(existing, request, "N2")
        return _join(existing, request, "S2" if existing.active else "S10")
    if not request.key.durable:  # it is in use, or its consumers are awaited
        return Refuse(rule="N3", error=_active(existing, request.key, _DETAILS_DIFFER))
    if not existing.active:
        return _change(existing, request, "P8" if weblogic else "S3")
    if weblogic:
        return Refuse(rule="P5", error=_sharing_error(existing, request))
    return Refuse(rule="S4", error=_active(existing, request.key, _DETAILS_DIFFER))


def _join(existing: Existing, request: Request, rule: str) -> Attach | Convert | Refuse:
    """Attach with equal details; other parts may differ. They can change only while nobody is attached."""
    have = existing.definition
    parts = [part for part in OTHER_PARTS if part in request.given]
    differences = tuple(_differences(have, request.definition, parts))
    if differences and request.on_change == "refuse":
        return Refuse(rule=rule, error=_differs(existing, request, differences))
    changes: dict[str, Any] = {part: want for part, _, want in differences if part != START}
    if changes and request.on_change == "alter" and request.key.durable and not existing.active:
        stays = tuple(each for each in differences if each[0] == START)
        return Convert(definition=replace(have, **changes), rule=rule, differences=stays)
    return Attach(definition=have, rule=rule, differences=differences)


def _change(existing: Existing, request: Request, rule: str) -> Convert | Replace | Refuse:
    """Do what `on_change` says with an inactive subscription whose details differ; its messages may wait."""
    have, want = existing.definition, request.definition
    if request.on_change == "replace":
        return Replace(definition=want, replaced=have, rule=rule)
    if request.on_change == "alter" and have.topic == want.topic:
        base = have if have.type is want.type else _convert(existing, request, rule=rule).definition
        changes: dict[str, Any] = {part: getattr(want, part) for part in request.given if part != START}
        changed = replace(base, selector=want.selector, no_local=want.no_local, **changes)
        return Convert(definition=changed, rule=rule)
    differences = tuple(_differences(have, want, ("type", "topic", "selector", "no_local")))
    return Refuse(rule=rule, error=_differs(existing, request, differences))


def told(differences: Iterable[Difference]) -> tuple[tuple[str, str, str], ...]:
    """Return differences as texts; of a redelivery policy only the fields that differ."""
    texts: list[tuple[str, str, str]] = []
    for part, have, want in differences:
        if isinstance(have, Redelivery):
            texts += told(_differences(have, want, [each.name for each in fields(have)]))
        else:
            texts.append((part, _told(have), _told(want)))
    return tuple(texts)


def _told(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    return repr(str(value)) if isinstance(value, str) else str(value)


def _differences(have: object, want: object, parts: Iterable[str]) -> Iterator[Difference]:
    for part in parts:
        present, asked = getattr(have, part), getattr(want, part)
        if present != asked:
            yield part, present, asked


_DETAILS_DIFFER = "Another topic or selector cannot be set now."


def _same_details(existing: Existing, request: Request) -> bool:
    """Compare details; WebLogic counts no_local for shared subscriptions too (disagreement D4)."""
    if existing.definition.details != request.definition.details:
        return False
    return request.mode != "weblogic" or existing.definition.no_local == request.definition.no_local


def _same_but_type(existing: Existing, request: Request) -> bool:
    """Compare topic, selector and no_local, which a conversion that keeps the messages must not change.

    Here no_local counts for every type: its meaning would change with the type while messages wait.
    """
    have, want = existing.definition, request.definition
    return (have.topic, have.selector, have.no_local) == (want.topic, want.selector, want.no_local)


def _may_convert(existing: Existing, request: Request) -> bool:
    return request.allow_conversion and not existing.active and _same_but_type(existing, request)


def _convert(existing: Existing, request: Request, *, rule: str) -> Convert:
    """Keep the existing definition, except the fields that belong to a type."""
    want = request.definition
    definition = replace(
        existing.definition,
        type=want.type,
        strict_order=want.strict_order,
        scope=want.scope,
        key_lanes=want.key_lanes,
    )
    return Convert(definition=definition, rule=rule)


def _must_stay(existing: Existing | None, request: Request) -> KafkadurError:
    """Return the error for a consumer that must not create or change the subscription that it asks for."""
    if existing is None:
        return InvalidDestination(
            f"There is no durable subscription {request.key} in namespace {request.key.namespace}.",
            state="the consumer asked for one that exists: create=False",
            remedy="create it, with `kafkadur sub create` or without create=False",
        )
    details = ("type", "topic", "selector", "no_local", *sorted(request.given))
    differences = tuple(_differences(existing.definition, request.definition, details))
    return _differs(existing, request, differences)


def _differs(
    existing: Existing, request: Request, differences: tuple[Difference, ...]
) -> SubscriptionDiffers:
    have = ", ".join(f"{part}={present}" for part, present, _ in told(differences))
    if existing.active:
        remedy = f"attach with {have}, or change it while nobody is attached: on_change='alter'"
    elif {part for part, _, _ in differences} == {START}:
        remedy = f"attach with {have}, or move it: `kafkadur sub seek`"
    elif {part for part, _, _ in differences} <= set(OTHER_PARTS):
        remedy = f"attach with {have}, or change it: on_change='alter'"
    elif existing.definition.topic != request.definition.topic:
        remedy = f"attach with {have}, or lose what waits: on_change='replace'"
    else:
        remedy = (
            f"attach with {have}, or keep what is settled, and of what waits all that the new selector "
            "takes: on_change='alter', or lose what waits: on_change='replace'"
        )
    return SubscriptionDiffers(
        f"Subscription {request.key} has another definition than asked for.",
        differences=told(differences),
        owner=", ".join(existing.holders) or f"subscription {request.key}",
        remedy=remedy,
    )


def _state(existing: Existing) -> str:
    definition = existing.definition
    activity = f"{existing.members} attached" if existing.active else "inactive"
    return f"{definition.type}, topic {definition.topic}, {activity}"


def no_client_id(key: SubscriptionKey) -> IllegalState:
    """The error that an exclusive durable subscription has no client id (rule U1)."""
    return IllegalState(
        f"The exclusive durable subscription {key} needs a client id.",
        state="the connection has no client id",
        remedy="connect with client_id=..., or use a shared type (shared, serial, priority, key-ordered)",
    )


def _active(existing: Existing, key: SubscriptionKey, why: str) -> KafkadurError:
    return SubscriptionActive(
        f"Subscription {key} has an open consumer. {why}",
        holders=existing.holders,
        state=_state(existing),
        remedy="close the consumer, or wait until its lease ends if its process died",
    )


def _sharing_error(existing: Existing, request: Request) -> KafkadurError:
    have, want = existing.definition.sharing, request.definition.sharing
    if have is not want:
        message = f"Subscription {request.key} is {have}, the request asks for {want}."
        remedy = (
            f"attach with type={existing.definition.type.value!r}, use another name, or unsubscribe it first"
        )
    else:
        message = f"The active subscription {request.key} cannot be joined like this."
        remedy = (
            "close its consumers first, or attach with the same topic, selector and no_local to a shared one"
        )
    return InvalidSubscriptionSharing(
        message, state=_state(existing), owner=", ".join(existing.holders) or None, remedy=remedy
    )
