"""I5: a lane has one holder at a time.

How long somebody held something is taken from below, so that what is found is certain: from the delivery to
when an accepted verdict was given; where none was accepted, only until something happened that may have
ended the lease.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import Attachment, Delivery, History
from tests.end_to_end.histories.plan import KEY, NOBODY, PARTITION
from tests.end_to_end.histories.recording import FAIL


class _Held(NamedTuple):
    start: int
    end: int
    delivery: Delivery


def check(history: History) -> Iterator[Finding]:
    """Two members with messages of one lane in their hands, and of any type: with the same message."""
    attachments = {attachment.member: attachment for attachment in history.attachments}
    lanes: defaultdict[Hashable, list[_Held]] = defaultdict(list)
    messages: defaultdict[Hashable, list[_Held]] = defaultdict(list)
    for delivery in history.deliveries:
        held = _held(history, delivery, attachments.get(delivery.member))
        if held.end > held.start:
            messages[delivery.place].append(held)
            lane = _lane(history, delivery)
            if lane is not None:
                lanes[lane].append(held)
    for held_of_one in messages.values():
        yield from _overlaps(history, held_of_one, "message held twice")
    for held_of_lane in lanes.values():
        yield from _overlaps(history, held_of_lane, "two holders")


def _lane(history: History, delivery: Delivery) -> Hashable | None:
    plan = history.plan.subscriptions[delivery.place.subscription]
    if plan.lane == NOBODY:
        return None
    if plan.lane == PARTITION:
        return delivery.place[:2]
    if plan.lane == KEY:
        return (plan.name, delivery.key)
    return plan.name


def _held(history: History, delivery: Delivery, attachment: Attachment | None) -> _Held:
    """Between these times (ns) the member certainly held it."""
    verdict = history.verdict_on.get((delivery.member, delivery.place, delivery.token))
    if verdict is not None and verdict.confirmed:
        return _Held(delivery.at, verdict.called, delivery)
    ends = [fault.start for fault in history.disturbances(delivery.process) if fault.end >= delivery.at]
    if verdict is not None:
        # refused: it was lost at some time before, and nobody knows when
        ends.append(delivery.at if verdict.outcome == FAIL else verdict.called)
    elif attachment is not None and attachment.closing is not None:
        ends.append(attachment.closing)
    return _Held(delivery.at, min(ends, default=delivery.at), delivery)


def _overlaps(history: History, intervals: list[_Held], kind: str) -> Iterator[Finding]:
    longest: dict[str, _Held] = {}
    for held in sorted(intervals, key=lambda each: each[:2]):
        for member, other in longest.items():
            if member != held.delivery.member and other.end > held.start:
                one, two = other.delivery, held.delivery
                verdicts = [
                    verdict
                    for each in (one, two)
                    if (verdict := history.verdict_on.get((each.member, each.place, each.token)))
                ]
                yield Finding(
                    invariant="I5",
                    kind=kind,
                    text=f"{one.process} held {one.place} while {two.process} was handed {two.place}",
                    lines=history.tell(one, two, *verdicts),
                )
                break
        mine = longest.get(held.delivery.member)
        if mine is None or mine.end < held.end:
            longest[held.delivery.member] = held
        longest = {member: other for member, other in longest.items() if other.end > held.start}
