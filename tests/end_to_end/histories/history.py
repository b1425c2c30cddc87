"""A recorded history as values. `loading.py` reads it; what must hold of it is in `checks/`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from kafkadur_coordinators.interface import LeaseView, PartitionView
from tests.end_to_end.histories.faults import FAULTS
from tests.end_to_end.histories.plan import Plan
from tests.end_to_end.histories.recording import OK, UNKNOWN

_NS = 1_000_000_000
#: Messages have times of the wall clock, histories monotonic ones: so far may they drift apart in a run (ns).
CLOCKS_DIFFER = _NS // 20
#: Faults that ended so long before (ns) are shown with what is found.
_BEFORE = 2 * _NS
_SETTLE = {"ack", "ack_nowait", "reject", "reject_nowait"}
_GIVE_BACK = {"rollback", "rollback_nowait", "release", "release_nowait"}


class Place(NamedTuple):
    """Where a message lies; the topic is that of the subscription."""

    subscription: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.subscription}[{self.partition}]@{self.offset}"


Token = tuple[int, int]


class Message(NamedTuple):
    """A message as Kafka keeps it."""

    place: Place
    digest: str
    key: str
    #: the times that its producer gave it (ns): not delivered before; not delivered from then on
    due: int | None = None
    over: int | None = None


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A message came into the hands of an application."""

    process: str
    #: the attached member
    member: str
    place: Place
    digest: str
    key: str
    attempt: int
    redelivered: bool
    token: Token
    called: int
    at: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An application said what is to become of a delivery."""

    process: str
    member: str
    place: Place
    token: Token
    attempt: int
    #: ack, rollback, release, reject, each also with _nowait; extend
    kind: str
    called: int
    #: None: never (the process was killed)
    at: int | None
    outcome: str
    error: str = ""
    #: of an acknowledgement: what its confirmation survives
    level: str = "redis"

    @property
    def settles(self) -> bool:
        """Whether it may have settled the message, but for the last roll back that is allowed."""
        return self.kind in _SETTLE and self.outcome in {OK, UNKNOWN}

    @property
    def confirmed(self) -> bool:
        """Whether the coordinator has said that it was applied."""
        return self.outcome == OK and not self.kind.endswith("_nowait")

    @property
    def gives_back(self) -> bool:
        """Whether the message is to come again."""
        return self.kind in _GIVE_BACK

    @property
    def counts(self) -> bool:
        """Whether it may have counted as an attempt."""
        return self.kind in {"rollback", "rollback_nowait"} and self.outcome in {OK, UNKNOWN}


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """One member of a subscription, from attaching to leaving."""

    process: str
    member: str
    subscription: str
    window: int
    attached: int
    #: None: it never began to leave
    closing: int | None = None
    closed: int | None = None
    outcome: str = UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Lost:
    """An application found that the lease of something in its hands was gone."""

    member: str
    place: Place
    token: Token
    at: int


@dataclass(frozen=True, kw_only=True)
class Injected:
    """A fault that really happened; also a process that found it had not been running for a while."""

    kind: str
    start: int
    end: int
    #: process; empty: everybody
    process: str = ""
    #: subscription; empty: all
    subscription: str = ""
    #: whether it is certain that it happened
    certain: bool = True
    #: of a topic that was created anew: from when on members can be attached to the new one (ns)
    switched: int = 0

    @property
    def forgets(self) -> float:
        """See `Fault`."""
        return FAULTS[self.kind].forgets if self.kind in FAULTS else 0.0

    @property
    def ends_leases(self) -> bool:
        """See `Fault`."""
        return FAULTS[self.kind].ends_leases if self.kind in FAULTS else True


@dataclass(frozen=True, kw_only=True)
class Floor:
    """An administrator was told the lowest unsettled offset of a partition."""

    subscription: str
    partition: int
    floor: int
    called: int
    at: int


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Everything the coordinator keeps of the offsets of a subscription, of one moment between two times."""

    subscription: str
    called: int
    at: int
    incarnation: int
    sequence: int
    #: where keys have lanes: one each
    partitions: Sequence[PartitionView] = ()
    leases: Sequence[LeaseView] = ()


class Told(NamedTuple):
    """A lease, as the reply to an exchange told its holder."""

    token: int
    partition: int
    #: offsets it holds
    records: int
    #: range, lane, runs, ahead
    kind: str
    #: it is one of a suspect that ended its holders several times (`include/redelivery.lua`)
    grave: bool = False


