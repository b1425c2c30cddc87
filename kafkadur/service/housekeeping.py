"""Housekeeping: work that a subscription needs and that no consumer does while none is attached.

Several services of a namespace can run. One of them leads and does this work: it holds a client id that they
share. When its process dies, another one takes the client id within some seconds.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kafkadur.admin.changes import Admin
from kafkadur.admin.subscription_info import SubscriptionInfo
from kafkadur.fetch.retention import WARN_EVERY_S, warn_of_expiring
from kafkadur.runtime.client_id_keeper import ClientIdKeeper
from kafkadur.runtime.clients import coordinator_of
from kafkadur.runtime.opened import process_name
from kafkadur.settings import Settings
from kafkadur_coordinators.client_ids import ClientIdLease
from kafkadur_coordinators.redis import presence as presences
from kafkadur_sharing.errors import (
    CoordinatorUnavailable,
    InvalidClientId,
    InvalidDestination,
    KafkadurError,
)

_log = logging.getLogger("kafkadur.service")

#: The client id of the service that leads. No application can have it: a space is not allowed in client ids.
_LEADER: Final = "leading service"
#: Seconds until a service that does not lead tries again.
_TRY_EVERY_S: Final = 5.0
#: Seconds after which a member that was silent at the first look is looked at again.
_SECOND_LOOK_S: Final = 0.7
#: Seconds that closing waits for what is under way, which a server may hold up.
_LAST_S: Final = 2.0


class Housekeeper:
    """Leads if no other service of the namespace does, and then does the work, in a thread."""

    def __init__(
        self,
        settings: Settings,
        seen: Callable[[], Sequence[SubscriptionInfo]],
        *,
        every: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seen` returns the subscriptions as they were read last; `every`: seconds between two rounds."""
        self._settings = settings
        self._seen = seen
        self._every = every
        self._monotonic = monotonic
        self._connection = uuid.uuid4().hex
        self._closing = False
        self._displaced = False
        #: is set when the thread has to look at the two above
        self._bell = threading.Event()
        self._keeper: ClientIdKeeper | None = None
        self._lock = threading.Lock()
        self._leads = False
        #: when a subscription was warned of last, by its name, monotonic seconds
        self._warned: dict[str, float] = {}
        #: the last error of each part of the work
        self._failing: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="kafkadur-housekeeper", daemon=True)

    @property
    def leads(self) -> bool:
        """Whether this service leads."""
        return self._leads

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, and let another service lead."""
        with self._lock:
            self._closing = True
            keeper = self._keeper
        self._bell.set()
        if keeper is not None:
            keeper.close()
        self._thread.join(_LAST_S)

    # -- the thread

    def _run(self) -> None:
        while not self._closing:
            try:
                self._lead()
            except InvalidClientId:
                pass  # another service leads
            except KafkadurError as error:
                _log.info("this service does not lead: %s", error)
            except Exception:  # noqa: BLE001 - the service must go on, and lead again
                _log.exception("this service does not lead any more")
            self._bell.clear()
            if not self._closing:
                self._bell.wait(_TRY_EVERY_S)

    def _lead(self) -> None:
        """Work until this service is closed or displaced. Raises `InvalidClientId` if another one leads."""
        chosen = self._settings
        timeout = chosen.redis_timeout.total_seconds()
        presence = presences.acquire(chosen.redis, timeout)
        coordinator = coordinator_of(chosen)
        make = partial(
            ClientIdLease, coordinator, prefix=chosen.prefix, namespace=chosen.namespace, client_id=_LEADER,
            connection=self._connection, name=process_name(), ttl_ms=chosen.session_ms,
        )  # fmt: skip
        keeper = ClientIdKeeper(coordinator, presence, make, on_displaced=self._displace)
        try:
            with self._lock:
                if self._closing:
                    return
                self._keeper, self._displaced = keeper, False
            keeper.take().result()
            self._leads = True
            _log.info("this service leads the services of namespace %s", chosen.namespace)
            self._work()
        finally:
            self._leads = False
            keeper.close()
            presences.release(chosen.redis, timeout)

    def _displace(self, error: KafkadurError) -> None:
        """Another service leads now. Any thread."""
        del error
        self._displaced = True
        self._bell.set()

    def _work(self) -> None:
        """Make rounds until it is over. Raises `CoordinatorUnavailable` while Redis does not answer."""
        with Admin(self._settings) as admin:
            while not self._is_over():
                self._bell.clear()
                self._do("non-durable subscriptions", lambda: self._sweep_nondurable(admin))
                seen = self._seen()
                gone = [info for info in seen if len(info.members) > len(info.attached)]
                self._sweep(admin, gone)
                if gone and not self._is_over():
                    self._bell.wait(_SECOND_LOOK_S)  # who is silent now, too, has died
                    self._sweep(admin, gone)
                for info in seen:
                    self._warn(info)
                if not self._is_over():
                    self._bell.wait(self._every)

    def _sweep_nondurable(self, admin: Admin) -> None:
        """Look at non-durable subscriptions for half of a round: those that live come around again."""
        until = self._monotonic() + self._every / 2
        while not self._is_over() and self._monotonic() < until and admin.sweep_nondurable():
            pass

    def _sweep(self, admin: Admin, gone: Sequence[SubscriptionInfo]) -> None:
        """End the sessions of members that died."""
        for info in gone:
            if self._is_over():
                return
            self._do(str(info.key), partial(admin.sweep, info.key))

    def _do(self, what: str, work: Callable[[], None]) -> None:
        """Do a part of the work; an error of it must not keep the others from being done.

        Each new kind of error is logged once for each part.
        """
        try:
            work()
        except CoordinatorUnavailable:
            raise
        except InvalidDestination:  # it was deleted after it was read
            self._failing.pop(what, None)
        except KafkadurError as error:
            if self._failing.get(what) != type(error).__name__:
                _log.warning("housekeeping of %s: %s", what, error)
            self._failing[what] = type(error).__name__
        else:
            self._failing.pop(what, None)

    def _is_over(self) -> bool:
        return self._closing or self._displaced

    def _warn(self, info: SubscriptionInfo) -> None:
        """Warn of messages that Kafka is about to remove; members warn of them while they are attached."""
        name, now = str(info.key), self._monotonic()
        if not info.expiring or info.attached or now < self._warned.get(name, float("-inf")) + WARN_EVERY_S:
            return
        self._warned[name] = now
        warn_of_expiring(_log, info.expiring, topic=info.definition.topic, subscription=name)
