"""A connection to Kafka and Redis, and everything that is opened on it.

`kafkadur/sync/connection.py` is generated from this file.
"""

from __future__ import annotations

import contextlib
import os
import uuid
import warnings
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from typing_extensions import TypeVar, Unpack

from kafkadur.aio.distributed import Distributed
from kafkadur.aio.durable import DurableSubscriptions
from kafkadur.aio.session import Session
from kafkadur.aio.subscription import Subscription
from kafkadur.aio.waiting import INLINE, ClosingContext, Signal, outcome
from kafkadur.events import Event
from kafkadur.message.serialization import Decoding, Deserializer, Serializer
from kafkadur.message.tracing import Tracing
from kafkadur.producer.producer import Producer
from kafkadur.runtime.closing import FirstError
from kafkadur.runtime.coordinator_thread import Served
from kafkadur.runtime.forked import forked
from kafkadur.runtime.kafka_clients import KafkaClients
from kafkadur.runtime.members import Wanted
from kafkadur.runtime.opened import Opened, close_when_collected, process_name
from kafkadur.runtime.stages import Probe, no_probe
from kafkadur.runtime.transactions import Transaction
from kafkadur.settings import MoreSettings, Settings, settings
from kafkadur_coordinators.interface import Rank
from kafkadur_coordinators.redis.coordinator import Recorder
from kafkadur_sharing.changing import check_parts, subscription_type
from kafkadur_sharing.decisions import (
    OnChange,
    Request,
    nondurable_name,
    parts_given,
    validate_on_change,
)
from kafkadur_sharing.definition import (
    AckLevel,
    Definition,
    HeaderType,
    Scope,
    Start,
    SubscriptionType,
    TypeName,
)
from kafkadur_sharing.distributed import DistributedTopic
from kafkadur_sharing.errors import (
    ConnectionClosed,
    IllegalState,
    KafkadurError,
    NotConnected,
)
from kafkadur_sharing.keys import ClientIdPolicy, PolicyName, SubscriptionKey
from kafkadur_sharing.names import validate_client_id
from kafkadur_sharing.numbers import check_function
from kafkadur_sharing.redelivery import Redelivery
from kafkadur_sharing.selector import parse_selector

#: Types of a received value and key, and of a sent value and key; the defaults are those of raw messages.
V = TypeVar("V", default=bytes | None)
K = TypeVar("K", default=bytes | None)
PV = TypeVar("PV", default=str | bytes | None)
PK = TypeVar("PK", default=str | bytes | None)
E = TypeVar("E", bound=StrEnum)

#: Default window: records, and bytes of them, in flight.
WINDOW = 1_000
WINDOW_BYTES = 16 * 1024 * 1024


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


def _type(name: SubscriptionType | str) -> SubscriptionType:
    """Return a subscription type by its name; raises `IllegalState` for an unknown one."""
    if name == "shared-queued":  # the first name of the shared type in Universal Messaging
        warnings.warn("The type shared-queued is called shared.", DeprecationWarning, stacklevel=3)
        return SubscriptionType.SHARED
    return subscription_type(name)


