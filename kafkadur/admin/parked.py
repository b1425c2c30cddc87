"""Find the keys of a key-ordered subscription that are stuck at a message, and count the messages behind it.

They are found by reading the records at unsettled offsets, which `inspector.py` does; nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Message

from kafkadur.admin.browse import lane_of
from kafkadur.admin.explain import is_settled
from kafkadur_coordinators.interface import PartitionView

#: Ranges with at most so many offsets between them are read as one.
_NEAR = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ParkedKey:
    """A key whose messages wait for one that was rolled back or delayed."""

    partition: int
    key: bytes
    #: The message that the others wait for.
    offset: int
    #: Counted attempts of that message.
    attempts: int
    #: When it is delivered again, ms since 1970; None: now, or it is in flight.
    due: int | None
    #: Further messages of the key that were granted already.
    behind: int


def together(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join the ranges that lie near each other."""
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
    """Return the keys that are stuck, by partition and offset.

    A key is stuck if the first of its unsettled messages was given back. `messages` are those at unsettled
    offsets, in order; `now` is ms since 1970.
    """
    waiting: dict[tuple[int, bytes], tuple[PartitionView, list[int]]] = {}
    for message in messages:
        key, offset = message.key(), message.offset() or 0
        view = views.get(lane_of(message, lanes))
        if key is None or view is None or offset >= view.next or is_settled(view, offset):
            continue
        waiting.setdefault((message.partition() or 0, key), (view, []))[1].append(offset)
    found: list[ParkedKey] = []
    for (partition, key), (view, offsets) in waiting.items():
        run = view.run_of(offsets[0])
        if run is not None and run.redelivered:
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
