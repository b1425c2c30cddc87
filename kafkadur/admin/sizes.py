"""Count the current and the pending messages of a subscription, and their bytes (rule A5).

*Pending* messages are in flight or wait until they are due. *Current* are all other unsettled messages. Kafka
does not report the sizes of single messages, so `inspector.py` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Message

from kafkadur.admin.browse import lane_of
from kafkadur.admin.explain import RUNS, is_settled
from kafkadur_coordinators.interface import LeaseView, MemberInfo, PartitionView


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
    """Count the unsettled messages; `now` is the server's time, ms since 1970.

    `on_progress` is called after each message with the number of messages read.
    """
    held: dict[int, list[LeaseView]] = {}
    for lease in leases:
        if lease.member in members:
            held.setdefault(lease.partition, []).append(lease)
    counts, lengths = [0, 0], [0, 0]
    for seen, message in enumerate(messages, 1):
        offset, number = message.offset() or 0, lane_of(message, lanes)
        view = views.get(number)
        waits = view is None or offset >= view.next or not is_settled(view, offset)
        if waits and (takes is None or takes(message)):
            which = int(view is not None and _is_pending(view, held.get(number, []), offset, now))
            counts[which] += 1
            lengths[which] += len(message.value() or b"") + len(message.key() or b"")
        on_progress(seen)
    return Sizes(
        messages_current=counts[0],
        bytes_current=lengths[0],
        messages_pending=counts[1],
        bytes_pending=lengths[1],
    )


def _is_pending(view: PartitionView, leases: Iterable[LeaseView], offset: int, now: int) -> bool:
    """Tell whether an unsettled offset has a lease, or is not due yet."""
    run = view.run_of(offset)
    if run is not None:
        return run.due > now or any(lease.token == run.token for lease in leases)
    return any(
        lease.start <= offset < min(lease.horizon, view.next) for lease in leases if lease.kind not in RUNS
    )
