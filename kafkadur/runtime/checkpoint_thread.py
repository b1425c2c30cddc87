"""The checkpoint thread of a connection: it writes settled offsets to the journal.

Once a second it writes a checkpoint (`kafkadur_coordinators/journal/checkpoints.py`) for each lane on which a
member of this connection settled something. Acknowledgements that wait for the level `journal` (`waiters.py`)
make it write at once; all that arrive during a round share the next one (group commit). It also rebuilds
subscriptions of which the journal has a later incarnation than Redis. It has its own connections, so the
coordinator thread never waits for it. It tries failed writes again.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kafkadur.consumer.chunk import Chunk, Confirmation
from kafkadur.runtime.waiters import RETRY, Asker, Wait, Waiters
from kafkadur.runtime.work_by_node import WorkByNode
from kafkadur_coordinators.interface import MAX_PARTITIONS, Inspection
from kafkadur_coordinators.journal import checkpoints
from kafkadur_coordinators.journal.checkpoints import WRITER_MS
from kafkadur_coordinators.journal.origins import Origin, state_of
from kafkadur_coordinators.journal.records import last_incarnation
from kafkadur_coordinators.journal.topic import Journal, Record
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.redis.coordinator import Call, RedisCoordinator
from kafkadur_coordinators.redis.replies import inspection
from kafkadur_coordinators.settlement_states import settlement_of
from kafkadur_sharing.definition import AckLevel
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.keys import SubscriptionKey

_log = logging.getLogger("kafkadur.checkpoints")

#: Seconds between two checkpoints of a lane for which no caller waits; more where they take long: at least so
#: many times the CPU time that the last ones took.
EVERY = 1.0
_REST = 9
#: Seconds between two looks whether the journal has the definition of a subscription.
LOOK_EVERY = 300.0
#: One look covers all subscriptions for which a look is due within this part of the time.
_TOGETHER = 0.2
#: One look reads so many shards of the journal: acknowledgements wait meanwhile.
_SHARDS = 8
#: Seconds that closing waits for the last checkpoints.
_LAST_ROUND = 10.0


#: Begins new incarnations of subscriptions, with a client of Redis and one of the journal.
Rebuild = Callable[[RedisCoordinator, Journal, Mapping[SubscriptionKey, int]], None]


class _Settling(Protocol):
    """A member, or another object that settles messages."""

    @property
    def display(self) -> str: ...
    def take_settled(self) -> set[int]: ...


@dataclass(kw_only=True, eq=False)
class _Entry(Asker):
    """One member, and the lanes to write for it."""

    member: _Settling
    #: lanes with verdicts since their last checkpoint; empty for a non-durable subscription
    dirty: set[int] = field(default_factory=set[int])
    #: the member has left
    gone: bool = False
    #: when to look whether the journal has the definition, monotonic seconds
    look_at: float = 0.0
    #: The journal may lack the definition, or does: then no acknowledgement reaches the level `journal`.
    doubtful: bool = False


@dataclass(kw_only=True)
class _Task:
    """The records to write for one member in one round."""

    entry: _Entry
    shard: int
    lanes: list[int]
    #: confirmations to resolve afterwards
    waiting: list[Wait]
    records: list[Record] = field(default_factory=list[Record])
    #: the incarnation under which all its lanes were found; 0: there is no such incarnation
    incarnation: int = 0
    #: whether the records contain everything that was found
    whole: bool = True
    #: offset behind its last record in the journal; 0 without records
    end: int = 0

    @property
    def root(self) -> str:
        """The beginning of the subscription's keys in Redis."""
        return self.entry.subscription.address.root


