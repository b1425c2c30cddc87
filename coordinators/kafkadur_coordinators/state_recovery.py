"""The state in force of each subscription: read from Redis, restored where Redis lost it.

Redis is asked first. A subscription that it lost is rebuilt from the journal; a change of a definition that
is past its deadline is finished; then Redis is asked again.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping

from kafkadur_coordinators.changes import CHANGE_MS, Changes, Outdated, deleted, state_in_force
from kafkadur_coordinators.interface import Known
from kafkadur_coordinators.journal.rebuilding import Outcome, Rebuilder, Rebuilt
from kafkadur_coordinators.journal.records import by_tag, in_force
from kafkadur_coordinators.journal.recovery_reports import Recovery
from kafkadur_coordinators.journal.shard import Scan, session_key
from kafkadur_coordinators.journal.topic import Journal, Record
from kafkadur_coordinators.redis.coordinator import (
    RedisCoordinator,
    Refusal,
    SubscriptionAddress,
    state_lost,
)
from kafkadur_coordinators.redis.member_session import MemberSession
from kafkadur_coordinators.redis.wire import RebuildRequest, ReincarnateRequest
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.errors import CoordinatorRefused, KafkadurError
from kafkadur_sharing.keys import SubscriptionKey

_log = logging.getLogger("kafkadur.lifecycle")

#: How long to wait for a consistent state, seconds.
CONSISTENT_WAIT = 60.0
#: Subscriptions that are rebuilt together at most.
_REBUILT_AT_ONCE = 2_500


class SubscriptionsInForce:
    """Reads and brings back the state of subscriptions. One thread at a time."""

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
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        """`session_ms`: session time-out of members attached here, ms.

        Clocks, waiting and randomness can be replaced.
        """
        self._coordinator = coordinator
        self._journal = journal
        self._topics = topics
        self._changes = Changes(coordinator=coordinator, journal=journal, topics=topics, prefix=prefix)
        self._rebuilder = Rebuilder(
            coordinator=coordinator,
            journal=journal,
            topics=topics,
            changes=self._changes,
            session_ms=session_ms,
            clock=clock,
        )
        self._prefix = prefix
        #: records of transacted sessions
        self._registered: dict[str, list[Record]] = {}
        self._session_ms = session_ms
        self._monotonic = monotonic
        self._wait = wait
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries, no secret

    def address(self, key: SubscriptionKey) -> SubscriptionAddress:
        """Where the state of a subscription lies."""
        return self._changes.address(key)

    def known(self, key: SubscriptionKey) -> Known | None:
        """The state in force for a key, rebuilt if Redis lost it; None if there is no such subscription."""
        known = next(self._rounds(key))
        return known if known.version else None

    def _rounds(self, key: SubscriptionKey, seen: int = 0) -> Iterator[Known]:
        """Yield the state in force, again and again; version 0: no such subscription.

        Raises `StateLost` after `CONSISTENT_WAIT` seconds. `seen` is an incarnation that the caller was
        attached under: the server's state of an earlier one is an old copy.
        """
        deadline = self._monotonic() + CONSISTENT_WAIT
        while self._monotonic() < deadline:
            known = self._known(key, seen)
            if known is not None:
                yield known
        raise state_lost(str(key), "no consistent state was reached in time")

    def _known(self, key: SubscriptionKey, seen: int = 0) -> Known | None:
        """The state in force; version 0: no such subscription. None: it was repaired, read it again."""
        try:
            known = self._coordinator.peek(self.address(key), seen=seen)
        except Refusal as refusal:
            if refusal.code in ("MISSING", "RESTARTED"):
                return self._rebuild(key, kept=refusal.code == "RESTARTED", seen=seen)
            self._retry(key, refusal)
            return None
        if known.changing_ms is not None:
            if known.changing_ms > 0:
                self._wait(min(known.changing_ms / 1000, self._rng.uniform(0.01, 0.05)))
            else:
                self._changes.resolve(key, known)
            return None
        return known

    def _retry(self, key: SubscriptionKey, refusal: Refusal) -> None:
        """Wait a little where asking again makes sense; raise where it does not."""
        if isinstance(refusal, Outdated):
            self.rebuild({key: refusal.number})
        if refusal.code == "DOUBT":
            self.rebuild({key: 0})
        if refusal.code == "VERSION":
            raise CoordinatorRefused(
                "The shared state is of another version.",
                owner=f"subscription {key}",
                remedy="use the kafkadur version that the other processes use",
            )
        self._wait(self._rng.uniform(0.005, 0.03))

    def _session(self, key: SubscriptionKey, known: Known, member: str) -> MemberSession:
        return MemberSession(
            self._coordinator,
            self.address(key),
            subscription_id=known.id,
            state=state_in_force(known),
            member=member,
        )

    # -- rebuilding

    def _rebuild(self, key: SubscriptionKey, *, kept: bool, seen: int) -> Known | None:
        """Restore a subscription that Redis lost, or continue with the state that a restarted server kept.

        Returns version 0 if the journal has no such subscription, else None: read the state again.
        """
        if not key.durable:
            if not kept:
                return Known()
            self._rebuild_unwritten(key, seen)
            return None
        if not kept:
            shard = self._journal.shard(key.tag)
            if deleted(in_force(self._journal.read(shard), key.tag, shard)):
                return Known()
        outcome = self._rebuilder.rebuild([key], {key: seen})[key]
        if isinstance(outcome, Refusal):
            self._retry(key, outcome)
        elif isinstance(outcome, KafkadurError):
            raise outcome
        elif outcome is Outcome.BUSY:
            self._wait(self._rng.uniform(0.01, 0.05))
        return None

    def rebuild(self, seen: Mapping[SubscriptionKey, int]) -> None:
        """Restore at once these durable subscriptions where Redis lost them, seen under these incarnations.

        One that fails is tried again when it is used.
        """
        self._rebuilder.rebuild([key for key in seen if key.durable], seen)

    def rebuild_all(self, told: Callable[[int, int], None] = lambda _done, _all: None) -> Rebuilt:
        """Restore at once all subscriptions of the namespace that Redis lost.

        `told` is called with the numbers of restored and of all subscriptions.
        """
        scan = self._journal.scan()
        keys = self.all_keys(scan)
        outcomes: dict[SubscriptionKey, Outcome | KafkadurError] = {}
        by_shard = sorted(keys, key=lambda key: self._journal.shard(key.tag))
        for first in range(0, len(by_shard), _REBUILT_AT_ONCE):
            told(len(outcomes), len(keys))
            outcomes |= self._rebuilder.rebuild(by_shard[first : first + _REBUILT_AT_ONCE], scan=scan)
        told(len(outcomes), len(keys))
        return Rebuilt(outcomes)

    def recoveries(self) -> list[Recovery]:
        """The last recovery of each durable subscription that there is, as the journal has it."""
        found: list[Recovery] = []
        for number, shard in self._journal.read_shards().items():
            entries = by_tag(shard.entries)
            for recovery in shard.recoveries:
                now = in_force(entries.get(recovery.tag, ()), recovery.tag, number)
                if now is not None and now.id == recovery.id and now.change.definition is not None:
                    found.append(recovery)
        return sorted(found, key=lambda recovery: recovery.subscription.display)

    def _rebuild_unwritten(self, key: SubscriptionKey, seen: int) -> None:
        """Continue with the state of a non-durable subscription that a restarted server kept."""
        address, token = self.address(key), uuid.uuid4().hex
        common = self._coordinator.common(incarnation=-seen)
        request = RebuildRequest(token, CHANGE_MS)
        reply = self._coordinator.run("rebuild", address.fixed(), [*common, *request])
        if reply.code == "OK":
            again = ReincarnateRequest(token, seen + 1)
            self._coordinator.run("reincarnate", address.fixed(), [*common, *again])
        elif reply.code == "VERSION":
            self._retry(key, Refusal(reply))
        else:
            self._wait(self._rng.uniform(0.01, 0.05))

    # -- transacted sessions

    def _register(self, key: SubscriptionKey, member: MemberSession, session: str) -> None:
        """Write down that a session settles by transactions, before anything is granted to its member.

        A process that begins a later incarnation reads it, and keeps the session from committing.
        """
        record = (self._journal.shard(key.tag), session_key(key.tag, session, member.incarnation), b"1")
        try:
            self._journal.append([record])
        except KafkadurError:
            with contextlib.suppress(KafkadurError):
                member.detach([])
            raise
        self._registered.setdefault(session, []).append(record)

    def end_session(self, session: str) -> None:
        """A transacted session has ended in order: no member has to look up its commits.

        Raises `StateLost`.
        """
        registered = self._registered.pop(session, [])
        self._journal.append([(shard, key, None) for shard, key, _ in registered])

    # -- all

    def all_keys(self, scan: Scan | None = None) -> list[SubscriptionKey]:
        """Every subscription that the journal knows, or that an earlier `scan` of it shows, by name."""
        keys: dict[str, SubscriptionKey] = {}
        for shard, entries in self._journal.read_all(scan).items():
            for tag, some in by_tag(entries).items():
                found = in_force(some, tag, shard)
                if found is not None and found.change.definition is not None:
                    try:
                        keys[tag] = SubscriptionKey.from_record(found.change.key)
                    except KafkadurError as error:
                        _log.warning("A subscription in the journal is left out: %s", error)
        return sorted(keys.values(), key=lambda key: key.display)
