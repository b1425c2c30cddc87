"""Which partitions a member follows, and from where; leases that lose their reader are read as ranges."""

from __future__ import annotations

from kafkadur.consumer.lanes import Lanes
from kafkadur.consumer.router import Router
from kafkadur.consumer.state import State
from kafkadur.fetch.buffer import FetchBuffer, Mark
from kafkadur_coordinators.interface import ExchangeReply, Standing

#: Up to so many members that take turns read on while others have theirs: each uses an eighth of it.
_READ_ALONG = 8


class Follower:
    """Tells the readers of one member what to follow. Called with the member's lock held."""

    def __init__(
        self,
        state: State,
        *,
        lanes: Lanes,
        router: Router,
    ) -> None:
        """Nothing is followed."""
        self._terms = state.terms
        self._schedule = state.schedule
        self._leases = state.leases
        self._fetch = state.fetch
        self._lanes = lanes
        self._router = router

    def targets(self) -> set[int]:
        """The partitions that are to be followed."""
        fetch, terms = self._fetch, self._terms
        if not terms.lane:
            return (fetch.home - fetch.worth.by_range) | fetch.watches
        held = {lease.partition for lease in self._leases if lease.lane}
        # a member that gets its turn again soon reads on: going back would cost more than the turn
        if 1 < fetch.role.members <= _READ_ALONG and terms.turns:
            return set(range(terms.partitions))
        if self._lanes.takes_turns():  # a lane of which nothing is there has no lease: its holder watches
            groups = self._leases.groups
            kept = {p for p, group in groups.items() if group.standing is not Standing.STANDBY}
            held |= kept if terms.own_turns or not kept else set(range(terms.partitions))
        return held

    def follow(self) -> None:
        """Tell the readers which partitions to follow from where."""
        fetch, wanting = self._fetch, self._leases.wanting
        if fetch.reading is None:
            return
        target = self.targets()
        # a lease may also wait on a partition that was to be followed when it came, and is not any more
        for partition in (fetch.buffers.keys() | wanting.keys()) - target:
            for lease in [x for x in wanting.get(partition, []) if x.fill < x.end and not x.point]:
                self._router.read_range(lease)
            fetch.unfollow(partition)
        for partition in target - set(fetch.buffers):
            state = fetch.states.get(partition)
            if state is None:
                self._schedule.touch((partition,))
                self._schedule.request()
                continue
            starts = [lease.start for lease in wanting.get(partition, [])]
            # what is reserved may not be written yet
            begin = min(self._router.kept_from(state), state.avail)
            start = min(starts) if self._terms.lane and starts else min([begin, *starts])
            number = next(fetch.numbers)
            fetch.buffers[partition] = FetchBuffer(start, number)
            fetch.reading.follow(partition, start, number, Mark(state.avail, state.epoch))

    def judge(self, reply: ExchangeReply) -> None:
        """Judge anew which partitions are worth following, from what was granted (shared)."""
        worth = self._fetch.worth
        for grant in reply.grants:
            if grant.kind in {"range", "ahead"}:
                worth.granted(grant.partition, grant.records)
        for state in reply.partitions:
            worth.advanced(state.partition, state.next)
        worth.watch(self._fetch.watches)
