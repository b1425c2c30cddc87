"""The state of a subscription at one moment, and how the values of its lanes are joined.

`inspector.py` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from kafkadur.admin.explain import Log, backlog, in_flight, lag, unsettled_before
from kafkadur_coordinators.holder_progress import HolderProgress
from kafkadur_coordinators.interface import Known, LeaseView, MemberInfo, PartitionView
from kafkadur_coordinators.redis.coordinator import STATE_VERSION
from kafkadur_sharing.definition import Definition
from kafkadur_sharing.errors import SubscriptionActive
from kafkadur_sharing.keys import ClientIdPolicy, SubscriptionKey
from kafkadur_sharing.names import MAX_NAME_LENGTH

#: How names end of subscriptions that record which dead letters were handled.
_HANDLED = ".dead"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionInfo:
    """One partition of a subscription, at one moment."""

    partition: int
    #: Lowest unsettled offset.
    floor: int
    base: int
    next: int
    avail: int
    #: Unsettled offsets in the leases of members whose session has not ended.
    in_flight: int
    #: Offsets that Kafka removed before they were settled. If keys have lanes, the lane of an offset is known
    #: if a member had read its message; all others count once, for the lane with the most of them: that is an
    #: upper limit, since other lanes may have settled some of them.
    expired: int
    #: Known offsets that Kafka lost when the end of the log was truncated, settled or not.
    truncated: int
    #: Unsettled offsets that Kafka removes soon (`retention.py`); None if there is no such topic.
    expiring: int | None
    #: Offsets that are set aside: rolled back, delayed, or given back by a member that is gone.
    exceptions: int
    #: Unsettled offsets that Kafka holds, including those in flight; None if there is no such topic.
    backlog: int | None
    #: Offsets from the floor to the end of the log; None if there is no such topic.
    lag: int | None
    #: First offset that Kafka keeps, and the first that is not readable yet; None if there is no such topic.
    log_start: int | None
    log_end: int | None

    @property
    def behind(self) -> int | None:
        """Offsets that were written and not granted yet; None if there is no such topic."""
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
    #: Those attached, and those that died and that no exchange has removed yet (`attached`).
    members: tuple[MemberInfo, ...]
    #: Last progress of the queries of a member that holds the whole subscription, by member id.
    progress: Mapping[str, tuple[HolderProgress, ...]]
    partitions: tuple[PartitionInfo, ...]
    #: Milliseconds until leases are granted again after Redis lost its memory or was replaced; 0: now.
    grace_ms: int
    #: Whether it is paused.
    paused: bool
    #: Server time, ms since 1970.
    now: int
    #: Why the topic cannot be read; None: it can.
    problem: str | None
    #: Server time of the last verdict, ms since 1970; None: this Redis has seen none.
    last_verdict: int | None
    #: Server time since which no member is attached, ms since 1970, as far as this Redis knows; None: one is.
    unattended_since: int | None
    #: Version of the form in which Redis stores its state.
    state_version: int

    @property
    def is_stored_as_before(self) -> bool:
        """Whether its state is stored as the version before stores it, until `sub alter --upgrade`."""
        return 0 < self.state_version < STATE_VERSION

    @property
    def active(self) -> bool:
        """Whether a member is attached, or left a moment ago."""
        return self.unattended_since is None

    @property
    def state(self) -> str:
        """Whether it works: "paused", "active" while a member is attached, else "inactive"."""
        if self.paused:
            return "paused"
        return "active" if self.attached else "inactive"

    def is_abandoned(self, older_than: timedelta) -> bool:
        """Tell whether no member was attached for so long."""
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
    def attached(self) -> tuple[MemberInfo, ...]:
        """The members whose process is heard and whose session has not ended."""
        return tuple(member for member in self.members if is_attached(member, self.now))

    @property
    def held(self) -> tuple[MemberInfo, ...]:
        """The members that hold leases, and whose session has not ended: they may settle messages."""
        return tuple(member for member in self.members if member.leases and member.expires > self.now)

    @property
    def in_flight(self) -> int:
        """Unsettled offsets in the leases of members whose session has not ended."""
        return sum(partition.in_flight for partition in self.partitions)

    @property
    def expired(self) -> int:
        """Offsets that Kafka removed before they were settled."""
        return sum(partition.expired for partition in self.partitions)

    @property
    def truncated(self) -> int:
        """Known offsets that Kafka lost when the ends of its logs were truncated, settled or not."""
        return sum(partition.truncated for partition in self.partitions)

    @property
    def expiring(self) -> int | None:
        """Unsettled offsets that Kafka removes soon; None if there is no such topic."""
        return _total(partition.expiring for partition in self.partitions)

    @property
    def exceptions(self) -> int:
        """Offsets that are set aside."""
        return sum(partition.exceptions for partition in self.partitions)

    @property
    def backlog(self) -> int | None:
        """Unsettled offsets that Kafka holds; None if there is no such topic."""
        return _total(partition.backlog for partition in self.partitions)

    @property
    def behind(self) -> int | None:
        """Offsets that were written and not granted yet; 0: live. None if there is no such topic."""
        return _total(partition.behind for partition in self.partitions)

    @property
    def lag(self) -> int | None:
        """Offsets from the floors to the ends of the logs; None if there is no such topic."""
        return _total(partition.lag for partition in self.partitions)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicLogs:
    """The logs of a topic, read once for all its subscriptions."""

    #: None: there is no such topic.
    id: str | None
    logs: Mapping[int, Log]
    problem: str | None
    #: Offset of each partition before which messages expire soon.
    expiring: Mapping[int, int] = field(default_factory=dict[int, int])


def partition_infos(
    views: Mapping[int, PartitionView],
    leases: Sequence[LeaseView],
    members: Mapping[str, MemberInfo],
    topic: TopicLogs,
    lanes: int,
) -> tuple[PartitionInfo, ...]:
    """Return the state of each partition; its `lanes` of keys are joined.

    Partitions that were added while nobody was attached are unread from their beginning.
    """
    found: dict[int, list[PartitionView]] = {}
    for number, view in sorted(views.items()):
        found.setdefault(number // lanes, []).append(view)
    for partition in topic.logs.keys() - found.keys():
        found[partition] = [_unread(partition * lanes)]

    def joined(partition: int) -> PartitionInfo:
        log, soon = topic.logs.get(partition), topic.expiring.get(partition, 0)
        infos = [_partition(view, leases, members, log, soon) for view in found[partition]]
        return replace(_joined(partition, infos), expired=_expired(found[partition]))

    return tuple(joined(partition) for partition in sorted(found))


def _expired(lanes: Sequence[PartitionView]) -> int:
    """Return the number of expired offsets of a partition: of the unread ones, those of one lane."""
    return sum(lane.expired_read for lane in lanes) + max(lane.expired - lane.expired_read for lane in lanes)


def _unread(number: int) -> PartitionView:
    return PartitionView(
        number, base=0, next=0, readable_end=0, origin=0, decided=0, runs=(), seen=0, bits=b""
    )


def _joined(partition: int, lanes: Sequence[PartitionInfo]) -> PartitionInfo:
    """Join the lanes of a partition, all but their expired offsets.

    Every lane counts an offset that it has not read as unsettled, whatever its key. So a joined count is that
    of the lane with the most, plus the exceptions of the others.
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
        truncated=max(lane.truncated for lane in lanes),
        expiring=None if first.expiring is None else max(lane.expiring or 0 for lane in lanes),
        exceptions=sum(exceptions),
        backlog=together(backlogs) if len(backlogs) == len(lanes) > 1 else first.backlog,
        lag=max((lane.lag for lane in lanes if lane.lag is not None), default=None),
    )


