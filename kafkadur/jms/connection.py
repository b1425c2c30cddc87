"""Connections in the names of Jakarta Messaging, and their factory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Literal

import kafkadur.sync
from kafkadur.jms.modes import AcknowledgeMode
from kafkadur.jms.session import Session
from kafkadur.runtime.closing import close_all
from kafkadur.sync.waiting import ClosingContext
from kafkadur_sharing.definition import SubscriptionType
from kafkadur_sharing.errors import ConnectionClosed, IllegalState, KafkadurError
from kafkadur_sharing.redelivery_policy import Redelivery

_log = logging.getLogger("kafkadur.jms")

#: Whether consumers are exclusive or shared by default (WebLogic's SubscriptionSharingPolicy).
SharingPolicy = Literal["exclusive", "sharable"]


class ConnectionFactory:
    """Makes connections with the same settings.

    `settings` are those of `kafkadur.connect`: kafka, redis, client_id, client_id_policy, namespace, mode.
    """

    def __init__(
        self,
        *,
        sharing_policy: SharingPolicy = "exclusive",
        redelivery: Redelivery | None = None,
        **settings: Any,  # noqa: ANN401 - checked when connecting
    ) -> None:
        """Store the settings; raises `IllegalState` for an unknown sharing policy.

        `sharing_policy`: the subscriptions that `create_consumer` and `create_durable_consumer` make;
        `sharable` is WebLogic's, and needs `mode="weblogic"`. `redelivery` is the policy of subscriptions
        that are created.
        """
        if sharing_policy not in ("exclusive", "sharable"):
            raise IllegalState(
                f"There is no sharing policy {sharing_policy!r}.", remedy="use 'exclusive' or 'sharable'"
            )
        self._kind = SubscriptionType.EXCLUSIVE if sharing_policy == "exclusive" else SubscriptionType.SHARED
        self._redelivery = redelivery
        self._settings = settings

    def create_connection(self) -> Connection:
        """Return an open connection, which is not started.

        Raises as `kafkadur.sync.connect` and `open`, and `IllegalState` for a sharing policy in another mode.
        """
        plain = kafkadur.sync.connect(**self._settings)
        if self._kind is SubscriptionType.SHARED and plain.settings.mode != "weblogic":
            raise IllegalState(
                "Jakarta Messaging has no sharing policy.",
                state=f"mode {plain.settings.mode}",
                remedy="use mode='weblogic', or create_shared_consumer and create_shared_durable_consumer",
            )
        plain.open()
        return Connection(plain, self._kind, self._redelivery)


class Connection(ClosingContext):
    """A connection; a context manager. Its consumers get messages while it is started."""

    def __init__(
        self, plain: kafkadur.sync.Connection, kind: SubscriptionType, redelivery: Redelivery | None
    ) -> None:
        """Made by a factory; `plain` is the connection that it uses."""
        self.plain = plain
        self.kind = kind
        #: held while it is started or stopped; notified of both
        self.gate = threading.Condition()
        self.is_started = False
        self._redelivery = redelivery
        self._sessions: list[Session] = []
        #: called when the consumer of a listener has failed
        self.exception_listener: Callable[[KafkadurError], object] | None = None
        self._closed = False

    @property
    def client_id(self) -> str | None:
        """The client id; it can be set before the connection is used for anything else (rule C4)."""
        return self.plain.settings.client_id

    @client_id.setter
    def client_id(self, client_id: str) -> None:
        self.plain.set_client_id(client_id)

    def start(self) -> None:
        """Start the delivery of messages."""
        self._use()
        self._set_started(True)

    def stop(self) -> None:
        """Stop the delivery of messages until the next `start`, and wait until no listener is running.

        A call from within a listener does not wait.
        """
        self._use()
        self._set_started(False)
        if not any(session.is_calling_here for session in self._sessions):
            for session in self._sessions:
                session.wait_for_listener()

    def _set_started(self, started: bool) -> None:  # noqa: FBT001 - the new value
        with self.gate:
            self.is_started = started
            self.gate.notify_all()

    def create_session(self, mode: AcknowledgeMode | int = AcknowledgeMode.AUTO_ACKNOWLEDGE) -> Session:
        """Return a session with this acknowledgement mode; raises `IllegalState` for an unknown one."""
        self._use()
        try:
            chosen = AcknowledgeMode(mode)
        except ValueError as error:
            raise IllegalState(
                f"There is no acknowledgement mode {mode!r}.",
                remedy=f"use one of {', '.join(each.name for each in AcknowledgeMode)}",
            ) from error
        session = Session(self, chosen, self._redelivery)
        self._sessions.append(session)
        return session

    def tell(self, error: KafkadurError) -> None:
        """Part of listening: call the exception listener, or log the error if there is none."""
        listener = self.exception_listener
        if listener is None:
            _log.error("a consumer cannot go on: %s", error)
        else:
            listener(error)

    def close(self) -> None:
        """Close its sessions, and disconnect; closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        close_all([*self._sessions, self.plain])

    def _use(self) -> None:
        if self._closed:
            raise ConnectionClosed(owner="the connection", remedy="create another one")
