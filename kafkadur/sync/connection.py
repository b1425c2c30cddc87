# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.
"""A connection: who connects where, and everything opened on it.

`kafkadur/sync/connection.py` is generated from this file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from typing_extensions import TypeVar

from kafkadur.events import Event
from kafkadur.message.serialization import Decoding, Deserializer, Serializer
from kafkadur.message.tracing import Tracing
from kafkadur.producer.producer import Producer
from kafkadur.runtime.clients import journal_of
from kafkadur.runtime.coordinator_thread import Served
from kafkadur.runtime.members import Budget, Wanted
from kafkadur.runtime.opened import Opened, process_name
from kafkadur.runtime.stages import Probe, no_probe
from kafkadur.runtime.transactions import Transaction
from kafkadur.settings import Settings, settings
from kafkadur.sync.distributed import Distributed
from kafkadur.sync.session import Session
from kafkadur.sync.subscription import Subscription
from kafkadur.sync.waiting import Signal, exchange_inline, outcome
from kafkadur_coordinators.interface import Known, Rank
from kafkadur_coordinators.redis.coordinator import Recorder
from kafkadur_sharing.decisions import Request, UnsubscribeRequest, nondurable_name
from kafkadur_sharing.definition import AckLevel, Definition, HeaderType, Scope, Start, SubscriptionType
from kafkadur_sharing.distributed import DistributedTopic
from kafkadur_sharing.errors import (
    ConnectionClosed,
    ForkedConnection,
    IllegalState,
    KafkadurError,
    NotConnected,
)
from kafkadur_sharing.keys import ClientIdPolicy, SubscriptionKey
from kafkadur_sharing.names import validate_client_id
from kafkadur_sharing.redelivery import Redelivery
from kafkadur_sharing.selector import parse_selector

_log = logging.getLogger("kafkadur")
V = TypeVar("V", default=bytes | None)
K = TypeVar("K", default=bytes | None)
PV = TypeVar("PV", default=str | bytes | None)
PK = TypeVar("PK", default=str | bytes | None)
_SHARED_QUEUED = "shared-queued"
WINDOW = 1000
WINDOW_BYTES = 16 * 1024 * 1024


def connect(
    *,
    kafka: str | Mapping[str, Any] | None = None,
    redis: str | None = None,
    client_id: str | None = None,
    client_id_policy: ClientIdPolicy | str | None = None,
    namespace: str | None = None,
    session_timeout: timedelta | None = None,
    recorder: Recorder | None = None,
    probe: Probe = no_probe,
    **more: Any,
) -> Connection:
    """A connection that opens when its context is entered.

    `kafka` is bootstrap servers or confluent-kafka configuration, `redis` a URL; further settings are those
    of `kafkadur.settings.Settings`, each also read from the environment as KAFKADUR_<NAME>. `recorder` sees
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


def _policy(name: ClientIdPolicy | str) -> ClientIdPolicy:
    """The policy that a name stands for; raises `IllegalState` for none."""
    try:
        return ClientIdPolicy(name)
    except ValueError as error:
        raise IllegalState(
            f"There is no client id policy {name!r}.", remedy="use 'restricted' or 'unrestricted'"
        ) from error


def _type(name: SubscriptionType | str) -> SubscriptionType:
    """The type that a name stands for; raises `IllegalState` for none."""
    if name == _SHARED_QUEUED:
        warnings.warn("The type shared-queued is called shared.", DeprecationWarning, stacklevel=3)
        return SubscriptionType.SHARED
    try:
        return SubscriptionType(name)
    except ValueError as error:
        raise IllegalState(
            f"There is no subscription type {name!r}.",
            remedy=f"use one of {', '.join((item.value for item in SubscriptionType))}",
        ) from error


