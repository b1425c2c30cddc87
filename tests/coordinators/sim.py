"""Real members on real scripts, with a log that the test writes and readers that the test moves; no threads."""

from __future__ import annotations

from confluent_kafka import Message

from kafkadur.aio.subscription import _one_by_one
from kafkadur.delivery import Delivery
from kafkadur.member import Member
from kafkadur_sharing.definition import Definition, SubscriptionType
from tests.coordinators.world import World


class Node:
    """One member: machine, session, reader."""

    def __init__(
        self, sim: Sim, name: str, *, window: int = 100, budget: int = 100, **definition: object
    ) -> None:
        self.sim, self.name = sim, name
        self.followed: dict[int, tuple[int, int]] = {}
        self.ranges: list[tuple[int, int, int, int]] = []
        self.exchanges = 0
        self.stopped = False
        self.hands: list[Delivery] = []
        self.gen = iter(())
        self.member = Member(
            display=name,
            definition=Definition(topic="t", **{"type": SubscriptionType.SHARED, **definition}),
            window=window,
            window_bytes=1_000_000,
            budget=budget,
            session=10.0,
            monotonic=sim.now,
            alive=lambda: True,
            poke=lambda: None,
            nudge=lambda _: False,
            bury=lambda _: None,
            takes=None,
            partitions=sim.world.partitions,
        )
        self.member.reading = self
        who = sim.world.attach(name)
        self.session = who.session
        self.channel = who.channel
        self.member.attached(who.attached, sim.now())

    # readers
    def follow(self, partition: int, offset: int, number: int) -> None:
        self.followed[partition] = (offset, number)

    def unfollow(self, partition: int) -> None:
        self.followed.pop(partition, None)

    def read_range(self, partition: int, start: int, end: int, token: int) -> None:
        self.ranges.append((partition, start, end, token))

    def read(self) -> None:
        if self.stopped:
            return
        for p, (at, number) in list(self.followed.items()):
            if self.member.buffered >= self.member.read_ahead:
                return
            end = self.sim.ends[p]
            if at < end:
                self.followed[p] = (end, number)
                self.member.end_at(p, end, number)
                self.member.add_records(p, [self.sim.message(p, o) for o in range(at, end)], number)
            self.member.reach(p, end, number)
        for p, start, end, token in [*self.ranges]:
            end = min(end, self.sim.ends[p])
            if start < end:
                self.ranges = [x for x in self.ranges if x[3] != token]
                self.member.add_range_records(token, [self.sim.message(p, o) for o in range(start, end)], end)

    def exchange(self) -> bool:
        if self.member.due(self.sim.now()) > self.sim.now():
            return False
        exchange = self.member.build(self.sim.now())
        if exchange is None:
            return False
        self.exchanges += 1
        self.member.apply(self.session.exchange(exchange), self.sim.now())
        self.sim.deliver_wakes()
        return True

    # application
    def take(self) -> int | None:
        """What `receive` does without waiting: (partition, offset) as partition * 1000 + offset."""
        while True:
            delivery = next(self.gen, None)
            if delivery is None:
                block = self.member.next_run(100) if self.member.window == 1 or self.member.passes else None
                if block is None and not (self.member.window == 1 or self.member.passes):
                    block = self.member.next_block(1)
                    if block is None:
                        return None
                    delivery = Delivery(block[0], block[1], block[0].messages[block[1]])
                    self.hands.append(delivery)
                    return delivery.partition * 1000 + delivery.offset
                if block is None:
                    return None
                self.gen = _one_by_one(Delivery, *block)
                continue
            self.hands.append(delivery)
            return delivery.partition * 1000 + delivery.offset

    def ack(self, index: int = 0) -> None:
        self.hands.pop(index).ack_nowait()
        self.member.poke()


class Sim:
    def __init__(self, world: World) -> None:
        self.world = world
        self.ends = dict.fromkeys(range(world.partitions), 0)
        self.nodes: list[Node] = []
        self.begin = world.clock.now

    def now(self) -> float:
        return (self.world.clock.now - self.begin) / 1000 + 1000.0

    def message(self, p: int, o: int) -> Message:
        return Message(topic="t", partition=p, offset=o, value=b"x")

    def node(self, name: str, **kw: object) -> Node:
        node = Node(self, name, **kw)
        self.nodes.append(node)
        return node

    def write(self, p: int = 0, count: int = 1) -> None:
        self.ends[p] += count

    def deliver_wakes(self) -> None:
        for channel in self.world.ears.heard():
            for node in self.nodes:
                if node.channel == channel and not node.stopped:
                    node.member.wake()

    def leave(self, node: Node) -> None:
        node.member.begin_close()
        node.member.release_all()
        exchange = node.member.farewell()
        assert exchange is not None
        node.member.apply(node.session.exchange(exchange), self.now())
        node.session.detach(node.member.held_partitions())
        node.stopped = True
        self.nodes.remove(node)
        self.deliver_wakes()

    def settle(self, most: int = 60) -> int:
        """Run everybody until nothing is due; returns how many exchanges that took."""
        count = 0
        for _ in range(most):
            busy = False
            for node in self.nodes:
                node.read()
                while node.exchange():
                    busy = True
                    count += 1
                    node.read()
                    break
            if not busy:
                return count
        return -count

    def run(self, seconds: float, step_ms: int = 50) -> int:
        count = 0
        for _ in range(int(seconds * 1000 / step_ms)):
            count += abs(self.settle(5))
            self.world.clock.advance(step_ms)
        return count
