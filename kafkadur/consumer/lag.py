"""What waits for a member, and whether it has caught up."""

from __future__ import annotations

from collections.abc import Collection

from kafkadur.consumer.lag_monitor import Behind, LagMonitor
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import State
from kafkadur.events import Event
from kafkadur_coordinators.interface import PartitionState

#: Seconds between two looks at how far a live member is behind.
_JUDGE_EVERY = 0.05


class Lag:
    """The lag of one member, and the events that tell of it. Called with its lock held."""

    def __init__(self, state: State, *, policy: Policy) -> None:
        """A member that has not caught up."""
        self._terms = state.terms
        self._gate = state.gate
        self._schedule = state.schedule
        self._leases = state.leases
        self._fetch = state.fetch
        self._queue = state.queue
        self._policy = policy
        self._teller = state.teller
        self._monitor = LagMonitor(buffer=state.terms.read_ahead)
        self._judge_at = float("-inf")
        self._unreceived = state.unreceived

    @property
    def live(self) -> bool:
        """Whether it has caught up and not fallen behind since."""
        return self._monitor.live

    def judge_in_time(self, now: float) -> bool:
        """Whether it is time to `judge` again."""
        if now < self._judge_at:
            return False
        self._judge_at = now + _JUDGE_EVERY
        return True

    def judge(self) -> None:
        """Find out whether this member has caught up, or fallen behind."""
        if self._gate.is_shut:
            return
        if self._policy.is_between_turns:
            return  # until it holds the lanes again a member stays what it was
        self._note(self._monitor.judge(self.behind()))

    def judge_while_idle(self) -> None:
        """The application waits: catching up is told at once."""
        if not self._monitor.live:
            self.judge()
            if self._teller.waits:
                self._schedule.wake()

    def leave(self) -> None:
        """The leases were lost: it has to catch up anew."""
        self._note(self._monitor.leave())

    def note_standing(self, *, active: bool) -> None:
        """The member became active, or stands by."""
        if not active and self._policy.falls_behind_on_standby():
            self.leave()
        if self._policy.STANDING_EVENTS is not None:
            became_active, became_standby = self._policy.STANDING_EVENTS
            self._teller.note(became_active if active else became_standby)

    def _note(self, event: Event | None) -> None:
        if event is not None:
            self._teller.note(event)

    def behind(self) -> Behind:
        """What waits for this member, and whether nothing does."""
        policy, fetch = self._policy, self._fetch
        buffers = {p: buffer for p, buffer in fetch.buffers.items() if p not in policy.draining}
        unread = [buffer.unread for buffer in buffers.values()]
        # a lane has its share of what is there
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
            and not any(lease.fill < lease.end and not (lease.lane or lease.ahead) for lease in self._leases)
        )
        return Behind(lag=lag, at_end=at_end)

    def _read_by_others(self, buffers: Collection[int]) -> list[PartitionState | None]:
        """What is known of partitions that matter to this member and that it does not follow."""
        policy, states = self._policy, self._fetch.states
        return [
            states.get(p) for p in policy.counted_in_lag() if p not in buffers and p not in policy.draining
        ]
