"""From the readers to the leases: each record that was read goes to the lease that has its offset."""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise

from confluent_kafka import Message

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.key_shares import KeyShares
from kafkadur.consumer.rejections import Rejections
from kafkadur.consumer.state import State
from kafkadur.events import Event
from kafkadur.fetch.buffer import FetchBuffer, Piece
from kafkadur.runtime.dead_letters import Cause
from kafkadur_coordinators.interface import PartitionState

#: Part of the byte window above which a chunk is cut, so that a mean record size says enough.
BYTES_STEP = 8

_log = logging.getLogger("kafkadur")


class Router:
    """Fills the leases of one member. Called with its lock held."""

    def __init__(
        self,
        state: State,
        *,
        rejections: Rejections,
        chunk: Callable[[Lease, list[Message], int, list[int] | None, int], Chunk],
    ) -> None:
        """`chunk` makes a chunk: lease, records, first offset, offsets if there are gaps, size in bytes."""
        self._terms = state.terms
        self._schedule = state.schedule
        self._leases = state.leases
        self._fetch = state.fetch
        self._queue = state.queue
        self._rejections = rejections
        self._selection = state.selection
        self._teller = state.teller
        self._chunk = chunk
        #: tokens of what a key-ordered subscription reads again
        self._again = itertools.count(-1, -1)
        self.clear()

    def clear(self) -> None:
        """Nothing was read."""
        terms = self._terms
        #: lanes of keys (key-ordered)
        self.shares = KeyShares(
            lanes=terms.definition.lanes, monotonic=terms.monotonic, gap=self.gap, tokens=self._again
        )
        #: partitions on which something came that was reserved, since the last exchange
        self.came: set[int] = set()
        #: partitions whose lanes the unanswered exchange offers: what they hold must not grow until the
        #: answer says whether they go on
        self.offering: Collection[int] = ()

    # -- followed partitions

    def route(self, partition: int) -> bool:
        """Give what was read of a partition to the leases that want it; whether a block became ready."""
        if partition in self.shares.draining or partition in self.offering:
            return False
        buffer, wanting = self._fetch.buffers[partition], self._leases.wanting.get(partition, [])
        news = False
        waiting = [lease for lease in wanting if not lease.point]
        while waiting:
            # piece by piece, in the order of offsets: what was reserved for one lease may lie on both sides
            # of what another one has
            lease = min(waiting, key=lambda lease: lease.fill)
            if self._terms.keyed and lease.lane and self._waits_for_exceptions(lease):
                break
            if lease.fill < buffer.kept_from:  # what is not here any more is no gap
                self.read_range(lease)
                waiting.remove(lease)
                continue
            pieces = len(lease.stretch)
            news |= self._fill(lease, buffer)
            if lease.fill < lease.end:
                if len(lease.stretch) == pieces:  # what comes later is not there either
                    break
                continue
            waiting.remove(lease)
            if not lease.lane:
                wanting.remove(lease)
        else:
            state = self._fetch.states.get(partition)
            if state is not None and (self._terms.turns or not self._terms.lane):
                buffer.drop_before(min(self.kept_from(state), buffer.position))
        return news

    def kept_from(self, state: PartitionState) -> int:
        """Records before this offset are of no use to this member, whoever gets the next lease."""
        # a lane's horizon can be taken back; what is reserved for no member may become any member's
        return state.base if self._terms.turns else min(state.next, state.free_from)

    def _waits_for_exceptions(self, lane: Lease) -> bool:
        """Whether a lane must not go on before what was given back on it is read, and its keys are known."""
        return any(
            not lease.lane and lease.fill < lease.end for lease in self._leases.of_partition(lane.partition)
        )

    def starves(self, lease: Lease) -> bool:
        """Whether a lease waits for records that are there and were not read yet."""
        if (lease.lane and not self._terms.turns) or lease.point or lease.fill >= lease.end:
            return False
        state = self._fetch.states.get(lease.partition)
        return state is not None and (lease.fill < state.avail if lease.lane else lease.end <= state.avail)

    # -- ranges

    def read_range(self, lease: Lease) -> None:
        """Have a lease read by itself; a reservation goes back instead."""
        if lease.ahead:
            self.withdraw(lease)
            return
        lease.point = True
        self._leases.wanting[lease.partition].remove(lease)
        self._fetch.ranges[lease.token] = FetchBuffer(lease.fill)
        self._fetch.ranges_read += 1
        if self._fetch.reading is not None:
            self._fetch.reading.read_range(lease.partition, lease.fill, lease.end, lease.token)

    def fill_range(self, lease: Lease, buffer: FetchBuffer) -> tuple[bool, bool]:
        """Give a lease what was read for it; whether a block became ready, and whether more is to be read."""
        news = self._fill(lease, buffer)
        more = lease.fill < lease.end
        if not more:
            del self._fetch.ranges[lease.token]
        return news, more

    def read_parked(self) -> None:
        """Have what was parked, and comes next of its key, read again."""
        for lane, start, end, token in self.shares.to_read_again():
            if self._fetch.reading is not None:
                self._fetch.reading.read_range(lane, start, end, token)

    def withdraw(self, lease: Lease) -> None:
        """What is left of a reservation goes back: this member does not see what comes."""
        lease.withdrawn = True
        self._leases.stop_wanting(lease)
        self._schedule.touch((lease.partition,))
        self._schedule.request()

    # -- filling

    def _fill(self, lease: Lease, buffer: FetchBuffer) -> bool:
        """Give a lease what was read for it; returns whether a block became ready."""
        keyed = self._terms.keyed
        if keyed and lease.partition in self.shares.draining:
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
                if not (lease.point or keyed):
                    break  # another lease may come before the next piece
        if keyed:
            self.shares.sort_in(lease.partition, self._leases)
        return news

    def _fill_piece(self, lease: Lease, buffer: FetchBuffer, start: int, end: int) -> bool:
        pieces, reached = buffer.take(start, end)
        lease.fill = start
        if lease.ahead and reached > start:
            self.came.add(lease.partition)
        used_up = self._terms.is_used_up(lease.attempts)
        until = self._fetch.expiry.rescued_before(lease.partition)
        self._fetch.records_used += sum(len(piece[0]) for piece in pieces)
        if lease.point and self._terms.keyed:
            pieces = list(self.shares.of_lane(pieces, lease.partition))
        taken = self._selection.filtered(pieces)
        urgent = self._terms.lane and not lease.lane
        given_up: list[Chunk] = []
        for piece in taken if start >= until else _cut(taken, until):
            if used_up or piece[1] < until:
                given_up.extend(self._take_piece(lease, piece))
            elif self._terms.keyed:
                self._take_keyed(lease, piece)
            else:
                self._queue.put(self._take_piece(lease, piece), urgent=urgent)
            self._fill_to_end_of(lease, piece)
        if urgent:
            self._queue.sort_urgent()
        self.gap(lease, lease.fill, reached)
        lease.fill = reached
        for chunk in given_up:
            if used_up:
                self._rejections.give_all_up(chunk, Cause.ATTEMPTS, "its holders died")
            else:
                self._rejections.give_all_up(chunk, Cause.EXPIRING, "retention is about to remove it")
        return bool(pieces) and not given_up

    def _take_piece(self, lease: Lease, piece: Piece) -> list[Chunk]:
        """Make chunks of records, which wait from now on."""
        messages, first, offsets = piece
        self._queue.count_in(len(messages))
        return list(self._chunks(lease, messages, first, offsets, self._begin(lease, piece)))

    def _take_keyed(self, lease: Lease, piece: Piece) -> None:
        """Give records to their keys."""
        messages, first, offsets = piece
        self._begin(lease, piece)
        where = range(first, first + len(messages)) if offsets is None else offsets
        self.shares.arrive(lease, messages, where)

    def _begin(self, lease: Lease, piece: Piece) -> int:
        """Note the gap before records, and their size; returns that, bytes."""
        messages, first, _ = piece
        self.gap(lease, lease.fill, first)
        size = sum(map(len, messages))
        self._queue.note_size(size, len(messages))
        return size

    def _fill_to_end_of(self, lease: Lease, piece: Piece) -> None:
        messages, first, offsets = piece
        if offsets is None:
            lease.fill = first + len(messages)
            return
        for before, after in pairwise(offsets):
            self.gap(lease, before + 1, after)
        lease.fill = offsets[-1] + 1

    def _chunks(
        self, lease: Lease, messages: list[Message], first: int, offsets: list[int] | None, size: int
    ) -> Iterator[Chunk]:
        """One chunk, or several where a mean record size would not keep the byte window."""
        if size * BYTES_STEP <= self._terms.window_bytes or len(messages) == 1:
            yield self._chunk(lease, messages, first, offsets, size)
            return
        half = len(messages) // 2
        left, right = messages[:half], messages[half:]
        size_left = sum(map(len, left))
        yield from self._chunks(lease, left, first, offsets and offsets[:half], size_left)
        second = first + half if offsets is None else offsets[half]
        yield from self._chunks(lease, right, second, offsets and offsets[half:], size - size_left)

    # -- offsets without a record

    def gap(self, lease: Lease, start: int, end: int) -> None:
        """Offsets [start, end) of a lease hold no record, or none that is taken: they are settled."""
        if end > start:
            lease.gaps += (start, end)
            self._schedule.touch((lease.partition,))
            lost = self._fetch.expiry.lose(lease.partition, start, end)
            if lost > start:
                self._note_expired(lease.partition, start, lost)

    def _note_expired(self, partition: int, start: int, end: int) -> None:
        """Unsettled offsets that Kafka does not keep any more: the loss that this layer cannot prevent."""
        self._teller.note(Event.EXPIRED)
        _log.error(
            "Kafka removed unsettled messages. State: %d offsets, %d to %d of %s[%d]. Owner: subscription "
            "%s. Remedy: keep messages longer than consumers are away or behind, or have them rescued "
            "(Redelivery(rescue=True)).",
            end - start,
            start,
            end - 1,
            self._terms.definition.topic,
            partition // self._terms.definition.lanes,
            self._terms.display,
        )


def _cut(pieces: Iterable[Piece], at: int) -> Iterable[Piece]:
    """The same records, none of the pieces reaching over offset `at`."""
    for messages, first, offsets in pieces:
        index = at - first if offsets is None else bisect_left(offsets, at)
        if 0 < index < len(messages):
            yield messages[:index], first, None if offsets is None else offsets[:index]
            second = at if offsets is None else offsets[index]
            yield messages[index:], second, None if offsets is None else offsets[index:]
        else:
            yield messages, first, offsets
