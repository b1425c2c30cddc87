"""One worker process of the demo: attaches, writes each message into its ledger, settles it.

It takes orders, one word a line, from standard input and tells what happens, one JSON object a line, on
standard output. The end of standard input is the end of the demo: the worker exits at once, so none outlives
it. Who starts workers, and when, is in `story.py`.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import kafkadur.sync
from examples.demo.flights import row_of
from examples.demo.ledger import ACK, ROLLBACK, LedgerWriter, line
from kafkadur.stack.errors import file_error
from kafkadur_sharing.definition import TypeName
from kafkadur_sharing.errors import KafkadurError, LeaseLost, SubscriptionActive
from kafkadur_sharing.keys import ClientIdPolicy

TOPIC: Final = "flights"
AUDIT: Final = "audit"
BILLING: Final = "billing"
#: Type of each subscription of the demo.
TYPES: Final[Mapping[str, TypeName]] = {AUDIT: "exclusive", BILLING: "shared"}
#: Subscriptions that are handed over, and their types (`handover.py`).
HANDOVERS: Final[Mapping[str, TypeName]] = {"dispatch": "serial", "control": "priority"}
#: The subscription of the report that Spark makes, and its topic (`report.py`).
REPORT: Final = "report"
REPORT_TOPIC: Final = "flights-report"
#: Session time-out of their members, seconds: so long a stopped process is waited for.
RELAY_SESSION_S: Final = 2.0
#: Session time-out of workers while all around them is broken, seconds.
CHAOS_SESSION_S: Final = 2.0
#: Records in a worker's hands.
WINDOW: Final = 500
#: Acknowledgements without confirmation: what a takeover may repeat on top of the window.
UNCONFIRMED: Final = {AUDIT: 500, BILLING: WINDOW}
#: Which rows `billing` rolls back at the first attempt, and for how long, seconds.
ROLLBACK_EVERY: Final = 100
ROLLBACK_DELAY: Final = 0.2

#: A pace is kept over so many messages; work that is late by more than so many seconds is not made up for.
_BREATH: Final = 20
_LATE_S: Final = 0.2

#: Orders.
GO: Final = "go"
AGAIN: Final = "again"
STOP: Final = "stop"


def rolls_back(row: int) -> bool:
    """Whether `billing` rolls a row back at its first attempt: about 1 %, the same rows in every run."""
    return row % ROLLBACK_EVERY == ROLLBACK_EVERY // 2


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one worker is to do; travels as JSON in its arguments."""

    #: Shown to people, and the name of its ledger.
    name: str
    #: `AUDIT`, `BILLING`, one of `HANDOVERS`, or `REPORT`.
    subscription: str
    kafka: str
    redis: str
    #: The file it writes down its messages in; for `REPORT` the folder of all that Spark writes.
    ledger: str
    #: Messages between two reports of progress; for `REPORT` those of a batch.
    report_every: int
    #: After so many messages it writes the next ones into its ledger and waits to be killed; 0: never.
    last_stand: int = 0
    #: For `REPORT`: it waits when these are settled, not before that.
    settles_first: bool = False
    #: Messages a second at most, while all around it is broken (`chaos.py`); 0: nothing is, and no limit.
    pace: float = 0.0

    def argument(self) -> str:
        """The job as an argument."""
        return json.dumps(asdict(self))


class Orders:
    """Orders from standard input. Its thread ends the process with the input."""

    def __init__(self) -> None:
        """Begin to listen."""
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        #: What `STOP` does.
        self.on_stop: Callable[[], None] = lambda: None
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def _listen(self) -> None:
        while received := os.read(0, 4096):  # not sys.stdin: its lock would be held at the interpreter's end
            for order in received.decode().split():
                if order == STOP:
                    self.on_stop()
                else:
                    self._orders.put(order)
        os._exit(1)

    def wait_for(self, order: str) -> None:
        """Wait until `order` comes."""
        while self._orders.get() != order:
            pass


def tell(event: str, *, out: int = 1, **more: object) -> None:
    """Tell the demo what happened; `out` is the file descriptor of what was standard output at the start."""
    os.write(out, json.dumps({"event": event, **more}).encode() + b"\n")


