"""What a member knows of its partitions: the records read, readable ends, and which ends it reports."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

from kafkadur.fetch.buffer import NOWHERE, FetchBuffer, Mark
from kafkadur.fetch.following import Following
from kafkadur.fetch.retention import Expiry
from kafkadur_coordinators.interface import PartitionState, Role

#: Records that are dispatched between two looks whether the reader has room.
_LOOK_FOR_ROOM = 64


class Reading(Protocol):
    """The readers of a member, as it calls them.

    `start`, `join`, `read_inline` and `interrupt` are called without the member's lock, all others with it:
    they must not block, and not call back.
    """

    @property
    def compiled(self) -> bool:
        """Whether the compiled client reads."""
        ...

    def start(self) -> None:
        """Begin to read; calls made before are obeyed then."""

    def stop(self) -> None:
        """Mirror the last floors and stop; returns at once."""

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the end of the readers' threads; returns whether they ended."""
        ...

    def read_inline(self, timeout: float, is_over: Callable[[], bool]) -> bool:
        """Read once in the calling thread, which waits for records; at most `timeout` seconds.

        `is_over` says whether it waits no more; after a change of that, `interrupt` is called. False: this is
        not possible now, and the thread of the reader reads on.
        """
        ...

    def interrupt(self) -> None:
        """End the waiting of a thread in `read_inline`. Any thread; must not block."""

    def follow(self, partition: int, offset: int, number: int, mark: Mark = NOWHERE) -> None:
        """Read a partition from `offset` on; the log must agree with `mark`."""

    def compare(self, partition: int, mark: Mark) -> None:
        """The log of a partition that is followed must agree with `mark`, too."""

    def unfollow(self, partition: int) -> None:
        """Stop reading a partition."""

    def read_range(self, partition: int, start: int, end: int, token: int) -> None:
        """Read [start, end) for one lease."""

    def find_end(self, partition: int, incarnation: int) -> None:
        """Ask Kafka where the log of a partition ends (`found_end`)."""

    def note_room(self) -> None:
        """The member may have room for more records: read on if it had none."""


class FetchState:
    """The partitions of one member."""

    #: set in the constructor of the member: the readers need its intake, which needs this object
    reading: Reading

    def __init__(self, window: int) -> None:
        """`window`: of the member, records."""
        #: which partitions are worth reading as a whole (shared)
        self.worth = Following(window=window)
        #: each start of following a partition has a number: records that were read for an earlier one are
        #: dropped
        self.numbers = itertools.count(1)
        #: records read from Kafka, those of them that leases took, and ranges that the range fetcher read
        self.records_read = self.records_used = self.ranges_read = 0
        self.clear()

    def clear(self) -> None:
        """Nothing is followed, and nothing is known."""
        #: buffers of followed partitions, and of leases (by token) that the range fetcher reads
        self.buffers: dict[int, FetchBuffer] = {}
        self.ranges: dict[int, FetchBuffer] = {}
        self.role = Role(rank=0, members=1, neighbour="", partitions=0)
        #: the preferred partitions, and those of which this member is the end reporter
        self.preferred: set[int] = set()
        self.watches: set[int] = set()
        self.states: dict[int, PartitionState] = {}
        #: lanes whose readable end was reported since they were leased: when the process dies from then on,
        #: every delivery counts as an attempt
        self.warm: set[int] = set()
        self.expiry = Expiry()
        #: partition -> offset from which on Kafka lost it
        self.cuts: dict[int, int] = {}
        #: partitions whose log's end Kafka is being asked for, and ends that are to be reported
        self.end_unknown: set[int] = set()
        self.log_ends: dict[int, int] = {}
        #: records that were dispatched since the last look whether the reader has room
        self._since_room = 0

    def note_dispatched(self, records: int) -> None:
        """So many records were dispatched; have the reader read on if there is room.

        Looking may cost more than dispatching a record, so it is done now and then, or when there was none.
        """
        self._since_room += records
        if not records or self._since_room >= _LOOK_FOR_ROOM:
            self._since_room = 0
            self.reading.note_room()

    def of(self, partition: int, number: int) -> FetchBuffer | None:
        """The buffer of a followed partition; None for a start of following that is over."""
        buffer = self.buffers.get(partition)
        return buffer if buffer is not None and buffer.number == number else None

    def unfollow(self, partition: int) -> None:
        """Stop reading a partition."""
        if self.buffers.pop(partition, None) is not None:
            self.reading.unfollow(partition)

    @property
    def buffered(self) -> int:
        """Records read and not given to a lease."""
        return sum(buffer.buffered for buffer in self.buffers.values())

    def has_backlog(self, partition: int) -> bool:
        """Whether a partition may have readable offsets that were granted to no member."""
        state = self.states.get(partition)
        return state is None or state.next < state.readable_end