@dataclass(frozen=True, kw_only=True)
class Call:
    """A script that a member of a shared subscription ran, with its reply."""

    process: str
    subscription: str
    member: str
    at: int
    #: exchange, attach, detach, ...
    name: str
    incarnation: int
    #: how many scripts had changed the subscription when it was over
    sequence: int
    #: of an exchange: free credit and highest token known when it was written; highest token given out
    credit: int = 0
    have: int = 0
    token: int = 0
    #: place among the members, and how many there are
    rank: int = 0
    members: int = 0
    #: whether leases wait to be told or ended
    left_over: bool = False
    #: whether it is granted nothing until its next exchange, because it reads its own partitions first
    reads_on: bool = False
    grants: Sequence[Told] = ()


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A dead letter as it lies in Kafka."""

    place: Place
    digest: str
    cause: str
    attempts: int


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A message was written, or tried to be."""

    digest: str
    called: int
    at: int | None
    outcome: str
    topic: str = ""
    partition: int = 0
    #: the number of its transaction
    transaction: int | None = None
    #: as of `Message`
    due: int | None = None
    over: int | None = None


@dataclass(frozen=True, kw_only=True)
class End:
    """How a subscription stood at the end."""

    subscription: str
    #: unsettled offsets that Kafka holds
    backlog: int
    #: offsets that were reported as removed by Kafka before they were settled
    expired: int
    #: seconds until everything was settled; None: that never came
    drained: float | None


@dataclass(frozen=True, kw_only=True)
class History:
    """Everything that was recorded in a run. Lists are in the order of their times."""

    plan: Plan
    #: monotonic ns
    began: int
    deliveries: Sequence[Delivery] = ()
    verdicts: Sequence[Verdict] = ()
    attachments: Sequence[Attachment] = ()
    lost: Sequence[Lost] = ()
    faults: Sequence[Injected] = ()
    floors: Sequence[Floor] = ()
    inspections: Sequence[Inspection] = ()
    #: of shared subscriptions, in the order in which the coordinator ran them
    calls: Sequence[Call] = ()
    truth: Mapping[Place, Message] = field(default_factory=dict[Place, Message])
    dead: Sequence[DeadLetter] = ()
    published: Sequence[Publication] = ()
    #: topics and partitions of each transaction that Kafka committed and did not mark as committed there
    unmarked: Sequence[frozenset[tuple[str, int]]] = ()
    ends: Sequence[End] = ()
    #: operations by name and outcome
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    #: processes that ended by themselves: name, last words
    crashed: Mapping[str, str] = field(default_factory=dict[str, str])
    #: subscriptions whose topic was deleted (`lives.py`)
    ended: frozenset[str] = frozenset()

    @cached_property
    def deliveries_of(self) -> Mapping[Place, Sequence[Delivery]]:
        """Deliveries of each message, by token: in the order in which they were granted."""
        found: defaultdict[Place, list[Delivery]] = defaultdict(list)
        for delivery in self.deliveries:
            found[delivery.place].append(delivery)
        return {place: sorted(of, key=lambda each: (each.token, each.at)) for place, of in found.items()}

    @cached_property
    def verdicts_of(self) -> Mapping[Place, Sequence[Verdict]]:
        """Verdicts on each message, in the order in which they were given."""
        found: defaultdict[Place, list[Verdict]] = defaultdict(list)
        for verdict in self.verdicts:
            found[verdict.place].append(verdict)
        return found

    @cached_property
    def verdict_on(self) -> Mapping[tuple[str, Place, Token], Verdict]:
        """The verdict on a delivery, by member, place and token."""
        return {
            (verdict.member, verdict.place, verdict.token): verdict
            for verdict in self.verdicts
            if verdict.kind != "extend"
        }

    def settled_from(self, place: Place) -> int | None:
        """When a message may have been settled first (ns): by a verdict, or because its time was over.

        None: never, unless it became a dead letter by itself.
        """
        times = [verdict.called for verdict in self.verdicts_of.get(place, ()) if verdict.settles]
        message = self.truth.get(place)
        if message is not None and message.over is not None:
            times.append(message.over - CLOCKS_DIFFER)
        return min(times, default=None)

    @cached_property
    def dead_places(self) -> frozenset[Place]:
        """The messages that have a dead letter."""
        return frozenset(letter.place for letter in self.dead)

    @cached_property
    def _attached(self) -> frozenset[tuple[str, str]]:
        """Pairs of a process and a subscription that it was attached to."""
        return frozenset((attachment.process, attachment.subscription) for attachment in self.attachments)

    @cached_property
    def _disturbances(self) -> Mapping[str, Sequence[Injected]]:
        """By what they hit: a process, a subscription, or everything (empty)."""
        found: defaultdict[str, list[Injected]] = defaultdict(list)
        for fault in self.faults:
            if fault.ends_leases:
                found[fault.process or fault.subscription].append(fault)
        return found

    @cached_property
    def _hits(self) -> Mapping[str, Sequence[str]]:
        """The keys of `_disturbances` for each process and each subscription."""
        found: defaultdict[str, list[str]] = defaultdict(lambda: [""])
        for process, subscription in self._attached:
            found[process] += [subscription]
            found[subscription] += [process]
        return found

    def disturbances(self, hit: str) -> Iterator[Injected]:
        """What may have ended the leases of a process, or leases of a subscription."""
        for each in (hit, *self._hits.get(hit, [""])):
            yield from self._disturbances.get(each, ())

    def forgotten(self, verdict: Verdict, until: int) -> bool:
        """Whether what became of a verdict may have been forgotten before a time (ns).

        What the journal has confirmed survives every fault of `faults.py`.
        """
        if verdict.level == "journal":
            return False
        applied = until if verdict.at is None else verdict.at
        return any(
            fault.forgets > 0
            and fault.start - fault.forgets * _NS <= applied
            and verdict.called <= fault.end
            and fault.start <= until
            for fault in self.faults
        )

    def time(self, at: int | None) -> str:
        """A time for people: seconds since the beginning."""
        return "never" if at is None else f"{(at - self.began) / _NS:.3f}"

    def tell(self, *items: object) -> list[str]:
        """Lines for people that show parts of the history in the order of time, with the faults around."""
        lines = sorted(_line(self, item) for item in items)
        processes = {item.process for item in items if isinstance(item, (Delivery, Verdict))} | {""}
        last = max((at for at, _ in lines), default=0)
        first = min((at for at, _ in lines), default=0) - _BEFORE
        around = [
            _line(self, fault)
            for fault in self.faults
            if fault.process in processes and fault.start <= last and fault.end >= first
        ]
        return [text for _, text in sorted([*lines, *around])]


