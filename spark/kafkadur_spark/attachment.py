"""A Spark driver that is attached to a subscription, and the thread that keeps it.

The thread renews the session, settles what the driver says is done with, and has the journal and Kafka's
consumer group follow. When the state in Redis is lost it attaches again, without letting go; when it may have
been gone meanwhile, it is lost for good: its readers are told, and nothing can be settled any more, so
that everything not settled comes again. What is read and settled is `holder.py` (a whole subscription) and
`claiming.py` (beside others).
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from kafkadur.runtime.checkpoint_thread import CheckpointThread
from kafkadur.runtime.clients import coordinator_of, journal_of, lifecycle_of, topics_of
from kafkadur.runtime.waiters import Waiters
from kafkadur.settings import Settings
from kafkadur_coordinators import holder_progress
from kafkadur_coordinators.claims import Claims
from kafkadur_coordinators.holder_progress import HolderProgress
from kafkadur_coordinators.interface import MAX_PARTITIONS, MemberKind
from kafkadur_coordinators.journal.origins import state_of
from kafkadur_coordinators.lifecycle import Membership, Subscription
from kafkadur_coordinators.places import Place, place_of
from kafkadur_coordinators.redis import presence as presences
from kafkadur_coordinators.redis.coordinator import RedisCoordinator, Refusal
from kafkadur_coordinators.redis.presence import Presence
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.definition import Definition
from kafkadur_sharing.errors import (
    ConnectionClosed,
    CoordinatorUnavailable,
    IllegalState,
    KafkadurError,
    KafkaRefused,
    LeaseLost,
    StateLost,
)
from kafkadur_spark.floors import FloorMirror
from kafkadur_spark.rejecting import Reasons, bury

T = TypeVar("T")
_log = logging.getLogger("kafkadur.spark")

#: Codes of a lost state: the job attaches again, if no other member can have been attached meanwhile.
_AGAIN = ("MISSING", "RESTARTED", "INCARNATION")
#: Errors that pass.
_PASSING = (CoordinatorUnavailable, KafkaRefused, StateLost)
#: Seconds to wait for a query that is stopped: it may be the one that waits.
_STOP_S = 30.0
#: Seconds between two tries where Redis or Kafka do not answer.
_RETRY = 0.2


class Whereabouts(NamedTuple):
    """Where a subscription stands, and what of its topic Kafka keeps; all by partition."""

    places: Mapping[int, Place]
    #: first offset that Kafka keeps
    earliest: Mapping[int, int]


class Attachment:
    """A driver attached to one subscription; a context manager. Any thread of the driver may call it."""

    #: in which way it is attached
    kind: MemberKind

    def __init__(
        self, settings: Settings, request: Request, *, connection_id: str, name: str | None = None
    ) -> None:
        """Nothing is attached yet; `connection_id`: of the connection whose messages are local.

        `name` is shown to people.
        """
        self.connection_id = connection_id
        self._settings = settings
        self._request = request
        self._name = name or f"spark-{uuid.uuid4().hex[:8]}"
        self._member = uuid.uuid4().hex
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = False
        self._lost: LeaseLost | None = None
        #: nothing is done any more
        self._ended = False
        #: when a call was made that was answered last, monotonic seconds
        self._heard_at = 0.0
        self._on_end: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._presence: Presence | None = None
        self._coordinator = self._new_coordinator()
        self._journal = journal_of(settings)
        self._topics = topics_of(settings)
        self._floors = FloorMirror(self._topics)
        self._lifecycle = lifecycle_of(
            settings, coordinator=self._coordinator, journal=self._journal, topics=self._topics
        )
        self._checkpointer = CheckpointThread(
            coordinator=self._new_coordinator,
            journal=lambda: journal_of(settings),
            waiters=Waiters(
                coordinator=self._new_coordinator,
                replicas=settings.replicas,
                patience=settings.level_timeout.total_seconds(),
                beacon=f"{settings.prefix}:{settings.namespace}:replicated",
            ),
            outdated=lambda _, incarnation: self._jobs.put(lambda: self._rebuild(incarnation)),
        )
        self._membership: Membership | None = None
        self._claims: Claims | None = None
        #: partitions on which something was settled since the checkpointer asked
        self._settled: set[int] = set()
        #: what people are to be told, the last of it; empty: they were
        self._to_tell: list[HolderProgress | None] = []
        self._thread = threading.Thread(target=self._main, name="kafkadur-spark", daemon=True)

    def _new_coordinator(self) -> RedisCoordinator:
        return coordinator_of(self._settings, on_warning=_log.warning, on_connect=self._be_at)

    def _be_at(self, run_id: str) -> None:
        if self._presence is not None:
            self._presence.be_at(run_id)

    # -- opening and closing

    def __enter__(self) -> Self:
        """Attach; raises what the rules say, such as `SubscriptionActive`."""
        if self._closing or self._thread.is_alive():
            raise IllegalState(
                "It is entered once.", owner=f"subscription {self._request.key}", remedy="make another one"
            )
        chosen = self._settings
        self._presence = presences.acquire(chosen.redis, chosen.redis_timeout.total_seconds())
        self._thread.start()
        try:
            self._ask(self._attach)
            self._checkpointer.add(self, self.definition)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave."""
        self.close()

    def close(self) -> None:
        """Stop the queries that read for it, and leave: what is not settled comes again, uncounted.

        Twice is fine.
        """
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._end_queries()
        self._jobs.put(self._leave)
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._floors.close()
        self._checkpointer.remove(self)
        self._checkpointer.close()
        if self._presence is not None:
            presences.release(self._settings.redis, self._settings.redis_timeout.total_seconds())
        self._coordinator.close()
        self._journal.close()
        self._topics.close()

    # -- for the driver

    @property
    def settings(self) -> Settings:
        """Those of the connection."""
        return self._settings

    @property
    def definition(self) -> Subscription:
        """The subscription that is held."""
        if self._membership is None:
            raise ConnectionClosed(
                owner="the Spark driver", remedy="enter the context of the holder or claimer first"
            )
        return self._membership.subscription

    @property
    def lost(self) -> LeaseLost | None:
        """Why it is held no more; None: it is."""
        return self._lost

    def check(self) -> None:
        """Raise `LeaseLost` if it is held no more."""
        if self._lost is not None:
            raise self._lost

    def at_end(self, end: Callable[[], None]) -> None:
        """Have `end` called, once and in a thread of its own, when it is lost or closed; at once if it is."""
        with self._lock:
            self._on_end.append(end)
            over = self._closing or self._lost is not None
        if over:
            self._end_queries()

    def ends(self) -> dict[int, int]:
        """Up to which offset each partition is readable.

        Raises `StateLost` when Kafka does not answer for three times the session time-out.
        """
        topic = self.definition.topic
        return self._while_it_may_pass(lambda: self._topics.offsets(topic.name, topic.partitions, "latest"))

    def earliest(self) -> dict[int, int]:
        """The first offset of each partition that Kafka keeps. Raises as `ends` does."""
        topic = self.definition.topic
        return self._while_it_may_pass(lambda: self._topics.offsets(topic.name, topic.partitions, "earliest"))

    def whereabouts(self) -> Whereabouts:
        """Where the subscription stands now.

        Raises `LeaseLost` when it is lost, and `CoordinatorUnavailable` or `StateLost` when Redis or Kafka
        do not answer for three times the session time-out.
        """
        self._see_added()
        topic = self.definition.topic
        places = self._patiently(lambda: self._again(lambda: self._places(range(topic.partitions))))
        return Whereabouts(places, self.earliest())

    def bury(self, rejected: Reasons) -> None:
        """Write the dead letters of what is rejected, reasons by partition and offset.

        Then it can be settled. Raises as `whereabouts` does; nothing of it is settled here.
        """
        places = self.whereabouts().places
        bury(self._settings, self.definition, rejected, places)

    def tell(self, progress: HolderProgress | None) -> None:
        """Show people what the query of this driver did last; None: nothing runs.

        Does not wait; what Redis does not take at once is not shown.
        """
        with self._lock:
            told, self._to_tell = not self._to_tell, [progress]
        if told:
            self._jobs.put(self._tell)

    # -- for the checkpointer

    @property
    def display(self) -> str:
        """The subscription's name."""
        return str(self._request.key)

    def take_settled(self) -> set[int]:
        """Partitions on which something was settled since this was asked last."""
        with self._lock:
            taken, self._settled = self._settled, set()
        return taken

    # -- the thread

    def _patiently(self, job: Callable[[], T]) -> T:
        """Ask, again and again while what is wrong may pass.

        After a loss of the state nothing is granted until the sessions of before would have ended.
        """
        return self._while_it_may_pass(lambda: self._ask(job))

    def _while_it_may_pass(self, job: Callable[[], T]) -> T:
        """Make a call, again and again while what is wrong may pass."""
        until = time.monotonic() + 3 * self._settings.session_timeout.total_seconds()
        while True:
            try:
                return job()
            except _PASSING:
                if time.monotonic() > until or self._closing:
                    raise
            time.sleep(_RETRY)

    def _ask(self, job: Callable[[], T]) -> T:
        future: Future[T] = Future()
        closed = ConnectionClosed(owner=self.display, remedy="attach anew")

        def run() -> None:
            try:
                self.check()
                if self._ended:
                    raise closed  # noqa: TRY301 - raised where the job came from
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - it is raised where the job came from
                future.set_exception(error)

        with self._lock:
            if self._ended or not self._thread.is_alive():
                raise closed
            self._jobs.put(run)
        return future.result()

    def _main(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - a thread that ends unseen would let queries go on
            _log.exception("the thread that holds %s ends", self.display)
            self._lose(f"its thread has ended: {error!r}")
        with self._lock:
            self._ended = True
        # no caller waits for ever for what came after the end
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job()

    def _work(self) -> None:
        every = self._settings.session_timeout.total_seconds() / 3
        due = time.monotonic() + every
        while True:
            with contextlib.suppress(queue.Empty):
                job = self._jobs.get(timeout=max(min(due, self._floors.due) - time.monotonic(), 0.0))
                if job is None:
                    return
                job()
            if time.monotonic() >= due:
                due = time.monotonic() + (every if self._renew() else _RETRY)
            if self._membership is not None:
                self._floors.mirror(self.definition, self._places)

    def _attach(self) -> None:
        presence, member = self._presence, self._member
        if presence is None:
            raise ConnectionClosed(owner="the Spark driver")
        known = self._membership
        if known is None:
            self._check_selecting()
        self._membership = self._lifecycle.attach(
            self._request,
            member=member,
            name=self._name,
            kind=self.kind,
            only=None if known is None else known.subscription.id,
            seen=0 if known is None else known.session.incarnation,
            before=lambda address: presence.listen(address.channel(member), lambda: None),
        )
        self._claims = Claims(self._membership.session)
        self._attached(self._claims)
        self._heard_at = time.monotonic()

    def _attached(self, claims: Claims) -> None:
        """It was attached, or attached again: what was claimed before is over."""

    def _may_attach_again(self) -> bool:
        """Whether nothing is lost by it."""
        return True

    def _see_added(self) -> bool:
        """Attach again if partitions were added; returns whether all are known then."""
        topic = self.definition.topic
        there = self._while_it_may_pass(lambda: self._topics.describe(topic.name)).partitions

        def see() -> None:
            if there > self.definition.topic.partitions and self._may_attach_again():
                self._attach_again()

        if there > topic.partitions:
            self._patiently(see)
        return there <= self.definition.topic.partitions

    def _note_settled(self, partitions: Iterable[int]) -> None:
        """Something was settled on these partitions: the journal and the consumer group follow."""
        some = set(partitions)
        with self._lock:
            self._settled |= some
        self._floors.note(some)

    def _log_ends(self, partitions: Iterable[int]) -> dict[int, int]:
        topic = self.definition.topic
        found = self._topics.offsets(topic.name, topic.partitions, "latest", stable=False)
        return {partition: found[partition] for partition in partitions}

    def _attach_again(self) -> None:
        """Attach again, without having let go; raises `LeaseLost` where that cannot be."""
        before = self.definition
        away = time.monotonic() - self._heard_at
        if away > self._settings.session_timeout.total_seconds():
            raise self._lose(f"its state was lost, and nothing was heard of it for {away:.1f} s")
        try:
            self._attach()
        except _PASSING:
            raise
        except KafkadurError as error:
            raise self._lose(str(error)) from error
        if self.definition.epoch != before.epoch:
            raise self._lose("the subscription was moved")

    def _check_selecting(self) -> None:
        """Refuse to replace a subscription that leaves out messages by one that takes all of them."""
        asked = self._request.definition.details
        if asked.selector is not None or asked.no_local:
            return
        known = self._lifecycle.known(self._request.key)
        if known is None:
            return
        found = Definition.from_record(json.loads(known.definition)["definition"])
        if found.details.selector is not None or found.details.no_local:
            raise IllegalState(
                "The subscription leaves out messages; to hold one that does not would replace it.",
                state=f"selector {found.selector!r}" if found.selector else "no_local",
                owner=f"subscription {self._request.key}",
                remedy="name the same selector and no_local, or unsubscribe first",
            )

    def _places(self, partitions: Sequence[int]) -> dict[int, Place]:
        held = self.definition
        state = state_of(held.topic.id, held.definition.lanes)
        places: dict[int, Place] = {}
        for first in range(0, len(partitions), MAX_PARTITIONS):
            group = partitions[first : first + MAX_PARTITIONS]
            views = self._coordinator.inspect(held.address, held.id, state, group).partitions
            places |= {view.partition: place_of(view) for view in views}
        return places

    def _renew(self) -> bool:
        """Renew; returns whether that was answered."""

        def renew() -> None:
            if self._claims is not None:
                self._claims.renew()

        if self._lost is not None:
            return True
        try:
            self._again(renew)
        except _PASSING as error:
            _log.info("%s", error)
            return False
        except KafkadurError as error:
            _log.info("%s", error)
        return True

    def _rebuild(self, incarnation: int) -> None:
        """The journal knows a later incarnation than the server."""
        try:
            self._lifecycle.rebuild({self._request.key: incarnation})
        except (KafkadurError, Refusal) as error:
            _log.info("%s", error)

    def _again(self, call: Callable[[], T]) -> T:
        """Make a call; where the state was lost, or is in doubt, attach again and make it once more."""
        while True:
            began = time.monotonic()
            try:
                found = call()
                self._heard_at = began
                if self._claims is None or not self._claims.outcome_unknown:
                    return found
                self._look_up()
            except Refusal as refusal:
                if refusal.code not in _AGAIN:
                    raise self._lose(f"the coordinator answered {refusal.code}") from None
                _log.warning("%s: %s; attaching again", self._request.key, refusal.code)
            self._attach_again()

    def _look_up(self) -> None:
        """Look up in Kafka what a transacted member that is gone has committed: nothing is granted before."""
        _log.warning("%s: a transacted consumer has gone; what it committed is looked up", self.display)
        if self._membership is not None:
            self._lifecycle.rebuild({self._request.key: self._membership.session.incarnation})

    def _lose(self, state: str) -> LeaseLost:
        error = LeaseLost(
            "The subscription is held by this driver no more.",
            state=state,
            owner=f"subscription {self._request.key}",
            remedy="start the query again: it reads what is not settled",
        )
        with self._lock:
            self._lost = error
        _log.error("%s", error)
        self._end_queries()
        return error

    def _end_queries(self) -> None:
        with self._lock:
            told, self._on_end = self._on_end, []
        threads = [threading.Thread(target=each, name="kafkadur-end", daemon=True) for each in told]
        for thread in threads:
            thread.start()
        if threading.current_thread() is not self._thread:
            # a query that ends may still settle, in the holder's thread
            for thread in threads:
                thread.join(_STOP_S)

    # -- for people

    def _tell(self) -> None:
        with self._lock:
            to_tell, self._to_tell = self._to_tell, []
        if self._ended or self._lost is not None or self._membership is None:
            return
        try:
            for progress in to_tell:
                holder_progress.tell(self._coordinator, self.definition.address, self._member, progress)
        except KafkadurError as error:
            _log.info("progress of %s: %s", self.display, error)

    def _leave(self) -> None:
        membership, presence = self._membership, self._presence
        if membership is None or presence is None:
            return
        try:
            if self._lost is None:
                self._floors.mirror_last(self.definition, self._places)
                membership.session.detach([])
                self.tell(None)
                self._tell()
        except (KafkadurError, Refusal) as error:
            _log.info("leaving %s: %s", self._request.key, error)
        finally:
            self._ended = True
            presence.forget(membership.subscription.address.channel(self._member))
