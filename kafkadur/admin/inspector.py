"""Looking at subscriptions from outside: list, inform, explain. It changes nothing.

Who looks attaches nowhere, starts no thread and makes nothing: a namespace without a journal is one without
subscriptions. What the state of an offset means is `explain.py`; changes are `admin.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from kafkadur.admin.browse import records
from kafkadur.admin.explain import Explanation, Log, OffsetState, backlog, in_flight, lag, unsettled_before
from kafkadur.admin.explain import explain as explain_offset
from kafkadur.admin.parked import ParkedKey, parked, together, unsettled
from kafkadur.admin.reasons import Around, Evidence, with_reasons
from kafkadur.admin.sizes import Sizes, sizes
from kafkadur.fetch.filtering import taking
from kafkadur.fetch.retention import expiring
from kafkadur.runtime.clients import coordinator_of, journal_of, lifecycle_of, topics_of
from kafkadur.runtime.dead_letters import ORIGIN, SUBSCRIPTION
from kafkadur.settings import Settings
from kafkadur_coordinators import holder_progress
from kafkadur_coordinators.changes import origins_of, state_in_force
from kafkadur_coordinators.holder_progress import HolderProgress
from kafkadur_coordinators.interface import MAX_PARTITIONS, Known, LeaseView, MemberInfo, PartitionView
from kafkadur_coordinators.redis.coordinator import Refusal, state_lost
from kafkadur_coordinators.topics import TopicInfo
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import IllegalState, InvalidDestination, KafkadurError, TopicChanged
from kafkadur_sharing.keys import SLOTS, ClientIdPolicy, SubscriptionKey, key_slot

#: Seconds to go on asking while a subscription is being changed or rebuilt.
LOOK_S = 30.0
#: Dead letters of a partition that are looked at for one message.
_LETTERS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionInfo:
    """One partition of a subscription, at one moment."""

    partition: int
    #: Lowest unsettled offset.
    floor: int
    base: int
    next: int
    avail: int
    #: Unsettled offsets in the leases of attached members.
    in_flight: int
    #: Offsets that Kafka removed before they were settled. Where keys have lanes, at most so many were lost:
    #: those of the lane with the most, which may not have looked at all that others had settled.
    expired: int
    #: Offsets that were known and that Kafka lost with the end of the log, settled or not.
    truncated: int
    #: Unsettled offsets that it is about to remove (`retention.py`); None when the topic is not there.
    expiring: int | None
    #: Offsets that are set aside: rolled back, delayed, or left by a member that went.
    exceptions: int
    #: Unsettled offsets that Kafka holds, those in flight among them; None when the topic is not there.
    backlog: int | None
    #: Offsets from the floor to the end of the log; None when the topic is not there.
    lag: int | None
    #: First offset that Kafka keeps, and the first that cannot be read yet; None when the topic is not there.
    log_start: int | None
    log_end: int | None

    @property
    def behind(self) -> int | None:
        """Offsets that were written and not granted yet; None when the topic is not there."""
        if self.log_start is None or self.log_end is None:
            return None
        return max(self.log_end - max(self.next, self.log_start), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionInfo:
    """A subscription at one moment."""

    key: SubscriptionKey
    id: str
    version: int
    definition: Definition
    topic_id: str
    incarnation: int
    members: tuple[MemberInfo, ...]
    #: What the query of a member that holds the whole did last, by member id.
    progress: Mapping[str, HolderProgress]
    partitions: tuple[PartitionInfo, ...]
    #: Milliseconds until leases are granted again after Redis lost or changed its server; 0: they are.
    grace_ms: int
    #: Nothing is handed out until it goes on.
    paused: bool
    #: Server time, ms since 1970.
    now: int
    #: Why the topic cannot be looked at; None: it can.
    problem: str | None
    #: Server time of the last verdict, ms since 1970; None: none since this Redis knows the subscription.
    last_verdict: int | None
    #: Server time since which nobody is attached, ms since 1970, as far as this Redis knows; None: somebody
    #: is.
    unattended_since: int | None

    @property
    def active(self) -> bool:
        """Whether a member is attached, or left a moment ago."""
        return self.unattended_since is None

    def is_abandoned(self, older_than: timedelta) -> bool:
        """Whether no member was attached for so long."""
        since = self.unattended_since
        return since is not None and self.now - since >= older_than.total_seconds() * 1000

    @property
    def runtime_name(self) -> str:
        """Its name as WebLogic's tools would show it (rule A3).

        `client_name`, and for an unrestricted client id `client_name@topic@namespace`.
        """
        name = f"{self.key.client_id or ''}_{self.key.name}"
        if self.key.policy is ClientIdPolicy.UNRESTRICTED:
            return f"{name}@{self.definition.topic}@{self.key.namespace}"
        return name

    @property
    def held(self) -> tuple[MemberInfo, ...]:
        """The members that hold leases."""
        return tuple(member for member in self.members if member.leases)

    @property
    def in_flight(self) -> int:
        """Unsettled offsets in the leases of attached members."""
        return sum(partition.in_flight for partition in self.partitions)

    @property
    def expired(self) -> int:
        """Offsets that Kafka removed before they were settled."""
        return sum(partition.expired for partition in self.partitions)

    @property
    def truncated(self) -> int:
        """Offsets that were known and that Kafka lost with the end of its logs, settled or not."""
        return sum(partition.truncated for partition in self.partitions)

    @property
    def expiring(self) -> int | None:
        """Unsettled offsets that Kafka is about to remove; None when the topic is not there."""
        return _total(partition.expiring for partition in self.partitions)

    @property
    def exceptions(self) -> int:
        """Offsets that are set aside."""
        return sum(partition.exceptions for partition in self.partitions)

    @property
    def backlog(self) -> int | None:
        """Unsettled offsets that Kafka holds; None when the topic is not there."""
        return _total(partition.backlog for partition in self.partitions)

    @property
    def behind(self) -> int | None:
        """Offsets that were written and not granted yet; 0: live. None when the topic is not there."""
        return _total(partition.behind for partition in self.partitions)

    @property
    def lag(self) -> int | None:
        """Offsets from the floors to the ends of the logs; None when the topic is not there."""
        return _total(partition.lag for partition in self.partitions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """An explanation with what it stands on."""

    key: SubscriptionKey
    topic: str
    explanation: Explanation
    #: None: the subscription does not know the partition yet.
    view: PartitionView | None
    log: Log
    #: Server time, ms since 1970.
    now: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """Everything the shared state says of a subscription, partitions of one moment by the 16."""

    known: Known
    content: Mapping[str, Any]
    definition: Definition
    views: Mapping[int, PartitionView]
    leases: tuple[LeaseView, ...]


class Inspector:
    """Questions about the subscriptions of one namespace; a context manager.

    Used by one thread at a time.

    Every method raises `CoordinatorUnavailable` and `CoordinatorRefused` when Redis cannot be asked, and
    `StateLost` when Kafka does not answer or no consistent state is reached in time.
    """

    def __init__(self, settings: Settings, *, on_warning: Callable[[str], None] | None = None) -> None:
        """Connect at the first question; `on_warning` is told what is odd about the Redis server."""
        self._settings = settings
        self._coordinator = coordinator_of(settings, on_warning=on_warning)
        self._topics = topics_of(settings)
        self._journal = journal_of(settings)
        self._lifecycle = lifecycle_of(
            settings, coordinator=self._coordinator, journal=self._journal, topics=self._topics
        )

    def close(self) -> None:
        """Close the connections."""
        self._journal.close()
        self._coordinator.close()
        self._topics.close()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def key(self, name: str) -> SubscriptionKey:
        """Return the key of a durable subscription.

        `name` belongs to the client id of the settings, unless it is written as `client/name`; one of an
        unrestricted client id can be written as it is shown, `client/name (unrestricted)`, and so is one on a
        member of a distributed topic, `client/name@member`.

        Raises `InvalidName` (rule U10).
        """
        unmarked = name.removesuffix(f" ({ClientIdPolicy.UNRESTRICTED})")
        policy = self._settings.client_id_policy if unmarked == name else ClientIdPolicy.UNRESTRICTED
        unmarked, at, member = unmarked.partition("@")
        client_id, slash, rest = unmarked.rpartition("/")
        return SubscriptionKey(
            namespace=self._settings.namespace,
            client_id=client_id if slash else self._settings.client_id,
            policy=policy,
            name=rest,
            topic_member=member if at else None,
        )

    def list(self) -> tuple[SubscriptionInfo, ...]:
        """Return all durable subscriptions of the namespace, by name."""
        self._coordinator.connect()
        if not self._has_journal():
            return ()
        topics: dict[str, _Topic] = {}
        seen = ((key, self._seen(key)) for key in self._lifecycle.all_keys())
        # None: unsubscribed since the journal was read.
        return tuple(self._info(key, found, topics) for key, found in seen if found is not None)

    def info(self, key: SubscriptionKey) -> SubscriptionInfo:
        """Return one subscription. Raises `InvalidDestination` if there is none (rule X2)."""
        return self._info(key, self._existing(key), {})

    def abandoned(self, older_than: timedelta) -> tuple[SubscriptionInfo, ...]:
        """Return the durable subscriptions that nobody is attached to for so long, the longest first (A1).

        What is known of the time begins anew when Redis lost its memory.
        """
        found = [info for info in self.list() if info.is_abandoned(older_than)]
        return tuple(sorted(found, key=lambda info: info.unattended_since or 0))

    def sizes(self, key: SubscriptionKey, on_progress: Callable[[int], None] = lambda _: None) -> Sizes:
        """Return how many messages and bytes are current and pending (rule A5), reading all that waits.

        `on_progress` is told how many records were read. Raises `InvalidDestination` if there is no such
        subscription or topic, `TopicChanged`.
        """
        seen = self._existing(key)
        definition = seen.definition
        topic = self._topics.describe(definition.topic)
        if topic.id != seen.content["topic_id"]:
            raise topic_changed(key, topic.name)
        starts = self._topics.offsets(topic.name, topic.partitions, "earliest")
        ends = self._topics.offsets(topic.name, topic.partitions, "latest")
        floors: dict[int, int] = {}
        for number, view in seen.views.items():
            partition = number // definition.lanes
            floors[partition] = min(floors.get(partition, view.floor), view.floor)
        messages = records(
            self._settings.kafka,
            topic.name,
            {p: (max(starts[p], floors.get(p, 0)), ends[p]) for p in starts},
            namespace=self._settings.namespace,
            timeout=self._settings.kafka_timeout.total_seconds(),
        )
        return sizes(
            messages,
            seen.views,
            seen.leases,
            {member.id: member for member in seen.known.members},
            lanes=definition.lanes,
            now=seen.known.now,
            takes=taking(replace(definition, no_local=False), client_id=None, connection_id=""),
            on_progress=on_progress,
        )

    def explain(self, key: SubscriptionKey, partition: int, offset: int) -> Explained:
        """Explain one offset.

        Raises `InvalidDestination` if there is no such subscription, topic or partition, and `TopicChanged`
        if the topic was deleted and created again.
        """
        seen = self._existing(key)
        name = seen.definition.topic
        topic = self._topics.describe(name)
        if topic.id != seen.content["topic_id"]:
            raise topic_changed(key, name)
        if not 0 <= partition < topic.partitions:
            raise InvalidDestination(
                f"Topic {name} has no partition {partition}.",
                state=f"its partitions are 0 to {topic.partitions - 1}",
                owner=f"subscription {key}",
                remedy="name one of them",
            )
        log = self._log(topic, seen, partition)
        lane = self._lane(seen, log, partition, offset)
        view = seen.views.get(lane)
        explanation = explain_offset(
            offset,
            partition=partition,
            view=view,
            leases=[lease._replace(partition=partition) for lease in seen.leases if lease.partition == lane],
            members=seen.known.members,
            log=log,
            now=seen.known.now,
        )
        known = seen.known
        around = Around(
            definition=seen.definition,
            members=known.members,
            paused=known.paused,
            grace_ms=known.grace_ms,
            view=view,
            log=log,
            high=self._topics.offsets(name, topic.partitions, "latest", stable=False)[partition],
            evidence=self._evidence(key, seen, log, explanation),
        )
        explanation = with_reasons(explanation, around)
        return Explained(key=key, topic=name, explanation=explanation, view=view, log=log, now=seen.known.now)

    def parked(self, key: SubscriptionKey) -> tuple[ParkedKey, ...]:
        """Return the keys of a key-ordered subscription that are stuck at a message that was given back.

        Reads what is not settled below where its members have come. Raises `InvalidDestination` if there is
        none, `IllegalState` if it is not key-ordered, `TopicChanged`.
        """
        seen = self._existing(key)
        definition = seen.definition
        if definition.type is not SubscriptionType.KEY_ORDERED:
            raise IllegalState(
                "Only a key-ordered subscription parks keys.",
                state=f"it is {definition.type.value}",
                owner=f"subscription {key}",
                remedy="look at it with `kafkadur sub info` and `explain`",
            )
        topic = self._topics.describe(definition.topic)
        if topic.id != seen.content["topic_id"]:
            raise topic_changed(key, topic.name)
        lanes, stuck = definition.lanes, {n: v for n, v in seen.views.items() if v.exceptions}
        ranges: dict[int, list[tuple[int, int]]] = {}
        for number, view in stuck.items():
            ranges.setdefault(number // lanes, []).extend(unsettled(view))
        timeout = self._settings.kafka_timeout.total_seconds()
        starts = self._topics.offsets(topic.name, topic.partitions, "earliest")
        messages = (
            message
            for partition, offsets in ranges.items()
            for start, end in together(offsets)
            for message in records(
                self._settings.kafka,
                topic.name,
                {partition: (max(start, starts[partition]), end)},
                namespace=self._settings.namespace,
                timeout=timeout,
            )
        )
        return tuple(parked(messages, stuck, lanes, now=seen.known.now))

    def views(self, key: SubscriptionKey) -> Mapping[int, PartitionView]:
        """Return the whole state of each partition of a subscription; empty if there is none."""
        self._coordinator.connect()
        seen = self._seen(key) if self._has_journal() else None
        return {} if seen is None else seen.views

    # -- the shared state

    def _has_journal(self) -> bool:
        """Say whether there is a journal; only who subscribes makes one."""
        try:
            self._topics.describe(self._journal.topic)
        except InvalidDestination:
            return False
        return True

    def _existing(self, key: SubscriptionKey) -> _Seen:
        # Redis first: if it is not there, that is what to say, and it is said at once.
        self._coordinator.connect()
        seen = self._seen(key) if self._has_journal() else None
        if seen is None:
            raise InvalidDestination(
                f"There is no durable subscription {key} in namespace {key.namespace}.",
                state=self._alike(key),
                remedy="check the name, the client id and its policy; `kafkadur sub ls` shows what exists",
            )
        return seen

    def _alike(self, key: SubscriptionKey) -> str | None:
        """Name the subscriptions that differ in nothing but the client id and its policy."""
        others = self._lifecycle.all_keys() if self._has_journal() else []
        names = [str(other) for other in others if other.name == key.name]
        return f"of this name there is {', '.join(names)}" if names else None

    def _seen(self, key: SubscriptionKey) -> _Seen | None:
        """Look at a subscription; None if there is none. Repeats what a change in between has spoiled."""
        deadline = time.monotonic() + LOOK_S
        while True:
            known = self._lifecycle.known(key)
            if known is None:
                return None
            try:
                return self._inspect(key, known)
            except Refusal as refusal:
                if time.monotonic() > deadline:
                    raise state_lost(str(key), f"the coordinator answers {refusal.code}") from refusal

    def _inspect(self, key: SubscriptionKey, known: Known) -> _Seen:
        content = json.loads(known.definition)
        address = self._lifecycle.address(key)
        state = state_in_force(known)
        views: dict[int, PartitionView] = {}
        leases: list[LeaseView] = []
        for first in range(0, known.partitions, MAX_PARTITIONS):
            wanted = range(first, min(first + MAX_PARTITIONS, known.partitions))
            found = self._coordinator.inspect(address, known.id, state, wanted)
            views |= {view.partition: view for view in found.partitions}
            leases += [lease for lease in found.leases if lease.partition in wanted]
        return _Seen(
            known=known,
            content=content,
            definition=Definition.from_record(content["definition"]),
            views=views,
            leases=tuple(leases),
        )

    def _progress(self, key: SubscriptionKey, known: Known) -> dict[str, HolderProgress]:
        address = self._lifecycle.address(key)
        wholes = [member.id for member in known.members if member.kind == "whole"]
        told = {id_: holder_progress.told(self._coordinator, address, id_) for id_ in wholes}
        return {id_: progress for id_, progress in told.items() if progress is not None}

    # -- joined with what Kafka says

    def _info(self, key: SubscriptionKey, seen: _Seen, topics: dict[str, _Topic]) -> SubscriptionInfo:
        topic = self._topic(key, seen, topics)
        known = seen.known
        members = {member.id: member for member in known.members}
        return SubscriptionInfo(
            key=key,
            id=known.id,
            version=known.version,
            definition=seen.definition,
            topic_id=seen.content["topic_id"],
            incarnation=known.incarnation,
            members=tuple(known.members),
            progress=self._progress(key, known),
            partitions=_partitions(seen, members, topic),
            grace_ms=known.grace_ms,
            paused=known.paused,
            now=known.now,
            problem=topic.problem,
            last_verdict=known.last_verdict or None,
            unattended_since=_unattended_since(known),
        )

    def _topic(self, key: SubscriptionKey, seen: _Seen, topics: dict[str, _Topic]) -> _Topic:
        name = seen.definition.topic
        if name not in topics:
            topics[name] = self._look_at(name)
        found = topics[name]
        if found.id is not None and found.id != seen.content["topic_id"]:
            return _Topic(id=found.id, logs={}, problem=str(topic_changed(key, name)))
        return found

    def _look_at(self, name: str) -> _Topic:
        try:
            topic = self._topics.describe(name)
        except InvalidDestination as error:
            return _Topic(id=None, logs={}, problem=str(error))
        starts = self._topics.offsets(name, topic.partitions, "earliest")
        ends = self._topics.offsets(name, topic.partitions, "latest")
        logs = {partition: Log(start=starts[partition], end=ends[partition]) for partition in starts}
        soon = expiring(self._topics, name, topic.partitions, round(time.time() * 1000))
        return _Topic(id=topic.id, logs=logs, problem=None, expiring=soon)

    def _lane(self, seen: _Seen, log: Log, partition: int, offset: int) -> int:
        """The lane that an offset is in; where keys have lanes the record is read for it."""
        lanes = seen.definition.lanes
        if lanes == 1:
            return partition
        key = None
        if log.start <= offset < log.end:
            timeout = self._settings.kafka_timeout.total_seconds()
            where = {partition: (offset, offset + 1)}
            for message in records(
                self._settings.kafka,
                seen.definition.topic,
                where,
                namespace=self._settings.namespace,
                timeout=timeout,
            ):
                key = message.key()
        return partition * lanes + key_slot(key, offset) * lanes // SLOTS

    def _evidence(
        self, key: SubscriptionKey, seen: _Seen, log: Log, explanation: Explanation
    ) -> Evidence | None:
        """Read what may tell how an offset was settled: its record, and the newest dead letters."""
        partition, offset = explanation.partition, explanation.offset
        if explanation.state is not OffsetState.SETTLED or not log.start <= offset < log.end:
            return None
        definition, timeout = seen.definition, self._settings.kafka_timeout.total_seconds()
        where = {partition: (offset, offset + 1)}
        found = list(
            records(
                self._settings.kafka,
                definition.topic,
                where,
                namespace=self._settings.namespace,
                timeout=timeout,
            )
        )
        if not found:
            return Evidence(exists=False)
        takes = taking(replace(definition, no_local=False), client_id=None, connection_id="")
        return Evidence(
            exists=True,
            taken=takes is None or takes(found[0]),
            dead=self._dead_letter(key, definition, f"{definition.topic}[{partition}]@{offset}"),
        )

    def _dead_letter(self, key: SubscriptionKey, definition: Definition, origin: str) -> str | None:
        """Where the newest dead letter of a message lies, if it is among the newest."""
        try:
            topic = self._topics.describe(definition.dead_letter_topic)
        except InvalidDestination:
            return None
        starts = self._topics.offsets(topic.name, topic.partitions, "earliest")
        ends = self._topics.offsets(topic.name, topic.partitions, "latest")
        newest = {p: (max(starts[p], ends[p] - _LETTERS), ends[p]) for p in starts}
        timeout = self._settings.kafka_timeout.total_seconds()
        wanted = {(ORIGIN, origin.encode()), (SUBSCRIPTION, str(key).encode())}
        found = None
        for message in records(
            self._settings.kafka, topic.name, newest, namespace=self._settings.namespace, timeout=timeout
        ):
            headers: Any = message.headers() or ()  # the stub allows texts as values, the wire does not
            if wanted <= set(headers):
                found = f"{topic.name}[{message.partition()}]@{message.offset()}"
        return found

    def _log(self, topic: TopicInfo, seen: _Seen, partition: int) -> Log:
        return Log(
            start=self._topics.offsets(topic.name, topic.partitions, "earliest")[partition],
            end=self._topics.offsets(topic.name, topic.partitions, "latest")[partition],
            subscribed=origins_of(seen.content).get(partition, 0),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Topic:
    """What Kafka says of a topic; several subscriptions ask once."""

    #: None: there is no such topic.
    id: str | None
    logs: Mapping[int, Log]
    problem: str | None
    #: Offset before which messages expire soon.
    expiring: Mapping[int, int] = field(default_factory=dict[int, int])


def _partitions(seen: _Seen, members: Mapping[str, MemberInfo], topic: _Topic) -> tuple[PartitionInfo, ...]:
    """What is known of each partition; where it has lanes of keys, of all of them together."""
    lanes = seen.definition.lanes
    found: dict[int, list[PartitionInfo]] = {}
    for number, view in sorted(seen.views.items()):
        partition = number // lanes
        info = _partition(
            view, seen.leases, members, topic.logs.get(partition), topic.expiring.get(partition, 0)
        )
        found.setdefault(partition, []).append(info)
    return tuple(_joined(partition, infos) for partition, infos in found.items())


def _joined(partition: int, lanes: Sequence[PartitionInfo]) -> PartitionInfo:
    """Join the lanes of a partition.

    What was not looked at yet is unsettled in every lane, whosever key it has: so counts are those of the
    lane with the most, plus the exceptions of the others.
    """
    first = lanes[0]
    exceptions = [lane.exceptions for lane in lanes]

    def together(counts: Sequence[int]) -> int:
        beyond = [number - own for number, own in zip(counts, exceptions, strict=True)]
        return max(0, *beyond) + sum(exceptions)

    backlogs = [lane.backlog for lane in lanes if lane.backlog is not None]
    return replace(
        first,
        partition=partition,
        floor=min(lane.floor for lane in lanes),
        base=min(lane.base for lane in lanes),
        next=max(lane.next for lane in lanes),
        avail=max(lane.avail for lane in lanes),
        in_flight=max(lane.in_flight for lane in lanes),
        expired=max(lane.expired for lane in lanes),
        truncated=max(lane.truncated for lane in lanes),
        expiring=None if first.expiring is None else max(lane.expiring or 0 for lane in lanes),
        exceptions=sum(exceptions),
        backlog=together(backlogs) if len(backlogs) == len(lanes) > 1 else first.backlog,
        lag=max((lane.lag for lane in lanes if lane.lag is not None), default=None),
    )


def _partition(
    view: PartitionView,
    leases: tuple[LeaseView, ...],
    members: Mapping[str, MemberInfo],
    log: Log | None,
    soon: int,
) -> PartitionInfo:
    return PartitionInfo(
        partition=view.partition,
        floor=view.floor,
        base=view.base,
        next=view.next,
        avail=view.readable_end,
        in_flight=in_flight(view, leases, members),
        expired=view.expired,
        truncated=view.truncated,
        expiring=None if log is None else unsettled_before(view, log, soon),
        exceptions=sum(run.end - run.start for run in view.exceptions),
        backlog=None if log is None else backlog(view, log),
        lag=None if log is None else lag(view, log),
        log_start=None if log is None else log.start,
        log_end=None if log is None else log.end,
    )


def topic_changed(key: SubscriptionKey, topic: str) -> KafkadurError:
    """The error for a topic that was deleted and created again."""
    return TopicChanged(
        owner=f"topic {topic}, subscription {key}",
        remedy="unsubscribe, then subscribe again: offsets of the old topic mean nothing in the new one",
    )


def _unattended_since(known: Known) -> int | None:
    """Return when the last member left, ms since 1970; None if one is attached.

    A member whose session ended may be listed until another one makes an exchange. If it is not known when
    the last member left (an older kafkadur made the state), it is now: the subscription is not abandoned.
    """
    if any(member.heard and member.expires > known.now for member in known.members):
        return None
    gone = [member.expires for member in known.members] or [0]
    since = max(known.begun, known.left, *gone)
    return min(since, known.now) if since else known.now


def _total(counts: Iterable[int | None]) -> int | None:
    """Add up; None if one is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