class Work:
    """The work on one subscription: what was done so far, and telling about it."""

    def __init__(self, job: Job, ledger: LedgerWriter, orders: Orders) -> None:
        """Nothing is done yet."""
        self._job = job
        self._ledger = ledger
        self._orders = orders
        self._done = 0
        self._redelivered = 0
        self._told = 0
        #: when the next messages may be worked on, monotonic seconds
        self._next = time.monotonic()

    def audit(self, subscription: kafkadur.sync.Subscription) -> None:
        """Settle whole batches: write their lines, then acknowledge them."""
        while (batch := subscription.receive_batch(WINDOW)) is not None:
            if not self._done:
                tell("first", at=time.monotonic())
            self._ledger.write(b"".join(line(delivery, ACK) for delivery in batch))
            self._stand()
            self._settle(batch.ack_nowait)
            self._count(len(batch), len(batch) if batch[0].redelivered else 0)

    def billing(self, subscription: kafkadur.sync.Subscription) -> None:
        """Settle one message after the other."""
        for delivery in subscription:
            if not self._done:
                tell("first", at=time.monotonic())
            back = delivery.attempt == 1 and rolls_back(row_of(delivery.value or b""))
            self._ledger.write(line(delivery, ROLLBACK if back else ACK))
            self._stand()
            self._settle(partial(delivery.rollback_nowait, ROLLBACK_DELAY) if back else delivery.ack_nowait)
            self._count(1, int(delivery.redelivered))
            self._keep_pace()

    def relay(self, subscription: kafkadur.sync.Subscription) -> None:
        """Hold each message until it is said to go on."""
        for delivery in subscription:
            tell("first", at=time.monotonic())
            self._orders.wait_for(GO)
            delivery.ack()

    def _settle(self, settle: Callable[[], None]) -> None:
        """Settle it; raises `LeaseLost` if it is delivered again, unless chaos may be the reason."""
        try:
            settle()
        except LeaseLost:
            if not self._job.pace:
                raise

    def _keep_pace(self) -> None:
        """Take time, if a pace is given; what could not be done while stopped is not made up for."""
        if not self._job.pace or self._done % _BREATH:
            return
        now = time.monotonic()
        self._next = max(self._next, now - _LATE_S) + _BREATH / self._job.pace
        if self._next > now:
            time.sleep(self._next - now)

    def _stand(self) -> None:
        """At the last stand, wait for the end: written down, but not settled."""
        if self._job.last_stand and self._done >= self._job.last_stand:
            self.tell_progress()
            self._wait_for_the_end()

    def _wait_for_the_end(self) -> NoReturn:
        while True:
            self._orders.wait_for(GO)

    def _count(self, done: int, redelivered: int) -> None:
        self._done += done
        self._redelivered += redelivered
        if self._done - self._told >= self._job.report_every:
            self.tell_progress()

    def tell_progress(self) -> None:
        """Tell how far the work is."""
        self._told = self._done
        tell("progress", done=self._done, redelivered=self._redelivered)


def attach(connection: kafkadur.sync.Connection, job: Job, orders: Orders) -> kafkadur.sync.Subscription:
    """Attach; a refusal because of another holder is told, and it is tried again on order."""
    if job.subscription in HANDOVERS:
        return connection.subscribe(
            TOPIC,
            durable=job.subscription,
            type=HANDOVERS[job.subscription],
            window=1,
            start="earliest",
            name=job.name,
        )
    while True:
        try:
            return connection.subscribe(
                TOPIC,
                durable=job.subscription,
                type=TYPES[job.subscription],
                window=WINDOW,
                unconfirmed=UNCONFIRMED[job.subscription],
                start="earliest",
                name=job.name,
            )
        except SubscriptionActive as error:
            tell("refused", text=str(error), holder=error.holder)
            orders.wait_for(AGAIN)


def close(subscription: kafkadur.sync.Subscription, job: Job) -> None:
    """Leave; raises `LeaseLost` if acknowledgements were not confirmed, unless that is to be expected.

    In chaos it is: those messages come again, and whether they did is verified.
    """
    try:
        subscription.close()
    except LeaseLost:
        if not job.pace:
            raise


def client_id(subscription: str) -> str | None:
    """The client id a subscription needs: an exclusive one belongs to a client (rule U1)."""
    return AUDIT if subscription == AUDIT else None


def session_timeout(job: Job) -> timedelta | None:
    """The session time-out of a worker; None: as the settings say."""
    if job.subscription in HANDOVERS:
        return timedelta(seconds=RELAY_SESSION_S)
    return timedelta(seconds=CHAOS_SESSION_S) if job.pace else None


def main(argument: str) -> int:
    """Do the job; returns the exit status."""
    job = Job(**json.loads(argument))
    orders = Orders()
    try:
        with (
            kafkadur.sync.connect(
                kafka=job.kafka,
                redis=job.redis,
                client_id=client_id(job.subscription),
                client_id_policy=ClientIdPolicy.UNRESTRICTED,
                session_timeout=session_timeout(job),
            ) as connection,
            LedgerWriter(Path(job.ledger)) as ledger,
            attach(connection, job, orders) as subscription,
        ):
            orders.on_stop = subscription.stop
            tell("attached")
            orders.wait_for(GO)
            work = Work(job, ledger, orders)
            works = {AUDIT: work.audit, BILLING: work.billing}
            works.get(job.subscription, work.relay)(subscription)
            work.tell_progress()
            close(subscription, job)
            closed_at = time.monotonic()
    except KafkadurError as error:
        tell("failed", text=str(error))
        return 1
    except OSError as error:
        tell("failed", text=str(file_error(error, Path(job.ledger))))
        return 1
    # Only now: leaving the subscription has confirmed every verdict, or raised.
    tell("confirmed", at=closed_at)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
