"""Acknowledgements that wait for a level above Redis, and the thread that confirms them or times them out.

All acknowledgements that wait for `replicated` share one WAIT of this thread. The checkpoint thread
(`checkpoint_thread.py`) confirms those that wait for `journal`. This thread never waits for Kafka. A loss of
state ends the wait with an error, and leads to redelivery.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaException

from kafkadur.consumer.chunk import Chunk, Confirmation
from kafkadur.runtime.work_by_node import WorkByNode
from kafkadur_coordinators.journal.origins import Origin
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.redis.cluster import Place
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_sharing.definition import AckLevel
from kafkadur_sharing.errors import KafkadurError, LeaseLost, LevelNotReached

_log = logging.getLogger("kafkadur.checkpoints")

#: Seconds until a level that was not reached is tried again.
RETRY = 0.2
#: Longest time of one WAIT, ms.
_WAIT_MS = 500


class Wait(NamedTuple):
    """A caller that waits for a level above Redis."""

    #: unique in the connection
    number: int
    level: AckLevel
    lane: int
    #: of the lease, and of Redis when it confirmed the acknowledgement
    incarnation: int
    #: when it times out, monotonic seconds
    until: float
    confirmation: Confirmation


@dataclass(kw_only=True, eq=False)
class Asker:
    """A member whose acknowledgements may wait for a level."""

    #: the name of the subscription for people
    display: str
    subscription: Subscription
    origin: Origin
    #: by number; the thread that removes a wait resolves its confirmation
    waiting: dict[int, Wait] = field(default_factory=dict[int, Wait])


#: a member, and its waits for one level
_Asked = tuple[Asker, list[Wait]]


def _root(asked: _Asked) -> str:
    """Return the beginning of the keys of a member's subscription in Redis."""
    return asked[0].subscription.address.root


class Trouble:
    """Catches the errors of the rounds of a thread; each new kind of error is logged once."""

    def __init__(self) -> None:
        #: the error of the last round; empty: it succeeded
        self.kind = ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        name = "" if error is None else type(error).__name__
        if isinstance(error, Exception) and self.kind != name:
            defect = None if isinstance(error, (KafkadurError, KafkaException)) else error
            _log.warning("acknowledgements wait for their level: %s", error, exc_info=defect)
        self.kind = name
        return isinstance(error, Exception)


@dataclass(slots=True)
class _Raised:
    """A confirmation by Redis that leads to one of a higher level."""

    waiters: Waiters
    asker: Asker
    level: AckLevel
    chunk: Chunk
    inner: Confirmation

    def resolve(self, error: KafkadurError | None) -> None:
        """Wait for the higher level, or pass on the error of Redis."""
        if error is not None:
            self.inner.resolve(error)
        else:
            lease = self.chunk.lease  # it may have been leased again meanwhile
            self.waiters.add(self.asker, self.level, lease.partition, lease.incarnation, self.inner)


