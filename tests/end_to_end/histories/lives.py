"""Lives of a subscription: a new one begins whenever its topic is deleted and created anew.

In a history each life is a subscription of its own: the first one has the name of the topic, the second one
is called `NAME~2`. So no check can take messages of one topic for those of another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from tests.end_to_end.histories.faults import NEW_TOPIC
from tests.end_to_end.histories.history import Injected
from tests.end_to_end.histories.plan import Plan, SubscriptionPlan


class Lives:
    """Which life something belongs to, by its time (ns)."""

    def __init__(self, faults: Iterable[Injected]) -> None:
        """`faults` name the first life of each subscription, whenever they happened."""
        self._between: defaultdict[str, list[Injected]] = defaultdict(list)
        for fault in sorted(faults, key=lambda each: each.end):
            if fault.kind == NEW_TOPIC and fault.certain:
                self._between[fault.subscription].append(fault)

    def at(self, subscription: str, at: int) -> str:
        """The life of a subscription at a time. The old one ends when the administrator unsubscribes it."""
        return _life(subscription, sum(fault.switched <= at for fault in self._between[subscription]))

    def is_certain(self, subscription: str, called: int, at: int) -> bool:
        """Whether a call between two times has seen one life only, and one topic."""
        return not any(fault.start <= at and called <= fault.end for fault in self._between[subscription])

    def last(self, subscription: str) -> str:
        """The life that a subscription had at the end."""
        return _life(subscription, len(self._between[subscription]))

    def plan(self, plan: Plan) -> Plan:
        """The plan of a run, with each life as a subscription."""
        lives: dict[str, SubscriptionPlan] = {}
        for name, of in plan.subscriptions.items():
            for number in range(len(self._between[name]) + 1):
                life = _life(name, number)
                lives[life] = replace(of, name=life)
        return replace(plan, subscriptions=lives)

    def ended(self, plan: Plan) -> frozenset[str]:
        """The lives that ended with their topic, whatever was unsettled then."""
        last = {self.last(name) for name in plan.subscriptions}
        return frozenset(self.plan(plan).subscriptions.keys() - last)


def _life(subscription: str, before: int) -> str:
    return f"{subscription}~{before + 1}" if before else subscription
