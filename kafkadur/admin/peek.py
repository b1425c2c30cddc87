"""Look at the messages that wait in a subscription, in order, and at what each of them waits for.

Nothing is consumed and no attempt is counted: the messages are read beside the subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Message

from kafkadur.admin.browse import lane_of
from kafkadur.admin.explain import Explanation, Log, OffsetState, explain, with_times
from kafkadur.admin.parked import together
from kafkadur.message.times import now_ms, of_headers
from kafkadur_coordinators.interface import LeaseView, MemberInfo, PartitionView
from kafkadur_coordinators.settlement_states import SettlementState


@dataclass(frozen=True, kw_only=True, slots=True)
class Peeked:
    """A message that waits in a subscription, or is in flight."""

    message: Message
    #: Its state: leased with its holder, ready, or due at a time.
    explanation: Explanation


def unsettled_stretches(
    partition: int, standing: SettlementState | None, log: Log
) -> Iterator[tuple[int, int, int]]:
    """Yield stretches (partition, start, end) with all unsettled offsets of a partition that Kafka keeps.

    `standing` None: the subscription does not know the partition yet.
    """
    fresh = log.subscribed
    if standing is not None:
        fresh = standing.next
        for start, end in together((item.start, item.end) for item in standing.waiting):
            yield partition, max(start, log.start), min(end, log.end)
    yield partition, max(fresh, log.start), log.end


def peeked(
    messages: Iterable[Message],
    views: Mapping[int, PartitionView],
    leases: Sequence[LeaseView],
    members: Sequence[MemberInfo],
    logs: Mapping[int, Log],
    *,
    lanes: int,
    now: int,
    takes: Callable[[Message], bool] | None,
) -> Iterator[Peeked]:
    """Yield those of the messages that are unsettled and taken by the selector, with their states.

    `now` is server time, ms since 1970.
    """
    for message in messages:
        partition, lane = message.partition() or 0, lane_of(message, lanes)
        explanation = explain(
            message.offset() or 0,
            partition=partition,
            view=views.get(lane),
            leases=[lease._replace(partition=partition) for lease in leases if lease.partition == lane],
            members=members,
            log=logs[partition],
            now=now,
        )
        explanation = with_times(explanation, of_headers(message.headers()), now_ms())
        waits = explanation.state in (OffsetState.LEASED, OffsetState.READY)
        if waits and (takes is None or takes(message)):
            yield Peeked(message=message, explanation=explanation)
