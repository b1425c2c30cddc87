"""Members as an application has them, on the real scripts: each with readers and hands, all on one clock.

The members (`kafkadur/consumer/member.py`) and scripts are the real ones. The log is a number a partition,
readers read when they are told to, and there is no thread: nothing happens between two calls of a test. What
must hold is said in `test_members_together.py` and in `lives.py`, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Message

from kafkadur.aio.delivery import Delivery
from kafkadur.consumer.chunk import Chunk, one_by_one
from kafkadur.consumer.member import Callbacks, Member
from kafkadur.consumer.terms import Terms
from kafkadur.fetch.buffer import NOWHERE, Mark
from kafkadur.fetch.filtering import Takes
from kafkadur.message.headers import JmsFields, encode_fields
from kafkadur.message.times import when_sent
from kafkadur_coordinators.redis.replies import pushed
from kafkadur_sharing.definition import Definition, SubscriptionType
from tests.integration.coordinators.world import SESSION_MS, World

SHARED = Definition(type=SubscriptionType.SHARED, topic="t")
SERIAL = Definition(type=SubscriptionType.SERIAL, topic="t")
OWN_TURNS = Definition(type=SubscriptionType.SERIAL, topic="t", scope="partition")
OWN_TURNS_STRICT = Definition(type=SubscriptionType.SERIAL, topic="t", scope="partition", strict_order=True)
EXCLUSIVE = Definition(type=SubscriptionType.EXCLUSIVE, topic="t")
STRICT = Definition(type=SubscriptionType.EXCLUSIVE, topic="t", strict_order=True)

#: Places of the first messages of two partitions are so far apart.
PARTITION = 1_000


def place_of(delivery: Delivery[Any, Any]) -> int:
    """Partition and offset in one number; of partition 0 it is the offset."""
    return delivery.partition * PARTITION + delivery.offset


class Peer:
    """One member with its session, its readers, and what its application has in hands."""

    def __init__(self, together: Together, name: str, *, window: int) -> None:
        self.name = name
        self.exchanges = 0
        #: partition -> next offset to read, number that the reader was given
        self.followed: dict[int, tuple[int, int]] = {}
        self.hands: list[Delivery[Any, Any]] = []
        self.compiled = False
        #: most records that it reads of a partition at once; None: all
        self.reads_at_once: int | None = None
        #: whether its range fetcher gets anything from Kafka
        self.reads_ranges = True
        self._together = together
        #: partition, start, end, token
        self._ranges: list[tuple[int, int, int, int]] = []
        #: partition, incarnation
        self._asked: list[tuple[int, int]] = []
        #: what was taken in advance, as a subscription does
        self._taken: Iterator[Delivery[Any, Any]] = iter(())
        terms = Terms(
            display=name,
            definition=together.definition,
            window=window,
            window_bytes=1_000_000,
            budget=100,
            session=SESSION_MS / 1000,
            monotonic=together.now,
            wall=lambda: together.world.clock.now / 1000,
        )
        self.member = Member(
            terms,
            Callbacks(
                readers=lambda _: self,
                heard_since=lambda: 0.0,
                request_exchange=lambda: None,
                exchange_inline=lambda _: False,
                write_dead_letter=lambda _: None,
                on_ready=lambda: None,
                on_closing=lambda: None,
            ),
            takes=together.takes,
        )
        attached = together.world.attach(name)
        self.session, self.channel = attached.session, attached.channel
        self.member.attached(attached.attached, together.now())

    # -- what the member asks of its readers

    def start(self) -> None:
        raise AssertionError("no thread here")

    def stop(self) -> None:
        raise AssertionError("no thread here")

    def join(self, timeout: float) -> bool:
        raise AssertionError(f"no thread here to wait for, {timeout} s")

    def follow(self, partition: int, offset: int, number: int, mark: Mark = NOWHERE) -> None:
        assert mark.offset >= 0
        self.followed[partition] = (offset, number)

    def compare(self, partition: int, mark: Mark) -> None:
        raise AssertionError(f"no lanes of keys here: {partition} {mark}")

    def unfollow(self, partition: int) -> None:
        self.followed.pop(partition, None)

    def read_inline(self, timeout: float, is_over: Callable[[], bool]) -> bool:
        """Nobody waits for Kafka."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Nobody waits for Kafka."""

    def read_range(self, partition: int, start: int, end: int, token: int) -> None:
        self._ranges.append((partition, start, end, token))

    def find_end(self, partition: int, incarnation: int) -> None:
        self._asked.append((partition, incarnation))

    def note_room(self) -> None:
        """It is read when the process of the member has its turn (`read`)."""

    # -- what the process of a member does

    def read(self) -> None:
        """Read all that is there, or `reads_at_once` of it, as far as the member has room for it."""
        while self._asked:
            partition, incarnation = self._asked.pop()
            self.member.intake.found_end(partition, self._together.ends[partition], incarnation)
        for partition, (at, number) in list(self.followed.items()):
            if self.member.intake.has_enough:
                return
            end = self._together.ends[partition]
            until = end if self.reads_at_once is None else min(end, at + self.reads_at_once)
            if at < end:
                self.member.intake.end_at(partition, end, number)
            if at < until:
                self.followed[partition] = (until, number)
                messages = self._together.messages(partition, at, until)
                self.member.intake.add_records(partition, messages, number)
            if until == end:
                self.member.intake.reach(partition, end, number)
        self._read_ranges()

    def _read_ranges(self) -> None:
        for asked in [*self._ranges] if self.reads_ranges else ():
            partition, start, last, token = asked
            end = min(last, self._together.ends[partition])
            if start < end:
                self._ranges.remove(asked)
                messages = self._together.messages(partition, start, end)
                self.member.intake.add_range_records(token, messages, end)

    def exchange(self) -> bool:
        """Make an exchange if one is due; returns whether one was made."""
        now = self._together.now()
        exchange = self.member.build(now) if self.member.due(now) <= now else None
        if exchange is None:
            return False
        self.exchanges += 1
        self.member.apply(self.session.exchange(exchange), self._together.now())
        self._together.deliver_wakes()
        return True

    # -- what the application does

    def take(self) -> int | None:
        """What `receive` does without waiting: the place of the message, None if there is none."""
        delivery = self._next()
        if delivery is None:
            return None
        self.hands.append(delivery)
        return place_of(delivery)

    def _next(self) -> Delivery[Any, Any] | None:
        if self.member.window == 1 or self.member.passes:
            return self._next_of_run()
        block = self.member.next_block(1)
        if block is None:
            return None
        chunk, index, _ = block
        return self._timely(chunk, index, chunk.messages[index]) or self._next()

    def _next_of_run(self) -> Delivery[Any, Any] | None:
        while (delivery := next(self._taken, None)) is None:
            run = self.member.next_run(100)
            if run is None:
                return None
            self._taken = filter(None, one_by_one(self._timely, *run))
        return delivery

    def _timely(self, chunk: Chunk, index: int, message: Message) -> Delivery[Any, Any] | None:
        return Delivery(chunk, index, message) if self.member.is_timely(chunk, index) else None

    def take_all(self) -> list[int]:
        """Take until nothing is there; the places."""
        return list(iter(self.take, None))

    def ack(self, index: int = 0) -> None:
        self.hands.pop(index).ack_nowait()
        self.member.request_exchange()

    def ack_all(self) -> None:
        while self.hands:
            self.ack()

    def roll_back(self, index: int = 0, delay: float | None = None) -> None:
        self.hands.pop(index).rollback_nowait(delay)
        self.member.request_exchange()

    def release(self, index: int = 0) -> None:
        self.hands.pop(index).release_nowait()
        self.member.request_exchange()


