"""Which records may be dispatched now: this combines queue, window, budget and the order of a lane."""

from __future__ import annotations

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.lag import Lag
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import Part, State
from kafkadur.consumer.timeliness import Timeliness
from kafkadur.consumer.turn import LaneGroup

#: Records to dispatch: a chunk, first index, end index.
Block = tuple[Chunk, int, int]


class Dispatcher(Part):
    """Dispatches the records of one member."""

    def __init__(self, state: State, *, policy: Policy, lag: Lag) -> None:
        """Nothing was dispatched."""
        super().__init__(state)
        self._policy = policy
        self._lag = lag
        self.timeliness = Timeliness(state, policy=policy)

    # -- blocks

    def next_block(self, limit: int) -> tuple[Block | None, bool]:
        """The next records, at most `limit`, and whether an exchange is to be made soon."""
        chunk = self._next_timely_chunk()
        if chunk is None:
            return None, False
        limit = self._most(chunk.lease, limit)
        room = self._in_flight.room(chunk.weight, min(limit, len(chunk.messages) - chunk.handed))
        if room <= 0:
            self._idle()
            return None, False
        start = chunk.handed
        end = min(len(chunk.messages), start + room)
        if chunk.times:
            end = self.timeliness.end_of_block(chunk, start, end)
        chunk.hand_out(start, end)
        self._queue.count_out(chunk, end)
        if start == 0:
            self._in_flight.add(chunk)
        if end == len(chunk.messages):
            self._queue.remove(chunk)
        self._in_flight.count(chunk, start, end)
        self._policy.dispatched(chunk.lease)
        chunk.lease.group.turn.hand_out(end - start)
        return (chunk, start, end), self._pending.is_answered and self._policy.uses_up(chunk, end)

    def next_run(self, limit: int) -> Block | None:
        """As `next_block`, for records that are marked as dispatched one by one (`chunk.one_by_one`)."""
        # where lanes pass apart another lane may have been dispatched first
        self._queue.drop_handed(anywhere=self._policy.LANES_APART)
        self._in_flight.recount()
        if self._in_flight.records and self._terms.single:
            self._idle()
            return None
        while True:
            chunk = self._next_timely_chunk()
            if chunk is None:
                return None
            room = self._room_of_run(chunk, self._most(chunk.lease, limit))
            if room > 0:
                # an earlier call may have added it, and none of its records was dispatched since
                if chunk.handed == 0 and all(each is not chunk for each in self._in_flight):
                    self._in_flight.add(chunk)
                self._policy.dispatched(chunk.lease)
                chunk.lease.group.turn.run(chunk)
                start = chunk.handed
                end = min(len(chunk.messages), start + room)
                if chunk.times:
                    end = self.timeliness.end_of_block(chunk, start, end)
                if self._notes is not None:
                    self._notes.run(chunk, start, end)
                return chunk, start, end
            if not chunk.lease.group.frozen:
                return None

    # -- which chunk

    def _next_timely_chunk(self) -> Chunk | None:
        """As `_next_chunk`, without records that are due later or have expired: those are passed over."""
        while True:
            chunk = self._next_chunk()
            if chunk is None or self._is_cold(chunk.lease, chunk.offset(chunk.handed)):
                return None
            if not chunk.times or not self.timeliness.pass_over(chunk):
                return chunk
            self._queue.count_out(chunk, chunk.handed)
            if chunk.handed == len(chunk.messages):
                self._queue.remove(chunk)
            self._policy.dispatched(chunk.lease)

    def _next_chunk(self) -> Chunk | None:
        """The chunk whose next record is dispatched next; None: nothing can be dispatched now."""
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
        """The first chunk whose records may be dispatched; those that come again are first."""
        # partition -> the lowest offset that waits: earlier records may be in a later chunk
        waiting: dict[int, int] = {}
        for chunk in self._queue.urgent:
            lease = chunk.lease
            if lease.group.frozen or chunk.handed == len(chunk.messages):
                continue
            offset = chunk.offset(chunk.handed)
            if offset >= waiting.get(lease.partition, offset + 1):
                continue
            if not self._policy.waits_in_order(chunk):
                return chunk if self._goes_beside(lease, again=True) else None
            waiting[lease.partition] = offset
        blocked: list[LaneGroup] = []
        for chunk in self._queue.ready:
            group = chunk.lease.group
            if group in blocked:
                continue
            if not group.frozen and not self._policy.is_held_back(chunk.lease):
                return chunk if self._goes_beside(chunk.lease, again=False) else None
            blocked.append(group)
        return None

    def _goes_beside(self, lease: Lease, *, again: bool) -> bool:
        return not self._leases.isolated or self._may_be_beside(lease, again=again)

    def _isolated_is_pending(self) -> bool:
        """Whether an isolated record may be dispatched: no other record may be in flight then."""
        now, leases = self._terms.monotonic(), self._leases
        return any(leases.by_token[token].not_before <= now for token in leases.isolated)

    def _may_be_beside(self, lease: Lease, *, again: bool) -> bool:
        """Whether a record may be dispatched while an isolated one is pending."""
        if lease.isolated:
            return not self._policy.holds_any()
        return again and not any(chunk.in_flight() for chunk in self._in_flight if chunk.lease.isolated)

    def _is_cold(self, lease: Lease, offset: int) -> bool:
        """Whether a new holder must first report how far a lane is readable.

        When the holder dies, deliveries beyond that end are not counted as attempts: a message that kills its
        process at once would be delivered as a first attempt for ever.
        """
        partition = lease.partition
        if not lease.lane or partition in self._fetch.warm:
            return False
        state = self._fetch.states.get(partition)
        if state is not None and offset < state.readable_end:
            return False
        self._schedule.request()
        return True

    # -- how many records

    def _most(self, lease: Lease, limit: int) -> int:
        """Return how many records of a lease are dispatched at once, at most `limit`."""
        return 1 if self._gate.failed_alone and lease.attempts else limit

    def _room_of_run(self, chunk: Chunk, limit: int) -> int:
        """Number of records that may be dispatched one by one now; if there is no room, `_idle` is called."""
        terms, in_flight = self._terms, self._in_flight
        if terms.budget < in_flight.unconfirmed:
            self._schedule.request()
            return 0
        room = terms.budget + 1 - in_flight.unconfirmed
        if not terms.single:
            room = in_flight.room(chunk.weight, min(limit, len(chunk.messages) - chunk.handed))
        if room > 0:
            room = self._policy.room_in_turn(chunk.lease.group, room)
        if room <= 0:
            self._idle()
        return room

    # -- nothing can be dispatched

    def _idle(self) -> None:
        """The application waits: have its verdicts sent, if that may bring more messages."""
        self._lag.judge_while_idle()
        if self._pending.is_answered:
            urgent = not self._policy.acks_can_wait() and self._in_flight.has_verdicts()
            self._schedule.request(when=urgent or self._in_flight.gives_back())
            self._schedule.request(when=self._policy.wants_handover())

    def is_due(self, _now: float) -> bool:
        """Whether a record that waits outside of the ready queue has become due since the last call."""
        return False