def _partition(
    view: PartitionView,
    leases: Sequence[LeaseView],
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


def refuse_attached(info: SubscriptionInfo) -> None:
    """Raise `SubscriptionActive` if a subscription could not be unsubscribed now, for its members."""
    # a member that is not heard is about to be taken for dead
    holders = tuple(member.name for member in info.members if member.heard)
    if holders:
        raise SubscriptionActive(
            f"Subscription {info.key} could not be unsubscribed now.",
            holders=holders,
            remedy="close its consumers first",
        )


def is_attached(member: MemberInfo, now: int) -> bool:
    """Whether the process of a member is heard and its session has not ended; `now` is server time, ms.

    One that died stays listed until another member makes an exchange.
    """
    return member.heard and member.expires > now


def unattended_since(known: Known) -> int | None:
    """Return when the last member left, ms since 1970; None if one is attached.

    A member whose session ended may be listed until another one makes an exchange. If the time is not known
    (an older kafkadur wrote the state), it is now: the subscription does not count as abandoned.
    """
    if any(is_attached(member, known.now) for member in known.members):
        return None
    gone = [member.expires for member in known.members] or [0]
    since = max(known.begun, known.left, *gone)
    return min(since, known.now) if since else known.now


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None if one of the counts is None."""
    found = list(counts)
    return None if None in found else sum(count or 0 for count in found)


def handled_key(key: SubscriptionKey) -> SubscriptionKey:
    """Return the key of the subscription that records which dead letters of another one were handled."""
    name = f"{key.name}{_HANDLED}"
    if len(name) > MAX_NAME_LENGTH:
        name = f"{key.tag}{_HANDLED}"
    return SubscriptionKey(namespace=key.namespace, client_id=key.client_id, policy=key.policy, name=name)


def is_handled_key(key: SubscriptionKey) -> bool:
    """Whether a subscription with this key may be such a record; others cannot."""
    return key.name.endswith(_HANDLED)


def without_records(found: Iterable[SubscriptionInfo]) -> tuple[SubscriptionInfo, ...]:
    """Leave out the subscriptions that only record which dead letters of another one were handled."""
    found = tuple(found)
    records = {(handled_key(info.key), info.definition.dead_letter_topic) for info in found}
    return tuple(info for info in found if (info.key, info.definition.topic) not in records)
