"""Records that wait for their keys: parked ones come back, in order and once, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka import Message

from kafkadur.consumer import key_queue
from kafkadur.consumer.chunk import ACKED, Chunk, Lease
from kafkadur.consumer.key_queue import Record
from kafkadur.consumer.key_shares import KeyShares
from kafkadur.consumer.turn import LaneGroup
from kafkadur_sharing.keys import SLOTS, key_slot

if TYPE_CHECKING:
    from kafkadur.consumer.key_shares import Again
    from kafkadur.consumer.member import Member

LANES, PARTITIONS, RECORDS = 3, 2, 300
KEYS = [f"k{n}".encode() for n in range(9)]


class World:
    """The lanes of one consumer, and the logs that they are read from."""

    def __init__(self, seed: int, records: int) -> None:
        self.chance = random.Random(seed)
        tokens = count(-1, -1)
        #: offsets that were settled because they hold no record any more
        self.gaps: set[tuple[int, int]] = set()
        self.shares = KeyShares(
            lanes=LANES, monotonic=lambda: 0.0, now_ms=lambda: 0, gap=self._gap, tokens=tokens
        )
        self.logs = [
            {
                offset: Message(
                    topic="t", partition=p, offset=offset, key=self.chance.choice(KEYS), value=b"x"
                )
                for offset in range(records)
            }
            for p in range(PARTITIONS)
        ]
        #: records that compaction has removed after they were read for the first time
        self.removed: set[tuple[int, int]] = set()
        self.leases: dict[int, Lease] = {}
        self.handed: list[tuple[Chunk, Record]] = []
        self.settled: set[tuple[int, int]] = set()
        #: offsets that were dispatched, by key, since its lane came the last time
        self.dispatched: dict[object, list[int]] = defaultdict(list)
        self.reading: list[Again] = []

    @property
    def lanes(self) -> range:
        """All lanes."""
        return range(LANES * PARTITIONS)

    def _gap(self, lease: Lease, start: int, end: int) -> None:
        assert lease is self.leases[lease.partition], "a gap of a lane that is gone"
        self.gaps |= {(lease.partition // LANES, offset) for offset in range(start, end)}

    def of_lane(self, lane: int) -> list[tuple[int, Message]]:
        """The records of a lane that are neither settled nor removed."""
        p, share = divmod(lane, LANES)
        return [
            (offset, message)
            for offset, message in self.logs[p].items()
            if key_slot(cast("bytes", message.key()), offset) * LANES // SLOTS == share
            and (p, offset) not in self.settled | self.removed
        ]

    def come(self, lane: int) -> None:
        """The consumer keeps a lane from now on, and reads all of it."""
        end = len(self.logs[0])
        self.leases[lane] = lease = Lease(
            token=self.chance.randrange(10**9),
            incarnation=1,
            partition=lane,
            start=0,
            end=end,
            attempts=0,
            redelivered=False,
            lane=True,
            group=LaneGroup(),
            seen=0,
        )
        lease.fill = end
        there = self.of_lane(lane)
        self.shares.arrive(lease, [message for _, message in there], [offset for offset, _ in there])
        self.shares.sort_in(lane, self.leases.values())

    def go(self, lane: int) -> None:
        """Another consumer keeps the lane."""
        lease = self.leases.pop(lane)
        lease.lost = True
        self.handed = [(chunk, record) for chunk, record in self.handed if record.lease is not lease]
        self.shares.drop(lease)
        self.shares.close(lane)
        for key in [key for key in self.dispatched if self.shares._is_of(cast("key_queue.Key", key), lane)]:  # noqa: SLF001 - the lane of a key
            del self.dispatched[key]

    def dispatch(self) -> None:
        """Take what may be dispatched."""
        for record in self.shares.keys.take(self.chance.randrange(1, 5)):
            place = (record.key[0], record.offset)
            assert record.lease is self.leases[record.lease.partition]
            assert record.message is self.logs[place[0]][place[1]]
            assert place not in self.settled
            assert all(other.key != record.key for _, other in self.handed), "one of a key at a time"
            before = self.dispatched[record.key]
            assert not before or before[-1] < record.offset
            before.append(record.offset)
            chunk = Chunk(cast("Member", None), record.lease, [record.message], record.offset, None, size=1)
            self.shares.keys.hand_out([record], chunk)
            self.handed.append((chunk, record))

    def settle(self) -> None:
        """Acknowledge something."""
        if self.handed:
            chunk, record = self.handed.pop(self.chance.randrange(len(self.handed)))
            chunk.verdicts[0] = ACKED
            self.settled.add((record.key[0], record.offset))
        self.shares.keys.look()

    def read(self) -> None:
        """Have the range fetcher read a part of what is to be read again."""
        self.reading += self.shares.to_read_again()
        if not self.reading:
            return
        index = self.chance.randrange(len(self.reading))
        lane, start, end, token = self.reading[index]
        reached = min(end, start + self.chance.randrange(1, 60))
        log = self.logs[lane // LANES]
        found = [
            log[offset] for offset in range(start, reached) if (lane // LANES, offset) not in self.removed
        ]
        more = self.shares.take_again(token, found, reached)
        assert more == (reached < end)
        if more:
            self.reading[index] = (lane, reached, end, token)
        else:
            del self.reading[index]

    def compact(self) -> None:
        """Kafka removes a record that is not in flight."""
        p, offset = self.chance.randrange(PARTITIONS), self.chance.randrange(RECORDS)
        if (p, offset) not in self.settled and offset not in {record.offset for _, record in self.handed}:
            self.removed.add((p, offset))

    def move(self) -> None:
        """A lane goes to another consumer, or comes back."""
        lane = self.chance.choice(self.lanes)
        if lane in self.leases:
            self.go(lane)
        else:
            self.come(lane)

    def act(self) -> None:
        """Do one of all that may happen."""
        (act,) = self.chance.choices((self.settle, self.read, self.compact, self.move), (60, 30, 7, 2))
        act()

    def check(self) -> None:
        """Compare the counters with the records that they count."""
        keys, behind = self.shares.keys, self.shares.keys._behind.values()  # noqa: SLF001 - compared with counts
        assert keys.behind == sum(map(len, behind))
        before = (keys._waiting, keys._loaded, keys._bytes, keys._parked)  # noqa: SLF001 - as above
        parked = {p: dict(there) for p, there in keys._parked.items() if there}  # noqa: SLF001 - as above
        keys._count()  # noqa: SLF001 - as above
        assert before[:3] == (keys._waiting, keys._loaded, keys._bytes)  # noqa: SLF001 - as above
        assert parked == keys._parked  # noqa: SLF001 - as above


@pytest.mark.parametrize("seed", range(40))
def test_each_record_comes_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(key_queue, "LOADED", chance.choice((1, 3, 10)))
    monkeypatch.setattr(key_queue, "MOST_LOADED", chance.choice((0, 20, 60, 1_000)))
    monkeypatch.setattr(key_queue, "_FEW", chance.choice((1, 10, 100)))
    monkeypatch.setattr("kafkadur.consumer.key_shares._READ_SPAN", chance.choice((20, 100, 1_000)))
    world = World(seed, records=RECORDS)
    for lane in world.lanes:
        world.come(lane)
    for step in range(1_500):
        world.dispatch()
        world.act()
        if step % 50 == 0:
            world.check()
    for lane in set(world.lanes) - set(world.leases):
        world.come(lane)
    for _ in range(20_000):
        world.dispatch()
        world.settle()
        world.read()
    world.check()
    assert world.shares.waiting == 0
    assert world.shares.keys.parked == 0
    everything = {(p, offset) for p in range(PARTITIONS) for offset in range(RECORDS)}
    assert everything - world.settled - world.gaps <= world.removed
    assert world.gaps <= world.removed, "only records that are gone are settled as gaps"
