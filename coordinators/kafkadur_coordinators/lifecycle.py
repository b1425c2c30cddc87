"""The life of a subscription: attach, create, replace, unsubscribe, and rebuild when Redis lost it.

Joins the three parts that know something: the shared state (`redis_coordinator.py`), the journal
(`journal.py`) and Kafka (`topics.py`). What is to be done is decided by the pure rules of kafkadur_sharing;
here it is carried out, each step so that stopping after it leaves nothing half made: a change is begun in
Redis (CHANGING), written to the journal, decided there by log order, and installed. Whoever finds a change
past its deadline finishes it.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kafkadur_coordinators.interface import MAX_PARTITIONS, UNRANKED, Attached, Known, Rank
from kafkadur_coordinators.journal import Journal
from kafkadur_coordinators.records import Change, InForce, in_force, last_incarnation
from kafkadur_coordinators.redis_coordinator import (
    MemberSession,
    RedisCoordinator,
    Refusal,
    SubscriptionAddress,
    state_lost,
)
from kafkadur_coordinators.topics import TopicInfo, Topics, floor_metadata
from kafkadur_sharing.decisions import (
    Attach,
    Create,
    Existing,
    Refuse,
    Replace,
    Request,
    UnsubscribeRequest,
    decide,
    decide_unsubscribe,
)
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import CoordinatorRefused, IllegalState, SubscriptionActive, TopicChanged
from kafkadur_sharing.keys import SubscriptionKey

#: How long a change or a rebuild may take before somebody else may finish it, ms.
CHANGE_MS = 20_000
#: How long to wait for a member that seems to be gone before refusing, seconds: its channel must be silent
#: for 0.5 s.
GONE_WAIT = 1.5
#: How long the whole of an attach may take, seconds.
ATTACH_WAIT = 60.0
#: How many left non-durable subscriptions one attach looks at, and not again for so long.
_SWEPT_AT_ONCE, _LOOK_AGAIN_MS = 5, 1_000
#: How often ending a non-durable subscription is tried; then it is left to the next who comes by.
_END_TRIES = 10


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """A subscription as a member needs it."""

    key: SubscriptionKey
    id: str
    version: int
    definition: Definition
    topic: TopicInfo
    address: SubscriptionAddress
    #: Rises when the subscription is moved (seek); floors that were mirrored before mean nothing then.
    epoch: int

    @property
    def floor_metadata(self) -> str:
        """Commit metadata of its mirrored floor; empty for a non-durable one, which has none."""
        return "" if not self.key.durable else floor_metadata(self.id, self.epoch, self.topic.id)


@dataclass(frozen=True, kw_only=True)
class Membership:
    """An attached member."""

    subscription: Subscription
    session: MemberSession
    attached: Attached


def _key_record(key: SubscriptionKey) -> dict[str, Any]:
    return {
        "namespace": key.namespace,
        "durable": key.durable,
        "client_id": key.client_id,
        "policy": key.policy.value,
        "name": key.name,
    }


def _packed(key: SubscriptionKey) -> str:
    return json.dumps(_key_record(key), sort_keys=True)


def _content(found: InForce) -> str:
    """The journal record in force, as it is kept in Redis."""
    change = found.change
    return json.dumps(
        {
            "key": dict(change.key),
            "definition": change.definition,
            "topic_id": change.topic_id,
            "starts": {str(p): o for p, o in change.starts.items()},
            "epoch": change.epoch,
        }
    )


class Lifecycle:
    """Carries out decisions about subscriptions. One thread at a time."""

    def __init__(
        self,
        *,
        coordinator: RedisCoordinator,
        journal: Journal,
        topics: Topics,
        prefix: str,
        session_ms: int,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """`session_ms`: session time-out of members attached here, ms.

        Clock, waiting and randomness can be replaced.
        """
        self._coordinator = coordinator
        self._journal = journal
        self._topics = topics
        self._prefix = prefix
        self._session_ms = session_ms
        self._monotonic = monotonic
        self._wait = wait
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries, no secret

    def address(self, key: SubscriptionKey) -> SubscriptionAddress:
        """Where the state of a subscription lies."""
        return SubscriptionAddress(prefix=self._prefix, namespace=key.namespace, tag=key.tag)

    # -- attaching

    def attach(
        self,
        request: Request,
        *,
        member: str,
        name: str,
        whole: bool = False,
        rank: Rank = UNRANKED,
        only: str | None = None,
        before: Callable[[SubscriptionAddress], None] = lambda _: None,
    ) -> Membership:
        """Attach `member`, creating or replacing the subscription where the rules say so.

        `name` is shown to people. `whole` claims the subscription for one holder that reads it as a whole
        (Spark); it is refused while others are attached, and others while it is. `only` attaches to the
        subscription of this id or to none: who was attached must not bring back what was deleted since.
        `before` is called with the address before the member is attached: it must begin to listen then.
        Raises what the rules say, `SubscriptionActive` naming the holder, and `StateLost` when no
        consistent state could be reached in time.
        """
        key = request.key
        address = self.address(key)
        self._begin(key, new=only is None)
        before(address)
        deadline = self._monotonic() + ATTACH_WAIT
        refused_at: float | None = None
        while self._monotonic() < deadline:
            known = self._known(key)
            if known is None:
                continue
            if only is not None and known.id != only:
                raise TopicChanged(
                    "The subscription was deleted or replaced while it was in use.",
                    owner=f"subscription {key}",
                    remedy="subscribe again",
                )
            decision = decide(self._existing(known, without=member), request)
            try:
                if isinstance(decision, Attach):
                    return self._attach(key, known, member, name, whole=whole, rank=rank)
                if isinstance(decision, Create | Replace):
                    new = self._create(key, known, decision.definition)
                    if new is not None:
                        return self._attach(key, new, member, name, whole=whole, rank=rank)
                elif isinstance(decision, Refuse):
                    refused_at = refused_at or self._monotonic()
                    self._sweep_or_raise(key, known, decision, member, refused_at)
                else:
                    raise IllegalState(
                        "A subscription's type can't be changed yet.",
                        owner=f"subscription {key}",
                        remedy="unsubscribe and create it anew",
                    )
            except Refusal as refusal:
                refused_at = refused_at or self._monotonic()
                self._wait_out(key, refusal, self._monotonic() - refused_at)
        raise state_lost(str(key), "no consistent state was reached in time")

    def _begin(self, key: SubscriptionKey, *, new: bool) -> None:
        """Somebody is about to attach to a subscription; nobody else would look for non-durable ones."""
        if not key.durable and new:
            self.sweep(key.namespace)
            self._note(key)

    def _create(self, key: SubscriptionKey, known: Known, definition: Definition) -> Known | None:
        """Create or replace; returns what to attach to if that must not be decided again.

        By the rules a non-durable one without a consumer is replaced: who creates one attaches to it.
        """
        changed = self._change(key, known, definition)
        new = self._known(key) if changed and not key.durable else None
        return new if new is not None and new.version else None

    def _sweep_or_raise(
        self, key: SubscriptionKey, known: Known, refuse: Refuse, member: str, refused_at: float
    ) -> None:
        """Let a script look where a member in the way seems to be gone; else raise the refusal."""
        waited = self._monotonic() - refused_at
        if (
            waited > GONE_WAIT
            or not isinstance(refuse.error, SubscriptionActive)
            or all(item.heard and item.expires > known.now for item in known.members)
        ):
            raise refuse.error
        self._sweep(key, known, member)

    def _wait_out(self, key: SubscriptionKey, refusal: Refusal, waited: float) -> None:
        """A script refused: wait where asking again makes sense, raise where it does not."""
        if refusal.code == "ACTIVE":
            self._wait_for_holder(key, refusal, waited)
        else:
            self._retry(key, refusal)

    def _wait_for_holder(self, key: SubscriptionKey, refusal: Refusal, waited: float) -> None:
        """Wait for a holder that seems to be gone.

        Raise for one that is not, or after `GONE_WAIT` seconds.
        """
        names, again = refusal.reply[4], refusal.reply[5]
        if again < 0 or waited > GONE_WAIT:
            raise SubscriptionActive(
                state=f"subscription {key} has an attached consumer",
                holders=tuple(str(name, "utf-8") for name in names),
                remedy="close it there, or use a type with several members",
            ) from None
        self._wait(min(again / 1000 + 0.01, 0.6))

    def _retry(self, key: SubscriptionKey, refusal: Refusal) -> None:
        """Wait a little where asking again makes sense; raise where it does not."""
        if refusal.code == "VERSION":
            raise CoordinatorRefused(
                "The shared state is of another version.",
                owner=f"subscription {key}",
                remedy="use the kafkadur version that the other processes use",
            )
        self._wait(self._rng.uniform(0.005, 0.03))

    def _sweep(self, key: SubscriptionKey, known: Known, member: str) -> None:
        """Let a script look for members who are gone; waits until looking again makes sense."""
        session = self._session(key, known, member)
        try:
            session.attach(name="", session_ms=self._session_ms, version=known.version, most=1)
        except Refusal as refusal:
            if refusal.code != "ACTIVE":
                self._retry(key, refusal)
                return
            again = refusal.reply[5]
            self._wait(0.1 if again < 0 else again / 1000 + 0.01)
            return
        session.detach([])  # it was free: the next round decides again

    def _existing(self, known: Known, *, without: str = "") -> Existing | None:
        if known.version == 0:
            return None
        definition = Definition.from_record(json.loads(known.definition)["definition"])
        members = [member for member in known.members if member.id != without]
        return Existing(
            definition=definition,
            members=len(members),
            holders=tuple(member.name for member in members),
            unsettled=any(member.leases for member in members),
        )

    def _session(self, key: SubscriptionKey, known: Known, member: str) -> MemberSession:
        return MemberSession(
            self._coordinator,
            self.address(key),
            subscription_id=known.id,
            topic_id=json.loads(known.definition)["topic_id"],
            member=member,
        )

    def subscription(self, key: SubscriptionKey, known: Known) -> Subscription:
        """The subscription, checked against the topic as it is now; raises `TopicChanged`."""
        content = json.loads(known.definition)
        definition = Definition.from_record(content["definition"])
        topic = self._topics.describe(definition.topic)
        if topic.id != content["topic_id"]:
            raise TopicChanged(
                state=f"topic id is {topic.id}, the subscription was made for {content['topic_id']}",
                owner=f"topic {definition.topic}, subscription {key}",
                remedy="unsubscribe, then subscribe again: old offsets mean nothing in the new topic",
            )
        return Subscription(
            key=key,
            id=known.id,
            version=known.version,
            definition=definition,
            topic=topic,
            address=self.address(key),
            epoch=content.get("epoch", 0),
        )

    def _attach(
        self, key: SubscriptionKey, known: Known, member: str, name: str, *, whole: bool, rank: Rank
    ) -> Membership:
        subscription = self.subscription(key, known)
        if subscription.topic.partitions * subscription.definition.lanes > known.partitions:
            self._add_partitions(subscription, known)
        session = self._session(key, known, member)
        if whole and subscription.definition.type is SubscriptionType.KEY_ORDERED:
            raise IllegalState(
                "A key-ordered subscription cannot be claimed as a whole.",
                owner=f"subscription {key}",
                remedy="claim a subscription of another type",
            )
        single = whole or subscription.definition.type.sharing == "unshared"
        attached = session.attach(
            name=name,
            session_ms=self._session_ms,
            version=known.version,
            most=1 if single else 0,
            kind="whole" if whole else "",
            rank=rank,
        )
        return Membership(subscription=subscription, session=session, attached=attached)

    def _add_partitions(self, subscription: Subscription, known: Known) -> None:
        """Partitions added since the subscription was made start at 0."""
        lanes = subscription.definition.lanes
        added = dict.fromkeys(range(known.partitions // lanes, subscription.topic.partitions), 0)
        topic = subscription.topic
        self._put_partitions(subscription.key, subscription.id, topic, added, token="", lanes=lanes)

    # -- what is known

    def known(self, key: SubscriptionKey) -> Known | None:
        """What is in force for a key, rebuilding what Redis lost; None if there is no such subscription."""
        deadline = self._monotonic() + ATTACH_WAIT
        while self._monotonic() < deadline:
            known = self._known(key)
            if known is not None:
                return known if known.version else None
        raise state_lost(str(key), "no consistent state was reached in time")

    def _known(self, key: SubscriptionKey) -> Known | None:
        """What is in force; version 0: no such subscription. None: something was repaired, ask again."""
        try:
            known = self._coordinator.peek(self.address(key))
        except Refusal as refusal:
            if refusal.code in ("MISSING", "RESTARTED"):
                return self._rebuild(key, kept=refusal.code == "RESTARTED")
            self._retry(key, refusal)
            return None
        if known.changing_ms is not None:
            if known.changing_ms > 0:
                self._wait(min(known.changing_ms / 1000, self._rng.uniform(0.01, 0.05)))
            else:
                self._resolve(key, known)
            return None
        return known

    # -- rebuilding

    def _rebuild(self, key: SubscriptionKey, *, kept: bool) -> Known | None:
        """Bring back a subscription that Redis lost, or go on with what a restarted server kept.

        Returns what is known if the journal knows no such subscription (version 0), else None: ask again.
        Order: take the right to rebuild on this very server state, fence (an incarnation record), read to
        the end of the log, install if that right still stands. What was deleted while the server was down
        is deleted from what it kept, too.
        """
        if not key.durable:
            if not kept:
                return _nothing()
            self._rebuild_unwritten(key)
            return None
        shard = self._journal.shard(key.tag)
        address = self.address(key)
        if not kept and _deleted(in_force(self._journal.read(shard), key.tag, shard)):
            return _nothing()
        token = uuid.uuid4().hex
        reply = self._coordinator.run(
            "rebuild", address.fixed(), [*self._coordinator.common(), token, CHANGE_MS]
        )
        if reply[0] != "OK":
            if reply[0] == "VERSION":
                self._retry(key, Refusal("VERSION", reply))
            self._wait(self._rng.uniform(0.01, 0.05))
            return None
        incarnation = self._journal.append_incarnation(shard, token)
        found = in_force(self._journal.read(shard), key.tag, shard)
        if found is None or _deleted(found):
            version = incarnation if found is None else found.version
            self._install_deletion(address, version=version, incarnation=incarnation, token=token)
        elif reply[4] == 1:
            self._coordinator.run(
                "reincarnate", address.fixed(), [*self._coordinator.common(), token, incarnation]
            )
        else:
            self._install(key, found, token=token, incarnation=incarnation, floors=True)
        return None

    def _rebuild_unwritten(self, key: SubscriptionKey) -> None:
        """Go on with what a restarted server kept of a non-durable subscription."""
        address, token = self.address(key), uuid.uuid4().hex
        common = self._coordinator.common()
        reply = self._coordinator.run("rebuild", address.fixed(), [*common, token, CHANGE_MS])
        if reply[0] == "OK":
            self._coordinator.run("reincarnate", address.fixed(), [*common, token, 0])
        elif reply[0] == "VERSION":
            self._retry(key, Refusal("VERSION", reply))
        else:
            self._wait(self._rng.uniform(0.01, 0.05))

    def _install(
        self, key: SubscriptionKey, found: InForce, *, token: str, incarnation: int, floors: bool
    ) -> None:
        """Put what is in force into Redis; `floors`: from the mirrored floors, after a loss."""
        change = found.change
        address = self.address(key)
        if change.definition is None:
            self._install_deletion(address, version=found.version, incarnation=incarnation, token=token)
            return
        definition = Definition.from_record(change.definition)
        topic = self._topics.describe(definition.topic)
        starts = dict(change.starts)
        seen = 0
        if floors and topic.id == change.topic_id:
            metadata = floor_metadata(found.id, change.epoch, topic.id)
            starts |= self._topics.floors(key.group, topic.name, topic.partitions, metadata)
            seen = 1
        for partition in range(topic.partitions):
            starts.setdefault(partition, 0)
        ends = self._topics.offsets(topic.name, topic.partitions, "latest") if seen else {}
        self._put_partitions(
            key,
            found.id,
            TopicInfo(name=topic.name, id=change.topic_id, partitions=len(starts)),
            starts,
            token=token,
            lanes=definition.lanes,
            seen=ends,
        )
        self._coordinator.run(
            "install",
            address.fixed(),
            [
                *self._coordinator.common(),
                found.id,
                found.version,
                _content(found),
                definition.type.value,
                len(starts) * definition.lanes,
                incarnation,
                token,
                self._session_ms if floors else 0,
                definition.policy,
            ],
        )

    def _install_deletion(
        self, address: SubscriptionAddress, *, version: int, incarnation: int, token: str
    ) -> None:
        self._coordinator.run(
            "install",
            address.fixed(),
            [*self._coordinator.common(), "", version, "", "", 0, incarnation, token, 0, ()],
        )

    def _put_partitions(
        self,
        key: SubscriptionKey,
        subscription_id: str,
        topic: TopicInfo,
        starts: Mapping[int, int],
        *,
        token: str,
        lanes: int = 1,
        seen: Mapping[int, int] | None = None,
    ) -> None:
        """Give partitions their first state: each of their lanes the same."""
        address = self.address(key)
        starts, seen = _by_lane(starts, lanes), _by_lane(seen or {}, lanes)
        wanted = sorted(starts)
        for first in range(0, len(wanted), MAX_PARTITIONS):
            group = wanted[first : first + MAX_PARTITIONS]
            keys = address.fixed()
            for partition in group:
                keys += address.partition(subscription_id, topic.id, partition)
            parts = [[partition, starts[partition], seen.get(partition, 0)] for partition in group]
            self._coordinator.run(
                "partitions",
                keys,
                [*self._coordinator.common(), parts, token, topic.partitions * lanes],
            )

    # -- changing the definition

    def _change(self, key: SubscriptionKey, known: Known, definition: Definition | None) -> bool:
        """Create, replace (`definition`) or delete (None) what `known` says is in force.

        Returns whether this change is in force now: somebody else may have been faster, and the caller
        looks again. Raises `Refusal` when it can't begin.
        """
        address = self.address(key)
        token = uuid.uuid4().hex
        topic_id, starts = "", {}
        if definition is not None:
            topic = self._topics.describe(definition.topic)
            topic_id = topic.id
            definition = _with_lanes(definition, topic.partitions)
            starts = self._topics.offsets(definition.topic, topic.partitions, definition.start)
        self._coordinator.call(
            "change", address.fixed(), [*self._coordinator.common(), known.version, token, CHANGE_MS]
        )
        if not key.durable:
            change = Change(
                tag=key.tag,
                key=_key_record(key),
                expected=known.version,
                under=0,
                definition=None if definition is None else definition.to_record(),
                id=f"n.{token}",
                topic_id=topic_id,
                starts=starts,
            )
            return self._change_unwritten(key, known, change, token)
        shard = self._journal.shard(key.tag)
        entries = self._journal.read(shard)
        change = Change(
            tag=key.tag,
            key=_key_record(key),
            expected=_expected(known.version, in_force(entries, key.tag, shard)),
            under=last_incarnation(entries),
            definition=None if definition is None else definition.to_record(),
            id=None,
            topic_id=topic_id,
            starts=starts,
        )
        version = self._journal.append_change(shard, change)
        found = in_force(self._journal.read(shard), key.tag, shard)
        if found is not None:
            incarnation = max(version, known.incarnation + 1)
            self._install(key, found, token=token, incarnation=incarnation, floors=False)
            if found.id != known.id:  # else somebody gave this change up and works on with what there was
                self._forget(known, address)
        return found is not None and found.version == version

    def _amend(
        self,
        key: SubscriptionKey,
        known: Known,
        definition: Definition,
        starts: Mapping[int, int] | None,
    ) -> bool:
        """Change the definition and keep what is settled; with `starts` everything begins there instead.

        Returns whether this change is in force now. Raises `Refusal` when it can't begin.
        """
        content = json.loads(known.definition)
        address, token = self.address(key), uuid.uuid4().hex
        self._coordinator.call(
            "change", address.fixed(), [*self._coordinator.common(), known.version, token, CHANGE_MS]
        )
        shard = self._journal.shard(key.tag)
        entries = self._journal.read(shard)
        kept = {int(partition): offset for partition, offset in content["starts"].items()}
        change = Change(
            tag=key.tag,
            key=_key_record(key),
            expected=_expected(known.version, in_force(entries, key.tag, shard)),
            under=last_incarnation(entries),
            definition=definition.to_record(),
            id=known.id,
            topic_id=content["topic_id"],
            starts=kept if starts is None else starts,
            epoch=content.get("epoch", 0) + (starts is not None),
        )
        version = self._journal.append_change(shard, change)
        found = in_force(self._journal.read(shard), key.tag, shard)
        if found is not None:
            self._coordinator.run("install", address.fixed(), self._resolution(key, found, known))
        return found is not None and found.version == version

    def amend(
        self,
        key: SubscriptionKey,
        change: Callable[[Definition], Definition],
        starts: Callable[[Definition], Mapping[int, int]] | None = None,
    ) -> None:
        """Change a durable subscription in place: its definition, or with `starts` where it stands.

        `change` makes the new definition of the one in force, `starts` says the first unsettled offset of
        each partition. Raises `InvalidDestination` if there is none, `SubscriptionActive` while somebody is
        attached.
        """
        deadline = self._monotonic() + ATTACH_WAIT
        refused_at: float | None = None
        while self._monotonic() < deadline:
            known = self._known(key)
            if known is None:
                continue
            decision = decide_unsubscribe(self._existing(known), UnsubscribeRequest(key=key))
            try:
                if isinstance(decision, Refuse) and decision.rule != "X4":
                    refused_at = refused_at or self._monotonic()
                    member = f"amend-{uuid.uuid4().hex[:8]}"
                    self._sweep_or_raise(key, known, decision, member, refused_at)
                    continue
                before = Definition.from_record(json.loads(known.definition)["definition"])
                definition = change(before)
                if before.lanes != definition.lanes or before.topic != definition.topic:
                    raise IllegalState(
                        "This cannot be changed in place.",
                        state=f"{before.type.value} on topic {before.topic}, {before.lanes} lanes of keys",
                        owner=f"subscription {key}",
                        remedy="create another subscription for it",
                    )
                if self._amend(key, known, definition, None if starts is None else starts(definition)):
                    return
            except Refusal as refusal:
                self._retry(key, refusal)
        raise state_lost(str(key), "no consistent state was reached in time")

    def _change_unwritten(self, key: SubscriptionKey, known: Known, change: Change, token: str) -> bool:
        """Install a change of a non-durable subscription, which the journal never hears of."""
        found = InForce(version=known.version + 1, id=change.id or "", change=change)
        self._install(key, found, token=token, incarnation=known.incarnation + 1, floors=False)
        self._forget(known, self.address(key))
        return True

    def end(self, key: SubscriptionKey) -> None:
        """Delete a non-durable subscription if nobody is attached any more (rules N4, V3)."""
        for _ in range(_END_TRIES):
            known = self._known(key)
            if known is None:
                continue
            if any(member.heard and member.expires > known.now for member in known.members):
                self._note(key)
                return
            try:
                if known.members:
                    self._sweep(key, known, f"end-{uuid.uuid4().hex[:8]}")
                elif known.version == 0 or self._change(key, known, None):
                    self._coordinator.command("ZREM", self._index(key.namespace), _packed(key))
                    return
            except Refusal as refusal:
                self._retry(key, refusal)

    def sweep(self, namespace: str) -> None:
        """End non-durable subscriptions that killed processes left, longest not looked at first."""
        before = round(time.time() * 1000) - _LOOK_AGAIN_MS
        oldest = self._coordinator.command(
            "ZRANGE", self._index(namespace), 0, before, "BYSCORE", "LIMIT", 0, _SWEPT_AT_ONCE
        )
        for packed in oldest:
            self.end(SubscriptionKey(**json.loads(packed)))

    def _note(self, key: SubscriptionKey) -> None:
        """Remember that there is a non-durable subscription, and that it was looked at now."""
        now = round(time.time() * 1000)
        self._coordinator.command("ZADD", self._index(key.namespace), now, _packed(key))

    def _index(self, namespace: str) -> str:
        """Key of the non-durable subscriptions by when they were looked at: nothing else finds them."""
        return f"{self._prefix}:{namespace}:nondurable"

    def _resolve(self, key: SubscriptionKey, known: Known) -> None:
        """Finish a change whose owner let its deadline pass.

        Append an abort, then install what the log says.
        """
        if not key.durable:  # it is not there for anybody yet, or not any more
            token = self._changing_token(key)
            incarnation = known.incarnation + 1
            self._install_deletion(
                self.address(key), version=known.version + 1, incarnation=incarnation, token=token
            )
            return
        shard = self._journal.shard(key.tag)
        entries = self._journal.read(shard)
        before = in_force(entries, key.tag, shard)
        content = before.change if before is not None and before.version == known.changing_from else None
        abort = Change(
            tag=key.tag,
            key=_key_record(key),
            expected=_expected(known.changing_from, before),
            under=last_incarnation(entries),
            definition=None if content is None else content.definition,
            id=None if before is None or content is None else before.id,
            topic_id="" if content is None else content.topic_id,
            starts={} if content is None else content.starts,
        )
        self._journal.append_change(shard, abort)
        found = in_force(self._journal.read(shard), key.tag, shard)
        if found is not None:
            self._coordinator.run(
                "install",
                self.address(key).fixed(),
                self._resolution(key, found, known),
            )

    def _resolution(self, key: SubscriptionKey, found: InForce, known: Known) -> list[Any]:
        token = self._changing_token(key)
        change = found.change
        deleted = change.definition is None
        definition = None if change.definition is None else Definition.from_record(change.definition)
        lanes = 1 if definition is None else definition.lanes
        moved = found.id != known.id or change.epoch != json.loads(known.definition).get("epoch", 0)
        if not deleted and moved:
            topic = TopicInfo(name="", id=change.topic_id, partitions=len(change.starts))
            starts: dict[int, int] = dict(change.starts)
            seen: dict[int, int] = {}
            if found.id == known.id:
                floors, seen = self._places(key, known, lanes)
                starts = {p: offset for p, offset in starts.items() if offset != floors.get(p)}
            self._put_partitions(key, found.id, topic, starts, token=token, lanes=lanes, seen=seen)
        return [
            *self._coordinator.common(),
            "" if deleted else found.id,
            found.version,
            "" if change.definition is None else _content(found),
            "" if definition is None else definition.type.value,
            len(change.starts) * lanes,
            known.incarnation + 1,
            token,
            0,
            () if definition is None else definition.policy,
        ]

    def _places(
        self, key: SubscriptionKey, known: Known, lanes: int
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Lowest unsettled offset, and offset below which messages may have been delivered, by partition."""
        address, topic_id = self.address(key), json.loads(known.definition)["topic_id"]
        floors: dict[int, int] = {}
        seen: dict[int, int] = {}
        for first in range(0, known.partitions, MAX_PARTITIONS):
            wanted = range(first, min(first + MAX_PARTITIONS, known.partitions))
            for view in self._coordinator.inspect(address, known.id, topic_id, wanted).partitions:
                partition = view.partition // lanes
                floors[partition] = min(floors.get(partition, view.floor), view.floor)
                seen[partition] = max(seen.get(partition, 0), min(view.next, view.avail), view.seen)
        return floors, seen

    def _changing_token(self, key: SubscriptionKey) -> str:
        token = self._coordinator.command("HGET", self.address(key).fixed()[0], "changing")
        return token.decode() if isinstance(token, bytes) else ""

    def _forget(self, known: Known, address: SubscriptionAddress) -> None:
        """Remove the partitions' state of a subscription that was replaced or deleted."""
        if not known.definition:
            return
        topic_id = json.loads(known.definition)["topic_id"]
        for partition in range(known.partitions):
            self._coordinator.command("UNLINK", *address.partition(known.id, topic_id, partition))

    def unsubscribe(self, key: SubscriptionKey) -> None:
        """Delete a subscription with all that waits in it (rules X1-X5); raises what the rules say."""
        deadline = self._monotonic() + ATTACH_WAIT
        refused_at: float | None = None
        while self._monotonic() < deadline:
            known = self._known(key)
            if known is None:
                continue
            decision = decide_unsubscribe(self._existing(known), UnsubscribeRequest(key=key))
            try:
                if isinstance(decision, Refuse):
                    refused_at = refused_at or self._monotonic()
                    member = f"unsubscribe-{uuid.uuid4().hex[:8]}"
                    self._sweep_or_raise(key, known, decision, member, refused_at)
                    continue
                if self._change(key, known, None):
                    return
            except Refusal as refusal:
                self._retry(key, refusal)
        raise state_lost(str(key), "no consistent state was reached in time")

    def all_keys(self) -> list[SubscriptionKey]:
        """Every subscription that the journal knows, by name."""
        keys: dict[str, SubscriptionKey] = {}
        for shard, entries in self._journal.read_all().items():
            tags = {entry.change.tag: entry.change.key for entry in entries if entry.change is not None}
            for tag, record in tags.items():
                found = in_force(entries, tag, shard)
                if found is not None and found.change.definition is not None:
                    keys[tag] = SubscriptionKey(**record)
        return sorted(keys.values(), key=lambda key: key.display)


