"""How many records a member asks for, and which leased ones go back: credit, span, reservations."""

from __future__ import annotations

from collections.abc import Collection

from kafkadur.consumer.chunk import Chunk
from kafkadur.consumer.harvest import Harvest
from kafkadur.consumer.reservations import FEW, MOST, give_back, promised, surplus
from kafkadur.consumer.router import Router
from kafkadur.consumer.state import State


class Credit:
    """The room of one member, as the coordinator is told of it. Called with the member's lock held."""

    def __init__(
        self,
        state: State,
        *,
        router: Router,
    ) -> None:
        """No room was told of."""
        self._terms = state.terms
        self._gate = state.gate
        self._leases = state.leases
        self._fetch = state.fetch
        self._queue = state.queue
        self._in_flight = state.in_flight
        self._selection = state.selection
        self._router = router
        #: the room that the coordinator knows of, less what it granted since
        self.free = 0

    def clear(self) -> None:
        """No room was told of."""
        self.free = 0

    # -- what is asked for

    def take_free(self, settling: int) -> int:
        """The credit of the exchange that is being made, which settles `settling` offsets."""
        self.free = 0 if self._gate.closing else self.credit(settling)
        return self.free

    def credit(self, sending: int) -> int:
        """Records that may be granted, when an exchange settles `sending` offsets."""
        if self._terms.lane:
            return int(not self._terms.own_turns or self._in_flight.room(self._queue.mean_size) > 0)
        if self._gate.resting:
            return 0
        if not self._selection.is_all:
            return self._scan_credit()
        held = self._held(sending)
        return max(min(self._terms.window - held, self._room_by_bytes(held)), 0)

    def _room_by_bytes(self, held: int) -> int:
        mean = self._queue.mean_size
        room = int((self._terms.window_bytes - held * mean) / max(mean, 1.0))
        return max(room, 1) if held <= 0 else room

    def _held(self, sending: int) -> int:
        """Records of all leases, but for what is reserved and what an exchange settles."""
        return sum(lease.open - promised(lease) for lease in self._leases) - sending

    def _scan_credit(self) -> int:
        """Offsets that may be read ahead, so that about a window of them is taken."""
        held = self._queue.waiting + self._in_flight.records
        unread = sum(lease.end - lease.fill for lease in self._leases)
        free = self._terms.window - held
        if held:
            free = min(free, self._room_by_bytes(held))
        return max(self._selection.scan(free) - unread, 0) if free > 0 else 0

    def span(self, *, alone: bool) -> int:
        """Offsets of a lane that are granted beyond its position; `alone`: no other member takes turns."""
        if self._gate.closing:
            return 0
        records = self._terms.window + (self._terms.budget if alone else 0)
        # of a partition's records about one in so many is of a lane
        return self._selection.scan(records) * self._terms.definition.lanes

    # -- what is beyond the window

    def return_surplus(self, chosen: Collection[int], harvest: Harvest) -> None:
        """Give back what waits beyond the window: other members may have room for it.

        What was reserved came while the exchange was under way that asked for as many others.
        """
        over = self._surplus(harvest.settling)
        queue = self._queue
        for chunk in [chunk for chunk in self._returnable(over) if chunk.lease.partition in chosen]:
            keep = max(chunk.handed, len(chunk.messages) - over)
            for index in range(keep, len(chunk.messages)):
                harvest.give_back(chunk.lease, chunk.offset(index), chunk.offset(index) + 1)
            messages, _ = chunk.cut(keep)
            queue.records -= len(messages)
            over -= len(messages)
            if chunk.handed == len(chunk.messages):
                queue.ready.remove(chunk)
                queue.count_out(chunk, chunk.handed)
            if over <= 0:
                return

    def _surplus(self, sending: int) -> int:
        """Records that are held beyond the window, `sending` not counted, which the next exchange settles."""
        if self._terms.lane or not self._selection.is_all:
            return 0
        return self._held(sending) - self._terms.window

    def _returnable(self, over: int) -> list[Chunk]:
        """What waits, and can go back if so much is held beyond the window; the last first."""
        if over <= 0:
            return []
        # with a window of one a chunk that was begun is handed out without the lock
        begun = self._in_flight.chunks if self._terms.window == 1 else []
        return [
            chunk for chunk in reversed(self._queue.ready) if not chunk.lease.alone and chunk not in begun
        ]

    def beyond_window(self, *, answered: bool) -> set[int]:
        """Partitions of which records have to go back, as too few were acknowledged meanwhile.

        `answered`: no exchange is under way.
        """
        if not answered or not self._queue.ready:
            return set()
        return {
            chunk.lease.partition
            for chunk in self._returnable(self._surplus(self._in_flight.settled_unsaid()))
        }

    # -- reservations: offsets that are not written yet

    def _to_keep(self) -> int:
        """Reserved offsets for which there is room."""
        gate = self._gate
        return 0 if gate.closing or gate.paused or gate.resting or gate.asked_back else self.free

    def return_reserved(self, chosen: Collection[int], harvest: Harvest) -> None:
        """Give back what is reserved beyond the room for it."""
        self._router.came.clear()
        for lease, count in surplus(self._leases, self._to_keep()):
            if lease.partition in chosen:
                for start, end in give_back(lease, count):
                    harvest.give_back(lease, start, end)

    def to_return(self) -> set[int]:
        """Partitions of which more is reserved than there is room for."""
        return {lease.partition for lease, _ in surplus(self._leases, self._to_keep())}

    def to_reserve(self, partition: int) -> int:
        """How many offsets that are not written yet this member can have of a partition."""
        buffers = self._fetch.buffers
        buffer = buffers.get(partition)
        if self._terms.lane or not self._selection.is_all or buffer is None or buffer.unread != 0:
            return 0
        # this one counts whatever it says by now: the reader notes the end of a log without the lock
        live = 1 + sum(other.unread == 0 for other in buffers.values() if other is not buffer)
        room, here, total = self._to_keep(), 0, 0
        for lease in self._leases:
            if not lease.withdrawn:
                total += promised(lease)
                here += promised(lease) if lease.partition == partition else 0
        return max(min(MOST, room // live, here + room - total), 0)

    def is_short(self) -> bool:
        """Whether next to nothing is left of what was reserved where something came."""
        left = dict.fromkeys(self._router.came, 0)
        for lease in self._leases:
            if lease.ahead and lease.partition in left:
                left[lease.partition] += promised(lease)
        return any(count <= FEW for count in left.values()) and self._to_keep() > FEW

    def is_filled(self) -> bool:
        """Whether what came took up the last room that the coordinator knows of."""
        return self._selection.is_all and self.credit(0) <= 0 < self.free
