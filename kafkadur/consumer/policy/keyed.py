"""Key-ordered subscriptions: each member keeps a share of the keys of every partition, in lanes of keys.

The records of a lane wait by key (`key_shares.py`), and one of a key is dispatched at a time. Lanes that
another member is to keep are drained: nothing more of them is dispatched, and they are given up when nothing
of them is in flight. The coordinator decides which member keeps a lane (`keyed.lua`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import ClassVar

from confluent_kafka import Message

from kafkadur.consumer.chunk import Chunk, Lease
from kafkadur.consumer.gaps import Gaps
from kafkadur.consumer.key_queue import Keys
from kafkadur.consumer.key_shares import KeyShares
from kafkadur.consumer.policy.policy import Policy
from kafkadur.consumer.state import State
from kafkadur.fetch.buffer import Piece
from kafkadur_coordinators.interface import ExchangeReply, Role


class KeyedPolicy(Policy):
    """The policy of a member of a key-ordered subscription."""

    BY_KEY: ClassVar[bool] = True
    RECLAIMS: ClassVar[bool] = False

    def __init__(self, state: State, gaps: Gaps) -> None:
        """A member that keeps no lane."""
        #: tokens of ranges that are read again
        self._tokens = itertools.count(-1, -1)
        super().__init__(state, gaps)

    def clear(self) -> None:
        """Forget everything: no lane is kept."""
        super().clear()
        terms = self._terms
        self._shares = KeyShares(
            lanes=terms.definition.lanes,
            monotonic=terms.monotonic,
            now_ms=terms.now_ms,
            gap=self._gaps.add,
            tokens=self._tokens,
        )

    @property
    def keys(self) -> Keys:
        """The records that wait by key."""
        return self._shares.keys

    # -- partitions

    def targets(self) -> set[int]:
        """Lanes that this member keeps."""
        return {lease.partition for lease in self._leases if lease.lane}

    def counted_in_lag(self) -> Collection[int]:
        """Lanes that this member keeps: the records of other lanes go to other members."""
        return self.targets()

    def take_role(self, before: Role) -> None:
        """Ask about every lane when the role has changed: other members may keep them now."""
        if self._fetch.role != before:
            self._schedule.touch_all()
            self._schedule.request()

    # -- records that were read

    def holds(self, partition: int) -> bool:
        """Whether a lane is drained."""
        return partition in self._shares.draining

    @property
    def draining(self) -> AbstractSet[int]:
        """Lanes that another member is to keep."""
        return self._shares.draining

    def must_wait(self, lease: Lease) -> bool:
        """Whether messages that come again were not read yet: until then their keys are not known."""
        return lease.lane and any(
            not other.lane and other.fill < other.end for other in self._leases.of_partition(lease.partition)
        )

    def fills_whole(self, _lease: Lease, /) -> bool:
        """Records wait by key: those of other leases may come between."""
        return True

    def own_records(self, lease: Lease, pieces: list[Piece]) -> list[Piece]:
        """Return the records whose keys belong to the lane of a lease that is read by itself."""
        return list(self._shares.of_lane(pieces, lease.partition)) if lease.point else pieces

    def take_by_key(self, lease: Lease, piece: Piece) -> bool:
        """Give records to their keys."""
        messages, first, offsets = piece
        where = range(first, first + len(messages)) if offsets is None else offsets
        self._shares.arrive(lease, messages, where)
        return True

    def filled(self, lease: Lease) -> None:
        """Sort in by key the records that were read for a lease."""
        self._shares.sort_in(lease.partition, self._leases)

    def add_parked(self, token: int, messages: Iterable[Message], reached: int) -> bool:
        """Take parked records that were read again; whether reading is to go on."""
        more = self._shares.take_again(token, messages, reached)
        if not more:
            self.read_parked()
        return more

    def read_parked(self) -> None:
        """Have parked records that come next of their keys read again."""
        for lane, start, end, token in self._shares.to_read_again():
            self._fetch.reading.read_range(lane, start, end, token)

    @property
    def waiting(self) -> int:
        """Records that wait by key."""
        return self._shares.waiting

    @property
    def parked(self) -> int:
        """Messages that wait for their key, and of which only the offsets are kept."""
        return self.keys.parked

    @property
    def next_due(self) -> float | None:
        """When the next record that waits by key becomes due (monotonic seconds)."""
        return self.keys.next_at

    # -- dispatch

    def uses_up(self, _chunk: Chunk, _end: int, /) -> bool:
        """Nothing more is needed soon: horizons are extended when a lane has ended."""
        return False

    def wants_handover(self) -> bool:
        """Whether a lane waits for its horizon."""
        return bool(self._ended())

    # -- exchanges

    def news(self) -> tuple[set[int], set[int]]:
        """Touch lanes that wait for their horizons."""
        return self._ended(), set()

    def _ended(self) -> set[int]:
        """Return the lanes whose records were read up to the horizon, while there is room for more."""
        if self._is_full():
            return set()
        lanes = [lease.partition for lease in self._leases if lease.lane and lease.fill >= lease.end]
        buffers = self._fetch.buffers
        return {p for p in lanes if p in buffers and buffers[p].buffered}

    def _is_full(self) -> bool:
        """Whether so many records wait for their keys that no more are asked for."""
        return self._shares.is_full(self._terms.window)

    def position(self, partition: int) -> int:
        """Return how far a lane was read: records that wait for their keys do not hold the others up."""
        lease = None if self._gate.closing else self._leases.lane_of(partition)
        if lease is None:
            return -1
        return lease.start if self._is_full() else lease.fill

    def gives_up(self, partition: int) -> bool:
        """Whether nothing of a drained lane is in flight or waits to be reported."""
        if partition not in self._shares.draining:
            return False
        chunks = [chunk for chunk in self._in_flight if chunk.lease.partition == partition]
        # in this order: a verdict may be given in between, and must not be left behind
        free = not any(chunk.in_flight() for chunk in chunks)
        return free and not any(chunk.has_verdicts() for chunk in chunks)

    # -- answers

    def take_standing(self, reply: ExchangeReply) -> bool:
        """Drain the lanes that other members are to keep."""
        self._drain(reply.asked)
        return False

    def _drain(self, lanes: Collection[int]) -> None:
        self._shares.drain(lanes, self._leases.by_token)
        if lanes:
            self._schedule.touch(lanes)
            self._schedule.request(when=any(map(self.gives_up, lanes)))

    def lane_ended(self, lane: int) -> None:
        """A lane was given up in order: forget its keys."""
        self._shares.close(lane)

    def refused(self, lease: Lease) -> None:
        """The coordinator does not know a lease: its lane begins anew."""
        self._drain({lease.partition})

    def armed(self, lease: Lease) -> None:
        """Let the records of a lease be dispatched that waited for others."""
        self.keys.arm(lease)

    def drop(self, lease: Lease) -> None:
        """Forget the records of a lease that wait by key."""
        self._shares.drop(lease)
