"""Rebuilding: restore subscriptions that Redis lost, or continue with the state that a server kept.

Many at once, because they are lost together. For each: take the right to rebuild on this very server state,
fence (one incarnation record per shard), read the shard to the end of its log, install if that right still
stands. Subscriptions that were deleted while the server was down are deleted from its kept state, too. Each
step can be repeated by another process.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from typing import NamedTuple, Self

from kafkadur_coordinators.changes import CHANGE_MS, Changes, deleted
from kafkadur_coordinators.journal import recovery_reports
from kafkadur_coordinators.journal.checkpoints import Cuts, united, without_lost
from kafkadur_coordinators.journal.origins import Origin, origin_of
from kafkadur_coordinators.journal.records import Entry, InForce, by_tag, in_force
from kafkadur_coordinators.journal.recovery_reports import Cause, Recovery
from kafkadur_coordinators.journal.shard import Scan, Shard, session_of
from kafkadur_coordinators.journal.topic import Journal, Record
from kafkadur_coordinators.redis.coordinator import Call, RedisCoordinator, Refusal
from kafkadur_coordinators.redis.wire import RebuildReply, RebuildRequest, ReincarnateRequest
from kafkadur_coordinators.settlement_states import SettlementState, covers, settlement_of, unite
from kafkadur_coordinators.topics import TopicInfo, Topics, floor_metadata
from kafkadur_coordinators.transactions import Transactions
from kafkadur_sharing.definition import Definition
from kafkadur_sharing.errors import KafkadurError
from kafkadur_sharing.keys import SubscriptionKey

_log = logging.getLogger("kafkadur.recovery")
#: At most so many subscriptions are few: their mirrored floors are read from Kafka, one after the other.
_FEW = 16
#: Subscriptions that are restored with one series of calls.
_TOGETHER = 250
_NOTHING_SEEN: Mapping[SubscriptionKey, int] = {}


class Outcome(Enum):
    """The result for one subscription."""

    #: it was brought back, or its deletion was
    REBUILT = "rebuilt"
    #: Redis had it
    INTACT = "intact"
    #: another process rebuilds it
    BUSY = "busy"


class Rebuilt(NamedTuple):
    """The results of rebuilding some subscriptions."""

    outcomes: Mapping[SubscriptionKey, Outcome | KafkadurError]

    def count(self, outcome: Outcome) -> int:
        """How many subscriptions have this outcome."""
        return sum(found is outcome for found in self.outcomes.values())

    @property
    def failed(self) -> dict[SubscriptionKey, KafkadurError]:
        """Subscriptions that could not be rebuilt, with their errors."""
        return {key: found for key, found in self.outcomes.items() if isinstance(found, KafkadurError)}


@dataclass(kw_only=True)
class _Lost:
    """One subscription that is being rebuilt."""

    key: SubscriptionKey
    shard: int
    #: version of the definition that a restarted server kept; None: it kept nothing
    kept: int | None
    #: number of lanes that it kept, of all partitions, and the incarnation of that state
    lanes: int
    incarnation: int
    #: incarnation that the caller has seen
    seen: int
    #: whether at most `_FEW` subscriptions are rebuilt: then the mirrored floors, which may be newer, are
    #: read, too
    is_of_few: bool
    #: the incarnation that begins now
    begun: int = 0
    cuts: Cuts = ()
    found: InForce | None = None
    cause: Cause = Cause.LOST
    #: the settlement state of each lane, as far as it is known before a member is attached
    settlements: dict[int, SettlementState] = field(default_factory=dict[int, SettlementState])
    #: keys of the records of its transacted sessions, and of what these have settled
    sessions: Sequence[bytes] = ()
    settled: Sequence[bytes] = ()

    @cached_property
    def definition(self) -> Definition:
        """The definition in force; needs `found`."""
        return Definition.from_record({}) if self.found is None else self.found.definition

    @cached_property
    def origin(self) -> Origin:
        """The origin of its checkpoints; needs `found`."""
        return Origin("", 0, "") if self.found is None else origin_of(self.found)


class _Asked:
    """Questions to Kafka about topics, each asked once."""

    def __init__(self, topics: Topics) -> None:
        self.describe = cache(topics.describe)
        self.ends = cache(lambda topic: topics.offsets(topic.name, topic.partitions, "latest"))


class _Sending:
    """Calls that were sent to Redis, which runs them while the next ones are prepared."""

    def __init__(
        self, coordinator: RedisCoordinator, done: Callable[[Mapping[SubscriptionKey, bool]], None]
    ) -> None:
        """`done` is called with the subscriptions whose calls ended, and whether the last call succeeded."""
        self._coordinator = coordinator
        self._done = done
        self._running: Sequence[tuple[SubscriptionKey, int]] = ()

    def send(self, calls: Mapping[SubscriptionKey, Sequence[Call]]) -> None:
        """Send these calls, by subscription, after the earlier ones have ended."""
        self.wait()
        if calls:
            self._coordinator.begin_many([call for some in calls.values() for call in some])
            self._running = [(key, len(some)) for key, some in calls.items()]

    def wait(self) -> None:
        """Wait for all replies; raises as `RedisCoordinator.run`."""
        running, self._running = self._running, ()
        if running:
            replies = iter(self._coordinator.finish_many())
            self._done({key: [next(replies)[0] for _ in range(n)][-1] == "OK" for key, n in running})

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait; whatever failed first is raised."""
        with contextlib.suppress(*(() if kind is None else (KafkadurError,))):
            self.wait()


