"""Change subscriptions: pause, alter, move, copy, unsubscribe.

`inspector.py` reads subscriptions; the coordinators' `lifecycle.py` carries out the changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from typing_extensions import Unpack

from kafkadur.admin.browse import bounds
from kafkadur.admin.inspector import Explained, Inspector
from kafkadur.admin.retroactive import Skipped
from kafkadur.admin.snapshots import Snapshot, partition_snapshot
from kafkadur.admin.subscription_info import (
    PartitionInfo,
    SubscriptionInfo,
    handled_key,
    is_handled_key,
    without_records,
)
from kafkadur_coordinators.changes import origins_of
from kafkadur_coordinators.interface import MemberInfo
from kafkadur_coordinators.journal.rebuilding import Rebuilt
from kafkadur_coordinators.journal.recovery_reports import Recovery
from kafkadur_coordinators.settlement_states import (
    SettlementState,
    by_partition,
    difference,
    moved_from,
    unsettle,
)
from kafkadur_coordinators.topics import TopicInfo
from kafkadur_sharing.changing import Changes, changed, created
from kafkadur_sharing.decisions import UnsubscribeRequest
from kafkadur_sharing.definition import Definition, Start
from kafkadur_sharing.errors import IllegalState, InvalidDestination, TopicChanged
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.selector import parse_selector

__all__ = ["Admin", "Explained", "Move", "PartitionInfo", "SubscriptionInfo"]

#: Prefix of the name of a consumer group.
_GROUP = "group:"
#: Seconds between two looks at a subscription that is being drained.
_DRAIN_EVERY = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """The effect of a seek on a partition."""

    partition: int
    #: Lowest unsettled offset before and after.
    before: int
    after: int
    #: Unsettled messages before; None if there is no such topic.
    backlog: int | None
    #: Messages that were settled and are delivered again, and unsettled ones that are skipped: offsets that
    #: Kafka keeps, those that the selector does not match included.
    again: int
    skipped: int


def _move(info: PartitionInfo, standing: SettlementState | None, target: SettlementState | None) -> Move:
    """Return the effect of a seek.

    `standing` None: the subscription does not know the partition yet. `target` None: it is not moved.
    """
    start, end = info.log_start or 0, info.log_end or 0
    standing = standing or SettlementState(next=start)
    again, skipped = difference(standing, target or standing, start, end)
    return Move(
        partition=info.partition,
        before=info.floor,
        after=info.floor if target is None else target.floor,
        backlog=info.backlog,
        again=again,
        skipped=skipped,
    )


class Admin(Inspector):
    """Read and change the subscriptions of one namespace; a context manager.

    Used by one thread at a time.

    Every method raises `CoordinatorUnavailable` and `CoordinatorRefused` when Redis cannot be asked,
    `KafkaUnavailable` when Kafka does not answer, and `StateLost` when no consistent state is reached in
    time.
    """

    def recoveries(self) -> list[Recovery]:
        """Return the last recovery of each durable subscription that had one, by name."""
        return self._lifecycle.recoveries() if self._has_journal() else []

    def rebuild(self, told: Callable[[int, int], None] = lambda _done, _all: None) -> Rebuilt:
        """Restore at once what Redis lost of all subscriptions of the namespace.

        This is optional: each subscription is restored when it is used. `told` is called with the numbers of
        subscriptions that are done and of all.
        """
        self._coordinator.connect()
        return self._lifecycle.rebuild_all(told) if self._has_journal() else Rebuilt({})

    def pause(self, key: SubscriptionKey, *, paused: bool = True) -> None:
        """Pause a subscription, or resume it (`paused` False).

        A paused subscription delivers nothing. Messages in flight can be settled; members stay attached. The
        pause is kept in Redis only: if Redis loses its memory, the subscription resumes. Raises
        `InvalidDestination` if there is none.
        """
        address = self._lifecycle.address(key)
        self._repeated(
            key, lambda: self._coordinator.pause(address, self._existing(key).known.id, paused=paused)
        )

    def evict(self, key: SubscriptionKey, member: str) -> MemberInfo:
        """End the session of a member, as if it had died; returns what it was.

        `member` is its id, or its name if no other one has it. Its messages are delivered again, to whichever
        member comes next, and count as attempts. Its process is told with `LeaseLost`, and attaches again if
        it lives. Raises `InvalidDestination` if there is no such subscription or member, `IllegalState` if
        several have the name.
        """
        found = self.member(key, member)
        address = self._lifecycle.address(key)
        self._repeated(key, lambda: self._coordinator.evict(address, self._existing(key).known.id, found.id))
        return found

    def sweep(self, key: SubscriptionKey) -> None:
        """End the sessions of members that died, as the next member of the subscription would.

        A process that died a moment ago is found by the second call. Raises `InvalidDestination` if there is
        no such subscription.
        """
        address = self._lifecycle.address(key)
        self._repeated(key, lambda: self._coordinator.sweep(address, self._existing(key).known.id))

    def sweep_nondurable(self) -> int:
        """Delete subscriptions without `durable` whose consumers all died; some in each call.

        Returns how many were looked at; 0: all have been, just now.
        """
        return self._lifecycle.sweep(self._settings.namespace)

    def member(self, key: SubscriptionKey, member: str) -> MemberInfo:
        """Return a member by its id, or by its name if no other one has it; raises as `evict`."""
        found = self.info(key)
        named = [each for each in found.members if member in (each.id, each.name)]
        if not named:
            raise InvalidDestination(
                f"Subscription {key} has no member {member!r}.",
                state=f"members: {', '.join(each.name or each.id for each in found.members) or 'none'}",
                remedy="name one of them",
            )
        if len(named) > 1:
            raise IllegalState(
                f"Several members of subscription {key} have the name {member!r}.",
                state=f"ids: {', '.join(each.id for each in named)}",
                remedy="name one of these ids",
            )
        return named[0]

    def drain(
        self,
        key: SubscriptionKey,
        *,
        timeout: float = 60.0,
        on_progress: Callable[[SubscriptionInfo], None] = lambda _: None,
    ) -> SubscriptionInfo:
        """Pause a subscription and wait until none of its messages is in flight.

        Members give back the messages that they have not delivered. Returns the state at the end or after
        `timeout` seconds: `held` names the members that still have messages in flight. The subscription stays
        paused. Raises `InvalidDestination` if there is none.
        """
        self.pause(key)
        deadline = time.monotonic() + timeout
        while True:
            found = self.info(key)
            on_progress(found)
            if not found.held or time.monotonic() > deadline:
                return found
            time.sleep(_DRAIN_EVERY)  # polls for a condition, with a deadline

    def create(
        self,
        key: SubscriptionKey,
        topic: str,
        *,
        start: Start = "latest",
        **parts: Unpack[Changes],
    ) -> Definition:
        """Create a durable subscription without attaching to it; returns its definition.

        `start` and `parts` are as in `Connection.subscribe`, the parts of the redelivery policy also one by
        one. Raises `IllegalState` if there is such a subscription already, for an exclusive one without a
        client id (rule U1) and for wrong parts, `InvalidDestination` if there is no such topic,
        `InvalidSelector`, `InvalidName`.
        """
        definition = created(key, topic, start, parts, mode=self._settings.mode)
        self._coordinator.connect()
        self._lifecycle.create(key, definition)
        return self._existing(key).definition

    def alter(
        self,
        key: SubscriptionKey,
        *,
        retroactive: bool = False,
        on_progress: Callable[[int], None] = lambda _: None,
        **changes: Unpack[Changes],
    ) -> Definition:
        """Change the definition in place, keeping what is settled and what waits; returns the new definition.

        `changes` are those of `Connection.alter`. If the number of lanes of keys changes (with
        a key-ordered type, for example), only the offsets that every lane has passed stay settled: messages
        that a faster lane settled above them are delivered again. With `retroactive` the topic is read once
        more, and the messages are delivered that the old selector skipped since the subscription was created
        and that the new one takes; `on_progress` is called with the number of records read. State that the
        version before stores is stored as this version does, also without changes. Raises
        `InvalidDestination` if there is none, `SubscriptionActive` while a member is attached,
        `InvalidSelector`, `IllegalState` for a change that is not possible.
        """
        parse_selector(changes.get("selector"))
        seen = self._existing(key)

        def change(before: Definition) -> Definition:
            return changed(key, before, changes, mode=self._settings.mode)

        if not retroactive:
            return self._lifecycle.amend(key, change)
        if change(seen.definition).selector == seen.definition.selector:
            raise IllegalState(
                "The selector stays as it is, so nothing is retroactive.",
                state=f"selector={seen.definition.selector!r}",
                owner=f"subscription {key}",
                remedy="to have messages again that an earlier selector skipped, `kafkadur sub seek` to them",
            )
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

        def look(settlements: Mapping[int, SettlementState]) -> None:
            skipped.look({p: (start, settlements[p].next) for p, start in starts.items() if p in settlements})

        def unsettled(settlements: Mapping[int, SettlementState]) -> Mapping[int, SettlementState]:
            look(settlements)  # also the messages that members settled since
            found = {
                partition: skipped.found(partition, settlement.next)
                for partition, settlement in settlements.items()
            }
            return {
                partition: unsettle(settlements[partition], offsets)
                for partition, offsets in found.items()
                if offsets
            }

        look(self._lifecycle.settlements(key, seen.known))
        return self._lifecycle.amend(key, change, unsettled)

    def seek(
        self,
        key: SubscriptionKey,
        to: Mapping[int, int] | str | datetime | Snapshot,
        *,
        dry_run: bool = False,
    ) -> tuple[Move, ...]:
        """Move a subscription: everything at or after the new position is delivered (again), nothing before.

        `to` is `earliest`, `latest`, `group:NAME` (the offsets of that consumer group), a time (the first
        message at or after it), or offsets by partition; other partitions are not moved. A snapshot restores
        exactly what was settled and what waited when it was taken. With `dry_run` nothing is changed, and the
        moves are only returned. Attempts and delays are forgotten, except those of a snapshot. Raises
        `InvalidDestination` if there is no such subscription or partition, `SubscriptionActive` while a
        member is attached, `TopicChanged`.
        """
        seen = self._existing(key)
        topic = self._topic_of(key, seen)
        found = self._info(key, seen, {})
        settlements = self._settlements(key, topic, to)
        standing = by_partition(seen.views, seen.definition.lanes)
        moves = tuple(
            _move(info, standing.get(info.partition), settlements.get(info.partition))
            for info in found.partitions
        )
        if not dry_run:
            self._lifecycle.amend(
                key,
                lambda before: before,
                lambda standing: {
                    p: moved_from(settlement, standing.get(p)) for p, settlement in settlements.items()
                },
            )
        return moves

    def snapshot(self, key: SubscriptionKey) -> Snapshot:
        """Return the whole settled state of a subscription; its members can go on meanwhile.

        Messages in flight are not settled in the snapshot. Raises `InvalidDestination` if there is none.
        """
        seen = self._existing(key)
        settlements = by_partition(seen.views, seen.definition.lanes)
        return Snapshot(
            subscription=str(key),
            topic=seen.definition.topic,
            topic_id=seen.content["topic_id"],
            taken=seen.known.now,
            definition=seen.definition.to_record(),
            partitions=tuple(
                partition_snapshot(partition, settlement) for partition, settlement in settlements.items()
            ),
        )

    def fork(self, key: SubscriptionKey, new: SubscriptionKey) -> None:
        """Create an independent subscription with the same definition and the same settled state.

        Raises `InvalidDestination` if there is none, `IllegalState` if there is a `new` one already,
        `TopicChanged`.
        """
        seen = self._existing(key)
        self._topic_of(key, seen)
        self._lifecycle.create(new, seen.definition, self.snapshot(key).settlements)

    def export(self, key: SubscriptionKey, group: str) -> Mapping[int, int]:
        """Set the offsets of a consumer group to the floors of a subscription; returns them by partition.

        A floor is the lowest unsettled offset: the group reads messages that are settled above it again.
        Raises `InvalidDestination` if there is no such subscription, `IllegalState` while the group has
        members.
        """
        found = self.info(key)
        floors = {partition.partition: partition.floor for partition in found.partitions}
        self._topics.commit(group, found.definition.topic, floors)
        return floors

    def _settlements(
        self, key: SubscriptionKey, topic: TopicInfo, to: Mapping[int, int] | str | datetime | Snapshot
    ) -> Mapping[int, SettlementState]:
        if not isinstance(to, Snapshot):
            return {p: SettlementState(next=offset) for p, offset in self._target(key, topic, to).items()}
        if to.topic_id != topic.id:
            raise TopicChanged(
                "The snapshot is of another topic.",
                state=f"it was taken of {to.topic} with id {to.topic_id}",
                owner=f"topic {topic.name}, subscription {key}",
                remedy="restore a snapshot of this topic",
            )
        ends = self._topics.offsets(topic.name, topic.partitions, "latest")
        beyond = [p for p, settlement in to.settlements.items() if settlement.next > ends.get(p, -1)]
        if beyond:
            raise InvalidDestination(
                f"The snapshot names offsets that partition {beyond[0]} of topic {topic.name} does not have.",
                state=f"it ends at {ends.get(beyond[0])}",
                owner=f"subscription {key}",
                remedy="restore a snapshot of this topic",
            )
        return to.settlements

    def _target(
        self, key: SubscriptionKey, topic: TopicInfo, to: Mapping[int, int] | str | datetime
    ) -> dict[int, int]:
        kept = bounds(self._topics, topic)
        if to in ("earliest", "latest"):
            return {p: start if to == "earliest" else end for p, (start, end) in kept.items()}
        if isinstance(to, datetime):
            return self._topics.offsets_at(topic.name, topic.partitions, round(to.timestamp() * 1000))
        if isinstance(to, str) and to.startswith(_GROUP):
            committed = self._topics.committed(to.removeprefix(_GROUP), topic.name, topic.partitions)
            if not committed:
                raise InvalidDestination(
                    f"Consumer group {to.removeprefix(_GROUP)} has no offsets in topic {topic.name}.",
                    remedy="check the name of the group",
                )
            return {p: min(max(offset, kept[p][0]), kept[p][1]) for p, offset in committed.items()}
        if isinstance(to, str):
            raise IllegalState(f"A subscription cannot be moved to {to!r}.", remedy="use earliest or latest")
        for partition, offset in to.items():
            start, end = kept.get(partition, (None, None))
            if start is None or end is None or not start <= offset <= end:
                raise InvalidDestination(
                    f"Partition {partition} of topic {topic.name} has no offset {offset}.",
                    state=f"its partitions are 0 to {topic.partitions - 1}"
                    if start is None
                    else f"it keeps {start} to {end}",
                    owner=f"subscription {key}",
                    remedy="name one of these",
                )
        return dict(to)

    def refuse_record(self, found: SubscriptionInfo) -> None:
        """Raise `IllegalState` for one that records which dead letters of another one were handled."""
        if not is_handled_key(found.key):
            return
        kept = {info.key for info in without_records(self.list())}
        of = next((key for key in kept if handled_key(key) == found.key), None)
        if of is None or found.key in kept:
            return
        raise IllegalState(
            f"Subscription {found.key} records which dead letters of {of} were handled.",
            state="without it all of them, those that were redriven or purged, too, are dead letters again",
            owner=f"kafkadur sub dead, subscription {of}",
            remedy=f"to see the dead letters that are left, `kafkadur sub dead ls {of}`; to have all of them "
            f"again, `kafkadur sub seek {found.key} earliest`",
        )

    def unsubscribe(self, key: SubscriptionKey) -> None:
        """Delete a subscription with all its unsettled messages (rules X1-X5).

        Raises `InvalidDestination` if there is none, `SubscriptionActive` while a member is attached,
        `IllegalState` while deliveries are unsettled.
        """
        self._existing(key)
        self._lifecycle.unsubscribe(UnsubscribeRequest(key=key))
