"""The life of a subscription: attach, create, replace, amend and unsubscribe.

It joins the shared state (`redis/coordinator.py`), the journal (`journal/topic.py`) and Kafka (`topics.py`).
The pure rules of kafkadur_sharing decide; here their decisions are carried out. A stop after any step leaves
no half-made change: it is begun in Redis (CHANGING), written to the journal, decided there by log
order, and installed. A process that finds a change past its deadline finishes it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kafkadur_coordinators.changes import Made, definition_of, with_lanes
from kafkadur_coordinators.interface import (
    UNRANKED,
    Attached,
    Known,
    MemberKind,
    PartitionView,
    Rank,
    in_groups,
)
from kafkadur_coordinators.redis.coordinator import (
    Refusal,
    SubscriptionAddress,
)
from kafkadur_coordinators.redis.member_session import MemberSession
from kafkadur_coordinators.settlement_states import SettlementState
from kafkadur_coordinators.state_recovery import SubscriptionsInForce
from kafkadur_coordinators.topics import TopicInfo, floor_metadata, topic_changed
from kafkadur_sharing.decisions import (
    START,
    Attach,
    Convert,
    Create,
    Difference,
    Existing,
    Refuse,
    Replace,
    Request,
    UnsubscribeRequest,
    decide,
    decide_unsubscribe,
    told,
)
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.errors import (
    CoordinatorRefused,
    IllegalState,
    KafkadurError,
    KafkaRefused,
    ResourceLimit,
    SubscriptionActive,
    SubscriptionDiffers,
    TopicChanged,
)
from kafkadur_sharing.keys import SubscriptionKey

_log = logging.getLogger("kafkadur")
#: Logs the creation, change and end of subscriptions, at level INFO.
_news = logging.getLogger("kafkadur.lifecycle")

T = TypeVar("T")

#: How long to wait for a member that seems to be gone before refusing, seconds: its channel must be silent
#: for 0.5 s.
GONE_WAIT = 1.5
#: How many abandoned non-durable subscriptions one attach checks, and ms until one is checked again.
_SWEPT_AT_ONCE, _LOOK_AGAIN_MS = 5, 1_000
#: How often ending a non-durable subscription is tried; then it is left to the next subscriber.
_END_TRIES = 10
#: ms in which only the member may attach that has changed a subscription in order to attach.
_HELD_MS = 5_000


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Who:
    """The member that attaches."""

    member: str
    name: str
    kind: MemberKind
    rank: Rank
    #: the transacted session it belongs to; empty: none
    session: str


def _warn_of_selector(key: SubscriptionKey, before: str | None, after: str | None) -> None:
    """Say that messages that wait may be skipped: another selector is in force now."""
    _log.warning(
        "The selector of subscription %s was changed: on_change='alter'. State: it was %s, it is "
        "%s. Owner: the caller of subscribe. Remedy: messages that wait and do not match the "
        "new one are skipped; to have them all the same, change the selector again with `kafkadur sub "
        "alter --selector ... --retroactive`.",
        key,
        before,
        after,
    )


def _warn_of_differences(key: SubscriptionKey, differences: Iterable[Difference]) -> None:
    """Say that parts of the definition, which were asked for otherwise, stay as they are."""
    found = tuple(differences)
    remedies = ["attach with the same"]
    if any(part != START for part, _, _ in found):
        remedies.append("change it while nobody is attached: on_change='alter', or `kafkadur sub alter`")
    if any(part == START for part, _, _ in found):
        remedies.append("move it: `kafkadur sub seek`")
    _log.warning(
        "Subscription %s stays as it was created. State: %s. Owner: the caller of subscribe. Remedy: %s.",
        key,
        "; ".join(f"{part} is {have}, asked for is {want}" for part, have, want in told(found)),
        ", or ".join(remedies),
    )


def _packed(key: SubscriptionKey) -> str:
    return json.dumps(key.to_record(), sort_keys=True)


class Lifecycle(SubscriptionsInForce):
    """Carries out decisions about subscriptions. One thread at a time."""

    # -- attaching

    def attach(
        self,
        request: Request,
        *,
        member: str,
        name: str,
        kind: MemberKind = "",
        rank: Rank = UNRANKED,
        only: str | None = None,
        seen: int = 0,
        session: str = "",
        before: Callable[[SubscriptionAddress], None] = lambda _: None,
    ) -> Membership:
        """Attach `member`, creating or replacing the subscription where the rules say so.

        `name` is shown to people. `kind` "whole" holds the subscription for one driver that reads it as a
        whole (Spark); it is refused while others are attached, and others while it is. "claims" is a member
        of a shared subscription that takes stretches of it at once, beside others. `only` attaches to the
        subscription of this id or to none: a former member must not create a deleted one again.
        `seen` is the incarnation it was attached under: state of an earlier one is an old copy.
        `session` names the transacted session that it belongs to; empty: none.
        `before` is called with the address before the member is attached: it must begin to listen then.
        Raises the errors of the rules, `SubscriptionActive` naming the holder, and `StateLost` when no
        consistent state could be reached in time.
        """
        key = request.key
        if only is not None:  # what was changed while this member was away stays changed
            request = replace(request, on_change=None, given=frozenset())
        address = self.address(key)
        if not key.durable and only is None:  # only those who subscribe look for abandoned non-durable ones
            self.sweep(key.namespace)
            self._note(key)
        before(address)
        who = _Who(member=member, name=name, kind=kind, rank=rank, session=session)
        refused_at: float | None = None
        rounds = self._rounds(key, seen)
        while True:
            known = next(rounds)
            if only is not None and known.id != only:
                raise TopicChanged(
                    "The subscription was deleted or replaced while it was in use.",
                    owner=f"subscription {key}",
                    remedy="subscribe again",
                )
            decision = decide(self._existing(known, without=member, former=only is not None), request)
            try:
                if isinstance(decision, Refuse):
                    refused_at = refused_at or self._monotonic()
                    self._sweep_or_raise(key, known, decision, member, refused_at)
                elif membership := self._carry_out(key, known, decision, who):
                    return membership
            except Refusal as refusal:
                refused_at = refused_at or self._monotonic()
                if refusal.code == "ACTIVE":
                    waited = self._monotonic() - refused_at
                    self._wait_for_holder(key, definition_of(known), refusal, waited)
                else:
                    self._retry(key, refusal)

    def _carry_out(
        self, key: SubscriptionKey, known: Known, decision: Attach | Create | Replace | Convert, who: _Who
    ) -> Membership | None:
        """Do what was decided; None: the subscription was changed, and is to be looked at again."""
        if isinstance(decision, Convert):
            made = self._convert(key, known, decision.definition)
            before, after = definition_of(known).selector, decision.definition.selector
            if made is not None and before != after:
                _warn_of_selector(key, before, after)
            if decision.differences:
                _warn_of_differences(key, decision.differences)
            return self._attach_first(key, who, made)
        if isinstance(decision, Attach):
            if decision.differences:
                _warn_of_differences(key, decision.differences)
            return self._attach(key, known, who)
        return self._attach_first(key, who, self._create(key, known, decision))

    def _attach_first(self, key: SubscriptionKey, who: _Who, made: Made | None) -> Membership | None:
        """Attach after this change, while no other member can; None: it is not installed, or too late.

        Else another member might come in between, and the caller would be refused after its change.
        """
        if made is None:
            return None
        known = self._coordinator.peek(self.address(key))
        if (known.changing, known.version) != made:
            return None
        return self._attach(key, known, who, made.token)

    def _create(self, key: SubscriptionKey, known: Known, decision: Create | Replace) -> Made | None:
        """Create or replace; returns the change, None if it is not in force."""
        replaced = decision.replaced if isinstance(decision, Replace) and key.durable else None
        waiting = None if replaced is None else self._waiting(key, known)
        changed = self._changes.change(key, known, decision.definition, held=_HELD_MS)
        if changed and replaced is not None:
            _log.warning(
                "Subscription %s was deleted and created anew: it was asked for with another definition, "
                "and on_change='replace'. State: %s messages waited in it. Owner: the caller of subscribe. "
                "Remedy: to keep them the next time, on_change='alter'.",
                key,
                "an unknown number of" if waiting is None else f"{waiting:,}",
            )
        elif changed and key.durable:
            made = decision.definition
            _news.info("Subscription %s was created: %s, topic %s.", key, made.type, made.topic)
        return changed

    def _convert(self, key: SubscriptionKey, known: Known, definition: Definition) -> Made | None:
        """Change its type and keep unsettled messages (rules L3, P7); returns as `_create` does."""
        partitions = known.partitions // definition_of(known).lanes
        try:
            return self._changes.amend(key, known, with_lanes(definition, partitions), None, held=_HELD_MS)
        except Refusal as refusal:
            if refusal.code != "ACTIVE":
                raise
            return None  # a member has attached meanwhile: the rules decide which error follows

    def _sweep_or_raise(
        self, key: SubscriptionKey, known: Known, refuse: Refuse, member: str, refused_at: float
    ) -> None:
        """Let a script check an attached member that seems to be gone; else raise the refusal."""
        waited = self._monotonic() - refused_at
        if isinstance(refuse.error, SubscriptionDiffers):
            raise refuse.error.with_waiting(self._waiting(key, known))
        if waited > GONE_WAIT or all(item.heard and item.expires > known.now for item in known.members):
            raise refuse.error
        self._sweep(key, known, member)

    def _waiting(self, key: SubscriptionKey, known: Known) -> int | None:
        """How many messages wait in a subscription; None if its topic or its state cannot be read."""
        try:
            definition = definition_of(known)
            topic = self._topics.describe(definition.topic)
            ends = self._topics.offsets(topic.name, topic.partitions, "latest")
            firsts = self._topics.offsets(topic.name, topic.partitions, "earliest")
            settlements = self._changes.settlements(key, known)
        except (KafkadurError, Refusal):
            return None
        return sum(
            settlements[p].unsettled + max(end - max(settlements[p].next, firsts[p]), 0)
            if p in settlements
            else end - firsts[p]
            for p, end in ends.items()
        )

    def _wait_for_holder(
        self, key: SubscriptionKey, definition: Definition, refusal: Refusal, waited: float
    ) -> None:
        """Wait for a holder that seems to be gone.

        Raise for one that is not, or after `GONE_WAIT` seconds: no member is detached for another one (C5).
        """
        names, again = refusal.active
        if again >= 0 and waited <= GONE_WAIT:
            self._wait(min(again / 1000 + 0.01, 0.6))
            return
        holders = tuple(str(name, "utf-8") for name in names)
        if definition.sharing == "shared" and 0 < definition.most_consumers <= len(holders):
            raise ResourceLimit(
                f"Subscription {key} has as many consumers as it may have.",
                state=f"max_consumers {definition.most_consumers}",
                owner=", ".join(holders),
                remedy="close one of them, or raise the limit while nobody is attached: "
                "`kafkadur sub alter --max-consumers`",
            ) from None
        several = definition.sharing == "shared" and not definition.most_consumers
        raise SubscriptionActive(
            state=f"subscription {key} has an attached consumer",
            holders=holders,
            remedy="end the job that holds it as a whole, or the others that are attached"
            if several
            else "close it there, or use a type with several members",
        ) from None

    def _sweep(self, key: SubscriptionKey, known: Known, member: str) -> None:
        """Have a script look for members that are gone; wait until looking again makes sense."""
        session = self._session(key, known, member)
        try:
            session.attach(name="", session_ms=self._session_ms, version=known.version, most=1)
        except Refusal as refusal:
            if refusal.code != "ACTIVE":
                self._retry(key, refusal)
                return
            again = refusal.active.again
            self._wait(0.1 if again < 0 else again / 1000 + 0.01)
            return
        session.detach([])  # it was free: the next round decides again

    def _existing(self, known: Known, *, without: str = "", former: bool = False) -> Existing | None:
        if known.version == 0:
            return None
        definition = definition_of(known)
        members = [member for member in known.members if member.id != without]
        return Existing(
            definition=definition,
            members=len(members),
            holders=tuple(member.name for member in members),
            unsettled=any(member.leases for member in members),
            awaited=former or known.grace_ms > 0,
        )

    def subscription(self, key: SubscriptionKey, known: Known) -> Subscription:
        """The subscription, checked against the topic as it is now; raises `TopicChanged`."""
        content = json.loads(known.definition)
        definition = Definition.from_record(content["definition"])
        topic = self._topics.describe(definition.topic)
        if topic.id != content["topic_id"]:
            raise topic_changed(topic.name, now=topic.id, was=content["topic_id"], subscription=key)
        return Subscription(
            key=key,
            id=known.id,
            version=known.version,
            definition=definition,
            topic=topic,
            address=self.address(key),
            epoch=content.get("epoch", 0),
        )

    def _attach(self, key: SubscriptionKey, known: Known, who: _Who, token: str = "") -> Membership:
        subscription = self.subscription(key, known)
        lanes = subscription.definition.lanes
        if subscription.topic.partitions * lanes > known.partitions:
            self._lay_added(subscription, known.partitions // lanes)
        session = self._session(key, known, who.member)
        if who.kind == "whole" and subscription.definition.type is SubscriptionType.KEY_ORDERED:
            raise IllegalState(
                "A key-ordered subscription cannot be held as a whole.",
                owner=f"subscription {key}",
                remedy="hold a subscription of another type",
            )
        attached = session.attach(
            name=who.name,
            session_ms=self._session_ms,
            version=known.version,
            most=1 if who.kind == "whole" else subscription.definition.most_consumers,
            kind=who.kind,
            rank=who.rank,
            transacted=bool(who.session),
            token=token,
        )
        if who.session:
            self._register(key, session, who.session)
        return Membership(subscription=subscription, session=session, attached=attached)

    def _lay_added(self, subscription: Subscription, first: int) -> None:
        """Write the state of the partitions from `first` on, which were added: each starts at offset 0."""
        topic, lanes = subscription.topic, subscription.definition.lanes
        new = dict.fromkeys(range(first, topic.partitions), SettlementState(next=0))
        self._changes.put_partitions(subscription.key, subscription.id, topic, new, token="", lanes=lanes)

    def add_partitions(self, membership: Membership, count: int) -> Membership:
        """The topic has `count` partitions by now: make those known that the subscription lacks.

        All members learn it with their next exchange. Returns the membership with the grown topic. Raises
        `Refusal` if the subscription has changed or its state was lost.
        """
        was = membership.subscription
        grown = replace(was, topic=replace(was.topic, partitions=count))
        self._lay_added(grown, was.topic.partitions)
        _log.info("%s: topic %s has %d partitions now", was.key, was.topic.name, count)
        return replace(membership, subscription=grown)

    # -- what Kafka lost

    def truncate(self, membership: Membership, cuts: Mapping[int, int]) -> dict[int, int]:
        """Kafka lost all records from these offsets of partitions (lanes) on: forget what was settled there.

        Floors that were mirrored beyond are taken back first: until new ones are, they would be believed
        after a loss of Redis. Returns how many known offsets were lost, by partition. Raises `TopicChanged`
        if the topic was deleted and made again instead, and `Refusal` (INCARNATION: another member was
        faster).
        """
        was, lanes = membership.subscription, membership.subscription.definition.lanes
        topic = self._topics.describe(was.definition.topic)
        if topic.id != was.topic.id:
            raise topic_changed(topic.name, now=topic.id, was=was.topic.id, subscription=was.key)
        incarnation = 0
        if was.key.durable:
            first = {
                p: min(o for lane, o in cuts.items() if lane // lanes == p)
                for p in {n // lanes for n in cuts}
            }
            mirrored = self._topics.floors(was.key.group, topic.name, topic.partitions, was.floor_metadata)
            back = {p: offset for p, offset in first.items() if mirrored.get(p, 0) > offset}
            if back:
                # a refusal is harmless: readers mirror the right floors within a second
                with contextlib.suppress(IllegalState, KafkaRefused):
                    self._topics.commit(was.key.group, topic.name, back, metadata=was.floor_metadata)
            shard = self._journal.shard(was.key.tag)
            named = self._journal.append_incarnations(uuid.uuid4().hex, {shard: [was.key.tag]}, first)
            incarnation = named[shard]
        lost: dict[int, int] = {}
        for group in in_groups(sorted(cuts)):
            first_lost = {partition: cuts[partition] for partition in group}
            lost |= membership.session.truncate(first_lost, incarnation=incarnation)
        return lost

    # -- changing the definition

    def amend(
        self,
        key: SubscriptionKey,
        change: Callable[[Definition], Definition],
        settlements: Callable[[Mapping[int, SettlementState]], Mapping[int, SettlementState]] | None = None,
    ) -> Definition:
        """Change a durable subscription in place: its definition, and with `settlements` its state.

        `change` makes the new definition from the one in force; `settlements` maps the current settlement
        states to the new ones, by partition; partitions that it leaves out keep theirs. Returns the new
        definition. Raises `InvalidDestination` if there is no such subscription, and `SubscriptionActive`
        while a member is attached.
        """

        def carry_out(known: Known) -> Definition | None:
            before = definition_of(known)
            definition = with_lanes(change(before), known.partitions // before.lanes)
            if before.topic != definition.topic:
                raise IllegalState(
                    "A subscription cannot be moved to another topic.",
                    state=f"it is on topic {before.topic}",
                    owner=f"subscription {key}",
                    remedy="create another subscription for it",
                )
            return definition if self._changes.amend(key, known, definition, settlements) else None

        # rule X4 forbids to delete unsettled messages: here they stay
        return self._when_unused(UnsubscribeRequest(key=key), carry_out, but="X4")

    def create(
        self,
        key: SubscriptionKey,
        definition: Definition,
        settlements: Mapping[int, SettlementState] | None = None,
    ) -> None:
        """Create a durable subscription at `settlements`, else where its definition says.

        Raises `IllegalState` if there is one.
        """
        for known in self._rounds(key):
            if known.version:
                raise IllegalState(
                    f"There is a subscription {key} already.",
                    remedy="name another one, or unsubscribe it first",
                )
            try:
                if self._changes.change(key, known, definition, settlements):
                    return
            except Refusal as refusal:
                self._retry(key, refusal)

    def settlements(self, key: SubscriptionKey, known: Known) -> dict[int, SettlementState]:
        """Where a subscription stands, by partition."""
        return self._changes.settlements(key, known)

    def views(self, key: SubscriptionKey, known: Known) -> dict[int, PartitionView]:
        """The whole state of each partition, or of each lane of keys. Raises `Refusal`."""
        return self._changes.views(key, known)

    def end(self, key: SubscriptionKey) -> None:
        """Delete a non-durable subscription if no member is attached any more (rules N4, V3)."""
        for _ in range(_END_TRIES):
            known = self._known(key)
            if known is None:
                continue
            # after a restart of Redis, its members have to attach again first
            if known.grace_ms or any(each.heard and each.expires > known.now for each in known.members):
                self._note(key)
                return
            try:
                if known.members:
                    self._sweep(key, known, f"end-{uuid.uuid4().hex[:8]}")
                elif known.version == 0 or self._changes.change(key, known, None):
                    self._index_command("ZREM", key.namespace, _packed(key))
                    return
            except Refusal as refusal:
                self._retry(key, refusal)

    def sweep(self, namespace: str) -> int:
        """End some non-durable subscriptions that killed processes left; return how many were looked at."""
        before = round(time.time() * 1000) - _LOOK_AGAIN_MS
        oldest = self._index_command("ZRANGE", namespace, 0, before, "BYSCORE", "LIMIT", 0, _SWEPT_AT_ONCE)
        for packed in oldest:
            try:
                key = SubscriptionKey(**json.loads(packed))
            except (ValueError, TypeError, KafkadurError):
                _log.warning("an entry that is no subscription was removed from the list of non-durable ones")
                self._index_command("ZREM", namespace, packed)
            else:
                self._note(key)  # an error must not keep the others from being looked at
                self.end(key)
        return len(oldest)

    def _note(self, key: SubscriptionKey) -> None:
        """Remember that a non-durable subscription exists, and that it was checked now."""
        now = round(time.time() * 1000)
        self._index_command("ZADD", key.namespace, now, _packed(key))

    def _index_command(self, command: str, namespace: str, *arguments: str | bytes | float) -> Any:  # noqa: ANN401 - a server's answer has any type
        """Send a command about the non-durable subscriptions, by the time of their last check.

        No other key lists them. A key of another type in its place is removed: each member that lives notes
        its subscription again.
        """
        index = f"{self._prefix}:{namespace}:nondurable"
        try:
            return self._coordinator.command(command, index, *arguments)
        except CoordinatorRefused as refused:
            if not (refused.state or "").startswith("WRONGTYPE"):
                raise
        _log.warning("the list of non-durable subscriptions (%s) was no list; it is begun anew", index)
        self._coordinator.command("UNLINK", index)
        return self._coordinator.command(command, index, *arguments)

    def unsubscribe(self, request: UnsubscribeRequest) -> None:
        """Delete a subscription with its unsettled messages (rules X1-X7); raises the error of the rules."""
        key = request.key
        self._when_unused(request, lambda known: self._changes.change(key, known, None) or None)

    def _when_unused(
        self, request: UnsubscribeRequest, change: Callable[[Known], T | None], *, but: str = ""
    ) -> T:
        """Call `change` until it returns a value, while the rules for unsubscribing allow it; return that.

        The refusal by the rule `but` does not count.
        """
        key = request.key
        refused_at: float | None = None
        rounds = self._rounds(key)
        while True:
            known = next(rounds)
            decision = decide_unsubscribe(self._existing(known), request)
            try:
                if isinstance(decision, Refuse) and decision.rule != but:
                    refused_at = refused_at or self._monotonic()
                    member = f"change-{uuid.uuid4().hex[:8]}"
                    self._sweep_or_raise(key, known, decision, member, refused_at)
                elif (changed := change(known)) is not None:
                    return changed
            except Refusal as refusal:
                self._retry(key, refusal)
