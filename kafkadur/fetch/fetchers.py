"""The readers of one member, as the member calls them: of the ends of partitions, and of ranges."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kafkadur.fetch.buffer import NOWHERE, Mark
from kafkadur.fetch.common_tail import CommonTail, Place
from kafkadur.fetch.floor_mirror import FloorMirror
from kafkadur.fetch.group_floors import GroupFloors
from kafkadur.fetch.kafka_thread import Receiver
from kafkadur.fetch.range_fetcher import RangeFetcher
from kafkadur.fetch.tail_fetcher import Followed, TailFetcher
from kafkadur.runtime.stages import Probe
from kafkadur_sharing.errors import KafkadurError


class Fetchers:
    """The tail fetcher and the range fetcher of a member.

    The tail fetcher is its own, or one that it shares with other members of the connection. The member's
    locks may be held when its lock is taken, and its lock when that of the common tail fetcher is taken.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        kafka: Mapping[str, Any],
        topic: str,
        topic_id: str,
        group: str,
        floor_metadata: str,
        common: CommonTail,
        floors: GroupFloors,
        probe: Probe,
    ) -> None:
        """The parameters are those of the two fetchers; `receiver` gets the records.

        `common` is the tail fetcher that members of the connection share for this topic, and `floors` mirrors
        the floors of those that do.
        """
        self.receiver = receiver
        self._group, self._metadata = group, floor_metadata
        self._common, self._floors = common, floors
        self._make_tail = partial(
            TailFetcher,
            member=receiver,
            kafka=kafka,
            topic=topic,
            topic_id=topic_id,
            group=group,
            floor_metadata=floor_metadata,
            probe=probe,
        )
        self._lock = threading.Lock()
        #: its own tail fetcher; None: it shares one
        self._tail: TailFetcher | None = None
        #: partitions that the common one follows, with the number of the member's start of following
        self._together: dict[int, int] = {}
        #: how far their logs are known, where the common one does not know it
        self._marks: dict[int, Mark] = {}
        self._stopped = False
        #: tail fetchers that end
        self._ending: list[TailFetcher] = []
        #: of the floors while it shares one
        self._mirror = FloorMirror(
            receiver,
            lambda changed: floors.mirror(group, topic, changed, floor_metadata),
        )
        self._ranges = RangeFetcher(member=receiver, kafka=kafka, topic=topic, topic_id=topic_id, group=group)
        self.read_range = self._ranges.read_range
        if not common.enter(self):
            self._tail = self._new_tail()

    def _new_tail(self) -> TailFetcher:
        return self._make_tail(park=self._park)

    # -- as the member calls it

    @property
    def compiled(self) -> bool:
        """Whether the compiled client reads for this member alone."""
        tail = self._tail
        return tail is not None and tail.compiled

    def start(self) -> None:
        """Start reading; raises `ResourceLimit` if the system allows no further thread."""
        if self._tail is None:
            self._common.start()
        else:
            self._start_alone()

    def _start_alone(self) -> None:
        """Start its own tail fetcher, once: the thread of the common one may do it at the same time."""
        with self._lock:
            tail = self._tail
            if tail is not None and not tail.is_started and not self._stopped:
                tail.start()

    def stop(self) -> None:
        """Mirror the last floors and stop; returns at once."""
        self._ranges.stop()
        self.mirror_floors()
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            if self._tail is not None:
                self._tail.stop()
                self._ending.append(self._tail)
        if (common := self._common.exit(self)) is not None:
            self._ending.append(common)

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the end of all threads; returns whether they ended."""
        deadline = time.monotonic() + timeout
        ended = [each.join(deadline - time.monotonic()) for each in (self._ranges, *self._ending)]
        return self._floors.flush(self._group, deadline - time.monotonic()) and all(ended)

    def follow(self, partition: int, offset: int, number: int, mark: Mark = NOWHERE) -> None:
        """Read a partition from `offset` on; the log must agree with `mark`."""
        with self._lock:
            self._leave(partition)
            if self._tail is None and self._common.join(self, partition, offset, number, mark):
                self._together[partition] = number
            else:
                self._alone().follow(partition, offset, number, mark)

    def compare(self, partition: int, mark: Mark) -> None:
        """The log of a partition that is followed must agree with `mark`, too."""
        with self._lock:
            if self._tail is not None:
                self._tail.compare(partition, mark)
            elif partition in self._together and not self._common.agrees(partition, mark):
                self._marks[partition] = max(mark, self._marks.get(partition, NOWHERE))
                self._common.run(lambda: self._common.eject(self))

    def unfollow(self, partition: int) -> None:
        """Stop reading a partition."""
        with self._lock:
            self._leave(partition)
            if self._tail is not None:
                self._tail.unfollow(partition)

    def find_end(self, partition: int, incarnation: int) -> None:
        """Ask Kafka where the log of a partition ends (`found_end`)."""
        with self._lock:
            if self._tail is not None:
                self._tail.find_end(partition, incarnation)
            else:
                self._common.find_end(self, partition, incarnation)

    def note_room(self) -> None:
        """The member may have room for more records: read on if it had none."""
        if (tail := self._tail) is not None:
            tail.note_room()
        else:
            self._common.note_room(self)

    def read_inline(self, timeout: float, is_over: Callable[[], bool]) -> bool:
        """Read once in the calling thread; False: another thread reads."""
        tail = self._tail
        return tail is not None and tail.read_inline(timeout, is_over)

    def interrupt(self) -> None:
        """End the waiting of a thread in `read_inline`. Any thread."""
        if (tail := self._tail) is not None:
            tail.interrupt()

    def _leave(self, partition: int) -> None:
        self._marks.pop(partition, None)
        if self._together.pop(partition, None) is not None:
            self._common.leave(self, partition)

    def _alone(self) -> TailFetcher:
        """Return its own tail fetcher, which may be started only without the member's locks."""
        if self._tail is None:
            self._tail = self._new_tail()
            self._common.run(lambda: self._common.eject(self))
        return self._tail

    # -- from one tail fetcher to the other

    def _park(self, followed: Followed) -> bool:
        """Share a tail fetcher from now on; in the thread of its own one, which ends then."""
        with self._lock:
            tail = self._tail
            if self._stopped or tail is None or tail.has_commands:
                return False
            if not self._common.move_in(self, followed):
                return False
            self._together = {partition: number for partition, (number, _, _) in followed.items()}
            self._tail = None
            self._ending.append(tail)
            return True

    def take_over(self, places: Mapping[int, Place], ends: Mapping[int, int]) -> None:
        """Read alone from now on; without a lock."""
        with self._lock:
            if self._stopped:
                return
            if self._tail is None:
                self._tail = self._new_tail()
            tail = self._tail
            for partition, (number, offset, mark) in places.items():
                if self._together.get(partition) == number:  # it is still to be followed
                    tail.follow(partition, offset, number, max(mark, self._marks.get(partition, NOWHERE)))
            for partition, incarnation in ends.items():
                tail.find_end(partition, incarnation)
            self._together.clear()
            self._marks.clear()
            self._ending = [each for each in self._ending if not each.join(0)]
        try:
            self._start_alone()
        except KafkadurError as error:
            self.receiver.fail(error)

    def mirror_floors(self) -> None:
        """Mirror floors that have changed, if it shares a tail fetcher: its own one mirrors them itself."""
        if self._tail is None and self._metadata and not self._stopped:
            self._mirror.mirror()
