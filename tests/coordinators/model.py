"""What the shared state means, said a second time: sets of offsets, and nothing of bitmaps, runs or packing.

`Model` is told what members said and derives who may settle what. Which member is served next is the
scripts' choice: the model checks that the choice was allowed. `observe` reads the same sets out of the real
state, so that the two can be compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkadur_coordinators.interface import (
    Exchange,
    How,
    Inspection,
    LeaseView,
    PartitionReport,
    PartitionView,
)
from kafkadur_coordinators.redis_coordinator import attempts_of

SILENCE_MS = 500


class Mark(NamedTuple):
    """What is known of an unsettled offset."""

    attempts: int = 0
    redelivered: bool = False
    due: int = 0


FRESH = Mark()


@dataclass
class Place:
    """A partition."""

    start: int
    avail: int
    seen: int = 0
    settled: set[int] = field(default_factory=set[int])
    #: unsettled, readable, nobody's
    ready: dict[int, Mark] = field(default_factory=dict[int, Mark])

    @property
    def floor(self) -> int:
        """Lowest unsettled offset, counted one by one."""
        offset = self.start
        while offset in self.settled:
            offset += 1
        return offset


@dataclass
class Held:
    """A lease."""

    token: int
    partition: int
    member: str
    start: int
    end: int
    lane: bool
    #: offsets without a verdict; those at or beyond avail are a reservation
    open: dict[int, Mark]


@dataclass
class Attendee:
    """A member."""

    expiry: int
    session: int
    credit: int = 0
    exchange: int = 0
    silent: int = 0
    priority: int = 0
    preempt: bool = False


class Model:
    """One subscription."""

    def __init__(self, starts: Iterable[int], *, kind: str) -> None:
        self.kind = kind
        self.lane = kind != "shared"
        #: who holds the lanes
        self.holder = ""
        self.places = {p: Place(start, start) for p, start in enumerate(starts)}
        self.members: dict[str, Attendee] = {}
        self.leases: dict[int, Held] = {}
        #: token -> how it will end
        self.orphans: dict[int, How] = {}
        self.token = 0
        self.heard: set[str] = set()

    # -- members

    def leave(self, member: str, *, clean: bool) -> None:
        del self.members[member]
        for lease in self.leases.values():
            if lease.member == member and lease.token not in self.orphans:
                self.orphans[lease.token] = How.RELEASED if clean else How.ROLLED_BACK

    def reap(self, now: int, caller: str, *, ask: bool) -> None:
        for name, member in list(self.members.items()):
            if name == caller:
                continue
            if member.expiry <= now:
                self.leave(name, clean=False)
            elif ask and name in self.heard:
                member.silent = 0
            elif ask and member.silent == 0:
                member.silent = now
            elif ask and now - member.silent >= SILENCE_MS:
                self.leave(name, clean=False)

    def attach(self, name: str, now: int, session: int, *, priority: int = 0, preempt: bool = False) -> None:
        if name in self.members:
            self.leave(name, clean=False)
        self.members[name] = Attendee(now + session, session, priority=priority, preempt=preempt)
        if len(self.members) == 1:
            self.holder = name

    # -- lanes that change hands

    def successors(self, holder: str) -> list[str]:
        """Who may have the lanes after their holder; the first of them is next."""
        if self.kind == "serial":
            names = list(self.members)
            at = names.index(holder)
            after = names[at + 1 :] + names[:at]
            return [name for name in after if self.members[name].credit > 0 and name in self.heard]
        if self.kind == "priority":
            better = [
                name
                for name, member in self.members.items()
                if name in self.heard and member.priority > self.members[holder].priority
            ]
            best = max(better, key=lambda name: self.members[name].priority, default=None)
            return [best] if best is not None and self.members[best].preempt else []
        return []

    def hold(self, seen: str, said: Exchange | None, caller: str, ended: set[int]) -> None:
        """Take in who holds the lanes now, and check that it may; `ended`: leases that are no more."""
        if not self.lane:
            return
        offered = said is not None and said.offer
        touched = [] if said is None else [part.partition for part in said.parts]
        if seen != self.holder and self.holder in self.members:
            assert offered, "the lanes passed on though they were not offered"
            assert self.holder == caller
            assert seen == self.successors(caller)[0], "somebody else was next"
            if self.kind == "serial":
                assert any(self._deliverable(part) for part in said.parts), "there was nothing for it"  # type: ignore[union-attr]
            mine = [t for t, x in self.leases.items() if x.member == caller and t not in self.orphans]
            for token in mine:
                if self.leases[token].partition in touched:
                    self.end(token, How.UNREAD)
                else:
                    self.orphans[token] = How.UNREAD
        elif ended:
            assert offered, "a lease ended that had no reason to"
            assert self.kind == "serial"
            assert self.successors(caller), "nobody waits for it"
            for token in ended:
                assert self.leases[token].lane
                assert self.leases[token].partition in touched
                self.end(token, How.UNREAD)
        self.holder = seen

    def _deliverable(self, part: PartitionReport) -> bool:
        """Whether something of this partition could be handed out; what was ready by due time is left out."""
        place = self.places[part.partition]
        mine = [x for x in self.leases.values() if x.partition == part.partition]
        return bool(place.ready) or any(o < place.avail for x in mine for o in x.open)

    def touch(self, partition: int) -> None:
        """A script touched a partition: the leases there of those who are gone end."""
        for token, how in list(self.orphans.items()):
            if self.leases[token].partition == partition:
                self.end(token, how)

    # -- verdicts

    def grow(self, partition: int, avail: int) -> None:
        place = self.places[partition]
        taken = {o for x in self.leases.values() if x.partition == partition for o in x.open}
        for offset in range(place.avail, avail):
            if offset not in place.settled and offset not in taken:
                place.ready[offset] = FRESH
        place.avail = max(place.avail, avail)

    def settle(self, token: int, offsets: Iterable[int]) -> None:
        lease = self.leases[token]
        for offset in offsets:
            if offset in lease.open:
                self.grow(lease.partition, offset + 1)
                del lease.open[offset]
                self.places[lease.partition].settled.add(offset)

    def give_back(self, token: int, offsets: Iterable[int], how: int, due: int) -> None:
        lease = self.leases[token]
        place = self.places[lease.partition]
        for offset in offsets:
            mark = lease.open.pop(offset, None)
            if mark is None:
                continue
            if how > How.UNREAD:
                self.grow(lease.partition, offset + 1)
                mark = mark._replace(attempts=mark.attempts + (how == How.ROLLED_BACK), redelivered=True)
            if offset < place.avail:
                place.ready[offset] = mark._replace(due=due)

    def end(self, token: int, how: How) -> None:
        lease = self.leases[token]
        place = self.places[lease.partition]
        self.give_back(token, [o for o in lease.open if o < place.avail], how, 0)
        if how is How.ROLLED_BACK and lease.end > max(place.avail, lease.start):
            place.seen = max(place.seen, lease.end)
        del self.leases[token]
        self.orphans.pop(token, None)

    def holds(self, token: int, member: str, partition: int) -> bool:
        lease = self.leases.get(token)
        return (
            lease is not None
            and token not in self.orphans
            and (lease.member, lease.partition) == (member, partition)
        )

    def exchange(self, name: str, said: Exchange, now: int) -> list[int]:
        """Apply an exchange that was answered with OK; returns the tokens that had to be refused."""
        member = self.members[name]
        assert said.number > member.exchange
        member.exchange, member.credit = said.number, said.credit
        member.expiry, member.silent = now + member.session, 0
        refused = {
            token
            for part in said.parts
            for token in [*(v.token for v in part.settled), *(v.token for v in part.returned), *part.done]
            if not self.holds(token, name, part.partition)
        }
        self.reap(now, name, ask=said.ask_presence)
        for part in said.parts:
            self.grow(part.partition, part.avail)
            for verdict in part.settled:
                if verdict.token not in refused:
                    for a, b in zip(verdict.ranges[::2], verdict.ranges[1::2], strict=True):
                        self.settle(verdict.token, range(a, b))
                        self.grow(part.partition, b)
                    self.settle(verdict.token, _ones(verdict.blob_from, verdict.blob))
            for back in part.returned:
                if back.token not in refused:
                    due = now + back.delay if back.delay else 0
                    self.give_back(back.token, range(back.start, back.end), back.how, due)
                    if back.how > How.UNREAD:
                        self.grow(part.partition, back.end)
            for token in part.done:
                if token in self.leases and token not in refused:
                    self.end(token, How.RELEASED)
            self.touch(part.partition)
        return sorted(refused)

    # -- what the scripts chose

    def follow(self, seen: Inspection, *, caller: str, positions: dict[int, int], span: int) -> None:
        """Take in the grants that `seen` shows, and check that each of them was allowed."""
        views = {view.token: view for view in seen.leases}
        assert set(self.leases) <= set(views), "a lease ended that had no reason to"
        for token, lease in self.leases.items():
            self._extend(lease, views[token], positions, span)
        for token in sorted(set(views) - set(self.leases)):
            assert token > self.token, "tokens rise"
            self.token = token
            view = views[token]
            runs = next(place.runs for place in seen.partitions if place.partition == view.partition)
            held = [offset for run in runs if run.token == token for offset in range(run.start, run.end)]
            self._grant(view, held, caller, seen.now, span)

    def _extend(self, lease: Held, view: LeaseView, positions: dict[int, int], span: int) -> None:
        if view.horizon > lease.end:
            assert lease.lane, "only a lane's horizon moves"
            assert view.horizon <= min(positions[lease.partition], lease.end) + span
            self._take(lease, range(lease.end, view.horizon))
        elif view.horizon < lease.end:  # what was never handed out at its end is granted no more
            assert not any(view.horizon <= offset for offset in lease.open), "a horizon fell"
        lease.end = view.horizon

    def _take(self, lease: Held, offsets: Iterable[int]) -> None:
        place = self.places[lease.partition]
        for offset in offsets:
            if offset < place.avail:
                assert place.ready.pop(offset, None) == FRESH, f"{offset} is not fresh"
            else:
                assert lease.lane, "nothing is granted beyond avail"
            lease.open[offset] = FRESH

    def _grant(self, view: LeaseView, held: list[int], caller: str, now: int, span: int) -> None:
        assert view.member in self.members, "granted to nobody"
        assert view.member == caller or view.member in self.heard, "granted to a member nobody hears"
        place = self.places[view.partition]
        lane = view.kind == "lane"
        lease = Held(view.token, view.partition, view.member, view.start, view.horizon, lane, {})
        self.leases[view.token] = lease
        exceptions = view.kind == "runs"
        offsets = held if exceptions else list(range(view.start, view.horizon))
        assert offsets
        assert (offsets[0], offsets[-1] + 1) == (view.start, view.horizon), (
            "a lease is no wider than it must be"
        )
        if self.lane:
            assert view.member == caller
            assert view.member == self.holder, "granted to somebody who does not hold the lanes"
            if self.kind == "exclusive":
                assert list(self.members) == [view.member], "an exclusive lane has one holder"
            holders = {x.member for t, x in self.leases.items() if t not in self.orphans}
            assert holders == {view.member}, "two members hold leases"
            if self.kind == "serial" and self.successors(view.member):
                assert view.horizon <= place.avail, "what is not written yet may be the next one's"
            if lane:
                assert view.horizon <= view.start + span
                others = [x for x in self.leases.values() if x.lane and x.partition == view.partition]
                assert others == [lease], "two lanes on one partition"
        else:
            assert not lane
            member = self.members[view.member]
            member.credit -= len(offsets)
            assert member.credit >= 0, "granted more than the credit"
        if not exceptions:
            assert view.marks == 0
            self._take(lease, offsets)
            return
        for offset in offsets:
            mark = place.ready.pop(offset)
            assert mark.due <= now, "granted before it was due"
            assert mark.attempts == attempts_of(view.marks)
            assert mark.redelivered == (view.marks > 0)
            lease.open[offset] = Mark(mark.attempts, redelivered=mark.redelivered)

    # -- comparing

    def compare(self, seen: Inspection) -> None:
        """Check that the real state means the same, and that each of its parts is in order."""
        for view in seen.partitions:
            place = self.places[view.partition]
            check_order(view, start=place.start)
            settled, leased, ready = observe(view, seen.leases, start=place.start)
            assert view.avail == place.avail
            assert settled == place.settled
            assert leased == {
                lease.token: lease.open
                for lease in self.leases.values()
                if lease.partition == view.partition and lease.open
            }
            assert ready == place.ready
            assert view.floor == place.floor
            assert view.seen == place.seen, (view.seen, place)


def _ones(first: int, blob: bytes) -> list[int]:
    return [first + i for i in range(len(blob) * 8) if blob[i // 8] & (128 >> i % 8)]


def check_order(view: PartitionView, *, start: int) -> None:
    """Base, bits and runs of a partition fit together."""
    assert view.origin % 8 == 0
    assert view.origin <= view.base or not view.bits
    assert start <= view.base <= view.next
    assert view.base == view.next or not view.is_decided(view.base), "base could go on"
    assert not any(view.is_decided(offset) for offset in range(view.next, view.next + 8))
    end = start
    for run in view.runs:
        assert end <= run.start < run.end <= view.next, "runs are sorted, apart, and below next"
        assert all(view.is_decided(offset) for offset in range(run.start, run.end))
        end = run.end


def observe(
    view: PartitionView, leases: Iterable[LeaseView], *, start: int
) -> tuple[set[int], dict[int, dict[int, Mark]], dict[int, Mark]]:
    """Settled offsets, offsets by the token that holds them, ready offsets: of one partition, disjoint."""
    settled: set[int] = set()
    leased: dict[int, dict[int, Mark]] = {}
    ready: dict[int, Mark] = {}
    plain = [lease for lease in leases if lease.partition == view.partition and lease.marks == 0]
    known = {lease.token for lease in leases if lease.partition == view.partition}
    for offset in range(start, max(view.next, view.avail)):
        run = view.run_of(offset)
        if run is not None:
            mark = Mark(run.attempts, run.redelivered, run.due)
            if run.token == 0:
                assert offset < view.avail, "an offset is ready that nobody has seen"
                ready[offset] = mark
            else:
                assert run.token in known, "held under a token that is no more"
                leased.setdefault(run.token, {})[offset] = mark
        elif view.is_decided(offset):
            settled.add(offset)
        elif offset >= view.next:
            ready[offset] = FRESH
        else:
            holders = [lease.token for lease in plain if lease.start <= offset < lease.horizon]
            assert len(holders) == 1, f"offset {offset} is held by {holders}"
            leased.setdefault(holders[0], {})[offset] = FRESH
    return settled, leased, ready
