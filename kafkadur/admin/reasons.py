"""Sentences that say how an offset was settled, or what its message waits for. Pure functions.

`explain.py` explains the state of the offset alone; `inspector.py` collects everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from kafkadur.admin.explain import Explanation, Log, OffsetState, undecided
from kafkadur_coordinators.interface import Known, PartitionView
from kafkadur_sharing.definition import Definition, SubscriptionType


class Verdict(StrEnum):
    """How an offset was settled, as far as Kafka still shows it."""

    ACKNOWLEDGED = "acknowledged"
    #: Its time to live has ended by now; whether it was acknowledged before is not known.
    OVER = "acknowledged, or expired"
    #: Sent to dead letters.
    REJECTED = "rejected"
    #: The selector does not match it.
    FILTERED = "filtered"
    #: There is no record: it was compacted away, or is the marker of a transaction.
    GAP = "gap"


def reasons(
    explanation: Explanation,
    known: Known,
    definition: Definition,
    view: PartitionView | None,
    log: Log,
    *,
    high: int,
    dead: str | None,
) -> Iterator[str]:
    """Say more about an offset: how it was settled, or what it waits for.

    `view` is None for a partition that the subscription does not know yet. `high` is the end of the
    partition, open transactions included. `dead` is the place of the dead letter, None if there is none.
    """
    if explanation.verdict == Verdict.REJECTED:
        yield f"Its dead letter is {dead}."
    elif explanation.verdict == Verdict.FILTERED:
        yield f"The selector does not match it: {definition.selector}"
        yield "If an earlier selector matched it, it may have been acknowledged then."
    elif explanation.verdict == Verdict.ACKNOWLEDGED and definition.selector is not None:
        yield "If an earlier selector did not match it, it was skipped then."
    elif explanation.verdict == Verdict.OVER:
        yield "Its time to live has ended: without an acknowledgement it was settled without being delivered."
    elif explanation.verdict == Verdict.GAP:
        yield "No message lies there: it was removed by compaction, or it is the marker of a transaction."
    if explanation.state is OffsetState.BEYOND_END and explanation.offset < high:
        yield f"It is written, but a transaction that is still open holds back all from {log.end} on."
        yield "Kafka aborts it after its time-out; kafka-transactions.sh finds one that hangs."
    elif explanation.state is OffsetState.BEYOND_END:
        yield "Nothing is written there yet."
    elif explanation.state is OffsetState.READY:
        yield from _waiting(explanation.offset, known, definition, view)
    if known.paused and explanation.state not in {OffsetState.SETTLED, OffsetState.BEFORE_START}:
        yield "The subscription is paused: nothing is handed out until `kafkadur sub resume`."


def _waiting(offset: int, known: Known, definition: Definition, view: PartitionView | None) -> Iterator[str]:
    """Say what a message without a lease waits for."""
    if known.grace_ms > 0:
        yield f"Redis lost its memory or was replaced: leases are granted in {known.grace_ms / 1000:.1f} s."
    heard = [member for member in known.members if member.heard]
    if not heard:
        yield "No attached member is heard." if known.members else "Nobody is attached."
    elif definition.type is SubscriptionType.SHARED and all(member.credit <= 0 for member in heard):
        yield "The windows of all members are full."
    if view is None:
        return
    run = view.run_of(offset)
    if run is not None and run.suspect:
        yield "Its last holder ended uncleanly: it comes again with few others, or alone."
    before = _unsettled_before(view, offset)
    if before:
        yield f"{before:,} unsettled messages of its partition come before it."
    first = view.runs[0] if view.runs else None
    if definition.strict_order and first is not None and first.start < offset:
        yield f"In strict order it waits for offset {first.start}, which was given back."


def _unsettled_before(view: PartitionView, offset: int) -> int:
    """Count the unsettled offsets below `offset`."""
    aside = sum(max(min(run.end, offset) - run.start, 0) for run in view.runs)
    return undecided(view, view.base, min(offset, view.next)) + max(offset - view.next, 0) + aside
