"""Changes of subscriptions: create, replace, delete, alter, move, copy.

A change is begun in Redis (CHANGING), written to the journal, decided there by log order, and installed. So a
stop after any step leaves nothing half made: a process that finds a change past its deadline finishes it.
Whether a change is allowed, and which members are attached, is decided in `lifecycle.py`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kafkadur_coordinators.interface import Known, PartitionView, in_groups
from kafkadur_coordinators.journal.origins import state_of
from kafkadur_coordinators.journal.records import Change, Entry, InForce, in_force, last_incarnation
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_coordinators.redis.coordinator import (
    STATE_VERSION_BEFORE,
    Call,
    RedisCoordinator,
    Refusal,
    SubscriptionAddress,
)
from kafkadur_coordinators.redis.replies import inspection
from kafkadur_coordinators.redis.replies import known as known_of
from kafkadur_coordinators.redis.wire import (
    ChangeRequest,
    InstallRequest,
    Laid,
    PartitionsRequest,
    Policy,
    Reply,
)
from kafkadur_coordinators.settlement_states import (
    SettlementState,
    by_partition,
    earliest,
    moved_from,
    packed,
)
from kafkadur_coordinators.topics import TopicInfo, Topics
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.keys import SubscriptionKey

#: How long a change or a rebuild may take before another process may finish it, ms.
CHANGE_MS = 20_000
#: About how many lanes a key-ordered subscription has, and how many a partition of it has at most.
_LANES, _LANES_OF_ONE = 64, 16


class Outdated(Refusal):
    """The journal knows a later incarnation of the subscription than this server: that is rebuilt first."""

    def __init__(self, number: int) -> None:
        """`number` of the later incarnation."""
        super().__init__(Reply("OUTDATED", sequence=0, incarnation=number, now=0))
        self.number = number


class Made(NamedTuple):
    """A change that is in force now."""

    token: str
    #: of the definition that it made
    version: int


class Changes:
    """Carries out changes. One thread at a time."""

    def __init__(
        self,
        *,
        coordinator: RedisCoordinator,
        journal: Journal,
        topics: Topics,
        prefix: str,
    ) -> None:
        """Remember the services that a change uses; `prefix` is that of all Redis keys."""
        self._coordinator = coordinator
        self._journal = journal
        self._topics = topics
        self._prefix = prefix

    def address(self, key: SubscriptionKey) -> SubscriptionAddress:
        """Where the state of a subscription lies."""
        return SubscriptionAddress(prefix=self._prefix, namespace=key.namespace, tag=key.tag)

    def install(
        self,
        key: SubscriptionKey,
        found: InForce,
        *,
        token: str,
        incarnation: int,
        settlements: Mapping[int, SettlementState] | None = None,
        held: int = 0,
    ) -> None:
        """Put the definition in force into Redis.

        `held`: ms after the installation in which only the process with this token can attach a member.
        `settlements` are more exact than the journal; another process that finishes this does not have them.
        """
        change = found.change
        address = self.address(key)
        if change.definition is None:
            self._install_deletion(key, version=found.version, incarnation=incarnation, token=token)
            return
        definition = found.definition
        topic = self._topics.describe(definition.topic)
        starts = {**dict.fromkeys(range(topic.partitions), 0), **change.starts}
        self.put_partitions(
            key,
            found.id,
            TopicInfo(name=topic.name, id=change.topic_id, partitions=len(starts)),
            {p: SettlementState(next=start) for p, start in starts.items()} | dict(settlements or {}),
            token=token,
            lanes=definition.lanes,
            aside=True,
        )
        lanes = len(starts) * definition.lanes
        self._coordinator.run(
            *self.installing(address, found, lanes=lanes, token=token, incarnation=incarnation, held=held)
        )

    def installing(
        self,
        address: SubscriptionAddress,
        found: InForce,
        *,
        lanes: int,
        token: str,
        incarnation: int,
        quiet_ms: int = 0,
        anew: bool = False,
        seen: int = 0,
        unclaimed: int = 0,
        held: int = 0,
    ) -> Call:
        """The call that installs a definition whose partitions are laid.

        `lanes`: of all partitions together; `quiet_ms`: how long nothing is granted; `anew`: also in place of
        an older copy of the same subscription; `seen`: a state in Redis with a lower incarnation is such an
        old copy; `unclaimed`: leases of incarnations below this one cannot be claimed; `held` as in
        `install`.
        """
        request = InstallRequest(
            id=found.id,
            version=found.version,
            definition=content_of(found),
            type=found.definition.type.value,
            partitions=lanes,
            incarnation=incarnation,
            token=token,
            quiet=quiet_ms,
            policy=Policy(*found.definition.policy),
            anew=int(anew),
            unclaimed=unclaimed,
            held=held,
        )
        common = self._coordinator.common(incarnation=-seen)
        return ("install", address.fixed(), [*common, *request])

    def deleting(
        self, address: SubscriptionAddress, *, version: int, incarnation: int, token: str, seen: int = 0
    ) -> Call:
        """The call that puts into Redis that there is no such subscription."""
        request = InstallRequest(
            id="",
            version=version,
            definition="",
            type="",
            partitions=0,
            incarnation=incarnation,
            token=token,
            quiet=0,
            policy=(),
            anew=0,
            unclaimed=0,
        )
        common = self._coordinator.common(incarnation=-seen)
        return ("install", address.fixed(), [*common, *request])

    def _install_deletion(self, key: SubscriptionKey, *, version: int, incarnation: int, token: str) -> None:
        address = self.address(key)
        self._coordinator.run(*self.deleting(address, version=version, incarnation=incarnation, token=token))

    def put_partitions(
        self,
        key: SubscriptionKey,
        subscription_id: str,
        topic: TopicInfo,
        settlements: Mapping[int, SettlementState],
        *,
        token: str,
        lanes: int = 1,
        aside: bool = False,
    ) -> None:
        """Write the state of partitions: all lanes of a partition get the same.

        `aside`: write to the state that is installed next, not to the one in force.
        """
        by_lane = {
            p * lanes + lane: settlement for p, settlement in settlements.items() for lane in range(lanes)
        }
        state, total = state_of(topic.id, lanes), topic.partitions * lanes
        calls = self.laying(
            self.address(key), subscription_id, state, by_lane, token=token, total=total, aside=aside
        )
        for call in calls:
            self._coordinator.run(*call)

    def laying(
        self,
        address: SubscriptionAddress,
        subscription_id: str,
        state: str,
        by_lane: Mapping[int, SettlementState],
        *,
        token: str,
        total: int,
        aside: bool,
        seen: int = 0,
    ) -> Iterator[Call]:
        """Yield the calls that write the state of lanes; `total`: the number of all lanes.

        `aside`: write to the state that is installed next, not to the one in force.

        The last call makes that number known: no member touches a lane before all of them have a state.
        """
        groups = list(in_groups(sorted(by_lane)))
        for group in groups:
            keys = address.keys(subscription_id, state, group)
            parts = [
                Laid(number, settlement.next, settlement.seen, packed(settlement), earliest(settlement))
                for number, settlement in ((number, by_lane[number]) for number in group)
            ]
            common = self._coordinator.common(incarnation=-seen)
            yield (
                "partitions",
                keys,
                [
                    *common,
                    *PartitionsRequest(parts, token, total if group is groups[-1] else 0, int(aside)),
                ],
            )

    def change(
        self,
        key: SubscriptionKey,
        known: Known,
        definition: Definition | None,
        settlements: Mapping[int, SettlementState] | None = None,
        *,
        held: int = 0,
    ) -> Made | None:
        """Create, replace (`definition`) or delete (None) the subscription in force, which is `known`.

        A new one begins where its definition says, or at `settlements`. Returns None if another process was
        faster: the caller reads the state again. For `held` ms only a member that is attached with the token
        of this change can attach. Raises `Refusal` when it can't begin.
        """
        token = uuid.uuid4().hex
        topic_id, starts = "", {}
        if definition is not None:
            topic = self._topics.describe(definition.topic)
            topic_id = topic.id
            definition = with_lanes(definition, topic.partitions)
            starts = self._topics.offsets(definition.topic, topic.partitions, definition.start)
            starts |= {partition: settlement.floor for partition, settlement in (settlements or {}).items()}
        entries = self._begin(key, known, token)
        # no journal is created for a non-durable subscription
        shard = self._journal.shard(key.tag) if key.durable else 0
        before = in_force(entries, key.tag, shard)
        change = Change(
            tag=key.tag,
            key=key.to_record(),
            expected=_expected(known.version, before) if key.durable else known.version,
            under=last_incarnation(entries, key.tag),
            definition=None if definition is None else definition.to_record(),
            id=None if key.durable else f"n.{token}",
            topic_id=topic_id,
            starts=starts,
        )
        found: InForce | None
        if key.durable:
            version = self._journal.append_change(shard, change)
            found = in_force(self._journal.read(shard), key.tag, shard)
            incarnation = max(version, known.incarnation + 1)
        else:
            version, incarnation = known.version + 1, known.incarnation + 1
            found = InForce(version=version, id=f"n.{token}", change=change)
        mine = found is not None and found.version == version
        if found is not None:
            settlements = settlements if mine else None
            held = held if mine else 0
            self.install(key, found, token=token, incarnation=incarnation, settlements=settlements, held=held)
            if found.id != known.id:  # else another process gave this change up
                self._forget(known, self.address(key))
        return Made(token, version) if mine else None

    def amend(
        self,
        key: SubscriptionKey,
        known: Known,
        definition: Definition,
        move: Callable[[Mapping[int, SettlementState]], Mapping[int, SettlementState]] | None,
        *,
        held: int = 0,
    ) -> Made | None:
        """Change the definition and keep settled offsets.

        `move` maps the current settlement states to the new ones. It is called when no member can attach any
        more; partitions that it leaves out keep their settlement states. `held` and the result are those of
        `change`. Raises `Refusal` when it can't begin.
        """
        token = uuid.uuid4().hex
        content = json.loads(known.definition)
        shard = self._journal.shard(key.tag)
        entries = self._begin(key, known, token)
        relaid = definition_of(known).lanes != definition.lanes
        starts = {int(partition): offset for partition, offset in content["starts"].items()}
        origins = origins_of(content)
        settlements: dict[int, SettlementState] | None = None
        if relaid or move is not None or self._is_before(known):
            standing = self.settlements(key, known)
            given = {} if move is None else dict(move(standing))
            settlements = {**standing, **given} if relaid or self._is_before(known) else given
            starts |= {p: settlement.floor for p, settlement in (standing | given).items()}
        change = Change(
            tag=key.tag,
            key=key.to_record(),
            expected=_expected(known.version, in_force(entries, key.tag, shard)),
            under=last_incarnation(entries, key.tag),
            definition=definition.to_record(),
            id=known.id,
            topic_id=content["topic_id"],
            starts=starts,
            epoch=content.get("epoch", 0) + (settlements is not None),
            origins={p: min(start, origins.get(p, start)) for p, start in starts.items()},
        )
        version = self._journal.append_change(shard, change)
        found = in_force(self._journal.read(shard), key.tag, shard)
        mine = found is not None and found.version == version
        if found is not None:
            self._install_over(key, found, known, settlements if mine else None, held=held if mine else 0)
        return Made(token, version) if mine else None

    def _begin(self, key: SubscriptionKey, known: Known, token: str) -> Sequence[Entry]:
        """Begin a change; returns the journal's entries of the shard. Raises `Refusal` when it cannot begin.

        The journal is read first: a rebuild after that makes the record of the change void. A server that was
        replaced by another one must not begin a change (found by model checking): `Outdated`.
        """
        entries = self._journal.read(self._journal.shard(key.tag)) if key.durable else ()
        latest = last_incarnation(entries, key.tag)
        if known.version and latest > known.incarnation:
            raise Outdated(latest)
        self._coordinator.call(
            "change",
            self.address(key).fixed(),
            [*self._coordinator.common(), *ChangeRequest(known.version, token, CHANGE_MS)],
        )
        return entries

    def resolve(self, key: SubscriptionKey, known: Known) -> None:
        """Finish a change that is past its deadline.

        Append an abort, then install the change that the log decides on.
        """
        if not key.durable:  # its creation was not finished, or its deletion was not
            version, incarnation = known.version + 1, known.incarnation + 1
            token = self._changing_token(key)
            self._install_deletion(key, version=version, incarnation=incarnation, token=token)
            return
        shard = self._journal.shard(key.tag)
        entries = self._journal.read(shard)
        before = in_force(entries, key.tag, shard)
        expected, under = _expected(known.changing_from, before), last_incarnation(entries, key.tag)
        abort = Change(tag=key.tag, key=key.to_record(), expected=expected, under=under)
        if before is not None and before.version == known.changing_from:
            abort = replace(before.change, key=abort.key, expected=expected, under=under, id=before.id)
        self._journal.append_change(shard, abort)
        found = in_force(self._journal.read(shard), key.tag, shard)
        if found is not None:
            self._install_over(key, found, known)

    def _install_over(
        self,
        key: SubscriptionKey,
        found: InForce,
        known: Known,
        settlements: Mapping[int, SettlementState] | None = None,
        *,
        held: int = 0,
    ) -> None:
        """Install the change in force in place of `known`, after writing the state of the partitions.

        Where the number of lanes changes, or the state is of the version before, it is written beside the old
        state, so that this can be repeated.
        """
        change, token = found.change, self._changing_token(key)
        incarnation = max(found.version, known.incarnation + 1)
        if change.definition is None:
            self._install_deletion(key, version=found.version, incarnation=incarnation, token=token)
            return
        address, lanes = self.address(key), found.definition.lanes
        content = json.loads(known.definition) if known.definition else {}
        same = found.id == known.id
        relaid = same and (definition_of(known).lanes != lanes or self._is_before(known))
        if relaid or not same or change.epoch != content.get("epoch", 0):
            topic = TopicInfo(name="", id=change.topic_id, partitions=len(change.starts))
            laid = {p: SettlementState(next=start) for p, start in change.starts.items()}
            if same:
                standing = self.settlements(key, known)
                laid = {
                    p: moved_from(settlement, standing.get(p))
                    for p, settlement in laid.items()
                    if p not in standing or standing[p].floor != settlement.next
                }
                laid = {**standing, **laid} if relaid else laid
            self.put_partitions(
                key,
                found.id,
                topic,
                {**laid, **(settlements or {})},
                token=token,
                lanes=lanes,
                aside=relaid or not same,
            )
        total = len(change.starts) * lanes
        self._coordinator.run(
            *self.installing(
                address,
                found,
                lanes=total,
                token=token,
                incarnation=incarnation,
                anew=relaid,
                held=held,
            )
        )
        if relaid:
            self._forget(known, address)

    def views(self, key: SubscriptionKey, known: Known) -> dict[int, PartitionView]:
        """The state of each partition or lane of keys; that of at most 16 is of one moment."""
        found = self.inspected(self.address(key), known.id, state_in_force(known), known.partitions)
        return {view.partition: view for view in found}

    def inspected(
        self, address: SubscriptionAddress, subscription_id: str, state: str, lanes: int, token: str = ""
    ) -> Iterator[PartitionView]:
        """Yield the state of the first so many lanes; `token` is that of a rebuild."""
        for wanted in in_groups(range(lanes)):
            call = self._coordinator.inspecting(address, subscription_id, state, wanted, token=token)
            yield from inspection(self._coordinator.call(*call)).partitions

    def settlements(self, key: SubscriptionKey, known: Known) -> dict[int, SettlementState]:
        """Where a subscription stands, by partition."""
        return by_partition(self.views(key, known), definition_of(known).lanes)

    def _is_before(self, known: Known) -> bool:
        """Whether the state is of an earlier version than new ones are."""
        return 0 < known.state_version < self._coordinator.state_version

    def _changing_token(self, key: SubscriptionKey) -> str:
        reply = self._coordinator.run("peek", self.address(key).fixed(), self._coordinator.common())
        return known_of(reply).changing if reply.body and reply.code in ("OK", "MISSING") else ""

    def _forget(self, known: Known, address: SubscriptionAddress) -> None:
        """Remove the partitions' state of a subscription that was replaced, deleted or laid anew.

        Only state of the version before has keys of its own for each partition.
        """
        if not known.definition or known.state_version != STATE_VERSION_BEFORE:
            return
        state = state_in_force(known)
        for partition in range(known.partitions):
            self._coordinator.command("UNLINK", *address.partition(known.id, state, partition))


def origins_of(content: Mapping[str, Any]) -> dict[int, int]:
    """Where a subscription began, by partition, from the record in force."""
    return {int(p): offset for p, offset in (content.get("origins") or content["starts"]).items()}


def definition_of(known: Known) -> Definition:
    """The definition in force."""
    return Definition.from_record(json.loads(known.definition)["definition"])


def state_in_force(known: Known) -> str:
    """The name of the state of the partitions under the definition in force."""
    return state_of(json.loads(known.definition)["topic_id"], definition_of(known).lanes)


def with_lanes(definition: Definition, partitions: int) -> Definition:
    """Choose the number of lanes a partition for a new key-ordered subscription that does not name it."""
    if definition.type is not SubscriptionType.KEY_ORDERED or definition.key_lanes is not None:
        return definition
    return replace(definition, key_lanes=max(1, min(_LANES_OF_ONE, _LANES // partitions)))


def _expected(version: int, found: InForce | None) -> int:
    """Version that a change replaces in the journal, where Redis has `version`.

    After an unsubscribe Redis has no version (0), and the journal that of the deletion.
    """
    return found.version if version == 0 and found is not None and deleted(found) else version


def deleted(found: InForce | None) -> bool:
    """Tell whether the journal has no such subscription (any more)."""
    return found is None or found.change.definition is None


def content_of(found: InForce) -> str:
    """The journal record in force, as it is kept in Redis."""
    change = found.change
    return json.dumps(
        {
            "key": dict(change.key),
            "definition": change.definition,
            "topic_id": change.topic_id,
            "starts": {str(p): o for p, o in change.starts.items()},
            "epoch": change.epoch,
            "origins": {str(p): o for p, o in (change.origins or change.starts).items()},
        }
    )
