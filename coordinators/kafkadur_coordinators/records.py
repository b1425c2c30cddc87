"""Records of the journal: changes of a definition, incarnations, and which change is in force.

Pure: bytes in, values out. Reading and writing the topic is `journal.py`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

#: Version of the records written here.
RECORD_FORMAT = 1
#: No offset is as large: scripts count in doubles.
_BEYOND = 2**53

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change of one subscription's definition.

    Create, replace, unsubscribe, or an abort that changes nothing.
    """

    #: hash tag of the subscription's key
    tag: str
    #: the key's parts, for people and for listing
    key: Mapping[str, Any]
    #: version that this change replaces (0: none)
    expected: int
    #: highest incarnation of the shard that was known when the change began
    under: int
    #: the definition's record; None: unsubscribed
    definition: Mapping[str, Any] | None
    #: the subscription's id; None: it is created by this record
    id: str | None
    topic_id: str
    #: first offset of each partition
    starts: Mapping[int, int]
    #: rises when the subscription is moved (seek)
    epoch: int = 0
    #: where it began, if it has been moved since; nothing before was ever for it
    origins: Mapping[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, kw_only=True, slots=True)
class InForce:
    """The change that is in force."""

    #: offset of its record + 1
    version: int
    #: the subscription's id
    id: str
    change: Change


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A record of the journal as it was read."""

    offset: int
    #: a change, or None: an incarnation
    change: Change | None


def encode_change(change: Change) -> bytes:
    """One change as JSON with a checksum."""
    body = {
        "format": RECORD_FORMAT,
        "kind": "change",
        "tag": change.tag,
        "key": dict(change.key),
        "expected": change.expected,
        "under": change.under,
        "definition": None if change.definition is None else dict(change.definition),
        "id": change.id,
        "topic_id": change.topic_id,
        "starts": {str(partition): offset for partition, offset in change.starts.items()},
        "epoch": change.epoch,
        "origins": {str(partition): offset for partition, offset in change.origins.items()},
    }
    return _sealed(body)


def encode_incarnation(server: str) -> bytes:
    """An incarnation: everything that began before it and comes after it is void."""
    return _sealed({"format": RECORD_FORMAT, "kind": "incarnation", "server": server})


def _sealed(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return json.dumps({"body": body, "sum": zlib.crc32(text.encode())}, separators=(",", ":")).encode()


def decode(offset: int, value: bytes) -> Entry | None:
    """Read one record; None if it is damaged or of a format that this version does not know."""
    try:
        sealed = json.loads(value)
        body = sealed["body"]
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        if zlib.crc32(text.encode()) != sealed["sum"] or body["format"] != RECORD_FORMAT:
            return None
        if body["kind"] == "incarnation":
            return Entry(offset=offset, change=None)
        if body["kind"] != "change":
            return None
        change = Change(
            tag=_as(str, body["tag"]),
            key=_as(dict, body["key"]),
            expected=_number(body["expected"]),
            under=_number(body["under"]),
            definition=None if body["definition"] is None else _as(dict, body["definition"]),
            id=None if body["id"] is None else _as(str, body["id"]),
            topic_id=_as(str, body["topic_id"]),
            starts=_offsets(body["starts"]),
            epoch=_number(body.get("epoch", 0)),
            origins=_offsets(body.get("origins", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Entry(offset=offset, change=change)


def _as(kind: type[T], value: object) -> T:
    """The value, if it is of this type; raises TypeError."""
    if not isinstance(value, kind):
        raise TypeError
    return value


def _number(value: object) -> int:
    """An offset, or what is counted like one; raises TypeError and ValueError."""
    if isinstance(value, bool) or not 0 <= _as(int, value) < _BEYOND:
        raise ValueError
    return _as(int, value)


def _offsets(value: object) -> dict[int, int]:
    """Offsets by partition; raises TypeError and ValueError."""
    found: dict[Any, Any] = _as(dict, value)
    return {_number(int(partition)): _number(offset) for partition, offset in found.items()}


def last_incarnation(entries: Iterable[Entry]) -> int:
    """Highest incarnation in these records (offset + 1; 0: none)."""
    return max((entry.offset + 1 for entry in entries if entry.change is None), default=0)


def in_force(entries: Iterable[Entry], tag: str, shard: int) -> InForce | None:
    """The change of subscription `tag` that is in force; None if there never was one.

    In force is the first record among those with the highest expected version. A record is void when an
    incarnation newer than the one it began under lies before it (found by model checking: a change that
    comes too late must not win).
    """
    incarnation = 0
    best: tuple[int, Change] | None = None
    for entry in entries:
        if entry.change is None:
            incarnation = max(incarnation, entry.offset + 1)
            continue
        change = entry.change
        if change.tag != tag or incarnation > change.under:
            continue
        if best is None or change.expected > best[1].expected:
            best = (entry.offset, change)
    if best is None:
        return None
    offset, change = best
    return InForce(version=offset + 1, id=change.id or f"{shard}.{offset}", change=change)
