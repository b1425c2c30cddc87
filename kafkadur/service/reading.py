"""The routes that read: the list, one subscription, its messages, its dead letters, the record of acts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, HTTPException, Path, Query
from typing_extensions import TypedDict

from kafkadur.admin.browse import Some
from kafkadur.admin.dead_letters import DeadLetterAdmin
from kafkadur.admin.documents import (
    Delivery,
    Details,
    Explanation,
    Letter,
    Waiting,
    dead_letter,
    delivered,
    details,
    explained,
    plain_value,
    readable,
    waiting,
)
from kafkadur.admin.history import HistoryAdmin
from kafkadur.admin.snapshots import Snapshot
from kafkadur.admin.subscription_info import SubscriptionInfo
from kafkadur.service.access import Role
from kafkadur.service.audit import Act
from kafkadur.service.backend import Backend
from kafkadur.service.dependencies import ANSWERS, Id, Operator, TheBackend, Viewer
from kafkadur.service.errors import Trouble, trouble
from kafkadur.service.observer import Entry
from kafkadur.service.series import Sample
from kafkadur.service.state_words import words
from kafkadur_sharing.errors import IllegalState, InvalidDestination
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.selector import parse_selector

router = APIRouter(prefix="/api/v1", responses=ANSWERS)

SortBy = Literal[
    "name", "type", "topic", "state", "attached", "in_flight", "backlog", "oldest_s", "arrived_per_s",
    "settled_per_s", "exceptions", "dead_letters",
]  # fmt: skip
#: Partitions whose first unsettled message `why` explains.
_EXPLAINED = 8
#: The longest chart, in hours: 92 days.
_MOST_HOURS = 92 * 24
#: Ranges of a partition that are shown.
_HOLES = 200

#: The most records, and their bytes, that are read for one answer.
_READ, _READ_BYTES = 20_000, 8 * 1024 * 1024

Limit = Annotated[int, Query(ge=1, le=1_000, description="the most entries")]
Where = Annotated[
    str | None,
    Query(
        max_length=8_000,
        description="selector; it can also test _cause, _reason, _attempts, _origin and _timestamp",
        examples=["_cause = 'attempts'"],
    ),
]


class Myself(TypedDict):
    """Who asks, and whom."""

    name: str
    role: str
    namespace: str
    version: str
    #: whether there are charts of more than an hour
    longer_charts: bool


@router.get("/me", summary="Who asks, with which role")
def me(caller: Viewer, backend: TheBackend) -> Myself:
    """Return the name and the role of the caller, and the namespace of the service."""
    from importlib.metadata import version  # noqa: PLC0415 - needed by nothing else

    return {
        "name": caller.name,
        "role": caller.role.word,
        "namespace": backend.settings.namespace,
        "version": version("kafkadur"),
        "longer_charts": backend.prometheus is not None,
    }


# --- the list -------------------------------------------------------------------------------------------


class Listed(TypedDict):
    """Some of the subscriptions, as they were read last."""

    #: counts the readings
    number: int
    #: server time of the last reading, ms since 1970; null: there was none yet
    at: int | None
    #: subscriptions of the namespace, and those that match
    total: int
    matching: int
    entries: list[Entry]
    #: why the last reading failed; then the entries are older
    problem: Trouble | None


@router.get("/subscriptions", summary="List subscriptions")
def subscriptions(
    caller: Viewer,
    backend: TheBackend,
    *,
    search: Annotated[str, Query(max_length=250, description="part of a name, client id or topic")] = "",
    type: Annotated[str | None, Query(max_length=20)] = None,  # noqa: A002 - the word of the API
    state: Annotated[Literal["active", "inactive", "paused", "waits"] | None, Query()] = None,
    sort: SortBy = "name",
    descending: bool = False,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Limit = 100,
) -> Listed:
    """List subscriptions as they were read a few seconds ago. Costs no call of Redis or Kafka."""
    del caller
    seen = backend.observer.latest
    found = [each for each in seen.entries if _matches(each, search.lower(), type, state)]
    found.sort(key=lambda each: each["name"])
    if sort != "name" or descending:
        found.sort(key=lambda each: _rank(each[sort]), reverse=descending)
    return {
        "number": seen.number,
        "at": seen.at,
        "total": len(seen.entries),
        "matching": len(found),
        "entries": found[offset : offset + limit],
        "problem": None if seen.problem is None else trouble(seen.problem),
    }


def _matches(entry: Entry, search: str, type_: str | None, state: str | None) -> bool:
    texts = (entry["name"], entry["client_id"] or "", entry["topic"])
    if search and not any(search in text.lower() for text in texts):
        return False
    if type_ is not None and entry["type"] != type_:
        return False
    if state == "waits":
        return entry["words"].startswith("waits") or entry["problem"] is not None
    return state is None or entry["state"] == state


def _rank(value: object) -> tuple[bool, Any]:
    """Return a key for sorting: what is not known comes first."""
    return value is not None, value


# --- one subscription -----------------------------------------------------------------------------------


class Subscription(Details):
    """A subscription with everything that is known of it."""

    words: str


@router.get("/subscriptions/{id}", summary="Show a subscription")
def subscription(id: Id, caller: Viewer, backend: TheBackend) -> Subscription:  # noqa: A002
    """Return the definition, the members and the partitions of a subscription, as they are now."""
    del caller
    with backend.admin() as admin:
        info = admin.info(backend.key(id))
    return {**details(info), "words": words(info)}


class Hole(TypedDict):
    """Unsettled offsets [start, end) below the granted ones: they came back."""

    start: int
    end: int
    attempts: int
    #: when they are due, ms since 1970; 0: now
    due: int


class Holes(TypedDict):
    """The first holes of a partition."""

    partition: int
    ranges: list[Hole]
    #: whether there are more
    more: bool


@router.get("/subscriptions/{id}/holes", summary="Show what came back")
def holes(id: Id, caller: Viewer, backend: TheBackend) -> list[Holes]:  # noqa: A002
    """Return the ranges of messages that came back, of each partition; at most 200 a partition."""
    del caller
    with backend.admin() as admin:
        found = admin.exceptions(backend.key(id))
    return [
        {
            "partition": partition,
            "ranges": [
                {"start": run.start, "end": run.end, "attempts": run.attempts, "due": run.due}
                for run in runs[:_HOLES]
            ],
            "more": len(runs) > _HOLES,
        }
        for partition, runs in found.items()
    ]


class SampleDocument(TypedDict):
    """The numbers of a subscription at one moment."""

    at: int
    backlog: int | None
    in_flight: int
    came_back: int
    arrived_per_s: float | None
    settled_per_s: float | None


@router.get("/subscriptions/{id}/samples", summary="Show the last hour, or more")
def samples(
    id: Id,  # noqa: A002
    caller: Viewer,
    backend: TheBackend,
    hours: Annotated[int, Query(ge=1, le=_MOST_HOURS, description="more than 1: from Prometheus")] = 1,
) -> list[SampleDocument]:
    """Return samples of the last hour, as far as the service has run so long, or of more from Prometheus.

    Empty for an unknown subscription. Prometheus has no rates.
    """
    del caller
    key = backend.key(id)
    return [
        {
            "at": each.at,
            "backlog": each.backlog,
            "in_flight": each.in_flight,
            "came_back": each.came_back,
            "arrived_per_s": None if each.arrived is None else each.arrived / 1000,
            "settled_per_s": None if each.settled is None else each.settled / 1000,
        }
        for each in (backend.observer.samples(id) if hours == 1 else _longer(backend, key, hours))
    ]


def _longer(backend: Backend, key: SubscriptionKey, hours: int) -> Sequence[Sample]:
    """Return samples of more than an hour. Raises `IllegalState` if the service has no Prometheus."""
    if backend.prometheus is None:
        raise IllegalState(
            "The service keeps one hour.",
            state=f"{hours} hours are asked for",
            owner="this service",
            remedy="start it with --prometheus URL",
        )
    return backend.prometheus.samples(key, hours=hours, now=time.time())


@router.get("/subscriptions/{id}/why", summary="Say why nothing is delivered")
def why(id: Id, caller: Viewer, backend: TheBackend) -> list[Explanation]:  # noqa: A002
    """Explain the first unsettled message of each partition that has a backlog, of at most 8 partitions."""
    del caller
    with backend.admin() as admin:
        key = backend.key(id)
        return [explained(admin.explain(key, *place)) for place in _first_unsettled(admin.info(key))]


def _first_unsettled(info: SubscriptionInfo) -> list[tuple[int, int]]:
    waiting_on = [each for each in info.partitions if each.backlog]
    return [(each.partition, max(each.floor, each.log_start or 0)) for each in waiting_on[:_EXPLAINED]]


@router.get("/subscriptions/{id}/explain", summary="Explain the state of one message")
def explain(
    id: Id,  # noqa: A002 - the word of the API
    caller: Viewer,
    backend: TheBackend,
    partition: Annotated[int, Query(ge=0, lt=2**31)],
    offset: Annotated[int, Query(ge=0, lt=2**53)],
) -> Explanation:
    """Say which member holds a message, when it is due, or that it is settled."""
    del caller
    with backend.admin() as admin:
        return explained(admin.explain(backend.key(id), partition, offset))


# --- messages -------------------------------------------------------------------------------------------


class Message(Waiting):
    """A message that waits or is in flight."""

    #: whether key, properties and value are left out, because the caller may not see them
    hidden: bool


class Messages(TypedDict):
    """Messages that wait or are in flight."""

    entries: list[Message]
    #: whether there may be more: the limit was reached, or so many were read of which the selector takes none
    more: bool


class Letters(TypedDict):
    """Dead letters."""

    entries: list[Letter]
    #: as with messages
    more: bool


@router.get("/subscriptions/{id}/messages", summary="Show messages that wait or are in flight")
def messages(
    id: Id,  # noqa: A002 - the word of the API
    caller: Viewer,
    backend: TheBackend,
    partition: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    limit: Limit = 20,
) -> Messages:
    """Return messages partition by partition, in each the oldest first. Nothing is consumed."""
    visible, read = caller.role >= Role.OPERATOR, Some(_READ, _READ_BYTES)
    with backend.admin() as admin:
        key = backend.key(id)
        definition = admin.definition(key)
        types = None if definition is None else definition.header_types  # else `peek` raises an error
        peeked = islice(admin.peek(key, partition, reading=read), limit)
        entries = [_shown(waiting(each, types), visible=visible) for each in peeked]
    return {"entries": entries, "more": read.cut or len(entries) == limit}


def _shown(message: Waiting, *, visible: bool) -> Message:
    nothing: dict[str, Any] = (
        {} if visible else {"key": None, "properties": {}, "value": None, "message_id": None}
    )
    return cast("Message", {**message, **nothing, "hidden": not visible})


class LetterDocument(Letter):
    """A dead letter with its payload."""

    key: str | None
    value: str | None
    properties: dict[str, Any]


@router.get("/subscriptions/{id}/dead", summary="List dead letters")
def dead(
    id: Id,  # noqa: A002 - the word of the API
    caller: Viewer,
    backend: TheBackend,
    where: Where = None,
    limit: Limit = 100,
) -> Letters:
    """Return the dead letters that were neither redriven nor purged. `where` needs the role operator.

    The reason, which may have parts of a message, is shown to operators.
    """
    visible, read = caller.role >= Role.OPERATOR, Some(_READ, _READ_BYTES)
    if where is not None and not visible:
        raise HTTPException(403, "A selector tests what is hidden: it needs the role operator.")
    selector = parse_selector(where)
    with backend.admin() as admin:
        letters = DeadLetterAdmin(backend.settings, admin).letters(backend.key(id), selector, reading=read)
        entries = [dead_letter(letter) for letter in islice(letters, limit)]
    for each in entries:
        each["reason"] = each["reason"] if visible else ""
    return {"entries": entries, "more": read.cut or len(entries) == limit}


@router.get("/subscriptions/{id}/dead/{letter}", summary="Show a dead letter with its payload")
def letter(
    id: Id,  # noqa: A002 - the word of the API
    letter: Annotated[str, Path(pattern=r"^[0-9]{1,9}:[0-9]{1,15}$", examples=["0:17"])],
    caller: Operator,
    backend: TheBackend,
) -> LetterDocument:
    """Return one dead letter, named PARTITION:OFFSET as in the list."""
    del caller
    partition, _, offset = letter.partition(":")
    with backend.admin() as admin:
        letters = DeadLetterAdmin(backend.settings, admin).letters(
            backend.key(id), at=(int(partition), int(offset))
        )
        found = next(letters, None)
    if found is None:
        raise InvalidDestination(f"There is no dead letter {letter[:40]!r}.", remedy="name one of the list")
    return {
        **dead_letter(found),
        "key": readable(found.key),
        "value": readable(found.value),
        "properties": {name: plain_value(value) for name, value in found.properties.items()},
    }


@router.get("/subscriptions/{id}/snapshot", summary="Take a snapshot")
def snapshot(id: Id, caller: Operator, backend: TheBackend) -> Snapshot:  # noqa: A002
    """Return which messages are settled, and the attempts of the others; `restore` takes it."""
    del caller
    with backend.admin() as admin:
        return admin.snapshot(backend.key(id))


# --- deliveries -----------------------------------------------------------------------------------------


class Deliveries(TypedDict):
    """What became of messages, the oldest first."""

    entries: list[Delivery]
    #: whether there may be earlier ones
    more: bool
    #: messages whose deliveries are not recorded: Kafka did not take the entries
    missing: int


@router.get("/subscriptions/{id}/history", summary="Show which member had which messages")
def history(
    id: Id,  # noqa: A002 - the word of the API
    caller: Viewer,
    backend: TheBackend,
    *,
    partition: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    offset: Annotated[int | None, Query(ge=0, lt=2**53)] = None,
    member: Annotated[str | None, Query(max_length=250, description="id or name")] = None,
    hours: Annotated[int | None, Query(ge=1, le=_MOST_HOURS, description="only the last ones")] = None,
    limit: Limit = 100,
) -> Deliveries:
    """Return the last deliveries: of one message, to one member, or all.

    The subscription must have a history (`history` of its definition).
    """
    del caller
    if (partition is None) is not (offset is None):
        raise IllegalState(
            "One message has a partition and an offset.",
            state=f"partition={partition}, offset={offset}",
            owner="the caller",
            remedy="give both, or none",
        )
    with backend.admin() as admin:
        found = HistoryAdmin(backend.settings, admin).last(
            backend.key(id),
            limit,
            offset=None if partition is None or offset is None else (partition, offset),
            member=member,
            since=None if hours is None else timedelta(hours=hours),
            most=(_READ, _READ_BYTES),
        )
    entries = [delivered(each) for each in found.deliveries]
    return {"entries": entries, "more": found.more, "missing": found.missing}


# --- acts -----------------------------------------------------------------------------------------------


@router.get("/audit", summary="Show what was done")
def audit(caller: Viewer, backend: TheBackend, limit: Limit = 100) -> list[Act]:
    """Return the last acts of all callers, the newest first."""
    del caller
    return backend.audit.last(limit)
