# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.
"""How a connection attaches to subscriptions: `Connection.subscribe`.

`kafkadur/sync/subscribing.py` is generated from this file.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, overload

from typing_extensions import TypeVar, Unpack

from kafkadur.events import Event
from kafkadur.message.serialization import Decoding, Deserializer
from kafkadur.options import (
    AnyOptions,
    ExclusiveOptions,
    KeyOrderedOptions,
    PriorityOptions,
    SerialOptions,
    SharedOptions,
)
from kafkadur.runtime.members import Wanted
from kafkadur.runtime.opened import Opened, process_name
from kafkadur.runtime.served import Served
from kafkadur.sync.durable import DurableSubscriptions
from kafkadur.sync.session import Session
from kafkadur.sync.subscription import Subscription
from kafkadur.sync.waiting import INLINE, Signal, outcome
from kafkadur_coordinators.interface import Rank
from kafkadur_sharing.changing import check_parts, subscription_type
from kafkadur_sharing.decisions import (
    Mode,
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
from kafkadur_sharing.errors import ConnectionClosed, IllegalState, KafkadurError, NotConnected
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.redelivery_policy import Redelivery
from kafkadur_sharing.selector import parse_selector

V = TypeVar("V", default=bytes | None)
K = TypeVar("K", default=bytes | None)
WINDOW = 1000
WINDOW_BYTES = 16 * 1024 * 1024


def type_named(name: SubscriptionType | str, *, stacklevel: int = 3) -> SubscriptionType:
    """Return a subscription type by its name; raises `IllegalState` for an unknown one.

    `stacklevel` is that of a warning: the caller of the public function that this is called from.
    """
    if name == "shared-queued":
        warnings.warn("The type shared-queued is called shared.", DeprecationWarning, stacklevel=stacklevel)
        return SubscriptionType.SHARED
    return subscription_type(name)


def definition_asked(
    kind: SubscriptionType,
    topic: str,
    selector: str | None,
    *,
    no_local: bool,
    priority: int,
    preempt: bool,
    parts: Mapping[str, Any],
    mode: Mode,
) -> Definition:
    """Return the definition that a consumer asks for; raises for what cannot be asked for."""
    parse_selector(selector)
    given = {**parts, "no_local": no_local, "priority": priority, "preempt": preempt}
    check_parts(kind, given, mode=mode)
    return Definition(type=kind, topic=topic, selector=selector, no_local=no_local, **parts)


class Subscribing(DurableSubscriptions):
    """The part of a connection that attaches to subscriptions."""

    _subscriptions: list[Subscription[Any, Any]]
    _sessions: list[Session]
    _opened: Opened | None
    id: str
    _displaced_by: KafkadurError | None
    _closed: bool

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        type: Literal["shared"] = "shared",
        durable: str | None = None,
        session: Session | None = None,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        **options: Unpack[SharedOptions],
    ) -> Subscription[V, K]: ...

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        type: Literal["exclusive"],
        durable: str | None = None,
        session: Session | None = None,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        **options: Unpack[ExclusiveOptions],
    ) -> Subscription[V, K]: ...

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        type: Literal["priority"],
        durable: str | None = None,
        session: Session | None = None,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        **options: Unpack[PriorityOptions],
    ) -> Subscription[V, K]: ...

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        type: Literal["serial"],
        durable: str | None = None,
        session: Session | None = None,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        **options: Unpack[SerialOptions],
    ) -> Subscription[V, K]: ...

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        type: Literal["key-ordered"],
        durable: str | None = None,
        session: Session | None = None,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        **options: Unpack[KeyOrderedOptions],
    ) -> Subscription[V, K]: ...

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        type: SubscriptionType,
        durable: str | None = None,
        session: Session | None = None,
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        **options: Unpack[AnyOptions],
    ) -> Subscription[V, K]: ...

    def subscribe(
        self,
        topic: str,
        *,
        durable: str | None = None,
        shared: str | None = None,
        type: SubscriptionType | TypeName = SubscriptionType.SHARED,
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
        history: timedelta | float | None = None,
        on_change: OnChange | None = None,
        allow_conversion: bool = False,
        create: bool = True,
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
          "key-ordered". For type checkers a type that is known at run time only is a `SubscriptionType`: then
          they accept the options of all types.
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
        - `create`: False: attach only to a durable subscription that exists, and change nothing of it. Raises
          `InvalidDestination` if there is none.
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
        - `history`: for how long Kafka keeps a record of each delivery: which member had a message, when, for
          how long, and its verdict (`kafkadur sub history`). A timedelta or seconds, from one minute on.

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
            start=start,
            header_types=header_types,
            redelivery=redelivery,
            scope=scope,
            ack_level=ack_level,
            strict_order=strict_order,
            key_lanes=key_lanes,
            max_consumers=max_consumers,
            history=history,
        )
        definition = definition_asked(
            type_named(type),
            topic,
            selector,
            no_local=no_local,
            priority=priority,
            preempt=preempt,
            parts=given,
            mode=self.settings.mode,
        )
        key = self._key(durable, shared, definition, topic_member)
        request = Request(
            key=key,
            definition=definition,
            mode=self.settings.mode,
            allow_conversion=allow_conversion,
            on_change=validate_on_change(on_change),
            given=frozenset(given),
            create=create,
        )
        transaction = None if session is None else session.transaction_for(request, self._opened)
        signal, bell = (Signal(), Signal())
        wanted = Wanted(
            request=request,
            client_id=self.settings.client_id,
            connection_id=self.id,
            name=name or process_name(),
            window=window,
            window_bytes=window_bytes,
            unconfirmed=unconfirmed,
            rank=Rank(priority=priority, preempt=preempt),
            transaction=transaction,
            on_event=on_event,
            decoding=Decoding(key=key_deserializer, value=value_deserializer, display=str(key)),
            on_ready=signal.set,
            on_closing=bell.set,
            inline=INLINE,
        )
        subscription: Subscription[V, K] = Subscription(self._leave, self._attach(wanted), signal, bell)
        self._add(subscription, session)
        return subscription

    def _add(self, subscription: Subscription[Any, Any], session: Session | None) -> None:
        """Note a new subscription, here and in its session."""
        if session is not None:
            session.join(subscription)
        self._subscriptions.append(subscription)
        if self._closed:
            subscription.fail(ConnectionClosed())
        if self._displaced_by is not None:
            subscription.fail(self._displaced_by)

    def _attach(self, wanted: Wanted) -> Served:
        """Attach a member; one that is attached after the caller has given up is detached again."""
        opened = self._use()
        attaching = opened.members.attach(wanted)
        try:
            return outcome(attaching)
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
