"""The checkpoint thread of a connection: what is settled goes to the journal.

Who asked for more than Redis is told when an acknowledgement is replicated or journalled.

Once a second it writes, for each partition on which a member of this connection settled something, a
checkpoint (`kafkadur_coordinators/checkpoints.py`). Acknowledgements that wait for the level `journal` make
it do so at once; all that came meanwhile share the next round (group commit). Those that wait for
`replicated` share one WAIT. It has connections of its own: the coordinator's thread never waits for it.
What it cannot write is tried again; a loss of state ends the wait with an error, and in redelivery.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kafkadur.delivery import Chunk, Lease
from kafkadur.member import Confirmation
from kafkadur_coordinators import checkpoints
from kafkadur_coordinators.checkpoints import WRITER_MS
from kafkadur_coordinators.interface import MAX_PARTITIONS, Inspection
from kafkadur_coordinators.journal import Journal, Record
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.origins import Origin, state_of
from kafkadur_coordinators.places import place_of
from kafkadur_coordinators.records import last_incarnation
from kafkadur_coordinators.redis_coordinator import Call, RedisCoordinator, inspection
from kafkadur_sharing.definition import AckLevel
from kafkadur_sharing.errors import KafkadurError, LeaseLost, LevelNotReached

_log = logging.getLogger("kafkadur.checkpoints")

#: Seconds between two checkpoints of a partition that nobody waits for.
EVERY = 1.0
#: Seconds until a round that failed is tried again.
_RETRY = 0.2
#: Longest wait for replicas in one go, ms.
_WAIT_MS = 500


class Settling(Protocol):
    """What a member tells: where it settled something."""

    @property
    def display(self) -> str:
        """The subscription's name."""
        ...

    def take_settled(self) -> set[int]:
        """Partitions, or lanes of keys, on which verdicts were confirmed since this was asked last."""
        ...


class _Waiting(NamedTuple):
    """Somebody who waits for a level above Redis."""

    level: AckLevel
    lane: int
    #: of the lease: an acknowledgement that this incarnation confirmed
    incarnation: int
    #: monotonic seconds
    until: float
    confirmation: Confirmation


@dataclass(kw_only=True)
class _Entry:
    """One member, and what is to be written for it."""

    member: Settling
    subscription: Subscription
    origin: Origin
    #: lanes on which something was settled since their last checkpoint; none of a non-durable subscription
    dirty: set[int] = field(default_factory=set[int])
    #: the member has left
    gone: bool = False
    waiting: list[_Waiting] = field(default_factory=list[_Waiting])


@dataclass(kw_only=True)
class _Task:
    """What is to be written for one member in one round."""

    entry: _Entry
    shard: int
    lanes: list[int]
    #: who is told afterwards
    waiting: list[_Waiting]
    records: list[Record] = field(default_factory=list[Record])
    #: under which all its lanes were found; 0: not all were found under one
    incarnation: int = 0
    #: whether the records say all that was found
    whole: bool = True
    #: offset behind its last record in the journal; 0: there is none
    end: int = 0


class _Raised:
    """A confirmation by Redis that becomes one of a higher level."""

    __slots__ = ("_checkpointer", "_chunk", "_entry", "_inner", "_level")

    def __init__(
        self,
        checkpointer: Checkpointer,
        entry: _Entry,
        level: AckLevel,
        chunk: Chunk,
        inner: Confirmation,
    ) -> None:
        self._checkpointer = checkpointer
        self._entry = entry
        self._level: AckLevel = level
        self._chunk = chunk
        self._inner = inner

    def resolve(self, error: KafkadurError | None) -> None:
        """Redis confirmed it, or refused it."""
        if error is not None:
            self._inner.resolve(error)
        else:
            # the lease may be another one than when this began: it was claimed again
            self._checkpointer.wait_for(self._entry, self._level, self._chunk.lease, self._inner)


