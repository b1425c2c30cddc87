"""Acknowledgements that wait for a level above Redis, and the thread that confirms them or times them out.

All that wait for `replicated` share one WAIT of this thread. The checkpoint thread (`checkpoint_thread.py`)
confirms those that wait for `journal`. This thread never waits for Kafka. A loss of state ends the wait with
an error, and in redelivery.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import KafkaException

from kafkadur.consumer.chunk import Chunk, Confirmation
from kafkadur_coordinators.journal.origins import Origin
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_sharing.definition import AckLevel
from kafkadur_sharing.errors import KafkadurError, LeaseLost, LevelNotReached

_log = logging.getLogger("kafkadur.checkpoints")

#: Seconds until what was not reached is tried again.
RETRY = 0.2
#: Longest wait for replicas in one go, ms.
_WAIT_MS = 500


class Wait(NamedTuple):
    """A caller that waits for a level above Redis."""

    #: of this wait, in the connection
    number: int
    level: AckLevel
    lane: int
    #: of the lease: an acknowledgement that this incarnation confirmed
    incarnation: int
    #: monotonic seconds
    until: float
    confirmation: Confirmation


@dataclass(kw_only=True, eq=False)
class Asker:
    """A member whose acknowledgements may wait for a level."""

    #: the subscription's name
    display: str
    subscription: Subscription
    origin: Origin
    #: by number; who removes one tells it
    waiting: dict[int, Wait] = field(default_factory=dict[int, Wait])


class Trouble:
    """Why a thread gets no further; each new kind of it is logged once."""

    def __init__(self) -> None:
        """Begin without."""
        self.kind = ""

    def note(self, error: Exception) -> None:
        """A round failed."""
        kind = type(error).__name__
        if self.kind != kind:
            self.kind = kind
            defect = None if isinstance(error, (KafkadurError, KafkaException)) else error
            _log.warning("what is settled waits for its level: %s", error, exc_info=defect)

    def clear(self) -> None:
        """A round succeeded."""
        self.kind = ""


class _Raised:
    """A confirmation by Redis that becomes one of a higher level."""

    __slots__ = ("_asker", "_chunk", "_inner", "_level", "_waiters")

    def __init__(
        self, waiters: Waiters, asker: Asker, level: AckLevel, chunk: Chunk, inner: Confirmation
    ) -> None:
        self._waiters = waiters
        self._asker = asker
        self._level: AckLevel = level
        self._chunk = chunk
        self._inner = inner

    def resolve(self, error: KafkadurError | None) -> None:
        """Redis confirmed it, or refused it."""
        if error is not None:
            self._inner.resolve(error)
        else:
            lease = self._chunk.lease  # it may be another one than when this began: it was claimed again
            self._waiters.add(self._asker, self._level, lease.partition, lease.incarnation, self._inner)


class Waiters:
    """All who wait on one connection; its thread starts with the first."""

    def __init__(
        self,
        *,
        coordinator: Callable[[], RedisCoordinator],
        replicas: int,
        patience: float,
        beacon: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`coordinator` makes a client of this thread's own, at its first use.

        `replicas`: how many must have a write for the level `replicated`; `patience`: seconds after which
        a caller that waits for a level is told that it was not reached; `beacon`: a Redis key that is written
        so that WAIT has something to wait for.
        """
        self._make_coordinator = coordinator
        self._coordinator: RedisCoordinator | None = None
        self._replicas = replicas
        self._patience = patience
        self._beacon = beacon
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._numbers = itertools.count(1)
        #: confirmations for which a caller waits, by identity
        self._askers: dict[int, Asker] = {}
        self._thread: threading.Thread | None = None
        self._closing = False
        #: what keeps each level away
        self.trouble: Mapping[AckLevel, Trouble] = {"replicated": Trouble(), "journal": Trouble()}
        #: called when a caller begins to wait for the journal
        self.on_journal: Callable[[], None] = lambda: None

    def above(self, asker: Asker, level: AckLevel, chunk: Chunk, confirmation: Confirmation) -> Confirmation:
        """A confirmation for Redis, of verdicts in `chunk`, that tells another one of `level`."""
        return _Raised(self, asker, level, chunk, confirmation)

    def add(
        self, asker: Asker, level: AckLevel, lane: int, incarnation: int, confirmation: Confirmation
    ) -> None:
        """A caller waits from now on: what this incarnation has confirmed of a lane is to reach a level."""
        until = self._monotonic() + self._patience
        with self._lock:
            number = next(self._numbers)
            asker.waiting[number] = Wait(number, level, lane, incarnation, until, confirmation)
            self._askers[id(asker)] = asker
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="kafkadur-levels", daemon=True)
                self._thread.start()
        self._bell.set()
        if level == "journal":
            self.on_journal()

    def of(self, asker: Asker, level: AckLevel) -> list[Wait]:
        """Who waits for this level of what a member settled."""
        with self._lock:
            return [wait for wait in asker.waiting.values() if wait.level == level]

    def resolve(self, asker: Asker, waits: Iterable[Wait], incarnation: int) -> None:
        """Tell who waited: what this incarnation confirmed has reached its level, the rest is not known."""
        for wait in self._removed(asker, waits):
            if wait.incarnation == incarnation:
                wait.confirmation.resolve(None)
            else:
                wait.confirmation.resolve(
                    LeaseLost(
                        f"Redis confirmed it, but lost its state before the level {wait.level} was reached.",
                        owner=f"subscription {asker.display}",
                        remedy="do nothing: it was settled, or is delivered again",
                    )
                )

    def close(self) -> None:
        """Ask replicas once more, tell who still waits, and end."""
        with self._lock:
            self._closing = True
            thread = self._thread
        self._bell.set()
        if thread is not None:
            thread.join()
        if self._coordinator is not None:
            self._coordinator.close()

    def _removed(self, asker: Asker, waits: Iterable[Wait]) -> list[Wait]:
        """Return those of `waits` that the caller has to resolve; the others are resolved already."""
        with self._lock:
            found = [wait for wait in waits if asker.waiting.pop(wait.number, None) is not None]
            if not asker.waiting:
                self._askers.pop(id(asker), None)
        return found

    # -- the thread

    def _main(self) -> None:
        while True:
            self._bell.wait(self._rest())
            self._bell.clear()
            closing = self._closing
            trouble = self.trouble["replicated"]
            try:
                self._replicate()
            except Exception as error:  # noqa: BLE001 - one round must not end the thread of all of them
                trouble.note(error)
            else:
                trouble.clear()
            self._give_up(everything=closing)
            if closing:
                return

    def _rest(self) -> float | None:
        """Seconds until there is something to do; None: until a caller waits."""
        with self._lock:
            waits = [wait for asker in self._askers.values() for wait in asker.waiting.values()]
        if any(wait.level == "replicated" for wait in waits):
            return RETRY
        first = min((wait.until for wait in waits), default=None)
        return None if first is None else max(first - self._monotonic(), 0.0)

    def _replicate(self) -> None:
        """Let replicas confirm what the server had before now."""
        with self._lock:
            askers = list(self._askers.values())
        asked = [(asker, waits) for asker in askers if (waits := self.of(asker, "replicated"))]
        if not asked:
            return
        if self._coordinator is None:
            self._coordinator = self._make_coordinator()
        coordinator = self._coordinator
        # the state is that of the lease, on this very server: else WAIT waits for something else
        calls = [
            coordinator.inspecting(asker.subscription.address, asker.origin.id, asker.origin.state, ())
            for asker, _ in asked
        ]
        held = [reply.incarnation if reply.code == "OK" else 0 for reply in coordinator.run_many(calls)]
        coordinator.command("SET", self._beacon, "1", "PX", 60_000)
        if coordinator.command("WAIT", self._replicas, _WAIT_MS) >= self._replicas:
            for (asker, waits), incarnation in zip(asked, held, strict=True):
                self.resolve(asker, waits, incarnation)

    def _give_up(self, *, everything: bool) -> None:
        """Tell who waited long enough."""
        now = self._monotonic()
        with self._lock:
            late = [
                (asker, [wait for wait in asker.waiting.values() if everything or wait.until <= now])
                for asker in self._askers.values()
            ]
        for asker, waits in late:
            for wait in self._removed(asker, waits):
                state = self.trouble[wait.level].kind or "no answer"
                wait.confirmation.resolve(
                    LevelNotReached(
                        f"The acknowledgement did not reach the level {wait.level} in time.",
                        state=f"settled in Redis; {state} after {self._patience:g} s",
                        owner=f"subscription {asker.display}",
                        remedy="look at the replicas, or Kafka; it comes again only if Redis loses its state",
                    )
                )
