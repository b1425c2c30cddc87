"""The coordinator thread of a connection: it makes the exchanges of all its members and keeps them attached.

It owns the Redis connection and the journal: calls to the coordinator run here, and applications wait for
their results (`submit`). A thread of the application that waits for an exchange may make it itself
(`assist`). One thread at a time talks to the coordinator. It never stops on a failure: it repeats an
unanswered exchange unchanged, rebuilds state that Redis lost, and attaches again, so that every failure ends
in redelivery. `consumer/composer.py` and `consumer/answers.py` decide what an exchange carries. A defect
fails only the member it occurred in.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeVar

from kafkadur.consumer.member import Member
from kafkadur.runtime.served import Served, fail_by_defect
from kafkadur.runtime.session_keeper import SessionKeeper
from kafkadur.runtime.stages import Probe, Stage
from kafkadur_coordinators.interface import Rank
from kafkadur_coordinators.lifecycle import Lifecycle, Membership
from kafkadur_coordinators.redis.coordinator import RedisCoordinator, Refusal, SubscriptionAddress
from kafkadur_coordinators.redis.presence import Presence
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.errors import (
    ConnectionClosed,
    CoordinatorUnavailable,
    InternalError,
    KafkadurError,
    KafkaRefused,
    LeaseLost,
    StateLost,
)

_log = logging.getLogger("kafkadur.coordinator")
T = TypeVar("T")

#: Seconds between two checks whether neighbours listen on their channels.
_NEIGHBOURS_EVERY = 0.2
#: Seconds between two looks at a member that nothing is known to be due for; more members are looked at less
#: often, so many a second.
_LOOK_EVERY = 0.2
_LOOKS = 250
#: Members a second for which news is looked for that nobody asked for.
_LOOKS_AROUND = 100
#: Refusals of a server that has lost the state, or is another one.
_LOST = ("MISSING", "RESTARTED")
_RETRY = 0.1
#: Seconds after which a server that still does not answer is a warning again.
_TOLD_EVERY = 60.0


class CoordinatorThread:
    """The coordinator thread of a connection."""

    def __init__(
        self,
        *,
        coordinator: RedisCoordinator,
        lifecycle: Lifecycle,
        presence: Presence,
        probe: Probe,
    ) -> None:
        """Once started, only this thread, and threads in `assist`, use `coordinator` and `lifecycle`.

        `probe` is for tests.
        """
        self._coordinator = coordinator
        self._lifecycle = lifecycle
        self._presence = presence
        self._probe = probe
        self._keeper = SessionKeeper(coordinator)
        #: by member id
        self._served: dict[str, Served] = {}
        #: when to look at which member: (monotonic seconds, number, member); those that do not agree with the
        #: member's own `look_at` are void
        self._agenda: list[tuple[float, int, Served]] = []
        self._numbers = itertools.count()
        #: held by the thread that talks to the coordinator
        self._turn = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        #: held to submit a job, and to refuse further jobs
        self._gate = threading.Lock()
        self._closing = False
        #: the error after another connection has taken the client id: then this one does nothing more
        self.displaced: KafkadurError | None = None
        #: ids of members that are to be looked at now; any thread adds to it
        self._requested: set[str] = set()
        self._neighbours_at = 0.0
        self._chores: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._main, name="kafkadur-coordinator", daemon=True)

    def repeat(self, chore: Callable[[], None]) -> None:
        """Call `chore` in this thread some five times a second; it must return at once. Before `start`."""
        self._chores.append(chore)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request_exchange(self, member_id: str) -> None:
        """Have a member served now. Any thread."""
        if member_id not in self._requested:
            self._requested.add(member_id)
            self._jobs.put(None)

    def assist(self, member_id: str, member: Member, *, inline: bool) -> bool:
        """Make a member's exchange in the calling thread if it may; returns whether it did.

        `inline`: whether it may if the coordinator is free. A thread that waits for the exchange makes it
        sooner itself than a thread that has to be woken. Else the coordinator thread makes the exchange soon.
        """
        if not inline or self._turn.locked():
            self.request_exchange(member_id)
            return False
        # Nothing but `with`: an exception of a signal handler must not leave it locked. If the coordinator
        # thread has taken it just now, this one waits for an exchange, as it would for its own.
        with self._turn:
            served = self._served.get(member_id)
            if served is not None and member.failed is None and served.retry_at <= time.monotonic():
                self._guarded(served, self._attach_or_exchange)
                if served.look_at > time.monotonic() + _LOOK_EVERY:  # it may be due earlier than it was
                    self._look_within(served, _LOOK_EVERY)
                return True
        self.request_exchange(member_id)
        return False

    def submit(self, job: Callable[[], T], *, always: bool = False) -> Future[T]:
        """Run `job` in this thread; raises `ConnectionClosed` when the thread has ended.

        If the connection has lost its client id, the future raises that error, unless `always` is set.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self.displaced is not None and not always:
                    raise self.displaced  # noqa: TRY301 - the submitter gets it
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - the submitter gets it
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
        """Fail all attached members with this error, and all further jobs. Any thread."""
        self.displaced = error

        def fail() -> None:
            for served in self._served.values():
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
        wake: Callable[[bytes], None],
        rank: Rank,
        session: str,
    ) -> Membership:
        """Attach a member (in this thread), and call `wake` with the messages on its channel from then on."""
        channels: list[str] = []

        def listen(address: SubscriptionAddress) -> None:
            channels.append(address.channel(member_id))
            self._presence.listen(channels[-1], wake)

        try:
            return self._lifecycle.attach(
                request, member=member_id, name=name, rank=rank, session=session, before=listen
            )
        except BaseException:
            for channel in channels:
                self._presence.forget(channel)
            raise

    def turn_away(self, membership: Membership) -> None:
        """Detach a member that is not served (in this thread). Never raises."""
        session = membership.session
        try:
            session.detach([])
        except KafkadurError as error:
            _log.info("leaving %s: %s", membership.subscription.key, error)
        self._presence.forget(membership.subscription.address.channel(session.member))

    def serve(self, served: Served) -> None:
        """Serve a member from now on (in this thread)."""
        self._served[served.session.member] = served
        self._requested.add(served.session.member)

    def _serves(self, served: Served) -> bool:
        return self._served.get(served.session.member) is served

    def leave(self, served: Served) -> int:
        """Send the last verdicts and detach (in this thread); returns how many acknowledgements failed.

        Never raises: messages whose verdicts could not be sent are delivered again when the session ends.
        """
        if not self._serves(served):
            return 0
        member = served.member
        try:
            if member.gate.outcome_unknown:  # its leases must end as those of a killed process
                member.lose("it was closed while the outcome of a commit was unknown")
            else:
                self._say_farewell(served)
        except KafkadurError as error:
            _log.info("leaving %s: %s", member.display, error)
        except Exception:  # noqa: BLE001 - a defect: the session ends with its time-out
            _log.exception("leaving %s", member.display)
        finally:
            del self._served[served.session.member]
            self._end(served)
            self._presence.forget(served.membership.subscription.address.channel(served.session.member))
        unconfirmed = member.unconfirmed_acks()
        member.abandon()
        member.tell_closing()
        return unconfirmed

    def _say_farewell(self, served: Served) -> None:
        """Give everything back, and detach; raises errors of the exchanges."""
        member = served.member
        member.release_all()
        deadline = time.monotonic() + 5.0
        while not served.detached and time.monotonic() < deadline:
            farewell = member.farewell()
            exchange = farewell or member.build(time.monotonic())
            if exchange is None:
                break
            sent_at = time.monotonic()
            member.apply(served.session.exchange(exchange), sent_at)
            if farewell is not None:
                break
        if member.transacted and (member.unconfirmed_acks() or served.detached):
            return  # Redis does not have all that is committed: another member looks it up
        served.session.detach(member.held_partitions())

    def _end(self, served: Served) -> None:
        """End a non-durable subscription, if this was its last member."""
        key = served.request.key
        if key.durable:
            return
        try:
            self._lifecycle.end(key)
        except KafkadurError as error:
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
        """Detach members that were attached while the connection was being closed."""
        for served in list(self._served.values()):
            self.leave(served)
            served.member.fail(ConnectionClosed(owner=f"subscription {served.member.display}"))

    def _next_job(self, timeout: float) -> Callable[[], None] | None:
        try:
            return self._jobs.get(timeout=timeout) if timeout > 0 else self._jobs.get_nowait()
        except queue.Empty:
            return None

    def _serve_all(self) -> float:
        """Make the exchanges that are due; returns how long to sleep, seconds."""
        now = time.monotonic()
        if now >= self._neighbours_at:
            self._neighbours_at = now + _NEIGHBOURS_EVERY
            self._keeper.look_at_neighbours(self._served.values())
            self._do_chores()
        chosen = self._chosen(now)
        self._keeper.renew(self._served.values(), chosen)
        for served in chosen:
            self._guarded(served, self._serve_one)
            self._look_within(served, served.due - time.monotonic())
        earliest = min(self._agenda[0][0] if self._agenda else math.inf, now + _LOOK_EVERY)
        return max(earliest - time.monotonic(), 0.0)

    def _do_chores(self) -> None:
        for chore in self._chores:
            try:
                chore()
            except Exception:  # noqa: BLE001 - a defect: the members are to be served
                _log.exception("the coordinator thread met a defect")

    def _chosen(self, now: float) -> list[Served]:
        """Return the members to look at now."""
        chosen: dict[str, Served] = {}
        for _ in range(len(self._requested)):  # those that are requested meanwhile are seen in the next round
            member_id = self._requested.pop()
            if (served := self._served.get(member_id)) is not None:
                served.around_at = now
                chosen[member_id] = served
        while self._agenda and self._agenda[0][0] <= now:
            at, _, served = heapq.heappop(self._agenda)
            if served.look_at == at and self._serves(served):
                chosen[served.session.member] = served
        return list(chosen.values())

    def _look_within(self, served: Served, seconds: float) -> None:
        """Look at a member again after so many seconds, or as often as members are looked at."""
        now = time.monotonic()
        at = now + min(seconds, self._often(served, _LOOKS))
        if not now < served.look_at <= at:
            served.look_at = at
            heapq.heappush(self._agenda, (at, next(self._numbers), served))

    def _often(self, served: Served, looks: int) -> float:
        """Return the seconds between two looks at a member, where `looks` members a second are looked at."""
        gate = served.member.gate
        return _LOOK_EVERY if gate.blocked or gate.silent else max(_LOOK_EVERY, len(self._served) / looks)

    def _serve_one(self, served: Served) -> None:
        """Make a member's exchange if it is due, and note when the next one is due."""
        member = served.member
        served.due = math.inf
        if (now := time.monotonic()) >= served.around_at or member.gate.blocked or member.gate.silent:
            served.around_at = now + self._often(served, _LOOKS_AROUND)
            member.look_around(now)
        if member.failed is not None or member.gate.silent:
            return
        if member.unblock():
            member.on_ready()
        due = max(member.due(time.monotonic()), served.retry_at)
        if due <= time.monotonic():
            self._attach_or_exchange(served)
            due = max(member.due(time.monotonic()), served.retry_at)
        served.due = due

    @staticmethod
    def _guarded(served: Served, step: Callable[[Served], None]) -> None:
        """Do a step for a member; a defect fails only this member."""
        if isinstance(served.member.failed, InternalError):
            served.due = math.inf  # its state may be wrong
            served.member.tell_closing()
            return
        try:
            step(served)
        except LeaseLost as error:  # the application was interrupted in mid-change (`state_change.py`)
            served.member.fail(error)
        except Exception as error:  # noqa: BLE001 - any defect
            fail_by_defect(served.member, error)

    def _attach_or_exchange(self, served: Served) -> None:
        if served.detached:
            # another server may know its last attachment, and exchanges are numbered anew
            with self._recovering(served):
                self._attach_again(served)
        else:
            self._exchange(served)

    def _exchange(self, served: Served) -> None:
        member = served.member
        if member.intake.cuts:
            self._truncate(served)
            return
        if member.intake.added_to and not self._add_partitions(served):
            return
        sent_at = time.monotonic()
        try:
            self._reclaim(served)
            exchange = member.build(time.monotonic())
            if exchange is None:
                return
            sent_at = time.monotonic()
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
        """Look up in Kafka what a transacted member that is gone has committed; then attach all again."""
        member = served.member
        _log.warning("%s: a transacted consumer has gone; what it committed is looked up", member.display)
        with self._recovering(served):
            self._lifecycle.rebuild({served.request.key: served.session.incarnation})
            served.lose("what a transacted consumer committed was looked up", keep=not member.transacted)
            self._attach_again(served)

    @contextlib.contextmanager
    def _recovering(self, served: Served) -> Generator[None]:
        """Try again later if a server does not answer; another error fails the member."""
        try:
            yield
        except (CoordinatorUnavailable, KafkaRefused, StateLost) as error:
            self._trouble(served, error)
        except KafkadurError as error:
            served.member.fail(error)

    @staticmethod
    def _reclaim(served: Served) -> None:
        """Lease again the messages that are in flight since an earlier incarnation."""
        member = served.member
        while claims := member.claims():
            granted = served.session.reclaim(
                {p: [one for _, one in some] for p, some in claims.items()}, heard=member.was_heard
            )
            member.reclaimed(
                (chunk, claimed)
                for partition, some in claims.items()
                for (chunk, _), claimed in zip(some, granted[partition], strict=True)
            )

    def _add_partitions(self, served: Served) -> bool:
        """Make partitions known that were added to the topic; returns whether that succeeded."""
        with self._recovering(served):
            try:
                added_to = served.member.intake.added_to
                served.membership = self._lifecycle.add_partitions(served.membership, added_to)
            except Refusal as refusal:
                self._refused(served, refusal)
            else:
                return True
        return False

    def _truncate(self, served: Served) -> None:
        """After Kafka lost the end of partitions, have the coordinator forget it; then attach all again."""
        member = served.member
        with self._recovering(served):
            try:
                lost = self._lifecycle.truncate(served.membership, dict(member.intake.cuts))
                member.intake.note_truncated(lost)
                served.lose("Kafka lost the end of a partition")
                self._attach_again(served)
            except Refusal as refusal:  # another member was faster
                self._refused(served, refusal)

    def _trouble(self, served: Served, error: KafkadurError) -> None:
        now = time.monotonic()
        served.retry_at = now + _RETRY
        kind = type(error).__name__
        if served.trouble != kind or now - served.told_at >= _TOLD_EVERY:
            served.trouble, served.told_at = kind, now
            _log.warning("%s: %s", served.member.display, error)

    def _refused(self, served: Served, refusal: Refusal) -> None:
        """After the coordinator refused an exchange: forget the member's leases, and attach it again."""
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
        # messages in flight are leased again; those of a transacted session are delivered again instead
        keep = not member.transacted and refusal.code in (*_LOST, "INCARNATION")
        served.lose(f"the coordinator answered {refusal.code}", keep=keep)
        with self._recovering(served):
            if refusal.code in _LOST and len(self._served) > 1:
                lost = self._with_the_same_server(served)
                self._lifecycle.rebuild({each.request.key: each.session.incarnation for each in lost})
            self._attach_again(served)

    def _with_the_same_server(self, served: Served) -> list[Served]:
        """Return all members whose state is on the same server: it was lost at once."""

        def node(each: Served) -> object:
            return self._coordinator.node_of(each.membership.subscription.address.root)

        return [each for each in self._served.values() if node(each) == node(served)]

    def _attach_again(self, served: Served) -> None:
        sent_at = time.monotonic()
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
        served.membership, served.detached = membership, False
        served.member.attached(membership.attached, sent_at)
