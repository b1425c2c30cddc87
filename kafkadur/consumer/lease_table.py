"""The leases of one member: all by token, those still to be filled, and the isolated ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from kafkadur.consumer.chunk import Lease
from kafkadur.consumer.turn import LaneGroup


class LeaseTable:
    """What one member has leased."""

    def __init__(self, *, lanes_apart: bool) -> None:
        """Nothing is leased. `lanes_apart`: the lane of each partition passes by itself."""
        self._lanes_apart = lanes_apart
        #: the incarnation under which leases are granted
        self.incarnation = 0
        self.clear()

    def clear(self) -> None:
        """Nothing is leased."""
        #: number of the attachment; 0: it was lost
        self.attachment = 0
        #: the highest token that is known
        self.have = 0
        #: leases that are held, by token
        self.by_token: dict[int, Lease] = {}
        #: tokens of leases whose record must be in flight alone
        self.isolated: set[int] = set()
        #: leases that still want records, by partition, in the order of their first offset
        self.wanting: dict[int, list[Lease]] = {}
        #: lanes that pass together, by partition if each has a turn of its own
        self.groups: defaultdict[int, LaneGroup] = defaultdict(LaneGroup)

    def __iter__(self) -> Iterator[Lease]:
        """All leases of this moment.

        Readers iterate without the lock. `list` asks for the length after it has begun to iterate, which may
        let another thread change the table in between.
        """
        return iter(tuple(self.by_token.values()))

    def __len__(self) -> int:
        """The number of leases."""
        return len(self.by_token)

    def add(self, lease: Lease) -> None:
        """A lease was granted."""
        self.by_token[lease.token] = lease
        if lease.isolated:
            self.isolated.add(lease.token)

    def want(self, lease: Lease) -> None:
        """A lease wants records."""
        wanting = self.wanting.setdefault(lease.partition, [])
        wanting.append(lease)
        wanting.sort(key=lambda item: item.start)

    def stop_wanting(self, lease: Lease) -> None:
        """A lease takes no more records of the followed partition."""
        wanting = self.wanting.get(lease.partition, [])
        if lease in wanting:
            wanting.remove(lease)

    def remove(self, token: int) -> Lease | None:
        """A lease has ended; returns it, if it was held."""
        self.isolated.discard(token)
        return self.by_token.pop(token, None)

    def of_partition(self, partition: int) -> list[Lease]:
        """The leases on a partition."""
        return [lease for lease in self if lease.partition == partition]

    def of_group(self, group: LaneGroup) -> list[Lease]:
        """The leases of lanes that pass together."""
        return [lease for lease in self if lease.group is group]

    def lane_of(self, partition: int) -> Lease | None:
        """The lease of the lane of a partition."""
        return next((lease for lease in self if lease.lane and lease.partition == partition), None)

    def group(self, partition: int) -> LaneGroup:
        """The lanes that pass together with that of a partition."""
        return self.groups[partition if self._lanes_apart else 0]
