"""I6: on a lane messages come for the first time in the order of offsets; of a key: only in that order.

Others pass a message with a delivery time, except under strict order and of its key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import Delivery, History, Place
from tests.end_to_end.histories.plan import KEY


def check(history: History) -> Iterator[Finding]:
    """What came out of order."""
    firsts = _firsts(history)
    yield from _lanes(history, firsts)
    yield from _keys(history)
    yield from _strict(history)


def _firsts(history: History) -> Sequence[Delivery]:
    """Deliveries that are the first of their message, by time."""
    seen: set[Place] = set()
    found: list[Delivery] = []
    for delivery in history.deliveries:
        if delivery.place not in seen and not delivery.redelivered:
            found.append(delivery)
        seen.add(delivery.place)
    return found


def _lanes(history: History, firsts: Sequence[Delivery]) -> Iterator[Finding]:
    #: of each partition the first delivery with the highest offset, by member
    highest: defaultdict[tuple[str, int], dict[str, Delivery]] = defaultdict(dict)
    for delivery in firsts:
        plan = history.plan.subscriptions[delivery.place.subscription]
        message = history.truth.get(delivery.place)
        passed = message is not None and message.due is not None and not plan.strict
        if passed or not plan.ordered:
            continue
        known = highest[plan.name, delivery.place.partition]
        for member, other in known.items():
            # of another member's it is known only when it came before this one was asked for
            earlier = member == delivery.member or other.at < delivery.called
            if earlier and other.place.offset > delivery.place.offset:
                text = f"{delivery.place} came for the first time after {other.place}"
                lines = history.tell(other, delivery)
                yield Finding(invariant="I6", kind="order of a lane", text=text, lines=lines)
                break
        mine = known.get(delivery.member)
        if mine is None or mine.place.offset < delivery.place.offset:
            known[delivery.member] = delivery


def _keys(history: History) -> Iterator[Finding]:
    """Of a key nothing comes before all that is earlier has got a verdict that may have settled it."""
    keyed = {name for name, plan in history.plan.subscriptions.items() if plan.lane == KEY}
    places: defaultdict[tuple[str, int, str], list[Place]] = defaultdict(list)
    for place, message in history.truth.items():
        if place.subscription in keyed:
            places[place.subscription, place.partition, message.key].append(place)
    for of_key in places.values():
        of_key.sort()
        #: message that may have been settled latest, and when, of those before
        latest: tuple[int, Place] | None = None
        for place in of_key:
            deliveries = sorted(history.deliveries_of.get(place, ()), key=lambda each: each.at)
            if deliveries and latest is not None and deliveries[0].at < latest[0]:
                first, before = deliveries[0], latest[1]
                text = f"{place} was delivered before {before}, of the same key, was settled"
                shown = [*history.deliveries_of.get(before, ()), *history.verdicts_of.get(before, ()), first]
                yield Finding(invariant="I6", kind="order of a key", text=text, lines=history.tell(*shown))
            settled = _settled_at(history, place)
            if settled is not None and (latest is None or settled > latest[0]):
                latest = settled, place


def _settled_at(history: History, place: Place) -> int | None:
    """When a message may have been settled first (ns); None: unknown, it became a dead letter by itself."""
    most = history.plan.subscriptions[place.subscription].max_attempts
    times = [
        verdict.called
        for verdict in history.verdicts_of.get(place, ())
        if verdict.settles or (verdict.counts and verdict.attempt >= most)
    ]
    return min(times, default=None)


def _strict(history: History) -> Iterator[Finding]:
    """Under strict order nothing later is handed out between a roll back and the message's next delivery.

    What is rolled back at its last attempt is a dead letter: it comes again only after a loss.
    """
    strict = {name for name, plan in history.plan.subscriptions.items() if plan.strict}
    by_partition: defaultdict[tuple[str, int], list[Delivery]] = defaultdict(list)
    for delivery in history.deliveries:
        if delivery.place.subscription in strict:
            by_partition[delivery.place[:2]].append(delivery)
    for verdict in history.verdicts:
        if verdict.place.subscription not in strict or not (verdict.gives_back and verdict.confirmed):
            continue
        most = history.plan.subscriptions[verdict.place.subscription].max_attempts
        if verdict.counts and verdict.attempt >= most:
            continue
        again = next(
            (each.at for each in history.deliveries_of.get(verdict.place, ()) if each.token > verdict.token),
            None,
        )
        if again is None or verdict.at is None:
            continue
        for delivery in by_partition[verdict.place[:2]]:
            if (
                delivery.place.offset > verdict.place.offset
                and delivery.called > verdict.at
                and delivery.at < again
            ):
                text = f"{delivery.place} was handed out while {verdict.place} waited to come again"
                yield Finding(
                    invariant="I6", kind="strict order", text=text, lines=history.tell(verdict, delivery)
                )
                break
