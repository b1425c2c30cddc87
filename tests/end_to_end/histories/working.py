"""The process of one member: receives, gives random verdicts, leaves and attaches again, and records it all.

Orders come by standard input, one a line: `drain` (acknowledge all that comes), `end`, those of
`mistakes.py`. The end of standard input ends the process at once, as does the end of its parent. Who starts
it is `running.py`.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import kafkadur
import kafkadur.sync
from kafkadur.consumer.delivery import Delivery as PlainDelivery
from kafkadur_coordinators.interface import ExchangeReply, Role
from kafkadur_coordinators.redis.wire import ExchangeRequest, Reply, Request
from kafkadur_coordinators.settlement_states import SUSPECT
from kafkadur_sharing.definition import SubscriptionType
from kafkadur_sharing.errors import AlreadySettled, Fenced, KafkadurError, LeaseLost, SubscriptionActive
from tests.end_to_end.histories.faults import FEW_FILES, FORK
from tests.end_to_end.histories.mistakes import Mistakes
from tests.end_to_end.histories.plan import SubscriptionPlan
from tests.end_to_end.histories.recording import FAIL, OK, UNKNOWN, Recorder

DRAIN, END = "drain", "end"
#: Messages whose value begins like this are rolled back whatever happens: they become dead letters.
POISON = b"poison"
#: What a member does with a message, and how often.
VERDICTS = {
    "ack": 40,
    "ack_journal": 4,
    "ack_nowait": 30,
    "rollback": 6,
    "rollback_later": 6,
    "rollback_nowait": 3,
    "release": 5,
    "extend": 4,
    "reject": 1,
}
_DEATH_OF_PARENT = 1
#: Scripts that change nothing.
_LOOKING = {"peek", "inspect", "renew"}
#: Attempts from which on a suspect may be kept apart (`include/redelivery.lua`).
_GRAVE = 3
_RECEIVE_S = 0.3
#: Where something is in hands already: it may be the last of a turn.
_RECEIVE_MORE_S = 0.05
_STALL_S = 0.5

#: What comes from `receive`, and what comes in a batch.
Received = kafkadur.sync.Delivery | PlainDelivery


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one member process is to do; travels as JSON in its arguments."""

    name: str
    seed: str
    kafka: str
    redis: str
    namespace: str
    session: float
    record: str
    subscription: dict[str, Any]
    priority: int

    def argument(self) -> str:
        """The job as an argument."""
        return json.dumps(asdict(self))


class Orders:
    """Orders from standard input."""

    def __init__(self, others: Mapping[str, Callable[..., None]]) -> None:
        """Begin to listen. `others` are called, in the listening thread, with what follows their names."""
        self.draining = False
        self._others = others
        self._ending = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while received := os.read(0, 4096):
            for order in received.decode().split():
                name, *arguments = order.split(":")
                if name == DRAIN:
                    self.draining = True
                elif name == END:
                    self._ending.set()
                else:
                    self._others[name](*arguments)
        os._exit(1)

    @property
    def ending(self) -> bool:
        """Whether it is to end."""
        return self._ending.is_set()

    def pause(self, seconds: float) -> None:
        """Wait, unless it is to end."""
        self._ending.wait(seconds)


def digest(value: bytes) -> str:
    """What a message is recognized by."""
    return hashlib.sha256(value).hexdigest()[:16]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _records(lease: Sequence[Any]) -> int:
    """Offsets that a lease in the reply to an exchange holds."""
    start, end, stretch = lease[2], lease[3], lease[7]
    return int(sum(stretch[1::2]) - sum(stretch[::2])) if stretch else int(end - start)


