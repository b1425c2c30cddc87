"""A connection to Kafka and Redis, and everything that is opened on it.

`kafkadur/sync/connection.py` is generated from this file.
"""

from __future__ import annotations

import contextlib
import os
import uuid
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Self

from typing_extensions import TypeVar, Unpack

from kafkadur.aio.distributed import Distributed
from kafkadur.aio.session import Session
from kafkadur.aio.subscribing import Subscribing
from kafkadur.aio.subscription import Subscription
from kafkadur.aio.waiting import ClosingContext, in_thread, outcome
from kafkadur.message.serialization import Serializer
from kafkadur.message.tracing import Tracing
from kafkadur.producer.producer import Producer
from kafkadur.runtime.closing import FirstError
from kafkadur.runtime.forked import forked
from kafkadur.runtime.kafka_clients import KafkaClients
from kafkadur.runtime.opened import Opened, close_when_collected
from kafkadur.runtime.stages import Probe, no_probe
from kafkadur.settings import MoreSettings, Settings, settings
from kafkadur_coordinators.redis.coordinator import Recorder
from kafkadur_sharing.distributed import DistributedTopic
from kafkadur_sharing.errors import (
    ConnectionClosed,
    IllegalState,
    KafkadurError,
    NotConnected,
)
from kafkadur_sharing.keys import ClientIdPolicy, PolicyName
from kafkadur_sharing.names import validate_client_id

#: Types of a sent value and key; the defaults are those of raw messages.
PV = TypeVar("PV", default=str | bytes | None)
PK = TypeVar("PK", default=str | bytes | None)
E = TypeVar("E", bound=StrEnum)


def connect(
    *,
    kafka: str | Mapping[str, Any] | None = None,
    redis: str | None = None,
    client_id: str | None = None,
    client_id_policy: ClientIdPolicy | PolicyName | None = None,
    namespace: str | None = None,
    session_timeout: timedelta | float | None = None,
    recorder: Recorder | None = None,
    probe: Probe = no_probe,
    **more: Unpack[MoreSettings],
) -> Connection:
    """Return a connection that opens when its context is entered.

    `kafka` is bootstrap servers or confluent-kafka configuration, `redis` a URL; further settings are those
    of `kafkadur.settings.Settings`, each also read from the environment as KAFKADUR_<NAME>; times are
    timedeltas or numbers of seconds. `recorder` sees
    every call to the coordinator; `probe` is called at the stages of `kafkadur.runtime.stages`, for tests.
    Raises `IllegalState` for a wrong setting.
    """
    given = {
        "kafka": dict(kafka) if isinstance(kafka, Mapping) else kafka,
        "redis": redis,
        "client_id": client_id,
        "client_id_policy": client_id_policy,
        "namespace": namespace,
        "session_timeout": session_timeout,
        **more,
    }
    return Connection(settings(given), recorder=recorder, probe=probe)


def _named(kind: type[E], name: str, what: str) -> E:
    """Return the value of an enumeration with this name; raises `IllegalState` if there is none."""
    try:
        return kind(name)
    except ValueError as error:
        raise IllegalState(f"There is no {what} {name!r}.", remedy=f"use one of {', '.join(kind)}") from error


