"""Shared subscriptions: every member takes messages from any partition, as many as its window has room for.

A member asks for credit and gives back what it holds beyond its window. Near the end of a partition it asks
for reservations (`reservations.py`). It follows its preferred partitions as long as that is worth it
(`fetch/following.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import ClassVar

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.collected_verdicts import CollectedVerdicts
from kafkadur.consumer.gaps import Gaps
from kafkadur.consumer.policy.fairness import Fairness
from kafkadur.consumer.policy.own_partitions import OwnPartitions
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.reservations import (
    FEW,
    MOST,
    MOST_ALONE,
    give_back,
    reservation,
    surplus,
    unread,
    withdraw,
)
from kafkadur.consumer.state import State
from kafkadur.fetch.buffer import FetchBuffer
from kafkadur_coordinators.interface import ExchangeReply, PartitionState, Role, Standing

#: Windows from so many records on: an exchange costs as much as some thousand messages.
_LARGE = 1_000


class SharedPolicy(Policy):
    """The policy of a member of a shared subscription."""

    ORDERED: ClassVar[bool] = False

    def __init__(self, state: State, gaps: Gaps) -> None:
        """A member that has nothing."""
        self._own = OwnPartitions(state)
        super().__init__(state, gaps)

    def clear(self) -> None:
        """Forget everything: the coordinator knows of no room."""
        super().clear()
        #: the credit that the coordinator knows, less the records that it granted since
        self._free = 0
        self.reads_on = False
        #: credit that does not count since an exchange that said that it reads on
        self._unused = 0
        self._own.clear()
        #: partitions on which reserved records came since the last exchange
        self._came: set[int] = set()
        self._fairness = Fairness()
        #: partitions that exchanges have touched since there is room: of these no more can be granted now
        self._touched_with_room: set[int] = set()
        #: partitions that exchanges have touched since there is no room
        self._touched_when_full: set[int] = set()

    # -- partitions

    def partitions(self) -> AbstractSet[int]:
        """The preferred partitions, and those whose readable ends this member reports."""
        return self._fetch.preferred | self._fetch.watches

    def targets(self) -> set[int]:
        """Preferred partitions that are worth following, and those whose readable ends it reports."""
        return (self._fetch.preferred - self._fetch.worth.by_range) | self._fetch.watches

    def will_follow(self, partition: int) -> bool:
        """Whether a partition is followed."""
        return partition in self.targets()

    def follow_from(self, begin: int, leases: Collection[Lease]) -> int:
        """First offset to read: of leases, or of those that may be granted next."""
        return min([begin, *(lease.start for lease in leases)])

    def discard_before(self, state: PartitionState) -> int:
        """Records before this offset belong to other members, or are settled."""
        return self.first_needed(state)

    def take_role(self, before: Role) -> None:
        """Spread reservations anew, and choose the preferred partitions."""
        fetch, partitions = self._fetch, self._schedule.partitions
        role = fetch.role
        if role == before and fetch.preferred:
            return
        if (role.members, role.partitions) != (before.members, before.partitions):
            for lease in [lease for lease in self._leases if lease.reserved and not lease.withdrawn]:
                withdraw(lease, self._leases, self._schedule)
        if role.members <= partitions:
            preferred = {p for p in range(partitions) if p % role.members == role.rank}
        else:
            preferred = {role.rank % partitions}
        self._schedule.touch(preferred - fetch.preferred)
        fetch.preferred = preferred

    # -- credit

    def take_credit(self, settling: int) -> int:
        """Return the credit of the exchange that is being composed, and remember it."""
        self._free = super().take_credit(settling)
        self._unused = 0
        self.reads_on = self._free > 0 and self._own.keep_busy()
        return self._free

    def credit(self, settling: int) -> int:
        """Return how many records may be granted when an exchange settles `settling` offsets."""
        if self._gate.resting:
            return 0
        if not self._selection.is_all:
            return self._scan_credit()
        held = self._held(settling)
        return max(min(self._terms.window - held, self._room_by_bytes(held)), 0)

    def _open(self) -> int:
        """Return the offsets of all leases without a decision: what is held, and what is reserved."""
        return sum([lease.open for lease in self._leases])

    def _has_room_for(self, records: int) -> bool:
        """Whether the window has room for more than so many records."""
        terms, most = self._terms, self._open() + records
        # mostly there is room even for all that is reserved: no need to look at each lease
        roomy = most < terms.window and (most + 1) * self._queue.mean_size < terms.window_bytes
        return (roomy and self._selection.is_all and not self._gate.resting) or self.credit(0) > records

    def _room_by_bytes(self, held: int) -> int:
        mean = self._queue.mean_size
        room = int((self._terms.window_bytes - held * mean) / max(mean, 1.0))
        return max(room, 1) if held <= 0 else room

    def _held(self, settling: int) -> int:
        """Return the number of records of all leases, without those ahead and those an exchange settles."""
        held = 0
        for lease in self._leases:  # mostly leases that are filled, and wait for the end of their messages
            held += lease.open - reservation(lease) if lease.stretch else lease.open
        return held - settling

    def _scan_credit(self) -> int:
        """Return how many offsets may be read ahead, so that a selector takes about a window of them."""
        held = self._queue.waiting + self._in_flight.records
        unread = sum(lease.end - lease.fill for lease in self._leases)
        free = self._terms.window - held
        if held:
            free = min(free, self._room_by_bytes(held))
        return max(self._selection.scan(free) - unread, 0) if free > 0 else 0

    @property
    def keeps_nothing(self) -> bool:
        """Whether the member rests: others can have its records."""
        return self._gate.resting

    def acks_can_wait(self) -> bool:
        """Whether there is room for half a window, as this member and as the coordinator know."""
        few = self._terms.window // 2
        return self._free + self._unused > few and not self._gate.asked_back and self._has_room_for(few)

    # -- records beyond the window

    def beyond_window(self) -> set[int]:
        """Partitions of which records are held beyond the window: too few were acknowledged meanwhile."""
        if not self._pending.is_answered or not self._queue.ready or self._open() <= self._terms.window:
            return set()
        over = self._over_window(sum(chunk.acks() for chunk in self._in_flight))
        return {chunk.lease.partition for chunk in self._returnable(over)}

    def return_surplus(self, chosen: Collection[int], collected: CollectedVerdicts) -> None:
        """Give back reservations without room, and queued records beyond the window.

        Other members may have room for them. There may be too many records because those of reservations came
        while the exchange that asked for as many other records was under way.
        """
        self._came.clear()
        for lease, count in surplus(self._leases, self._reservable()):
            if lease.partition in chosen:
                for start, end in give_back(lease, count):
                    collected.give_back(lease, start, end)
        over = self._over_window(collected.settling)
        for chunk in [chunk for chunk in self._returnable(over) if chunk.lease.partition in chosen]:
            keep = max(chunk.handed, len(chunk.messages) - over)
            for index in range(keep, len(chunk.messages)):
                collected.give_back(chunk.lease, chunk.offset(index), chunk.offset(index) + 1)
            messages, _ = self._queue.cut(chunk, keep)
            over -= len(messages)
            if over <= 0:
                return

    def _over_window(self, settling: int) -> int:
        """Return how many records were read beyond the window when the next exchange settles `settling`.

        Granted records that were not read yet do not count: the last ones go back, when all are here.
        """
        if not self._selection.is_all:
            return 0
        over = -settling - self._terms.window
        for lease in self._leases:
            over += lease.open - unread(lease) if lease.fill < lease.end else lease.open
        return over

    def _returnable(self, over: int) -> list[Chunk]:
        """Return the queued chunks that can be given back if `over` records are too many; the last first."""
        if over <= 0:
            return []
        # with a window of one a chunk that was begun is dispatched without the lock
        begun = self._in_flight.chunks if self._terms.single else []
        return [
            chunk for chunk in reversed(self._queue.ready) if not chunk.lease.isolated and chunk not in begun
        ]

    # -- reservations

    def reservations_to_return(self) -> set[int]:
        """Partitions of which more is reserved than there is room for."""
        return {lease.partition for lease, _ in surplus(self._leases, self._reservable())}

    def _reservable(self) -> int:
        """Return how many reserved offsets there is room for."""
        gate = self._gate
        return 0 if gate.closing or gate.paused or gate.resting or gate.asked_back else self._free

    def to_reserve(self, partition: int) -> int:
        """Return how many offsets that are not written yet this member can have of a partition."""
        buffers = self._fetch.buffers
        buffer = buffers.get(partition)
        if not self._selection.is_all or buffer is None or buffer.unread != 0:
            return 0
        # this buffer counts even if it has unread records by now: the reader notes ends without the lock
        live = 1 + sum(other.unread == 0 for other in buffers.values() if other is not buffer)
        room, here, total = self._reservable(), 0, 0
        for lease in self._leases:
            if not lease.withdrawn:
                total += reservation(lease)
                here += reservation(lease) if lease.partition == partition else 0
        alone = partition in self._fetch.preferred and self._fetch.role.members <= self._schedule.partitions
        wanted = max(min(MOST_ALONE if alone else MOST, room // live, here + room - total), 0)
        # each reservation is a lease: few large ones cost less than many small ones
        return 0 if alone and here > wanted // 2 else wanted

    def came(self, lease: Lease) -> None:
        """Note that reserved records were read."""
        self._came.add(lease.partition)

    def lacks_reservations(self) -> bool:
        """Whether the reservations that are left are few, or those that came took up the last credit."""
        if not (self._came and self._pending.is_answered):
            return False
        return self._is_short() or (self._selection.is_all and self._free > 0 and not self._has_room_for(0))

    def _is_short(self) -> bool:
        """Whether next to nothing is left of the reservations where records came."""
        wanting = self._leases.wanting
        return self._reservable() > FEW and any(
            sum(map(reservation, wanting.get(partition, ()))) <= FEW for partition in self._came
        )

    # -- exchanges

    def is_urgent(self, _lease: Lease, /) -> bool:
        """Messages that come again do not come before new ones: there is no order to keep."""
        return False

    def wants_exchange(self, unreported: Mapping[int, FetchBuffer]) -> bool:
        """Whether this member has credit, and could be granted records that were read."""
        if self._unused and not self._own.keep_busy():
            return True
        if self._free + self._unused <= 0:
            return False
        for partition, buffer in unreported.items():
            state = self._fetch.states.get(partition)
            if state is None or (state.next >= state.readable_end and buffer.position > state.free_from):
                return True
        return False

    def news(self) -> tuple[set[int], set[int]]:
        """Touch partitions of which records or reservations are given back, and any with a backlog.

        A member that is alone touches only the backlog that is served first, if it has enough.
        """
        return self.reservations_to_return() | self.beyond_window(), self._served_next() | self._to_pass_on()

    def _served_next(self) -> set[int]:
        """Return the partitions with a backlog that an exchange is to touch."""
        fairness, first = self._fairness, self._fairness.first
        comes_first = self._fetch.role.members == 1 and not fairness.is_over()
        if (
            comes_first
            and first is not None
            and first not in self._touched_with_room
            and self._has_enough(first)
        ):
            return {first}
        return {partition for partition in self.partitions() if self._fetch.has_backlog(partition)}

    def _to_pass_on(self) -> set[int]:
        """Return the partitions whose ends this member reports, and that a member with room should report.

        The exchange that touches one passes it on, if a member has room.
        """
        if self._free > 0 or self._fetch.role.members == 1:
            return set()
        own = self._fetch.preferred if self._unused else set[int]()
        return self._fetch.watches - self._touched_when_full - own

    def order(self, chosen: list[int]) -> list[int]:
        """Return the partitions of an exchange in the order in which they are to be served."""
        return self._fairness.order(chosen)

    def _has_enough(self, partition: int) -> bool:
        """Whether as much as the window holds can be granted of a partition."""
        state = self._fetch.states.get(partition)
        waiting = 0 if state is None else state.readable_end - state.next
        return self._selection.is_all and waiting >= self._terms.window

    def dispatched(self, lease: Lease) -> None:
        """Do nothing: a shared subscription reports no position."""

    def uses_up(self, _chunk: Chunk, _end: int, /) -> bool:
        """Whether a quarter of the window, or half of a large one, was dispatched since the last exchange."""
        window = self._terms.window
        return self._in_flight.handed_since > (window // 2 if window >= _LARGE else window // 4)

    def unread_leases(self) -> list[Lease]:
        """Leases of which nothing is in flight."""
        busy = {chunk.lease.token for chunk in self._in_flight if chunk.low < chunk.handed}
        return [lease for lease in self._leases if lease.token not in busy]

    def granted(self, reply: ExchangeReply) -> None:
        """Count the credit that is left, and judge anew which partitions are worth following."""
        fetch = self._fetch
        self._free -= sum(grant.records for grant in reply.grants if grant.kind not in {"lane", "ahead"})
        self._gate.asked_back = reply.standing is Standing.ASKED
        fresh: dict[int, int] = {}
        for grant in reply.grants:
            if grant.kind in {"range", "ahead"}:
                fetch.worth.granted(grant.partition, grant.records)
            if grant.kind == "range":
                fresh[grant.partition] = fresh.get(grant.partition, 0) + grant.records
        self._fairness.granted(fresh)
        for state in reply.partitions:
            fetch.worth.advanced(state.partition, state.next)
        self._note_written({state.partition: state.readable_end for state in reply.partitions})
        if self.reads_on:
            self._free, self._unused = 0, max(self._free, 0)
            self._own.look_again()
        self._ask_for_more({state.partition for state in reply.partitions})
        fetch.worth.watch(fetch.watches)

    def _ask_for_more(self, touched: set[int]) -> None:
        """Ask for another exchange while one is of use, after one that touched these partitions.

        With room: until each partition with a backlog was touched. Without room: until each partition was
        touched that another member should report.
        """
        if self._free + self._unused > 0:
            self._touched_when_full.clear()
            self._touched_with_room |= touched
            self._schedule.request(when=bool(self._served_next() - self._touched_with_room))
        else:
            self._touched_with_room.clear()
            self._touched_when_full |= touched
            self._schedule.request(when=bool(self._to_pass_on()))

    def _note_written(self, ends: Mapping[int, int]) -> None:
        """Count reserved offsets before these ends of partitions as granted: they are written."""
        for lease in self._leases:
            if lease.reserved and lease.partition in ends:
                ahead = reservation(lease)
                lease.written = ends[lease.partition]
                self._free -= ahead - reservation(lease)
