"""The failover: holders that die, stop or close, round after round, and when the next one has a message.

Every member notes what it has in hand in memory that it shares with the parent, before it settles: what a
killed one had is known as well. The parent picks the member attached longest, has it hold a message unsettled
(or close), and looks when another member notes one. An open-loop producer keeps messages coming, and stops at
the end: then every message must have arrived.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections import Counter
from ctypes import c_uint64
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, cast

from benchmarks import payload, source
from benchmarks.children import IDLE_S, SPAWN, BenchmarkError, Child, start
from benchmarks.recorder import Recorder
from benchmarks.systems import load
from benchmarks.worker import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence
    from multiprocessing.connection import Connection

    from benchmarks.systems.base import Env

#: Messages a second of the producer.
RATE = 500.0
#: Messages of a run at most: the size of a member's notes.
_MOST = 100_000
#: Messages that arrive between a new stand-by and the next fault.
_STEADY = 20
#: Seconds without what is waited for, after which a run is given up; a stopped holder is waited for as well.
_SILENCE_S = 30.0
#: Seconds between two attempts to attach where a second member is refused, and between two looks at notes.
_RETRY_S, _LOOK_S = 0.005, 0.001


class Fault(StrEnum):
    """What happens to the holder."""

    #: SIGKILL
    KILLED = "killed"
    #: SIGSTOP; it never goes on
    STOPPED = "stopped"
    #: it closes
    CLOSED = "closed"


class Order(StrEnum):
    """What the parent tells a member."""

    JOIN = "join"
    #: keep the next message in hand and wait for the end
    STAND = "stand"
    #: close with the next message in hand, which is not handled
    CLOSE = "close"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One run."""

    #: Messages sent.
    messages: int
    lost: int
    repeated: int
    #: Sorted times in ms from the fault to the next holder's first message, one a round.
    failovers_ms: tuple[float, ...]
    elapsed_s: float


class Notes:
    """What a member had in hand, in shared memory: a count, then pairs of sequence number and time in ns."""

    def __init__(self, cells: MutableSequence[int]) -> None:
        """Use ``cells``, 1 + 2 x `_MOST` unsigned 64-bit numbers."""
        self.cells = cells

    @classmethod
    def new(cls) -> Notes:
        """Return empty notes."""
        return cls(cast("MutableSequence[int]", SPAWN.RawArray(c_uint64, 1 + 2 * _MOST)))

    @property
    def count(self) -> int:
        """Return how many messages were noted."""
        return self.cells[0]

    def add(self, sequence: int) -> None:
        """Note a message. The count comes last: a kill between the two leaves no half note."""
        at = 1 + 2 * self.cells[0]
        self.cells[at] = sequence
        self.cells[at + 1] = time.monotonic_ns()
        self.cells[0] += 1

    def sequences(self) -> list[int]:
        """Return all sequence numbers."""
        return list(self.cells[1 : 1 + 2 * self.count : 2])

    def first_after(self, ns: int) -> int | None:
        """Return the time in ns of the first message noted after ``ns``, None without any."""
        return next((at for at in self.cells[2 : 1 + 2 * self.count : 2] if at > ns), None)


class _Closing(Exception):
    """A member was told to close while it has a message in hand."""


class _Noting(Recorder):
    """A recorder that notes in shared memory, and obeys at the next message."""

    def __init__(self, notes: Notes, pipe: Connection) -> None:
        """Note in ``notes``, obey what comes on ``pipe``."""
        super().__init__(progress=[0], slot=0, target=0, idle_s=0.0)
        self._notes = notes
        self._pipe = pipe
        self._order: object = None

    def more(self) -> bool:
        """Hear what is to be done with the next message; raises EOFError when the parent is gone."""
        if self._pipe.poll():
            self._order = self._pipe.recv()
        return True

    def handle(self, value: bytes) -> None:
        """Note a message, unless it is the one to close with."""
        if self._order is Order.CLOSE:
            raise _Closing
        self._notes.add(payload.sequence(value))
        if self._order is Order.STAND:
            self._stand()

    def _stand(self) -> NoReturn:
        """Say that a message is in hand and wait for the end."""
        self._pipe.send(Order.STAND)
        while True:
            self._pipe.recv()


