"""I8: attempts rise with what counts and with nothing else; a dead letter comes after the last of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import DeadLetter, Delivery, History, Place


def check(history: History) -> Iterator[Finding]:
    """Attempts that are too many, or were forgotten; dead letters that are too early."""
    written = {publication.digest: publication.called for publication in history.published}
    for place, deliveries in history.deliveries_of.items():
        most = history.plan.subscriptions[place.subscription].max_attempts
        since = written.get(deliveries[0].digest, history.began)
        for delivery in deliveries:
            if delivery.attempt > most:
                text = f"{place} was delivered for the {delivery.attempt}th time, and {most} are allowed"
                yield Finding(
                    invariant="I8", kind="beyond the limit", text=text, lines=history.tell(*deliveries)
                )
                break
            if delivery.attempt > 1 + _causes(history, place, since, delivery.at):
                text = f"attempt {delivery.attempt} of {place}: not so much has happened to it"
                shown = [*deliveries, *history.verdicts_of.get(place, ())]
                yield Finding(invariant="I8", kind="attempt invented", text=text, lines=history.tell(*shown))
                break
        yield from _forgotten(history, place)
    for letter in history.dead:
        yield from _dead(history, letter, written.get(letter.digest, history.began))


def _causes(history: History, place: Place, since: int, until: int) -> int:
    """How many attempts may have been counted between two times (ns)."""
    late = round((history.plan.session + 2) * 1e9)
    verdicts = sum(
        verdict.counts and verdict.called <= until for verdict in history.verdicts_of.get(place, ())
    )
    faults = sum(
        fault.start <= until and fault.end + late >= since
        for fault in history.disturbances(place.subscription)
    )
    return verdicts + faults


def _forgotten(history: History, place: Place) -> Iterator[Finding]:
    """A roll back that was confirmed counts, and who had a message before is not told that it is new."""
    for one, other in pairwise(history.deliveries_of[place]):
        verdict = history.verdict_on.get((one.member, place, one.token))
        counted = verdict if verdict is not None and verdict.counts and verdict.confirmed else None
        if counted and other.attempt <= one.attempt and not history.forgotten(counted, other.at):
            text = f"{place} was rolled back at attempt {one.attempt}, and came as {other.attempt}"
            lines = history.tell(one, counted, other)
            yield Finding(invariant="I8", kind="attempt forgotten", text=text, lines=lines)
        if not other.redelivered and one.at < other.called:
            text = f"{place} was delivered again, and not marked as redelivered"
            lines = history.tell(one, other, *([verdict] if verdict else []))
            yield Finding(invariant="I8", kind="not marked", text=text, lines=lines)


def _dead(history: History, letter: DeadLetter, since: int) -> Iterator[Finding]:
    most = history.plan.subscriptions[letter.place.subscription].max_attempts
    deliveries: list[Delivery] = list(history.deliveries_of.get(letter.place, ()))
    verdicts = history.verdicts_of.get(letter.place, ())
    lines = history.tell(*deliveries, *verdicts)
    if letter.cause == "rejected":
        if not any(verdict.kind.startswith("reject") for verdict in verdicts):
            text = f"{letter.place} is a dead letter as rejected, and nobody rejected it"
            yield Finding(invariant="I8", kind="dead letter too early", text=text, lines=lines)
    elif letter.attempts < most:
        text = f"{letter.place} is a dead letter after {letter.attempts} attempts, and {most} are allowed"
        yield Finding(invariant="I8", kind="dead letter too early", text=text, lines=lines)
    else:
        until = max([each.at for each in deliveries], default=history.began) + round(60e9)
        if _causes(history, letter.place, since, until) < most:
            text = f"{letter.place} is a dead letter, and not so many attempts can have been counted"
            yield Finding(invariant="I8", kind="dead letter too early", text=text, lines=lines)
