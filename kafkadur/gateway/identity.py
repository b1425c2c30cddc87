"""Which subscription a client asks for with a receiving link. No I/O.

The names of links are those that Apache Qpid JMS makes. Other clients name a durable subscription by the
link's name and durability, or by an address `topic::name` if it is shared. The latter belongs to no client
id, because most clients make up a container id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from kafkadur.gateway.conditions import INVALID_FIELD, NOT_IMPLEMENTED, Refused
from kafkadur.gateway.destinations import QUEUE_PREFIX, Destination, Kind, destination_of
from kafkadur_sharing.definition import SubscriptionType

#: Link names of shared consumers of Qpid JMS: the name of the subscription, a bar, and one of these.
_COUNTED: Final = re.compile(r"\|(?:(?P<global>global)-?)?(?P<volatile>volatile)?\d*$")
#: A container id of a connection without a client id begins so, in Qpid JMS.
_GENERATED_ID: Final = "ID:"


@dataclass(frozen=True, kw_only=True)
class ReceivingLink:
    """The facts of a receiving link that decide about its subscription."""

    name: str
    #: None: a null source, which asks for the subscription without naming its topic
    address: str | None
    capabilities: frozenset[str]
    #: its terminus outlives the link
    durable: bool
    #: the gateway is to name the node
    dynamic: bool = False
    #: messages are to be copied: those of a queue are only shown then, those of a topic always are copies
    copies: bool = False
    selector: str | None = None
    no_local: bool = False


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The subscription that a link asks for."""

    #: None for a null source, and where the gateway is to make one
    destination: Destination | None
    #: the name of a durable subscription, or of a shared non-durable one; at most one of them
    durable: str | None = None
    shared: str | None = None
    type: SubscriptionType
    #: whether the subscription belongs to no client id, although the connection may have one
    is_global: bool = False
    #: whether another selector or topic begins a durable subscription anew, as in JMS
    replaces: bool = False
    selector: str | None
    no_local: bool = False
    #: whether the messages of a queue are only shown
    browses: bool = False
    #: the kind of the temporary destination that is to be made
    makes: Kind | None = None


def client_id_of(container_id: str) -> str | None:
    """Return the client id that a connection asks for; None: it has none."""
    return None if not container_id or container_id.startswith(_GENERATED_ID) else container_id


def asked_for(link: ReceivingLink) -> Asked:
    """Return the subscription that a link asks for; raises `Refused`."""
    if link.dynamic:
        return _of_temporary(link, None)
    destination, options, shared_name = _parsed(link)
    if destination is not None and destination.kind is not Kind.TOPIC:
        if options or shared_name is not None:
            raise Refused(INVALID_FIELD, f"The address {link.address} has more than the name of its queue.")
        return _of_queue(link, destination) if destination.is_queue else _of_temporary(link, destination)
    shared = "shared" in link.capabilities or shared_name is not None
    name, is_global = link.name, shared_name is not None
    if shared_name is None and (link.address is None or shared):
        found = _COUNTED.search(name)
        if found is not None:
            name, is_global = name[: found.start()], found["global"] is not None
    name = shared_name or name
    durable = link.durable or link.address is None or shared_name is not None
    kind = SubscriptionType.SHARED if shared else SubscriptionType.EXCLUSIVE
    if (chosen := options.pop("type", None)) is not None:
        kind = _type_named(chosen)
        shared = shared or (kind is not SubscriptionType.EXCLUSIVE and not durable)
    if options:
        raise Refused(
            INVALID_FIELD, f"The address has unknown options: {', '.join(sorted(options))}; use type."
        )
    return Asked(
        destination=destination,
        durable=name if durable else None,
        shared=name if shared and not durable else None,
        type=kind,
        is_global=is_global,
        replaces=durable and shared_name is None and link.address is not None,
        selector=link.selector,
        no_local=link.no_local and not shared,
    )


def check_name(asked: Asked, client_id: str | None) -> None:
    """Raise `Refused` if a client asks for the subscription of a queue by its name.

    `client_id` is that of the connection. A subscription that belongs to no client id could be one.
    """
    name = asked.durable or ""
    if name.startswith(QUEUE_PREFIX) and (asked.is_global or client_id is None):
        raise Refused(INVALID_FIELD, f"The name {name!r} belongs to a queue; use another one.")


def _of_queue(link: ReceivingLink, queue: Destination) -> Asked:
    if link.selector and not link.copies:
        raise Refused(
            NOT_IMPLEMENTED,
            f"A consumer of the queue {queue.name!r} asks for a selector, and all consumers of a queue have "
            "one subscription: use shared durable subscriptions of a topic, each with a selector.",
        )
    return Asked(
        destination=queue,
        type=SubscriptionType.SHARED,
        is_global=True,
        selector=link.selector,
        browses=link.copies,
    )


def _of_temporary(link: ReceivingLink, destination: Destination | None) -> Asked:
    """Return what a consumer of a temporary destination asks for; None: it is to be made."""
    kind = kind_to_make(link.capabilities) if destination is None else destination.kind
    if kind is Kind.TEMPORARY_QUEUE and (link.selector or link.copies):
        raise Refused(NOT_IMPLEMENTED, "A temporary queue cannot be browsed, and has no selectors.")
    return Asked(
        destination=destination,
        type=SubscriptionType.EXCLUSIVE,
        selector=link.selector,
        no_local=link.no_local,
        makes=kind if destination is None else None,
    )


def kind_to_make(capabilities: frozenset[str]) -> Kind:
    """Return which kind of temporary destination a link asks for."""
    return Kind.TEMPORARY_TOPIC if "temporary-topic" in capabilities else Kind.TEMPORARY_QUEUE


def _parsed(link: ReceivingLink) -> tuple[Destination | None, dict[str, str], str | None]:
    """Return destination, options, and the name of a shared durable subscription that an address has."""
    if link.address is None:
        return None, {}, None
    path, _, query = link.address.partition("?")
    path, bar, name = path.partition("::")
    if bar and not name:
        raise Refused(INVALID_FIELD, f"The address {link.address} names no subscription behind '::'.")
    destination = destination_of(path, link.capabilities)
    return destination, dict(parse_qsl(query, keep_blank_values=True)), name or None


def _type_named(name: str) -> SubscriptionType:
    try:
        return SubscriptionType(name)
    except ValueError:
        raise Refused(
            INVALID_FIELD, f"There is no subscription type {name!r}; use {', '.join(SubscriptionType)}."
        ) from None