class Checkpointer:
    """The checkpoint thread of one connection; it starts with the first durable member."""

    def __init__(
        self,
        *,
        coordinator: Callable[[], RedisCoordinator],
        journal: Callable[[], Journal],
        replicas: int,
        patience: float,
        beacon: str,
        outdated: Callable[[Subscription, int], None] = lambda _subscription, _incarnation: None,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`coordinator` and `journal` make clients of this thread's own, at their first use.

        `replicas`: how many must have a write for the level `replicated`; `patience`: seconds after which
        somebody who waits for a level is told that it was not reached; `beacon`: a Redis key that is written
        so that WAIT has something to wait for. `outdated` is told of a subscription of which the journal
        knows a later incarnation than the server: it is to be rebuilt, or nothing of it can be confirmed.
        """
        self._make_coordinator = coordinator
        self._make_journal = journal
        self._coordinator: RedisCoordinator | None = None
        self._journal: Journal | None = None
        self._replicas = replicas
        self._patience = patience
        self._beacon = beacon
        self._outdated = outdated
        self._monotonic = monotonic
        self._clock = clock
        self._writer = uuid.uuid4().hex[:12]
        #: from then on it writes under other keys (monotonic seconds), and looks for old ones in these shards
        self._renew_at = monotonic() + WRITER_MS / 1000
        self._shards: set[int] = set()
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._entries: dict[int, _Entry] = {}
        self._thread: threading.Thread | None = None
        self._closing = False
        self._next = 0.0
        self._trouble = ""

    # -- members

    def add(self, member: Settling, subscription: Subscription) -> None:
        """Write checkpoints for this member of a durable subscription from now on."""
        state = state_of(subscription.topic.id, subscription.definition.lanes)
        origin = Origin(subscription.id, subscription.epoch, state)
        with self._lock:
            self._entries[id(member)] = _Entry(member=member, subscription=subscription, origin=origin)
            if subscription.key.durable:
                self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name="kafkadur-checkpoints", daemon=True)
            self._thread.start()

    def remove(self, member: Settling) -> None:
        """The member has left: what it settled last is written at the next round."""
        with self._lock:
            entry = self._entries.get(id(member))
            if entry is not None:
                entry.gone = True
            self._next = 0.0
        self._bell.set()

    def above(
        self, member: Settling, level: AckLevel, chunk: Chunk, confirmation: Confirmation
    ) -> Confirmation:
        """A confirmation for Redis, of verdicts in `chunk`, that tells another one of `level`."""
        entry = self._entries.get(id(member))
        return confirmation if entry is None else _Raised(self, entry, level, chunk, confirmation)

    def wait_for(self, entry: _Entry, level: AckLevel, lease: Lease, confirmation: Confirmation) -> None:
        """Somebody waits from now on: what Redis has confirmed of a lease is to reach a level."""
        until = self._monotonic() + self._patience
        with self._lock:
            entry.waiting.append(_Waiting(level, lease.partition, lease.incarnation, until, confirmation))
            self._start()
        self._bell.set()

    def close(self) -> None:
        """Write what is left, and end. Members have left before."""
        with self._lock:
            self._closing = True
            thread = self._thread
        self._bell.set()
        if thread is not None:
            thread.join()
        if self._coordinator is not None:
            self._coordinator.close()
        if self._journal is not None:
            self._journal.close()

    # -- the thread

    def _main(self) -> None:
        while True:
            self._bell.wait(max(self._next - self._monotonic(), 0.0))
            self._bell.clear()
            closing = self._closing
            try:
                self._work(everything=closing)
            except KafkadurError as error:
                self._complain(error)
                self._next = self._monotonic() + _RETRY
            else:
                self._trouble = ""
            self._give_up(everything=closing)
            if closing:
                return

    def _complain(self, error: KafkadurError) -> None:
        kind = type(error).__name__
        if self._trouble != kind:
            self._trouble = kind
            _log.warning("checkpoints wait: %s", error)

    def _work(self, *, everything: bool) -> None:
        now = self._monotonic()
        due = everything or now >= self._next
        if due:
            self._next = now + EVERY
        with self._lock:
            entries = list(self._entries.values())
        for entry in entries:
            if entry.subscription.key.durable:
                entry.dirty |= entry.member.take_settled()
        self._renew(now)
        self._replicate(entries)
        self._write(entries, due=due)
        with self._lock:
            for entry in [e for e in entries if e.gone and not e.dirty and not e.waiting]:
                del self._entries[id(entry.member)]
            if any(entry.waiting for entry in self._entries.values()):  # not reached yet: soon again
                self._next = min(self._next, self._monotonic() + _RETRY)

    def _renew(self, now: float) -> None:
        """Write under other keys from time to time, so that old ones can be removed (`superseded`)."""
        if now < self._renew_at:
            return
        self._renew_at = now + WRITER_MS / 1000
        self._writer = uuid.uuid4().hex[:12]
        shards, self._shards = self._shards, set()
        if shards:
            count = self._kafka().collect(shards, round(self._clock() * 1000))
            _log.info("removed %d old checkpoints", count)

    # -- replicated

    def _replicate(self, entries: Iterable[_Entry]) -> None:
        """Let replicas confirm what the server had before now."""
        asked = [entry for entry in entries if _asked(entry, "replicated")]
        if not asked:
            return
        coordinator = self._redis()
        with self._lock:
            waiting = {id(entry): [w for w in entry.waiting if w.level == "replicated"] for entry in asked}
        # the state is that of the lease, on this very server: else WAIT waits for something else
        held = dict(zip(map(id, asked), self._incarnations(coordinator, asked), strict=True))
        coordinator.command("SET", self._beacon, "1", "PX", 60_000)
        if coordinator.command("WAIT", self._replicas, _WAIT_MS) >= self._replicas:
            for entry in asked:
                self._resolve(entry, waiting[id(entry)], held[id(entry)])

    @staticmethod
    def _incarnations(coordinator: RedisCoordinator, entries: Sequence[_Entry]) -> list[int]:
        """The incarnation that the server holds of each subscription; 0: none of it."""
        calls = [
            coordinator.inspecting(entry.subscription.address, entry.origin.id, entry.origin.state, ())
            for entry in entries
        ]
        return [reply[2] if reply[0] == "OK" else 0 for reply in coordinator.run_many(calls)]

    # -- journal

    def _write(self, entries: Sequence[_Entry], *, due: bool) -> None:
        """Write checkpoints, and confirm those who wait for one that counts."""
        tasks = self._tasks(entries, due=due)
        if not tasks:
            return
        for task, inspections in zip(tasks, self._look(tasks), strict=True):
            self._describe(task, inspections)
        offsets = iter(self._kafka().append([record for task in tasks for record in task.records]))
        for task in tasks:
            task.end = max((next(offsets) + 1 for _ in task.records), default=0)
            self._shards.add(task.shard)
        void = self._void([task for task in tasks if task.waiting and task.end])
        for task in tasks:
            task.entry.dirty.difference_update(task.lanes)
            if task.whole and task.entry.origin.id not in void:
                self._resolve(task.entry, task.waiting, task.incarnation)

    def _tasks(self, entries: Sequence[_Entry], *, due: bool) -> list[_Task]:
        """What is to be written: what somebody waits for, and if it is time all that has changed."""
        tasks: list[_Task] = []
        for entry in entries:
            with self._lock:
                waiting = [w for w in entry.waiting if w.level == "journal"]
            lanes = {w.lane for w in waiting} | (entry.dirty if due else set())
            if lanes:
                shard = self._kafka().shard(entry.subscription.key.tag)
                tasks.append(_Task(entry=entry, shard=shard, lanes=sorted(lanes), waiting=waiting))
        return tasks

    def _look(self, tasks: Sequence[_Task]) -> list[list[Inspection]]:
        """How these lanes stand in Redis; nothing of a subscription whose state is not there."""
        coordinator = self._redis()
        calls: list[list[Call]] = []
        for task in tasks:
            where, origin = task.entry.subscription.address, task.entry.origin
            some = [task.lanes[at : at + MAX_PARTITIONS] for at in range(0, len(task.lanes), MAX_PARTITIONS)]
            calls.append([coordinator.inspecting(where, origin.id, origin.state, part) for part in some])
        replies = iter(coordinator.run_many([call for each in calls for call in each]))
        found = [[next(replies) for _ in each] for each in calls]
        return [[inspection(reply) for reply in each if reply[0] == "OK"] for each in found]

    def _describe(self, task: _Task, inspections: Sequence[Inspection]) -> None:
        """Make a record a lane. Each incarnation is a writer of its own: it may find less than another.

        The epoch is that of the state that was read: another server may answer than the member's, or the
        subscription was moved while the member was away.
        """
        seen: set[int] = set()
        for one in inspections:
            origin = task.entry.origin._replace(epoch=one.epoch)
            for view in one.partitions:
                place = place_of(view)
                key = checkpoints.key_of(origin, view.partition, self._writer, one.incarnation)
                task.records.append((task.shard, key, checkpoints.encode(place)))
                task.whole = task.whole and checkpoints.fits(place)
                seen.add(view.partition)
        incarnations = {one.incarnation for one in inspections}
        if len(incarnations) == 1 and seen.issuperset(task.lanes):
            task.incarnation = incarnations.pop()

    def _void(self, tasks: Sequence[_Task]) -> Collection[str]:
        """Ids of the subscriptions somebody waits for whose records came too late to count; these are told.

        A recovery reads the journal after its incarnation record: who passed its own record without seeing
        one was read by it, or comes before it.
        """
        until: dict[int, int] = {}
        since: dict[int, int] = {}
        for task in tasks:
            until[task.shard] = max(until.get(task.shard, 0), task.end)
            since[task.shard] = min(since.get(task.shard, task.incarnation), task.incarnation)
        seen = self._kafka().incarnations(until, since) if tasks else {}
        void: set[str] = set()
        for task in tasks:
            latest = last_incarnation(seen[task.shard], task.entry.subscription.key.tag)
            if task.incarnation < latest:
                void.add(task.entry.origin.id)
                self._outdated(task.entry.subscription, latest)
        return void

    # -- telling

    def _resolve(self, entry: _Entry, waiting: Collection[_Waiting], incarnation: int) -> None:
        """Tell who waited: what this incarnation confirmed has reached its level, the rest is not known."""
        with self._lock:
            entry.waiting = [w for w in entry.waiting if w not in waiting]
        for item in waiting:
            if item.incarnation == incarnation:
                item.confirmation.resolve(None)
            else:
                item.confirmation.resolve(
                    LeaseLost(
                        f"Redis confirmed it, but lost its state before the level {item.level} was reached.",
                        owner=f"subscription {entry.member.display}",
                        remedy="do nothing: it was settled, or is delivered again",
                    )
                )

    def _give_up(self, *, everything: bool) -> None:
        """Tell who waited long enough."""
        now = self._monotonic()
        late: list[tuple[_Entry, _Waiting]] = []
        with self._lock:
            for entry in self._entries.values():
                late += [(entry, w) for w in entry.waiting if everything or w.until <= now]
                entry.waiting = [w for w in entry.waiting if not (everything or w.until <= now)]
        for entry, item in late:
            item.confirmation.resolve(
                LevelNotReached(
                    f"The acknowledgement did not reach the level {item.level} in time.",
                    state=f"settled in Redis; {self._trouble or 'no answer'} after {self._patience:g} s",
                    owner=f"subscription {entry.member.display}",
                    remedy="look at the replicas, or Kafka; it comes again only if Redis loses its state",
                )
            )

    # -- clients

    def _redis(self) -> RedisCoordinator:
        if self._coordinator is None:
            self._coordinator = self._make_coordinator()
        return self._coordinator

    def _kafka(self) -> Journal:
        if self._journal is None:
            self._journal = self._make_journal()
        return self._journal


def _asked(entry: _Entry, level: AckLevel) -> bool:
    return any(item.level == level for item in entry.waiting)