class Rebuilder:
    """Rebuilds. One thread at a time."""

    def __init__(
        self,
        *,
        coordinator: RedisCoordinator,
        journal: Journal,
        topics: Topics,
        changes: Changes,
        session_ms: int,
        clock: Callable[[], float],
    ) -> None:
        """`session_ms`: how long nothing is granted after a loss; `clock`: seconds since 1970."""
        self._coordinator = coordinator
        self._journal = journal
        self._topics = topics
        self._changes = changes
        #: transacted sessions that cannot commit any more
        self._ended: set[str] = set()
        self._transactions = Transactions(journal.transactions(), topics)
        self._session_ms = session_ms
        self._clock = clock

    def rebuild(
        self,
        keys: Sequence[SubscriptionKey],
        seen: Mapping[SubscriptionKey, int] = _NOTHING_SEEN,
        scan: Scan | None = None,
    ) -> dict[SubscriptionKey, Outcome | KafkadurError]:
        """Rebuild those of these durable subscriptions that are lost; return the outcome of each.

        `seen`: the incarnation under which each was attached; state of an earlier one is an old copy. `scan`:
        records of the journal that the caller has read already. Raises `CoordinatorUnavailable` and
        `StateLost` when Redis or Kafka do not answer: then another process, or a repetition, continues.
        """
        outcomes: dict[SubscriptionKey, Outcome | KafkadurError] = {}
        moved: dict[str, Sequence[bytes]] = {}
        token = uuid.uuid4().hex
        lost = self._take(keys, token, seen, outcomes)
        if not lost:
            return outcomes
        tags: dict[int, list[str]] = defaultdict(list)
        for item in lost:
            tags[item.shard].append(item.key.tag)
        self._ended.clear()
        incarnations = self._journal.append_incarnations(token, tags)
        shards = {
            number: (by_tag(shard.entries), shard)
            for number, shard in self._journal.read_shards(tags, scan).items()
        }
        asked = _Asked(self._topics)
        reports: list[Record] = []
        by_key = {item.key: item for item in lost}

        def ended(found: Mapping[SubscriptionKey, bool]) -> None:
            items = [by_key[key] for key, in_time in found.items() if in_time]
            outcomes.update((key, Outcome.REBUILT if ok else Outcome.BUSY) for key, ok in found.items())
            reports.extend(self._reports(items))
            moved.update({item.key.tag: item.settled for item in items if item.settled})

        try:
            with _Sending(self._coordinator, ended) as sending:
                while lost:  # in groups: the requests of all of them together are large
                    some, lost = lost[:_TOGETHER], lost[_TOGETHER:]
                    if any(
                        item.kept is not None or shards[item.shard][1].sessions_of(item.key.tag)
                        for item in some
                    ):  # then Redis is asked for each
                        sending.wait()
                    calls: dict[SubscriptionKey, Sequence[Call]] = {}
                    for item in some:
                        item.begun = max(incarnations[item.shard], item.seen + 1)
                        entries, shard = shards[item.shard]
                        changes = entries.get(item.key.tag, ())
                        try:
                            calls[item.key] = self._bring_back(item, changes, shard, token, asked)
                        except KafkadurError as error:
                            outcomes[item.key] = _outcome(error)
                    sending.send(calls)
        finally:
            self._write(reports, moved)
        return outcomes

    def _take(
        self,
        keys: Sequence[SubscriptionKey],
        token: str,
        seen: Mapping[SubscriptionKey, int],
        outcomes: dict[SubscriptionKey, Outcome | KafkadurError],
    ) -> list[_Lost]:
        """Take the right to rebuild each lost subscription."""
        asked: list[Call] = [
            (
                "rebuild",
                self._changes.address(key).fixed(),
                [*self._coordinator.common(incarnation=-seen.get(key, 0)), *RebuildRequest(token, CHANGE_MS)],
            )
            for key in keys
        ]
        lost: list[_Lost] = []
        for key, reply in zip(keys, self._coordinator.run_many(asked), strict=True):
            if reply.code == "OK":
                found = RebuildReply._make(reply.body)
                shard = self._journal.shard(key.tag)
                lost.append(
                    _Lost(
                        key=key,
                        shard=shard,
                        kept=found.version if found.kept else None,
                        lanes=found.partitions,
                        incarnation=reply.incarnation,
                        seen=seen.get(key, 0),
                        is_of_few=len(keys) <= _FEW,
                    )
                )
            elif reply.code == "VERSION":
                outcomes[key] = Refusal(reply)
            else:
                outcomes[key] = Outcome.INTACT if reply.code == "INTACT" else Outcome.BUSY
        return lost

    def _bring_back(
        self, item: _Lost, entries: Sequence[Entry], shard: Shard, token: str, asked: _Asked
    ) -> Sequence[Call]:
        """The calls that bring back one subscription, of which `shard` holds these `entries`."""
        address, found = self._changes.address(item.key), in_force(entries, item.key.tag, item.shard)
        item.found = found
        item.cuts = [(entry.offset + 1, entry.cuts) for entry in entries if entry.cuts]
        item.sessions = [key for key in shard.sessions_of(item.key.tag) if session_of(key)[1] < item.begun]
        if found is None or deleted(found):
            version = item.begun if found is None else found.version
            return [
                self._changes.deleting(
                    address, version=version, incarnation=item.begun, token=token, seen=item.seen
                )
            ]
        topic = asked.describe(item.definition.topic)
        same = topic.id == found.change.topic_id
        if item.sessions:
            self._bring_in_transactions(item, shard, token)
        said = shard.checkpoints_of(item.origin.id)
        known = united(said, item.origin, item.cuts, item.definition.lanes)
        ends = asked.ends(topic) if same else {}
        if item.kept == found.version:
            if self._is_whole(item, known, ends, token):
                common = self._coordinator.common(incarnation=-item.seen)
                return [("reincarnate", address.fixed(), [*common, *ReincarnateRequest(token, item.begun)])]
        else:
            item.settlements = self._settlements_of_journal(item, known, topic if same else None)
            self._mark_seen(item, ends)
        lanes = len(item.settlements)
        return [
            *self._changes.laying(
                address,
                found.id,
                item.origin.state,
                item.settlements,
                token=token,
                total=lanes,
                aside=True,
                seen=item.seen,
            ),
            self._changes.installing(
                address,
                found,
                lanes=lanes,
                token=token,
                incarnation=item.begun,
                quiet_ms=self._session_ms,
                anew=item.kept is not None,
                seen=item.seen,
                unclaimed=max((number for number, _ in item.cuts), default=0),
            ),
        ]

    def _is_whole(
        self, item: _Lost, known: Mapping[int, SettlementState], ends: Mapping[int, int], token: str
    ) -> bool:
        """Whether the state that a server kept covers the journal; sets settlement states and cause."""
        item.cause = Cause.KEPT
        standing = self._kept_settlements(item, token)
        item.settlements = standing | {
            lane: unite(standing[lane], settlement) if lane in standing else settlement
            for lane, settlement in known.items()
        }
        self._mark_seen(item, ends)
        # leases from before Kafka lost the end of a partition cannot be claimed: install-7 stores that
        behind = any(number > item.incarnation for number, _ in item.cuts) or any(
            lane not in standing or not covers(standing[lane], settlement)
            for lane, settlement in item.settlements.items()
        )
        if behind:
            item.cause = Cause.OLDER
            return False
        # else the server may have lost its last grants: these offsets are marked as seen, too
        return all(standing[lane].seen >= settlement.seen for lane, settlement in item.settlements.items())

    def _bring_in_transactions(self, item: _Lost, shard: Shard, token: str) -> None:
        """Bring what transacted sessions have settled into the journal, and into what `shard` has of it.

        Others may move it there meanwhile, and remove it where it was: so the journal is read after that.
        Raises `Refusal` if the right to rebuild has ended.
        """
        address, common = self._changes.address(item.key), self._coordinator.common(incarnation=-item.seen)

        def keep_right() -> None:
            self._coordinator.call("rebuild", address.fixed(), [*common, *RebuildRequest(token, CHANGE_MS)])

        sessions = {session_of(key)[0] for key in item.sessions}
        found = self._transactions.settled(item.key.tag, sessions - self._ended, between=keep_right)
        self._ended |= sessions
        written = found.written_of(item.origin.id)
        self._journal.append([(item.shard, key, value) for key, value in written.items()])
        item.settled = list(written)
        self._journal.read_shards([item.shard], {item.shard: shard})
        keep_right()

    def _kept_settlements(self, item: _Lost, token: str) -> dict[int, SettlementState]:
        """The settlement states of the lanes in the state that a server kept; leased offsets wait."""
        address, origin = self._changes.address(item.key), item.origin
        lanes = item.definition.lanes
        return {
            view.partition: without_lost(
                settlement_of(view), view.partition // lanes, item.incarnation, item.cuts
            )
            for view in self._changes.inspected(address, origin.id, origin.state, item.lanes, token)
        }

    def _settlements_of_journal(
        self, item: _Lost, known: Mapping[int, SettlementState], topic: TopicInfo | None
    ) -> dict[int, SettlementState]:
        """Where the lanes stood at least: by checkpoints, mirrored floors, and the beginning.

        `topic` is None if it is another one by now.
        """
        change, lanes = (item.found.change if item.found else None), item.definition.lanes
        starts = {} if change is None else dict(change.starts)
        for number, lost in item.cuts:
            if item.found is not None and number > item.found.version:
                starts |= {p: min(starts.get(p, 0), end) for p, end in lost.items()}
        partitions = max(topic.partitions if topic else 0, len(starts))
        missing = any(lane not in known for lane in range(partitions * lanes))
        if topic is not None and item.found is not None and (missing or item.is_of_few):
            metadata = floor_metadata(item.found.id, item.found.change.epoch, topic.id)
            starts |= self._topics.floors(item.key.group, topic.name, topic.partitions, metadata)
        floors = {
            lane: SettlementState(next=starts.get(lane // lanes, 0)) for lane in range(partitions * lanes)
        }
        return {lane: unite(known.get(lane, floor), floor) for lane, floor in floors.items()}

    @staticmethod
    def _mark_seen(item: _Lost, ends: Mapping[int, int]) -> None:
        """Mark all offsets that were in the topic before the recovery as possibly delivered."""
        lanes = item.definition.lanes
        item.settlements = {
            lane: SettlementState(
                settlement.next, max(settlement.seen, ends.get(lane // lanes, 0)), settlement.waiting
            )
            for lane, settlement in item.settlements.items()
        }

    def _reports(self, rebuilt: Iterable[_Lost]) -> list[Record]:
        """Return the reports of the offsets that may be delivered again."""
        now = round(self._clock() * 1000)
        reports: list[Record] = []
        for item in rebuilt:
            reports += [(item.shard, key, None) for key in item.sessions]
            if deleted(item.found):
                continue
            recovery = Recovery.model_construct(  # nothing of it comes from outside
                key=item.key.to_record(),
                tag=item.key.tag,
                id=item.origin.id,
                incarnation=item.begun,
                at=now,
                cause=item.cause,
                partitions=recovery_reports.may_come_again(item.settlements, item.definition.lanes),
            )
            reports.append(
                (item.shard, recovery_reports.key_of(item.key.tag), recovery_reports.encode(recovery))
            )
            said = "subscription %s was recovered (%s): %d offsets may come again"
            _log.info(said, item.key, item.cause.value, recovery.offsets)
        return reports

    def _write(self, reports: Sequence[Record], moved: Mapping[str, Sequence[bytes]]) -> None:
        """Write reports, and remove the checkpoints of transactions, by tag: the journal holds them now.

        The subscriptions are usable already, so a failure is only logged.
        """
        try:
            self._journal.append(reports)
        except KafkadurError as error:
            _log.warning("the report of the recovery could not be written: %s", error)
        for tag, keys in moved.items():
            try:
                self._transactions.forget(tag, keys)
            except KafkadurError as error:
                _log.info("what is in the journal by now could not be removed elsewhere: %s", error)


def _outcome(error: KafkadurError) -> Outcome | KafkadurError:
    """Return the outcome for an error of one subscription."""
    changed = isinstance(error, Refusal) and error.code != "VERSION"  # the server changed meanwhile
    return Outcome.BUSY if changed else error