def _line(history: History, item: object) -> tuple[int, str]:  # noqa: PLR0911 - one for each kind of thing
    if isinstance(item, Delivery):
        again = ", redelivered" if item.redelivered else ""
        return item.at, (
            f"{history.time(item.at)} s  {item.process} ({item.member}) was handed {item.place}, "
            f"attempt {item.attempt}, token {item.token}{again}; asked at {history.time(item.called)} s"
        )
    if isinstance(item, Verdict):
        error = f" ({item.error})" if item.error else ""
        return item.called, (
            f"{history.time(item.called)} s  {item.process} ({item.member}) {item.kind} {item.place}, "
            f"token {item.token}: {item.outcome}{error} at {history.time(item.at)} s"
        )
    if isinstance(item, Injected):
        target = f" of {item.process or item.subscription}" if item.process or item.subscription else ""
        return item.start, (
            f"{history.time(item.start)} s  fault {item.kind}{target} until {history.time(item.end)} s"
        )
    if isinstance(item, Attachment):
        return item.attached, (
            f"{history.time(item.attached)} s  {item.process} ({item.member}) attached; left at "
            f"{history.time(item.closed)} s: {item.outcome}"
        )
    if isinstance(item, Floor):
        return item.at, (
            f"{history.time(item.at)} s  floor of {item.subscription}[{item.partition}] is {item.floor}"
        )
    if isinstance(item, Inspection):
        return item.at, (
            f"{history.time(item.called)} s to {history.time(item.at)} s  {item.subscription} inspected: "
            f"incarnation {item.incarnation}, script {item.sequence}"
        )
    if isinstance(item, Call):
        told = ", ".join(f"{t.token}: {t.records} of [{t.partition}] {t.kind}" for t in item.grants)
        return item.at, (
            f"{history.time(item.at)} s  {item.process} ({item.member}) {item.name} {item.sequence}, "
            f"credit {item.credit}; leases {told or 'none'}"
        )
    if isinstance(item, Lost):
        return item.at, f"{history.time(item.at)} s  {item.member} saw that {item.place} was lost"
    return history.began, str(item)
