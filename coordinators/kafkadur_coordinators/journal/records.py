"""Records of the journal: changes of a definition, incarnations, and which change is in force.

Pure: bytes in, values out. `topic.py` reads and writes the topic. Settled offsets are in records of another
kind (`checkpoints.py`), and so are reports of recoveries (`recovery_reports.py`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from kafkadur_sharing.definition import Definition

#: The text before and after the body of a record.
_BEFORE, _BEHIND = b'{"body":', b',"sum":'
#: Version of the records written here.
RECORD_FORMAT = 1
#: No offset is larger: scripts count in doubles.
MOST = 2**53 - 1

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
    definition: Mapping[str, Any] | None = None
    #: the subscription's id; None: it is created by this record
    id: str | None = None
    topic_id: str = ""
    #: first offset of each partition
    starts: Mapping[int, int] = field(default_factory=dict[int, int])
    #: rises when the subscription is moved (seek)
    epoch: int = 0
    #: where it began, if it has been moved since; nothing before was ever for it
    origins: Mapping[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, kw_only=True)
class InForce:
    """The change that is in force."""

    #: offset of its record + 1
    version: int
    #: the subscription's id
    id: str
    change: Change

    @cached_property
    def definition(self) -> Definition:
        """The definition; raises `KafkadurError` where this version cannot read it, or there is none."""
        return Definition.from_record(self.change.definition or {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A record of the journal as it was read."""

    offset: int
    #: a change, or None: an incarnation
    change: Change | None
    #: of an incarnation: the subscriptions' tags for which it counts; None: all of the shard
    tags: frozenset[str] | None = None
    #: of an incarnation that began because Kafka lost the end of partitions: the first offset lost of each
    cuts: Mapping[int, int] = field(default_factory=dict[int, int])

    def begins(self, tag: str) -> bool:
        """Whether this is an incarnation of subscription `tag`."""
        return self.change is None and (self.tags is None or tag in self.tags)


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
    return sealed(body)


def encode_incarnation(server: str, tags: Iterable[str], cuts: Mapping[int, int] | None = None) -> bytes:
    """An incarnation of these subscriptions.

    Everything of theirs that began before it and comes after it is void. `cuts`: Kafka lost what lay at or
    beyond these offsets of partitions, so earlier checkpoints beyond them are not valid any more.
    """
    lost = {str(partition): offset for partition, offset in (cuts or {}).items()}
    return sealed(
        {
            "format": RECORD_FORMAT,
            "kind": "incarnation",
            "server": server,
            "tags": sorted(tags),
            **({"cuts": lost} if lost else {}),
        }
    )


def sealed(body: Mapping[str, Any]) -> bytes:
    """A record as JSON with its checksum."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return b"%s%s%s%d}" % (_BEFORE, text, _BEHIND, zlib.crc32(text))


def unsealed(value: bytes) -> dict[str, Any]:
    """The body of a record; raises `ValueError`, `KeyError` or `TypeError` for a damaged one."""
    whole = json.loads(value)
    body = whole["body"]
    # as it is written here; the version before sorted the body only for its checksum
    text = value[len(_BEFORE) : value.rfind(_BEHIND)]
    if zlib.crc32(text) != whole["sum"]:
        text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    if zlib.crc32(text) != whole["sum"] or not isinstance(body, dict):
        msg = "the checksum is wrong"
        raise ValueError(msg)
    return body


def decode(offset: int, value: bytes) -> Entry | None:
    """Read one record; None if it is damaged or of a format that this version does not know."""
    try:
        body = unsealed(value)
        if body["format"] != RECORD_FORMAT:
            return None
        if body["kind"] == "incarnation":
            tags = body.get("tags")
            return Entry(
                offset=offset,
                change=None,
                tags=None if tags is None else frozenset(_as(str, tag) for tag in _as(list, tags)),
                cuts=_offsets(body.get("cuts", {})),
            )
        if body["kind"] != "change":
            return None
        change = Change(
            tag=_as(str, body["tag"]),
            key=_as(dict, body["key"]),
            expected=whole(body["expected"]),
            under=whole(body["under"]),
            definition=None if body["definition"] is None else _as(dict, body["definition"]),
            id=None if body["id"] is None else _as(str, body["id"]),
            topic_id=_as(str, body["topic_id"]),
            starts=_offsets(body["starts"]),
            epoch=whole(body.get("epoch", 0)),
            origins=_offsets(body.get("origins", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Entry(offset=offset, change=change)


def last_incarnation(entries: Iterable[Entry], tag: str) -> int:
    """Highest incarnation of subscription `tag` in these records (offset + 1; 0: none)."""
    return max((entry.offset + 1 for entry in entries if entry.begins(tag)), default=0)


def by_tag(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Changes and incarnations of each subscription that was ever changed, in order."""
    entries = list(entries)
    found: dict[str, list[Entry]] = {entry.change.tag: [] for entry in entries if entry.change is not None}
    for entry in entries:
        if entry.change is not None:
            found[entry.change.tag].append(entry)
            continue
        for tag in found if entry.tags is None else entry.tags & found.keys():
            found[tag].append(entry)
    return found


def _as(kind: type[T], value: object) -> T:
    """The value, if it is of this type; raises TypeError."""
    if not isinstance(value, kind):
        raise TypeError
    return value


def whole(value: object, *, most: int = MOST) -> int:
    """Return an integer from 0 to `most`; raise TypeError or ValueError for any other value."""
    if type(value) is not int:  # a bool is one, too, but means something else
        raise TypeError
    if not 0 <= value <= most:
        raise ValueError
    return value


def _offsets(value: object) -> dict[int, int]:
    """Offsets by partition; raises TypeError and ValueError."""
    found: dict[Any, Any] = _as(dict, value)
    return {whole(int(partition)): whole(offset) for partition, offset in found.items()}


def in_force(entries: Iterable[Entry], tag: str, shard: int) -> InForce | None:
    """The change of subscription `tag` that is in force; None if there never was one.

    In force is the first record among those with the highest expected version. A record is void when an
    incarnation newer than the one it began under lies before it (found by model checking: a change that
    comes too late must not win).
    """
    incarnation = 0
    best: tuple[int, Change] | None = None
    for entry in entries:
        change = entry.change
        if change is None:
            incarnation = entry.offset + 1 if entry.begins(tag) else incarnation
            continue
        if change.tag != tag or incarnation > change.under:
            continue
        if best is None or change.expected > best[1].expected:
            best = (entry.offset, change)
    if best is None:
        return None
    offset, change = best
    return InForce(version=offset + 1, id=change.id or f"{shard}.{offset}", change=change)
