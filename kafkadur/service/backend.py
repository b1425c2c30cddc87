"""The connections to Redis and Kafka that the routes share; each is lent to one thread at a time."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Generator
from typing import Final

from kafkadur.admin.changes import Admin
from kafkadur.service.audit import Audit
from kafkadur.service.ids import key_of
from kafkadur.service.observer import Observer
from kafkadur.service.prometheus import Prometheus
from kafkadur.settings import Settings
from kafkadur_sharing.errors import CoordinatorUnavailable, KafkadurError, StateLost
from kafkadur_sharing.keys import SubscriptionKey

#: The most idle connections that are kept.
_KEPT: Final = 4


class Backend:
    """A pool of connections, the observer and the audit. Used by several threads."""

    def __init__(
        self, settings: Settings, observer: Observer, audit: Audit, prometheus: Prometheus | None = None
    ) -> None:
        """Connect at the first question. `prometheus` None: there are charts of the last hour only."""
        self.settings = settings
        self.observer = observer
        self.audit = audit
        self.prometheus = prometheus
        self._idle: queue.LifoQueue[Admin] = queue.LifoQueue(_KEPT)

    def close(self) -> None:
        """Close the idle connections."""
        if self.prometheus is not None:
            self.prometheus.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def key(self, id: str) -> SubscriptionKey:  # noqa: A002 - the word of the API
        """Return the key that an id names. Raises `InvalidName`."""
        return key_of(id, self.settings.namespace)

    @contextlib.contextmanager
    def admin(self) -> Generator[Admin]:
        """Lend a connection for the length of the context."""
        admin = self._idle_one() or Admin(self.settings)
        whole = False
        try:
            yield admin
            whole = True
        except KafkadurError as error:
            whole = not isinstance(error, CoordinatorUnavailable | StateLost)
            raise
        finally:
            self._give_back(admin, whole=whole)

    def _idle_one(self) -> Admin | None:
        """Return a connection that still works; None: there is none."""
        with contextlib.suppress(queue.Empty):
            while True:
                admin = self._idle.get_nowait()
                try:
                    admin.ping()
                except KafkadurError:  # the server was restarted, or something between forgot it
                    admin.close()
                else:
                    return admin
        return None

    def _give_back(self, admin: Admin, *, whole: bool) -> None:
        if whole:
            with contextlib.suppress(queue.Full):
                self._idle.put_nowait(admin)
                return
        admin.close()
