"""The coordinator thread of a connection: it makes the exchanges of all its members and keeps them attached.

It owns the Redis connection and the journal: whatever talks to the coordinator runs here, applications wait
for it (`submit`). It never stops on a failure: it repeats an unanswered exchange unchanged, rebuilds state
that Redis lost, and attaches again, so that every failure ends in redelivery. What an exchange carries is
decided in `consumer/composer.py` and `consumer/answers.py`. A defect ends the member it was met with, which
the application is told, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from kafkadur.consumer.member import Member
from kafkadur.runtime.stages import Probe, Stage, no_probe
from kafkadur_coordinators.interface import UNRANKED, Rank
from kafkadur_coordinators.lifecycle import Lifecycle, Membership
from kafkadur_coordinators.redis.coordinator import RedisCoordinator, Refusal
from kafkadur_coordinators.redis.member_session import MemberSession
from kafkadur_coordinators.redis.presence import Presence
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.errors import (
    ConnectionClosed,
    CoordinatorUnavailable,
    InternalError,
    KafkadurError,
    KafkaRefused,
    StateLost,
    SubscriptionActive,
)

_log = logging.getLogger("kafkadur.pump")
T = TypeVar("T")

#: Seconds between two looks at the channels of neighbours.
_NEIGHBOURS_EVERY = 0.2
_IDLE_SLEEP = 0.2
#: Answers of a server that is not, or not any more, the one that had the state.
_LOST = ("MISSING", "RESTARTED")
_RETRY = 0.1


@dataclass(kw_only=True)
class Served:
    """A member and how it is attached."""

    member: Member
    request: Request
    membership: Membership
    name: str
    rank: Rank = UNRANKED
    #: the transacted session it belongs to; empty: none
    session_name: str = ""
    #: told when it is attached again: others may have ended what that session has open in Kafka
    taken_over: Callable[[], None] = lambda: None
    #: not before this time (monotonic seconds): the server did not answer
    retry_at: float = 0.0
    #: when it is to be looked at again (monotonic seconds)
    due: float = 0.0
    #: what was told to the application once, so that it is logged once
    trouble: str = ""

    @property
    def session(self) -> MemberSession:
        """The member's calls."""
        return self.membership.session


