"""How much of a subscription is current and how much pending, in messages and bytes (rule A5).

*Pending* is what a consumer holds without a verdict, or what waits to come again: stored, but invisible to
others. *Current* is the rest of what waits. Kafka does not know sizes of single messages, so they are read:
counting here, reading in `inspector.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Message

from kafkadur.admin.explain import RUNS
from kafkadur_coordinators.interface import LeaseView, MemberInfo, PartitionView
from kafkadur_sharing.keys import SLOTS, key_slot


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Unsettled messages that the selector takes, and the bytes of their keys and values."""

    messages_current: int = 0
    bytes_current: int = 0
    messages_pending: int = 0
    bytes_pending: int = 0


def sizes(
    messages: Iterable[Message],
    views: Mapping[int, PartitionView],
    leases: Iterable[LeaseView],
    members: Mapping[str, MemberInfo],
    *,
    lanes: int,
    now: int,
    takes: Callable[[Message], bool] | None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Sizes:
    """Count the unsettled among `messages`; `now` is the server's time, ms since 1970.

    `on_progress` is told after each message how many were looked at.
    """
    held: dict[int, list[LeaseView]] = {}
    for lease in leases:
        if lease.member in members:
            held.setdefault(lease.partition, []).append(lease)
    counts, lengths = [0, 0], [0, 0]
    for seen, message in enumerate(messages, 1):
        offset, key = message.offset() or 0, message.key()
        number = (message.partition() or 0) * lanes
        if lanes > 1:
            number += key_slot(_raw(key), offset) * lanes // SLOTS
        view = views.get(number)
        if _waits(view, offset) and (takes is None or takes(message)):
            which = int(view is not None and _is_pending(view, held.get(number, []), offset, now))
            counts[which] += 1
            lengths[which] += len(_raw(message.value()) or b"") + len(_raw(key) or b"")
        on_progress(seen)
    return Sizes(
        messages_current=counts[0],
        bytes_current=lengths[0],
        messages_pending=counts[1],
        bytes_pending=lengths[1],
    )


def _waits(view: PartitionView | None, offset: int) -> bool:
    """Whether an offset is unsettled."""
    return (
        view is None or offset >= view.next or view.run_of(offset) is not None or not view.is_decided(offset)
    )


def _is_pending(view: PartitionView, leases: Iterable[LeaseView], offset: int, now: int) -> bool:
    """Whether a consumer holds an unsettled offset, or it is not due yet."""
    run = view.run_of(offset)
    if run is not None:
        return run.due > now or any(lease.token == run.token for lease in leases)
    return any(
        lease.start <= offset < min(lease.horizon, view.next) for lease in leases if lease.kind not in RUNS
    )


def _raw(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
