"""One attached member: its lock, its state, and its parts, each made with the parts that it calls. No I/O.

Several threads call a member, under one lock that is held for a chunk of records at a time. The two readers
(`fetch/tail_fetcher.py`, `fetch/range_fetcher.py`) bring records (`intake.py`). The coordinator thread
(`runtime/coordinator_thread.py`) sends exchanges and brings the answers (`build`, `apply`). The application
takes blocks (`next_block`) and gives verdicts (`verdicts.py`). The clock is a function. Waiting callers and
listeners are called after the lock was released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from kafkadur.consumer.answers import Answers
from kafkadur.consumer.chunk import Chunk
from kafkadur.consumer.composer import Composer
from kafkadur.consumer.confirmations import LEFT
from kafkadur.consumer.delivery_path import sift
from kafkadur.consumer.dispatcher import Block
from kafkadur.consumer.fetch_state import Reading
from kafkadur.consumer.flow import Flow
from kafkadur.consumer.gaps import Gaps
from kafkadur.consumer.hindrances import Hindrances
from kafkadur.consumer.intake import Intake
from kafkadur.consumer.lag import Lag
from kafkadur.consumer.losses import Losses, Outcomes
from kafkadur.consumer.policy.choose import dispatcher_of, policy_of
from kafkadur.consumer.renewal import Renewal
from kafkadur.consumer.reservations import reservation
from kafkadur.consumer.router import Router
from kafkadur.consumer.state import State
from kafkadur.consumer.terms import Terms
from kafkadur.consumer.verdicts import Levels, Verdicts
from kafkadur.consumer.waiting_thread import WaitingThread
from kafkadur.events import Event
from kafkadur.fetch.filtering import Takes
from kafkadur.message.serialization import RAW, Decoding
from kafkadur.message.tracing import Tracing
from kafkadur.runtime.dead_letters import Letter
from kafkadur.runtime.forked import forked
from kafkadur_coordinators.interface import (
    MAX_PARTITIONS,
    Attached,
    Claim,
    Claimed,
    Exchange,
    ExchangeReply,
    Pushed,
)
from kafkadur_sharing.errors import KafkadurError

D = TypeVar("D")


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """The functions outside of a member that it calls."""

    #: makes the readers, which bring records to the intake
    readers: Callable[[Intake], Reading]
    #: since when other processes have heard this one without a pause (monotonic seconds; infinity: not now)
    heard_since: Callable[[], float]
    #: asks the coordinator thread to look at this member soon
    request_exchange: Callable[[], None]
    #: asks for an exchange now; returns whether it was made in the calling thread
    exchange_inline: Callable[[Member], bool]
    #: has a dead letter written, in another thread
    write_dead_letter: Callable[[Letter], None]
    #: a block can be taken, or the state changed (any thread, lock not held)
    on_ready: Callable[[], None]
    #: nothing more is dispatched; called once, by the coordinator thread
    on_closing: Callable[[], None]
    #: called with each event, in the thread where it happens; None: the application asked for none
    on_event: Callable[[Event], None] | None = None
    #: whether a thread that waits for a record may read it itself
    reads_inline: bool = False


class Member:
    """One member of a subscription, from attaching to leaving."""

    def __init__(
        self,
        terms: Terms,
        callbacks: Callbacks,
        *,
        decoding: Decoding = RAW,
        takes: Takes | None = None,
        transacted: bool = False,
        durable: bool = True,
        levels: Levels | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`decoding` deserializes keys and values. `takes` says which records match (None: all of them).

        `transacted`: a session settles the messages. `durable`: the subscription is in the journal.
        `levels` tells when acknowledgements reach a level above Redis, `tracing` makes spans.
        """
        kind = policy_of(terms.definition)
        self._state = state = State(
            terms,
            heard_since=callbacks.heard_since,
            request_exchange=callbacks.request_exchange,
            on_event=callbacks.on_event,
            takes=takes,
            transacted=transacted,
            ordered=kind.ORDERED,
            lanes_apart=kind.LANES_APART,
        )
        gaps = Gaps(state)
        self._policy = policy = kind(state, gaps)
        self.lag, self._hindrances = Lag(state, policy), Hindrances(state)
        self.renewal = Renewal(state, policy)
        self.verdicts = Verdicts(
            state,
            policy=policy,
            member=self,
            write=callbacks.write_dead_letter,
            levels=levels,
            durable=durable,
        )
        self._dispatcher = dispatcher_of(state, policy, self.lag, self)
        self._composer = Composer(state, policy=policy, verdicts=self.verdicts)
        self.flow = Flow(state, policy=policy, lag=self.lag, composer=self._composer)
        self._losses = Losses(state, policy=policy, lag=self.lag, clear=self._clear)
        router = Router(state, policy=policy, gaps=gaps, verdicts=self.verdicts, owner=self)
        self._answers = Answers(state, policy=policy, router=router, lag=self.lag, composer=self._composer)
        self.waiting = waiting = WaitingThread(callbacks.on_ready, self.lag, reads=callbacks.reads_inline)
        self.intake = Intake(state, policy=policy, router=router, ready=waiting.wake, fail=self.fail)
        self.readers = waiting.readers = state.fetch.reading = callbacks.readers(self.intake)
        self._terms, self._schedule, self._leases = terms, state.schedule, state.leases
        self._in_flight, self._confirmations = state.in_flight, state.confirmations
        self.gate, self.teller, self.lock = state.gate, state.teller, state.lock
        self.display, self.definition, self.window = terms.display, terms.definition, terms.window
        self.single, self.session = terms.single, terms.session
        #: whether messages come in order; whether the order is that of each key
        self.ordered, self.by_key = policy.ORDERED, policy.BY_KEY
        #: whether its lanes may pass to other members while it is attached; whether each passes by itself
        self.passes, self.lanes_apart = policy.PASSES, policy.LANES_APART
        self.max_hold = state.in_flight.max_hold
        #: whether records are marked as dispatched one by one (`next_run`)
        self.one_by_one = terms.single or self.passes or policy.strict or self.max_hold is not None
        #: records that the iterator took and the application has not received; what is noted for the history
        self.unreceived, self.notes, self.on_ready = state.unreceived, state.notes, waiting.wake
        self.transacted = self.judged_by_session = transacted
        self.decoding, self.tracing, self._callbacks = decoding, tracing, callbacks

    def _clear(self) -> None:
        """Forget leases, records and verdicts: the leases were lost."""
        self._state.clear()
        for part in (self._policy, self._composer, self._answers):
            part.clear()

    # -- properties

    def now(self) -> float:
        """Monotonic seconds."""
        return self._terms.monotonic()

    @property
    def incarnation(self) -> int:
        """The incarnation of the subscription that it is attached to."""
        return self._leases.incarnation

    def sift(self, block: Iterator[D], losses: int, stale: Callable[[D], bool]) -> Iterator[D]:
        """Yield the deliveries of a block that may be handed out; parameters as of `handed.pure_sift`."""
        return sift(block, self.gate, losses, stale)

    @property
    def losses(self) -> int:
        """How often leases were lost: deliveries that were taken before may be stale."""
        return self.gate.losses

    @property
    def failed(self) -> KafkadurError | None:
        """The error because of which it cannot go on; None: it can."""
        return self.gate.failed

    @property
    def neighbour(self) -> str:
        """The member whose silence this one reports; empty when it is alone."""
        role = self._state.fetch.role
        return role.neighbour if role.members > 1 else ""

    # -- attaching, and losing all

    def attached(self, attached: Attached, sent_at: float) -> None:
        """The member was attached by a call sent at `sent_at` (monotonic seconds)."""
        self._hindrances.attached(attached.grace_ms)
        with self.lock:
            self._leases.incarnation, self._leases.attachment = attached.incarnation, attached.attachment
            self.gate.last_ok = sent_at
            self._answers.take_role(attached.role)
            self._schedule.touched = set(self._policy.partitions())
            self._schedule.request()

    def lose(self, reason: str, *, keep: bool = False) -> None:
        """Every lease is gone: forget everything; the messages in flight can't be settled any more.

        With `keep` they are leased again first when the member is attached again (`losses.py`).
        """
        with self.lock:
            outcomes = self._losses.lose(reason, keeps=keep)
        self.teller.tell()
        self._resolve(outcomes)

    def claims(self) -> dict[int, list[tuple[Chunk, Claim]]]:
        """The claims to make before the first exchange of a new incarnation, by partition (at most 16)."""
        with self.lock:
            return self._losses.claims()

    @property
    def was_heard(self) -> bool:
        """Whether other processes heard this member until the last loss of its leases (`losses.py`)."""
        return self._losses.heard

    def reclaimed(self, answers: Iterable[tuple[Chunk, Claimed]]) -> None:
        """Claims were answered."""
        with self.lock:
            outcomes = self._losses.reclaimed(answers)
        self._resolve(outcomes)

    def _resolve(self, outcomes: Outcomes) -> None:
        for confirmation, error in outcomes:
            confirmation.resolve(error)
        self.on_ready()

    def fail(self, error: KafkadurError) -> None:
        """The member cannot go on; the next call of the application raises `error`."""
        self.gate.failed = error
        try:
            self.lose(str(error))
        finally:
            self.on_ready()  # in any case: no caller may wait for ever

    def note_fork(self) -> None:
        """This process is a forked child, and the member its parent's. Takes no lock: it may be held."""
        self.gate.failed = forked(f"subscription {self.display}")
        for lease in self._leases:
            lease.group.frozen = True  # `one_by_one` stops
        for chunk in (*self._in_flight, *self._losses.kept):
            chunk.lose()
        self.gate.losses += 1

    # -- dispatch

    def next_block(self, limit: int) -> Block | None:
        """Take the next records for the application: chunk, first index, end index; None: nothing now.

        At most `limit` records, within the window by count and bytes, below the confirmed dispatch bound.
        """
        with self.lock:
            block, soon = self._dispatcher.next_block(limit)
            self._state.fetch.note_dispatched(0 if block is None else block[2] - block[1])
        if soon:
            self.request_exchange()
        return block

    def next_run(self, limit: int) -> Block | None:
        """As `next_block`, for records that are marked as dispatched one by one (`chunk.one_by_one`).

        With a window of one, a record is dispatched only after the one before was acknowledged, so no record
        needs an exchange, or the lock, of its own. On a lane that may pass to another member (`passes`) no
        record counts as dispatched before the application has it. None: nothing can be dispatched now.
        """
        with self.lock:
            run = self._dispatcher.next_run(limit)
            self._state.fetch.reading.note_room()
        return run

    def is_timely(self, chunk: Chunk, index: int) -> bool:
        """Whether a dispatched record has not expired before the application receives it. Takes no lock.

        One that has is settled.
        """
        return self._dispatcher.timeliness.is_timely(chunk, index)

    def filled(self) -> None:
        """The records in flight may fill the window (`chunk.one_by_one`).

        Then lanes that have turns of their own and that the window has no room for are offered.
        """
        if self._policy.takes_turns():
            self.request_exchange()

    def unblock(self) -> bool:
        """Whether dispatching may go on: the leases are certain again, or a record of a key is due."""
        if self.gate.blocked and self.gate.may_dispatch():
            self.gate.blocked = False
            return True
        with self.lock:
            # other processes hear this one again: the answer to an exchange says which leases are left
            self._schedule.request(when=self.gate.blocked and self.gate.is_heard())
            return self._dispatcher.is_due(self.now())

    def look_around(self, now: float) -> None:
        """Find out whether this member has caught up or fallen behind, and deliver events.

        Called by the coordinator thread, without the lock; `now` is monotonic seconds.
        """
        self.tell_closing()
        if self.lag.judge_in_time(now):
            with self.lock:
                self.lag.judge()
                self._hindrances.look(now, paused=self.intake.has_enough)
                self._in_flight.let_go(now)
        self.teller.tell()

    # -- exchanges

    def request_exchange(self) -> None:
        """Ask the coordinator thread for an exchange soon. Takes no lock."""
        self._schedule.request_exchange()

    def exchange_inline(self) -> bool:
        """The application is about to wait: have the exchange made that is due, if one is.

        Returns whether it was made, in this thread: then there may be a block.
        """
        known, now = self._schedule.will_look, self.now()
        if self.due(now) <= now:
            return self._callbacks.exchange_inline(self)
        if self._schedule.will_look and not known:
            self._schedule.wake()  # the coordinator thread sleeps, and does not know it
        return False

    def wake(self, push: Pushed | None = None) -> None:
        """Another member, or the coordinator, reports news; `push` is what it has granted to this one.

        Called by the listening thread, which must not be kept busy.
        """
        with self.lock:
            taken = push is not None and self._answers.take_push(push)
            if not taken:  # an exchange brings the same
                self._schedule.touch(self._policy.partitions())
            exchange = not taken or self.intake.needs_exchange(news=bool(self._state.queue))
        if taken:
            self.on_ready()
        if exchange:
            self.request_exchange()

    def report_silence(self) -> None:
        """The neighbour's channel is silent: the next exchange asks which members are present."""
        self._schedule.ask_presence()
        self.request_exchange()

    def due(self, now: float) -> float:
        """When the next exchange is to be made (monotonic seconds; in the past: now)."""
        with self.lock:
            return self._schedule.next_due(
                now,
                self._policy.next_due,
                None if self.max_hold is None else self.max_hold.next_at,
                waits=bool(self._confirmations.waiting) or not self._state.pending.is_answered,
                in_flight=bool(self._in_flight.chunks),
            )

    def build(self, now: float) -> Exchange | None:
        """The exchange to send now; the same one again while it is unanswered. None: there is none."""
        with self.lock:
            self._state.change.begin()
            exchange = self._composer.build(now)
            self._state.change.end()
        return exchange

    def apply(self, reply: ExchangeReply, sent_at: float) -> None:
        """The exchange sent at `sent_at` (monotonic seconds) was answered."""
        refused = set(reply.refused)
        with self.lock:
            self._state.change.begin()
            waiting = self._state.pending.confirm
            self._answers.apply(reply, sent_at)
            self.renewal.exchanged()
            gone = self._confirmations.take(lambda chunk: chunk.lease.lost)
            self._state.fetch.reading.note_room()
            # for records that were read while this exchange was under way
            self._schedule.request(when=self.intake.needs_exchange(news=bool(self._state.queue)))
            self._state.change.end()
        self.teller.tell()
        for item in gone:
            item.confirmation.resolve(self._confirmations.after_loss(item.chunk))
        for item in waiting:
            token = item.chunk.lease.token
            fenced = self._confirmations.fenced(f"fencing token {token}") if token in refused else None
            item.confirmation.resolve(fenced)
        self.on_ready()

    def take_settled(self) -> set[int]:
        """Partitions, or lanes of keys, on which verdicts were confirmed since the last call."""
        if not self._answers.has_settled:  # so it is for most members
            return set()
        with self.lock:
            return self._answers.take_settled()

    # -- resting

    def rest(self) -> None:
        """Ask for no messages until `wake_up`.

        A member of a shared subscription gives back the messages that are not in flight, for other members.
        Lanes stay with their holder.
        """
        self.gate.resting = True
        self.request_exchange()

    def wake_up(self) -> None:
        """Ask for messages again."""
        self.gate.resting = False
        self.request_exchange()

    # -- leaving

    def begin_close(self) -> None:
        """Dispatch nothing more; messages in flight may still get their verdicts.

        Takes no lock, and has the coordinator thread wake waiting threads: a signal handler may have
        interrupted the thread that holds the lock, or one that is about to wait.
        """
        self.gate.closing = True
        self._schedule.wake()

    def tell_closing(self) -> None:
        """Tell waiting callers, once, that nothing more is dispatched.

        Called by the coordinator thread, without the lock.
        """
        if self.gate.closing and not self.gate.closing_told:
            self.gate.closing_told = True
            self.on_ready()
            self._callbacks.on_closing()

    def release_all(self) -> None:
        """Give back the messages in flight, uncounted; `farewell` gives back all others.

        A member whose state is not whole gives back nothing by itself: its leases end when it is detached.
        """
        with self.lock:
            broken_off = self._state.change.changing
        if broken_off:
            self.fail(self._state.change.error())
        with self.lock:
            for chunk in self._in_flight:
                chunk.release_handed()
            self._schedule.request()

    def farewell(self) -> Exchange | None:
        """The last exchange: verdicts, and the rest of every lease, which was not dispatched.

        None while `build` has to be called for an exchange before it.
        """
        with self.lock:
            return self._composer.farewell()

    def abandon(self) -> None:
        """Nothing more is confirmed: resolve the confirmations of all waiting callers."""
        with self.lock:
            self.gate.left = True
            items = (*self._state.pending.confirm, *self._confirmations.waiting)
            waiting = [*(item.confirmation for item in items), *self._confirmations.dead_letters.values()]
            self._confirmations.clear()
        for confirmation in waiting:
            confirmation.resolve(self._confirmations.fenced(LEFT))

    # -- numbers

    def unconfirmed_acks(self) -> int:
        """Acknowledgements without waiting that were refused, or never answered."""
        with self.lock:
            waiting: int = sum(chunk.acks() for chunk in [*self._in_flight, *self._losses.kept])
            return self._confirmations.fenced_acks + waiting + self._state.pending.acked

    def held_partitions(self) -> list[int]:
        """Partitions on which this member holds leases, at most 16."""
        with self.lock:
            return sorted({lease.partition for lease in self._leases})[:MAX_PARTITIONS]

    def statistics(self) -> dict[str, int]:
        """Numbers for people, of this moment.

        `leases`; `in_hands` (in flight) and `buffered` (read ahead), records; `exchanges` so far; `live`: 1
        after it has caught up, until it falls behind; `lag`: records that wait for this member, read or not;
        `followed`: partitions; `ranges_read` by the range fetcher so far; `records_read` from Kafka so far,
        and `records_used`: those of them that leases took; `parked`: messages that wait for their key, and
        of which only the offsets are kept; `promised`: reserved offsets of this member that are still ahead;
        `dead_letters` written so far; `outdated`: messages that expired before they were delivered, so far;
        `compiled`: 1 if the compiled client reads Kafka.
        """
        with self.lock:
            self._in_flight.recount()
            return {
                "leases": len(self._leases),
                "in_hands": self._in_flight.records,
                "buffered": self._state.fetch.buffered,
                "exchanges": self._composer.number,
                "live": int(self.lag.live),
                "lag": self.lag.behind()[0],
                "followed": len(self._state.fetch.buffers),
                "ranges_read": self._state.fetch.ranges_read,
                "records_read": self._state.fetch.records_read,
                "records_used": self._state.fetch.records_used,
                "parked": self._policy.parked,
                "promised": sum(map(reservation, self._leases)),
                "dead_letters": self.verdicts.dead_letters,
                "outdated": self._dispatcher.timeliness.expired,
                "compiled": int(self.readers.compiled),
            }
