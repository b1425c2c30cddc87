"""A subscription that a Spark driver holds as a whole, and the thread that keeps it.

While it is held nobody else is attached. The thread renews the session, settles what the driver says is done
with, and has the journal and Kafka's consumer group follow. When the state in Redis is lost it attaches
again, without letting go; when somebody else may have had the subscription meanwhile, it is lost for good:
the queries that read for it are stopped, and nothing can be settled any more, so that everything not settled
comes again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from confluent_kafka import KafkaException

import kafkadur.sync
from kafkadur.checkpointer import Checkpointer
from kafkadur.clients import coordinator_of, journal_of, lifecycle_of, topics_of
from kafkadur.settings import Settings
from kafkadur.waiters import Waiters
from kafkadur_coordinators import presence as presences
from kafkadur_coordinators.claims import Claims
from kafkadur_coordinators.interface import MAX_PARTITIONS
from kafkadur_coordinators.lifecycle import Membership, Subscription
from kafkadur_coordinators.origins import state_of
from kafkadur_coordinators.places import Place, place_of
from kafkadur_coordinators.presence import Presence
from kafkadur_coordinators.redis_coordinator import RedisCoordinator, Refusal
from kafkadur_coordinators.whole import Verdicts, Whole
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.definition import Definition, HeaderType, Start, SubscriptionType
from kafkadur_sharing.errors import (
    ConnectionClosed,
    CoordinatorUnavailable,
    IllegalState,
    KafkadurError,
    KafkaRefused,
    LeaseLost,
    StateLost,
)
from kafkadur_sharing.redelivery import Redelivery
from kafkadur_sharing.selector import parse_selector

T = TypeVar("T")
_log = logging.getLogger("kafkadur.spark")

#: Codes of a state that was lost: it is attached again, if nobody can have had the subscription meanwhile.
_AGAIN = ("MISSING", "RESTARTED", "INCARNATION")
#: Errors that pass.
_PASSING = (CoordinatorUnavailable, KafkaRefused, StateLost)
#: Seconds to wait for a query that is stopped: it may be the one that waits.
_STOP_S = 30.0
#: Seconds between two tries where Redis or Kafka do not answer, and between two mirrored floors.
_RETRY, _MIRROR_EVERY = 0.2, 1.0


def hold(
    connection: kafkadur.sync.Connection,
    topic: str,
    *,
    durable: str,
    type: SubscriptionType | str = SubscriptionType.SHARED,  # noqa: A002 - the field's word
    start: Start = "latest",
    selector: str | None = None,
    no_local: bool = False,
    header_types: Mapping[str, HeaderType] | None = None,
    redelivery: Redelivery | None = None,
    allow_conversion: bool = False,
    name: str | None = None,
) -> Holder:
    """Hold the durable subscription `durable` on `topic` as a whole, for the queries of this driver.

    `connection` is open and stays so. The subscription is created if there is none; `type`, `start`,
    `selector`, `no_local` (what came over `connection`, or with its client id), `header_types`, `redelivery`
    and `allow_conversion` are as in `Connection.subscribe`, but attempts are only counted here: dead letters
    are written by ordinary consumers. `name` is shown to people. Raises `InvalidSelector`, and `IllegalState`
    for the type key-ordered, which has no whole. Enter the holder's context: there it attaches, and raises
    what the rules say, `SubscriptionActive` while anybody is attached; and `IllegalState` where one that
    leaves out messages would be replaced, because neither `selector` nor `no_local` is given.
    """
    parse_selector(selector)
    definition = Definition(
        type=_type(type),
        topic=topic,
        selector=selector,
        no_local=no_local,
        start=start,
        header_types=header_types,
        redelivery=redelivery or Redelivery(),
    )
    request = Request(
        key=connection.key(durable),
        definition=definition,
        mode=connection.settings.mode,
        allow_conversion=allow_conversion,
    )
    shown = name or f"spark-{uuid.uuid4().hex[:8]}"
    return Holder(connection.settings, request, name=shown, connection_id=connection.id)


def _type(name: SubscriptionType | str) -> SubscriptionType:
    try:
        kind = SubscriptionType(name)
    except ValueError as error:
        raise IllegalState(
            f"There is no type of subscription {str(name)!r}.",
            remedy="use shared, exclusive, serial or priority",
        ) from error
    if kind is SubscriptionType.KEY_ORDERED:
        raise IllegalState(
            "A key-ordered subscription cannot be held as a whole.",
            remedy="use shared, exclusive, serial or priority",
        )
    return kind


class Whereabouts(NamedTuple):
    """Where a held subscription stands, and what of its topic Kafka keeps; all by partition."""

    places: Mapping[int, Place]
    #: first offset that Kafka keeps
    earliest: Mapping[int, int]


def _is_done(said: Verdicts, place: Place, now: int) -> bool:
    """Whether all that was said to be settled is, but what waits for its time: that comes again."""
    return place.next >= said.end and not any(
        item.start < end and start < item.end
        for item in place.waiting
        if item.due <= now
        for start, end in (*said.settled, *said.expired)
    )


class Holder:
    """Holds one subscription as a whole; a context manager. Any thread of the driver may call it."""

    def __init__(self, settings: Settings, request: Request, *, name: str, connection_id: str) -> None:
        """Nothing is attached yet. `connection_id`: of the connection whose messages are local."""
        #: id of the connection it is held on
        self.connection_id = connection_id
        self._settings = settings
        self._request = request
        self._name = name
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
        #: Kafka may take longer over a commit than a session lasts
        self._mirror_thread = ThreadPoolExecutor(1, "kafkadur-floors")
        self._mirroring: Future[None] | None = None
        self._lifecycle = lifecycle_of(
            settings, coordinator=self._coordinator, journal=self._journal, topics=self._topics
        )
        self._checkpointer = Checkpointer(
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
        self._whole: Whole | None = None
        #: partitions on which something was settled since the checkpointer asked
        self._settled: set[int] = set()
        self._mirrored: dict[int, int] = {}
        self._to_mirror: set[int] = set()
        self._mirror_at = 0.0
        self._thread = threading.Thread(target=self._main, name="kafkadur-spark", daemon=True)

    def _new_coordinator(self) -> RedisCoordinator:
        return coordinator_of(self._settings, on_warning=_log.warning, on_connect=self._be_at)

    def _be_at(self, run_id: str) -> None:
        if self._presence is not None:
            self._presence.be_at(run_id)

    # -- opening and closing

    def __enter__(self) -> Self:
        """Attach; raises what the rules say, `SubscriptionActive` while anybody is attached."""
        if self._closing or self._thread.is_alive():
            raise IllegalState(
                "A holder is entered once.", owner=f"subscription {self._request.key}", remedy="hold it anew"
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
        self._mirror_thread.shutdown()
        self._checkpointer.remove(self)
        self._checkpointer.close()
        if self._presence is not None:
            presences.release(self._settings.redis, self._settings.redis_timeout.total_seconds())
        self._coordinator.close()
        self._journal.close()

    # -- for the driver

    @property
    def settings(self) -> Settings:
        """Those of the connection."""
        return self._settings

    @property
    def definition(self) -> Subscription:
        """The subscription that is held."""
        if self._membership is None:
            raise ConnectionClosed(owner="the Spark driver", remedy="enter the holder's context first")
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

    def whereabouts(self) -> Whereabouts:
        """Where the subscription stands now. Raises as `settle` does."""
        return self._patiently(lambda: self._again(self._look))

    def ends(self) -> dict[int, int]:
        """Up to which offset each partition is readable. Raises as `settle` does."""
        topic = self.definition.topic
        return self._patiently(lambda: self._topics.offsets(topic.name, topic.partitions, "latest"))

    def settle(self, verdicts: Mapping[int, Verdicts]) -> int:
        """Give verdicts, by partition; returns how many offsets were settled by it.

        When it returns, all of it is done; saying it again settles nothing twice, but what is rolled back
        again counts another attempt. Raises `LeaseLost` when the subscription is lost, and
        `CoordinatorUnavailable` or `StateLost` when Redis or Kafka do not answer for three times the session
        time-out: a part may have been done, and all can be said again.
        """
        said = dict(verdicts)
        return self._patiently(lambda: self._settle(said))

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
        until = time.monotonic() + 3 * self._settings.session_timeout.total_seconds()
        while True:
            try:
                return self._ask(job)
            except _PASSING:
                if time.monotonic() > until or self._closing:
                    raise
            time.sleep(_RETRY)

    def _ask(self, job: Callable[[], T]) -> T:
        future: Future[T] = Future()
        closed = ConnectionClosed(owner=self.display, remedy="hold the subscription anew")

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
        # nobody waits for ever for what came after the end
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
                job = self._jobs.get(timeout=max(min(due, self._mirror_due()) - time.monotonic(), 0.0))
                if job is None:
                    return
                job()
            if time.monotonic() >= due:
                due = time.monotonic() + (every if self._renew() else _RETRY)
            self._mirror()

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
            whole=True,
            only=None if known is None else known.subscription.id,
            seen=0 if known is None else known.session.incarnation,
            before=lambda address: presence.listen(address.channel(member), lambda: None),
        )
        self._whole = Whole(Claims(self._membership.session), self._log_ends)
        self._heard_at = time.monotonic()

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
                remedy="hold it with the same selector and no_local, or unsubscribe first",
            )

    def _look(self) -> Whereabouts:
        if self._topics.describe(self.definition.topic.name).partitions > self.definition.topic.partitions:
            self._attach_again()  # partitions were added
        topic = self.definition.topic
        places = self._places(range(topic.partitions))
        return Whereabouts(places, self._topics.offsets(topic.name, topic.partitions, "earliest"))

    def _places(self, partitions: range | list[int]) -> dict[int, Place]:
        held = self.definition
        state = state_of(held.topic.id, held.definition.lanes)
        places: dict[int, Place] = {}
        for first in range(0, len(partitions), MAX_PARTITIONS):
            group = partitions[first : first + MAX_PARTITIONS]
            views = self._coordinator.inspect(held.address, held.id, state, group).partitions
            places |= {view.partition: place_of(view) for view in views}
        return places

    def _settle(self, verdicts: dict[int, Verdicts]) -> int:
        """Give verdicts; what was rolled back is taken out of them, so that it is not counted again."""
        count = 0

        def settle() -> None:
            nonlocal count
            if max(verdicts, default=0) >= self.definition.topic.partitions:
                self._attach_again()  # partitions were added
            while self._whole is not None:
                more = self._whole.settle(verdicts)
                verdicts.update({p: said._replace(rolled_back=()) for p, said in verdicts.items()})
                count += more
                if not more:  # suspects are granted few at a time
                    return

        self._again(settle)
        with self._lock:
            self._settled |= set(verdicts)
        self._to_mirror.update(verdicts)
        places = self._again(lambda: self._places(sorted(verdicts)))
        now = round(time.time() * 1000)
        open_at = [p for p, said in verdicts.items() if not _is_done(said, places[p], now)]
        if open_at:
            raise StateLost(
                "Not all of a batch can be settled yet.",
                state=f"partitions {open_at[:8]}: the subscription is paused, its state was lost just now, "
                "or a thousand stretches were rolled back",
                owner=f"subscription {self.display}",
                remedy="resume it, or start the query again: it reads what is not settled",
            )
        return count

    def _renew(self) -> bool:
        """Renew; returns whether that was answered."""

        def renew() -> None:
            if self._whole is not None:
                self._whole.renew()

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
                if self._whole is None or not self._whole.doubt:
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

    # -- for people and tools

    def _mirror_due(self) -> float:
        return self._mirror_at if self._to_mirror else float("inf")

    def _mirror(self) -> None:
        """Have Kafka's consumer group follow the floors, once a second."""
        if not self._to_mirror or time.monotonic() < self._mirror_at:
            return
        self._mirror_at = time.monotonic() + _MIRROR_EVERY
        if self._mirroring is not None and not self._mirroring.done():
            return
        try:
            places = self._places(sorted(self._to_mirror))
        except (KafkadurError, Refusal) as error:
            _log.info("floors of %s: %s", self.display, error)
            return
        self._to_mirror = set()
        self._mirroring = self._mirror_thread.submit(
            self._commit, self.definition, {p: place.floor for p, place in places.items()}
        )

    def _commit(self, held: Subscription, floors: Mapping[int, int]) -> None:
        moved = {p: floor for p, floor in floors.items() if self._mirrored.get(p) != floor}
        try:
            if moved:
                self._topics.commit(held.key.group, held.topic.name, moved, metadata=held.floor_metadata)
        except (KafkadurError, KafkaException) as error:
            _log.info("floors of %s: %s", held.key, error)  # those that move again follow again
        else:
            self._mirrored |= moved

    def _leave(self) -> None:
        membership, presence = self._membership, self._presence
        if membership is None or presence is None:
            return
        try:
            if self._lost is None:
                self._mirror_at, self._mirroring = 0.0, None
                self._mirror()
                membership.session.detach([])
        except (KafkadurError, Refusal) as error:
            _log.info("leaving %s: %s", self._request.key, error)
        finally:
            self._ended = True
            presence.forget(membership.subscription.address.channel(self._member))
