"""Which partitions a member follows, and from where; leases that lose their reader are read as ranges."""

from __future__ import annotations

from kafkadur.consumer.policy.reading import ReadingPolicy
from kafkadur.consumer.router import Router
from kafkadur.consumer.state import State
from kafkadur.fetch.buffer import FetchBuffer, Mark


class Follower:
    """Tells the readers of one member what to follow. Called with the member's lock held."""

    def __init__(
        self,
        state: State,
        *,
        policy: ReadingPolicy,
        router: Router,
    ) -> None:
        """Nothing is followed."""
        self._schedule = state.schedule
        self._leases = state.leases
        self._fetch = state.fetch
        self._policy = policy
        self._router = router

    def follow(self) -> None:
        """Tell the readers which partitions to follow from where."""
        fetch, wanting = self._fetch, self._leases.wanting
        if fetch.reading is None:
            return
        target = self._policy.targets()
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
            # what is reserved may not be written yet
            begin = min(self._policy.first_needed(state), state.readable_end)
            start = self._policy.follow_from(begin, wanting.get(partition, []))
            number = next(fetch.numbers)
            fetch.buffers[partition] = FetchBuffer(start, number)
            fetch.reading.follow(partition, start, number, Mark(state.readable_end, state.epoch))
