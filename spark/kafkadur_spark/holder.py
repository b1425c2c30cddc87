"""A subscription that a Spark driver holds as a whole, and the thread that keeps it.

While it is held nobody else is attached. The thread renews the session, settles what the driver says is done
with, and has the journal and Kafka's consumer group follow. When the state in Redis is lost it attaches again;
when somebody else may have had the subscription meanwhile, it is lost for good: who reads for it is told, and
nothing can be settled any more, so that everything not settled comes again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar

from kafkadur.aio.connection import process_name
from kafkadur.settings import Settings
from kafkadur_coordinators import presence as presences
from kafkadur_coordinators.claims import Claims
from kafkadur_coordinators.interface import MAX_PARTITIONS
from kafkadur_coordinators.journal import Journal
from kafkadur_coordinators.lifecycle import Lifecycle, Membership, Subscription
from kafkadur_coordinators.origins import state_of
from kafkadur_coordinators.presence import Presence
from kafkadur_coordinators.redis_coordinator import RedisCoordinator, Refusal
from kafkadur_coordinators.topics import Topics
from kafkadur_coordinators.whole import Verdicts, Whole
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.errors import (
    ConnectionClosed,
    CoordinatorUnavailable,
    KafkadurError,
    KafkaRefused,
    LeaseLost,
    StateLost,
)

T = TypeVar("T")
_log = logging.getLogger("kafkadur.spark")

#: Codes after which nobody else can have had the subscription: it is attached again.
_AGAIN = ("MISSING", "RESTARTED", "INCARNATION")
#: Seconds between two tries where Redis or Kafka do not answer, and between two mirrored floors.
_RETRY, _MIRROR_EVERY = 0.2, 1.0


class Holder:
    """Holds one subscription as a whole; a context manager. Any thread of the driver may call it."""

    def __init__(self, settings: Settings, request: Request) -> None:
        """Nothing is attached yet."""
        self._settings = settings
        self._request = request
        self._member = uuid.uuid4().hex
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = False
        self._lost: KafkadurError | None = None
        self._on_lost: list[Callable[[KafkadurError], None]] = []
        self._lock = threading.Lock()
        self._presence: Presence | None = None
        self._coordinator = RedisCoordinator(
            settings.redis,
            timeout=settings.redis_timeout.total_seconds(),
            on_warning=_log.warning,
            on_connect=self._be_at,
        )
        timeout = settings.kafka_timeout.total_seconds()
        self._journal = Journal(
            settings.kafka,
            settings.namespace,
            shards=settings.journal_partitions,
            replication=settings.journal_replication,
            timeout=timeout,
        )
        self._topics = Topics(settings.kafka, timeout=timeout)
        self._lifecycle = Lifecycle(
            coordinator=self._coordinator,
            journal=self._journal,
            topics=self._topics,
            prefix=settings.prefix,
            session_ms=settings.session_ms,
        )
        self._membership: Membership | None = None
        self._whole: Whole | None = None
        self._mirrored: dict[int, int] = {}
        self._mirror_at = 0.0
        self._thread = threading.Thread(target=self._main, name="kafkadur-spark", daemon=True)

    # -- opening and closing

    def open(self) -> None:
        """Attach; raises what the rules say, `SubscriptionActive` while anybody is attached."""
        chosen = self._settings
        self._presence = presences.acquire(chosen.redis, chosen.redis_timeout.total_seconds())
        self._thread.start()
        try:
            self._ask(self._attach)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave: what is not settled comes again, uncounted. Twice is fine."""
        if self._closing:
            return
        self._closing = True
        self._jobs.put(self._leave)
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()
        if self._presence is not None:
            presences.release(self._settings.redis, self._settings.redis_timeout.total_seconds())
        self._coordinator.close()
        self._journal.close()

    def __enter__(self) -> Self:
        """Attach."""
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave."""
        self.close()

    # -- for the driver

    @property
    def definition(self) -> Subscription:
        """The subscription that is held."""
        if self._membership is None:
            raise ConnectionClosed(owner="the Spark driver", remedy="enter its context first")
        return self._membership.subscription

    @property
    def lost(self) -> KafkadurError | None:
        """Why it is held no more; None: it is."""
        return self._lost

    def when_lost(self, tell: Callable[[KafkadurError], None]) -> None:
        """Have `tell` called, in the holder's thread, when it is lost; at once if it is."""
        with self._lock:
            self._on_lost.append(tell)
            lost = self._lost
        if lost is not None:
            tell(lost)

    def settle(self, verdicts: Mapping[int, Verdicts]) -> int:
        """Give verdicts, by partition; returns how many offsets were settled by it.

        Saying the same again changes nothing. Raises `LeaseLost` when the subscription is lost, and
        `CoordinatorUnavailable` when Redis does not answer: it may have been done, and can be said again.
        """
        return self._ask(lambda: self._settle(verdicts))

    # -- the thread

    def _ask(self, job: Callable[[], T]) -> T:
        future: Future[T] = Future()

        def run() -> None:
            try:
                if self._lost is not None:
                    raise LeaseLost(  # noqa: TRY301 - raised where the job came from
                        state=str(self._lost),
                        owner=f"subscription {self._request.key}",
                        remedy="start the query again: it reads what is not settled",
                    )
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - it is raised where the job came from
                future.set_exception(error)

        self._jobs.put(run)
        return future.result()

    def _main(self) -> None:
        every = self._settings.session_timeout.total_seconds() / 3
        due = time.monotonic() + every
        while True:
            try:
                job = self._jobs.get(timeout=max(due - time.monotonic(), 0.0))
            except queue.Empty:
                due = time.monotonic() + (every if self._renew() else _RETRY)
                continue
            if job is None:
                return
            job()

    def _attach(self) -> None:
        presence, member = self._presence, self._member
        if presence is None:
            raise ConnectionClosed(owner="the Spark driver")
        known = self._membership
        self._membership = self._lifecycle.attach(
            self._request,
            member=member,
            name=process_name(),
            whole=True,
            only=None if known is None else known.subscription.id,
            seen=0 if known is None else known.session.incarnation,
            before=lambda address: presence.listen(address.channel(member), lambda: None),
        )
        self._whole = Whole(Claims(self._membership.session))

    def _settle(self, verdicts: Mapping[int, Verdicts]) -> int:
        def settle() -> int:
            whole = self._whole
            return 0 if whole is None else whole.settle(verdicts)

        count = self._again(settle)
        self._mirror(verdicts)
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
        except (CoordinatorUnavailable, StateLost, KafkaRefused) as error:
            _log.info("%s", error)
            return False
        except KafkadurError as error:
            _log.info("%s", error)
        return True

    def _again(self, call: Callable[[], T]) -> T:
        """Make a call; where the state was lost, attach again and make it once more."""
        while True:
            try:
                return call()
            except Refusal as refusal:
                if refusal.code not in _AGAIN:
                    raise self._lose(f"the coordinator answered {refusal.code}") from None
                _log.warning("%s: %s; attaching again", self._request.key, refusal.code)
            try:
                self._attach()
            except (CoordinatorUnavailable, StateLost, KafkaRefused):
                raise
            except KafkadurError as error:
                raise self._lose(str(error)) from error

    def _lose(self, state: str) -> LeaseLost:
        error = LeaseLost(
            "The subscription is held by this driver no more.",
            state=state,
            owner=f"subscription {self._request.key}",
            remedy="start the query again: it reads what is not settled",
        )
        with self._lock:
            self._lost = error
            tell = list(self._on_lost)
        for each in tell:
            try:
                each(error)
            except Exception:  # noqa: BLE001 - whatever a query raises when it is stopped
                _log.exception("a query that lost its subscription could not be stopped")
        return error

    def _mirror(self, verdicts: Mapping[int, Verdicts]) -> None:
        """Have Kafka's consumer group follow the floors, once a second; only for people and tools."""
        now = time.monotonic()
        if now < self._mirror_at:
            return
        self._mirror_at = now + _MIRROR_EVERY
        held = self.definition
        state = state_of(held.topic.id, held.definition.lanes)
        partitions = sorted(verdicts)
        try:
            for first in range(0, len(partitions), MAX_PARTITIONS):
                group = partitions[first : first + MAX_PARTITIONS]
                views = self._coordinator.inspect(held.address, held.id, state, group).partitions
                floors = {view.partition: view.floor for view in views}
                moved = {p: floor for p, floor in floors.items() if self._mirrored.get(p) != floor}
                if moved:
                    self._topics.commit(
                        held.key.group, held.topic.name, moved, metadata=held.floor_metadata
                    )
                    self._mirrored |= moved
        except (KafkadurError, Refusal) as error:
            _log.info("floors of %s: %s", held.key, error)

    def _leave(self) -> None:
        membership, presence = self._membership, self._presence
        if membership is None or presence is None:
            return
        try:
            if self._lost is None:
                membership.session.detach([])
        except (KafkadurError, Refusal) as error:
            _log.info("leaving %s: %s", self._request.key, error)
        finally:
            presence.forget(membership.subscription.address.channel(self._member))

    def _be_at(self, run_id: str) -> None:
        if self._presence is not None:
            self._presence.be_at(run_id)