class Connection(DurableSubscriptions, ClosingContext):
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
        kafka: Callable[[Settings], KafkaClients] = KafkaClients,
    ) -> None:
        """Store the settings; `open` connects. `kafka` makes what talks to Kafka from the settings.

        `guest`: use the client id without holding it, as tools do that work on the subscriptions of other
        connections. `parent`: the connection that holds the client id for this one.
        """
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
        opened = self._opened = Opened(
            self.settings,
            self._kafka,
            connection_id=self.id,
            tracing=self._tracing,
            recorder=self._recorder,
            probe=self._probe,
        )
        self._finalizer = close_when_collected(self, opened)
        try:
            await outcome(opened.connect())
            await self._hold(opened, self.settings.client_id, self.settings.client_id_policy)
        except BaseException:
            await self.close()
            raise

    async def _hold(self, opened: Opened, client_id: str | None, policy: ClientIdPolicy) -> None:
        """Take a client id if it is restricted."""
        if client_id is None or policy is not ClientIdPolicy.RESTRICTED or self._guest:
            return
        displaced = weakref.WeakMethod(self._displaced)  # else it would never be collected

        def on_displaced(error: KafkadurError) -> None:
            if (tell := displaced()) is not None:
                tell(error)

        try:
            await outcome(opened.hold(client_id, on_displaced))
        except BaseException:
            opened.let_go()
            raise

    def _displaced(self, error: KafkadurError) -> None:
        """Another connection has taken the client id: stop the members of this one. Any thread."""
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
            if self._opened is not None:
                self._opened.write_last()
            for producer in self._producers:
                with first:
                    producer.close()
        finally:
            if self._opened is not None:
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
        if self._opened.thread.displaced is not None:
            raise self._opened.thread.displaced
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
        name = nondurable_name(
            definition,
            client_id=self.settings.client_id,
            shared=shared,
            mode=self.settings.mode,
            anonymous=f"anonymous-{uuid.uuid4().hex}",
        )
        return replace(self.key(name, topic_member), durable=False)

    async def subscribe(
        self,
        topic: str,
        *,
        durable: str | None = None,
        shared: str | None = None,
        type: SubscriptionType | TypeName = SubscriptionType.SHARED,  # noqa: A002 - the field's word
        window: int = WINDOW,
        window_bytes: int = WINDOW_BYTES,
        unconfirmed: int | None = None,
        start: Start | None = None,
        selector: str | None = None,
        no_local: bool = False,
        header_types: Mapping[str, HeaderType] | None = None,
        redelivery: Redelivery | None = None,
        strict_order: bool | None = None,
        key_lanes: int | None = None,
        scope: Scope | None = None,
        ack_level: AckLevel | None = None,
        max_consumers: int | None = None,
        on_change: OnChange | None = None,
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
        """Attach to a subscription on `topic`; create it if there is none (rules U, S).

        A subscription has one topic: several topics, or a pattern, raise `InvalidDestination`.

        Identity: which subscription it is.

        - `durable`: the name of a durable subscription. Without it the subscription is not durable: it begins
          now and ends with its last consumer.
        - `shared`: the name of a shared non-durable subscription: all consumers that give the same name share
          it (rules N). Without `durable` and `shared` the subscription belongs to this consumer alone (rules
          V); in the mode `weblogic`, with a client id, it belongs to all consumers with this client id that
          ask for the same (P2, P6).
        - `topic_member`: the name of the member of a distributed topic that `topic` is. It is part of the key
          (rules P1, M1, M2; see `distributed`).
        - `type`: how the messages are shared out: "exclusive", "priority", "serial", "shared" or
          "key-ordered".
        - `allow_conversion`: change a durable subscription of another type, to which no consumer is attached,
          to this type, and keep the messages that wait in it (rule L3). In the mode `weblogic` this is always
          allowed (P7).
        - `selector`: which messages are delivered, by their properties (Jakarta Messaging, section 3.8.1);
          all others are settled as filtered.
        - `no_local`: leave out messages of the same connection or client id; unshared subscriptions only.
        - `on_change`: what becomes of a durable subscription that exists with another definition, and to
          which no consumer is attached (rules U4, S3, P8). By default another topic, selector or `no_local`
          raises `SubscriptionDiffers`, which says how many messages wait, and other parts that were given and
          differ are a warning in the log. "refuse": both raise. "alter": the definition changes; what is
          settled stays settled and what waits is kept, except for another topic, which raises. "replace":
          with another topic, selector or `no_local` the subscription is deleted with the messages that wait,
          and created anew, which is a warning in the log.
        - `session`: the session that settles this subscription together with others (`Connection.session`).
          A transacted session must be open, and takes durable subscriptions without `max_hold`.
        - `name`: the name of this consumer for people; by default host and process id.

        Flow: how much this consumer holds, and when it is active.

        - `window`: the most records in flight.
        - `window_bytes`: the most bytes in flight.
        - `unconfirmed`: the most acknowledgements, in records, that are not confirmed yet. Default: 100 on a
          lane, the window on a shared subscription.
        - `priority`: rank in a priority subscription: the attached member with the highest number holds the
          lane, the first attached among equals. The holder keeps the lane when a member with a higher number
          attaches.
        - `preempt`: take the lane over from a holder with a lower priority: the holder hands out nothing more
          and gives the lane away when everything is settled.

        Creation: these count when the subscription is created; None: the default, or what it has already.

        - `start`: where it begins: "latest" (default), behind the messages of the topic, or "earliest".
        - `header_types`: the types of headers of producers that write none; by default they are text.
        - `redelivery`: attempts, back-off and dead letters.
        - `strict_order`: on a type with an order, later messages wait for a message that was rolled back
          until it is settled.
        - `key_lanes`: on a key-ordered subscription, how many members can share one partition.
        - `scope`: on a serial subscription, members take turns on all partitions together ("subscription",
          default), or on each partition by itself ("partition"), so that several work in parallel.
        - `ack_level`: what `ack` waits for: "redis" (default), "replicated" or "journal"; see `Delivery.ack`.
        - `max_consumers`: the most consumers of a shared subscription; one more is refused with
          `ResourceLimit` (rule L1).

        Delivery: what this consumer makes of messages and events; not part of the subscription.

        - `key_deserializer`, `value_deserializer`: deserializers of confluent-kafka, or any callables
          `(data, SerializationContext) -> object`, also called for None. They run when `Delivery.key` or
          `Delivery.value` is first read, which raises `Undecodable` for data that cannot be deserialized.
        - `on_event`: is called with an `Event` when a member of a priority subscription becomes active or
          stands by, when a member has caught up with the live end or falls behind again, when the
          subscription is paused or resumed, when Kafka removed unsettled messages, and when the circuit
          breaker of its handlers changes. Calls come in order, mostly in the coordinator thread, and must
          return quickly. Messages do not wait for them: a member that becomes active may receive its first
          message before it is called with `BECAME_ACTIVE`.

        Raises `IllegalState` (U1, or arguments that do not fit together), `InvalidDestination` (U8),
        `InvalidName` (U10), `InvalidSelector`, `SubscriptionActive`, which names the holder (U5, S4, N3),
        `SubscriptionDiffers` (U4, S3, P8), `InvalidSubscriptionSharing` (U6, S5, P3-P5),
        `SubscriptionTypeMismatch` and `ResourceLimit` (L2).
        """
        self._use()
        given = parts_given(
            start=start, header_types=header_types, redelivery=redelivery, strict_order=strict_order,
            key_lanes=key_lanes, scope=scope, ack_level=ack_level, max_consumers=max_consumers,
        )  # fmt: skip
        definition = self._definition(
            _type(type), topic, selector, no_local=no_local, priority=priority, preempt=preempt, parts=given
        )
        key = self._key(durable, shared, definition, topic_member)
        request = Request(
            key=key, definition=definition, mode=self.settings.mode, allow_conversion=allow_conversion,
            on_change=validate_on_change(on_change), given=frozenset(given),
        )  # fmt: skip
        check_function("on_event", on_event)
        transaction = self._transaction_for(session, request)
        signal, bell = Signal(), Signal()
        wanted = Wanted(
            request=request, client_id=self.settings.client_id, name=name or process_name(),
            window=window, window_bytes=window_bytes, unconfirmed=unconfirmed,
            rank=Rank(priority=priority, preempt=preempt), transaction=transaction, on_event=on_event,
            decoding=Decoding(key=key_deserializer, value=value_deserializer, display=str(key)),
            on_ready=signal.set, on_closing=bell.set, inline=INLINE,
        )  # fmt: skip
        subscription: Subscription[V, K] = Subscription(self._leave, await self._attach(wanted), signal, bell)
        if session is not None:
            session.join(subscription)
        self._subscriptions.append(subscription)
        return subscription

    def _definition(
        self,
        kind: SubscriptionType,
        topic: str,
        selector: str | None,
        *,
        no_local: bool,
        priority: int,
        preempt: bool,
        parts: Mapping[str, Any],
    ) -> Definition:
        """Return the definition that a consumer asks for; raises for what cannot be asked for."""
        parse_selector(selector)
        given = {**parts, "no_local": no_local, "priority": priority, "preempt": preempt}
        check_parts(kind, given, mode=self.settings.mode)
        return Definition(type=kind, topic=topic, selector=selector, no_local=no_local, **parts)

    async def _attach(self, wanted: Wanted) -> Served:
        """Attach a member; one that is attached after the caller has given up is detached again."""
        opened = self._use()
        attaching = opened.members.attach(wanted)
        try:
            return await outcome(attaching)
        except BaseException:
            opened.members.turn_away(attaching)
            raise

    def _leave(self, served: Served) -> Future[int]:
        """Detach a member and stop reading for it; gives the number of unconfirmed acknowledgements."""
        self._subscriptions = [
            item for item in self._subscriptions if item.member_id != served.session.member
        ]
        if self._opened is None:
            raise NotConnected
        return self._opened.members.leave(served)

    def session(self, *, transacted: bool = False, config: Mapping[str, Any] | None = None) -> Session:
        """Return a session, which acknowledges or recovers several subscriptions together; see `subscribe`.

        A transacted session is a context manager that must be entered first. It commits the messages that it
        received and those that it sent in one transaction of Kafka, or rolls both back; its subscriptions
        are durable. `config` is confluent-kafka configuration of its producer, such as
        `transaction.timeout.ms`: how long a transaction may take from its first message to its commit.
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
        transaction = self._kafka.transaction(
            self.settings,
            journal=opened.journal,
            connection_id=self.id,
            config=dict(config or {}),
            outdated=opened.rebuild,
        )
        session = Session(transaction, ended=self._session_ended)
        self._sessions.append(session)
        return session

    def _transaction_for(self, session: Session | None, request: Request) -> Transaction | None:
        """Return the transaction that settles a new subscription; None without a transacted session."""
        transaction = None if session is None else session.transaction_for(request)
        if transaction is not None and session not in self._sessions:
            raise IllegalState(
                "A transacted session settles what is subscribed to on its own connection.",
                state="it is another connection's",
                owner="the session",
                remedy="use a session of this connection",
            )
        return transaction

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
