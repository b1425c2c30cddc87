"""The members of one connection: they are attached here with the threads that read Kafka for them."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from kafkadur.consumer.fetch_state import Reading
from kafkadur.consumer.intake import Intake
from kafkadur.consumer.member import Callbacks, Member
from kafkadur.consumer.terms import Terms
from kafkadur.events import Event
from kafkadur.fetch.filtering import taking
from kafkadur.fetch.key_router import KeyRouter
from kafkadur.history.writer import HistoryThread
from kafkadur.message.serialization import Decoding
from kafkadur.message.tracing import Tracing
from kafkadur.runtime.checkpoint_thread import CheckpointThread
from kafkadur.runtime.coordinator_thread import CoordinatorThread
from kafkadur.runtime.dead_letters import DeadLetters
from kafkadur.runtime.forked import refuse_forks_of
from kafkadur.runtime.kafka_clients import KafkaClients
from kafkadur.runtime.log_ends import LogEnds
from kafkadur.runtime.retention_watch import RetentionWatch
from kafkadur.runtime.served import Served, fail_by_defect
from kafkadur.runtime.stages import Probe
from kafkadur.runtime.transactions import Transaction
from kafkadur.settings import Settings
from kafkadur_coordinators.interface import Rank
from kafkadur_coordinators.lifecycle import Membership, Subscription
from kafkadur_coordinators.redis.presence import Presence
from kafkadur_coordinators.redis.replies import pushed
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.definition import SubscriptionType
from kafkadur_sharing.errors import ConnectionClosed, IllegalState
from kafkadur_sharing.numbers import MOST_BYTES, MOST_PRIORITY, MOST_RECORDS, check_function, check_integer

#: Acknowledgements of a lane that may be unconfirmed; on a shared subscription the window is the limit.
LANE_BUDGET = 100
#: The least and most value of the parameters that bound what a member holds.
FLOW = {"window": (1, MOST_RECORDS), "window_bytes": (1, MOST_BYTES), "unconfirmed": (0, MOST_RECORDS)}
#: Longest wait for dead letters when a subscription is closed, seconds.
_LAST_LETTERS = 5.0
#: Longest wait for the end of readers then, seconds; they end by themselves when Kafka answers.
_LAST_READING = 5.0


def check_flow(name: str, value: object) -> int | None:
    """Return the value of a parameter of `FLOW`; only `unconfirmed` may be None. Raises `IllegalState`."""
    if value is None and name == "unconfirmed":
        return None
    return check_integer(name, value, *FLOW[name])


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The parameters of a new member; see `Connection.subscribe`."""

    request: Request
    client_id: str | None
    #: of the connection that subscribes (rule U7)
    connection_id: str
    #: records in flight, and bytes of them
    window: int
    window_bytes: int
    #: acknowledgements that may be unconfirmed; None: the default of the type
    unconfirmed: int | None
    #: shown to people
    name: str
    rank: Rank
    decoding: Decoding
    #: settles its messages; None: the application settles them one by one
    transaction: Transaction | None
    on_event: Callable[[Event], None] | None
    #: called in any thread when a block can be taken, or the state changed
    on_ready: Callable[[], None]
    #: called when nothing more is dispatched
    on_closing: Callable[[], None]
    #: whether a thread that waits may make the exchange, or read the record, that it waits for
    inline: bool

    def __post_init__(self) -> None:
        """Check the function and the numbers: the coordinator computes with these for all members.

        Raises `IllegalState`.
        """
        check_function("on_event", self.on_event)
        for name in FLOW:
            object.__setattr__(self, name, check_flow(name, getattr(self, name)))
        if self.request.definition.history is not None and not self.request.key.durable:
            raise IllegalState(
                "A non-durable subscription has no delivery history.",
                state=f"history={self.request.definition.history}",
                owner="the caller",
                remedy="leave history out, or name a durable subscription: durable=...",
            )
        priority = check_integer("priority", self.rank.priority, -MOST_PRIORITY, MOST_PRIORITY)
        object.__setattr__(self, "rank", Rank(priority=priority, preempt=bool(self.rank.preempt)))


