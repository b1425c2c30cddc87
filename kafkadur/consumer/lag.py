"""What waits for a member, and whether it has caught up."""

from __future__ import annotations

from collections.abc import Callable, Collection

from kafkadur.consumer.following import Follower
from kafkadur.consumer.lag_monitor import Behind, LagMonitor
from kafkadur.consumer.lanes import Lanes
from kafkadur.consumer.router import Router
from kafkadur.consumer.state import State
from kafkadur.events import Event
from kafkadur_coordinators.interface import PartitionState, Standing

#: Seconds between two looks at how far a live member is behind.
_JUDGE_EVERY = 0.05


class Lag:
    """The lag of one member, and the events that tell of it. Called with its lock held."""

    def __init__(
        self,
        state: State,
        *,
        lanes: Lanes,
        router: Router,
        follower: Follower,
    ) -> None:
        """A member that has not caught up."""
        self._terms = state.terms
        self._gate = state.gate
        self._schedule = state.schedule
        self._leases = state.leases
        self._fetch = state.fetch
        self._queue = state.queue
        self._lanes = lanes
        self._router = router
        self._follower = follower
        self._teller = state.teller
        self._monitor = LagMonitor(buffer=state.terms.read_ahead)
        self._judge_at = float("-inf")
        #: records that are handed out, and that the application has not received yet
        self.unreceived: Callable[[], int] = lambda: 0

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
        if self._terms.lane and not self._terms.keyed and self._lanes.standing is Standing.STANDBY:
            return  # between its turns a member stays what it was
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
        if not active and not self._terms.turns:
            self.leave()
        if self._terms.tells_standing:
            self._note(Event.BECAME_ACTIVE if active else Event.BECAME_STANDBY)

    def _note(self, event: Event | None) -> None:
        if event is not None:
            self._teller.note(event)

    def behind(self) -> Behind:
        """What waits for this member, and whether nothing does."""
        shares, fetch = self._router.shares, self._fetch
        buffers = {p: buffer for p, buffer in fetch.buffers.items() if p not in shares.draining}
        unread = [buffer.unread for buffer in buffers.values()]
        # a lane has its share of what is there
        lag = sum(filter(None, unread)) // self._terms.definition.lanes
        lag += sum(buffer.buffered for buffer in buffers.values()) + self._queue.waiting
        if self._terms.keyed:
            lag += shares.waiting
        others = self._read_by_others(buffers)
        lag += sum(max(state.avail - state.next, 0) for state in others if state is not None)
        at_end = (
            lag == 0
            and self.unreceived() == 0
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
        matter: Collection[int] = self._fetch.home | self._fetch.watches
        if self._terms.lane:
            matter = self._follower.targets() if self._terms.keyed else range(self._terms.partitions)
        draining = self._router.shares.draining
        return [self._fetch.states.get(p) for p in matter if p not in buffers and p not in draining]
