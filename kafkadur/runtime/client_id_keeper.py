"""Keeps a restricted client id for a connection: takes it, and renews it in a thread of its own.

It has a connection to Redis of its own, too: the coordinator's thread may have to wait for Kafka for longer
than the lease lasts. What the lease is, is `kafkadur_coordinators/client_ids.py`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from kafkadur_coordinators.client_ids import ClientIdLease
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_coordinators.redis.presence import Presence
from kafkadur_sharing.errors import ConnectionClosed, CoordinatorUnavailable, KafkadurError

_log = logging.getLogger("kafkadur.client_ids")

#: Seconds until it is renewed again where Redis did not answer, or where others may not hear this process.
_SOON_S = 0.1


class ClientIdKeeper:
    """One client id, from taking it to letting it go."""

    def __init__(
        self,
        coordinator: RedisCoordinator,
        presence: Presence,
        make: Callable[[RedisCoordinator, Callable[[float], None]], ClientIdLease],
        *,
        on_displaced: Callable[[KafkadurError], None],
    ) -> None:
        """`make` makes the lease of the coordinator, which is closed with this, and of how it waits.

        `on_displaced` is told, in the thread, when another connection has the client id: this one stops.
        """
        self._coordinator = coordinator
        self._presence = presence
        self._lease = make(coordinator, self._pause)
        self._on_displaced = on_displaced
        self._taken: Future[None] = Future()
        self._closing = threading.Event()
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._main, name="kafkadur-client-id", daemon=True)
        #: why nothing goes on: another connection has the client id
        self.displaced: KafkadurError | None = None

    def take(self) -> Future[None]:
        """Take the client id and renew it from then on; the future raises as `ClientIdLease.take`."""
        self._taken.set_running_or_notify_cancel()  # who gives up waiting for it closes this
        self._thread.start()
        return self._taken

    def close(self) -> None:
        """Let it go, or give up taking it."""
        self._closing.set()
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join()

    # -- the thread

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise ConnectionClosed

    def _main(self) -> None:
        lease = self._lease
        try:
            self._presence.listen(lease.channel, self._bell.set)
            lease.take()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._presence.forget(lease.channel)
            self._coordinator.close()
            self._taken.set_exception(error)
            return
        self._taken.set_result(None)
        wait = lease.renew_every
        while self.displaced is None:
            self._bell.wait(wait)
            self._bell.clear()
            if self._closing.is_set():
                break
            wait = self._renew()
        self._end()

    def _renew(self) -> float:
        """Go on to hold it; returns in how many seconds it is to be renewed again."""
        try:
            refusal = self._lease.renew()
        except CoordinatorUnavailable:
            return _SOON_S  # the exchanges tell of it
        except KafkadurError as error:
            _log.warning("the client id is not renewed: %s", error)
            return self._lease.renew_every
        except Exception:  # noqa: BLE001 - a defect: ending here would let another connection have it, too
            _log.exception("the client id is not renewed")
            return self._lease.renew_every
        if refusal is not None:
            self.displaced = self._lease.held(refusal)
            _log.warning("%s", self.displaced)
            self._on_displaced(self.displaced)
        # others take a connection that is not heard for gone, unless it renews
        return self._lease.renew_every if self._presence.alive() else _SOON_S

    def _end(self) -> None:
        """Let it go. Never raises: else it ends with its time-out."""
        try:
            self._lease.drop()
        except KafkadurError as error:
            _log.info("a client id is not let go: %s", error)
        self._presence.forget(self._lease.channel)
        self._coordinator.close()
