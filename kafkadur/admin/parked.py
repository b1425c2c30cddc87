"""Keys of a key-ordered subscription that wait: at which message each is stuck, and how many are behind it.

Found by reading the records whose offsets are not settled; nothing is kept. `inspector.py` asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Message

from kafkadur_coordinators.interface import PartitionView
from kafkadur_sharing.keys import SLOTS, key_slot

#: Offsets that lie so near to each other are read together.
_NEAR = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ParkedKey:
    """A key whose messages wait for one that was given back or put off."""

    partition: int
    key: bytes
    #: The message it is stuck at.
    offset: int
    #: Counted attempts of it.
    attempts: int
    #: When it comes again, ms since 1970; None: at once, or it is in flight.
    due: int | None
    #: Messages of the key behind it that were looked at already.
    behind: int


def unsettled(view: PartitionView) -> Iterator[tuple[int, int]]:
    """Ranges of offsets that a lane has looked at and not settled, sorted."""
    ranges = [(run.start, run.end) for run in view.runs]
    start: int | None = None
    end = min(view.next, view.readable_end)
    for offset in range(view.base, end):
        if view.is_decided(offset):
            if start is not None:
                ranges.append((start, offset))
            start = None
        elif start is None:
            start = offset
    if start is not None:
        ranges.append((start, end))
    yield from sorted(ranges)


def together(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges to be read: those that lie near each other joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start - joined[-1][1] <= _NEAR:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def parked(
    messages: Iterable[Message], views: Mapping[int, PartitionView], lanes: int, *, now: int
) -> list[ParkedKey]:
    """The keys that are stuck, by partition and offset; `messages` are those at unsettled offsets, in order.

    A key is stuck if the first of its unsettled messages was given back. `now` is ms since 1970.
    """
    waiting: dict[tuple[int, bytes], list[int]] = {}
    for message in messages:
        key, partition, offset = message.key(), message.partition() or 0, message.offset() or 0
        if key is None:
            continue
        view = views.get(partition * lanes + key_slot(key, offset) * lanes // SLOTS)
        if view is not None and offset < view.next and (view.run_of(offset) or not view.is_decided(offset)):
            waiting.setdefault((partition, key), []).append(offset)
    found: list[ParkedKey] = []
    for (partition, key), offsets in waiting.items():
        view = views[partition * lanes + key_slot(key, offsets[0]) * lanes // SLOTS]
        run = view.run_of(offsets[0])
        if run is None or not run.redelivered:
            continue
        found.append(
            ParkedKey(
                partition=partition,
                key=key,
                offset=offsets[0],
                attempts=run.attempts,
                due=run.due if run.due > now else None,
                behind=len(offsets) - 1,
            )
        )
    return sorted(found, key=lambda item: (item.partition, item.offset))