class Connection:
    """A connection to Kafka and the coordinator; a context manager.

    What is opened on it may be used in the loop (or, for the synchronous twin, the threads) of one process:
    after a fork every call raises `ForkedConnection`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        recorder: Recorder | None = None,
        probe: Probe = no_probe,
        guest: bool = False,
        parent: Connection | None = None,
    ) -> None:
        """Remember the settings; `open` connects.

        `guest`: it names the client id of others without holding it, as tools do that look after what is
        theirs. `parent`: the connection that holds it for this one.
        """
        self.settings = settings
        self._guest = guest
        self._parent = parent
        self._tracing = Tracing(settings.client_id) if settings.tracing else None
        self._guests: list[Connection] = []
        self._distributed: list[Distributed] = []
        self._used = False
        self.id = uuid.uuid4().hex
        self._recorder = recorder
        self._probe = probe
        self._opened: Opened | None = None
        self._subscriptions: list[Subscription[Any, Any]] = []
        self._producers: list[Producer[Any, Any]] = []
        self._sessions: list[Session] = []
        self._closed = False
        self._pid = os.getpid()

    def open(self) -> None:
        """Connect to the coordinator, look whether it can be used, and take the client id if there is one.

        Raises `CoordinatorUnavailable`, `CoordinatorRefused`, and `InvalidClientId` if another live
        connection holds a restricted client id (rule C1).
        """
        opened = self._opened = Opened(
            self.settings,
            connection_id=self.id,
            tracing=self._tracing,
            recorder=self._recorder,
            probe=self._probe,
        )
        try:
            outcome(opened.connect())
            self._hold(opened, self.settings.client_id, self.settings.client_id_policy)
        except BaseException:
            self.close()
            raise

    def _hold(self, opened: Opened, client_id: str | None, policy: ClientIdPolicy) -> None:
        """Take a client id if it is restricted."""
        if client_id is None or policy is not ClientIdPolicy.RESTRICTED or self._guest:
            return
        try:
            outcome(opened.hold(client_id, self._displaced))
        except BaseException:
            opened.let_go()
            raise

    def _displaced(self, error: KafkadurError) -> None:
        """Another connection has the client id now. Any thread."""
        for connection in (self, *self._guests):
            if connection._opened is not None:
                connection._opened.thread.displace(error)

    def set_client_id(self, client_id: str, policy: ClientIdPolicy | str | None = None) -> None:
        """Give an open connection its client id, before anything else is done with it (rule C4).

        `policy` None: as the settings say. Raises `IllegalState` if something was done already, or if it has
        a client id; `InvalidName`; and `InvalidClientId` if another live connection holds it (rule C1): then
        it stays without one.
        """
        used = self._used
        opened = self._use()
        self._used = used
        if used or self.settings.client_id is not None:
            raise IllegalState(
                "The client id of this connection cannot be set any more.",
                state="it is in use" if used else f"it is {self.settings.client_id}, as connected",
                owner=f"connection {self.id}",
                remedy="set it right after opening, or connect(client_id=...)",
            )
        chosen = self.settings.client_id_policy if policy is None else _policy(policy)
        name = validate_client_id(client_id)
        self._used = True
        try:
            self._hold(opened, name, chosen)
        except BaseException:
            self._used = used
            raise
        self.settings = self.settings.model_copy(update={"client_id": name, "client_id_policy": chosen})

    def close(self) -> None:
        """Close everything opened on it. Closing twice is fine; raises what closing a subscription raises."""
        if self._closed:
            return
        self._closed = True
        try:
            failed = self._close_opened()
        finally:
            if self._opened is not None:
                self._opened.close()
        if failed is not None:
            raise failed

    def _close_opened(self) -> KafkadurError | None:
        """Close what was opened on it; returns the first error."""
        failed: KafkadurError | None = None
        opened: list[Distributed | Connection | Session | Subscription[Any, Any]] = []
        opened += [*self._sessions, *self._distributed, *self._guests, *self._subscriptions]
        for each in opened:
            try:
                each.close()
            except KafkadurError as error:
                failed = failed or error
        if self._opened is not None:
            self._opened.write_last()
        for producer in self._producers:
            try:
                producer.close()
            except KafkadurError as error:
                failed = failed or error
        return failed

    def __enter__(self) -> Self:
        """Open."""
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an error on the way out does not hide the one that led here."""
        try:
            self.close()
        except KafkadurError:
            if error is None:
                raise

    def _use(self) -> Opened:
        if self._pid != os.getpid():
            raise ForkedConnection(remedy="connect anew in the child process")
        if self._closed:
            raise ConnectionClosed(remedy="connect anew")
        if self._opened is None:
            raise NotConnected(remedy="enter the connection's context, or call open(), first")
        if self._parent is not None:
            self._parent._use()
        if self._opened.thread.displaced is not None:
            raise self._opened.thread.displaced
        self._used = True
        return self._opened

    def producer(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        key_serializer: Serializer[PK] | None = None,
        value_serializer: Serializer[PV] | None = None,
    ) -> Producer[PV, PK]:
        """A producer; `config` is confluent-kafka configuration on top of the connection's.

        Serializers are those of confluent-kafka, or any callable `(data, SerializationContext) -> bytes`:
        then values and keys are what they take.
        """
        self._use()
        merged = {**self.settings.kafka, **(config or {})}
        producer: Producer[PV, PK] = Producer(
            merged,
            client_id=self.settings.client_id,
            connection_id=self.id,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            tracing=self._tracing,
        )
        self._producers.append(producer)
        return producer

    def _key(
        self, durable: str | None, shared: str | None, definition: Definition, topic_member: str | None
    ) -> SubscriptionKey:
        if durable is not None and shared is not None:
            raise IllegalState(
                "A subscription is durable or not.", remedy="give durable=, or shared=, or neither"
            )
        if durable is not None:
            return self.key(durable, topic_member)
        if definition.ack_level == "journal":
            raise IllegalState(
                "A non-durable subscription is not in the journal.",
                remedy="use ack_level='redis' or 'replicated', or give durable=",
            )
        return SubscriptionKey(
            namespace=self.settings.namespace,
            durable=False,
            client_id=self.settings.client_id,
            policy=self.settings.client_id_policy,
            name=nondurable_name(
                definition,
                client_id=self.settings.client_id,
                shared=shared,
                mode=self.settings.mode,
                anonymous=f"anonymous-{uuid.uuid4().hex}",
            ),
            topic_member=topic_member,
        )

    def key(self, durable: str, topic_member: str | None = None) -> SubscriptionKey:
        """The key of a durable subscription of this connection, if need be on a topic member."""
        return SubscriptionKey(
            namespace=self.settings.namespace,
            client_id=self.settings.client_id,
            policy=self.settings.client_id_policy,
            name=durable,
            topic_member=topic_member,
        )

    def subscribe(
        self,
        topic: str,
        *,
        durable: str | None = None,
        shared: str | None = None,
        type: SubscriptionType | str = SubscriptionType.SHARED,
        window: int = WINDOW,
        window_bytes: int = WINDOW_BYTES,
        unconfirmed: int | None = None,
        start: Start = "latest",
        selector: str | None = None,
        no_local: bool = False,
        header_types: Mapping[str, HeaderType] | None = None,
        redelivery: Redelivery | None = None,
        strict_order: bool = False,
        key_lanes: int | None = None,
        scope: Scope = "subscription",
        ack_level: AckLevel = "redis",
        max_consumers: int | None = None,
        allow_conversion: bool = False,
        topic_member: str | None = None,
        name: str | None = None,
        session: Session | None = None,
        priority: int = 0,
        preempt: bool = False,
        on_event: Callable[[Event], None] | None = None,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
    ) -> Subscription[V, K]:
        """Attach to the durable subscription `durable` on `topic`; create it if there is none (rules U, S).

        `session` groups it with others (`Connection.session`); a transacted one has to be open, and takes
        durable subscriptions without `max_hold`.

        Without `durable` the subscription is not durable: it begins now and ends with its last consumer. All
        who name the same `shared` share one (rules N); without a name it is this consumer's alone (rules V),
        or in the mode `weblogic`, with a client id, that of all who ask for the same with it (P2, P6).
        `window` (records) and `window_bytes` bound what is in the application's hands. `unconfirmed`
        (records) bounds acknowledgements without confirmation: by default 100 on a lane, the window on a
        shared subscription. `start`, `header_types`, `redelivery` (attempts, back-off, dead letters) and
        `strict_order` (of a type with an order: what comes later waits for a message that was rolled back,
        until it is settled) count when the subscription is created, as does `key_lanes` (of a key-ordered
        subscription: how many members can share one partition) and `scope` (of a serial subscription:
        members take turns on all partitions together, or with "partition" on each by itself: then several
        work in parallel) and `ack_level` (what `ack` waits for: "redis", "replicated" or "journal", see
        `Delivery.ack`) and `max_consumers` (how many can be attached to a shared subscription, rule L1; one
        more is refused with `ResourceLimit`). `name` is shown to people.
        `topic_member` says that the topic is a member of a distributed topic, and which: it is part of the
        key (rules P1, M1, M2; `distributed`).
        With `allow_conversion` a durable subscription of another type that nobody is attached to takes the
        type asked for, and keeps what waits in it (rule L3); in the mode `weblogic` it does so anyway (P7).
        Of a priority subscription the attached member with the highest `priority` holds the lane, the first
        attached among equals; it keeps it when a better one comes, unless that one has `preempt`: then the
        holder hands out nothing more and gives the lane away when everything is settled.
        `on_event` is told when a member of a priority subscription becomes active or stands by, when a member
        has caught up with the live end or falls behind again, when Kafka removed unsettled messages, and when
        the circuit breaker of its handlers changes (`Event`). It is called in order, mostly in the
        coordinator's thread, and must return quickly.
        `selector` says which messages are taken, by their properties (Jakarta Messaging, section 3.8.1);
        the others are settled as filtered. `no_local` (unshared subscriptions only) leaves out messages of
        the same connection or client id. Both are part of what the subscription is: attaching with others
        replaces it.
        Deserializers are those of confluent-kafka, or any callable `(data, SerializationContext) -> object`,
        also called for None; they belong to this consumer, not to the subscription. `Delivery.value` and
        `key` are what they make, when they are touched; what cannot be deserialized raises `Undecodable`
        there.
        A subscription has one topic: `InvalidDestination` for several, or a pattern.
        Raises `InvalidSelector` and what the rules say: `SubscriptionActive` (the holder is named),
        `InvalidSubscriptionSharing`, `SubscriptionTypeMismatch`, `IllegalState`, `InvalidDestination`.
        """
        opened = self._use()
        parse_selector(selector)
        budget = Budget(window, window_bytes, unconfirmed)
        definition = Definition(
            type=_type(type),
            topic=topic,
            selector=selector,
            no_local=no_local,
            start=start,
            header_types=header_types,
            redelivery=redelivery or Redelivery(),
            strict_order=strict_order,
            key_lanes=key_lanes,
            scope=scope,
            ack_level=ack_level,
            max_consumers=max_consumers,
        )
        key = self._key(durable, shared, definition, topic_member)
        mode = self.settings.mode
        request = Request(key=key, definition=definition, mode=mode, allow_conversion=allow_conversion)
        transaction = self._transaction_for(session, request)
        signal, bell = (Signal(), Signal())
        wanted = Wanted(
            request=request,
            client_id=self.settings.client_id,
            budget=budget,
            name=name or process_name(),
            rank=Rank(priority=priority, preempt=preempt),
            transaction=transaction,
            on_event=on_event,
            decoding=Decoding(key=key_deserializer, value=value_deserializer, display=str(key)),
            on_ready=signal.set,
            on_closing=bell.set,
            exchange_inline=exchange_inline,
        )
        served = self._attached(opened, opened.members.attach(wanted))
        subscription: Subscription[V, K] = Subscription(self, served, signal, bell)
        if session is not None:
            session.join(subscription)
        self._subscriptions.append(subscription)
        return subscription

    def _attached(self, opened: Opened, attaching: Future[Served]) -> Served:
        """Wait for a member that is being attached; when the caller gives up, it leaves again."""
        try:
            return outcome(attaching)
        except BaseException:
            opened.members.turn_away(attaching)
            raise

    def leave(self, served: Served) -> Future[int]:
        """Part of closing a subscription.

        Detach, stop reading; gives the number of unconfirmed acknowledgements.
        """
        self._subscriptions = [
            item for item in self._subscriptions if item.member_id != served.session.member
        ]
        if self._opened is None:
            raise NotConnected
        return self._opened.members.leave(served)

    def session(self, *, transacted: bool = False, config: Mapping[str, Any] | None = None) -> Session:
        """A session: passed to `subscribe`, it acknowledges or recovers several subscriptions together.

        A transacted one is a context manager to be entered first: it commits what it received and what it
        sent in one transaction of Kafka, or rolls both back; its subscriptions are durable. `config` is
        confluent-kafka configuration of its producer, such as `transaction.timeout.ms`: how long a
        transaction may take from its first message to its commit.
        """
        opened = self._use()
        if not transacted:
            if config:
                raise IllegalState(
                    "A session that is not transacted has no producer to configure.",
                    state=f"config={', '.join(config)}",
                    owner="the caller",
                    remedy="leave config out, or say transacted=True",
                )
            return Session()
        transaction = Transaction(
            self.settings,
            journal_of(self.settings, checked=opened.journal),
            connection_id=self.id,
            config=dict(config or {}),
            outdated=opened.rebuild,
        )
        session = Session(transaction, ended=self._session_ended)
        self._sessions.append(session)
        return session

    def _transaction_for(self, session: Session | None, request: Request) -> Transaction | None:
        """What is to settle a new subscription; None: no transacted session."""
        transaction = None if session is None else session.transaction_for(request)
        if transaction is not None and session not in self._sessions:
            raise IllegalState(
                "A transacted session settles what is subscribed to on its own connection.",
                state="it is another connection's",
                owner="the session",
                remedy="use a session of this connection",
            )
        return transaction

    def _session_ended(self, session: Session, *, in_order: bool) -> None:
        """A transacted session has ended; `in_order`: no member has to look up what it committed."""
        opened, transaction = (self._opened, session.transaction)
        self._sessions = [each for each in self._sessions if each is not session]
        if opened is None or transaction is None or (not in_order):
            return
        with contextlib.suppress(ConnectionClosed):
            opened.thread.submit(lambda: opened.lifecycle.end_session(transaction.session), always=True)

    def unsubscribe(self, durable: str, *, topic: str | None = None, topic_member: str | None = None) -> None:
        """Delete a durable subscription with all that waits in it (rules X1-X7).

        `topic`: only if it is on that; in the mode `weblogic` it has to be named where the client id is
        unrestricted. Raises `InvalidDestination` if there is none, `SubscriptionActive` while somebody is
        attached, `IllegalState` while deliveries are unsettled.
        """
        opened = self._use()
        request = UnsubscribeRequest(
            key=self.key(durable, topic_member), mode=self.settings.mode, topic=topic
        )
        outcome(opened.thread.submit(lambda: opened.lifecycle.unsubscribe(request)))

    def known(self, durable: str, topic_member: str | None = None) -> Known | None:
        """What is known of a durable subscription of this connection; None if there is none."""
        opened, key = (self._use(), self.key(durable, topic_member))
        return outcome(opened.thread.submit(lambda: opened.lifecycle.known(key)))

    def distributed(self, topic: DistributedTopic) -> Distributed:
        """A distributed topic, as seen by this connection: a context manager to subscribe and send by."""
        self._use()
        distributed = Distributed(self, topic)
        self._distributed.append(distributed)
        return distributed

    def beside(self, kafka: Mapping[str, Any]) -> Connection:
        """Part of distributed topics: a connection to another Kafka cluster, under the client id of this.

        It is closed with this one, or before by who asked for it.
        """
        self._use()
        settings = self.settings.model_copy(update={"kafka": {**self.settings.kafka, **kafka}})
        other = Connection(settings, guest=True, parent=self)
        other.id = self.id
        self._guests.append(other)
        other.open()
        return other
