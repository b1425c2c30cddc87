"""How many records wait for a member, and whether it is live: it has caught up with the end of the log."""

from __future__ import annotations

from collections.abc import Collection

from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import Part, State
from kafkadur.events import Event
from kafkadur_coordinators.interface import PartitionState

#: Seconds between two looks at how far a live member is behind.
_JUDGE_EVERY = 0.05


class Lag(Part):
    """The lag of one member, and the events about it. A member begins behind and may fall behind again.

    It becomes live when nothing waits, and stays live until more records wait than its reader buffers: fewer
    are usual while messages flow, so the state does not flap.
    """

    def __init__(self, state: State, policy: Policy) -> None:
        """A member that has not caught up."""
        super().__init__(state)
        self._unreceived = state.unreceived
        self._policy = policy
        self._judge_at = float("-inf")
        #: whether it has caught up and not fallen behind since
        self.live = False

    def judge_in_time(self, now: float) -> bool:
        """Whether it is time to `judge` again."""
        if now < self._judge_at:
            return False
        self._judge_at = now + _JUDGE_EVERY
        return True

    def judge(self) -> None:
        """Find out whether this member has caught up, or fallen behind."""
        # between its turns on the lanes a member stays live, or behind
        if self._gate.is_shut or self._policy.is_between_turns:
            return
        lag, at_end = self.behind()
        if self.live and lag >= self._terms.read_ahead:
            self.leave()
        elif not self.live and at_end:
            self.live = True
            self._teller.note(Event.CAUGHT_UP)

    def judge_while_idle(self) -> None:
        """Find out whether this member has caught up, and report it at once: the application waits."""
        if not self.live:
            self.judge()
            if self._teller.waits:
                self._schedule.wake()

    def leave(self) -> None:
        """The member has to catch up anew."""
        if self.live:
            self.live = False
            self._teller.note(Event.FELL_BEHIND)

    def note_standing(self, *, active: bool) -> None:
        """The member became active, or stands by."""
        if not active and self._policy.falls_behind_on_standby():
            self.leave()
        if self._policy.STANDING_EVENTS is not None:
            became_active, became_standby = self._policy.STANDING_EVENTS
            self._teller.note(became_active if active else became_standby)

    def behind(self) -> tuple[int, bool]:
        """Return how many records wait, read or not, and whether the member is at the end of every log."""
        policy, fetch = self._policy, self._fetch
        buffers = {p: buffer for p, buffer in fetch.buffers.items() if p not in policy.draining}
        unread = [buffer.unread for buffer in buffers.values()]
        # of the unread records of a partition, a lane has its share
        lag = sum(filter(None, unread)) // self._terms.definition.lanes
        lag += sum(buffer.buffered for buffer in buffers.values()) + self._queue.waiting + policy.waiting
        others = self._read_by_others(buffers)
        lag += sum(max(state.readable_end - state.next, 0) for state in others if state is not None)
        at_end = (
            lag == 0
            and self._unreceived.count() == 0
            and not any(unread)
            and None not in unread
            and None not in others
            and bool(buffers or others)
            and not self._schedule.unserved
            and not any(
                lease.fill < lease.end and not (lease.lane or lease.reserved) for lease in self._leases
            )
        )
        return lag, at_end

    def _read_by_others(self, buffers: Collection[int]) -> list[PartitionState | None]:
        """The states of partitions that count for this member and that it does not follow."""
        policy, states = self._policy, self._fetch.states
        return [
            states.get(p) for p in policy.counted_in_lag() if p not in buffers and p not in policy.draining
        ]
