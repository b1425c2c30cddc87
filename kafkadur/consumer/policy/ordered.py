"""Exclusive and priority subscriptions: one member at a time holds the lanes of all partitions.

New messages of a lane wait for a message that was rolled back, until it is dispatched again or, in strict
order, until it is settled. The coordinator decides which member holds the lanes (`lane.lua`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.gaps import Gaps
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import State
from kafkadur.consumer.turn import LaneGroup
from kafkadur.events import Event
from kafkadur_coordinators.interface import ExchangeReply, Standing

#: Spans of a lane, in records, for which the horizon is not extended ahead of time.
_SMALL_SPAN = 512


class OrderedPolicy(Policy):
    """The policy of a member of an exclusive subscription."""

    def __init__(self, state: State, gaps: Gaps) -> None:
        """A member that stands by."""
        super().__init__(state, gaps)
        self.strict = state.terms.definition.strict_order

    # -- partitions

    def targets(self) -> set[int]:
        """Partitions whose lanes this member holds."""
        return {lease.partition for lease in self._leases if lease.lane}

    # -- dispatch

    def is_held_back(self, lane: Lease) -> bool:
        """Whether new messages of a lane wait for a message that was rolled back."""
        held = any(self._leases.group(p) is lane.group for p, _ in self._in_flight.holding_back)
        again = [lease for lease in self._leases.of_group(lane.group) if not lease.lane]
        held = held or any(x.open > 0 if self.strict else x.fill < x.end for x in again)
        lane.group.withheld = held
        return held

    def waits_in_order(self, chunk: Chunk) -> bool:
        """Whether earlier messages that come again were not read yet; in strict order: not settled yet."""
        lane, offset = chunk.lease.partition, chunk.offset(chunk.handed)
        again = [lease for lease in self._leases.of_partition(lane) if not lease.lane]
        if any(lease.fill < min(lease.end, offset) for lease in again):
            return True
        if not self.strict:
            return False
        return any(p == lane and o < offset for p, o in self._in_flight.holding_back) or any(
            other.unsettled_before(offset)
            for other in {*self._in_flight, *self._queue.urgent}
            if other.lease.partition == lane and not other.lease.lane
        )

    def uses_up(self, chunk: Chunk, end: int, /) -> bool:
        """Whether the records before `end` used up half of a large span."""
        lease, span = chunk.lease, self._terms.window + self._terms.budget
        # below some size the thread that waits anyway is faster than waking another one
        return span > _SMALL_SPAN and lease.lane and lease.end - chunk.offset(end - 1) <= span // 2

    def holds_back(self, delay: int) -> bool:
        """Whether the record comes again at once, or the order is strict."""
        return delay == 0 or self._terms.single or self.strict

    def hold_back(self, chunk: Chunk, index: int) -> None:
        """Have new messages of the lane wait for a record that is rolled back."""
        self._in_flight.hold_back(chunk, index)

    def acks_can_wait(self) -> bool:
        """Whether half of the budget and of each lane's span are left, and no other member waits."""
        terms = self._terms
        if self.takes_turns() or self.standing is not Standing.ACTIVE:
            return False
        if 2 * sum(chunk.settled_unsaid() for chunk in self._in_flight) > terms.budget:
            return False
        half = (terms.window + terms.budget) // 2
        return all(lease.end - lease.fill > half for lease in self._leases if lease.lane)

    def wants_handover(self) -> bool:
        """Whether lanes are asked for that have no messages in flight."""
        return bool(self.asked_for())

    # -- exchanges

    def position(self, partition: int) -> int:
        """Return the first offset of a lane that was not dispatched; -1: not leased, or the member closes."""
        lease = None if self._gate.closing else self._leases.lane_of(partition)
        return -1 if lease is None else self._position(lease)

    def _position(self, lease: Lease) -> int:
        """Return the first offset of a leased lane that was not dispatched."""
        for chunk in self._queue.ready:
            if chunk.lease is lease and chunk.handed < len(chunk.messages):
                return chunk.offset(chunk.handed)
        return lease.fill

    def asked_for(self) -> set[int]:
        """Groups (their numbers) that this member is asked to hand over, with nothing in flight."""
        groups = self._leases.groups
        asked = [number for number, group in groups.items() if group.standing is Standing.ASKED]
        return {number for number in asked if not self.holds_any(groups[number])}

    def hand_over(self, _chosen: Collection[int]) -> bool:
        """Hand over all lanes if another member is to have them and every verdict is on its way."""
        group = self._leases.group(0)
        handover = self._may_hand_over(group, wanted=not self._gate.closing and self._is_wanted(group))
        self.handing_over = range(self._schedule.partitions) if handover else ()
        return handover

    def _is_wanted(self, group: LaneGroup) -> bool:
        """Whether another member is to have these lanes."""
        return group.standing is Standing.ASKED

    def _may_hand_over(self, group: LaneGroup, *, wanted: bool) -> bool:
        """Whether the exchange that is being composed hands over lanes that are `wanted`.

        Every dispatched record has its verdict, and this exchange or an earlier one carries it.
        """
        if not wanted:
            return False
        group.frozen = True  # before looking at the marks: see `LaneGroup`
        # in this order: a verdict may be given in between, and must not be left behind
        free = not self.holds_any(group)
        sent = not any(chunk.has_verdicts() for chunk in self._in_flight if chunk.lease.group is group)
        if sent and free and not any(lease.gaps for lease in self._leases.of_group(group)):
            return True
        group.frozen = group.standing is Standing.ASKED
        return False

    # -- answers

    def take_standing(self, reply: ExchangeReply) -> bool:
        """Take in which lanes are held; returns whether the member became active or stands by."""
        self.handing_over = ()
        changed = (self.standing is Standing.STANDBY) != (reply.standing is Standing.STANDBY)
        self.standing = reply.standing
        for number, standing in self._standings(reply).items():
            group = self._leases.group(number)
            came = group.standing is Standing.STANDBY and standing is Standing.ACTIVE
            if group.standing is Standing.STANDBY:
                group.seen.clear()
            if standing is Standing.STANDBY:
                self._stop_holding_back(group)
            group.standing, group.frozen = standing, standing is Standing.ASKED
            group.seen |= {state.partition for state in reply.partitions}
            if came:
                self._became_active(group)
        self._schedule.request(when=bool(self.asked_for()))
        return changed

    def _standings(self, reply: ExchangeReply) -> dict[int, Standing]:
        """Return the standing of each group in an answer, by number."""
        return {0: reply.standing}

    def _became_active(self, group: LaneGroup, /) -> None:
        """This member holds the lanes of a group from now on."""

    def _stop_holding_back(self, group: LaneGroup) -> None:
        """Stop waiting for messages that this member has rolled back: others settle them."""
        holding = self._in_flight.holding_back
        self._in_flight.stop_holding_back(r for r in [*holding] if self._leases.group(r[0]) is group)
        group.withheld = False

    # -- standing

    @property
    def is_between_turns(self) -> bool:
        """Whether other members hold the lanes."""
        return self.standing is Standing.STANDBY


class PriorityPolicy(OrderedPolicy):
    """The policy of a member of a priority subscription: a member with a higher priority may take over."""

    PASSES: ClassVar[bool] = True
    STANDING_EVENTS: ClassVar[tuple[Event, Event] | None] = (Event.BECAME_ACTIVE, Event.BECAME_STANDBY)
