"""Which records of a key-ordered subscription may be dispatched now: the first of each key that is free."""

from __future__ import annotations

from kafkadur.consumer.chunk import Chunk, Owner
from kafkadur.consumer.dispatcher import Block, Dispatcher
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
        lease = record.lease
        if self._is_cold(lease, record.offset):
            return None
        room = self._in_flight.room(self._queue.mean_size, limit)
        if room <= 0:
            self._idle()
            return None
        records = keys.take(1 if lease.isolated else room)
        messages, offsets = [each.message for each in records], [each.offset for each in records]
        size, end = sum(map(len, messages)), len(records)
        chunk = Chunk(self._owner, lease, messages, offsets[0], offsets, size=size)
        chunk.hand_out(0, end)
        chunk.taken = end
        self._in_flight.add(chunk)
        keys.hand_out(records, chunk)
        self._in_flight.count(chunk, 0, end)
        self._policy.dispatched(lease)
        return chunk, 0, end

    def is_due(self, now: float) -> bool:
        """Whether a record that waits by key has become due since the last call."""
        keys = self._policy.keys
        due_at = keys.next_at
        if due_at is None or due_at > now:
            return False
        keys.look()  # else it would be due until the application asks for it
        return True
