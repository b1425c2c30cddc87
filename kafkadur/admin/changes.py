"""Changing subscriptions from outside: pause, alter, move, copy, unsubscribe.

Subscriptions are read by `inspector.py`; a change is carried out by the coordinators'
`lifecycle.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kafkadur.admin.inspector import LOOK_S, Explained, Inspector, topic_changed
from kafkadur.admin.retroactive import Skipped
from kafkadur.admin.snapshots import Snapshot, partition_snapshot
from kafkadur.admin.subscription_info import PartitionInfo, SubscriptionInfo
from kafkadur_coordinators.changes import origins_of
from kafkadur_coordinators.journal.rebuilding import Rebuilt
from kafkadur_coordinators.journal.recoveries import Recovery
from kafkadur_coordinators.places import Place, join, moved_from, place_of, unsettle
from kafkadur_coordinators.redis.coordinator import Refusal, state_lost
from kafkadur_coordinators.topics import TopicInfo
from kafkadur_sharing.decisions import UnsubscribeRequest
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import IllegalState, InvalidDestination, TopicChanged
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.selector import parse_selector

__all__ = ["Admin", "Explained", "Move", "PartitionInfo", "SubscriptionInfo"]

#: What stands before the name of a consumer group.
_GROUP = "group:"
#: Seconds between two looks at a subscription that is drained.
_DRAIN_EVERY = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """What a seek does to a partition."""

    partition: int
    #: Lowest unsettled offset before and after.
    before: int
    after: int
    #: Unsettled messages before; None when the topic is not there.
    backlog: int | None


class Admin(Inspector):
    """What can be done to the subscriptions of one namespace; a context manager.

    Used by one thread at a time.

    Every method raises `CoordinatorUnavailable` and `CoordinatorRefused` when Redis cannot be asked, and
    `StateLost` when Kafka does not answer or no consistent state is reached in time.
    """

    def recoveries(self) -> list[Recovery]:
        """Return the last recovery of each durable subscription that had one, by name."""
        return self._lifecycle.recoveries() if self._has_journal() else []

    def rebuild(self, told: Callable[[int, int], None] = lambda _done, _all: None) -> Rebuilt:
        """Bring back at once what Redis lost of all subscriptions of the namespace.

        Needed by nobody: each comes back when it is used. `told` hears how many of how many are done.
        """
        self._coordinator.connect()
        return self._lifecycle.rebuild_all(told) if self._has_journal() else Rebuilt({})

    def pause(self, key: SubscriptionKey, *, paused: bool = True) -> None:
        """Pause a subscription, or let it go on (`paused` False): nothing is handed out meanwhile.

        What is in applications' hands can be settled; members stay attached. A pause is kept in Redis: if
        that loses its memory, the subscription goes on. Raises `InvalidDestination` if there is none.
        """
        deadline = time.monotonic() + LOOK_S
        while True:
            seen = self._existing(key)
            try:
                self._coordinator.pause(self._lifecycle.address(key), seen.known.id, paused=paused)
            except Refusal as refusal:
                if time.monotonic() > deadline:
                    raise state_lost(str(key), f"the coordinator answers {refusal.code}") from refusal
            else:
                return

    def drain(
        self,
        key: SubscriptionKey,
        *,
        timeout: float = 60.0,
        on_progress: Callable[[SubscriptionInfo], None] = lambda _: None,
    ) -> SubscriptionInfo:
        """Pause a subscription and wait until nothing of it is in anybody's hands.

        What members hold and have not handed out they give back. Returns how it stands then, or after
        `timeout` seconds: `held` says who still holds messages. It stays paused. Raises `InvalidDestination`
        if there is none.
        """
        self.pause(key)
        deadline = time.monotonic() + timeout
        while True:
            found = self.info(key)
            on_progress(found)
            if not found.held or time.monotonic() > deadline:
                return found
            time.sleep(_DRAIN_EVERY)  # polls for a condition, with a deadline

    def alter(
        self,
        key: SubscriptionKey,
        *,
        retroactive: bool = False,
        on_progress: Callable[[int], None] = lambda _: None,
        **changes: Any,  # noqa: ANN401 - checked by Definition
    ) -> Definition:
        """Change the definition in place and keep what is settled and what waits; returns the new one.

        `changes` are fields of `Definition`: type, selector, no_local, redelivery, strict_order,
        header_types, key_lanes, scope, ack_level, max_consumers. Where lanes of keys come or go (a
        key-ordered type, another number) what is settled is what every lane had come past: a faster one's
        messages above that are delivered again. With `retroactive` what the old selector skipped since the
        subscription was made, and the new one takes, is delivered: the topic is read once more for it;
        `on_progress` is told how many records were read. Raises `InvalidDestination` if there is none,
        `SubscriptionActive` while a member is attached, `InvalidSelector`, `IllegalState` for what cannot be
        changed.
        """
        parse_selector(changes.get("selector"))
        seen = self._existing(key)
        if "type" in changes:
            kind = SubscriptionType(changes["type"])
            changes = {"key_lanes": None, "scope": "subscription", **changes, "type": kind}

        def change(before: Definition) -> Definition:
            return replace(before, **changes)

        if not retroactive:
            self._lifecycle.amend(key, change)
            return self._existing(key).definition
        skipped = Skipped(
            self._settings.kafka,
            seen.definition,
            change(seen.definition),
            namespace=key.namespace,
            timeout=self._settings.kafka_timeout.total_seconds(),
            on_progress=on_progress,
        )
        starts = origins_of(seen.content)
        first = self._topics.offsets(seen.definition.topic, len(starts), "earliest")
        starts = {partition: max(offset, first.get(partition, 0)) for partition, offset in starts.items()}

        def look(places: Mapping[int, Place]) -> None:
            skipped.look({p: (start, places[p].next) for p, start in starts.items() if p in places})

        def unsettled(places: Mapping[int, Place]) -> Mapping[int, Place]:
            look(places)  # with what another member settled since
            found = {partition: skipped.found(partition, place.next) for partition, place in places.items()}
            return {
                partition: unsettle(places[partition], offsets)
                for partition, offsets in found.items()
                if offsets
            }

        look(self._lifecycle.places(key, seen.known))
        self._lifecycle.amend(key, change, unsettled)
        return self._existing(key).definition

    def seek(
        self,
        key: SubscriptionKey,
        to: Mapping[int, int] | str | datetime | Snapshot,
        *,
        dry_run: bool = False,
    ) -> tuple[Move, ...]:
        """Move a subscription: everything at or after the new place is delivered (again), nothing before.

        `to` is `earliest`, `latest`, `group:NAME` (where that consumer group is), a time (the first message
        at or after it), or offsets by partition; others stay where they are. A snapshot brings back exactly
        what was settled and what waited when it was taken. With `dry_run` it is only said what would be done.
        Attempts and delays are forgotten, but those of a snapshot. Raises `InvalidDestination` if there is no
        such subscription or partition, `SubscriptionActive` while a member is attached, `TopicChanged`.
        """
        seen = self._existing(key)
        definition = seen.definition
        topic = self._topics.describe(definition.topic)
        if topic.id != seen.content["topic_id"]:
            raise topic_changed(key, topic.name)
        found = self._info(key, seen, {})
        places = self._places(key, topic, to)
        moves = tuple(
            Move(
                partition=info.partition,
                before=info.floor,
                after=places[info.partition].floor if info.partition in places else info.floor,
                backlog=info.backlog,
            )
            for info in found.partitions
        )
        if not dry_run:
            self._lifecycle.amend(
                key,
                lambda before: before,
                lambda standing: {p: moved_from(place, standing.get(p)) for p, place in places.items()},
            )
        return moves

    def snapshot(self, key: SubscriptionKey) -> Snapshot:
        """Take the whole settled state of a subscription; its members may go on meanwhile.

        What somebody held then is not settled in it. Raises `InvalidDestination` if there is none.
        """
        seen = self._existing(key)
        lanes = seen.definition.lanes
        places: dict[int, list[Place]] = {}
        for number, view in sorted(seen.views.items()):
            places.setdefault(number // lanes, []).append(place_of(view))
        return Snapshot(
            subscription=str(key),
            topic=seen.definition.topic,
            topic_id=seen.content["topic_id"],
            taken=seen.known.now,
            definition=seen.definition.to_record(),
            partitions=tuple(partition_snapshot(partition, join(of)) for partition, of in places.items()),
        )

    def fork(self, key: SubscriptionKey, new: SubscriptionKey) -> None:
        """Make a subscription of the same definition that stands where this one does; each goes on by itself.

        Raises `InvalidDestination` if there is none, `IllegalState` if there is a `new` one already,
        `TopicChanged`.
        """
        seen = self._existing(key)
        topic = self._topics.describe(seen.definition.topic)
        if topic.id != seen.content["topic_id"]:
            raise topic_changed(key, topic.name)
        self._lifecycle.create_at(new, seen.definition, self.snapshot(key).places)

    def export(self, key: SubscriptionKey, group: str) -> Mapping[int, int]:
        """Set the offsets of a consumer group to where a subscription stands; returns them by partition.

        They are the lowest unsettled offsets: what is settled above them the group will read again. Raises
        `InvalidDestination` if there is no such subscription, `IllegalState` while the group has members.
        """
        found = self.info(key)
        floors = {partition.partition: partition.floor for partition in found.partitions}
        self._topics.commit(group, found.definition.topic, floors)
        return floors

    def _places(
        self, key: SubscriptionKey, topic: TopicInfo, to: Mapping[int, int] | str | datetime | Snapshot
    ) -> Mapping[int, Place]:
        if not isinstance(to, Snapshot):
            return {p: Place(next=offset) for p, offset in self._target(key, topic, to).items()}
        if to.topic_id != topic.id:
            raise TopicChanged(
                "The snapshot is of another topic.",
                state=f"it was taken of {to.topic} with id {to.topic_id}",
                owner=f"topic {topic.name}, subscription {key}",
                remedy="restore a snapshot of this topic",
            )
        ends = self._topics.offsets(topic.name, topic.partitions, "latest")
        beyond = [p for p, place in to.places.items() if place.next > ends.get(p, -1)]
        if beyond:
            raise InvalidDestination(
                f"The snapshot names offsets that partition {beyond[0]} of topic {topic.name} does not have.",
                state=f"it ends at {ends.get(beyond[0])}",
                owner=f"subscription {key}",
                remedy="restore a snapshot of this topic",
            )
        return to.places

    def _target(
        self, key: SubscriptionKey, topic: TopicInfo, to: Mapping[int, int] | str | datetime
    ) -> dict[int, int]:
        starts = self._topics.offsets(topic.name, topic.partitions, "earliest")
        ends = self._topics.offsets(topic.name, topic.partitions, "latest")
        if to == "earliest":
            return starts
        if to == "latest":
            return ends
        if isinstance(to, datetime):
            return self._topics.offsets_at(topic.name, topic.partitions, round(to.timestamp() * 1000))
        if isinstance(to, str) and to.startswith(_GROUP):
            committed = self._topics.committed(to.removeprefix(_GROUP), topic.name, topic.partitions)
            if not committed:
                raise InvalidDestination(
                    f"Consumer group {to.removeprefix(_GROUP)} has no offsets in topic {topic.name}.",
                    remedy="check the name of the group",
                )
            return {p: min(max(offset, starts[p]), ends[p]) for p, offset in committed.items()}
        if isinstance(to, str):
            raise IllegalState(f"A subscription cannot be moved to {to!r}.", remedy="use earliest or latest")
        wrong = [p for p, offset in to.items() if p not in ends or not starts[p] <= offset <= ends[p]]
        if wrong:
            raise InvalidDestination(
                f"Partition {wrong[0]} of topic {topic.name} has no offset {to[wrong[0]]}.",
                state=f"it keeps {starts.get(wrong[0])} to {ends.get(wrong[0])}",
                owner=f"subscription {key}",
                remedy="name an offset in between",
            )
        return dict(to)

    def unsubscribe(self, key: SubscriptionKey) -> None:
        """Delete a subscription with all that waits in it (rules X1-X5).

        Raises `InvalidDestination` if there is none, `SubscriptionActive` while a member is attached,
        `IllegalState` while deliveries are unsettled.
        """
        self._existing(key)
        self._lifecycle.unsubscribe(UnsubscribeRequest(key=key))
