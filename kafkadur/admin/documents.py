"""Subscriptions, messages and dead letters as JSON documents: what `--json` prints and the service answers.

Fields are added, but not renamed or removed without a year's notice. Points in time are ISO 8601 in UTC with
milliseconds, unless a field says that it is ms since 1970. A value that is null is not known.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from kafkadur.admin.changes import Explained, Move, SubscriptionInfo
from kafkadur.message.headers import Property, decode
from kafkadur_coordinators.interface import MemberInfo

if TYPE_CHECKING:
    from kafkadur.admin.dead_letters import DeadLetter  # not every command needs what it imports
    from kafkadur.admin.peek import Peeked
    from kafkadur.admin.sizes import Sizes
    from kafkadur.history.reading import Delivered

# --- values ---------------------------------------------------------------------------------------------


def iso(ms: int | None) -> str | None:
    """Return a point in time given in ms since 1970; None for one after the year 9999."""
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1_000, tz=UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a producer may write any number into a header
        return None


def readable(raw: bytes | None) -> str | None:
    """Return bytes as text; as `base64:...` if they are not UTF-8."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(raw).decode()}"


def plain_value(value: Property) -> Any:  # noqa: ANN401 - any value of JSON
    """Return a value for JSON: bytes as text if they are UTF-8, else as {"base64": ...}."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


# --- deliveries -----------------------------------------------------------------------------------------


class Delivery(TypedDict):
    """What became of adjacent messages that one member had at the same time."""

    partition: int
    #: offsets [start, end)
    start: int
    end: int
    #: null: it is not known, as of a Spark driver
    attempt: int | None
    #: id and name of the member
    member: str
    name: str
    #: when the member got them; null: no member had them, or it is not known
    handed: str | None
    outcome: str
    #: time of the outcome
    at: str | None
    #: for how long the member had them; null: it has them still, or never had them
    held_ms: int | None
    #: ms after which a message that was rolled back comes again; -1: as the redelivery policy says
    delay_ms: int | None
    #: why there is a dead letter
    cause: str | None


def delivered(found: Delivered) -> Delivery:
    """Return a delivery of a history."""
    return {
        "partition": found.partition,
        "start": found.start,
        "end": found.end,
        "attempt": found.attempt,
        "member": found.member,
        "name": found.name,
        "handed": iso(found.handed),
        "outcome": found.outcome.value,
        "at": iso(found.at),
        "held_ms": found.held,
        "delay_ms": found.delay,
        "cause": found.cause,
    }


# --- subscriptions --------------------------------------------------------------------------------------


class Summary(TypedDict):
    """A subscription in a list."""

    name: str
    client_id: str | None
    policy: str
    topic_member: str | None
    namespace: str
    type: str
    topic: str
    version: int
    #: number of members that are attached
    attached: int
    active: bool
    unattended_since: str | None
    last_verdict: str | None
    in_flight: int
    #: messages that came back: rolled back, delayed, or left by a member that is gone
    exceptions: int
    lag: int | None
    backlog: int | None
    #: offsets that were not granted to a member yet
    behind: int | None
    paused: bool
    #: paused, active or inactive
    state: str
    #: why the topic cannot be read
    problem: str | None


class Query(TypedDict):
    """The last batch of a Spark query of a member."""

    #: its name; None: the member has one query, without a name
    query: str | None
    generation: int
    batch: int
    rows: int
    input_rate: float | None
    processed_rate: float | None
    lag: int | None
    at: str | None


class Member(TypedDict):
    """A member of a subscription."""

    id: str
    name: str
    since: str | None
    #: when its session ends, unless it is heard again
    expires: str | None
    leases: int
    credit: int
    #: whether its process is heard
    heard: bool
    #: of the first of `queries`
    progress: Query | None
    queries: list[Query]


class Partition(TypedDict):
    """A partition of a subscription."""

    partition: int
    floor: int
    base: int
    next: int
    avail: int
    in_flight: int
    expired: int
    truncated: int
    expiring: int | None
    exceptions: int
    backlog: int | None
    lag: int | None
    log_start: int | None
    log_end: int | None


class Amounts(TypedDict):
    """Unsettled messages that the selector takes, and their bytes: current, and pending (rule A5)."""

    messages_current: int
    bytes_current: int
    messages_pending: int
    bytes_pending: int


class Details(Summary):
    """A subscription with its definition, members and partitions."""

    id: str
    #: its name in WebLogic's tools (rule A3)
    runtime_name: str
    selector: str | None
    no_local: bool
    sizes: Amounts | None
    definition: dict[str, Any]
    topic_id: str
    incarnation: int
    #: milliseconds until leases are granted again after a loss of Redis
    grace_ms: int
    state_version: int
    members: list[Member]
    partitions: list[Partition]


def summary(info: SubscriptionInfo) -> Summary:
    """Return a subscription as an entry of a list."""
    return {
        "name": info.key.name,
        "client_id": info.key.client_id,
        "policy": info.key.policy.value,
        "topic_member": info.key.topic_member,
        "namespace": info.key.namespace,
        "type": info.definition.type.value,
        "topic": info.definition.topic,
        "version": info.version,
        "attached": len(info.attached),
        "active": info.active,
        "unattended_since": iso(info.unattended_since),
        "last_verdict": iso(info.last_verdict),
        "in_flight": info.in_flight,
        "exceptions": info.exceptions,
        "lag": info.lag,
        "backlog": info.backlog,
        "behind": info.behind,
        "paused": info.paused,
        "state": info.state,
        "problem": info.problem,
    }


def details(info: SubscriptionInfo, sizes: Sizes | None = None) -> Details:
    """Return a subscription with everything that is known of it."""
    return {
        **summary(info),
        "id": info.id,
        "runtime_name": info.runtime_name,
        "selector": info.definition.selector,
        "no_local": info.definition.no_local,
        "sizes": None if sizes is None else cast("Amounts", asdict(sizes)),
        "definition": info.definition.to_record(),
        "topic_id": info.topic_id,
        "incarnation": info.incarnation,
        "grace_ms": info.grace_ms,
        "state_version": info.state_version,
        "members": [member_of(info, member) for member in info.members],
        "partitions": [cast("Partition", asdict(partition)) for partition in info.partitions],
    }


def member_of(info: SubscriptionInfo, member: MemberInfo) -> Member:
    """Return a member of a subscription."""
    queries = [
        cast("Query", asdict(progress) | {"at": iso(progress.at)})
        for progress in info.progress.get(member.id, ())
    ]
    return {
        "id": member.id,
        "name": member.name,
        "since": iso(member.since),
        "expires": iso(member.expires),
        "leases": member.leases,
        "credit": member.credit,
        "heard": member.heard,
        "progress": queries[0] if queries else None,
        "queries": queries,
    }


class PartitionMove(TypedDict):
    """What a move does to a partition."""

    partition: int
    before: int
    after: int
    backlog: int | None
    again: int
    skipped: int


def moved(move: Move) -> PartitionMove:
    """Return the effect of a seek on a partition."""
    return cast("PartitionMove", asdict(move))


# --- messages -------------------------------------------------------------------------------------------


class Lease(TypedDict):
    """The lease that covers a message."""

    token: int
    kind: str
    start: int
    horizon: int
    member: str
    name: str | None
    until: str | None


class Explanation(TypedDict):
    """The state of a message, and why."""

    subscription: str
    topic: str
    partition: int
    offset: int
    state: str
    attempt: int | None
    redelivered: bool
    due: str | None
    reserved: bool
    verdict: str | None
    lease: Lease | None
    floor: int | None
    base: int | None
    next: int | None
    avail: int | None
    log_start: int
    log_end: int
    subscribed: int
    notes: list[str]


def explained(found: Explained) -> Explanation:
    """Return the explanation of a message."""
    explanation, view = found.explanation, found.view
    holder, lease = explanation.holder, explanation.lease
    return {
        "subscription": str(found.key),
        "topic": found.topic,
        "partition": explanation.partition,
        "offset": explanation.offset,
        "state": explanation.state.name.lower(),
        "attempt": explanation.attempt,
        "redelivered": explanation.redelivered,
        "due": iso(explanation.due),
        "reserved": explanation.reserved,
        "verdict": explanation.verdict,
        "lease": None
        if lease is None
        else {
            "token": lease.token,
            "kind": lease.kind,
            "start": lease.start,
            "horizon": lease.horizon,
            "member": lease.member,
            "name": None if holder is None else holder.name,
            "until": None if holder is None else iso(holder.expires),
        },
        "floor": None if view is None else view.floor,
        "base": None if view is None else view.base,
        "next": None if view is None else view.next,
        "avail": None if view is None else view.readable_end,
        "log_start": found.log.start,
        "log_end": found.log.end,
        "subscribed": found.log.subscribed,
        "notes": list(explanation.notes),
    }


class Waiting(TypedDict):
    """A message that waits or is in flight."""

    topic: str | None
    partition: int | None
    offset: int | None
    #: ms since 1970
    timestamp: int
    state: str
    attempts: int | None
    redelivered: bool
    due: str | None
    holder: str | None
    key: Any
    properties: dict[str, Any]
    message_id: str | None
    value: Any


def waiting(each: Peeked, types: Any) -> Waiting:  # noqa: ANN401 - as decode takes them
    """Return a message with its state; `types` are the types of headers of the subscription."""
    message, explanation = each.message, each.explanation
    decoded = decode(cast("Any", message.headers()), types)
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "state": explanation.state.name.lower(),
        "attempts": explanation.attempts,
        "redelivered": explanation.redelivered,
        "due": iso(explanation.due),
        "holder": None if explanation.holder is None else explanation.holder.name,
        "key": plain_value(message.key()),
        "properties": {name: plain_value(value) for name, value in decoded.properties.items()},
        "message_id": decoded.fields.message_id,
        "value": plain_value(message.value()),
    }


class Letter(TypedDict):
    """A dead letter."""

    #: PARTITION:OFFSET in the topic of dead letters
    letter: str
    topic: str
    #: the place of the message: TOPIC[PARTITION]@OFFSET
    origin: str
    cause: str
    reason: str
    attempts: int
    #: when the message was sent
    timestamp: str | None


def dead_letter(letter: DeadLetter) -> Letter:
    """Return a dead letter without its payload."""
    return {
        "letter": f"{letter.partition}:{letter.offset}",
        "topic": letter.topic,
        "origin": letter.origin,
        "cause": letter.cause,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "timestamp": iso(letter.timestamp),
    }
