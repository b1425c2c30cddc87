"""Checkpoints: settlement states of partitions at a moment, as records of the journal; unions of several.

The settled offsets only grow, so each writer uses keys of its own and readers unite all checkpoints: an old
checkpoint that arrives late is still true and overwrites nothing. Pure: bytes in, values
out. The client writes them (`checkpoint_thread.py`); the topic is read in `topic.py`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, cast

import msgpack

from kafkadur_coordinators.journal.origins import Origin
from kafkadur_coordinators.journal.records import whole
from kafkadur_coordinators.settlement_states import SUSPECT, SettlementState, Waiting, covers, cut_off, unite

#: Beginning of the keys of all checkpoints.
KEY_PREFIX = b"settled/"
#: Version of the bodies written here; a reader that does not know one takes the floor of the head.
FORMAT = 1
#: Largest body, bytes: the rest is left out; the checkpoint states fewer settled offsets, never wrong ones.
LARGEST_BODY = 512 * 1024
#: How long a writer writes under the same keys, ms, and how long an old checkpoint is kept at least.
WRITER_MS = 30 * 60 * 1000
KEPT_MS = 2 * WRITER_MS
#: Incarnations that began because Kafka lost the end of partitions: number, and first offset lost of each.
Cuts = Sequence[tuple[int, Mapping[int, int]]]
#: Magic, version of the head, floor, checksum of these.
_HEAD = struct.Struct(">2sBQI")
_MAGIC, _HEAD_VERSION = b"KC", 1
_KEY_PARTS = 6
#: Largest offset, and time in ms since 1970, that the shared state can hold, and most attempts.
_MOST = 2**48 - 1
_MOST_ATTEMPTS = SUSPECT // 2 - 1


class Checkpoint(NamedTuple):
    """Where one partition, or lane of keys, stood."""

    origin: Origin
    lane: int
    settlement: SettlementState
    #: key of the record
    key: bytes = b""
    #: when Kafka got the record, ms since 1970
    written: int = 0
    #: under which it was read from Redis
    incarnation: int = 0


def key_of(origin: Origin, lane: int, writer: str, incarnation: int) -> bytes:
    """Key of the record: each writer has its own under each incarnation."""
    return KEY_PREFIX + f"{origin.id}:{origin.epoch}:{origin.state}:{lane}:{writer}:{incarnation}".encode()


def subscription_of(key: bytes) -> str:
    """Id of the subscription that a record is of, by its key."""
    return key[len(KEY_PREFIX) :].partition(b":")[0].decode(errors="replace")


class Encoded(NamedTuple):
    """A settlement state as the value of a record."""

    value: bytes
    #: whether it is all of it; else it was too long, and too few settled offsets are stated
    whole: bool


def encode(settlement: SettlementState) -> bytes:
    """Return a settlement state as the value of a record; one that is too long is cut."""
    return encoded(settlement).value


def encoded(settlement: SettlementState) -> Encoded:
    """Return a settlement state as the value of a record, and whether it is all of it."""
    head = struct.pack(">2sBQ", _MAGIC, _HEAD_VERSION, settlement.floor)
    body, is_whole = _body(settlement), True
    while len(body) > LARGEST_BODY:
        settlement, is_whole = _shortened(settlement), False
        body = _body(settlement)
    sums = struct.pack(">I", zlib.crc32(head)) + struct.pack(">I", zlib.crc32(body))
    return Encoded(head + sums + body, is_whole)


def _body(settlement: SettlementState) -> bytes:
    plain: list[int] = []
    marked: list[tuple[int, ...]] = []
    at = 0
    for number, (start, end, attempts, redelivered, due, suspect) in enumerate(settlement.waiting):
        plain += (start - at, end - start)
        at = end
        if redelivered or attempts or due or suspect:
            marked.append((number, attempts, redelivered + 2 * suspect, due))
    return cast("bytes", msgpack.packb([FORMAT, settlement.next, settlement.seen, plain, marked]))


def _shortened(settlement: SettlementState) -> SettlementState:
    """The settlement state up to the middle of the waiting ranges, without the settled offsets behind."""
    kept = settlement.waiting[: len(settlement.waiting) // 2]
    return SettlementState(next=kept[-1].end, seen=max(settlement.seen, settlement.next), waiting=kept)


def decode(key: bytes, value: bytes, written: int = 0) -> Checkpoint | None:
    """Read a record that was `written` then (ms since 1970); None if it says nothing that can be used.

    A body that is damaged or of a format this version does not know leaves the floor.
    """
    try:
        parts = key[len(KEY_PREFIX) :].decode().split(":")
        if len(parts) != _KEY_PARTS:
            return None
        epoch, lane, incarnation = (whole(int(parts[n])) for n in (1, 3, 5))
        magic, version, floor, checksum = _HEAD.unpack_from(value)
    except (ValueError, struct.error):
        return None
    end = _HEAD.size - 4
    if magic != _MAGIC or version != _HEAD_VERSION or zlib.crc32(value[:end]) != checksum or floor > _MOST:
        return None
    settlement = _place(value[_HEAD.size :]) or SettlementState(next=floor)
    return Checkpoint(Origin(parts[0], epoch, parts[2]), lane, settlement, key, written, incarnation)


def is_whole(value: bytes) -> bool:
    """Whether the body of a record can be read: else only the floor in its head counts."""
    return _place(value[_HEAD.size :]) is not None


def _place(sealed: bytes) -> SettlementState | None:
    body = sealed[4:]
    if len(sealed) < 4 or zlib.crc32(body) != int.from_bytes(sealed[:4], "big"):  # noqa: PLR2004 - its checksum
        return None
    try:
        content: Any = msgpack.unpackb(body)
        version, following, seen, plain, marked = content
        if version != FORMAT:
            return None
        waiting: list[Waiting] = []
        at = 0
        for gap, length in zip(plain[::2], plain[1::2], strict=True):
            start = at + whole(gap, most=_MOST)
            at = start + whole(length, most=_MOST)
            if start == at:
                return None
            waiting.append(Waiting(start, at))
        for index, attempts, marks, due in marked:
            start, stop = waiting[whole(index)][:2]
            tried, until = whole(attempts, most=_MOST_ATTEMPTS), whole(due, most=_MOST)
            waiting[index] = Waiting(start, stop, tried, whole(marks) % 2 > 0, until, marks > 1)
        settlement = SettlementState(
            next=whole(following, most=_MOST), seen=whole(seen, most=_MOST), waiting=tuple(waiting)
        )
    except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException):
        return None
    return settlement if at <= settlement.next else None


def without_lost(
    settlement: SettlementState, partition: int, incarnation: int, cuts: Cuts
) -> SettlementState:
    """The part of a settlement state, read under an incarnation, that is valid after Kafka lost records."""
    for number, lost in cuts:
        if incarnation < number and partition in lost:
            settlement = cut_off(settlement, lost[partition])
    return settlement


def united(
    checkpoints: Iterable[Checkpoint], origin: Origin, cuts: Cuts = (), lanes: int = 1
) -> Mapping[int, SettlementState]:
    """The union of all checkpoints of one origin: the least settlement state of each of its lanes.

    `lanes`: of each partition.
    """
    settlements: dict[int, SettlementState] = {}
    for item in checkpoints:
        if item.origin == origin:
            settlement = without_lost(item.settlement, item.lane // lanes, item.incarnation, cuts)
            settlements[item.lane] = (
                unite(settlements[item.lane], settlement) if item.lane in settlements else settlement
            )
    return settlements


def superseded(checkpoints: Iterable[Checkpoint], in_use: Collection[Origin], now: int) -> list[bytes]:
    """Keys of old checkpoints whose origin is not `in_use`, or that later checkpoints cover.

    `now` in ms since 1970. Only those older than `KEPT_MS` are removed: no writer uses a key for that long,
    so none can write under it meanwhile. Only later ones are compared: otherwise two processes that run at
    once could each remove one of two equal checkpoints (found by model checking).
    """
    lanes: dict[tuple[Origin, int], list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        lanes.setdefault((checkpoint.origin, checkpoint.lane), []).append(checkpoint)
    gone: list[bytes] = []
    for (origin, _), some in lanes.items():
        ordered = sorted(some, key=lambda item: (item.written, item.key))
        for at, item in enumerate(ordered):
            if item.written >= now - KEPT_MS:
                break
            # one of an earlier incarnation may list offsets that are not settled any more (`Cuts`)
            later = [o.settlement for o in ordered[at + 1 :] if o.incarnation >= item.incarnation]
            if origin not in in_use or (later and covers(reduce(unite, later), item.settlement)):
                gone.append(item.key)
    return gone
