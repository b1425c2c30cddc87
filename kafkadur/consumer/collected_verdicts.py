"""The verdicts of an exchange: verdict bytes become ranges, bitmaps and returns.

Rules over chunks, no I/O and no lock. `composer.py` decides when an exchange is made, and what else it
carries.
"""

from __future__ import annotations

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.history.notes import Notes
from kafkadur_coordinators.interface import How, Returned, Settled

#: Above so many ranges of one lease a bitmap is sent.
MOST_RANGES = 20


class CollectedVerdicts:
    """The part of one exchange about leases: offsets that are settled or given back, and leases that end."""

    def __init__(self, notes: Notes | None = None) -> None:
        """Nothing was collected. `notes`: those for the delivery history; None: there is none."""
        self._notes = notes
        self._ranges: dict[int, dict[int, list[int]]] = {}
        self._returned: dict[int, list[Returned]] = {}
        self._done: dict[int, list[int]] = {}
        #: offsets that leave their lease, by its token
        self.opened: dict[int, int] = {}
        #: acknowledgements of the application
        self.acked = 0

    def take_gaps(self, lease: Lease) -> None:
        """Settle the gaps of a lease."""
        if lease.gaps:
            self._count(lease, sum(lease.gaps[1::2]) - sum(lease.gaps[::2]))
            self._settles(lease).extend(lease.gaps)
            lease.gaps = []

    def take(self, chunk: Chunk) -> None:
        """Take the verdicts given since the last exchange, and mark them as sent."""
        if chunk.handed == chunk.low:
            return
        settled, returned, acked = chunk.send()
        if self._notes is not None:
            self._notes.collected(chunk, settled, returned)
        for a, b in settled:
            chunk.add_ranges(self._settles(chunk.lease), a, b)
        for index, how, delay in returned:
            offset = chunk.offset(index)
            self._return(chunk.lease, offset, offset + 1, how, delay)
        self.acked += acked
        self._count(chunk.lease, sum(b - a for a, b in settled) + len(returned))

    def give_back(self, lease: Lease, start: int, end: int) -> None:
        """Offsets [start, end) of a lease were never dispatched; it stays open without them."""
        self._return(lease, start, end, How.UNREAD)
        self._count(lease, end - start)

    def end(self, lease: Lease, unread_from: int | None = None) -> None:
        """A lease ends; its records from `unread_from` on were never dispatched."""
        if unread_from is not None and unread_from < lease.end:
            self._return(lease, unread_from, lease.end, How.UNREAD)
        self._done.setdefault(lease.partition, []).append(lease.token)

    def _settles(self, lease: Lease) -> list[int]:
        """The settled offsets of a lease so far: start, end, start, end, ..."""
        return self._ranges.setdefault(lease.partition, {}).setdefault(lease.token, [])

    def _count(self, lease: Lease, offsets: int) -> None:
        if offsets:
            self.opened[lease.token] = self.opened.get(lease.token, 0) + offsets

    def _return(self, lease: Lease, start: int, end: int, how: How, delay: int = 0) -> None:
        """Give back offsets, joined to those right before them if nothing else differs."""
        items = self._returned.setdefault(lease.partition, [])
        item = Returned(lease.token, start, end, int(how), delay)
        if items and items[-1]._replace(start=start, end=end) == item and items[-1].end == start:
            items[-1] = items[-1]._replace(end=end)
        else:
            items.append(item)

    @property
    def settling(self) -> int:
        """Offsets with a verdict."""
        return sum(self.opened.values())

    def settled(self, partition: int) -> list[Settled]:
        """The settled offsets of the leases of a partition."""
        return [_settled(token, pairs) for token, pairs in self._ranges.get(partition, {}).items()]

    def returned(self, partition: int) -> list[Returned]:
        """What is given back on a partition."""
        return self._returned.get(partition, [])

    def done(self, partition: int) -> list[int]:
        """Tokens of leases on a partition that end."""
        return self._done.get(partition, [])

    def ends(self, lease: Lease) -> bool:
        """Whether a lease ends with this exchange."""
        return lease.token in self._done.get(lease.partition, ())


def _settled(token: int, pairs: list[int]) -> Settled:
    """Few ranges are sent as they are, many as one bitmap."""
    if len(pairs) <= 2 * MOST_RANGES:
        return Settled(token, pairs)
    start = min(pairs[::2])
    start -= start % 8
    size = (max(pairs[1::2]) - start + 7) // 8
    bits = 0
    top = size * 8
    for a, b in zip(pairs[::2], pairs[1::2], strict=True):
        bits |= ((1 << (b - a)) - 1) << (top - (b - start))
    return Settled(token, (), start, bits.to_bytes(size, "big"))
