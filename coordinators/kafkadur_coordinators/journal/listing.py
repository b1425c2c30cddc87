"""The records of the journal for people: what each one says, and whether it can be read. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kafkadur_coordinators.journal import checkpoints, records, recovery_reports
from kafkadur_coordinators.journal.shard import (
    CHANGE,
    INCARNATION,
    SESSION,
    SHARDS,
    Found,
    Scan,
    Shard,
    session_of,
)
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.keys import SubscriptionKey

_UNREADABLE = "it is damaged, or a later version wrote it; it is left out"


class Kind(StrEnum):
    """What a record is."""

    #: a subscription was created, replaced, altered, moved or deleted
    CHANGE = "change"
    #: a new incarnation of subscriptions: Redis lost them, or was replaced
    INCARNATION = "incarnation"
    #: which offsets of a partition are settled
    CHECKPOINT = "checkpoint"
    #: the report of a recovery
    RECOVERY = "recovery"
    #: a session that settles by transactions
    SESSION = "session"
    #: the number of partitions of the journal
    SHARDS = "shards"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One record."""

    shard: int
    offset: int
    #: ms since 1970
    written: int
    kind: Kind
    #: name of the subscription that it is of; None: of several, or not known
    subscription: str | None
    #: what it says
    text: str
    #: why it cannot be read, and what follows from that; None: it can
    damage: str | None = None


def listed(scan: Scan) -> list[Listed]:
    """Return all records, in the order in which they were written."""
    found = [each for number, shard in scan.items() for each in _shard(number, shard)]
    return sorted(found, key=lambda each: (each.written, each.shard, each.offset))


def _shard(number: int, shard: Shard) -> Iterator[Listed]:
    tags: dict[str, str] = {}
    ids: dict[str, str] = {}
    for entry in shard.entries:
        if entry.change is not None:
            name = _name(entry.change.key)
            tags[entry.change.tag] = name
            ids[entry.change.id or f"{number}.{entry.offset}"] = name
    for record in shard.records:
        yield _record(number, record, tags, ids)


def _name(key: Mapping[str, object]) -> str:
    try:
        return str(SubscriptionKey.from_record(key))
    except KafkadurError:
        return "unknown"


def _record(number: int, record: Found, tags: Mapping[str, str], ids: Mapping[str, str]) -> Listed:
    offset, key, value, written = record
    kind = _kind(key)
    subscription, text, damage = _told(kind, record, tags, ids)
    return Listed(
        shard=number,
        offset=offset,
        written=written,
        kind=kind,
        subscription=subscription,
        text="removed" if value is None else text,
        damage=None if value is None else damage,
    )


def _kind(key: bytes) -> Kind:
    if key == SHARDS:
        return Kind.SHARDS
    beginnings = {
        CHANGE: Kind.CHANGE,
        INCARNATION: Kind.INCARNATION,
        checkpoints.KEY_PREFIX: Kind.CHECKPOINT,
        recovery_reports.KEY_PREFIX: Kind.RECOVERY,
        SESSION: Kind.SESSION,
    }
    return next((kind for start, kind in beginnings.items() if key.startswith(start)), Kind.UNKNOWN)


#: Subscription, what it says, what is damaged.
_Told = tuple[str | None, str, str | None]


def _told(kind: Kind, record: Found, tags: Mapping[str, str], ids: Mapping[str, str]) -> _Told:
    offset, key, content, _ = record
    value = content or b""
    match kind:
        case Kind.CHANGE | Kind.INCARNATION:
            return _of_entry(records.decode(offset, value), tags)
        case Kind.CHECKPOINT:
            return _of_checkpoint(key, value, ids)
        case Kind.RECOVERY:
            return _of_recovery(value)
        case Kind.SESSION:
            session, incarnation = session_of(key)
            tag = key.split(b"/")[1].decode(errors="replace")
            return tags.get(tag), f"session {session}, incarnation {incarnation}", None
        case Kind.SHARDS:
            return None, f"the journal has {value.decode(errors='replace')} partitions", None
        case Kind.UNKNOWN:
            return None, "a later version wrote it, or another program", "it is not known; it is left out"


def _of_entry(entry: records.Entry | None, tags: Mapping[str, str]) -> _Told:
    if entry is None:
        return None, "", _UNREADABLE
    change = entry.change
    if change is None:
        number = f"incarnation {entry.offset + 1}"
        if entry.tags is None:
            return None, f"{number} of all subscriptions of the shard", None
        names = sorted(tags.get(tag, tag) for tag in entry.tags)
        return names[0] if len(names) == 1 else None, f"{number} of {', '.join(names)}", None
    name = _name(change.key)
    if change.definition is None:
        return name, f"unsubscribed (replaces version {change.expected})", None
    kind, topic = change.definition.get("type"), change.definition.get("topic")
    what = "created" if not change.expected else f"replaces version {change.expected}"
    return name, f"version {entry.offset + 1}, {what}: {kind} on {topic}", None


def _of_recovery(value: bytes) -> _Told:
    recovery = recovery_reports.decode(value)
    if recovery is None:
        return None, "", _UNREADABLE
    text = f"{recovery.cause}: {recovery.offsets} offsets may come again"
    return str(recovery.subscription), text, None


def _of_checkpoint(key: bytes, value: bytes, ids: Mapping[str, str]) -> _Told:
    name = ids.get(checkpoints.subscription_of(key))
    found = checkpoints.decode(key, value)
    if found is None:
        return name, "", "it is damaged, or a later version wrote it; it settles nothing"
    settlement = found.settlement
    text = f"lane {found.lane}: settled to {settlement.floor}, known to {settlement.next}"
    if not checkpoints.is_whole(value):
        return name, text, "its body is damaged; only its lowest unsettled offset counts"
    return name, text, None