def follow_parent() -> None:
    """End with the parent, also while stopped: then standard input tells nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGKILL)


class Member:
    """One attached member, from attaching to leaving."""

    def __init__(
        self,
        subscription: kafkadur.sync.Subscription,
        plan: SubscriptionPlan,
        *,
        recorder: Recorder,
        orders: Orders,
        mistakes: Mistakes,
        chance: random.Random,
    ) -> None:
        """It is attached already."""
        self._mistakes = mistakes
        self._subscription = subscription
        self._plan = plan
        self._recorder = recorder
        self._orders = orders
        self._chance = chance
        self._id = subscription.member_id[:8]
        self._held: list[Received] = []
        self._lost: set[int] = set()
        #: under which token each was handed out: a claim after a loss gives it another one
        self._tokens: dict[int, tuple[int, int]] = {}
        #: deliveries until it leaves
        self._left = chance.randint(60, 600)
        #: how often it takes a batch
        self._batches = chance.choice((0.0, 0.2, 1.0))

    def work(self) -> None:
        """Work until it is to leave; raises KafkadurError when it cannot go on."""
        while not self._orders.ending and (self._left > 0 or self._orders.draining):
            more = not (self._orders.draining or self._is_full or self._chance.random() < 0.6)
            receives = more or not self._held
            self._mistakes.fork_if_asked(self._subscription, self._held)
            if not (receives and self._receive()) and self._held:
                self._settle_one()

    @property
    def _is_full(self) -> bool:
        return len(self._held) >= self._plan.window

    def _receive(self) -> bool:
        called = time.monotonic_ns()
        got = self._take()
        at = time.monotonic_ns()
        self._look_for_lost()
        for delivery in got:
            self._recorder.note(
                "deliver",
                **self._facts(delivery),
                digest=digest(delivery.value or b""),
                key=(delivery.key or b"").decode(),
                redelivered=delivery.redelivered,
                called=called,
                at=at,
            )
        self._held += got
        self._left -= len(got)
        return bool(got)

    def _take(self) -> Sequence[Received]:
        timeout = _RECEIVE_MORE_S if self._held else _RECEIVE_S
        if self._chance.random() < self._batches:
            batch = self._subscription.receive_batch(self._chance.randint(1, 6), timeout=timeout)
            return tuple(batch or ())  # it makes an object each time that one is asked for
        delivery = self._subscription.receive(timeout=timeout)
        return () if delivery is None else (delivery,)

    def _facts(self, delivery: Received) -> dict[str, Any]:
        return {
            "member": self._id,
            "subscription": self._plan.name,
            "partition": delivery.partition,
            "offset": delivery.offset,
            "token": self._tokens.setdefault(id(delivery), delivery.fencing_token),
            "attempt": delivery.attempt,
        }

    def _look_for_lost(self) -> None:
        for delivery in self._held:
            if delivery.lost and id(delivery) not in self._lost:
                self._lost.add(id(delivery))
                self._recorder.note("lost", **self._facts(delivery))

    def _settle_one(self) -> None:
        chance = self._chance
        draining = self._orders.draining
        at = 0 if draining or chance.random() < 0.5 else chance.randrange(len(self._held))
        delivery = self._held[at]
        if (delivery.value or b"").startswith(POISON):
            kind = "rollback"
        elif draining:
            kind = "ack"
        else:
            kind = chance.choices(list(VERDICTS), list(VERDICTS.values()))[0]
            if kind == "extend" and not isinstance(delivery, kafkadur.sync.Delivery):
                kind = "ack"
            if chance.random() < 0.3:  # work takes time
                self._orders.pause(chance.random() * 0.05)
        self._settle(delivery, kind)
        if kind != "extend":
            self._held.pop(at)
            self._lost.discard(id(delivery))
            self._tokens.pop(id(delivery), None)

    def _settle(self, delivery: Received, kind: str) -> None:
        name = {"rollback_later": "rollback", "ack_journal": "ack"}.get(kind, kind)
        journal = kind == "ack_journal" and isinstance(delivery, kafkadur.sync.Delivery)
        if not isinstance(delivery, kafkadur.sync.Delivery):  # those of a batch do not wait
            name = name if name.endswith("_nowait") else f"{name}_nowait"
        known_lost = delivery.lost
        level = {"level": "journal"} if journal else {}
        number = self._recorder.call(name, **self._facts(delivery), **level)
        try:
            if journal:
                getattr(delivery, name)(level="journal")
            elif kind == "rollback_later":
                getattr(delivery, name)(delay=self._chance.random())
            else:
                getattr(delivery, name)()
        except (Fenced, AlreadySettled) as error:
            outcome, failed = FAIL, type(error).__name__
        except LeaseLost as error:
            outcome, failed = FAIL if known_lost else UNKNOWN, type(error).__name__
        except KafkadurError as error:
            outcome, failed = UNKNOWN, type(error).__name__
        else:
            self._recorder.done(number, OK)
            return
        self._recorder.done(number, outcome, error=failed)

    def leave(self) -> None:
        """Leave; what it holds is given back."""
        number = self._recorder.call("close", member=self._id)
        try:
            self._subscription.close()
        except KafkadurError as error:
            self._recorder.done(number, UNKNOWN, error=type(error).__name__)
        else:
            self._recorder.done(number, OK)


class Worker:
    """The process: it attaches again and again."""

    def __init__(self, job: Job, recorder: Recorder, orders: Orders, mistakes: Mistakes) -> None:
        """Nothing is connected yet."""
        self._mistakes = mistakes
        self._job = job
        self._plan = SubscriptionPlan(**job.subscription)
        self._recorder = recorder
        self._orders = orders
        self._chance = random.Random(job.seed)

    def go(self) -> None:
        """Work until the order to end."""
        while not self._orders.ending:
            number = self._recorder.call("connect")
            try:
                with kafkadur.sync.connect(
                    kafka=self._job.kafka,
                    redis=self._job.redis,
                    client_id=self._plan.name if self._plan.type == "exclusive" else None,
                    client_id_policy="unrestricted",
                    namespace=self._job.namespace,
                    session_timeout=timedelta(seconds=self._job.session),
                    redis_timeout=timedelta(seconds=2),
                    journal_partitions=2,
                    recorder=self._note_script if self._plan.type == "shared" else None,
                ) as connection:
                    self._recorder.done(number, OK)
                    again = True
                    while again and not self._orders.ending:
                        again = self._attach(connection) and self._chance.random() < 0.7
            except KafkadurError as error:
                self._recorder.done(number, FAIL, error=type(error).__name__)
                self._orders.pause(0.3)

    def _note_script(self, name: str, request: Sequence[Any], reply: Reply) -> None:
        """Record a script that changed the subscription; any thread."""
        if reply.code != "OK" or name in _LOOKING:
            return
        facts: dict[str, Any] = {
            "credit": 0,
            "have": 0,
            "token": 0,
            "rank": 0,
            "members": 0,
            "left_over": False,
            "reads_on": False,
        }
        grants: list[Any] = []
        if name == "exchange":
            asked = ExchangeRequest._make(request[len(Request._fields) :])
            found: Any = ExchangeReply._make(reply.body)  # as it came: its rows are lists
            role = Role._make(found.role)
            facts |= {"credit": asked.credit, "have": asked.have, "token": found.token}
            facts |= {"rank": role.rank, "members": role.members, "left_over": bool(found.orphaned)}
            facts |= {"reads_on": bool(asked.reads_on)}
            grants = [
                (v[0], v[1], _records(v), _text(v[5]), v[4] // 2 % 16384 >= _GRAVE and v[4] >= SUSPECT)
                for v in found.grants
            ]
        self._recorder.note(
            "script",
            subscription=self._plan.name,
            member=_text(request[4])[:8],
            name=name,
            incarnation=reply.incarnation,
            sequence=reply.sequence,
            grants=grants,
            **facts,
        )

    def _attach(self, connection: kafkadur.sync.Connection) -> bool:
        """Attach, work and leave; whether the connection is to be used again."""
        plan = self._plan
        number = self._recorder.call("attach", subscription=plan.name, window=plan.window)
        try:
            subscription = connection.subscribe(
                plan.name,
                durable=plan.name,
                type=SubscriptionType(plan.type),
                window=plan.window,
                start="earliest",
                strict_order=plan.strict,
                scope="partition" if plan.scope == "partition" else "subscription",
                key_lanes=plan.key_lanes,
                redelivery=kafkadur.Redelivery(
                    max_attempts=plan.max_attempts,
                    backoff=timedelta(milliseconds=50),
                    max_backoff=timedelta(milliseconds=500),
                ),
                priority=self._job.priority if plan.type == "priority" else 0,
                preempt=plan.type == "priority" and self._chance.random() < 0.5,
                name=self._job.name,
            )
        except KafkadurError as error:
            self._recorder.done(number, FAIL, error=type(error).__name__)
            self._orders.pause(0.5 + self._chance.random())
            return isinstance(error, SubscriptionActive)
        self._recorder.done(number, OK, member=subscription.member_id[:8])
        member = Member(
            subscription,
            plan,
            recorder=self._recorder,
            orders=self._orders,
            mistakes=self._mistakes,
            chance=self._chance,
        )
        try:
            member.work()
        except KafkadurError as error:
            self._recorder.note("receive", outcome=FAIL, error=type(error).__name__, text=str(error))
        member.leave()
        return True


def _notice_stalls(recorder: Recorder) -> None:
    """Record when this process was not running: stopped by a fault, or because the machine was busy."""
    last = time.monotonic_ns()
    while True:
        time.sleep(0.1)  # measures how long this really takes
        now = time.monotonic_ns()
        if now - last > _STALL_S * 1e9:
            recorder.note("stall", since=last, at=now)
        last = now


def main(argument: str) -> None:
    """Be a member."""
    follow_parent()
    job = Job(**json.loads(argument))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", datefmt="%H:%M:%S"
    )
    with Recorder(Path(job.record)) as recorder:
        mistakes = Mistakes(recorder)
        orders = Orders({FORK: mistakes.ask_for_fork, FEW_FILES: mistakes.have_few_files})
        threading.Thread(target=_notice_stalls, args=(recorder,), daemon=True).start()
        Worker(job, recorder, orders, mistakes).go()
        # the thread above must find the file open to its end
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
