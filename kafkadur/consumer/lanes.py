"""Lanes that pass from member to member: when this member's turn is over, and what it offers.

Which member is next is decided by the coordinator (`lane.lua`, `own_turns.lua`).
"""

from __future__ import annotations

from collections.abc import Collection

from kafkadur.consumer.chunk import Lease
from kafkadur.consumer.router import Router
from kafkadur.consumer.state import State
from kafkadur.consumer.turn import LaneGroup, Turn
from kafkadur_coordinators.interface import ExchangeReply, Standing


class Lanes:
    """The lanes of one member. Called with its lock held."""

    def __init__(
        self,
        state: State,
        *,
        router: Router,
    ) -> None:
        """Other members have the lanes."""
        self._terms = state.terms
        self._gate = state.gate
        self._schedule = state.schedule
        self._leases = state.leases
        self._fetch = state.fetch
        self._queue = state.queue
        self._in_flight = state.in_flight
        self._selection = state.selection
        self._router = router
        self.standing = Standing.STANDBY

    def clear(self) -> None:
        """Other members have the lanes."""
        self.standing = Standing.STANDBY

    # -- what is in hands

    def holds_any(self, group: LaneGroup | None = None) -> bool:
        """Whether a record (of a group) is in the application's hands, or about to be (`one_by_one`)."""
        return any(
            chunk.holds_any()
            for chunk in [*self._in_flight, *self._queue.ready]
            if group is None or chunk.lease.group is group
        )

    def position(self, partition: int) -> int:
        """First offset of a lane that was not handed out; -1: the lane is not leased."""
        lease = self._leases.lane_of(partition)
        if lease is None:
            return -1
        if self._terms.keyed:  # what waits for its key does not keep the others from going on
            return lease.start if self.is_full() else lease.fill
        for chunk in self._queue.ready:
            if chunk.lease is lease and chunk.handed < len(chunk.messages):
                return chunk.offset(chunk.handed)
        return lease.fill

    # -- lanes of keys

    def is_full(self) -> bool:
        """Whether so many records wait for their keys that no more are asked for."""
        return self._router.shares.is_full(self._terms.window)

    def ended(self) -> set[int]:
        """Lanes of keys whose records were read and wait for the horizon."""
        if not self._terms.keyed or self.is_full():
            return set()
        lanes = [lease.partition for lease in self._leases if lease.lane and lease.fill >= lease.end]
        buffers = self._fetch.buffers
        return {p for p in lanes if p in buffers and buffers[p].buffered}

    def drain(self, asked: Collection[int]) -> None:
        """Give up lanes of keys that another member is to keep."""
        self._router.shares.drain(asked, self._leases.by_token)
        if asked:
            self._schedule.touch(asked)
            self._schedule.request(when=any(self.is_drained(lane) for lane in asked))

    def is_drained(self, lane: int) -> bool:
        """Whether nothing of a lane that is given up is in hands or waits to be said."""
        if lane not in self._router.shares.draining:
            return False
        chunks = [chunk for chunk in self._in_flight if chunk.lease.partition == lane]
        # in this order: a verdict may be given in between, and must not be left behind
        free = not any(chunk.in_flight() for chunk in chunks)
        return free and not any(chunk.has_verdicts() for chunk in chunks)

    # -- turns

    def takes_turns(self) -> bool:
        """Whether the lanes pass to other members, and there are some."""
        return self._terms.turns and self._fetch.role.members > 1

    def left_of_turn(self, group: LaneGroup) -> int:
        """Records that may be handed out in this turn: a window's worth, one more while others are in hands.

        So a free seat is the holder's as long as it has something unprocessed (W5), and no longer.
        """
        left = self._terms.window - group.turn.handed
        return left if left > 0 else int(self.holds_any(group))

    def turn_is_over(self, group: LaneGroup) -> bool:
        """Whether nothing is left that was granted for this turn, a window's worth: handed out or not yet.

        What was granted while no other member was there is more than that, and for the others, too.
        """
        if not self.takes_turns() or group.standing is not Standing.ACTIVE:
            return False
        if group.turn.handed >= self._terms.window or self.is_crowded(group):
            return True
        leases = self._leases.of_group(group)
        span = self._selection.scan(self._terms.window)
        if any(lease.lane and lease.end - self.position(lease.partition) > span for lease in leases):
            return True
        if not self._terms.own_turns and len(group.seen) < self._terms.partitions:
            return False  # what it was not told of may be its
        waiting = any(c.lease.group is group for c in self._queue if c.handed < len(c.messages))
        return not waiting and not any(map(self._lacks_records, leases))

    def _lacks_records(self, lease: Lease) -> bool:
        """Whether records of a lease are there that a reader, of either kind, has still to bring."""
        state = self._fetch.states.get(lease.partition)
        end = lease.fill if state is None else min(lease.end, state.avail)
        return self._router.starves(lease) or (lease.point and lease.fill < end)

    def is_crowded(self, group: LaneGroup) -> bool:
        """Whether the window is full, and nothing of these lanes takes part in that: others can have them."""
        if not self._terms.own_turns:
            return False
        return self._in_flight.room(self._queue.mean_size) <= 0 and not self.holds_any(group)

    # -- offering

    def asked_for(self) -> set[int]:
        """Groups (their numbers) that this member is asked to give up, and of which nothing is in hands."""
        groups = self._leases.groups
        asked = [number for number, group in groups.items() if group.standing is Standing.ASKED]
        return {number for number in asked if not self.holds_any(groups[number])}

    def offered(self, chosen: Collection[int]) -> Collection[int]:
        """Partitions whose lanes the exchange that is being composed offers."""
        if not self._terms.lane or self._terms.keyed:
            return ()
        if self._terms.own_turns:
            return {partition for partition in chosen if self._may_offer(self._leases.group(partition))}
        return range(self._terms.partitions) if self._may_offer(self._leases.group(0)) else ()

    def _may_offer(self, group: LaneGroup) -> bool:
        """Whether the exchange that is being composed offers these lanes.

        Everything that was handed out has its verdict, and this exchange or an earlier one carries it.
        """
        closing = self._gate.closing
        asked = group.standing is Standing.ASKED
        leaving = closing and self._terms.own_turns and group.standing is Standing.ACTIVE
        if not leaving and (closing or not (asked or self.turn_is_over(group))):
            return False
        group.frozen = True  # before looking: see there
        # in this order: a verdict may be given in between, and must not be left behind
        free = not self.holds_any(group)
        sent = not any(chunk.has_verdicts() for chunk in self._in_flight if chunk.lease.group is group)
        if sent and free and not any(lease.gaps for lease in self._leases.of_group(group)):
            return True
        group.frozen = asked
        return False

    def gives_up(self, partition: int) -> bool:
        """Whether the exchange that is being composed gives the lane of a partition up."""
        if self._terms.keyed:
            return self.is_drained(partition)
        return self._terms.own_turns and partition in self._router.offering

    # -- what the coordinator answered

    def begin_turns(self) -> None:
        """What was offered is held anew, if it is held: a turn begins."""
        for partition in self._router.offering:
            self._leases.group(partition).turn = Turn()

    def take_standing(self, reply: ExchangeReply) -> bool:
        """Take in which lanes are held now; returns whether that changed for this member."""
        self._router.offering = ()
        changed = (self.standing is Standing.STANDBY) != (reply.standing is Standing.STANDBY)
        self.standing = reply.standing
        standings = {0: reply.standing}
        if self._terms.own_turns:
            standings = {state.partition: state.standing for state in reply.partitions}
        for number, standing in standings.items():
            group = self._leases.group(number)
            came = group.standing is Standing.STANDBY and standing is Standing.ACTIVE
            if group.standing is Standing.STANDBY:
                group.seen.clear()
            if standing is Standing.STANDBY:
                self._stop_holding_back(group)
            if came and self._terms.turns and not self._terms.own_turns:
                self._schedule.touch_all()
                self._schedule.request()
            group.standing, group.frozen = standing, standing is Standing.ASKED
            group.seen |= {state.partition for state in reply.partitions}
            self._schedule.request(when=came and self.takes_turns() and self.is_crowded(group))
        self._schedule.request(when=bool(self.asked_for()))
        return changed

    def _stop_holding_back(self, group: LaneGroup) -> None:
        """What a member that stands by has rolled back others settle: it does not wait for that any more."""
        holding = self._in_flight.holding_back
        self._in_flight.stop_holding_back(r for r in [*holding] if self._leases.group(r[0]) is group)
        group.withheld = False
