"""Translates between readers, which know partitions, and a member of a key-ordered subscription: its lanes.

A lane is a share of the keys of one partition. To the member and the coordinator it is a partition, with the
number `partition * lanes + share`. The readers read a partition once for all lanes of it that a member keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from confluent_kafka import Message

from kafkadur.consumer.fetch_state import Reading
from kafkadur.consumer.intake import Intake
from kafkadur.fetch.buffer import NOWHERE, Mark, Records
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.keys import SLOTS, key_slot


class KeyRouter:
    """Stands for the member to its readers, and for the readers to the member."""

    def __init__(self, member: Intake, *, lanes: int, readers: Callable[[KeyRouter], Reading]) -> None:
        """`lanes` of each partition; `readers` makes the readers, which bring records to this router."""
        self._member = member
        self._lanes = lanes
        self._readers = readers(self)
        self._lock = threading.Lock()
        #: partition -> lane -> number of the start of following it
        self._followed: dict[int, dict[int, int]] = {}
        #: partition -> (number of the start of following it, offset up to which it was read)
        self._read: dict[int, tuple[int, int]] = {}
        self._number = 0

    # -- calls of the member

    def start(self) -> None:
        """Start reading."""
        self._readers.start()

    def stop(self) -> None:
        """Stop reading; returns at once."""
        self._readers.stop()

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the end of the readers' threads; returns whether they ended."""
        return self._readers.join(timeout)

    @property
    def compiled(self) -> bool:
        """Whether the compiled client reads."""
        return self._readers.compiled

    def read_inline(self, timeout: float, is_over: Callable[[], bool]) -> bool:
        """Read once in the calling thread."""
        return self._readers.read_inline(timeout, is_over)

    def interrupt(self) -> None:
        """End the waiting of a thread in `read_inline`."""
        self._readers.interrupt()

    def follow(self, partition: int, offset: int, number: int, mark: Mark = NOWHERE) -> None:
        """Read a lane from `offset` on."""
        own, lane = self._place(partition), partition
        with self._lock:
            self._followed.setdefault(own, {})[lane] = number
            reads = own in self._read and self._read[own][1] <= offset
            if not reads:
                self._number += 1
                self._read[own] = (self._number, offset)
        if reads:
            self._readers.compare(own, mark)
        else:
            self._readers.follow(own, offset, self._number, mark)

    def compare(self, partition: int, mark: Mark) -> None:
        """The records of a lane must agree with `mark`."""
        self._readers.compare(self._place(partition), mark)

    def unfollow(self, partition: int) -> None:
        """Stop reading a lane."""
        own = self._place(partition)
        with self._lock:
            lanes = self._followed.get(own, {})
            lanes.pop(partition, None)
            if lanes or own not in self._read:
                return
            del self._read[own], self._followed[own]
        self._readers.unfollow(own)

    def read_range(self, partition: int, start: int, end: int, token: int) -> None:
        """Read [start, end) of a lane for one lease."""
        self._readers.read_range(self._place(partition), start, end, token)

    def find_end(self, partition: int, incarnation: int) -> None:
        """Ask where the partition of a lane ends."""
        self._readers.find_end(self._place(partition), incarnation)

    def note_room(self) -> None:
        """The member may have room for more records."""
        self._readers.note_room()

    def _place(self, lane: int) -> int:
        return lane // self._lanes

    # -- calls of the readers

    @property
    def display(self) -> str:
        """Name of the subscription for people."""
        return self._member.display

    @property
    def at_once(self) -> int:
        """Records that may be read in one call."""
        return self._member.at_once

    @property
    def has_enough(self) -> bool:
        """Whether the reader is to pause."""
        return self._member.has_enough

    def fail(self, error: KafkadurError) -> None:
        """Reading cannot go on."""
        self._member.fail(error)

    def add_records(self, partition: int, messages: Records, number: int) -> None:
        """Records of a partition (not empty, in order): each lane gets its own."""
        end = (messages[-1].offset() or 0) + 1
        lanes = self._reached(partition, end, number)
        by_lane: dict[int, list[Message]] = {lane: [] for lane in lanes}
        first = partition * self._lanes
        for message in messages:
            lane = first + key_slot(message.key(), message.offset() or 0) * self._lanes // SLOTS
            if lane in by_lane:
                by_lane[lane].append(message)
        for lane, records in by_lane.items():
            if records:
                self._member.add_records(lane, records, lanes[lane])
            self._member.pass_by(lane, end, lanes[lane])

    def pass_by(self, partition: int, offset: int, number: int) -> None:
        """A partition has no records before `offset` but those that were added."""
        for lane, its_number in self._reached(partition, offset, number).items():
            self._member.pass_by(lane, offset, its_number)

    def reach(self, partition: int, offset: int, number: int) -> None:
        """The reader came to the end of a partition, which is `offset`."""
        for lane, its_number in self._reached(partition, offset, number).items():
            self._member.reach(lane, offset, its_number)

    def lead(self, partition: int, epoch: int, number: int) -> None:
        """Records of a partition that come from now on were written under this leader epoch."""
        for lane, its_number in self._reached(partition, 0, number).items():
            self._member.lead(lane, epoch, its_number)

    def grown(self, partitions: int) -> None:
        """The topic has so many partitions."""
        self._member.grown(partitions)

    def cut(self, partition: int, offset: int) -> None:
        """Kafka lost the records of a partition at or beyond `offset`."""
        for lane in self._of(partition):
            self._member.cut(lane, offset)

    def found_end(self, partition: int, offset: int, incarnation: int) -> None:
        """The log of a partition ended at `offset` when Kafka was asked under this incarnation."""
        for lane in self._of(partition):
            self._member.found_end(lane, offset, incarnation)

    def end_at(self, partition: int, offset: int, number: int) -> None:
        """The log of a partition ends at `offset` now."""
        for lane, its_number in self._reached(partition, 0, number).items():
            self._member.end_at(lane, offset, its_number)

    def expire(self, partition: int, offset: int) -> None:
        """Kafka has removed the records of a partition before `offset`."""
        for lane in self._of(partition):
            self._member.expire(lane, offset)

    def expiring(self, until: Mapping[int, int]) -> None:
        """Messages before these offsets of partitions expire soon."""
        self._member.expiring(
            {lane: offset for partition, offset in until.items() for lane in self._of(partition)}
        )

    def _reached(self, partition: int, offset: int, number: int) -> Mapping[int, int]:
        """Note how far a partition was read; returns its followed lanes."""
        with self._lock:
            current = self._read.get(partition)
            if current is None or current[0] != number:
                return {}
            self._read[partition] = (number, max(current[1], offset))
            return dict(self._followed[partition])

    def add_range_records(self, token: int, messages: Records, reached: int) -> bool:
        """Records that were read for one lease; those of other keys are sorted out by the member."""
        return self._member.add_range_records(token, messages, reached)

    def floors(self) -> dict[int, int]:
        """Lowest unsettled offset of each partition of which all lanes are known.

        The floors of lanes that other members keep are old, and therefore never too high.
        """
        by_lane = self._member.floors()
        return {
            partition: min(floors)
            for partition in {self._place(lane) for lane in by_lane}
            if len(floors := [by_lane[lane] for lane in self._of(partition) if lane in by_lane])
            == self._lanes
        }

    def _of(self, partition: int) -> range:
        return range(partition * self._lanes, (partition + 1) * self._lanes)
