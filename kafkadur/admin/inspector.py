"""Read subscriptions without changing them: list, inform, explain.

An inspector attaches no member, starts no thread and creates no topic: a namespace without a journal has no
subscriptions. `explain.py` interprets the state of an offset; `changes.py` changes subscriptions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self, TypeVar

from confluent_kafka import Message

from kafkadur.admin.browse import bounds, bounds_if_any, everything, lane_of, records_of, selected_by
from kafkadur.admin.explain import Explanation, Log, OffsetState, with_times
from kafkadur.admin.explain import explain as explain_offset
from kafkadur.admin.parked import ParkedKey, parked, together
from kafkadur.admin.peek import Peeked, peeked, unsettled_stretches
from kafkadur.admin.reasons import Verdict, reasons
from kafkadur.admin.sizes import Sizes, sizes
from kafkadur.admin.subscription_info import (
    SubscriptionInfo,
    TopicLogs,
    partition_infos,
    unattended_since,
    without_records,
)
from kafkadur.fetch.retention import expiring
from kafkadur.message.times import now_ms
from kafkadur.message.times import of_headers as times_in
from kafkadur.runtime.clients import coordinator_of, journal_of, lifecycle_of, topics_of
from kafkadur.runtime.dead_letters import ORIGIN, SUBSCRIPTION
from kafkadur.settings import Settings
from kafkadur_coordinators import holder_progress
from kafkadur_coordinators.changes import origins_of, state_in_force
from kafkadur_coordinators.holder_progress import HolderProgress
from kafkadur_coordinators.interface import MAX_PARTITIONS, Known, LeaseView, PartitionView, Run
from kafkadur_coordinators.journal.listing import Listed, listed
from kafkadur_coordinators.redis.coordinator import Refusal, state_lost
from kafkadur_coordinators.settlement_states import by_partition, settlement_of
from kafkadur_coordinators.topics import TopicInfo, topic_changed
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import IllegalState, InvalidDestination, KafkaUnavailable
from kafkadur_sharing.keys import SLOTS, ClientIdPolicy, SubscriptionKey, key_slot

#: Seconds for which a question is repeated while a subscription is being changed or rebuilt.
_REPEATED_S = 30.0
#: Newest dead letters of a partition that are searched for that of one message.
_LETTERS = 10_000

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """An explanation with the state that it was derived from."""

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
    """The shared state of a subscription; up to `MAX_PARTITIONS` partitions are read at one moment."""

    known: Known
    content: Mapping[str, Any]
    definition: Definition
    views: Mapping[int, PartitionView]
    leases: tuple[LeaseView, ...]


class Inspector:
    """Questions about the subscriptions of one namespace; a context manager.

    Used by one thread at a time.

    Every method raises `CoordinatorUnavailable` and `CoordinatorRefused` when Redis cannot be asked,
    `KafkaUnavailable` when Kafka does not answer, and `StateLost` when no consistent state is reached in
    time.
    """

    def __init__(self, settings: Settings, *, on_warning: Callable[[str], None] | None = None) -> None:
        """Connect at the first question; `on_warning` is called with warnings about the Redis server."""
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

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def reach(self) -> None:
        """Raise an error unless Redis and Kafka answer."""
        self._coordinator.reach()
        self._topics.reach()

    def ping(self) -> None:
        """Raise an error unless Redis answers now."""
        self._coordinator.reach()

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

    def keys(self) -> Sequence[SubscriptionKey]:
        """Return the keys of all durable subscriptions of the namespace, by name."""
        return self._lifecycle.all_keys() if self._has_journal() else ()

    def list(self) -> tuple[SubscriptionInfo, ...]:
        """Return all durable subscriptions of the namespace, by name."""
        self._coordinator.reach()
        topics: dict[str, TopicLogs] = {}
        seen = ((key, self._seen(key)) for key in self.keys())
        # None: unsubscribed since the journal was read.
        return tuple(self._info(key, found, topics) for key, found in seen if found is not None)

    def info(self, key: SubscriptionKey) -> SubscriptionInfo:
        """Return one subscription. Raises `InvalidDestination` if there is none (rule X2)."""
        return self._info(key, self._existing(key), {})

    def definition(self, key: SubscriptionKey) -> Definition | None:
        """Return the definition of a durable subscription; None if there is no such subscription."""
        found = self._found(key)
        return None if found is None else found.definition

    def abandoned(self, older_than: timedelta) -> tuple[SubscriptionInfo, ...]:
        """Return the durable subscriptions without a member for so long, the longest first (rule A1).

        The time starts again when Redis loses its memory. Those that record which dead letters of others were
        handled never have a member, and are left out.
        """
        found = [info for info in without_records(self.list()) if info.is_abandoned(older_than)]
        return tuple(sorted(found, key=lambda info: info.unattended_since or 0))

    def sizes(self, key: SubscriptionKey, on_progress: Callable[[int], None] = lambda _: None) -> Sizes:
        """Read all unsettled messages; return the numbers and bytes of current and pending ones (rule A5).

        `on_progress` is called with the number of messages read. Raises `InvalidDestination` if there is no
        such subscription or topic, `TopicChanged`.
        """
        seen = self._existing(key)
        definition = seen.definition
        topic = self._topic_of(key, seen)
        floors: dict[int, int] = {}
        for number, view in seen.views.items():
            partition = number // definition.lanes
            floors[partition] = min(floors.get(partition, view.floor), view.floor)
        kept = bounds(self._topics, topic)
        stretches = [(p, max(start, floors.get(p, 0)), end) for p, (start, end) in kept.items()]
        return sizes(
            self._records(topic.name, *stretches),
            seen.views,
            seen.leases,
            {member.id: member for member in seen.known.members},
            lanes=definition.lanes,
            now=seen.known.now,
            takes=selected_by(definition),
            on_progress=on_progress,
        )

    def explain(self, key: SubscriptionKey, partition: int, offset: int) -> Explained:
        """Explain one offset.

        Raises `InvalidDestination` if there is no such subscription, topic or partition, and `TopicChanged`
        if the topic was deleted and created again.
        """
        seen = self._existing(key)
        topic = self._topic_of(key, seen)
        start, end = bounds(self._topics, topic)[self._partition(key, topic, partition)]
        log = Log(start=start, end=end, subscribed=origins_of(seen.content).get(partition, 0))
        lane = self._lane(seen, log, partition, offset)
        view, known = seen.views.get(lane), seen.known
        explanation = explain_offset(
            offset,
            partition=partition,
            view=view,
            leases=[lease._replace(partition=partition) for lease in seen.leases if lease.partition == lane],
            members=known.members,
            log=log,
            now=known.now,
        )
        verdict, dead = self._verdict(key, seen, log, explanation)
        explanation = replace(explanation, verdict=verdict)
        if explanation.state in (OffsetState.READY, OffsetState.LEASED) and start <= offset < end:
            for message in self._records(topic.name, (partition, offset, offset + 1)):
                explanation = with_times(explanation, times_in(message.headers()), now_ms())
        high = self._topics.offsets(topic.name, topic.partitions, "latest", stable=False)[partition]
        more = reasons(explanation, known, seen.definition, view, log, high=high, dead=dead)
        explanation = replace(explanation, notes=(*explanation.notes, *more))
        return Explained(
            key=key, topic=topic.name, explanation=explanation, view=view, log=log, now=known.now
        )

    def peek(
        self,
        key: SubscriptionKey,
        partition: int | None = None,
        *,
        reading: Callable[[Iterable[Message]], Iterable[Message]] = everything,
    ) -> Iterator[Peeked]:
        """Yield the unsettled messages of a subscription by partition and offset, and their states.

        `partition`: only those of this one. `reading` can end the reading (`browse.Some`). Nothing is
        consumed and no attempt is counted. The states are those at the time of the call. Raises
        `InvalidDestination` if there is no such subscription, topic or partition, `TopicChanged`.
        """
        seen = self._existing(key)
        topic, definition = self._topic_of(key, seen), seen.definition
        kept = bounds(self._topics, topic)
        chosen = sorted(kept) if partition is None else [self._partition(key, topic, partition)]
        origins = origins_of(seen.content)
        logs = {p: Log(start=kept[p][0], end=kept[p][1], subscribed=origins.get(p, 0)) for p in chosen}
        standing = by_partition(seen.views, definition.lanes)
        stretches = [each for p in chosen for each in unsettled_stretches(p, standing.get(p), logs[p])]
        return peeked(
            reading(self._records(topic.name, *stretches)),
            seen.views,
            seen.leases,
            seen.known.members,
            logs,
            lanes=definition.lanes,
            now=seen.known.now,
            takes=selected_by(definition),
        )

    def parked(self, key: SubscriptionKey) -> tuple[ParkedKey, ...]:
        """Return the keys of a key-ordered subscription that wait for a message that was given back.

        Reads the unsettled records that were granted before. Raises `InvalidDestination` if there is
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
        topic = self._topic_of(key, seen)
        lanes, stuck = definition.lanes, {n: v for n, v in seen.views.items() if v.exceptions}
        ranges: dict[int, list[tuple[int, int]]] = {}
        for number, view in stuck.items():
            waiting = settlement_of(view).waiting
            ranges.setdefault(number // lanes, []).extend((item.start, item.end) for item in waiting)
        starts = self._topics.offsets(topic.name, topic.partitions, "earliest")
        stretches = [
            (partition, max(start, starts[partition]), end)
            for partition, offsets in ranges.items()
            for start, end in together(offsets)
        ]
        return tuple(parked(self._records(topic.name, *stretches), stuck, lanes, now=seen.known.now))

    def journal(self) -> Sequence[Listed]:
        """Return all records of the journal, in the order in which they were written."""
        return listed(self._journal.scan()) if self._has_journal() else []

    def exceptions(self, key: SubscriptionKey) -> Mapping[int, Sequence[Run]]:
        """Return the ranges of offsets that are set aside, by partition and offset; lanes are joined.

        Raises `InvalidDestination` if there is no such subscription.
        """
        seen = self._existing(key)
        found: dict[int, list[Run]] = {}
        for number, view in seen.views.items():
            found.setdefault(number // seen.definition.lanes, []).extend(view.exceptions)
        return {partition: sorted(runs) for partition, runs in sorted(found.items())}

    def views(self, key: SubscriptionKey) -> Mapping[int, PartitionView]:
        """Return the whole state of each partition of a subscription; empty if there is none."""
        seen = self._found(key)
        return {} if seen is None else seen.views

    # -- the shared state

    def _has_journal(self) -> bool:
        """Tell whether there is a journal; the first subscriber creates it."""
        try:
            self._topics.describe(self._journal.topic)
        except InvalidDestination:
            return False
        return True

    def _found(self, key: SubscriptionKey) -> _Seen | None:
        # Redis first: if it cannot be reached, this fails at once and says so.
        self._coordinator.connect()
        return self._seen(key) if self._has_journal() else None

    def _existing(self, key: SubscriptionKey) -> _Seen:
        seen = self._found(key)
        if seen is None:
            raise InvalidDestination(
                f"There is no durable subscription {key} in namespace {key.namespace}.",
                state=self._alike(key),
                remedy="check the name, the client id and its policy; `kafkadur sub ls` shows what exists",
            )
        return seen

    def _alike(self, key: SubscriptionKey) -> str | None:
        """Name the subscriptions that differ only in the client id and its policy."""
        others = self._lifecycle.all_keys() if self._has_journal() else []
        names = [str(other) for other in others if other.name == key.name]
        return f"of this name there is {', '.join(names)}" if names else None

    def _seen(self, key: SubscriptionKey) -> _Seen | None:
        """Read a subscription; None if there is none."""

        def look() -> _Seen | None:
            known = self._lifecycle.known(key)
            return None if known is None else self._inspect(key, known)

        return self._repeated(key, look)

    def _repeated(self, key: SubscriptionKey, ask: Callable[[], T]) -> T:
        """Return the answer to a question, asking again if the subscription was changed meanwhile."""
        deadline = time.monotonic() + _REPEATED_S
        while True:
            try:
                return ask()
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

    def _progress(self, key: SubscriptionKey, known: Known) -> dict[str, tuple[HolderProgress, ...]]:
        address = self._lifecycle.address(key)
        wholes = [member.id for member in known.members if member.kind == "whole"]
        told = {id_: holder_progress.told(self._coordinator, address, id_) for id_ in wholes}
        return {id_: running for id_, running in told.items() if running}

    # -- what Kafka says

    def _topic_of(self, key: SubscriptionKey, seen: _Seen) -> TopicInfo:
        """Describe the topic of a subscription; raises `InvalidDestination` and `TopicChanged`."""
        topic = self._topics.describe(seen.definition.topic)
        if topic.id != seen.content["topic_id"]:
            raise topic_changed(topic.name, now=topic.id, was=seen.content["topic_id"], subscription=key)
        return topic

    def _partition(self, key: SubscriptionKey, topic: TopicInfo, partition: int) -> int:
        """Return `partition`; raises `InvalidDestination` if the topic does not have it."""
        if not 0 <= partition < topic.partitions:
            raise InvalidDestination(
                f"Topic {topic.name} has no partition {partition}.",
                state=f"its partitions are 0 to {topic.partitions - 1}",
                owner=f"subscription {key}",
                remedy="name one of them",
            )
        return partition

    def _records(self, topic: str, *stretches: tuple[int, int, int]) -> Iterator[Message]:
        """Read the records of a topic in stretches (partition, start, end)."""
        chosen = self._settings
        timeout = chosen.kafka_timeout.total_seconds()
        return records_of(chosen.kafka, topic, stretches, namespace=chosen.namespace, timeout=timeout)

    def _info(self, key: SubscriptionKey, seen: _Seen, topics: dict[str, TopicLogs]) -> SubscriptionInfo:
        topic = self._topic(key, seen, topics)
        known = seen.known
        # the leases of a member that died stay until another member makes an exchange
        members = {member.id: member for member in known.members if member.expires > known.now}
        return SubscriptionInfo(
            key=key,
            id=known.id,
            version=known.version,
            definition=seen.definition,
            topic_id=seen.content["topic_id"],
            incarnation=known.incarnation,
            members=tuple(known.members),
            progress=self._progress(key, known),
            partitions=partition_infos(seen.views, seen.leases, members, topic, seen.definition.lanes),
            grace_ms=known.grace_ms,
            paused=known.paused,
            now=known.now,
            problem=topic.problem,
            last_verdict=known.last_verdict or None,
            unattended_since=unattended_since(known),
            state_version=known.state_version,
        )

    def _topic(self, key: SubscriptionKey, seen: _Seen, topics: dict[str, TopicLogs]) -> TopicLogs:
        name = seen.definition.topic
        if name not in topics:
            topics[name] = self._look_at(name)
        found = topics[name]
        if found.id is not None and found.id != seen.content["topic_id"]:
            changed = topic_changed(name, now=found.id, was=seen.content["topic_id"], subscription=key)
            return TopicLogs(id=found.id, logs={}, problem=str(changed))
        return found

    def _look_at(self, name: str) -> TopicLogs:
        try:
            topic = self._topics.describe(name)
            logs = {p: Log(start=start, end=end) for p, (start, end) in bounds(self._topics, topic).items()}
            soon = expiring(self._topics, name, topic.partitions, now_ms())
        except InvalidDestination as error:
            return TopicLogs(id=None, logs={}, problem=str(error))
        except KafkaUnavailable as error:
            self._topics.reach()  # raises: Kafka is away. Else it is this topic alone, say without a leader
            return TopicLogs(id=None, logs={}, problem=str(error))
        return TopicLogs(id=topic.id, logs=logs, problem=None, expiring=soon)

    def _lane(self, seen: _Seen, log: Log, partition: int, offset: int) -> int:
        """Return the lane that an offset is in; if keys have lanes, the key of the record is read."""
        lanes = seen.definition.lanes
        if lanes > 1 and log.start <= offset < log.end:
            found = list(self._records(seen.definition.topic, (partition, offset, offset + 1)))
            if found:
                return lane_of(found[0], lanes)
        return partition * lanes + key_slot(None, offset) * lanes // SLOTS

    def _verdict(
        self, key: SubscriptionKey, seen: _Seen, log: Log, explanation: Explanation
    ) -> tuple[Verdict | None, str | None]:
        """Return how an offset was settled, as far as it is known, and the place of its dead letter."""
        partition, offset = explanation.partition, explanation.offset
        if explanation.state is not OffsetState.SETTLED or not log.start <= offset < log.end:
            return None, None
        topic = seen.definition.topic
        found = list(self._records(topic, (partition, offset, offset + 1)))
        if not found:
            return Verdict.GAP, None
        dead = self._dead_letter(key, seen.definition, f"{topic}[{partition}]@{offset}")
        if dead is not None:
            return Verdict.REJECTED, dead
        takes = selected_by(seen.definition)
        if takes is not None and not takes(found[0]):
            return Verdict.FILTERED, None
        times = times_in(found[0].headers())
        over = times is not None and times.is_over(now_ms())
        return (Verdict.OVER if over else Verdict.ACKNOWLEDGED), None

    def _dead_letter(self, key: SubscriptionKey, definition: Definition, origin: str) -> str | None:
        """Return the place of the newest dead letter of a message, if it is among the newest letters."""
        topic = definition.dead_letter_topic
        kept = bounds_if_any(self._topics, topic)
        newest = [(p, max(start, end - _LETTERS), end) for p, (start, end) in kept.items()]
        wanted = {(ORIGIN, origin.encode()), (SUBSCRIPTION, str(key).encode())}
        found = None
        for message in self._records(topic, *newest):
            headers: Any = message.headers() or ()  # the stub allows texts as values, the wire does not
            if wanted <= set(headers):
                found = f"{topic}[{message.partition()}]@{message.offset()}"
        return found
