"""The checkpoint thread of a connection: what is settled goes to the journal.

Once a second it writes, for each partition on which a member of this connection settled something, a
checkpoint (`kafkadur_coordinators/journal/checkpoints.py`). Acknowledgements that wait for the level
`journal` (`waiters.py`) make it do so at once; all that came meanwhile share the next round (group commit).
It has connections of its own: the coordinator's thread never waits for it. What it cannot write is tried
again.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kafkadur.consumer.chunk import Chunk, Confirmation
from kafkadur.runtime.waiters import RETRY, Asker, Wait, Waiters
from kafkadur_coordinators.interface import MAX_PARTITIONS, Inspection
from kafkadur_coordinators.journal import checkpoints
from kafkadur_coordinators.journal.checkpoints import WRITER_MS
from kafkadur_coordinators.journal.origins import Origin, state_of
from kafkadur_coordinators.journal.records import last_incarnation
from kafkadur_coordinators.journal.topic import Journal, Record
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.places import place_of
from kafkadur_coordinators.redis.coordinator import Call, RedisCoordinator
from kafkadur_coordinators.redis.replies import inspection
from kafkadur_sharing.definition import AckLevel

_log = logging.getLogger("kafkadur.checkpoints")

#: Seconds between two checkpoints of a partition for which no caller waits.
EVERY = 1.0


class Settling(Protocol):
    """What a member tells: where it settled something."""

    @property
    def display(self) -> str:
        """The subscription's name."""
        ...

    def take_settled(self) -> set[int]:
        """Partitions, or lanes of keys, on which verdicts were confirmed since this was asked last."""
        ...


@dataclass(kw_only=True, eq=False)
class _Entry(Asker):
    """One member, and what is to be written for it."""

    member: Settling
    #: lanes on which something was settled since their last checkpoint; none of a non-durable subscription
    dirty: set[int] = field(default_factory=set[int])
    #: the member has left
    gone: bool = False


@dataclass(kw_only=True)
class _Task:
    """What is to be written for one member in one round."""

    entry: _Entry
    shard: int
    lanes: list[int]
    #: confirmations to resolve afterwards
    waiting: list[Wait]
    records: list[Record] = field(default_factory=list[Record])
    #: under which all its lanes were found; 0: not all were found under one
    incarnation: int = 0
    #: whether the records say all that was found
    whole: bool = True
    #: offset behind its last record in the journal; 0: there is none
    end: int = 0


class CheckpointThread:
    """The checkpoint thread of one connection; it starts with the first durable member."""

    def __init__(
        self,
        *,
        coordinator: Callable[[], RedisCoordinator],
        journal: Callable[[], Journal],
        waiters: Waiters,
        outdated: Callable[[Subscription, int], None] = lambda _subscription, _incarnation: None,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`coordinator` and `journal` make clients of this thread's own, at their first use.

        `waiters` is closed with this. `outdated` is told of a subscription of which the journal knows a later
        incarnation than the server: it is to be rebuilt, or nothing of it can be confirmed.
        """
        self._make_coordinator = coordinator
        self._make_journal = journal
        self._coordinator: RedisCoordinator | None = None
        self._journal: Journal | None = None
        self._waiters = waiters
        waiters.on_journal = self._awaited
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

    # -- members

    def add(self, member: Settling, subscription: Subscription) -> None:
        """Write checkpoints for this member of a durable subscription from now on."""
        state = state_of(subscription.topic.id, subscription.definition.lanes)
        origin = Origin(subscription.id, subscription.epoch, state)
        with self._lock:
            self._entries[id(member)] = _Entry(
                display=member.display, member=member, subscription=subscription, origin=origin
            )
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
        return confirmation if entry is None else self._waiters.above(entry, level, chunk, confirmation)

    def _awaited(self) -> None:
        """A caller begins to wait for the journal."""
        with self._lock:
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
        self._waiters.close()
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
            trouble = self._waiters.trouble["journal"]
            try:
                self._work(everything=closing)
            except Exception as error:  # noqa: BLE001 - one round must not end the thread of all of them
                trouble.note(error)
                self._next = self._monotonic() + RETRY
            else:
                trouble.clear()
            if closing:
                return

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
        self._write(entries, due=due)
        with self._lock:
            for entry in [e for e in entries if e.gone and not e.dirty and not e.waiting]:
                del self._entries[id(entry.member)]
        if any(self._waiters.of(entry, "journal") for entry in entries):  # not reached yet: soon again
            self._next = min(self._next, self._monotonic() + RETRY)

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
                self._waiters.resolve(task.entry, task.waiting, task.incarnation)

    def _tasks(self, entries: Sequence[_Entry], *, due: bool) -> list[_Task]:
        """What is to be written: what callers wait for and, if it is time, all that has changed."""
        tasks: list[_Task] = []
        for entry in entries:
            waiting = self._waiters.of(entry, "journal")
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
        return [[inspection(reply) for reply in each if reply.code == "OK"] for each in found]

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

    # -- clients

    def _redis(self) -> RedisCoordinator:
        if self._coordinator is None:
            self._coordinator = self._make_coordinator()
        return self._coordinator

    def _kafka(self) -> Journal:
        if self._journal is None:
            self._journal = self._make_journal()
        return self._journal
