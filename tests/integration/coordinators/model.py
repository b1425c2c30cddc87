"""What the shared state means, said a second time: sets of offsets, and nothing of bitmaps, runs or packing.

`Model` is told what members said and derives who may settle what. Which member is served next is the
scripts' choice: the model checks that the choice was allowed. `observe` reads the same sets out of the real
state, so that the two can be compared.
"""

import math
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
from kafkadur_coordinators.redis.replies import attempts_of
from kafkadur_coordinators.settlement_states import SUSPECT

SILENCE_MS = 500
#: A member holds at most so many leases, lanes apart.
MOST_LEASES = 1_000
#: With so many leases, a keeper of lanes of keys gets no further ones of suspects.
MOST_UNARMED = 100
#: How a lease may end, beside what a member may say (`How`): its holder is gone, who knows how far it came.
UNCLEAN = 3
#: Types in which one member at a time gets everything, in order.
IN_ORDER = ("exclusive", "priority", "serial")


class Mark(NamedTuple):
    """What is known of an unsettled offset."""

    attempts: int = 0
    redelivered: bool = False
    due: int = 0
    #: its last holder ended uncleanly, and it may be the reason
    suspect: bool = False


FRESH = Mark()


class Policy(NamedTuple):
    """When and how what was given back comes again."""

    #: 0: no limit
    most_attempts: int = 0
    #: ms
    first_wait: int = 0
    #: ms
    longest_wait: int = 0
    #: 1: on a lane what comes later waits for what was given back
    strict: int = 0
    #: shares of the keys of a partition (key-ordered)
    lanes: int = 1
    #: 1: each partition has a turn of its own (serial)
    own_turns: int = 0

    def wait(self, attempts: int) -> int:
        """Longest back-off after so many attempts, ms; the shortest is half of it."""
        wait = self.first_wait if attempts else 0
        for _ in range(attempts - 1):
            wait *= 2
        return min(wait, self.longest_wait)

    def is_last(self, mark: Mark) -> bool:
        """Whether what comes next is the last attempt of a suspect: it is alone in its lease."""
        return mark.suspect and self.most_attempts > 0 and mark.attempts == self.most_attempts - 1

    def together(self, mark: Mark) -> float:
        """How many offsets like this one may share a lease."""
        if not mark.suspect:
            return math.inf
        most = 1024
        if self.most_attempts:
            if mark.attempts >= self.most_attempts:  # it had all its attempts and is not handed out again
                return math.inf
            most = 1 << self.most_attempts - 1
        return max(most >> mark.attempts, 1)


