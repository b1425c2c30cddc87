"""Why a message is where it is: sentences that join the state of its offset with what lies around it.

Pure. The state alone is explained by `explain.py`; what lies around is gathered by `inspector.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kafkadur.admin.explain import Explanation, Log, OffsetState, undecided
from kafkadur_coordinators.interface import MemberInfo, PartitionView
from kafkadur_sharing.definition import Definition, SubscriptionType


class Verdict(StrEnum):
    """How an offset came to be settled, as far as it can be told afterwards."""

    ACKNOWLEDGED = "acknowledged"
    #: Given up, and written to the dead-letter topic.
    REJECTED = "rejected"
    #: The subscription does not take it.
    FILTERED = "filtered"
    #: No message lies there: compaction, or the marker of a transaction.
    GAP = "gap"


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What was found out by reading the topic and the dead-letter topic."""

    #: Whether a message lies there.
    exists: bool
    #: Whether the subscription takes it; noLocal is not asked for, which depends on the connection.
    taken: bool = True
    #: Where its dead letter lies, `topic[partition]@offset`; None: there is none.
    dead: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """What lies around an offset."""

    definition: Definition
    members: Sequence[MemberInfo]
    paused: bool
    #: Ms until leases are granted again.
    grace_ms: int
    #: None: the subscription does not know the partition yet.
    view: PartitionView | None
    log: Log
    #: First offset that nothing is written at, open transactions included.
    high: int
    #: None: Kafka does not keep the offset, or it was not looked at.
    evidence: Evidence | None = None


def with_reasons(explanation: Explanation, around: Around) -> Explanation:
    """Say more about an offset: how it was settled, or what it waits for."""
    verdict = _verdict(explanation, around)
    notes = (*explanation.notes, *_reasons(explanation, around, verdict))
    return replace(explanation, verdict=verdict, notes=notes)


def _verdict(explanation: Explanation, around: Around) -> Verdict | None:
    evidence = around.evidence
    if explanation.state is not OffsetState.SETTLED or evidence is None:
        return None
    if not evidence.exists:
        return Verdict.GAP
    if evidence.dead is not None:
        return Verdict.REJECTED
    return Verdict.ACKNOWLEDGED if evidence.taken else Verdict.FILTERED


def _reasons(explanation: Explanation, around: Around, verdict: Verdict | None) -> Iterator[str]:
    if verdict is Verdict.REJECTED and around.evidence is not None:
        yield f"Its dead letter is {around.evidence.dead}."
    elif verdict is Verdict.FILTERED:
        yield f"The selector does not match it: {around.definition.selector}"
    elif verdict is Verdict.GAP:
        yield "No message lies there: it was removed by compaction, or it is the marker of a transaction."
    if explanation.state is OffsetState.BEYOND_END:
        yield from _unreadable(explanation.offset, around)
    if explanation.state is OffsetState.READY:
        yield from _waiting(explanation, around)
    if around.paused and explanation.state not in {OffsetState.SETTLED, OffsetState.BEFORE_START}:
        yield "The subscription is paused: nothing is handed out until `kafkadur sub resume`."


def _unreadable(offset: int, around: Around) -> Iterator[str]:
    """Why an offset cannot be read yet."""
    if offset < around.high:
        yield f"It is written, but a transaction that is still open holds back all from {around.log.end} on."
        yield "Kafka aborts it after its time-out; kafka-transactions.sh finds one that hangs."
    else:
        yield "Nothing is written there yet."


def _waiting(explanation: Explanation, around: Around) -> Iterator[str]:
    """What a message without a lease waits for."""
    definition, view = around.definition, around.view
    if around.grace_ms > 0:
        yield f"Redis lost its memory or was replaced: leases are granted in {around.grace_ms / 1000:.1f} s."
    heard = [member for member in around.members if member.heard]
    if not heard:
        yield "No attached member is heard." if around.members else "Nobody is attached."
    elif definition.type is SubscriptionType.SHARED and all(member.credit <= 0 for member in heard):
        yield "The windows of all members are full."
    if view is None:
        return
    run = view.run_of(explanation.offset)
    if run is not None and run.suspect:
        yield "Its last holder ended uncleanly: it comes again with few others, or alone."
    before = _unsettled_before(view, explanation.offset)
    if before:
        yield f"{before:,} unsettled messages of its partition come before it."
    first = view.runs[0] if view.runs else None
    if definition.strict_order and first is not None and first.start < explanation.offset:
        yield f"In strict order it waits for offset {first.start}, which was given back."


def _unsettled_before(view: PartitionView, offset: int) -> int:
    """Unsettled offsets below one."""
    aside = sum(max(min(run.end, offset) - run.start, 0) for run in view.runs)
    return undecided(view, view.base, min(offset, view.next)) + max(offset - view.next, 0) + aside
