"""Which records of a key-ordered subscription may be dispatched now: the first of each key that is free."""

from __future__ import annotations

from kafkadur.consumer.chunk import Chunk, Owner
from kafkadur.consumer.dispatcher import Block, Dispatcher
from kafkadur.consumer.key_queue import Record
from kafkadur.consumer.lag import Lag
from kafkadur.consumer.policy.keyed import KeyedPolicy
from kafkadur.consumer.state import State


class KeyDispatcher(Dispatcher):
    """Dispatches the records of one member by key."""

    _policy: KeyedPolicy

    def __init__(self, state: State, *, policy: KeyedPolicy, lag: Lag, owner: Owner) -> None:
        """`owner`: the member that chunks belong to."""
        super().__init__(state, policy=policy, lag=lag)
        self._owner = owner

    def next_block(self, limit: int) -> tuple[Block | None, bool]:
        """Return the next records, at most `limit`, and False: no exchange is needed soon."""
        return self.next_run(limit), False

    def next_run(self, limit: int) -> Block | None:
        """Return records of one lease whose keys are free."""
        keys = self._policy.keys
        record = self._next_record()
        while record is not None and record.times is not None and record.times.is_over(self._terms.now_ms()):
            self._expire(keys.take(1))
            record = self._next_record()
        if record is None:
            return None
        lease = record.lease
        room = self._in_flight.room(self._queue.mean_size, self._most(lease, limit))
        if room <= 0:
            self._idle()
            return None
        records = keys.take(1 if lease.isolated else room)
        chunk, end = self._chunk(records), len(records)
        chunk.hand_out(0, end)
        chunk.taken = end
        self._in_flight.add(chunk)
        keys.hand_out(records, chunk)
        self._in_flight.count(chunk, 0, end)
        self._policy.dispatched(lease)
        return chunk, 0, end

    def _next_record(self) -> Record | None:
        """Return the record that may be dispatched next; None: there is none now."""
        if self._gate.is_shut:
            return None
        keys = self._policy.keys
        keys.look()
        self._policy.read_parked()
        record = keys.first(isolated=self._isolated_is_pending())
        if record is not None and not self._gate.may_dispatch():
            self._gate.blocked = True
            return None
        beside = record is not None and self._may_be_beside(record.lease, again=not record.lease.lane)
        if record is None or self._gate.paused or (self._isolated_is_pending() and not beside):
            self._idle()
            return None
        return None if self._is_cold(record.lease, record.offset) else record

    def _isolated_is_pending(self) -> bool:
        """As of each member; one that waits for an earlier record of its key holds nothing up."""
        if not self._leases.isolated:
            return False
        in_flight = any(chunk.lease.isolated and chunk.in_flight() for chunk in self._in_flight)
        return in_flight or self._policy.keys.has_isolated

    def _chunk(self, records: list[Record]) -> Chunk:
        """Return a chunk of records that are dispatched now."""
        messages, offsets = [each.message for each in records], [each.offset for each in records]
        return Chunk(
            self._owner, records[0].lease, messages, offsets[0], offsets, size=sum(map(len, messages))
        )

    def _expire(self, records: list[Record]) -> None:
        """Settle records that have expired."""
        chunk = self._chunk(records)
        self.timeliness.expire(chunk)
        self._in_flight.add(chunk)
        self._policy.keys.hand_out(records, chunk)

    def is_due(self, now: float) -> bool:
        """Whether a record that waits by key has become due since the last call."""
        keys = self._policy.keys
        due_at = keys.next_at
        if due_at is None or due_at > now:
            return False
        keys.look()  # else it would be due until the application asks for it
        return True
