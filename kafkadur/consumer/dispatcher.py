"""Which records may be handed out now: queue, window, budget and the order of a lane, combined."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Message

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.lag import Lag
from kafkadur.consumer.lanes import Lanes
from kafkadur.consumer.router import Router
from kafkadur.consumer.state import State
from kafkadur.consumer.turn import LaneGroup

#: Spans of a lane, in records, for which the horizon is not extended ahead of time.
_SMALL_SPAN = 512

#: Records to hand out: a chunk, first index, end index.
Block = tuple[Chunk, int, int]


class Dispatcher:
    """Hands out the records of one member. Called with its lock held."""

    def __init__(
        self,
        state: State,
        *,
        lanes: Lanes,
        router: Router,
        lag: Lag,
        chunk: Callable[[Lease, list[Message], int, list[int] | None, int], Chunk],
    ) -> None:
        """`chunk`: as for the router."""
        self._terms = state.terms
        self._gate = state.gate
        self._schedule = state.schedule
        self._pending = state.pending
        self._leases = state.leases
        self._fetch = state.fetch
        self._queue = state.queue
        self._in_flight = state.in_flight
        self._lanes = lanes
        self._router = router
        self._lag = lag
        self._chunk = chunk

    # -- blocks

    def next_block(self, limit: int) -> tuple[Block | None, bool]:
        """The next records, at most `limit`, and whether an exchange is to be made soon."""
        if self._terms.keyed:
            return self._next_keyed(limit), False
        chunk = self._next_chunk()
        if chunk is None or self._is_cold(chunk.lease, chunk.offset(chunk.handed)):
            return None, False
        room = min(limit, self._in_flight.room(chunk.weight))
        if room <= 0:
            self._idle()
            return None, False
        start = chunk.handed
        end = min(len(chunk.messages), start + room)
        chunk.hand_out(start, end)
        self._queue.count_out(chunk, end)
        if start == 0:
            self._in_flight.add(chunk)
        if end == len(chunk.messages):
            self._queue.remove(chunk)
        self._in_flight.count(chunk, start, end)
        if self._terms.lane:
            self._schedule.touch((chunk.lease.partition,))
        chunk.lease.group.turn.hand_out(end - start)
        return (chunk, start, end), self._pending.is_answered and self._soon(chunk, end)

    def next_run(self, limit: int) -> Block | None:
        """As `next_block`, for records that are marked as handed out one by one (`chunk.one_by_one`)."""
        if self._terms.keyed:
            return self._next_keyed(limit)
        self._queue.drop_handed(anywhere=self._terms.own_turns)  # another lane may have been handed out first
        self._in_flight.recount()
        if self._in_flight.records and self._terms.window == 1:
            self._idle()
            return None
        while True:
            chunk = self._next_chunk()
            if chunk is None or self._is_cold(chunk.lease, chunk.offset(chunk.handed)):
                return None
            room = self._room_of_run(chunk, limit)
            if room > 0:
                # it was made ready before where nothing of it was handed out since
                if chunk.handed == 0 and all(each is not chunk for each in self._in_flight):
                    self._in_flight.add(chunk)
                self._schedule.touch((chunk.lease.partition,))
                chunk.lease.group.turn.run(chunk)
                return chunk, chunk.handed, min(len(chunk.messages), chunk.handed + room)
            if not chunk.lease.group.frozen:
                return None

    def _next_keyed(self, limit: int) -> Block | None:
        """As `next_block`: records of one lease whose keys are free."""
        if self._gate.is_shut:
            return None
        keys = self._router.shares.keys
        keys.look()
        self._router.read_parked()
        record = keys.first(alone=self._one_is_alone())
        if record is not None and not self._gate.may_dispatch():
            self._gate.blocked = True
            return None
        beside = record is not None and self._may_be_beside(record.lease, again=not record.lease.lane)
        if record is None or self._gate.paused or (self._one_is_alone() and not beside):
            self._idle()
            return None
        lease = record.lease
        if self._is_cold(lease, record.offset):
            return None
        room = min(limit, self._in_flight.room(self._queue.mean_size))
        if room <= 0:
            self._idle()
            return None
        records = keys.take(1 if lease.alone else room)
        messages, offsets = [each.message for each in records], [each.offset for each in records]
        chunk, end = self._chunk(lease, messages, offsets[0], offsets, sum(map(len, messages))), len(records)
        chunk.hand_out(0, end)
        chunk.taken = end
        self._in_flight.add(chunk)
        keys.hand_out(records, chunk)
        self._in_flight.count(chunk, 0, end)
        self._schedule.touch((lease.partition,))
        return chunk, 0, end

    # -- which chunk

    def _next_chunk(self) -> Chunk | None:
        """The chunk whose next record comes next; None: nothing can be handed out now."""
        if self._gate.is_shut:
            return None
        chunk = None if self._gate.paused else self._first_free()
        if chunk is None:
            self._idle()
            return None
        if not self._gate.may_dispatch():
            self._gate.blocked = True
            return None
        return chunk

    def _first_free(self) -> Chunk | None:
        """The first chunk whose lane may go on; what was set aside comes first."""
        # partition -> the lowest offset that waits: what comes before it may be in a later chunk
        waiting: dict[int, int] = {}
        for chunk in self._queue.urgent:
            lease = chunk.lease
            if lease.group.frozen or chunk.handed == len(chunk.messages):
                continue
            offset = chunk.offset(chunk.handed)
            if offset >= waiting.get(lease.partition, offset + 1):
                continue
            if not self._waits_in_order(chunk):
                return chunk if self._goes_beside(lease, again=True) else None
            waiting[lease.partition] = offset
        blocked: list[LaneGroup] = []
        for chunk in self._queue.ready:
            group = chunk.lease.group
            if group in blocked:
                continue
            if not group.frozen and not (self._terms.lane and self._held_back(chunk.lease)):
                return chunk if self._goes_beside(chunk.lease, again=False) else None
            blocked.append(group)
        return None

    def _goes_beside(self, lease: Lease, *, again: bool) -> bool:
        return not self._leases.alone or self._may_be_beside(lease, again=again)

    def _one_is_alone(self) -> bool:
        """Whether an isolated record may be dispatched: no other record may be in flight then."""
        now, leases = self._terms.monotonic(), self._leases
        return any(leases.by_token[token].not_before <= now for token in leases.alone)

    def _may_be_beside(self, lease: Lease, *, again: bool) -> bool:
        """Whether a record may be dispatched while an isolated one is pending."""
        if lease.alone:
            return not self._lanes.holds_any()
        return again and not any(chunk.in_flight() for chunk in self._in_flight if chunk.lease.alone)

    def _is_cold(self, lease: Lease, offset: int) -> bool:
        """Whether a new holder must first report how far a lane is readable.

        What lies beyond that is not counted as an attempt when the holder dies: a message that kills its
        process at once would come as a first attempt for ever.
        """
        partition = lease.partition
        if not lease.lane or partition in self._fetch.warm:
            return False
        state = self._fetch.states.get(partition)
        if state is not None and offset < state.avail:
            return False
        self._schedule.request()
        return True

    def _held_back(self, lane: Lease) -> bool:
        """Whether new messages of a lane wait for one that was rolled back."""
        terms = self._terms
        held = any(not terms.own_turns or p == lane.partition for p, _ in self._in_flight.holding_back)
        group = [lease for lease in self._leases.of_group(lane.group) if not lease.lane]
        held = held or any(x.open > 0 if terms.strict else x.fill < x.end for x in group)
        lane.group.withheld = held
        return held

    def _waits_in_order(self, chunk: Chunk) -> bool:
        """Whether a chunk of what was set aside waits for what comes before it.

        It does until that is read; in strict order until it is settled.
        """
        lane, offset = chunk.lease.partition, chunk.offset(chunk.handed)
        aside = [lease for lease in self._leases.of_partition(lane) if not lease.lane]
        if any(lease.fill < min(lease.end, offset) for lease in aside):
            return True
        if not self._terms.strict:
            return False
        return any(p == lane and o < offset for p, o in self._in_flight.holding_back) or any(
            other.unsettled_before(offset)
            for other in {*self._in_flight, *self._queue.urgent}
            if other.lease.partition == lane and not other.lease.lane
        )

    # -- how many records

    def _room_of_run(self, chunk: Chunk, limit: int) -> int:
        """Records that may be handed out one by one now; if none, what brings some is seen to."""
        terms, in_flight, group = self._terms, self._in_flight, chunk.lease.group
        if terms.budget < in_flight.unconfirmed:
            self._schedule.request()
            return 0
        room = terms.budget + 1 - in_flight.unconfirmed
        if terms.window > 1:
            room = min(limit, in_flight.room(chunk.weight))
        if room > 0 and self._lanes.takes_turns():
            room = min(room, self._lanes.left_of_turn(group))
            if room <= 0:
                group.frozen = True  # until it was offered
                self._schedule.request()
        if room <= 0:
            self._idle()
        return room

    def _soon(self, chunk: Chunk, handed: int) -> bool:
        """Whether the records [..., `handed`) of a chunk used up so much that an exchange is to be made."""
        if not self._terms.lane:
            return self._in_flight.handed_since > self._terms.window // 4
        lease, span = chunk.lease, self._terms.window + self._terms.budget
        # below some size the thread that waits anyway is faster than waking another one
        return span > _SMALL_SPAN and lease.lane and lease.end - chunk.offset(handed - 1) <= span // 2

    # -- nothing can be handed out

    def _idle(self) -> None:
        """The application waits: what it settled frees its window as soon as it is sent."""
        self._lag.judge_while_idle()
        if self._pending.is_answered:
            self._schedule.request(when=self._in_flight.has_verdicts())
            self._schedule.request(when=bool(self._lanes.asked_for()) or bool(self._lanes.ended()))

    def is_due_key(self, now: float) -> bool:
        """Whether a record of a key has become due since this was asked."""
        keys = self._router.shares.keys
        ripe = keys.next_at
        if ripe is None or ripe > now:
            return False
        keys.look()  # else it would be due until the application asks for it
        return True
