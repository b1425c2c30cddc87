"""Drives a soak: starts and restarts its processes, breaks things a little, and records what they say."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import redis
from confluent_kafka import Consumer, TopicPartition

from benchmarks.children import BenchmarkError, Child, start
from benchmarks.soak.measures import Point
from benchmarks.soak.working import HANDED, TYPES, Place, Report, Warned, member, producer, rss, visitor
from kafkadur.stack import Stack
from kafkadur.stack.server import Server
from kafkadur_sharing.ranges import Ranges, count, joined

#: Seconds between two looks at everything.
_LOOK_S = 1.0
#: Seconds that a server stands still.
_FREEZE_S = 1.0
#: Seconds after a disturbance in which delays and warnings are expected.
SETTLING_S = 20.0
#: Seconds that all messages may take to be handled at the end.
_DRAIN_S = 120.0
#: Of the topic.
PARTITIONS = 6


class Disturbance(NamedTuple):
    """Something that was done to the servers or the processes."""

    #: CLOCK_MONOTONIC, seconds
    at: float
    kind: str


@dataclass
class Record:
    """What was seen in a soak. Times are CLOCK_MONOTONIC, seconds."""

    #: by process: resident memory in MB; and of the servers
    memory: defaultdict[str, list[Point]] = field(default_factory=lambda: defaultdict(list))
    #: messages a second that were published, and that members handled
    rates: defaultdict[str, list[Point]] = field(default_factory=lambda: defaultdict(list))
    #: age of the first message of each batch, ms
    latencies: list[Point] = field(default_factory=list[Point])
    warnings: list[Warned] = field(default_factory=list[Warned])
    disturbances: list[Disturbance] = field(default_factory=list[Disturbance])
    published: int = 0
    #: offsets that members were handed, by type and partition, and how many in all, repeated ones included
    handed: defaultdict[tuple[int, int], Ranges] = field(default_factory=lambda: defaultdict(list))
    deliveries: int = 0
    #: offsets of each type that no member was handed
    lost: dict[str, int] = field(default_factory=dict[str, int])
    began: float = 0.0
    ended: float = 0.0

    @property
    def repeated(self) -> int:
        """Deliveries of messages that had been delivered before."""
        return self.deliveries - sum(map(count, self.handed.values()))

    def slowest(self) -> int:
        """Return how many different messages the subscription that is farthest behind has handled."""
        return min(
            sum(count(ranges) for (number, _), ranges in self.handed.items() if number == kind)
            for kind in range(len(TYPES))
        )


class Driver:
    """The processes of one soak. Used by one thread; `close` ends them."""

    def __init__(self, stack: Stack, place: Place, folder: Path) -> None:
        """Start the processes: nothing is published yet."""
        self._stack = stack
        self._place = place
        self._folder = folder
        valkey = stack.valkey
        assert valkey is not None  # noqa: S101 - the stack was started with it
        self._valkey = valkey
        self._redis: Any = redis.Redis.from_url(stack.admin_redis)
        self.record = Record(began=time.monotonic())
        self._children: dict[str, Child] = {}
        #: how much of each file was read
        self._read: dict[Path, int] = {}
        for name in ("stays", "restarts 1", "restarts 2"):
            self._start(name, member)
        self._start("visitor", visitor)
        self._children["producer"] = start("producer", producer, place)

    def _start(self, name: str, target: Callable[..., None]) -> None:
        file = self._folder / f"{len(self._read)}.handed"
        file.touch()
        self._read[file] = 0
        self._children[name] = start(name, target, self._place, file)

    # -- what is done

    def publish(self, rate: float) -> None:
        """Publish so many messages a second from now on."""
        self._children["producer"].pipe.send(rate)

    def run(self, seconds: float, *, every: float | None = None) -> Iterator[float]:
        """Let it run; yields the seconds left. Disturb it so often (seconds); None: never."""
        until = time.monotonic() + seconds
        actions = cycle(self._actions())
        next_at = time.monotonic() + every if every is not None else until
        while (now := time.monotonic()) < until:
            if now >= next_at and every is not None and until - now > SETTLING_S:
                next_at = now + every
                kind, act = next(actions)
                self.record.disturbances.append(Disturbance(now, kind))
                act()
            self._look()
            yield until - now

    def _actions(self) -> list[tuple[str, Callable[[], None]]]:
        """What happens in turns."""
        return [
            ("a member restarts", lambda: self._restart("restarts 1")),
            ("Redis stands still", lambda: self._freeze(self._valkey)),
            ("a member is killed", lambda: self._restart("restarts 2", kill=True)),
            ("connections to Redis are cut", self._cut),
            ("a member restarts", lambda: self._restart("restarts 2")),
            ("Kafka stands still", lambda: self._freeze(self._stack.brokers[0])),
            ("a member is killed", lambda: self._restart("restarts 1", kill=True)),
        ]

    def _restart(self, name: str, *, kill: bool = False) -> None:
        child = self._children.pop(name)
        if kill:
            child.process.kill()
            child.stop()
        else:
            self._end(name, child)
        self._start(name, member)

    @staticmethod
    def _freeze(server: Server) -> None:
        server.freeze()
        time.sleep(_FREEZE_S)  # that is the disturbance
        server.thaw()

    def _cut(self) -> None:
        for kind in ("normal", "pubsub"):
            self._redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    def _end(self, name: str, child: Child) -> None:
        """End a process, and take in what it says last."""
        child.pipe.send(None)
        while (said := child.expect()) != "ended":
            self._take_in(name, said)
        child.stop()

    # -- what is seen

    def _look(self) -> None:
        until = time.monotonic() + _LOOK_S
        for name, child in self._children.items():
            while child.pipe.poll(0):
                self._take_in(name, child.expect())
            if not child.process.is_alive():
                child.check()
        self._look_at_servers()
        self._read_files()
        time.sleep(max(until - time.monotonic(), 0))  # the rhythm of the looks

    def _take_in(self, name: str, said: object) -> None:
        if not isinstance(said, Report):
            message = f"{name} said {said!r}"
            raise BenchmarkError(message)
        kept = name.partition(" ")[0]
        if kept != "restarts":  # a process that starts anew says nothing about growing
            self.record.memory[kept].append(Point(said.at, said.rss / 1e6))
        self.record.latencies += [Point(said.at, one) for one in said.latencies_ms]
        self.record.warnings += said.warnings
        if name == "producer":
            self.record.published += said.messages
        if name != "visitor":
            rate = "published" if name == "producer" else "handled"
            self.record.rates[rate].append(Point(said.at, said.messages))

    def _look_at_servers(self) -> None:
        now = time.monotonic()
        memory = self._redis.info("memory")
        self.record.memory["Redis, data"].append(Point(now, memory["used_memory"] / 1e6))
        self.record.memory["Redis, process"].append(Point(now, memory["used_memory_rss"] / 1e6))
        self.record.memory["Kafka, process"].append(Point(now, rss(self._stack.brokers[0].pid) / 1e6))

    def _read_files(self) -> None:
        """Take in the offsets that members were handed."""
        found: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for file, at in self._read.items():
            with file.open("rb") as open_file:
                open_file.seek(at)
                text = open_file.read()
            whole = len(text) - len(text) % HANDED.size
            self._read[file] += whole
            for kind, partition, first, end in HANDED.iter_unpack(text[:whole]):
                found[kind, partition].append((first, end))
                self.record.deliveries += end - first
        for place, ranges in found.items():
            self.record.handed[place] = joined([*self.record.handed[place], *ranges])

    # -- the end

    def finish(self) -> None:
        """Stop publishing, wait until everything was handled, and end all processes."""
        self._end("producer", self._children.pop("producer"))
        ends = self._ends()
        deadline = time.monotonic() + _DRAIN_S
        while self.record.slowest() < sum(ends.values()) and time.monotonic() < deadline:
            self._look()
        self.record.ended = time.monotonic()
        while self._children:
            name, child = self._children.popitem()
            self._end(name, child)
        self._read_files()
        for number, kind in enumerate(TYPES):
            handled = sum(count(self.record.handed[number, partition]) for partition in ends)
            self.record.lost[kind] = sum(ends.values()) - handled

    def _ends(self) -> dict[int, int]:
        """Return how many messages each partition has."""
        consumer = Consumer({"bootstrap.servers": self._place.kafka, "group.id": "soak-ends"})
        try:
            return {
                partition: consumer.get_watermark_offsets(
                    TopicPartition(self._place.topic, partition), timeout=10
                )[1]
                for partition in range(PARTITIONS)
            }
        finally:
            consumer.close()

    def close(self) -> None:
        """End what still runs."""
        for child in self._children.values():
            child.process.kill()
            child.stop()
        self._redis.close()
