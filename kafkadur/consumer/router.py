"""From the readers to the leases: which partitions are followed, and which lease gets a record."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise

from kafkadur.consumer.chunk import Chunk, Lease, Owner
from kafkadur.consumer.gaps import Gaps
from kafkadur.consumer.policy.reading import ReadingPolicy
from kafkadur.consumer.reservations import withdraw
from kafkadur.consumer.state import Part, State
from kafkadur.consumer.verdicts import Verdicts
from kafkadur.fetch.buffer import FetchBuffer, Mark, Piece, Records
from kafkadur.fetch.native import size_of, times
from kafkadur.runtime.dead_letters import Cause

_log = logging.getLogger("kafkadur")

#: A chunk is cut above this part of the byte window, so that its mean record size is exact enough.
BYTES_STEP = 8


class Router(Part):
    """Fills the leases of one member."""

    def __init__(
        self, state: State, *, policy: ReadingPolicy, gaps: Gaps, verdicts: Verdicts, owner: Owner
    ) -> None:
        """`owner`: the member that chunks belong to."""
        super().__init__(state)
        self._policy = policy
        self._gaps = gaps
        self._verdicts = verdicts
        self._owner = owner

    # -- which partitions are followed

    def follow(self) -> None:
        """Tell the readers which partitions to follow, and which leases to read by range instead."""
        fetch, wanting = self._fetch, self._leases.wanting
        target = self._policy.targets()
        # the partition of a lease may have been a target when it was granted, and not be one any more
        for partition in (fetch.buffers.keys() | wanting.keys()) - target:
            for lease in [x for x in wanting.get(partition, []) if x.fill < x.end and not x.point]:
                self.read_range(lease)
            fetch.unfollow(partition)
        for partition in target - set(fetch.buffers):
            state = fetch.states.get(partition)
            if state is None:
                self._schedule.touch((partition,))
                self._schedule.request()
                continue
            # reserved offsets may not be written yet
            begin = min(self._policy.first_needed(state), state.readable_end)
            start = self._policy.follow_from(begin, wanting.get(partition, []))
            number = next(fetch.numbers)
            fetch.buffers[partition] = FetchBuffer(start, number)
            fetch.reading.follow(partition, start, number, Mark(state.readable_end, state.epoch))

    # -- followed partitions

    def route(self, partition: int) -> bool:
        """Give records of a partition to the leases that want them; whether a block became ready."""
        if self._policy.holds(partition):
            return False
        buffer, wanting = self._fetch.buffers[partition], self._leases.wanting.get(partition, [])
        news = False
        waiting = [lease for lease in wanting if not lease.point]
        while waiting:
            # piece by piece, in the order of offsets: the offsets of one reservation may lie on both sides of
            # those of another lease
            lease = min(waiting, key=lambda lease: lease.fill)
            if self._policy.must_wait(lease):
                break
            if lease.fill < buffer.kept_from:  # a record that was dropped here is no gap
                self.read_range(lease)
                waiting.remove(lease)
                continue
            pieces = len(lease.stretch)
            news |= self._fill(lease, buffer)
            if lease.fill < lease.end:
                if len(lease.stretch) == pieces:  # later records are not there either
                    break
                continue
            waiting.remove(lease)
            if not lease.lane:
                wanting.remove(lease)
        else:
            state = self._fetch.states.get(partition)
            if state is not None:
                buffer.drop_before(min(self._policy.discard_before(state), buffer.position))
        return news

    # -- ranges

    def read_range(self, lease: Lease) -> None:
        """Have the range fetcher read the records of a lease; a reservation is given back instead."""
        if lease.reserved:
            withdraw(lease, self._leases, self._schedule)
            return
        lease.point = True
        self._leases.wanting[lease.partition].remove(lease)
        self._fetch.ranges[lease.token] = FetchBuffer(lease.fill)
        self._fetch.ranges_read += 1
        self._fetch.reading.read_range(lease.partition, lease.fill, lease.end, lease.token)

    def fill_range(self, lease: Lease, buffer: FetchBuffer) -> tuple[bool, bool]:
        """As `_fill`, for a lease that is read by range; returns also whether more is to be read."""
        news = self._fill(lease, buffer)
        more = lease.fill < lease.end
        if not more:
            del self._fetch.ranges[lease.token]
        return news, more

    # -- filling

    def _fill(self, lease: Lease, buffer: FetchBuffer) -> bool:
        """Give a lease the records that were read for it; returns whether a block became ready."""
        if lease.partition in self._policy.draining:
            return False
        news = False
        while lease.fill < lease.end:
            start, end = lease.stretch[0] if lease.stretch else (lease.fill, lease.end)
            news |= self._fill_piece(lease, buffer, max(start, lease.fill), end)
            if lease.fill < end:
                break
            if lease.stretch:
                lease.stretch.popleft()
                lease.fill = lease.stretch[0][0] if lease.stretch else lease.end
                if not self._policy.fills_whole(lease):
                    break
        self._policy.filled(lease)
        return news

    def _fill_piece(self, lease: Lease, buffer: FetchBuffer, start: int, end: int) -> bool:
        pieces, reached = buffer.take(start, end)
        lease.fill = start
        if lease.reserved and reached > start:
            self._policy.came(lease)
        used_up = self._terms.is_used_up(lease.attempts)
        until = self._fetch.expiry.rescued_before(lease.partition)
        self._fetch.records_used += sum(len(piece[0]) for piece in pieces)
        pieces = self._policy.own_records(lease, pieces)
        taken = self._selection.filtered(pieces)
        urgent = self._policy.is_urgent(lease)
        given_up: list[Chunk] = []
        for piece in taken if start >= until else _cut(taken, until):
            size = self._begin(lease, piece)
            if used_up or piece[1] < until:
                given_up.extend(self._take_piece(lease, piece, size))
            elif not self._policy.take_by_key(lease, piece):
                self._queue.put(self._take_piece(lease, piece, size), urgent=urgent)
            self._fill_to_end_of(lease, piece)
        if urgent:
            self._queue.sort_urgent()
        self._gaps.add(lease, lease.fill, reached)
        lease.fill = reached
        for chunk in given_up:
            if used_up:
                self._tell_given_up(lease, chunk)
                self._verdicts.give_all_up(chunk, Cause.ATTEMPTS, "its holders died")
            else:
                self._verdicts.give_all_up(chunk, Cause.EXPIRING, "retention is about to remove it")
        return bool(pieces) and not given_up

    def _tell_given_up(self, lease: Lease, chunk: Chunk) -> None:
        """Say in the log that messages become dead letters without a handler's failure."""
        for index in range(len(chunk.messages)):
            _log.warning(
                "Subscription %s: %s[%d]@%d becomes a dead letter after %d attempts: the processes that "
                "received it died.",
                self._terms.display,
                self._terms.definition.topic,
                lease.partition // self._terms.definition.lanes,
                chunk.offset(index),
                lease.attempts,
            )

    def _take_piece(self, lease: Lease, piece: Piece, size: int) -> list[Chunk]:
        """Make chunks of records of `size` bytes; the records wait from now on."""
        messages, first, offsets = piece
        self._queue.records += len(messages)
        return list(self._chunks(lease, messages, first, offsets, size))

    def _begin(self, lease: Lease, piece: Piece) -> int:
        """Note the gap before the records of a piece, and their size; returns the size, bytes."""
        messages, first, _ = piece
        self._gaps.add(lease, lease.fill, first)
        size = size_of(messages)
        self._queue.note_size(size, len(messages))
        return size

    def _fill_to_end_of(self, lease: Lease, piece: Piece) -> None:
        messages, first, offsets = piece
        if offsets is None:
            lease.fill = first + len(messages)
            return
        for before, after in pairwise(offsets):
            self._gaps.add(lease, before + 1, after)
        lease.fill = offsets[-1] + 1

    def _chunks(
        self, lease: Lease, messages: Records, first: int, offsets: list[int] | None, size: int
    ) -> Iterator[Chunk]:
        """Yield one chunk, or several where their mean record size would exceed the byte window."""
        if size * BYTES_STEP <= self._terms.window_bytes or len(messages) == 1:
            yield Chunk(self._owner, lease, messages, first, offsets, size=size, times=times(messages))
            return
        half = len(messages) // 2
        left, right = messages[:half], messages[half:]
        size_left = size_of(left)
        yield from self._chunks(lease, left, first, offsets and offsets[:half], size_left)
        second = first + half if offsets is None else offsets[half]
        yield from self._chunks(lease, right, second, offsets and offsets[half:], size - size_left)


def _cut(pieces: Iterable[Piece], at: int) -> Iterable[Piece]:
    """Yield the same records, in pieces that lie on one side of offset `at`."""
    for messages, first, offsets in pieces:
        index = at - first if offsets is None else bisect_left(offsets, at)
        if 0 < index < len(messages):
            yield messages[:index], first, None if offsets is None else offsets[:index]
            second = at if offsets is None else offsets[index]
            yield messages[index:], second, None if offsets is None else offsets[index:]
        else:
            yield messages, first, offsets
