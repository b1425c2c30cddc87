"""A connection: who connects where, and everything opened on it.

`kafkadur/sync/connection.py` is generated from this file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from typing_extensions import TypeVar

from kafkadur.aio.distributed import Distributed
from kafkadur.aio.session import Session
from kafkadur.aio.subscription import Subscription
from kafkadur.aio.waiting import Signal, exchange_inline, outcome
from kafkadur.consumer.delivery import Delivery as PlainDelivery
from kafkadur.consumer.member import Callbacks, Member
from kafkadur.consumer.terms import Terms
from kafkadur.events import Event
from kafkadur.fetch.fetchers import Fetchers
from kafkadur.fetch.filtering import taking
from kafkadur.fetch.key_router import KeyRouter
from kafkadur.fetch.range_fetcher import RangeFetcher
from kafkadur.fetch.tail_fetcher import TailFetcher
from kafkadur.handlers.limits import BreakerState
from kafkadur.message.serialization import Decoding, Deserializer, Serializer
from kafkadur.message.tracing import Tracing
from kafkadur.producer.producer import Producer
from kafkadur.runtime.checkpoint_thread import CheckpointThread
from kafkadur.runtime.client_id_keeper import ClientIdKeeper
from kafkadur.runtime.clients import coordinator_of, journal_of, lifecycle_of, topics_of
from kafkadur.runtime.coordinator_thread import CoordinatorThread, Served
from kafkadur.runtime.dead_letters import DeadLetters
from kafkadur.runtime.retention_watch import RetentionWatch, Watched
from kafkadur.runtime.stages import Probe, no_probe
from kafkadur.runtime.transactions import Transaction
from kafkadur.runtime.waiters import Waiters
from kafkadur.settings import Settings, settings
from kafkadur_coordinators.client_ids import ClientIdLease
from kafkadur_coordinators.interface import Known, Rank
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_coordinators.lifecycle import Lifecycle, Membership
from kafkadur_coordinators.lifecycle import Subscription as Attachment
from kafkadur_coordinators.redis import presence as presences
from kafkadur_coordinators.redis.coordinator import Recorder, RedisCoordinator
from kafkadur_coordinators.redis.presence import Presence
from kafkadur_coordinators.topics import Topics
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

#: Types of a value and a key: without a deserializer, and without a serializer.
V = TypeVar("V", default=bytes | None)
K = TypeVar("K", default=bytes | None)
PV = TypeVar("PV", default=str | bytes | None)
PK = TypeVar("PK", default=str | bytes | None)

#: What Universal Messaging called the shared type first.
_SHARED_QUEUED = "shared-queued"
#: Default window: records and bytes in the application's hands.
WINDOW = 1_000
WINDOW_BYTES = 16 * 1024 * 1024
#: Longest wait for dead letters when a subscription is closed, seconds.
_LAST_LETTERS = 5.0
#: Acknowledgements of a lane that may be unconfirmed; a shared member's budget is its window.
LANE_BUDGET = 100


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
    **more: Any,  # noqa: ANN401 - settings of any type, checked by Settings
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


def process_name() -> str:
    """How this process is called for people: host and process id."""
    return f"{socket.gethostname()}/{os.getpid()}"


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
            remedy=f"use one of {', '.join(item.value for item in SubscriptionType)}",
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
        #: connections to other Kafka clusters, under the client id of this one
        self._guests: list[Connection] = []
        self._distributed: list[Distributed] = []
        self._keeper: ClientIdKeeper | None = None
        #: something was done with it, so that its client id is settled
        self._used = False
        #: unique for every connection (rule V2)
        self.id = uuid.uuid4().hex
        self._recorder = recorder
        self._probe = probe
        self._coordinator_thread: CoordinatorThread | None = None
        self._presence: Presence | None = None
        self._coordinator: RedisCoordinator | None = None
        self._journal: Journal | None = None
        self._topics: Topics | None = None
        self._lifecycle: Lifecycle | None = None
        self._dead_letters = DeadLetters(settings.kafka)
        self._watched: dict[str, Watched] = {}
        self._watch = RetentionWatch(
            lambda: topics_of(settings),
            every=settings.retention_check.total_seconds(),
        )
        self._checkpointer = CheckpointThread(
            coordinator=self._new_coordinator,
            journal=lambda: journal_of(self.settings, checked=self._journal),
            waiters=Waiters(
                coordinator=self._new_coordinator,
                replicas=settings.replicas,
                patience=settings.level_timeout.total_seconds(),
                beacon=f"{settings.prefix}:{settings.namespace}:replicated",
            ),
            outdated=self._rebuild,
        )
        self._readers: dict[str, Fetchers] = {}
        self._subscriptions: list[Subscription[Any, Any]] = []
        self._producers: list[Producer[Any, Any]] = []
        #: transacted ones
        self._sessions: list[Session] = []
        self._closed = False
        self._pid = os.getpid()

    # -- opening and closing

    async def open(self) -> None:
        """Connect to the coordinator, look whether it can be used, and take the client id if there is one.

        Raises `CoordinatorUnavailable`, `CoordinatorRefused`, and `InvalidClientId` if another live
        connection holds a restricted client id (rule C1).
        """
        chosen = self.settings
        coordinator = self._new_coordinator(self._be_at)
        self._journal = journal_of(chosen)
        self._topics = topics_of(chosen)
        self._lifecycle = lifecycle_of(
            chosen, coordinator=coordinator, journal=self._journal, topics=self._topics
        )
        self._coordinator = coordinator
        self._presence = presences.acquire(chosen.redis, chosen.redis_timeout.total_seconds())
        self._coordinator_thread = CoordinatorThread(
            coordinator=coordinator, lifecycle=self._lifecycle, presence=self._presence, probe=self._probe
        )
        self._coordinator_thread.start()
        try:
            await outcome(self._coordinator_thread.submit(coordinator.connect))
            await self._hold(chosen.client_id, chosen.client_id_policy)
        except BaseException:
            await self.close()
            raise

    async def _hold(self, client_id: str | None, policy: ClientIdPolicy) -> None:
        """Take a client id if it is restricted."""
        chosen, presence = self.settings, self._presence
        if client_id is None or policy is not ClientIdPolicy.RESTRICTED or self._guest or presence is None:
            return

        def make(coordinator: RedisCoordinator, wait: Callable[[float], None]) -> ClientIdLease:
            return ClientIdLease(
                coordinator,
                prefix=chosen.prefix,
                namespace=chosen.namespace,
                client_id=client_id,
                connection=self.id,
                name=process_name(),
                ttl_ms=chosen.session_ms,
                wait=wait,
            )

        keeper = ClientIdKeeper(self._new_coordinator(), presence, make, on_displaced=self._displaced)
        try:
            await outcome(keeper.take())
        except BaseException:
            keeper.close()
            raise
        self._keeper = keeper

    def _displaced(self, error: KafkadurError) -> None:
        """Another connection has the client id now. Any thread."""
        for connection in (self, *self._guests):
            if connection._coordinator_thread is not None:  # noqa: SLF001 - of this class
                connection._coordinator_thread.displace(error)  # noqa: SLF001 - as above

    async def set_client_id(self, client_id: str, policy: ClientIdPolicy | str | None = None) -> None:
        """Give an open connection its client id, before anything else is done with it (rule C4).

        `policy` None: as the settings say. Raises `IllegalState` if something was done already, or if it has
        a client id; `InvalidName`; and `InvalidClientId` if another live connection holds it (rule C1): then
        it stays without one.
        """
        used = self._used
        self._use()
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
        self._used = True  # no other call sets it meanwhile
        try:
            await self._hold(name, chosen)
        except BaseException:
            self._used = used
            raise
        self.settings = self.settings.model_copy(update={"client_id": name, "client_id_policy": chosen})

    def _new_coordinator(self, on_connect: Callable[[str], None] | None = None) -> RedisCoordinator:
        return coordinator_of(
            self.settings, recorder=self._recorder, on_warning=_log.warning, on_connect=on_connect
        )

    def _rebuild(self, subscription: Attachment, incarnation: int) -> None:
        """The journal knows a later incarnation than the server: a newer one is to be begun. Any thread."""
        coordinator_thread, lifecycle = self._coordinator_thread, self._lifecycle
        if coordinator_thread is not None and lifecycle is not None:
            with contextlib.suppress(ConnectionClosed):
                coordinator_thread.submit(lambda: lifecycle.rebuild({subscription.key: incarnation}))

    def _be_at(self, run_id: str) -> None:
        """The coordinator's connection is to the server with this run id now."""
        if self._presence is not None:
            self._presence.be_at(run_id)

    async def close(self) -> None:
        """Close everything opened on it. Closing twice is fine; raises what closing a subscription raises."""
        if self._closed:
            return
        self._closed = True
        try:
            failed = await self._close_opened()
        finally:
            if self._coordinator_thread is not None:
                self._coordinator_thread.close()
                for readers in self._readers.values():  # of who was attached while it closed
                    readers.close()
                self._checkpointer.close()
            if self._keeper is not None:
                self._keeper.close()
            if self._coordinator_thread is not None:
                presences.release(self.settings.redis, self.settings.redis_timeout.total_seconds())
            if self._coordinator is not None:
                self._coordinator.close()
            if self._journal is not None:
                self._journal.close()
            if self._topics is not None:
                self._topics.close()
        if failed is not None:
            raise failed

    async def _close_opened(self) -> KafkadurError | None:
        """Close what was opened on it; returns the first error."""
        failed: KafkadurError | None = None
        opened: list[Distributed | Connection | Session | Subscription[Any, Any]] = []
        opened += [*self._sessions, *self._distributed, *self._guests, *self._subscriptions]
        for each in opened:
            try:
                await each.close()
            except KafkadurError as error:
                failed = failed or error
        self._watch.close()
        self._dead_letters.close()
        for producer in self._producers:
            try:
                producer.close()
            except KafkadurError as error:
                failed = failed or error
        return failed

    async def __aenter__(self) -> Self:
        """Open."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an error on the way out does not hide the one that led here."""
        try:
            await self.close()
        except KafkadurError:
            if error is None:
                raise

    def _use(self) -> CoordinatorThread:
        if self._pid != os.getpid():
            raise ForkedConnection(remedy="connect anew in the child process")
        if self._closed:
            raise ConnectionClosed(remedy="connect anew")
        if self._coordinator_thread is None:
            raise NotConnected(remedy="enter the connection's context, or call open(), first")
        if self._parent is not None:
            self._parent._use()  # noqa: SLF001 - of this class
        if self._coordinator_thread.displaced is not None:
            raise self._coordinator_thread.displaced
        self._used = True
        return self._coordinator_thread

    # -- what is opened on it

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

    async def subscribe(
        self,
        topic: str,
        *,
        durable: str | None = None,
        shared: str | None = None,
        type: SubscriptionType | str = SubscriptionType.SHARED,  # noqa: A002 - the field's word
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
        coordinator_thread = self._use()
        kind = _type(type)
        parse_selector(selector)
        if window < 1 or window_bytes < 1 or (unconfirmed is not None and unconfirmed < 0):
            raise IllegalState(
                "The window must be at least 1 record and 1 byte.",
                remedy="correct window, window_bytes, unconfirmed",
            )
        definition = Definition(
            type=kind,
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
        request = Request(
            key=self._key(durable, shared, definition, topic_member),
            definition=definition,
            mode=self.settings.mode,
            allow_conversion=allow_conversion,
        )
        transaction = self._transaction_for(session, request)
        if ack_level == "journal" and not request.key.durable:
            raise IllegalState(
                "A non-durable subscription is not in the journal.",
                remedy="use ack_level='redis' or 'replicated', or give durable=",
            )
        decoding = Decoding(key=key_deserializer, value=value_deserializer, display=str(request.key))
        rank = Rank(priority=priority, preempt=preempt)
        signal, bell = Signal(), Signal()
        wake: list[Member] = []

        def woken() -> None:
            for member in wake:
                member.wake()

        shown = name or process_name()
        member_id = uuid.uuid4().hex
        sent_at = time.monotonic()

        def attach() -> Served:
            belongs = "" if transaction is None else transaction.session
            membership = coordinator_thread.attach(
                request,
                member_id=member_id,
                name=shown,
                rank=rank,
                session=belongs,
                wake=woken,
            )
            try:
                member = self._member(
                    coordinator_thread,
                    membership,
                    window=window,
                    window_bytes=window_bytes,
                    unconfirmed=unconfirmed,
                    signal=signal,
                    bell=bell,
                    decoding=decoding,
                    transacted=transaction is not None,
                )
                wake.append(member)
                member.teller.on_event = on_event
                member.attached(membership.attached, sent_at)
                served = Served(
                    member=member,
                    request=request,
                    membership=membership,
                    name=shown,
                    rank=rank,
                    session_name=belongs,
                )
                if transaction is not None:
                    served.taken_over = transaction.taken_over
                self._start_readers(served)
            except BaseException:
                coordinator_thread.turn_away(membership)
                raise
            self._checkpointer.add(member, membership.subscription)
            coordinator_thread.serve(served)
            return served

        served = await self._attached(coordinator_thread.submit(attach))
        subscription: Subscription[V, K] = Subscription(self, served, signal, bell)
        if session is not None:
            session.join(subscription)
        self._subscriptions.append(subscription)
        return subscription

    def _member(
        self,
        coordinator_thread: CoordinatorThread,
        membership: Membership,
        *,
        window: int,
        window_bytes: int,
        unconfirmed: int | None,
        signal: Signal,
        bell: Signal,
        decoding: Decoding,
        transacted: bool,
    ) -> Member:
        attachment = membership.subscription
        parallel = attachment.definition.type in (SubscriptionType.SHARED, SubscriptionType.KEY_ORDERED)
        budget = (window if parallel else LANE_BUDGET) if unconfirmed is None else unconfirmed
        presence = self._presence
        if presence is None:
            raise NotConnected
        terms = Terms(
            display=str(attachment.key),
            definition=attachment.definition,
            window=window,
            window_bytes=window_bytes,
            budget=budget,
            session=self.settings.session_timeout.total_seconds(),
            partitions=attachment.topic.partitions * attachment.definition.lanes,
            monotonic=time.monotonic,
        )
        return Member(
            terms,
            Callbacks(
                heard_since=presence.heard_since,
                request_exchange=coordinator_thread.request_exchange,
                exchange_inline=lambda member: exchange_inline(coordinator_thread, member),
                write_dead_letter=self._dead_letters.write,
                on_ready=signal.set,
                on_closing=bell.set,
            ),
            decoding=decoding,
            takes=taking(
                attachment.definition,
                client_id=self.settings.client_id if attachment.key.durable else None,
                connection_id=self.id,
            ),
            transacted=transacted,
            durable=attachment.key.durable,
            levels=self._checkpointer,
            tracing=self._tracing,
        )

    def _start_readers(self, served: Served) -> None:
        attachment = served.membership.subscription
        kafka, group, topic = self.settings.kafka, attachment.key.group, attachment.topic.name
        lanes = attachment.definition.lanes
        keyed = served.member.by_key
        router = KeyRouter(served.member.intake, lanes=lanes) if keyed else None
        tail = TailFetcher(
            member=router or served.member.intake,
            kafka=kafka,
            topic=topic,
            group=group,
            floor_metadata=attachment.floor_metadata,
            probe=self._probe,
        )
        point = RangeFetcher(member=router or served.member.intake, kafka=kafka, topic=topic, group=group)
        readers = Fetchers(tail, point)
        if router is not None:
            router.reading = readers
        served.member.intake.read_by(router or readers)
        self._readers[served.session.member] = readers
        readers.start()
        if attachment.key.durable:
            watched = router or served.member.intake
            self._watched[served.session.member] = watched
            self._watch.add(watched, topic, attachment.topic.partitions)

    def leave(self, served: Served) -> Future[int]:
        """Part of closing a subscription.

        Detach, stop reading; gives the number of unconfirmed acknowledgements.
        """
        self._subscriptions = [
            item for item in self._subscriptions if item.member_id != served.session.member
        ]
        return self._leave(served)

    def _leave(self, served: Served) -> Future[int]:
        coordinator_thread = self._coordinator_thread
        if coordinator_thread is None:
            raise NotConnected

        def leave() -> int:
            self._dead_letters.flush(_LAST_LETTERS)
            unconfirmed = coordinator_thread.leave(served)
            self._checkpointer.remove(served.member)
            self._readers.pop(served.session.member).close()
            watched = self._watched.pop(served.session.member, None)
            if watched is not None:
                self._watch.remove(watched)
            return unconfirmed

        return coordinator_thread.submit(leave, always=True)

    async def _attached(self, attaching: Future[Served]) -> Served:
        """What attaching comes to."""
        try:
            return await outcome(attaching)
        except BaseException:
            attaching.add_done_callback(self._turn_away)  # else what is attached later would stay attached
            raise

    def _turn_away(self, attaching: Future[Served]) -> None:
        """The caller has given up: leave what was attached after that. Any thread."""
        if attaching.cancelled() or attaching.exception() is not None:
            return
        with contextlib.suppress(ConnectionClosed):  # then it ends with the connection
            self._leave(attaching.result())

    def session(self, *, transacted: bool = False, config: Mapping[str, Any] | None = None) -> Session:
        """A session: passed to `subscribe`, it acknowledges or recovers several subscriptions together.

        A transacted one is a context manager to be entered first: it commits what it received and what it
        sent in one transaction of Kafka, or rolls both back; its subscriptions are durable. `config` is
        confluent-kafka configuration of its producer, such as `transaction.timeout.ms`: how long a
        transaction may take from its first message to its commit.
        """
        self._use()
        journal = self._journal
        if journal is None:
            raise NotConnected
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
            journal_of(self.settings, checked=journal),
            connection_id=self.id,
            config=dict(config or {}),
            outdated=self._rebuild,
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
        coordinator_thread, lifecycle = self._coordinator_thread, self._lifecycle
        transaction = session.transaction
        self._sessions = [each for each in self._sessions if each is not session]
        if coordinator_thread is None or lifecycle is None or transaction is None or not in_order:
            return
        with contextlib.suppress(ConnectionClosed):
            coordinator_thread.submit(lambda: lifecycle.end_session(transaction.session), always=True)

    async def unsubscribe(
        self, durable: str, *, topic: str | None = None, topic_member: str | None = None
    ) -> None:
        """Delete a durable subscription with all that waits in it (rules X1-X7).

        `topic`: only if it is on that; in the mode `weblogic` it has to be named where the client id is
        unrestricted. Raises `InvalidDestination` if there is none, `SubscriptionActive` while somebody is
        attached, `IllegalState` while deliveries are unsettled.
        """
        coordinator_thread, lifecycle = self._use(), self._lifecycle
        if lifecycle is None:
            raise NotConnected
        request = UnsubscribeRequest(
            key=self.key(durable, topic_member), mode=self.settings.mode, topic=topic
        )
        await outcome(coordinator_thread.submit(lambda: lifecycle.unsubscribe(request)))

    async def known(self, durable: str, topic_member: str | None = None) -> Known | None:
        """What is known of a durable subscription of this connection; None if there is none."""
        coordinator_thread, lifecycle = self._use(), self._lifecycle
        if lifecycle is None:
            raise NotConnected
        return await outcome(
            coordinator_thread.submit(lambda: lifecycle.known(self.key(durable, topic_member)))
        )

    # -- distributed topics

    def distributed(self, topic: DistributedTopic) -> Distributed:
        """A distributed topic, as seen by this connection: a context manager to subscribe and send by."""
        self._use()
        distributed = Distributed(self, topic)
        self._distributed.append(distributed)
        return distributed

    async def beside(self, kafka: Mapping[str, Any]) -> Connection:
        """Part of distributed topics: a connection to another Kafka cluster, under the client id of this.

        It is closed with this one, or before by who asked for it.
        """
        self._use()
        settings = self.settings.model_copy(update={"kafka": {**self.settings.kafka, **kafka}})
        other = Connection(settings, guest=True, parent=self)
        other.id = self.id  # what one of them sends is local to the other (rule V2)
        self._guests.append(other)
        await other.open()
        return other

    # -- told by subscriptions

    def log_handler_error(self, delivery: PlainDelivery[Any, Any], display: str) -> None:
        """A handler raised: the message is rolled back."""
        ids = {"subscription": display, "topic": delivery.topic}
        _log.exception("handler failed for %r; it is rolled back", delivery, extra=ids)

    def log_undecodable(self, error: BaseException, member: Member) -> None:
        """A message cannot be deserialized: it becomes a dead letter."""
        ids = {"subscription": member.display, "topic": member.definition.topic}
        _log.warning("%s It becomes a dead letter.", error, extra=ids)

    def log_breaker(self, display: str, state: BreakerState) -> None:
        """The circuit breaker of a subscription's handlers changed."""
        _log.warning("subscription %s: the circuit breaker of its handlers is %s", display, state)

    def log_lost(self, error: KafkadurError) -> None:
        """A handler ended after its lease was lost."""
        _log.warning("%s", error)