def member(pipe: Connection, system: str, variant: str, env: Env, cells: MutableSequence[int]) -> None:
    """Run one member; entry point of a child process."""
    try:
        consumer = load(system)(env, variant)
        pipe.send("ready")
        pipe.recv()
        joined = consumer.try_join()
        pipe.send(Order.JOIN)
        while not joined:
            time.sleep(_RETRY_S)
            joined = consumer.try_join()
        try:
            consumer.serve(_Noting(Notes(cells), pipe))
        except _Closing:
            pipe.send(time.monotonic_ns())
            consumer.close()
            pipe.send(Order.CLOSE)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        # The parent is gone or was interrupted: it says so itself.
        return
    except Exception:  # noqa: BLE001 - the parent shows it
        pipe.send(Failure(text=traceback.format_exc()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    """The parent's end of a member."""

    child: Child
    notes: Notes


class _Play:
    """The parent's part of one run."""

    def __init__(self, members: list[_Member], fault: Fault) -> None:
        self._fault = fault
        self._reserve = list(members)
        #: Attached, the longest first.
        self._attached: list[_Member] = []
        for one in members:
            one.child.expect("ready")

    def join(self) -> None:
        """Attach one of the reserve and wait until it is a stand-by (or the first holder)."""
        new = self._reserve.pop(0)
        new.child.pipe.send(Order.JOIN)
        new.child.expect(Order.JOIN)
        self._attached.append(new)

    def await_steady(self) -> None:
        """Wait until messages flow again."""
        wanted = self._noted() + _STEADY
        self._await(lambda: self._noted() >= wanted, "messages flow")

    def fail(self) -> float:
        """Let the holder fail; return the ms until another member had a message."""
        holder = self._attached.pop(0)
        if self._fault is Fault.CLOSED:
            holder.child.pipe.send(Order.CLOSE)
            begun = cast("int", holder.child.expect())
        else:
            holder.child.pipe.send(Order.STAND)
            holder.child.expect(Order.STAND)
            standing = holder.notes.cells[2 * holder.notes.count]
            begun = time.monotonic_ns()
            if others := [one for one in self._attached if one.notes.first_after(standing)]:
                message = f"{others[0].child.name} got a message while {holder.child.name} had one in hand"
                raise BenchmarkError(message)
            number = signal.SIGKILL if self._fault is Fault.KILLED else signal.SIGSTOP
            os.kill(holder.child.process.pid or 0, number)
        found: list[int] = []

        def heard() -> bool:
            found.extend(at for one in self._attached if (at := one.notes.first_after(begun)) is not None)
            return bool(found)

        self._await(heard, f"another member than {holder.child.name}, {self._fault}, had a message")
        if self._fault is Fault.CLOSED:
            holder.child.expect(Order.CLOSE)
        else:
            holder.child.process.kill()
        return (min(found) - begun) / 1e6

    def _noted(self) -> int:
        return sum(one.notes.count for one in self._attached)

    def _await(self, what: Callable[[], bool], text: str) -> None:
        deadline = time.monotonic() + _SILENCE_S
        while not what():
            for one in self._attached:
                one.child.check()
            if time.monotonic() > deadline:
                message = f"waited {_SILENCE_S:.0f} s until {text}: it did not happen"
                raise BenchmarkError(message)
            time.sleep(_LOOK_S)


def _finish(members: list[_Member], sent: int) -> Counter[int]:
    """Wait until all that was sent has arrived or nothing comes any more; return how often each arrived."""
    seen, since = -1, time.monotonic()
    while True:
        counts = Counter(number for one in members for number in one.notes.sequences())
        now = time.monotonic()
        if len(counts) >= sent or now - since > IDLE_S:
            return counts
        if (total := counts.total()) != seen:
            seen, since = total, now
        time.sleep(0.05)


def run(system: str, variant: str, env: Env, *, fault: Fault, rounds: int) -> Outcome:
    """Let holders fail ``rounds`` times.

    Raises:
        BenchmarkError: a member failed, nobody went on, or two members had a message at once.
    """
    load(system).prepare(env, variant)
    begun = time.monotonic()
    members: list[_Member] = []
    children: list[Child] = []
    try:
        for index in range(rounds + 2):
            notes = Notes.new()
            name = f"{system}/{variant} member {index}"
            where = replace(env, member=index)
            child = start(name, member, system, variant, where, notes.cells)
            children.append(child)
            members.append(_Member(child=child, notes=notes))
        at = (env.topic, env.partitions, env.kafka)
        producer = start("producer", source.produce_until_told, *at, RATE, _MOST)
        children.append(producer)
        producer.expect("ready")
        play = _Play(members, fault)
        play.join()
        producer.pipe.send("go")
        failovers: list[float] = []
        for _ in range(rounds):
            play.join()
            play.await_steady()
            failovers.append(play.fail())
        producer.pipe.send("stop")
        sent = cast("int", producer.expect())
        counts = _finish(members, sent)
    finally:
        # Nobody is asked politely: the members serve until they are killed, and some are stopped.
        for child in children:
            child.process.kill()
        for child in children:
            child.stop()
    return Outcome(
        messages=sent,
        lost=sent - len(counts),
        repeated=counts.total() - len(counts),
        failovers_ms=tuple(sorted(failovers)),
        elapsed_s=time.monotonic() - begun,
    )
