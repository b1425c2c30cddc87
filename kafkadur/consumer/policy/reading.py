"""What a policy decides about reading: partitions to read, and in which order leases take the records.

The parts of a member that work with its readers call only this half of the contract. The other half is
`policy.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from confluent_kafka import Message

from kafkadur.consumer.chunk import Lease
from kafkadur.consumer.gaps import Gaps
from kafkadur.consumer.state import Part, State
from kafkadur.fetch.buffer import FetchBuffer, Piece
from kafkadur_coordinators.interface import PartitionState, Role


class ReadingPolicy(Part):
    """What one member reads."""

    def __init__(self, state: State, gaps: Gaps) -> None:
        """A member that holds no lease."""
        super().__init__(state)
        self._gaps = gaps
        self.clear()

    def clear(self) -> None:
        """Forget everything: the leases were lost."""
        #: partitions whose lanes the unanswered exchange hands over: their leases take no more records until
        #: the answer says whether this member keeps them
        self.handing_over: Collection[int] = ()

    # -- partitions

    def partitions(self) -> AbstractSet[int]:
        """Partitions that concern this member: all, if it may become the holder of any lane."""
        return set(range(self._schedule.partitions))

    def targets(self) -> set[int]:
        """Partitions to follow."""
        raise NotImplementedError

    def will_follow(self, _partition: int) -> bool:
        """Whether a partition of which a lease was just granted is followed afterwards."""
        return True

    def follow_from(self, begin: int, leases: Sequence[Lease]) -> int:
        """First offset to read when following starts: `begin`, or where leases that want records begin."""
        return min((lease.start for lease in leases), default=begin)

    def first_needed(self, state: PartitionState) -> int:
        """First offset of which this member may still need the record."""
        # offsets that are reserved for no member may be granted to any member
        return min(state.next, state.free_from)

    def discard_before(self, _state: PartitionState) -> int:
        """Records before this offset can be dropped from the fetch buffer."""
        return 0

    def counted_in_lag(self) -> Collection[int]:
        """Partitions whose records count as lag of this member."""
        return self.partitions()

    def take_role(self, before: Role) -> None:
        """Adjust to a new role (`FetchState.role`); it was `before` until now."""

    # -- records that were read

    def holds(self, partition: int) -> bool:
        """Whether records of a partition must stay in the fetch buffer for now."""
        return partition in self.handing_over

    @property
    def draining(self) -> AbstractSet[int]:
        """Lanes that are being given up: nothing more of them is dispatched."""
        return frozenset()

    def must_wait(self, _lease: Lease) -> bool:
        """Whether a lease must not be filled before other leases of its partition are."""
        return False

    def starves(self, lease: Lease) -> bool:
        """Whether a lease waits for records that were written and not read yet."""
        if lease.lane or lease.point or lease.fill >= lease.end:
            return False
        state = self._fetch.states.get(lease.partition)
        return state is not None and lease.end <= state.readable_end

    def came(self, lease: Lease) -> None:
        """Note that records of a reservation were read."""

    def wants_exchange(self, unreported: Mapping[int, FetchBuffer]) -> bool:
        """Whether records wait for a grant that only an exchange brings; `unreported`: buffers with news."""
        return any(partition not in self._fetch.warm for partition in unreported)

    # -- records of one key at a time

    def own_records(self, _lease: Lease, pieces: list[Piece]) -> list[Piece]:
        """Return the records of these that belong to a lease that is read by itself."""
        return pieces

    def is_urgent(self, lease: Lease, /) -> bool:
        """Whether the records of a lease come before new ones: they come again."""
        return not lease.lane

    def fills_whole(self, lease: Lease, /) -> bool:
        """Whether all ranges of a lease are filled at once; else those of other leases may come between."""
        return lease.point

    def take_by_key(self, _lease: Lease, _piece: Piece) -> bool:
        """Queue records by their key; False: they are dispatched in the order of the queue."""
        return False

    def filled(self, _lease: Lease) -> None:
        """Records were read for a lease."""

    def add_parked(self, _token: int, _messages: Iterable[Message], _reached: int) -> bool:
        """Take parked records that were read again; whether reading is to go on."""
        return False

    @property
    def waiting(self) -> int:
        """Records that were read and wait outside of the ready queue."""
        return 0

    @property
    def parked(self) -> int:
        """Messages that wait for their key, and of which only the offsets are kept."""
        return 0

    @property
    def next_due(self) -> float | None:
        """When the next record that waits outside of the ready queue becomes due (monotonic seconds)."""
        return None
