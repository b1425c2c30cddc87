"""I3: fencing tokens rise with every grant, and only who has the current one can settle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import Delivery, History, Token
from tests.end_to_end.histories.plan import WHOLE


def check(history: History) -> Iterator[Finding]:
    """Tokens that were used twice, fell, or were stale and accepted."""
    yield from _owners(history)
    yield from _stale(history)
    yield from _handovers(history)


def _owners(history: History) -> Iterator[Finding]:
    """A token belongs to one lease, so to one member; and a lease hands each message out once."""
    owners: dict[tuple[str, Token], Delivery] = {}
    for delivery in history.deliveries:
        first = owners.setdefault((delivery.place.subscription, delivery.token), delivery)
        if first.member != delivery.member or first.place.partition != delivery.place.partition:
            text = f"token {delivery.token} of {delivery.place.subscription} stands for two leases"
            lines = history.tell(first, delivery)
            yield Finding(invariant="I3", kind="token twice", text=text, lines=lines)
    for place, deliveries in history.deliveries_of.items():
        for one, other in pairwise(deliveries):
            if one.token == other.token:
                text = f"{place} was delivered twice with one token"
                yield Finding(
                    invariant="I3", kind="delivered twice", text=text, lines=history.tell(one, other)
                )


def _stale(history: History) -> Iterator[Finding]:
    """A verdict was accepted although somebody else had been handed the message under a newer token."""
    for verdict in history.verdicts:
        if not verdict.confirmed:
            continue
        for delivery in history.deliveries_of.get(verdict.place, ()):
            if delivery.token > verdict.token and delivery.at < verdict.called:
                text = f"{verdict.kind} of {verdict.place} was accepted under a stale token"
                lines = history.tell(delivery, verdict)
                yield Finding(invariant="I3", kind="stale token accepted", text=text, lines=lines)
                break


def _handovers(history: History) -> Iterator[Finding]:
    """Where one member holds a lane, all tokens of a new holder are above those of the ones before.

    Told by the clock: a delivery that was asked for after another member's had arrived.
    """
    lanes = {name for name, plan in history.plan.subscriptions.items() if plan.lane == WHOLE}
    #: of each partition: the highest token of each member so far, by the time of the delivery
    highest: dict[tuple[str, int], dict[str, Delivery]] = {}
    for delivery in history.deliveries:
        if delivery.place.subscription not in lanes:
            continue
        known = highest.setdefault(delivery.place[:2], {})
        for other in known.values():
            if (
                other.member != delivery.member
                and other.at < delivery.called
                and other.token > delivery.token
                and not _was_away(history, delivery)
            ):
                text = f"{delivery.place} was handed out under a token below that of an earlier holder"
                lines = history.tell(other, delivery)
                yield Finding(invariant="I3", kind="token fell", text=text, lines=lines)
        mine = known.get(delivery.member)
        if mine is None or mine.token < delivery.token:
            known[delivery.member] = delivery


def _was_away(history: History, delivery: Delivery) -> bool:
    """Whether the holder may not have known that it had lost its lease: its settlements are fenced."""
    reach = round(history.plan.session * 2e9)
    return any(
        fault.start <= delivery.at and delivery.called <= fault.end + reach
        for fault in history.disturbances(delivery.process)
    )