class Connection(Subscribing, ClosingContext):
    """A connection to Kafka and the coordinator; a context manager.

    It belongs to one process, with everything opened on it: to one event loop, or with `kafkadur.sync` to
    any of its threads. After a fork every call raises `ForkedConnection`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        recorder: Recorder | None = None,
        probe: Probe = no_probe,
        guest: bool = False,
        parent: Connection | None = None,
        opened: Opened | None = None,
        on_displaced: Callable[[KafkadurError], None] = lambda _: None,
        kafka: Callable[[Settings], KafkaClients] = KafkaClients,
    ) -> None:
        """Store the settings; `open` connects. `kafka` makes what talks to Kafka from the settings.

        `guest`: use the client id without holding it, as tools do that work on the subscriptions of other
        connections. `parent`: the connection that holds the client id for this one. `opened`: the threads and
        clients of another connection, which this one uses instead of its own; then `on_displaced` is called
        when another connection has taken the client id.
        """
        #: The settings that it was made with.
        self.settings = settings
        self._kafka = kafka(settings)
        self._guest = guest
        self._parent = parent
        self._tracing = Tracing(settings.client_id) if settings.tracing else None
        #: connections to other Kafka clusters, under the client id of this one
        self._guests: list[Connection] = []
        self._distributed: list[Distributed] = []
        #: whether it was used: then its client id cannot be set any more
        self._used = False
        #: unique for every connection, but shared by those that `beside` makes (rule V2)
        self.id: str = uuid.uuid4().hex if parent is None else parent.id
        self._recorder = recorder
        self._probe = probe
        self._opened: Opened | None = None
        self._shared = opened
        self._on_displaced = on_displaced
        #: the error after another connection has taken the client id, where threads are shared
        self._displaced_by: KafkadurError | None = None
        self._finalizer: weakref.finalize[..., object] | None = None
        self._subscriptions: list[Subscription[Any, Any]] = []
        self._producers: list[Producer[Any, Any]] = []
        #: the transacted sessions
        self._sessions: list[Session] = []
        self._closed = False
        self._pid = os.getpid()

    # -- opening and closing

    async def open(self) -> None:
        """Connect to the coordinator, check that it can be used, and take the client id if there is one.

        Raises `CoordinatorUnavailable`, `CoordinatorRefused`, and `InvalidClientId` if another live
        connection holds a restricted client id (rule C1).
        """
        opened = self._opened = self._shared or self._new_opened()
        try:
            if self._shared is None:
                self._finalizer = close_when_collected(self, opened)
                await outcome(opened.connect())
            await self._hold(opened, self.settings.client_id, self.settings.client_id_policy)
        except BaseException:
            await self.close()
            raise

    def _new_opened(self) -> Opened:
        return Opened(
            self.settings,
            self._kafka,
            connection_id=self.id,
            tracing=self._tracing,
            recorder=self._recorder,
            probe=self._probe,
        )

    async def _hold(self, opened: Opened, client_id: str | None, policy: ClientIdPolicy) -> None:
        """Take a client id if it is restricted."""
        if client_id is None or policy is not ClientIdPolicy.RESTRICTED or self._guest:
            return
        displaced = weakref.WeakMethod(self._displaced)  # else it would never be collected

        def on_displaced(error: KafkadurError) -> None:
            if (tell := displaced()) is not None:
                tell(error)

        try:
            await outcome(opened.hold(client_id, self.id, on_displaced))
        except BaseException:
            opened.let_go(self.id)
            raise

    def _displaced(self, error: KafkadurError) -> None:
        """Another connection has taken the client id: stop the members of this one. Any thread."""
        if self._shared is not None:
            self._displaced_by = error
            for subscription in list(self._subscriptions):
                subscription.fail(error)
            self._on_displaced(error)
            return
        for connection in (self, *self._guests):
            if connection._opened is not None:  # noqa: SLF001 - of this class
                connection._opened.thread.displace(error)  # noqa: SLF001 - as above

    async def set_client_id(self, client_id: str, policy: ClientIdPolicy | PolicyName | None = None) -> None:
        """Set the client id of an open connection, before it is used for anything else (rule C4).

        `policy` None: that of the settings. Raises `IllegalState` if the connection was used already or has
        a client id; `InvalidName`; and `InvalidClientId` if another live connection holds the client id (rule
        C1): then this connection stays without one.
        """
        used = self._used
        opened = self._use()  # from now on no other call sets it
        if used or self.settings.client_id is not None:
            self._used = used
            raise IllegalState(
                "The client id of this connection cannot be set any more.",
                state="it is in use" if used else f"it is {self.settings.client_id}, as connected",
                owner=f"connection {self.id}",
                remedy="set it right after opening, or connect(client_id=...)",
            )
        try:
            wanted = self.settings.client_id_policy if policy is None else policy
            chosen = _named(ClientIdPolicy, wanted, "client id policy")
            name = validate_client_id(client_id)
            await self._hold(opened, name, chosen)
        except BaseException:
            self._used = used
            raise
        self.settings = self.settings.model_copy(update={"client_id": name, "client_id_policy": chosen})

    async def close(self) -> None:
        """Close everything opened on it; closing again does nothing.

        Raises the first error of closing a session, a subscription or a producer, when all are closed.
        """
        if self._closed or self._pid != os.getpid():  # in a forked child there is nothing to close
            return
        self._closed = True
        if self._finalizer is not None:
            self._finalizer.detach()
        first = FirstError()
        contexts: list[ClosingContext] = []
        contexts += [*self._sessions, *self._distributed, *self._guests, *self._subscriptions]
        try:
            for each in contexts:
                with first:
                    await each.close()
            if self._opened is not None and self._shared is None:
                self._opened.write_last()
            for producer in self._producers:
                with first:
                    producer.close()
        finally:
            if self._shared is not None:
                await in_thread(partial(self._shared.let_go, self.id))  # it waits for Redis
            elif self._opened is not None:
                self._opened.close()
        first.reraise()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    def _use(self) -> Opened:
        if self._pid != os.getpid():
            raise forked(f"connection {self.id}")
        if self._closed:
            raise ConnectionClosed(remedy="connect anew")
        if self._opened is None:
            raise NotConnected(remedy="enter the connection's context, or call open(), first")
        if self._parent is not None:
            self._parent._use()  # noqa: SLF001 - of this class
        displaced = self._displaced_by or self._opened.thread.displaced
        if displaced is not None:
            raise displaced
        self._used = True
        return self._opened

    # -- what is opened on it

    def producer(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        key_serializer: Serializer[PK] | None = None,
        value_serializer: Serializer[PV] | None = None,
    ) -> Producer[PV, PK]:
        """Return a new producer; `config` is confluent-kafka configuration on top of the connection's.

        Serializers are those of confluent-kafka, or any callables `(data, SerializationContext) -> bytes`.
        They determine the types of values and keys.
        """
        self._use()
        producer: Producer[PV, PK] = Producer(
            {**self.settings.kafka, **(config or {})},
            client_id=self.settings.client_id,
            connection_id=self.id,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            tracing=self._tracing,
            client=self._kafka.producer,
        )
        self._producers.append(producer)
        return producer

    def session(
        self, *, transacted: bool = False, selective: bool = False, config: Mapping[str, Any] | None = None
    ) -> Session:
        """Return a session, which acknowledges or recovers several subscriptions together; see `subscribe`.

        A transacted session is a context manager that must be entered first. It commits the messages that it
        received and those that it sent in one transaction of Kafka, or rolls both back; its subscriptions
        are durable. A selective one commits the deliveries that it is given; the others get their verdicts
        one by one. `config` is confluent-kafka configuration of its producer, such as
        `transaction.timeout.ms`: how long a transaction may take from its first message to its commit.
        """
        opened = self._use()
        if not transacted:
            if config or selective:
                raise IllegalState(
                    "A session that is not transacted has no producer to configure, and commits nothing.",
                    state=f"config={', '.join(config)}" if config else "selective=True",
                    owner="the caller",
                    remedy="leave it out, or say transacted=True",
                )
            return Session()
        transaction = self._kafka.transaction(
            self.settings,
            journal=opened.journal,
            connection_id=self.id,
            config=dict(config or {}),
            outdated=opened.rebuild,
            tracing=self._tracing,
            selective=selective,
        )
        session = Session(transaction, ended=self._session_ended, place=opened)
        self._sessions.append(session)
        return session

    def _session_ended(self, session: Session) -> None:
        """A transacted session has ended: forget it, unless a member has to look up what it committed."""
        opened, transaction = self._opened, session.transaction
        self._sessions = [each for each in self._sessions if each is not session]
        if opened is None or transaction is None or not transaction.closed_in_order:
            return
        with contextlib.suppress(ConnectionClosed):
            opened.thread.submit(lambda: opened.lifecycle.end_session(transaction.session), always=True)

    # -- distributed topics

    def distributed(self, topic: DistributedTopic) -> Distributed:
        """Return a context manager that subscribes and sends to a distributed topic by this connection."""
        self._use()
        distributed = Distributed(self, topic)
        self._distributed.append(distributed)
        return distributed

    async def beside(self, kafka: Mapping[str, Any]) -> Connection:
        """Part of distributed topics: connect to another Kafka cluster, under the client id of this one.

        The new connection is closed with this one, unless the caller closes it before.
        """
        self._use()
        settings = self.settings.model_copy(update={"kafka": {**self.settings.kafka, **kafka}})
        other = Connection(settings, guest=True, parent=self, kafka=self._kafka.elsewhere)
        self._guests.append(other)
        await other.open()
        return other

    async def for_client(
        self, client_id: str | None, on_displaced: Callable[[KafkadurError], None] = lambda _: None
    ) -> Connection:
        """Part of the gateway: open a connection of another client, which uses the threads of this one.

        It has an id and a client id of its own; None: it has no client id. `on_displaced` is called, in any
        thread, when another connection has taken that. Close it before this one. Raises as `open`.
        """
        settings = self.settings.model_copy(update={"client_id": client_id})
        other = Connection(
            settings, kafka=lambda _: self._kafka, opened=self._use(), on_displaced=on_displaced
        )
        await other.open()
        return other
