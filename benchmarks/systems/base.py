"""The protocol between the harness and a system under measurement. The systems lie beside this file.

One object of a `System` is one consumer in one worker process; the harness calls, in this order::

    System.prepare(env, variant)      in the parent, once a run, before any worker: groups
    system = System(env, variant)     in each worker: imports, clients; nothing is attached yet
    system.join()                     attach; returns when it could receive (all members at once); of a
                                      backlog nothing is read ahead (`BACKLOG`)
      system.held                     messages that came on the way and wait for the loop
      -- all workers have joined; the clock is armed, it starts at the first message received --
    system.drain(recorder) | .window1(recorder) | .serve(recorder) | .attach(recorder)
    system.settle()                   make all that was handled confirmed, inside the clock
    system.figures()                  what only the system knows, for example script calls
    system.close()                    after the clock
    system.closing_figures()          what is known only then, for example bytes read

The loops may be called again with a raised target when repeats took the place of missing messages.
A loop has this shape (see `benchmarks.recorder.Recorder`)::

    while recorder.more():
        messages = consumer.consume(recorder.room(1_000), 0.01)      # short: `more` watches the others
        recorder.batch([message.value() for message in messages])    # a list of payload bytes, nothing else
        confirm(messages)

or, where a call to `more` for each message would cost too much (a lane at a million a second)::

    for message in stream:
        going = recorder.one(message.value)
        message.ack_nowait()
        if not going and not recorder.more():
            break
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.recorder import Recorder


#: Session time-out of the members of the failover, seconds: so long a stopped holder is waited for.
FAILOVER_SESSION_S = 2.0


class Workload(StrEnum):
    """What can be measured."""

    DRAIN = "drain"
    WINDOW1 = "window1"
    TURNS = "turns"
    FANOUT = "fanout"
    LATENCY = "latency"
    FIRST = "first"
    FAILOVER = "failover"
    AMPLIFICATION = "amplification"


#: Workloads of a backlog: nothing of it may be read from Kafka before the loop begins.
BACKLOG = frozenset({Workload.DRAIN, Workload.WINDOW1})


class Store(StrEnum):
    """Where the backlog of a system lies; the harness fills it."""

    KAFKA = "kafka"
    REDIS = "redis"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One way to use a system."""

    name: str
    #: What is confirmed when, in a few words; printed beside the figures.
    confirmed: str
    #: Fraction of the workload's messages this variant gets: slow ones would otherwise take minutes.
    fraction: float = 1.0
    #: Numbers of member processes the variant is measured with; None means whatever the workload asks for.
    members: tuple[int, ...] | None = None
    #: The case that the variant is measured with, by its label; None means all of the workload.
    case: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Env:
    """Where a run takes place; equal in all its workers except for ``member``."""

    #: Bootstrap servers of Kafka, "host:port".
    kafka: str
    #: URL of Redis/Valkey.
    redis: str
    #: Topic (Kafka) or stream key (Redis) that holds the messages.
    topic: str
    #: Partitions of the topic.
    partitions: int
    #: A name no earlier run has used: consumer group, subscription.
    group: str
    #: Number of member processes.
    members: int
    #: Index of this member, from 0; -1 in the parent.
    member: int
    #: The workload of this run.
    workload: Workload
    #: Records that may be in a member's hands; only where the case says so (turns).
    window: int = 1


class System(abc.ABC):
    """One consumer of one system; see the module for the order of calls."""

    #: Name in tables, goals and on the command line.
    name: ClassVar[str]
    #: Where the messages are read from.
    store: ClassVar[Store]
    #: Latency: seconds of messages sent before samples count (a system with a slow join needs more).
    warmup_s: ClassVar[float] = 1.0

    @classmethod
    @abc.abstractmethod
    def variants(cls, workload: Workload) -> tuple[Variant, ...]:
        """Return the variants measured in a workload; an empty tuple when it makes no sense here."""

    @classmethod  # noqa: B027 - most systems need nothing
    def prepare(cls, env: Env, variant: str) -> None:
        """Create what the members share; runs in the parent, must leave no thread or connection behind."""

    @abc.abstractmethod
    def __init__(self, env: Env, variant: str) -> None:
        """Make the client objects of one member."""

    @abc.abstractmethod
    def join(self) -> None:
        """Attach and return when messages can come. Messages received on the way are kept for the loop."""

    @abc.abstractmethod
    def drain(self, recorder: Recorder) -> None:
        """Take messages as fast as possible and settle every one as the variant says."""

    @abc.abstractmethod
    def window1(self, recorder: Recorder) -> None:
        """Take one message at a time; the next only after the one before was settled as the variant says."""

    @abc.abstractmethod
    def serve(self, recorder: Recorder) -> None:
        """Pass each message to ``recorder.handle``, which may sleep, then settle it.

        The loop of the fan-out, the latency, the failover and the amplification.
        """

    def attach(self, recorder: Recorder) -> None:
        """Round after round: attach, pass the first message to ``recorder.arrived``, settle it, leave.

        The connection stays; a round goes on behind the one before it. Only for systems with variants of the
        workload first.
        """
        raise NotImplementedError

    def try_join(self) -> bool:
        """Join as a stand-by; False when it was refused because somebody else is the holder (failover)."""
        self.join()
        return True

    @property
    def held(self) -> int:
        """Return how many messages `join` received and kept; they are no part of a drain's rate."""
        return 0

    def settle(self) -> None:  # noqa: B027 - most variants leave nothing
        """Confirm what the loop left unconfirmed; the default is for systems that leave nothing."""

    def figures(self) -> Mapping[str, float]:
        """Return further figures of this member, such as ``script_calls``; summed over members."""
        return {}

    @abc.abstractmethod
    def close(self) -> None:
        """Detach and free everything."""

    def closing_figures(self) -> Mapping[str, float]:
        """Return figures that are complete only after `close`, such as ``fetched_bytes``; summed likewise."""
        return {}