class Together:
    """All members of a subscription, the log, and the clock."""

    def __init__(self, world: World, definition: Definition = SHARED) -> None:
        self.world = world
        self.definition = definition
        #: which records match the selector; None: all
        self.takes: Takes | None = None
        #: partition -> end of the log
        self.ends = dict.fromkeys(range(world.partitions), 0)
        #: headers of messages, by partition and offset
        self.headers: dict[tuple[int, int], list[tuple[str, bytes | None]]] = {}
        self.peers: list[Peer] = []
        #: whether wakes bring what was granted
        self.pushes = True
        self._begin = world.clock.now

    def now(self) -> float:
        """The members' clock, in seconds."""
        return 1_000.0 + (self.world.clock.now - self._begin) / 1000

    def write(
        self, partition: int = 0, count: int = 1, *, delay: float | None = None, ttl: float | None = None
    ) -> None:
        """Append messages to the log; `delay` and `ttl` in seconds."""
        times = when_sent(lambda: self.world.clock.now / 1000, delay=delay, not_before=None, time_to_live=ttl)
        fields = JmsFields(delivery_time=times.delivery_time, expiration=times.expiration)
        for offset in range(self.ends[partition], self.ends[partition] + count):
            self.headers[partition, offset] = encode_fields(fields)
        self.ends[partition] += count

    def messages(self, partition: int, start: int, end: int) -> list[Message]:
        """Return the messages at the offsets [start, end) of a partition."""
        return [
            Message(
                topic="t",
                partition=partition,
                offset=offset,
                value=b"x",
                headers=self.headers.get((partition, offset)),  # type: ignore[arg-type]  # the stub wants str
            )
            for offset in range(start, end)
        ]

    def join(self, name: str, *, window: int = 100) -> Peer:
        peer = Peer(self, name, window=window)
        self.peers.append(peer)
        return peer

    def leave(self, peer: Peer) -> None:
        """Close a member with all that is in its hands."""
        peer.hands.clear()
        peer.member.begin_close()
        peer.member.release_all()
        exchange = peer.member.farewell()
        assert exchange is not None
        peer.member.apply(peer.session.exchange(exchange), self.now())
        peer.session.detach(peer.member.held_partitions())
        self.peers.remove(peer)
        self.deliver_wakes()

    def kill(self, peer: Peer) -> None:
        """End a member without a word; others hear of it when its session has timed out."""
        self.peers.remove(peer)
        self.world.ears.forget(peer.channel)

    def pause(self, *, paused: bool) -> None:
        """Pause the subscription, or resume it."""
        self.world.run("pause", int(paused))
        self.deliver_wakes()

    def deliver_wakes(self) -> None:
        for channel, message in self.world.ears.messages():
            for peer in self.peers:
                if peer.channel == channel:
                    peer.member.wake(pushed(message) if self.pushes else None)

    def settle(self, rounds: int = 60) -> int | None:
        """Run all members until nothing is due; returns how many exchanges that took.

        None if something is still due after so many rounds.
        """
        before = self.exchanges()
        for _ in range(rounds):
            busy = [self._round(peer) for peer in self.peers]
            if not any(busy):
                return self.exchanges() - before
        return None

    def _round(self, peer: Peer) -> bool:
        peer.read()
        exchanged = peer.exchange()
        if exchanged:
            peer.read()
        return exchanged

    def run(self, seconds: float, step_ms: int = 50) -> None:
        """Let time go by."""
        for _ in range(int(seconds * 1000 / step_ms)):
            self.settle(5)
            self.world.clock.advance(step_ms)

    def first_taken(self, within: float, *peers: Peer) -> int | None:
        """Let at most so many seconds go by until one of `peers` can take a message; its place."""
        until = self.now() + within
        while self.now() < until:
            for peer in peers:
                if (place := peer.take()) is not None:
                    return place
            self.run(0.1)
        return None

    def exchanges(self) -> int:
        """How many exchanges those who are there have made."""
        return sum(peer.exchanges for peer in self.peers)
