"""I4: what was settled with a confirmation is not delivered again, unless a fault that forgets came between.

Which faults forget is data: `faults.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import Attachment, History, Verdict
from tests.end_to_end.histories.recording import FAIL, OK


def check(history: History) -> Iterator[Finding]:
    """What came again after it was settled."""
    attachments = {attachment.member: attachment for attachment in history.attachments}
    for place, deliveries in history.deliveries_of.items():
        for verdict in history.verdicts_of.get(place, ()):
            if not _is_settled(history, verdict, attachments):
                continue
            again = next((each for each in deliveries if each.token > verdict.token), None)
            if again is not None and not history.forgotten(verdict, again.at):
                by_closing = verdict.kind.endswith("_nowait")
                how = "by closing in order" if by_closing else "by the coordinator"
                yield Finding(
                    invariant="I4",
                    kind="confirmed by closing" if by_closing else "settled came again",
                    text=f"{place} was settled by {verdict.kind}, confirmed {how}, and delivered again",
                    lines=history.tell(*deliveries, *history.verdicts_of[place]),
                )
                break


def _is_settled(history: History, verdict: Verdict, attachments: Mapping[str, Attachment]) -> bool:
    if verdict.kind in {"ack", "reject"}:
        return verdict.outcome == OK
    if verdict.kind == "rollback":
        most = history.plan.subscriptions[verdict.place.subscription].max_attempts
        return verdict.outcome == OK and verdict.attempt >= most
    if verdict.kind == "ack_nowait" and verdict.outcome != FAIL:
        # closing in order confirms what was acknowledged without waiting
        attachment = attachments.get(verdict.member)
        return attachment is not None and attachment.outcome == OK
    return False
