"""The window of an attached member, and whether a message waits for it: asked while it is attached.

Called by the application's threads, without the member's lock.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkadur.consumer.composer import Composer
from kafkadur.consumer.lag import Lag
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import Part, State
from kafkadur_coordinators.interface import Standing


class Flow(Part):
    """The flow of messages to one member."""

    def __init__(self, state: State, *, policy: Policy, lag: Lag, composer: Composer) -> None:
        """Begin with the window of the terms."""
        super().__init__(state)
        self._policy = policy
        self._lag = lag
        self._composer = composer

    def set_window(self, window: int) -> bool:
        """Change the window, records; returns whether it became smaller.

        With 0 nothing is dispatched, and queued records are given back.
        """
        with self._lock:
            smaller = window < self._terms.window
            self._terms.window = window
            self._schedule.touch(self._policy.partitions())
        self._schedule.request_exchange()
        return smaller

    def look_again(self) -> tuple[int, int]:
        """Have an exchange look at every partition; returns a mark for `is_empty`."""
        with self._lock:
            self._schedule.touch(self._policy.partitions())
            mark = self._gate.losses, self._composer.number
        self._schedule.request_exchange()
        return mark

    def is_empty(self, mark: tuple[int, int], ends: Mapping[int, int]) -> bool:
        """Whether it is certain that no record before `ends` (by partition) waits for this member.

        `mark` is that of `look_again`: exchanges since then have looked at every partition.
        """
        with self._lock:
            losses, number = mark
            looked = self._composer.number > (number if losses == self._gate.losses else 0)
            if not looked or not self._pending.is_answered or self._schedule.touched:
                return False
            stands_by = self._policy.STANDING_EVENTS is not None and self._policy.standing is Standing.STANDBY
            if stands_by or self._policy.is_between_turns:
                return True
            return self._has_read(ends) and self._lag.behind()[1]

    def _has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether this member knows of all records before `ends`, read or not."""
        lanes, fetch = self._terms.definition.lanes, self._fetch
        for lane in {*fetch.buffers, *self._policy.counted_in_lag()}:
            buffer, state = fetch.buffers.get(lane), fetch.states.get(lane)
            known = max(buffer.position if buffer else 0, state.readable_end if state else 0)
            if known < ends.get(lane // lanes, 0):
                return False
        return True