class CoordinatorThread:
    """The coordinator thread."""

    def __init__(
        self,
        *,
        coordinator: RedisCoordinator,
        lifecycle: Lifecycle,
        presence: Presence,
        monotonic: Callable[[], float] = time.monotonic,
        probe: Probe = no_probe,
    ) -> None:
        """`start` begins; `coordinator` and `lifecycle` are this thread's alone from then on.

        `probe` is for tests (`stages.py`).
        """
        self._coordinator = coordinator
        self._lifecycle = lifecycle
        self._presence = presence
        self._monotonic = monotonic
        self._probe = probe
        self._served: list[Served] = []
        #: held by the thread that talks to the coordinator
        self._turn = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        #: held to hand in a job, and to say that none comes any more
        self._gate = threading.Lock()
        self._closing = False
        #: why nothing goes on: another connection has the client id
        self.displaced: KafkadurError | None = None
        self._requested = False
        self._neighbours_at = 0.0
        self._thread = threading.Thread(target=self._main, name="kafkadur-coordinator", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request_exchange(self) -> None:
        """Look at the members now. Any thread."""
        if not self._requested:
            self._requested = True
            self._jobs.put(None)

    def assist(self, member: Member) -> bool:
        """Make a member's exchange in the calling thread unless another one is at work; whether it was made.

        A thread that has to wait for the exchange anyway makes it sooner than another one that is woken for
        it.
        """
        if not self._turn.acquire(blocking=False):
            self.request_exchange()
            return False
        try:
            for served in self._served:
                if served.member is not member or member.failed is not None:
                    continue
                if served.retry_at <= self._monotonic():
                    self._guarded(served, self._exchange)
                    return True
        finally:
            self._turn.release()
        self.request_exchange()
        return False

    def submit(self, job: Callable[[], T], *, always: bool = False) -> Future[T]:
        """Run `job` in this thread; raises `ConnectionClosed` when the thread has ended.

        When the connection lost its client id by then, the future raises that, unless it is `always` run.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self.displaced is not None and not always:
                    raise self.displaced  # noqa: TRY301 - it is raised where the job came from
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - it is raised where the job came from
                future.set_exception(error)

        with self._gate:
            if self._closing:
                raise ConnectionClosed
            self._jobs.put(run)
        return future

    def close(self) -> None:
        """End the thread after the jobs submitted so far."""
        with self._gate:
            self._closing = True
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def displace(self, error: KafkadurError) -> None:
        """Have nothing go on: what is attached fails with this. Any thread."""
        self.displaced = error

        def fail() -> None:
            for served in self._served:
                served.member.fail(error)

        with contextlib.suppress(ConnectionClosed):
            self.submit(fail, always=True)

    # -- jobs of members

    def attach(
        self,
        request: Request,
        *,
        member_id: str,
        name: str,
        wake: Callable[[], None],
        rank: Rank = UNRANKED,
        session: str = "",
    ) -> Membership:
        """Attach a member (in this thread); its channel is listened to from then on."""
        channel: list[str] = []

        def before(address: object) -> None:
            name_ = address.channel(member_id)  # type: ignore[attr-defined]  # a SubscriptionAddress
            channel.append(name_)
            self._presence.listen(name_, wake)

        try:
            return self._lifecycle.attach(
                request,
                member=member_id,
                name=name,
                rank=rank,
                session=session,
                before=before,
            )
        except BaseException:
            for used in channel:
                self._presence.forget(used)
            raise

    def turn_away(self, membership: Membership) -> None:
        """Detach a member that cannot be served (in this thread). Never raises."""
        session = membership.session
        try:
            session.detach([])
        except (KafkadurError, Refusal) as error:
            _log.info("leaving %s: %s", membership.subscription.key, error)
        self._presence.forget(membership.subscription.address.channel(session.member))

    def serve(self, served: Served) -> None:
        """Make the exchanges of this member from now on (in this thread)."""
        self._served.append(served)

    def leave(self, served: Served) -> int:
        """Say farewell and detach (in this thread); returns how many acknowledgements could not be confirmed.

        Never raises: what could not be said ends with the session, and is delivered again.
        """
        if served not in self._served:
            return 0
        member = served.member
        try:
            if member.gate.outcome_unknown:  # its leases must end as those of a killed process
                member.lose("it was closed while it was not known what a commit came to")
            else:
                self._say_farewell(served)
        except (KafkadurError, Refusal) as error:
            _log.info("leaving %s: %s", member.display, error)
        except Exception:  # noqa: BLE001 - a defect: the session ends by itself
            _log.exception("leaving %s", member.display)
        finally:
            self._served.remove(served)
            self._end(served)
            self._presence.forget(served.membership.subscription.address.channel(served.session.member))
        unconfirmed = member.unconfirmed_acks()
        member.abandon()
        member.tell_closing()
        return unconfirmed

    def _say_farewell(self, served: Served) -> None:
        """Give everything back, and detach; raises what says that it could not be said."""
        member = served.member
        member.release_all()
        deadline = self._monotonic() + 5.0
        while self._monotonic() < deadline:
            exchange = member.farewell() or member.build(self._monotonic())
            if exchange is None:
                break
            sent_at = self._monotonic()
            farewell = exchange.credit == 0 and exchange.span == 0
            member.apply(served.session.exchange(exchange), sent_at)
            if farewell:
                break
        if member.transacted and member.unconfirmed_acks():
            return  # Redis does not know what is committed: another member looks it up
        served.session.detach(member.held_partitions())

    def _end(self, served: Served) -> None:
        """A non-durable subscription ends with its last member."""
        key = served.request.key
        if key.durable:
            return
        try:
            self._lifecycle.end(key)
        except (KafkadurError, Refusal) as error:
            _log.info("ending %s: %s", key, error)  # the next subscriber removes it

    # -- the thread

    def _main(self) -> None:
        while True:
            with self._turn:
                timeout = self._serve_all()
            job = self._next_job(timeout)
            while job is not None:
                with self._turn:
                    job()
                job = self._next_job(0.0)
            if self._closing and self._jobs.empty():
                self._leave_the_rest()
                return

    def _leave_the_rest(self) -> None:
        """Leave what was attached while the connection was closed."""
        for served in list(self._served):
            self.leave(served)
            served.member.fail(ConnectionClosed(owner=f"subscription {served.member.display}"))

    def _next_job(self, timeout: float) -> Callable[[], None] | None:
        try:
            return self._jobs.get(timeout=timeout) if timeout > 0 else self._jobs.get_nowait()
        except queue.Empty:
            return None

    def _serve_all(self) -> float:
        """Make the exchanges that are due; returns how long to sleep, seconds."""
        self._requested = False  # before looking: what is requested from now on is seen in the next round
        now = self._monotonic()
        if self._served and now >= self._neighbours_at:
            self._neighbours_at = now + _NEIGHBOURS_EVERY
            self._look_at_neighbours()
        earliest = now + _IDLE_SLEEP
        for served in list(self._served):
            self._guarded(served, self._serve_one)
            earliest = min(earliest, served.due)
        return max(earliest - self._monotonic(), 0.0)

    def _serve_one(self, served: Served) -> None:
        """Make a member's exchange if it is due, and note when the next one is."""
        member = served.member
        served.due = math.inf
        member.look_around(self._monotonic())
        if member.failed is not None or member.gate.silent:
            return
        if member.unblock():
            member.on_ready()
        due = max(member.due(self._monotonic()), served.retry_at)
        if due <= self._monotonic():
            self._exchange(served)
            due = max(member.due(self._monotonic()), served.retry_at)
        served.due = due

    @staticmethod
    def _guarded(served: Served, step: Callable[[Served], None]) -> None:
        """Do a step of a member's; a defect fails this member alone, and the thread goes on."""
        if isinstance(served.member.failed, InternalError):
            served.due = math.inf  # what it knows is not to be trusted
            served.member.tell_closing()
            return
        try:
            step(served)
        except Exception as error:  # noqa: BLE001 - whatever it is
            _fail(served.member, error)

    def _exchange(self, served: Served) -> None:
        member = served.member
        if member.intake.cuts:
            self._truncate(served)
            return
        sent_at = self._monotonic()
        try:
            self._reclaim(served)
            exchange = member.build(self._monotonic())
            if exchange is None:
                return
            sent_at = self._monotonic()
            self._probe(Stage.SEND)
            reply = served.session.exchange(exchange)
            self._probe(Stage.ANSWERED)
        except CoordinatorUnavailable as error:
            self._trouble(served, error)
            return
        except Refusal as refusal:
            self._refused(served, refusal)
            return
        except KafkadurError as error:
            member.fail(error)
            return
        if served.trouble:
            _log.warning("%s: Redis answers again", member.display)
            served.trouble = ""
        member.apply(reply, sent_at)
        if reply.outcome_unknown:
            self._resolve(served)

    def _resolve(self, served: Served) -> None:
        """Look up in Kafka what a transacted member that is gone has committed; then all attach again."""
        member = served.member
        _log.warning("%s: a transacted consumer has gone; what it committed is looked up", member.display)
        try:
            self._lifecycle.rebuild({served.request.key: served.session.incarnation})
            member.lose("what a transacted consumer committed was looked up", keep=not member.transacted)
            self._attach_again(served)
        except (CoordinatorUnavailable, KafkaRefused, StateLost) as error:
            self._trouble(served, error)
        except KafkadurError as error:
            member.fail(error)

    @staticmethod
    def _reclaim(served: Served) -> None:
        """Claim what the application still has in hands of an earlier incarnation."""
        member = served.member
        while claims := member.claims():
            granted = served.session.reclaim({p: [one for _, one in some] for p, some in claims.items()})
            member.reclaimed(
                (chunk, claimed)
                for partition, some in claims.items()
                for (chunk, _), claimed in zip(some, granted[partition], strict=True)
            )

    def _truncate(self, served: Served) -> None:
        """Kafka lost the end of partitions.

        First of all the coordinator must forget it, then all members begin anew.
        """
        member = served.member
        try:
            lost = self._lifecycle.truncate(served.membership, dict(member.intake.cuts))
            member.intake.note_truncated(lost)
            member.lose("Kafka lost the end of a partition")
            self._attach_again(served)
        except (CoordinatorUnavailable, KafkaRefused, StateLost) as error:
            self._trouble(served, error)
        except Refusal as refusal:
            self._refused(served, refusal)
        except KafkadurError as error:
            member.fail(error)

    def _trouble(self, served: Served, error: KafkadurError) -> None:
        served.retry_at = self._monotonic() + _RETRY
        kind = type(error).__name__
        if served.trouble != kind:
            served.trouble = kind
            _log.warning("%s: %s", served.member.display, error)

    def _refused(self, served: Served, refusal: Refusal) -> None:
        """The member is not what it thought: forget its leases and attach again."""
        member = served.member
        if refusal.code == "STALE":
            member.fail(
                StateLost(
                    state="an older exchange was answered: two processes use one member id",
                    owner=f"subscription {member.display}",
                    remedy="do not copy connections between processes",
                )
            )
            return
        _log.warning("%s: %s; attaching again", member.display, refusal.code)
        member.lose(f"the coordinator answered {refusal.code}", keep=_keeps(member, refusal))
        try:
            if refusal.code in _LOST and len(self._served) > 1:  # all of them at once, as they were lost
                self._lifecycle.rebuild({each.request.key: each.session.incarnation for each in self._served})
            self._attach_again(served)
        except CoordinatorUnavailable as error:
            self._trouble(served, error)
        except SubscriptionActive as error:
            member.fail(error)
        except KafkadurError as error:
            if isinstance(error, (StateLost, KafkaRefused)):
                self._trouble(served, error)
            else:
                member.fail(error)

    def _attach_again(self, served: Served) -> None:
        sent_at = self._monotonic()
        membership = self._lifecycle.attach(
            served.request,
            member=served.session.member,
            name=served.name,
            rank=served.rank,
            session=served.session_name,
            only=served.membership.subscription.id,
            seen=served.member.incarnation,
        )
        served.taken_over()
        served.membership = membership
        served.member.attached(membership.attached, sent_at)

    def _look_at_neighbours(self) -> None:
        """Ask whether the neighbours of our members still listen; a silent one is reported by an exchange."""
        with contextlib.suppress(KafkadurError):  # Redis does not answer: the exchanges notice too
            for served in self._served:
                try:
                    self._look_at_neighbour(served)
                except KafkadurError:
                    raise
                except Exception as error:  # noqa: BLE001 - whatever it is
                    _fail(served.member, error)

    def _look_at_neighbour(self, served: Served) -> None:
        neighbour = served.member.neighbour
        if not neighbour:
            return
        channel = served.membership.subscription.address.channel(neighbour)
        if not self._coordinator.heard([channel]).get(channel, True):
            served.member.report_silence()


def _fail(member: Member, defect: Exception) -> None:
    """Have a member fail with a defect it was met with. Never raises."""
    _log.error("%s met a defect", member.display, exc_info=defect)
    try:
        member.fail(InternalError.by(defect, f"subscription {member.display}"))
    except Exception:  # noqa: BLE001 - the others are to be served
        _log.exception("telling %s of it", member.display)


def _keeps(member: Member, refusal: Refusal) -> bool:
    """Whether a member claims what it has in hands: in a transacted session it comes again instead."""
    return not member.transacted and refusal.code in (*_LOST, "INCARNATION")