@dataclass
class Place:
    """A partition."""

    start: int
    readable_end: int
    seen: int = 0
    settled: set[int] = field(default_factory=set[int])
    #: unsettled, readable, nobody's
    ready: dict[int, Mark] = field(default_factory=dict[int, Mark])
    #: of ready ones whose back-off was chosen by the scripts: when they may be due, earliest and latest
    due_between: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    #: who holds all leases on this lane, if it is one of keys or has a turn of its own
    keeper: str = ""

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
    #: offsets without a verdict; those at or beyond the readable end are a reservation
    open: dict[int, Mark]
    #: the last attempt of a suspect
    isolated: bool = False
    suspects: bool = False
    #: of suspects: its keeper may not dispatch it yet (key-ordered)
    unarmed: bool = False
    #: not to be handed out before (key-ordered); 0: at once
    due: int = 0
    #: offsets that it was granted first
    size: int = 0
    #: single offsets that were not written yet
    ahead: bool = False


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

    def __init__(self, starts: Iterable[int], *, kind: str, policy: Policy) -> None:
        self.kind = kind
        self.policy = policy
        self.in_order = kind in IN_ORDER
        self.own_turns = bool(policy.own_turns)
        #: one member holds all
        self.lane = self.in_order and not self.own_turns
        #: each place is a lane of keys with a keeper of its own
        self.keyed = kind == "key-ordered"
        #: who holds the lanes
        self.holder = ""
        #: to whom the lanes have passed in the last call
        self.passed_to = ""
        self.places = {p: Place(start, start) for p, start in enumerate(starts)}
        self.members: dict[str, Attendee] = {}
        self.leases: dict[int, Held] = {}
        #: token -> how it will end
        self.orphans: dict[int, int] = {}
        self.token = 0
        self.heard: set[str] = set()

    # -- members

    def leave(self, member: str, *, clean: bool) -> None:
        del self.members[member]
        for lease in self.leases.values():
            if lease.member == member and lease.token not in self.orphans:
                self.orphans[lease.token] = How.RELEASED if clean else UNCLEAN

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

    def keeper_to_be(self, lane: int) -> str:
        """Who is to keep a lane of keys: members are spread over partitions, those of one over its lanes."""
        partition, share = divmod(lane, self.policy.lanes)
        partitions = len(self.places) // self.policy.lanes
        names = list(self.members)
        if len(names) <= partitions:
            return names[partition % len(names)] if names else ""
        there = [name for rank, name in enumerate(names) if rank % partitions == partition]
        return there[share * len(there) // self.policy.lanes]

    def hold(self, seen: str, said: Exchange | None, caller: str, ended: set[int], now: int) -> None:
        """Take in who holds the lanes now, and check that it may; `ended`: leases that are no more."""
        if self.own_turns:
            drained = [] if said is None else [part.partition for part in said.parts if part.drained]
            for token in ended:
                assert self.leases[token].lane
                assert self.leases[token].partition in drained, "a lease ended that had no reason to"
                assert self.successors(caller), "nobody waits for it"
                self.end(token, How.UNREAD, now)
        self.passed_to = ""
        if not self.lane:
            return
        offered = said is not None and said.handover
        touched = [] if said is None else [part.partition for part in said.parts]
        holder = self._chosen(caller) if offered else self.holder
        if seen != holder and holder in self.members:
            assert offered, "the lanes passed on though they were not offered"
            assert holder == caller
            assert seen == self.successors(caller)[0], "somebody else was next"
            if self.kind == "serial":
                assert any(self._deliverable(part, now) for part in said.parts), "there was nothing for it"  # type: ignore[union-attr]
                held = {x.member for t, x in self.leases.items() if t not in self.orphans}
                self.passed_to = "" if seen in held else seen
            mine = [t for t, x in self.leases.items() if x.member == caller and t not in self.orphans]
            for token in mine:
                if self.leases[token].partition in touched:
                    self.end(token, How.UNREAD, now)
                else:
                    self.orphans[token] = How.UNREAD
        elif ended:
            assert offered, "a lease ended that had no reason to"
            assert self.kind == "serial"
            assert self.successors(caller), "nobody waits for it"
            for token in ended:
                assert self.leases[token].lane
                assert self.leases[token].partition in touched
                self.end(token, How.UNREAD, now)
        self.holder = seen

    def _chosen(self, caller: str) -> str:
        """Who holds the lanes before they pass on; if it is gone, the first that can have serial ones."""
        if self.kind != "serial" or self.holder in self.members:
            return self.holder
        return next((name for name in self.members if name == caller or name in self.heard), "")

    def _deliverable(self, part: PartitionReport, now: int) -> bool:
        """Whether something of this partition could be handed out, or could if its lane were free."""
        place = self.places[part.partition]
        mine = [x for x in self.leases.values() if x.partition == part.partition]
        if self._has_due(part.partition, now):
            return True
        waiting = any(mark.due > now for mark in place.ready.values()) or bool(place.due_between)
        if self.policy.strict and waiting:
            return False
        if FRESH in place.ready.values():
            return True
        # of a leased lane only the position says that the holder has not dispatched all that is readable; an
        # exception whose grant the holder has not seen is not waiting for another member: it is told again
        unread = range(part.position, place.readable_end) if part.position >= 0 else ()
        return any(o in unread for x in mine if x.lane for o in x.open)

    def _has_due(self, partition: int, now: int) -> bool:
        """Whether an exception can be granted; in strict order only the lowest one can."""
        ready, back_off = self.places[partition].ready, self.places[partition].due_between
        exceptions = [offset for offset in sorted(ready) if ready[offset] != FRESH]
        if self.policy.strict:
            exceptions = exceptions[:1]
        return any(back_off.get(offset, (ready[offset].due,))[0] <= now for offset in exceptions)

    def touch(self, partition: int, now: int) -> None:
        """A script touched a partition: the leases there of those who are gone end."""
        for token, how in list(self.orphans.items()):
            if self.leases[token].partition == partition:
                self.end(token, how, now)

    def keep(self, lane: int, caller: str = "") -> None:
        """A lane that nobody keeps any more is given to who is to keep it."""
        place = self.places[lane]
        if place.keeper in self.members:
            return
        if self.keyed:
            place.keeper = self.keeper_to_be(lane)
        elif self.own_turns:  # members are spread over partitions
            names = list(self.members)
            at = lane % len(names) if names else 0
            there = [name for name in names[at:] + names[:at] if name == caller or name in self.heard]
            place.keeper = there[0] if there else ""

    def pass_on(self, part: PartitionReport, name: str, now: int, span: int) -> None:
        """The keeper gives a lane up; if it has a turn, it ends when somebody waits for what there is."""
        place = self.places[part.partition]
        if place.keeper != name or not part.drained:
            return
        leaving = self.own_turns and span == 0
        if self.own_turns and not (self.successors(name) and (leaving or self._deliverable(part, now))):
            return
        for token in [t for t, x in self.leases.items() if x.partition == part.partition]:
            self.end(token, How.UNREAD, now)
        place.keeper = self.successors(name)[0] if self.own_turns else ""

    # -- verdicts

    def grow(self, partition: int, readable_end: int) -> None:
        place = self.places[partition]
        taken = {o for x in self.leases.values() if x.partition == partition for o in x.open}
        for offset in range(place.readable_end, readable_end):
            if offset not in place.settled and offset not in taken:
                place.ready[offset] = FRESH
        place.readable_end = max(place.readable_end, readable_end)

    def settle(self, token: int, offsets: Iterable[int]) -> None:
        lease = self.leases[token]
        for offset in offsets:
            if offset in lease.open:
                self.grow(lease.partition, offset + 1)
                del lease.open[offset]
                self.places[lease.partition].settled.add(offset)

    def give_back(self, token: int, offsets: Iterable[int], how: int, delay: int, now: int) -> None:
        """Take offsets from a lease. delay: ms, -1: the back-off of the policy."""
        lease = self.leases[token]
        place = self.places[lease.partition]
        for offset in offsets:
            mark = lease.open.pop(offset, None)
            if mark is None:
                continue
            old = mark.due if how < How.ROLLED_BACK else 0
            mark = self._returned(mark, how, isolated=lease.isolated)
            if how > How.UNREAD:
                self.grow(lease.partition, offset + 1)
            if offset >= place.readable_end:
                continue
            wait = self.policy.wait(mark.attempts) if delay < 0 else 0
            due = max(old, now + delay if delay > 0 else 0)
            place.ready[offset] = mark._replace(due=due)
            if wait:
                place.due_between[offset] = (max(old, now + wait // 2), max(old, now + wait))

    def _returned(self, mark: Mark, how: int, *, isolated: bool) -> Mark:
        if how == How.UNREAD:
            return mark
        if how == How.RELEASED:
            return Mark(mark.attempts, redelivered=True)
        if how == How.ROLLED_BACK or isolated:
            return Mark(mark.attempts + 1, redelivered=True)
        attempts, most = mark.attempts + 1, self.policy.most_attempts
        if 0 < most <= attempts:  # the last attempt is made alone
            attempts = max(most - 1, mark.attempts)
        return Mark(attempts, redelivered=True, suspect=True)

    def end(self, token: int, how: int, now: int) -> None:
        lease = self.leases[token]
        place = self.places[lease.partition]
        if lease.unarmed or lease.due > now:  # its holder still waited for it
            how = How.UNREAD
        # what comes in order comes at once, unless it holds back what comes later
        delay = -1 if how == UNCLEAN and (not self.in_order or self.policy.strict) else 0
        if how == UNCLEAN and lease.end > max(place.readable_end, lease.start):
            place.seen = max(place.seen, lease.end)
        self.give_back(token, [o for o in lease.open if o < place.readable_end], how, delay, now)
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
        unseen = [x for t, x in self.leases.items() if t > said.have and self.holds(t, name, x.partition)]
        member.exchange = said.number
        member.credit = max(said.credit - sum(x.size for x in unseen if not x.ahead), 0)
        member.expiry, member.silent = now + member.session, 0
        refused = {
            token
            for part in said.parts
            for token in [*(v.token for v in part.settled), *(v.token for v in part.returned), *part.done]
            if not self.holds(token, name, part.partition)
        }
        self.reap(now, name, ask=said.ask_presence)
        for part in said.parts:
            self._verdicts(part, refused, now)
            self.touch(part.partition, now)
            self.pass_on(part, name, now, said.span)
        for part in said.parts:
            self.keep(part.partition, name)
        return sorted(refused)

    def _verdicts(self, part: PartitionReport, refused: set[int], now: int) -> None:
        self.grow(part.partition, part.readable_end)
        for verdict in part.settled:
            if verdict.token not in refused:
                for a, b in zip(verdict.ranges[::2], verdict.ranges[1::2], strict=True):
                    self.settle(verdict.token, range(a, b))
                    self.grow(part.partition, b)
                self.settle(verdict.token, _ones(verdict.blob_from, verdict.blob))
        for back in part.returned:
            if back.token not in refused:
                self.give_back(back.token, range(back.start, back.end), back.how, back.delay, now)
                if back.how > How.UNREAD:
                    self.grow(part.partition, back.end)
        for token in part.done:
            if token in self.leases and token not in refused:
                self.end(token, How.RELEASED, now)

    # -- what the scripts chose

    def follow(
        self,
        seen: Inspection,
        *,
        caller: str,
        positions: dict[int, int],
        span: int,
        ahead: dict[int, int],
    ) -> None:
        """Take in the grants that `seen` shows, and check that each of them was allowed.

        `ahead`: how many offsets the caller asked to be promised, by partition.
        """
        grown = set[int]()
        views = {view.token: view for view in seen.leases}
        assert set(self.leases) <= set(views), "a lease ended that had no reason to"
        self._learn_times(seen)
        for token, lease in self.leases.items():
            if self._extend(lease, views[token], positions, span):
                grown.add(token)
            if lease.unarmed and not views[token].unarmed:
                self._arm(lease, caller, seen.now)
        for token in sorted(set(views) - set(self.leases)):
            assert token > self.token, "tokens rise"
            self.token = token
            view = views[token]
            runs = next(place.runs for place in seen.partitions if place.partition == view.partition)
            held = [
                (offset, run.due)
                for run in runs
                if run.token == token
                for offset in range(run.start, run.end)
            ]
            if view.kind == "ahead":
                self._promise(view, [offset for offset, _ in held], caller, ahead.get(view.partition, 0))
                continue
            self._grant(view, held, caller, seen.now, span)
            grown.add(token)
        for token in grown:
            if self.leases[token].lane:
                self._check_order(self.leases[token], seen.now)
        for token, lease in self.leases.items():
            assert lease.unarmed == views[token].unarmed
        for p in positions if span > 0 else ():
            self._check_served(p, caller, grown, positions[p], seen.now, span)

    def _learn_times(self, seen: Inspection) -> None:
        """Take in how long the scripts made things wait, within the bounds of the policy."""
        for view in seen.partitions:
            place = self.places[view.partition]
            for offset, (earliest, latest) in place.due_between.items():
                run = view.run_of(offset)
                assert run is not None, "what was handed out is listed"
                assert earliest <= run.due <= latest, "the back-off is not the policy's"
                place.ready[offset] = place.ready[offset]._replace(due=run.due)
            place.due_between.clear()

    def _exceptions(self, lease: Held) -> list[Mark]:
        """What nobody holds of the part of a lane that was granted."""
        ready = self.places[lease.partition].ready
        return [mark for offset, mark in ready.items() if offset < lease.end]

    def _check_order(self, lease: Held, now: int) -> None:
        """Check that a lane was granted or extended only after what comes first."""
        before = self._exceptions(lease)
        if not (self.keyed or self.policy.strict):
            before = [mark for mark in before if mark.due <= now]
        assert not before, "what comes later was granted first"

    def _check_served(self, p: int, caller: str, grown: set[int], position: int, now: int, span: int) -> None:
        """Check that a lane's holder was given what it can be given."""
        keeps = self.places[p].keeper == caller and (self.own_turns or self.keeper_to_be(p) == caller)
        if not (self.holder == caller if self.lane else keeps and self.kind != "shared"):
            return
        mine = [x for t, x in self.leases.items() if x.member == caller and t not in self.orphans]
        here = [x for x in mine if x.partition == p]
        lane = next((x for x in here if x.lane), None)
        exceptions = [mark for mark in self.places[p].ready.values() if mark != FRESH]
        granted = sum(len(x.open) for x in here if x.token in grown and not x.lane)
        full = (granted >= span and not self.keyed) or len(mine) >= MOST_LEASES
        first = min((x for x in here if x.unarmed and x.open), key=lambda x: x.start, default=None)
        assert first is None or not _is_due(first, now) or any(x.suspects for x in mine), "none was armed"
        if self._has_due(p, now) or (self.keyed and exceptions):
            if self.keyed:  # it holds a bounded number of leases of suspects, and one on each lane
                lowest = min(o for o, mark in self.places[p].ready.items() if mark != FRESH)
                bounded = len(mine) >= MOST_UNARMED and self.places[p].ready[lowest].suspect
                assert full or (bounded and any(x.unarmed or x.suspects for x in here)), "not granted"
            else:
                assert full or any(x.suspects for x in mine), "an exception was not granted"
        elif self.kind != "serial" and not (self.policy.strict and exceptions and not self.keyed):
            # what was set aside unread comes before the lane, too
            assert full or lane is not None, "the lane was not granted"
            assert (
                lane is None
                or position < 0
                or lane.end >= min(position, lane.end) + span
                or (full or lane.token in grown)
            )

    def _extend(self, lease: Held, view: LeaseView, positions: dict[int, int], span: int) -> bool:
        """Take in a lease's horizon; returns whether it was extended."""
        extended = view.horizon > lease.end
        if extended:
            assert lease.lane, "only a lane's horizon moves"
            assert view.horizon <= min(positions[lease.partition], lease.end) + span
            if not self.lane:
                self._check_keeper(lease)
            self._take(lease, range(lease.end, view.horizon))
        elif view.horizon < lease.end:  # what was never handed out at its end is granted no more
            assert not any(view.horizon <= offset for offset in lease.open), "a horizon fell"
        lease.end = view.horizon
        return extended

    def _arm(self, lease: Held, caller: str, now: int) -> None:
        """Take in that a lease of suspects may be dispatched now."""
        assert lease.member == caller
        self._check_keeper(lease)
        mine = [x for t, x in self.leases.items() if x.member == caller and t not in self.orphans]
        assert not any(x.suspects for x in mine), "two leases of suspects"
        assert not any(
            x.unarmed and x.open and x.start < lease.start and x.partition == lease.partition for x in mine
        ), "a later one was armed first"
        ready = self.places[lease.partition].ready
        assert not any(mark.suspect and offset < lease.start for offset, mark in ready.items())
        lease.unarmed, lease.suspects = False, True
        assert all(mark.due <= now for mark in lease.open.values()), "armed before it was due"

    def _check_keeper(self, lease: Held) -> None:
        assert lease.member == self.places[lease.partition].keeper, "granted to somebody who does not keep it"
        if self.keyed:
            assert lease.member == self.keeper_to_be(lease.partition), "granted though it is to be drained"
        else:
            self._check_turn(lease)
        here = [x for t, x in self.leases.items() if x.partition == lease.partition and t not in self.orphans]
        assert {x.member for x in here} == {lease.member}, "two members hold leases on one lane"

    def _take(self, lease: Held, offsets: Iterable[int]) -> None:
        place = self.places[lease.partition]
        for offset in offsets:
            if offset < place.readable_end:
                assert place.ready.pop(offset, None) == FRESH, f"{offset} is not fresh"
            else:
                assert lease.lane, "nothing is granted beyond the readable end"
            lease.open[offset] = FRESH

    def _grant(self, view: LeaseView, held: list[tuple[int, int]], caller: str, now: int, span: int) -> None:
        assert view.member in self.members, "granted to nobody"
        assert view.member == caller or view.member in self.heard, "granted to a member nobody hears"
        lane = view.kind == "lane"
        lease = Held(view.token, view.partition, view.member, view.start, view.horizon, lane, {})
        self.leases[view.token] = lease
        exceptions = view.kind == "runs"
        offsets = [offset for offset, _ in held] if exceptions else list(range(view.start, view.horizon))
        assert offsets
        lease.size = len(offsets)
        assert (offsets[0], offsets[-1] + 1) == (view.start, view.horizon), (
            "a lease is no wider than it must be"
        )
        if exceptions:
            self._grant_exceptions(lease, view, held, now)
        else:
            assert view.marks == 0
            self._take(lease, offsets)
        others = [
            x
            for t, x in self.leases.items()
            if x.member == view.member and t not in {*self.orphans, view.token}
        ]
        assert not (lease.suspects and any(x.suspects for x in others)), "two leases of suspects"
        if lane:
            most = self.members[view.member].credit if view.member == self.passed_to else span
            assert view.horizon <= view.start + most
            lanes = [x for x in self.leases.values() if x.lane and x.partition == view.partition]
            assert lanes == [lease], "two lanes on one partition"
        if self.lane:
            self._check_holder(lease, caller)
        elif self.kind != "shared":
            assert view.member == caller
            assert lane or exceptions
            self._check_keeper(lease)
        else:
            assert not lane
            member = self.members[view.member]
            member.credit -= len(offsets)
            assert member.credit >= 0, "granted more than the credit"
            assert not any(x.isolated for x in others), "granted beside a last attempt"
            assert not (lease.isolated and others), "a last attempt was granted beside something else"

    def _promise(self, view: LeaseView, offsets: list[int], caller: str, most: int) -> None:
        assert self.kind == "shared"
        assert view.member == caller, "promised to somebody who did not ask"
        place = self.places[view.partition]
        assert offsets
        assert (offsets[0], offsets[-1] + 1, view.marks) == (view.start, view.horizon, 0)
        assert offsets[0] >= place.readable_end, "it is there already"
        mine = [x for t, x in self.leases.items() if x.member == caller and t not in self.orphans]
        assert not any(x.isolated for x in mine), "promised beside a last attempt"
        there = {o for x in mine if x.partition == view.partition for o in x.open if o >= place.readable_end}
        assert len(there) + len(offsets) <= most, "more than it asked for"
        names = list(self.members)
        partitions = len(self.places)
        spread = [rank % partitions for rank in range(len(names))] if len(names) > partitions else []
        at_home = [name for name, home in zip(names, spread, strict=False) if home == view.partition]
        sharing = max(len(at_home), 1)
        index = sum(name in at_home for name in names[: names.index(caller)]) % sharing
        assert all(offset % sharing == index for offset in offsets), "not every n-th"
        lease = Held(
            view.token, view.partition, caller, view.start, view.horizon, lane=False, open={}, ahead=True
        )
        lease.open = dict.fromkeys(offsets, FRESH)
        self.leases[view.token] = lease

    def free_from(self, partition: int) -> int:
        """The first offset at or beyond the readable end that is nobody's."""
        taken = {o for x in self.leases.values() if x.partition == partition for o in x.open}
        offset = self.places[partition].readable_end
        while offset in taken:
            offset += 1
        return offset

    def _check_holder(self, lease: Held, caller: str) -> None:
        assert lease.member in {caller, self.passed_to}
        assert lease.member == self.holder, "granted to somebody who does not hold the lanes"
        if self.kind == "exclusive":
            assert list(self.members) == [lease.member], "an exclusive lane has one holder"
        holders = {x.member for t, x in self.leases.items() if t not in self.orphans}
        assert holders == {lease.member}, "two members hold leases"
        self._check_turn(lease)

    def _check_turn(self, lease: Held) -> None:
        if self.kind == "serial" and self.successors(lease.member):
            end = lease.end
            assert end <= self.places[lease.partition].readable_end, (
                "what is not written yet may be the next one's"
            )

    def _grant_exceptions(self, lease: Held, view: LeaseView, held: list[tuple[int, int]], now: int) -> None:
        ready, marks = self.places[lease.partition].ready, view.marks
        first = ready[held[0][0]]
        lease.suspects, lease.isolated = first.suspect and not view.unarmed, self.policy.is_last(first)
        assert not view.unarmed or (self.keyed and first.suspect)
        assert view.unarmed or not (self.keyed and first.suspect and first.due > now), "armed too early"
        lease.unarmed = view.unarmed
        here = [x for x in self.leases.values() if x.partition == lease.partition]
        lower = any(x.unarmed and x.open and x.start < lease.start for x in here)
        assert not (self.keyed and lease.suspects and lower), "a later one was armed first"
        due = first.due if first.due > now else 0
        lease.due = 0 if view.unarmed else due
        assert len(held) <= self.policy.together(first), "too many suspects share a lease"
        if self.policy.strict:
            waiting = [o for o, mark in ready.items() if mark != FRESH and mark.due > now]
            assert all(offset < min(waiting, default=offset + 1) for offset, _ in held), (
                "an earlier one waits"
            )
        for offset, kept in held:
            mark = ready.pop(offset)
            assert mark.attempts == attempts_of(marks)
            assert mark.suspect == (marks >= SUSPECT)
            assert mark.redelivered == (marks % 2 == 1)
            if self.keyed:  # its keeper waits for it
                assert (mark.due if mark.due > now else 0) == due
                assert kept == mark.due, "its due time was forgotten"
            else:
                assert mark.due <= now, "granted before it was due"
                mark = mark._replace(due=0)
            lease.open[offset] = mark

    # -- comparing

    def compare(self, seen: Inspection) -> None:
        """Check that the real state means the same, and that each of its parts is in order."""
        for view in seen.partitions:
            place = self.places[view.partition]
            check_order(view, start=place.start)
            settled, leased, ready = observe(view, seen.leases, start=place.start)
            assert view.readable_end == place.readable_end
            assert settled == place.settled
            assert leased == {
                lease.token: lease.open
                for lease in self.leases.values()
                if lease.partition == view.partition and lease.open
            }
            assert ready == place.ready
            assert view.floor == place.floor
            open_ = sum(o < place.readable_end for x in leased.values() for o in x)
            assert view.backlog == open_ + len(ready)
            assert view.seen == place.seen, (view.seen, place)


def _is_due(lease: Held, now: int) -> bool:
    """Whether all offsets of a lease are due."""
    return all(mark.due <= now for mark in lease.open.values())


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
    here = [lease for lease in leases if lease.partition == view.partition]
    plain = [lease for lease in here if lease.kind not in {"runs", "ahead"}]
    known = {lease.token for lease in leases if lease.partition == view.partition}
    for offset in range(start, max(view.next, view.readable_end)):
        run = view.run_of(offset)
        if run is not None:
            mark = Mark(run.attempts, run.redelivered, run.due, run.suspect)
            if run.token == 0:
                if offset < view.readable_end:
                    ready[offset] = mark
                else:
                    assert mark == FRESH, "something is known of what nobody has seen"
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
