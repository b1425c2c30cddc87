"""Keeps a restricted client id for a connection: takes it, and renews it in a thread of its own.

The thread has its own connection to Redis, because the coordinator thread may have to wait for Kafka longer
than the lease lasts. The lease is in `kafkadur_coordinators/client_ids.py`.
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

#: Seconds until the next renewal if Redis did not answer, or if other processes may not hear this one.
_SOON_S = 0.1


class ClientIdKeeper:
    """One client id, from taking it to releasing it."""

    def __init__(
        self,
        coordinator: RedisCoordinator,
        presence: Presence,
        make: Callable[..., ClientIdLease],
        *,
        on_displaced: Callable[[KafkadurError], None],
    ) -> None:
        """`make(wait=)` makes the lease, by `coordinator`, which is closed with this keeper.

        `on_displaced` is called, in the thread, when another connection has taken the client id.
        """
        self._coordinator = coordinator
        self._presence = presence
        self._lease = make(wait=self._pause)
        self._on_displaced = on_displaced
        self._taken: Future[None] = Future()
        self._closing = threading.Event()
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._main, name="kafkadur-client-id", daemon=True)
        #: the error after another connection has taken the client id
        self._displaced: KafkadurError | None = None

    def take(self) -> Future[None]:
        """Take the client id and renew it from then on; the future raises as `ClientIdLease.take`."""
        self._taken.set_running_or_notify_cancel()  # a caller that gives up closes the keeper instead
        self._thread.start()
        return self._taken

    def close(self) -> None:
        """Release the client id, or stop trying to take it."""
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
            self._presence.listen(lease.channel, lambda _: self._bell.set())
            lease.take()
        except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
            self._presence.forget(lease.channel)
            self._coordinator.close()
            self._taken.set_exception(error)
            return
        self._taken.set_result(None)
        wait = lease.renew_every
        while self._displaced is None:
            self._bell.wait(wait)
            self._bell.clear()
            if self._closing.is_set():
                break
            wait = self._renew()
        self._end()

    def _renew(self) -> float:
        """Renew the lease; returns the seconds until the next renewal."""
        try:
            refusal = self._lease.renew()
        except CoordinatorUnavailable:
            return _SOON_S  # the exchanges log it
        except KafkadurError as error:
            _log.warning("the client id is not renewed: %s", error)
            return self._lease.renew_every
        except Exception:  # noqa: BLE001 - a defect: ending here would let another connection have it, too
            _log.exception("the client id is not renewed")
            return self._lease.renew_every
        if refusal is not None:
            self._displaced = self._lease.held(refusal)
            _log.warning("%s", self._displaced)
            self._on_displaced(self._displaced)
        # other connections take one that they do not hear for dead, unless it renews its lease
        return self._lease.renew_every if self._presence.alive(self._lease.channel) else _SOON_S

    def _end(self) -> None:
        """Release the client id. Never raises: a lease that is not released ends with its time-out."""
        try:
            self._lease.drop()
        except KafkadurError as error:
            _log.info("a client id is not released: %s", error)
        self._presence.forget(self._lease.channel)
        self._coordinator.close()
