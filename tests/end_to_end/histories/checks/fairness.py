"""I11: among n consumers that could be served all the time, any n grants in a row include each of them.

Checked of the new messages of shared subscriptions, from the scripts that members ran, in the order in which
the coordinator ran them: who could have been served, is at home with the partition and got nothing at all in
between is not passed over twice for the same other member, nor once for one that is not at home there.

Not checked, because the rule is another one: lanes and keys (who holds the lane has everything), redeliveries
(a suspect goes to who has no other, a last attempt to who holds nothing), promises (each asks for itself).
Not known, and so left out: the time around a fault of the member, for one whose channel is silent is passed
over; the half minute after a partition was added, in which the members learn of it; scripts whose call nobody
recorded (of killed processes, of administrators), and what follows until all have called again; the half
minute after suspects that may be kept apart were granted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tests.end_to_end.histories.faults import NEW_PARTITION
from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import Call, History, Told

#: Nanoseconds for which a member may be kept free for what is to be alone.
_KEPT_APART = 30_000_000_000
#: Nanoseconds within which the members learn of an added partition.
_FOUND = 30_000_000_000
_SECOND = 1_000_000_000


def check(history: History) -> Iterator[Finding]:
    """Members that were passed over."""
    for calls in _by_subscription(history):
        yield from _Walk(history, calls).findings()


def waited(history: History) -> int:
    """How many grants there were while another member, too, could have been served."""
    walks = [_Walk(history, calls) for calls in _by_subscription(history)]
    for walk in walks:
        for _ in walk.findings():
            pass
    return sum(walk.waited for walk in walks)


def _by_subscription(history: History) -> Iterator[Sequence[Call]]:
    found: defaultdict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in history.calls:
        found[call.subscription, call.incarnation].append(call)
    yield from found.values()


@dataclass
class _Member:
    """A member as the coordinator knows it."""

    rank: int
    credit: int
    #: of each partition: calls in which it was passed over, by who got something instead
    passed: defaultdict[int, defaultdict[str, list[Call]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def spend(self, records: int) -> None:
        """It got something."""
        self.credit = max(self.credit - records, 0)
        self.passed.clear()


class _Walk:
    """Goes through the scripts of one incarnation of a subscription."""

    def __init__(self, history: History, calls: Sequence[Call]) -> None:
        self._history = history
        self._calls = calls
        name = calls[0].subscription
        self._partitions = history.plan.subscriptions[name].partitions
        self._added = [
            fault for fault in history.faults if fault.kind == NEW_PARTITION and fault.subscription == name
        ]
        self._holders: Mapping[int, tuple[str, Told]] = {
            told.token: (call.member, told) for call in calls for told in call.grants
        }
        self._members: dict[str, _Member] = {}
        self._count = 0
        self._token = 0
        self._kept_apart_until = 0
        self.waited = 0

    def findings(self) -> Iterator[Finding]:
        """Members that were passed over."""
        last = 0
        for sequence, group in groupby(self._calls, key=lambda call: call.sequence):
            calls = list(group)
            if len(calls) > 1 or sequence != last + 1:  # one of them repeats an earlier one; one is not known
                self._forget(calls[-1])
            last = sequence
            if len(calls) == 1:
                yield from self._call(calls[0])

    def _forget(self, call: Call) -> None:
        """Who can be served is not known any more."""
        self._members.clear()
        self._token = max(self._token, call.token)

    def _call(self, call: Call) -> Iterator[Finding]:
        if not self._knows_partitions(call.at):
            self._forget(call)
            return
        if call.name != "exchange" or call.left_over or call.members != self._count:
            self._count = call.members
            self._forget(call)
            if call.name != "exchange":
                return
        unseen = sum(
            told.records
            for token in range(call.have + 1, self._token + 1)
            if token in self._holders
            for holder, told in [self._holders[token]]
            if holder == call.member and told.kind != "ahead"
        )
        caller = self._members.setdefault(call.member, _Member(rank=call.rank, credit=0))
        caller.rank, caller.credit = call.rank, max(call.credit - unseen, 0)
        if not caller.credit:
            caller.passed.clear()
        for token in range(self._token + 1, call.token + 1):
            if token not in self._holders:  # nobody was told
                self._members.clear()
                continue
            yield from self._grant(call, *self._holders[token])
        self._token = max(self._token, call.token)
        member = self._members.get(call.member)
        if call.reads_on and member is not None:
            member.spend(member.credit)

    def _knows_partitions(self, at: int) -> bool:
        """Whether all members know all partitions at a time (ns)."""
        while self._added and at > self._added[0].end + _FOUND:
            self._added.pop(0)
            self._partitions += 1
        return not (self._added and at >= self._added[0].start)

    def _grant(self, call: Call, holder: str, told: Told) -> Iterator[Finding]:
        if told.grave:
            self._kept_apart_until = call.at + _KEPT_APART
        if told.kind == "ahead":
            return
        waiting = {
            name: member
            for name, member in self._members.items()
            if name != holder and member.credit > 0 and self._at_home(told.partition, member.rank)
        }
        if told.kind == "range" and call.at > self._kept_apart_until and holder in self._members:
            self.waited += bool(waiting)
            most = 1 if self._at_home(told.partition, self._members[holder].rank) else 0
            for name, member in waiting.items():
                over = member.passed[told.partition][holder]
                over.append(call)
                if len(over) > most and not self._disturbed(name, over[0].at, call.at):
                    text = (
                        f"{name} could have been served with {call.subscription}[{told.partition}], and was "
                        f"passed over for {holder}"
                    )
                    yield Finding(
                        invariant="I11",
                        kind="passed over",
                        text=text,
                        lines=self._history.tell(*self._around(over)),
                    )
                    over.clear()
        if holder in self._members:
            self._members[holder].spend(told.records)

    def _around(self, over: Sequence[Call]) -> Iterator[Call]:
        first, last = over[0].sequence, over[-1].sequence
        return (call for call in self._calls if first <= call.sequence <= last)

    def _at_home(self, partition: int, rank: int) -> bool:
        """As `include/members.lua`."""
        if self._count <= self._partitions:
            return partition % self._count == rank
        return rank % self._partitions == partition

    def _disturbed(self, member: str, since: int, until: int) -> bool:
        process = next(call.process for call in self._calls if call.member == member)
        reach = round(self._history.plan.session * _SECOND)
        return any(
            fault.start <= until + _SECOND and fault.end + reach >= since
            for fault in self._history.disturbances(process)
        )