class CheckpointThread:
    """The checkpoint thread of one connection; it starts with the first durable member."""

    def __init__(
        self,
        *,
        coordinator: Callable[[], RedisCoordinator],
        journal: Callable[[], Journal],
        waiters: Callable[[Callable[[], None]], Waiters],
        rebuild: Rebuild,
    ) -> None:
        """`coordinator` and `journal` make the clients of this thread when they are first used.

        `waiters` makes the waiters from their `on_journal`; they are closed with this. `rebuild` is called in
        this thread, with its clients, and with the later incarnation that the journal has of subscriptions.
        """
        self._make_coordinator = coordinator
        self._make_journal = journal
        self._coordinator: RedisCoordinator | None = None
        self._journal: Journal | None = None
        self._waiters = waiters(self._awaited)
        self._rebuild = rebuild
        self._nodes = WorkByNode()
        #: subscriptions that are to be rebuilt: the journal has this later incarnation than Redis
        self._outdated: dict[SubscriptionKey, int] = {}
        self._writer = uuid.uuid4().hex[:12]
        #: when it begins to write under other keys (monotonic seconds), and the shards with old keys
        self._renew_at = time.monotonic() + WRITER_MS / 1000
        self._shards: set[int] = set()
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._entries: dict[int, _Entry] = {}
        self._thread: threading.Thread | None = None
        self._closing = False
        self._next = 0.0
        #: when the next checkpoints are due for which no caller waits
        self._due_at = 0.0
        #: CPU time that the last ones took, seconds
        self._took = 0.0

    # -- members

    def add(self, member: _Settling, subscription: Subscription) -> None:
        """Write checkpoints for this member from now on, if its subscription is durable."""
        state = state_of(subscription.topic.id, subscription.definition.lanes)
        origin = Origin(subscription.id, subscription.epoch, state)
        with self._lock:
            self._entries[id(member)] = _Entry(
                display=member.display,
                member=member,
                subscription=subscription,
                origin=origin,
                look_at=time.monotonic() + LOOK_EVERY * _share(subscription.key.tag),
            )
            if subscription.key.durable:
                self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name="kafkadur-checkpoints", daemon=True)
            self._thread.start()

    def remove(self, member: _Settling) -> None:
        """Write the last checkpoints of a member that has left, in the next round."""
        with self._lock:
            entry = self._entries.get(id(member))
            if entry is not None:
                entry.gone = True
            self._next = self._due_at = 0.0
        self._bell.set()

    def above(
        self, member: _Settling, level: AckLevel, chunk: Chunk, confirmation: Confirmation
    ) -> Confirmation:
        """Return a confirmation of verdicts in `chunk` by Redis, which leads to `confirmation` at `level`."""
        entry = self._entries.get(id(member))
        return confirmation if entry is None else self._waiters.above(entry, level, chunk, confirmation)

    def rebuild(self, key: SubscriptionKey, incarnation: int) -> None:
        """Begin a new incarnation of a subscription: the journal has a later one than Redis. Any thread.

        Until then none of its verdicts can be confirmed above Redis.
        """
        with self._lock:
            self._outdated[key] = incarnation
            self._start()
        self._bell.set()

    def _awaited(self) -> None:
        """Begin a round, because a caller waits for the journal."""
        with self._lock:
            self._start()
        self._bell.set()

    def close(self) -> None:
        """Write the last checkpoints, and end the thread; all members must have left before.

        While Kafka is away they are not written. Without them, messages that were acknowledged come again if
        Redis loses its data as well, before the subscription is used again.
        """
        with self._lock:
            self._closing = True
            thread = self._thread
        self._bell.set()
        if thread is not None:
            thread.join(_LAST_ROUND)
            if thread.is_alive():
                _log.warning(
                    "The last acknowledgements are not in the journal. State: Kafka did not confirm them "
                    "within %.0f s. Owner: the journal in Kafka. Remedy: none is needed while Redis keeps "
                    "its data; if Redis loses it now, the messages are delivered again.",
                    _LAST_ROUND,
                )
        self._waiters.close()

    # -- the thread

    def _main(self) -> None:
        try:
            self._loop()
        finally:
            if self._coordinator is not None:
                self._coordinator.close()
            if self._journal is not None:
                self._journal.close()

    def _loop(self) -> None:
        while True:
            self._bell.wait(max(self._next - time.monotonic(), 0.0))
            self._bell.clear()
            closing = self._closing
            trouble = self._waiters.trouble["journal"]
            with trouble:
                self._work(everything=closing)
                if self._journal is not None:
                    self._journal.rest()
            if trouble.kind:
                self._next = time.monotonic() + RETRY
            if closing:
                return

    def _work(self, *, everything: bool) -> None:
        now = time.monotonic()
        used = time.thread_time()
        due = everything or now >= self._due_at
        if due:
            self._next = self._due_at = now + max(EVERY, _REST * self._took)
        with self._lock:
            entries = list(self._entries.values())
            left = [entry for entry in entries if entry.gone]  # these settle nothing any more
        for entry in entries:
            if entry.subscription.key.durable:
                entry.dirty |= entry.member.take_settled()
        self._renew(now)
        try:
            self._write(entries, due=due)
        finally:  # a node of a cluster may be away for long
            if due:
                self._took = time.thread_time() - used
            with self._lock:
                for entry in [each for each in left if not each.dirty and not each.waiting]:
                    del self._entries[id(entry.member)]
            self._rebuild_outdated()
        if due and not everything:
            self._look_for_definitions(entries, now)
        if any(self._waiters.of(entry, "journal") for entry in entries):  # not reached yet: soon again
            self._next = min(self._next, time.monotonic() + RETRY)

    def _rebuild_outdated(self) -> None:
        with self._lock:
            outdated, self._outdated = self._outdated, {}
        if outdated:  # one that fails is found again with its next acknowledgement
            self._rebuild(self._redis(), self._kafka(), outdated)

    def _renew(self, now: float) -> None:
        """Change the keys of records from time to time, so that old records can be removed (`superseded`)."""
        if now < self._renew_at:
            return
        self._renew_at = now + WRITER_MS / 1000
        self._writer = uuid.uuid4().hex[:12]
        shards, self._shards = self._shards, set()
        if shards:
            count = self._kafka().collect(shards, round(time.time() * 1000))
            _log.info("removed %d old checkpoints", count)

    def _look_for_definitions(self, entries: Sequence[_Entry], now: float) -> None:
        """Look whether the journal has the definitions of some subscriptions; log an error if not."""
        durable = [each for each in entries if each.subscription.key.durable and not each.gone]
        due = [each for each in durable if now >= each.look_at]
        asked = [each for each in due if each.doubtful]
        if not asked and due and not any(self._waiters.of(each, "journal") for each in entries):
            asked = [each for each in durable if now + LOOK_EVERY * _TOGETHER >= each.look_at]
        if not asked:
            return
        try:
            journal = self._kafka()
            shards = {tag: journal.shard(tag) for tag in {each.subscription.key.tag for each in asked}}
            read = sorted(set(shards.values()))[:_SHARDS]  # the others are due in the next rounds
            asked = [each for each in asked if shards[each.subscription.key.tag] in read]
            missing = journal.without_definition({each.subscription.key.tag for each in asked})
        except KafkadurError as error:
            _log.debug("looking for definitions in the journal: %s", error)
            return
        for entry in asked:
            entry.doubtful = entry.subscription.key.tag in missing
            entry.look_at = now + LOOK_EVERY
            if entry.doubtful:
                _log.error(
                    "A subscription is not in the journal: the topic was deleted, or lost records. State: no "
                    "acknowledgement reaches the level journal, and if Redis loses its data, too, the "
                    "subscription begins anew, and messages that wait may be skipped. Owner: subscription "
                    "%s, topic %s. Remedy: close its consumers, and write it anew with `kafkadur sub alter "
                    "NAME --upgrade`.",
                    entry.display,
                    self._kafka().topic,
                )

    # -- journal

    def _write(self, entries: Sequence[_Entry], *, due: bool) -> None:
        """Write checkpoints, and confirm the acknowledgements that wait for them."""
        tasks = self._tasks(entries, due=due)
        if tasks:
            self._nodes.work(self._redis(), tasks, lambda task: task.root, self._write_tasks)

    def _write_tasks(self, tasks: Sequence[_Task]) -> None:
        for task, inspections in zip(tasks, self._look(tasks), strict=True):
            self._describe(task, inspections)
        try:
            offsets = iter(self._kafka().append([record for task in tasks for record in task.records]))
        except KafkadurError:
            with self._lock:
                entries = list(self._entries.values())
            for entry in entries:
                entry.look_at, entry.doubtful = 0.0, True  # the topic may have been deleted
            raise
        for task in tasks:
            task.end = max((next(offsets) + 1 for _ in task.records), default=0)
            self._shards.add(task.shard)
        void = self._void([task for task in tasks if task.waiting and task.end])
        for task in tasks:
            task.entry.dirty.difference_update(task.lanes)
            if task.whole and not task.entry.doubtful and task.entry.origin.id not in void:
                self._waiters.resolve(task.entry, task.waiting, task.incarnation)

    def _tasks(self, entries: Sequence[_Entry], *, due: bool) -> list[_Task]:
        """Return the records to write: those that callers wait for, and if `due` all changes."""
        tasks: list[_Task] = []
        for entry in entries:
            waiting = self._waiters.of(entry, "journal")
            lanes = {w.lane for w in waiting} | (entry.dirty if due else set())
            if lanes:
                shard = self._kafka().shard(entry.subscription.key.tag)
                tasks.append(_Task(entry=entry, shard=shard, lanes=sorted(lanes), waiting=waiting))
        return tasks

    def _look(self, tasks: Sequence[_Task]) -> list[list[Inspection]]:
        """Read the state of these lanes in Redis; a subscription without state there has no inspections."""
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
        """Make one record for each lane. Each incarnation has its own keys: it may find less than others.

        The epoch is that of the state that was read: another server than the member's may have answered, or
        the subscription was moved while the member was away.
        """
        seen: set[int] = set()
        for one in inspections:
            origin = task.entry.origin._replace(epoch=one.epoch)
            for view in one.partitions:
                settlement = settlement_of(view)
                key = checkpoints.key_of(origin, view.partition, self._writer, one.incarnation)
                record = checkpoints.encoded(settlement)
                task.records.append((task.shard, key, record.value))
                task.whole = task.whole and record.whole
                seen.add(view.partition)
        incarnations = {one.incarnation for one in inspections}
        if len(incarnations) == 1 and seen.issuperset(task.lanes):
            task.incarnation = incarnations.pop()

    def _void(self, tasks: Sequence[_Task]) -> Collection[str]:
        """Return the ids of awaited subscriptions whose records do not count, and have them rebuilt.

        A recovery reads the journal after it has written its incarnation record. So a record counts if no
        later incarnation record is before it in the journal: the recovery reads it.
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
                self.rebuild(task.entry.subscription.key, latest)
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


def _share(tag: str) -> float:
    """Return a number from 0 to 1 that spreads the looks of many subscriptions."""
    return zlib.crc32(tag.encode()) / 2**32