@dataclass(kw_only=True, eq=False)
class Members:
    """Attaches and detaches members; the coordinator thread serves them in between."""

    settings: Settings
    kafka: KafkaClients
    coordinator_thread: CoordinatorThread
    presence: Presence
    checkpoints: CheckpointThread
    dead_letters: DeadLetters
    watch: RetentionWatch
    history: HistoryThread
    tracing: Tracing | None
    #: for tests (`stages.py`)
    probe: Probe
    #: the readers that were started, by member id
    _reading: dict[str, Reading] = field(default_factory=dict[str, Reading], init=False)
    #: asks Kafka where topics end
    _ends: LogEnds = field(init=False)
    #: readers that were stopped and did not end in time: Kafka is away, and others are not waited for
    _late: Reading | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Begin without members."""
        self._ends = LogEnds(self.kafka.topics)

    def close(self) -> None:
        """Stop reading for members that were attached while the connection was being closed."""
        for readers in self._reading.values():
            readers.stop()
        for readers in self._reading.values():
            self._await_end(readers)
        self._ends.close()

    def attach(self, wanted: Wanted) -> Future[Served]:
        """Attach a member in the coordinator thread; the future raises as `Connection.subscribe`."""
        sent_at = time.monotonic()
        return self.coordinator_thread.submit(lambda: self._attach(wanted, sent_at))

    def _attach(self, wanted: Wanted, sent_at: float) -> Served:
        thread, transaction = self.coordinator_thread, wanted.transaction
        session = "" if transaction is None else transaction.session
        wake: list[Member] = []

        def woken(message: bytes) -> None:
            for member in wake:
                try:
                    member.wake(pushed(message))
                except Exception as error:  # noqa: BLE001 - any defect; others listen in the same thread
                    fail_by_defect(member, error)

        membership = thread.attach(
            wanted.request,
            member_id=uuid.uuid4().hex,
            name=wanted.name,
            rank=wanted.rank,
            session=session,
            wake=woken,
        )
        try:
            member = self._member(wanted, membership)
            wake.append(member)
            member.attached(membership.attached, sent_at)
            served = Served(
                member=member,
                request=wanted.request,
                membership=membership,
                name=wanted.name,
                rank=wanted.rank,
                session_name=session,
                ends=lambda: self._ends.of(served.membership.subscription.topic),
                taken_over=transaction.taken_over if transaction is not None else lambda: None,
            )
            self._start_readers(served)
        except BaseException:
            for member in wake:  # a reader that several members share must not go on for this one
                member.readers.stop()
            thread.turn_away(membership)
            raise
        self.checkpoints.add(member, membership.subscription)
        if member.notes is not None:
            self.history.add(
                member.notes, membership.subscription, member=membership.session.member, name=wanted.name
            )
        thread.serve(served)
        return served

    def _member(self, wanted: Wanted, membership: Membership) -> Member:
        attachment, thread = membership.subscription, self.coordinator_thread
        definition = attachment.definition
        parallel = definition.type in (SubscriptionType.SHARED, SubscriptionType.KEY_ORDERED)
        usual = wanted.window if parallel else LANE_BUDGET
        terms = Terms(
            display=str(attachment.key),
            definition=definition,
            window=wanted.window,
            window_bytes=wanted.window_bytes,
            budget=usual if wanted.unconfirmed is None else wanted.unconfirmed,
            session=self.settings.session_timeout.total_seconds(),
            monotonic=time.monotonic,
        )
        member = Member(
            terms,
            Callbacks(
                readers=partial(self._readers, attachment),
                heard_since=partial(
                    self.presence.heard_since, attachment.address.channel(membership.session.member)
                ),
                request_exchange=partial(thread.request_exchange, membership.session.member),
                exchange_inline=partial(thread.assist, membership.session.member, inline=wanted.inline),
                write_dead_letter=self.dead_letters.write,
                on_ready=wanted.on_ready,
                reads_inline=wanted.inline,
                on_closing=wanted.on_closing,
                on_event=wanted.on_event,
            ),
            decoding=wanted.decoding,
            takes=taking(
                definition,
                client_id=wanted.client_id if attachment.key.durable else None,
                connection_id=wanted.connection_id,
            ),
            transacted=wanted.transaction is not None,
            durable=attachment.key.durable,
            levels=self.checkpoints,
            tracing=self.tracing,
        )
        member.judged_by_session = wanted.transaction is not None and not wanted.transaction.selective
        refuse_forks_of(member)
        return member

    def _readers(self, attachment: Subscription, intake: Intake) -> Reading:
        readers = partial(self.kafka.readers, subscription=attachment, probe=self.probe)
        if attachment.definition.type is SubscriptionType.KEY_ORDERED:
            return KeyRouter(intake, lanes=attachment.definition.lanes, readers=readers)
        return readers(intake)

    def _start_readers(self, served: Served) -> None:
        attachment, member, session = served.membership.subscription, served.member, served.session.member
        self._reading[session] = readers = member.readers
        readers.start()
        if attachment.key.durable:
            watched = readers if isinstance(readers, KeyRouter) else member.intake
            self.watch.add(session, watched, lambda: served.membership.subscription.topic)

    def leave(self, served: Served) -> Future[int]:
        """Detach a member and stop reading for it; gives the number of unconfirmed acknowledgements.

        The future waits for the end of the readers, the coordinator thread does not: while Kafka is away, the
        other members of the connection need it.
        """
        left: Future[int] = Future()
        left.set_running_or_notify_cancel()  # leaving goes on when a caller gives up waiting

        def leave() -> tuple[int, Reading]:
            self.dead_letters.flush(_LAST_LETTERS)
            unconfirmed = self.coordinator_thread.leave(served)
            self.checkpoints.remove(served.member)
            self.history.remove(served.member.notes)
            readers = self._reading.pop(served.session.member)
            readers.stop()
            self.watch.remove(served.session.member)
            return unconfirmed, readers

        def end(leaving: Future[tuple[int, Reading]]) -> None:
            try:
                unconfirmed, readers = leaving.result()
                self._await_end(readers)
                left.set_result(unconfirmed)
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                left.set_exception(error)

        def begin_end(leaving: Future[tuple[int, Reading]]) -> None:
            try:
                threading.Thread(target=end, args=(leaving,), name="kafkadur-leaving", daemon=True).start()
            except RuntimeError:  # the system allows no further thread
                end(leaving)

        self.coordinator_thread.submit(leave, always=True).add_done_callback(begin_end)
        return left

    def _await_end(self, readers: Reading) -> None:
        """Wait for readers that were stopped, but not for ever: Kafka may be away."""
        waits = self._late is None or self._late.join(0)
        if not readers.join(_LAST_READING if waits else 0):
            self._late = readers

    def turn_away(self, attaching: Future[Served]) -> None:
        """Detach a member, also one that is attached later, whose caller has given up. Any thread."""

        def leave(attached: Future[Served]) -> None:
            if attached.cancelled() or attached.exception() is not None:
                return
            with contextlib.suppress(ConnectionClosed):  # then closing the connection ends it
                self.leave(attached.result())

        attaching.add_done_callback(leave)