#: Lanes that a key-ordered subscription has altogether, about, and of one partition at most.
_LANES, _LANES_OF_ONE = 64, 16


def _with_lanes(definition: Definition, partitions: int) -> Definition:
    """Choose how many lanes a partition of a new key-ordered subscription has, where it was not said."""
    if definition.type is not SubscriptionType.KEY_ORDERED or definition.key_lanes is not None:
        return definition
    return replace(definition, key_lanes=max(1, min(_LANES_OF_ONE, _LANES // partitions)))


def _by_lane(offsets: Mapping[int, int], lanes: int) -> dict[int, int]:
    """Offsets by lane: each lane of a partition has those of the partition."""
    return {
        partition * lanes + lane: offset for partition, offset in offsets.items() for lane in range(lanes)
    }


def _expected(version: int, found: InForce | None) -> int:
    """Version that a change of what Redis knows as `version` replaces in the journal.

    After an unsubscribe Redis knows no version any more (0); the journal knows that of the deletion.
    """
    return found.version if version == 0 and found is not None and _deleted(found) else version


def _deleted(found: InForce | None) -> bool:
    """Tell whether the journal knows no subscription any more, or never did."""
    return found is None or found.change.definition is None


def _nothing() -> Known:
    return Known(
        id="",
        version=0,
        definition="",
        incarnation=0,
        changing_ms=None,
        changing_from=0,
        members=(),
        partitions=0,
        grace_ms=0,
        paused=False,
        now=0,
    )