class Waiters:
    """All waiting acknowledgements of one connection; its thread starts with the first."""

    def __init__(
        self,
        on_journal: Callable[[], None],
        *,
        coordinator: Callable[[], RedisCoordinator],
        replicas: int,
        patience: float,
    ) -> None:
        """`on_journal` is called when an acknowledgement begins to wait for the journal.

        `coordinator` makes the client of this thread when it is first used.
        `replicas`: the number of replicas that must have a write for the level `replicated`; `patience`:
        seconds after which a wait for a level times out.
        """
        self._on_journal = on_journal
        self._make_coordinator = coordinator
        self._coordinator: RedisCoordinator | None = None
        self._nodes = WorkByNode()
        self._replicas = replicas
        self._patience = patience
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._numbers = itertools.count(1)
        #: members with waits, by identity
        self._askers: dict[int, Asker] = {}
        self._thread: threading.Thread | None = None
        self._closing = False
        #: why a level is not reached
        self.trouble: Mapping[AckLevel, Trouble] = {"replicated": Trouble(), "journal": Trouble()}

    def above(self, asker: Asker, level: AckLevel, chunk: Chunk, confirmation: Confirmation) -> Confirmation:
        """Return a confirmation of verdicts in `chunk` by Redis, which leads to `confirmation` at `level`."""
        return _Raised(self, asker, level, chunk, confirmation)

    def add(
        self, asker: Asker, level: AckLevel, lane: int, incarnation: int, confirmation: Confirmation
    ) -> None:
        """Begin to wait until an acknowledgement that this incarnation confirmed reaches a level."""
        until = time.monotonic() + self._patience
        with self._lock:
            number = next(self._numbers)
            asker.waiting[number] = Wait(number, level, lane, incarnation, until, confirmation)
            self._askers[id(asker)] = asker
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="kafkadur-levels", daemon=True)
                self._thread.start()
        self._bell.set()
        if level == "journal":
            self._on_journal()

    def of(self, asker: Asker, level: AckLevel) -> list[Wait]:
        """Return the waits of a member for this level."""
        if not asker.waiting:  # so it is for most members
            return []
        with self._lock:
            return [wait for wait in asker.waiting.values() if wait.level == level]

    def resolve(self, asker: Asker, waits: Iterable[Wait], incarnation: int) -> None:
        """Resolve waits: those of this incarnation have reached their level, the others may be lost."""
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
        """Ask the replicas once more, time out the remaining waits, and end the thread."""
        with self._lock:
            self._closing = True
            thread = self._thread
        self._bell.set()
        if thread is not None:
            thread.join()
        if self._coordinator is not None:
            self._coordinator.close()

    def _removed(self, asker: Asker, waits: Iterable[Wait]) -> list[Wait]:
        """Remove waits; returns those that the caller has to resolve, because no other thread has."""
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
            with self.trouble["replicated"]:
                self._replicate()
            self._give_up(everything=closing)
            if closing:
                return

    def _rest(self) -> float | None:
        """Seconds until the next round; None: until an acknowledgement waits."""
        with self._lock:
            waits = [wait for asker in self._askers.values() for wait in asker.waiting.values()]
        if any(wait.level == "replicated" for wait in waits):
            return RETRY
        first = min((wait.until for wait in waits), default=None)
        return None if first is None else max(first - time.monotonic(), 0.0)

    def _replicate(self) -> None:
        """Wait until the replicas have the writes that the server has now."""
        with self._lock:
            askers = list(self._askers.values())
        asked: list[_Asked] = [(asker, waits) for asker in askers if (waits := self.of(asker, "replicated"))]
        if not asked:
            return
        if self._coordinator is None:
            self._coordinator = self._make_coordinator()
        self._nodes.work(self._coordinator, asked, _root, partial(self._await_replicas, self._coordinator))

    def _await_replicas(self, coordinator: RedisCoordinator, asked: Sequence[_Asked]) -> None:
        # the server must have the state of the lease, else WAIT would wait for unrelated writes
        servers = [coordinator.server_of(_root(each)) for each in asked]
        calls = [
            coordinator.inspecting(asker.subscription.address, asker.origin.id, asker.origin.state, ())
            for asker, _ in asked
        ]
        held = [reply.incarnation if reply.code == "OK" else 0 for reply in coordinator.run_many(calls)]
        by_server: dict[Place, list[tuple[_Asked, int]]] = defaultdict(list)
        for each, server, incarnation in zip(asked, servers, held, strict=True):
            by_server[server].append((each, incarnation))
        for server, some in by_server.items():
            root = _root(some[0][0])
            done = coordinator.replicate(f"{root}replicated", self._replicas, patience_ms=_WAIT_MS)
            if done and coordinator.server_of(root) == server:  # it is the one that was asked first
                for (asker, waits), incarnation in some:
                    self.resolve(asker, waits, incarnation)

    def _give_up(self, *, everything: bool) -> None:
        """Time out waits."""
        now = time.monotonic()
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
