"""Records that may not be dispatched now: they are due later, or have expired.

A record that is due later goes back to the coordinator with its delay, which is no attempt, and comes again
when it is due. An expired record is settled. A record is looked at when it is the next one to be dispatched.
"""

from __future__ import annotations

from kafkadur.consumer.chunk import Chunk
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import Part, State

#: The longest delay with which a record goes back, ms: when that is over, it is put off again.
LONGEST_MS = 86_400_000


class Timeliness(Part):
    """Passes over the records of one member whose time is not now."""

    def __init__(self, state: State, *, policy: Policy) -> None:
        """Nothing has expired."""
        super().__init__(state)
        self._policy = policy
        #: records that expired before they were dispatched
        self.expired = 0

    def pass_over(self, chunk: Chunk) -> bool:
        """Put the next record of a chunk off, or settle it, unless it may be dispatched now.

        Returns whether it did.
        """
        index = chunk.handed
        times = chunk.times.get(index)
        now = self._terms.now_ms()
        if times is None or times.allow(now):
            return False
        if times.is_over(now):
            self.expire(chunk)
        else:
            delay = min(times.wait(now), LONGEST_MS)
            if self._policy.holds_back(delay):
                self._policy.hold_back(chunk, index)
            chunk.put_off(delay)
        if index == 0 and all(each is not chunk for each in self._in_flight):
            self._in_flight.add(chunk)  # an exchange collects its verdicts from there
        return True

    def expire(self, chunk: Chunk) -> None:
        """Settle the next record of a chunk: it has expired."""
        chunk.expire()
        self.expired += 1

    def is_timely(self, chunk: Chunk, index: int) -> bool:
        """Whether a dispatched record has not expired before it is received; one that has is settled.

        Needs no lock.
        """
        times = chunk.times.get(index)
        if times is None or not times.is_over(self._terms.now_ms()):
            return True
        if not chunk.expire_dispatched(index):
            return True  # it has its verdict: the application learns that from its own
        self.expired += 1
        return False

    def end_of_block(self, chunk: Chunk, start: int, end: int) -> int:
        """Return the end of the records from `start` on, at most `end`, that may be dispatched now."""
        now = self._terms.now_ms()
        for index in range(start, end):
            times = chunk.times.get(index)
            if times is not None and not times.allow(now):
                return index
        return end
