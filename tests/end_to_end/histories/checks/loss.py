"""I1: each message is delivered and ends acknowledged or as a dead letter; nothing is settled before.

A message whose time to live is over need not be delivered, or not again; that it is settled then is I12.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import History, Place


def check(history: History) -> Iterator[Finding]:
    """What was lost."""
    plans = history.plan.subscriptions
    for place, message in history.truth.items():
        excused = place in history.dead_places or place.subscription in history.ended
        if excused or message.over is not None:
            continue
        deliveries = history.deliveries_of.get(place)
        if not deliveries:
            yield Finding(
                invariant="I1", kind="never delivered", text=f"{place} was never delivered to anybody"
            )
            continue
        yield from _ends_settled(history, place, plans[place.subscription].max_attempts)
    for end in history.ends:
        if end.expired:
            text = f"{end.expired} offsets of {end.subscription} count as expired, and retention is off"
            yield Finding(invariant="I1", kind="expired", text=text)


def _ends_settled(history: History, place: Place, most: int) -> Iterator[Finding]:
    """The last grant of a message, which has no dead letter, must end with what may have settled it."""
    deliveries = history.deliveries_of[place]
    last = deliveries[-1]
    verdict = history.verdict_on.get((last.member, place, last.token))
    if verdict is not None and verdict.settles and (verdict.kind != "reject" or not verdict.confirmed):
        return
    if verdict is None:
        kind, text = "left unsettled", "was left unsettled, and never delivered again"
    elif verdict.kind == "reject" or (verdict.counts and verdict.attempt >= most):
        kind, text = "dead letter missing", "was given up, and there is no dead letter"
    elif verdict.gives_back:
        kind, text = "given back", "was given back, and never delivered again"
    else:
        kind, text = "refused", "was not settled by its last holder, and never delivered again"
    verdicts = history.verdicts_of.get(place, ())
    lines = history.tell(*deliveries, *verdicts, *_closing(history, last.member))
    yield Finding(invariant="I1", kind=kind, text=f"{place} {text}", lines=lines)


def _closing(history: History, member: str) -> Iterator[object]:
    return (attachment for attachment in history.attachments if attachment.member == member)
