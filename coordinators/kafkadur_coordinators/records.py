"""Records of the journal: changes of a definition, incarnations, and which change is in force.

Pure: bytes in, values out. Reading and writing the topic is `journal.py`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Version of the records written here.
RECORD_FORMAT = 1


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
            tag=body["tag"],
            key=body["key"],
            expected=body["expected"],
            under=body["under"],
            definition=body["definition"],
            id=body["id"],
            topic_id=body["topic_id"],
            starts={int(partition): start for partition, start in body["starts"].items()},
            epoch=body.get("epoch", 0),
            origins={int(partition): origin for partition, origin in body.get("origins", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Entry(offset=offset, change=change)


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
