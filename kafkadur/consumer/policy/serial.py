"""Serial subscriptions: the lanes pass from member to member; a turn is a window's worth of messages.

All lanes pass together, or that of each partition by itself (scope `partition`). The coordinator decides
which member is next (`lane.lua`, `own_turns.lua`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from kafkadur.consumer.chunk import Lease
from kafkadur.consumer.policy.ordered import OrderedPolicy
from kafkadur.consumer.turn import LaneGroup, Turn
from kafkadur.fetch.buffer import FetchBuffer
from kafkadur_coordinators.interface import ExchangeReply, PartitionState, Role, Standing

#: Up to so many members that take turns read on during the turns of others: each then uses an eighth of the
#: records that it reads.
_READ_ALONG = 8


class SerialPolicy(OrderedPolicy):
    """The policy of a member of a serial subscription whose lanes pass together."""

    PASSES: ClassVar[bool] = True

    # -- credit

    def credit(self, _settling: int) -> int:
        """Return the span: so much is granted when the lanes pass to this member."""
        return self.span()

    # -- partitions

    def targets(self) -> set[int]:
        """Partitions whose lanes this member holds, or is about to hold again."""
        # a member that soon has its turn again reads on: following anew would cost more than the turn
        if 1 < self._fetch.role.members <= _READ_ALONG:
            return self._all()
        held = super().targets()
        if self.takes_turns():  # a lane without records has no lease: its holder watches it
            held |= self._watched()
        return held

    def _watched(self) -> set[int]:
        """Return the partitions of lanes that this member holds, leased or not."""
        held = any(group.standing is not Standing.STANDBY for group in self._leases.groups.values())
        return self._all() if held else set()

    def _all(self) -> set[int]:
        return set(range(self._schedule.partitions))

    def first_needed(self, state: PartitionState) -> int:
        """First offset that is not decided: the horizon of a lane can be taken back."""
        return state.base

    def discard_before(self, state: PartitionState) -> int:
        """Records before this offset are settled."""
        return state.base

    def starves(self, lease: Lease) -> bool:
        """Whether a lease waits for records that were written and not read yet."""
        if not lease.lane:
            return super().starves(lease)
        state = self._fetch.states.get(lease.partition)
        if lease.point or lease.fill >= lease.end or state is None:
            return False
        return lease.fill < state.readable_end

    def take_role(self, before: Role) -> None:
        """Offer the lanes when another member has come: until now no other member wanted them."""
        self._schedule.request(when=self._fetch.role.members > 1 >= before.members)

    def wants_exchange(self, unreported: Mapping[int, FetchBuffer]) -> bool:
        """Whether a lane with news is held: new records may be for the next member."""
        if not self.takes_turns():
            return super().wants_exchange(unreported)
        return any(self._leases.group(p).standing is not Standing.STANDBY for p in unreported)

    # -- turns

    def takes_turns(self) -> bool:
        """Whether there are other members."""
        return self._fetch.role.members > 1

    def room_in_turn(self, group: LaneGroup, room: int) -> int:
        """Return how many of `room` records may be dispatched in this turn: a window's worth.

        One more may be dispatched while others are in flight: the holder fills a free seat only as long as it
        has unprocessed messages (W5).
        """
        if not self.takes_turns():
            return room
        left = self._terms.window - group.turn.handed
        room = min(room, left if left > 0 else int(self.holds_any(group)))
        if room <= 0:
            group.frozen = True  # until the answer to its offer
            self._schedule.request()
        return room

    def is_over(self, group: LaneGroup) -> bool:
        """Whether a turn is over: everything granted for it, a window's worth, was dispatched.

        A lease that was granted while there was no other member has more: that is for other members, too.
        """
        if not self.takes_turns() or group.standing is not Standing.ACTIVE:
            return False
        if group.turn.handed >= self._terms.window or self._is_crowded(group):
            return True
        leases = self._leases.of_group(group)
        span = self._selection.scan(self._terms.window)
        if any(lease.lane and lease.end - self._position(lease) > span for lease in leases):
            return True
        if not self._knows_all(group):
            return False  # the other partitions may have records for this turn
        waiting = any(c.lease.group is group for c in self._queue if c.handed < len(c.messages))
        return not waiting and not any(map(self._lacks_records, leases))

    def _knows_all(self, group: LaneGroup, /) -> bool:
        """Whether the state of every partition is known since this member holds the lanes."""
        return len(group.seen) >= self._schedule.partitions

    def _lacks_records(self, lease: Lease) -> bool:
        """Whether records of a lease were written that a reader has still to bring."""
        state = self._fetch.states.get(lease.partition)
        end = lease.fill if state is None else min(lease.end, state.readable_end)
        return self.starves(lease) or (lease.point and lease.fill < end)

    def _is_crowded(self, _group: LaneGroup) -> bool:
        """Whether the window is full of records of other lanes."""
        return False

    # -- exchanges

    def news(self) -> tuple[set[int], set[int]]:
        """Touch the lanes that are held, so that all can be handed over at once."""
        if not (self.takes_turns() and self.standing is Standing.ACTIVE):
            return set(), set()
        return {lease.partition for lease in self._leases if lease.lane}, set()

    def _is_wanted(self, group: LaneGroup) -> bool:
        """Whether the lanes are asked for, or the turn is over."""
        return super()._is_wanted(group) or self.is_over(group)

    # -- answers

    def begin_turns(self) -> None:
        """Begin a turn on the lanes that were handed over and are held again."""
        for partition in self.handing_over:
            self._leases.group(partition).turn = Turn()

    def _became_active(self, group: LaneGroup, /) -> None:
        """Have the next exchanges bring the state of every partition."""
        unknown = set(range(self._schedule.partitions)) - group.seen
        self._schedule.touch(unknown)
        self._schedule.request(when=bool(unknown))

    # -- standing

    def falls_behind_on_standby(self) -> bool:
        """Between its turns a member stays live."""
        return False


class PartitionTurnsPolicy(SerialPolicy):
    """The policy of a member of a serial subscription whose partitions have turns of their own."""

    LANES_APART: ClassVar[bool] = True

    def _watched(self) -> set[int]:
        groups = self._leases.groups
        return {p for p, group in groups.items() if group.standing is not Standing.STANDBY}

    def credit(self, _settling: int) -> int:
        """Return 1 if the window has room for another lane, else 0."""
        return int(self._in_flight.room(self._queue.mean_size, 1) > 0)

    def _knows_all(self, _group: LaneGroup, /) -> bool:
        return True

    def _is_crowded(self, group: LaneGroup) -> bool:
        return self._in_flight.room(self._queue.mean_size, 1) <= 0 and not self.holds_any(group)

    # -- exchanges

    def begin_exchange(self) -> None:
        """Count the records in flight again: some were dispatched one by one since."""
        self._in_flight.recount()

    def news(self) -> tuple[set[int], set[int]]:
        """Touch the lanes to be handed over; all whose turn is over may be touched."""
        groups = self._leases.groups
        over = {p for p, group in groups.items() if self.is_over(group)}
        busy = {lease.partition for lease in self._leases}
        news = {p for p in over if p in busy or groups[p].frozen} | self.asked_for()
        if not self._gate.closing:
            return news, over
        # other members need not wait for messages that are in flight of another lane
        active = {p for p, group in groups.items() if group.standing is Standing.ACTIVE}
        return news, {p for p in active if not self.holds_any(groups[p])}

    def hand_over(self, chosen: Collection[int]) -> bool:
        """Hand over lanes that are part of the exchange and that other members are to have."""
        self.handing_over = {
            partition
            for partition in chosen
            if self._may_hand_over(group := self._leases.group(partition), wanted=self._is_wanted(group))
        }
        return False

    def _is_wanted(self, group: LaneGroup) -> bool:
        if self._gate.closing:
            return group.standing is Standing.ACTIVE
        return super()._is_wanted(group)

    def gives_up(self, partition: int) -> bool:
        """Whether the exchange that is being composed hands over the lane of a partition."""
        return partition in self.handing_over

    # -- answers

    def _standings(self, reply: ExchangeReply) -> dict[int, Standing]:
        return {state.partition: state.standing for state in reply.partitions}

    def _became_active(self, group: LaneGroup, /) -> None:
        self._schedule.request(when=self.takes_turns() and self._is_crowded(group))
