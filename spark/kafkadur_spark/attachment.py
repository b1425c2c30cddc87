"""The attachment of a Spark driver to a subscription, and the thread that maintains it.

The thread renews the session, sends the driver's verdicts, and notes settled partitions for the journal and
Kafka's consumer group. If the state in Redis is lost, the thread attaches again without having detached. If
the session may have ended meanwhile, the attachment is lost for good: its queries are stopped and nothing can
be settled any more, so that every unsettled message is redelivered. `holder.py` reads and settles a whole
subscription, `claiming.py` a share of one.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from kafkadur.history.kafka_log import KafkaLog
from kafkadur.history.writer import HistoryThread
from kafkadur.message.tracing import Tracing
from kafkadur.runtime.checkpoint_thread import CheckpointThread
from kafkadur.runtime.clients import (
    coordinator_of,
    journal_of,
    lifecycle_of,
    rebuild_of,
    topics_of,
    waiters_of,
)
from kafkadur.settings import Settings
from kafkadur_coordinators import holder_progress
from kafkadur_coordinators.claims import Claims
from kafkadur_coordinators.holder_progress import HolderProgress
from kafkadur_coordinators.interface import MAX_PARTITIONS, MemberKind, PartitionView
from kafkadur_coordinators.journal.origins import state_of
from kafkadur_coordinators.lifecycle import Membership, Subscription
from kafkadur_coordinators.redis import presence as presences
from kafkadur_coordinators.redis.cluster import Place, SlotMap
from kafkadur_coordinators.redis.coordinator import RedisCoordinator, Refusal
from kafkadur_coordinators.redis.presence import Presence
from kafkadur_coordinators.settlement_states import SettlementState, settlement_of
from kafkadur_coordinators.topics import topic_changed
from kafkadur_sharing.decisions import Request
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
from kafkadur_spark.recording import Recording
from kafkadur_spark.rejecting import Reasons, send_to_dead_letters

T = TypeVar("T")
_log = logging.getLogger("kafkadur.spark")

#: Refusals for lost state: the driver attaches again, if no other member can have attached meanwhile.
_AGAIN = ("MISSING", "RESTARTED", "INCARNATION")
#: Errors that may be temporary.
_PASSING = (CoordinatorUnavailable, KafkaRefused, StateLost)
#: Seconds to wait until a query has stopped: it may be the caller itself.
_STOP_S = 30.0
#: Seconds between two attempts while Redis or Kafka do not answer.
_RETRY = 0.2


class Whereabouts(NamedTuple):
    """The settlement states of a subscription and the first offsets of its topic, by partition."""

    settlements: Mapping[int, SettlementState]
    #: first offset that Kafka still has
    earliest: Mapping[int, int]


class Attachment:
    """A driver attached to one subscription; a context manager. Any thread of the driver may call it."""

    #: the kind of the member
    kind: MemberKind

    def __init__(
        self, settings: Settings, request: Request, *, connection_id: str, name: str | None = None
    ) -> None:
        """Nothing is attached yet.

        `connection_id` is that of the connection whose messages are local. `name` is shown to people.
        """
        self.connection_id = connection_id
        #: those of the connection
        self.settings = settings
        #: why the attachment is lost; None: it is not
        self.lost: LeaseLost | None = None
        self._request = request
        self._name = name or f"spark-{uuid.uuid4().hex[:8]}"
        self._member = uuid.uuid4().hex
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = False
        #: whether the thread does nothing any more
        self._ended = False
        #: when the last answered call was made, monotonic seconds
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
            waiters=waiters_of(settings, coordinator=self._new_coordinator),
            rebuild=rebuild_of(settings, topics=lambda: topics_of(settings)),
        )
        self._history = HistoryThread(lambda: KafkaLog(settings.kafka))
        #: what is written to the delivery history, if the subscription has one
        self._recording = Recording()
        self._tracing = Tracing(settings.client_id) if settings.tracing else None
        self._membership: Membership | None = None
        self._claims: Claims
        #: partitions on which something was settled since the last checkpoint
        self._settled: set[int] = set()
        #: the last progress of each query that runs, and whether it is to be published
        self._progress: dict[str | None, HolderProgress] = {}
        self._to_tell = False
        self._thread = threading.Thread(target=self._main, name="kafkadur-spark", daemon=True)

    def _new_coordinator(self) -> RedisCoordinator:
        return coordinator_of(self.settings, on_warning=_log.warning, listener=self)

    def be_at(self, place: Place) -> None:
        """As `Listener`."""
        if self._presence is not None:
            self._presence.be_at(place)

    def follow(self, slots: SlotMap) -> None:
        """As `Listener`."""
        if self._presence is not None:
            self._presence.follow(slots)

    # -- opening and closing

    def __enter__(self) -> Self:
        """Attach; raises the error of the rule that refuses it, such as `SubscriptionActive`."""
        if self._closing or self._thread.is_alive():
            raise IllegalState(
                "It is entered once.", owner=f"subscription {self.display}", remedy="make another one"
            )
        chosen = self.settings
        self._presence = presences.acquire(chosen.redis, chosen.redis_timeout.total_seconds())
        self._thread.start()
        try:
            self._ask(self._attach)
            self._checkpointer.add(self, self.definition)
            if self.definition.definition.history is not None:
                self._recording.begin()
                self._history.add(self._recording, self.definition, member=self._member, name=self._name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Stop the queries on it and detach; unsettled messages are redelivered and no attempt is counted.

        A second call does nothing.
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
        self._history.remove(self._recording)
        self._history.close()
        if self._presence is not None:
            presences.release(self.settings.redis, self.settings.redis_timeout.total_seconds())
        self._coordinator.close()
        self._journal.close()
        self._topics.close()

    # -- for the driver

    @property
    def definition(self) -> Subscription:
        """The subscription to which the driver is attached."""
        if self._membership is None:
            raise ConnectionClosed(
                owner="the Spark driver", remedy="enter the context of the holder or claimer first"
            )
        return self._membership.subscription

    def check(self) -> None:
        """Raise `LeaseLost` if the attachment is lost."""
        if self.lost is not None:
            raise self.lost

    def truncated(self) -> dict[int, int]:
        """Return how many offsets Kafka has lost with the end of each partition. Raises as `whereabouts`."""
        partitions = range(self.definition.topic.partitions)
        return self._patiently(
            lambda: self._again(lambda: {view.partition: view.truncated for view in self._views(partitions)})
        )

    def confirm(self) -> None:
        """Have Redis confirm that the driver is attached. Raises as `whereabouts`."""
        self._patiently(lambda: self._again(lambda: self._claims.renew()))  # noqa: PLW0108 - as in `_renew`

    def at_end(self, end: Callable[[], None]) -> None:
        """Call `end` once, in its own thread, when the attachment is lost or closed; at once if it is."""
        with self._lock:
            self._on_end.append(end)
            over = self._closing or self.lost is not None
        if over:
            self._end_queries()

    def ends(self) -> dict[int, int]:
        """Return the offset up to which each partition is readable.

        Raises `StateLost` if Kafka does not answer for three times the session time-out.
        """
        topic = self.definition.topic
        return self._while_it_may_pass(lambda: self._topics.offsets(topic.name, topic.partitions, "latest"))

    def earliest(self) -> dict[int, int]:
        """Return the first offset of each partition that Kafka still has. Raises as `ends` does."""
        topic = self.definition.topic
        return self._while_it_may_pass(lambda: self._topics.offsets(topic.name, topic.partitions, "earliest"))

    def whereabouts(self) -> Whereabouts:
        """Return the present settlement states of the subscription.

        Raises `LeaseLost` if the attachment is lost, and `CoordinatorUnavailable` or `StateLost` if Redis or
        Kafka do not answer for three times the session time-out.
        """
        self._see_topic()
        topic = self.definition.topic
        settlements = self._patiently(lambda: self._again(lambda: self._settlements(range(topic.partitions))))
        return Whereabouts(settlements, self.earliest())

    def send_to_dead_letters(self, rejected: Reasons) -> None:
        """Write the dead letters of rejected messages, given as reasons by partition and offset.

        Afterwards the caller can settle them; this call settles nothing. Raises as `whereabouts` does.
        """
        settlements = self.whereabouts().settlements
        send_to_dead_letters(self.settings, self.definition, rejected, settlements, tracing=self._tracing)
        self._recording.give_up(rejected)

    def tell(self, progress: HolderProgress | None, *, query: str | None = None) -> None:
        """Publish the progress of a query of this driver; None: it does not run any more.

        It does not wait; a progress that Redis does not take at once is dropped.
        """
        with self._lock:
            self._progress.pop(query, None)
            if progress is not None:
                self._progress[query] = progress
            is_due, self._to_tell = not self._to_tell, True
        if is_due:
            self._jobs.put(self._tell)

    # -- for the checkpointer

    @property
    def display(self) -> str:
        """The subscription's name."""
        return str(self._request.key)

    def take_settled(self) -> set[int]:
        """Return the partitions on which something was settled since the last call."""
        with self._lock:
            taken, self._settled = self._settled, set()
        return taken

    # -- the thread

    def _patiently(self, job: Callable[[], T]) -> T:
        """Have the thread do a job, and repeat it after errors that may be temporary.

        After a loss of the state nothing is granted until the earlier sessions would have ended.
        """
        return self._while_it_may_pass(lambda: self._ask(job))

    def _while_it_may_pass(self, job: Callable[[], T]) -> T:
        """Make a call, and repeat it after errors that may be temporary."""
        until = time.monotonic() + 3 * self.settings.session_timeout.total_seconds()
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
                    raise closed  # noqa: TRY301 - the caller raises it
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                future.set_exception(error)

        with self._lock:
            if self._ended or not self._thread.is_alive():
                raise closed
            self._jobs.put(run)
        return future.result()

    def _main(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - queries must not outlive the thread
            _log.exception("the thread that holds %s ends", self.display)
            self._lose(f"its thread has ended: {error!r}")
        with self._lock:
            self._ended = True
        # jobs that came after the end fail, so that no caller waits for ever
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job()

    def _work(self) -> None:
        every = self.settings.session_timeout.total_seconds() / 3
        due = time.monotonic() + every
        while True:
            with contextlib.suppress(queue.Empty):
                job = self._jobs.get(timeout=max(min(due, self._floors.due) - time.monotonic(), 0.0))
                if job is None:
                    return
                job()
            if self._ended:  # else it would attach again, if the state was lost
                return
            if time.monotonic() >= due:
                due = time.monotonic() + (every if self._renew() else _RETRY)
            if self._membership is not None:
                self._floors.mirror(self.definition, self._settlements)

    def _attach(self) -> None:
        presence, member = self._presence, self._member
        if presence is None:
            raise ConnectionClosed(owner="the Spark driver")
        known = self._membership
        membership = self._lifecycle.attach(
            self._request,
            member=member,
            name=self._name,
            kind=self.kind,
            only=None if known is None else known.subscription.id,
            seen=0 if known is None else known.session.incarnation,
            before=lambda address: presence.listen(address.channel(member), lambda _: None),
        )
        self._claims = Claims(membership.session)
        self._membership = membership
        self._attached()
        self._heard_at = time.monotonic()

    def _attached(self) -> None:
        """Start anew with `_claims`: the driver is attached, perhaps again, and earlier claims are over."""

    def _may_attach_again(self) -> bool:
        """Return whether the driver can attach again without losing a claim."""
        return True

    def _see_topic(self) -> bool:
        """Attach again if partitions were added; return whether all of them are known then.

        Raises `TopicChanged` if the topic was deleted and created again: what was read since is not settled.
        """
        topic = self.definition.topic
        found = self._while_it_may_pass(lambda: self._topics.describe(topic.name))
        if found.id != topic.id:
            changed = topic_changed(topic.name, now=found.id, was=topic.id, subscription=self.display)
            self._ask(lambda: self._lose(str(changed)))
            raise changed
        there = found.partitions

        def see() -> None:
            if there > self.definition.topic.partitions and self._may_attach_again():
                self._attach_again()

        if there > topic.partitions:
            self._patiently(see)
        return there <= self.definition.topic.partitions

    def _note_settled(self, partitions: Iterable[int]) -> None:
        """Have the journal and the consumer group follow partitions on which something was settled."""
        some = set(partitions)
        with self._lock:
            self._settled |= some
        self._floors.note(some)

    def _log_ends(self, partitions: Iterable[int]) -> dict[int, int]:
        topic = self.definition.topic
        found = self._topics.offsets(topic.name, topic.partitions, "latest", stable=False)
        return {partition: found[partition] for partition in partitions}

    def _attach_again(self) -> None:
        """Attach again, without having detached; raises `LeaseLost` if that is impossible."""
        before = self.definition
        away = time.monotonic() - self._heard_at
        if away > self.settings.session_timeout.total_seconds():
            raise self._lose(f"its state was lost, and nothing was heard of it for {away:.1f} s")
        try:
            self._attach()
        except _PASSING:
            raise
        except KafkadurError as error:
            raise self._lose(str(error)) from error
        if self.definition.epoch != before.epoch:
            raise self._lose("the subscription was moved")

    def _settlements(self, partitions: Sequence[int]) -> dict[int, SettlementState]:
        return {view.partition: settlement_of(view) for view in self._views(partitions)}

    def _views(self, partitions: Sequence[int]) -> list[PartitionView]:
        held = self.definition
        state = state_of(held.topic.id, held.definition.lanes)
        views: list[PartitionView] = []
        for first in range(0, len(partitions), MAX_PARTITIONS):
            group = partitions[first : first + MAX_PARTITIONS]
            views += self._coordinator.inspect(held.address, held.id, state, group).partitions
        return views

    def _renew(self) -> bool:
        """Renew the session; return whether Redis answered."""
        if self.lost is not None or self._membership is None:
            return True
        try:
            self._again(lambda: self._claims.renew())  # noqa: PLW0108 - attaching again replaces the claims
        except _PASSING as error:
            _log.info("%s", error)
            return False
        except KafkadurError as error:
            _log.info("%s", error)
        return True

    def _again(self, call: Callable[[], T]) -> T:
        """Make a call; if the state was lost, or is in doubt, attach again and repeat it."""
        while True:
            began = time.monotonic()
            try:
                found = call()
                self._heard_at = began
                if self._membership is None or not self._claims.outcome_unknown:
                    return found
                # Redis grants nothing until it is known what a transacted member that has gone has committed
                _log.warning(
                    "%s: a transacted consumer has gone; what it committed is looked up", self.display
                )
                self._lifecycle.rebuild({self._request.key: self._membership.session.incarnation})
            except Refusal as refusal:
                if refusal.code not in _AGAIN:
                    raise self._lose(f"the coordinator answered {refusal.code}") from None
                _log.warning("%s: %s; attaching again", self.display, refusal.code)
            self._attach_again()

    def _lose(self, state: str) -> LeaseLost:
        error = LeaseLost(
            "This driver has lost the subscription.",
            state=state,
            owner=f"subscription {self.display}",
            remedy="start the query again: it reads the unsettled messages",
        )
        with self._lock:
            self.lost = error
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
            # a query that ends may still settle in the thread of the attachment
            for thread in threads:
                thread.join(_STOP_S)

    # -- publishing progress and detaching

    def _tell(self) -> None:
        with self._lock:
            running, to_tell, self._to_tell = list(self._progress.values()), self._to_tell, False
        if not to_tell:
            return
        if self._ended or self.lost is not None or self._membership is None:
            return
        try:
            holder_progress.tell(self._coordinator, self.definition.address, self._member, running)
        except KafkadurError as error:
            _log.info("progress of %s: %s", self.display, error)

    def _leave(self) -> None:
        membership, presence = self._membership, self._presence
        if membership is None or presence is None:
            return
        try:
            if self.lost is None:
                self._floors.mirror_last(self.definition, self._settlements)
                membership.session.detach([])
                with self._lock:
                    self._progress, self._to_tell = {}, True
                self._tell()
        except KafkadurError as error:
            _log.info("leaving %s: %s", self.display, error)
        finally:
            self._ended = True
            presence.forget(membership.subscription.address.channel(self._member))
