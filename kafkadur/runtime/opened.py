"""The clients of Redis and Kafka, the threads and the members of an open connection."""

from __future__ import annotations

import logging
import os
import socket
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from kafkadur.history.writer import HistoryThread
from kafkadur.message.tracing import Tracing
from kafkadur.runtime.checkpoint_thread import CheckpointThread
from kafkadur.runtime.client_id_keeper import ClientIdKeeper
from kafkadur.runtime.clients import coordinator_of, lifecycle_of, rebuild_of, waiters_of
from kafkadur.runtime.coordinator_thread import CoordinatorThread
from kafkadur.runtime.kafka_clients import KafkaClients
from kafkadur.runtime.members import Members
from kafkadur.runtime.retention_watch import RetentionWatch
from kafkadur.runtime.stages import Probe
from kafkadur.settings import Settings
from kafkadur_coordinators.client_ids import ClientIdLease
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.redis import presence as presences
from kafkadur_coordinators.redis.cluster import Listener
from kafkadur_coordinators.redis.coordinator import Recorder, RedisCoordinator
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur")


def process_name() -> str:
    """Return the name of this process for people: host and process id."""
    return f"{socket.gethostname()}/{os.getpid()}"


class Opened:
    """The clients, threads and members of one open connection."""

    def __init__(
        self,
        settings: Settings,
        kafka: KafkaClients,
        *,
        connection_id: str,
        tracing: Tracing | None,
        recorder: Recorder | None,
        probe: Probe,
    ) -> None:
        """Start the coordinator thread; `connect` connects it.

        `kafka` makes what talks to Kafka; `recorder` and `probe` are those of `kafkadur.connect`. Raises
        `IllegalState` for wrong settings of Kafka.
        """
        self._settings = settings
        self._connection_id = connection_id
        self._recorder = recorder
        #: by the id of the connection that has the client id
        self._keepers: dict[str, ClientIdKeeper] = {}
        self.kafka = kafka
        self.journal = kafka.journal()
        self._topics = kafka.topics()
        try:
            self._presence = presences.acquire(settings.redis, settings.redis_timeout.total_seconds())
        except BaseException:
            self._topics.close()
            raise
        self._coordinator = self._new_coordinator(self._presence)
        self.lifecycle = lifecycle_of(
            settings, coordinator=self._coordinator, journal=self.journal, topics=self._topics
        )
        self.thread = CoordinatorThread(
            coordinator=self._coordinator, lifecycle=self.lifecycle, presence=self._presence, probe=probe
        )
        self._checkpoints = CheckpointThread(
            coordinator=self._new_coordinator,
            journal=lambda: kafka.journal(checked=self.journal),
            waiters=waiters_of(settings, coordinator=self._new_coordinator),
            rebuild=rebuild_of(settings, topics=kafka.topics),
        )
        self._dead_letters = kafka.dead_letters(tracing)
        self._watch = RetentionWatch(kafka.topics, every=settings.retention_check.total_seconds())
        self._history = HistoryThread(kafka.history)
        self.members = Members(
            settings=settings,
            kafka=kafka,
            coordinator_thread=self.thread,
            presence=self._presence,
            checkpoints=self._checkpoints,
            dead_letters=self._dead_letters,
            watch=self._watch,
            history=self._history,
            tracing=tracing,
            probe=probe,
        )
        self.thread.repeat(self._watch.check_if_due)
        self.thread.repeat(self.journal.rest)
        self.thread.repeat(self._topics.rest)
        self.thread.start()

    def _new_coordinator(self, listener: Listener | None = None) -> RedisCoordinator:
        return coordinator_of(
            self._settings, recorder=self._recorder, on_warning=_log.warning, listener=listener
        )

    def connect(self) -> Future[None]:
        """Connect to Redis; the future raises `CoordinatorUnavailable` and `CoordinatorRefused`."""
        return self.thread.submit(self._coordinator.connect)

    def rebuild(self, subscription: Subscription, incarnation: int) -> None:
        """Begin a new incarnation, because the journal has a later one than Redis. Any thread.

        The checkpoint thread does it. It reads the journal, which may take longer than a session lasts, and
        the coordinator thread must keep the sessions of its members meanwhile.
        """
        self._checkpoints.rebuild(subscription.key, incarnation)

    # -- the client id

    def hold(
        self, client_id: str, connection_id: str, on_displaced: Callable[[KafkadurError], None]
    ) -> Future[None]:
        """Take a restricted client id for a connection; the future raises `InvalidClientId`.

        It is kept until `let_go`. `on_displaced` is called, in any thread, when another connection has taken
        the client id.
        """
        coordinator = self._new_coordinator(self._presence)
        make = partial(
            ClientIdLease,
            coordinator,
            prefix=self._settings.prefix,
            namespace=self._settings.namespace,
            client_id=client_id,
            connection=connection_id,
            name=process_name(),
            ttl_ms=self._settings.session_ms,
        )
        keeper = ClientIdKeeper(coordinator, self._presence, make, on_displaced=on_displaced)
        self._keepers[connection_id] = keeper
        return keeper.take()

    def let_go(self, connection_id: str) -> None:
        """Release the client id of a connection, or stop trying to take it; nothing if it has none."""
        keeper = self._keepers.pop(connection_id, None)
        if keeper is not None:
            keeper.close()

    # -- closing

    def __repr__(self) -> str:
        """Name the connection."""
        return f"<kafkadur connection {self._connection_id}>"

    def write_last(self) -> None:
        """Stop the retention watch, and write the remaining dead letters."""
        self._watch.close()
        self._dead_letters.close()

    def close(self) -> None:
        """End the threads and close the clients; call `write_last` before."""
        self.thread.close()
        self.members.close()
        self._checkpoints.close()
        self._history.close()
        for connection_id in list(self._keepers):
            self.let_go(connection_id)
        presences.release(self._settings.redis, self._settings.redis_timeout.total_seconds())
        self._coordinator.close()
        self.journal.close()
        self._topics.close()


def close_when_collected(connection: object, opened: Opened) -> weakref.finalize[..., object]:
    """Close `opened` when `connection` is collected without having been closed.

    Its members give back what they hold, as if they had been closed, and a `ResourceWarning` is issued.
    Detach the result when the connection is closed.
    """
    finalizer = weakref.finalize(connection, _close_abandoned, opened, os.getpid())
    finalizer.atexit = False  # when the process ends, the sessions of its members end by themselves
    return finalizer


def _close_abandoned(opened: Opened, pid: int) -> None:
    if pid != os.getpid():  # it belongs to the process that this one was forked from
        return

    def close() -> None:
        opened.write_last()
        opened.close()

    # whichever thread collects garbage may hold any lock
    threading.Thread(target=close, name="kafkadur-abandoned", daemon=True).start()
    warnings.warn(f"{opened!r} was not closed", ResourceWarning, stacklevel=2)
