"""The faults as data: what each one hits and what the coordinator may have forgotten after it.

How they are made to happen is `breaking.py`; here is only what checks and people need to know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: One member's process.
MEMBER: Final = "member"
#: Redis, or the network before it, for everybody.
REDIS: Final = "redis"
#: Kafka, or the network before it, for everybody.
KAFKA: Final = "kafka"
#: Nothing is broken: an administrator is at work.
ADMIN: Final = "admin"
#: One subscription, because of its topic or of one of its members.
SUBSCRIPTION: Final = "subscription"

#: What Redis is while a fault happens: a single server, a cluster, or either.
SINGLE: Final = "single"
CLUSTER: Final = "cluster"
EITHER: Final = "either"

#: Faults that other files name, too.
NEW_TOPIC: Final = "new-topic"
NEW_PARTITION: Final = "new-partition"
HOSTILE: Final = "hostile"
FORK: Final = "fork"
FEW_FILES: Final = "few-files"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A kind of fault."""

    name: str
    hits: str
    text: str
    #: Acknowledgements confirmed (level `redis`) within so many seconds before it may come again: 0: none,
    #: infinity: all of them. This is the published table of what a confirmation survives.
    forgets: float = 0.0
    #: leases may end by it
    ends_leases: bool = True
    redis: str = EITHER


#: Valkey writes its log before it answers, unless the disk is slower than its background fsync, for at most
#: this long (seconds).
_LATE_WRITES: Final = 2.0

FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault
    for fault in (
        Fault(name="kill", hits=MEMBER, text="SIGKILL of a member"),
        Fault(name="stop", hits=MEMBER, text="SIGSTOP of a member, up to 2.5 sessions, then SIGCONT"),
        Fault(
            name="cut",
            hits=MEMBER,
            text="a member's connections to Redis closed, up to 2 s refused",
            redis=SINGLE,
        ),
        Fault(
            name="hole",
            hits=MEMBER,
            text="a member's bytes to and from Redis held back, up to 2.5 sessions",
            redis=SINGLE,
        ),
        Fault(
            name="delay",
            hits=MEMBER,
            text="a member's bytes to and from Redis later by up to 0.5 s",
            redis=SINGLE,
        ),
        Fault(
            name=FORK, hits=MEMBER, text="a member forks, and the child calls every verb", ends_leases=False
        ),
        Fault(
            name=FEW_FILES,
            hits=MEMBER,
            text="a member's connections closed, and no files left to open new ones",
            redis=SINGLE,
        ),
        Fault(name="flush", hits=REDIS, text="FLUSHALL (of one node)", forgets=math.inf),
        Fault(
            name="redis-restart",
            hits=REDIS,
            text="Valkey killed and started empty",
            forgets=math.inf,
            redis=SINGLE,
        ),
        Fault(
            name="redis-crash",
            hits=REDIS,
            text="Valkey killed and started with its log",
            forgets=_LATE_WRITES,
            redis=SINGLE,
        ),
        Fault(
            name="node-kill",
            hits=REDIS,
            text="a primary of the cluster killed, and started when its replica has taken over",
            forgets=_LATE_WRITES,
            redis=CLUSTER,
        ),
        Fault(
            name="node-hang",
            hits=REDIS,
            text="SIGSTOP of a primary of the cluster until its replica has taken over",
            forgets=_LATE_WRITES,
            redis=CLUSTER,
        ),
        Fault(
            name="slot-move",
            hits=REDIS,
            text="the slot of a subscription moved to another primary",
            redis=CLUSTER,
        ),
        Fault(
            name="damage",
            hits=REDIS,
            text="a key or record of one subscription deleted, overwritten, or replaced by an older copy",
            forgets=math.inf,
        ),
        Fault(
            name="redis-cut",
            hits=REDIS,
            text="everybody's connections to Redis closed at once",
            redis=SINGLE,
        ),
        Fault(
            name="redis-hole", hits=REDIS, text="everybody's bytes to and from Redis held back", redis=SINGLE
        ),
        Fault(name="kafka-cut", hits=KAFKA, text="all connections to Kafka closed, up to 2 s refused"),
        Fault(name="kafka-hole", hits=KAFKA, text="all bytes to and from Kafka held back, up to 4 s"),
        Fault(name="kafka-delay", hits=KAFKA, text="all bytes to and from Kafka later by up to 0.5 s"),
        Fault(name="broker-restart", hits=KAFKA, text="the broker killed, or stopped, and started again"),
        Fault(name="pause", hits=ADMIN, text="a subscription paused and resumed", ends_leases=False),
        Fault(name=NEW_PARTITION, hits=SUBSCRIPTION, text="a partition added to a topic", ends_leases=False),
        Fault(name=NEW_TOPIC, hits=SUBSCRIPTION, text="a topic deleted and created anew, then written to"),
        Fault(name=HOSTILE, hits=SUBSCRIPTION, text="a member whose requests are made of any values"),
    )
}


def possible(*, cluster: bool) -> tuple[str, ...]:
    """All faults that can happen to a single Redis server, or to a cluster."""
    ours = (EITHER, CLUSTER if cluster else SINGLE)
    return tuple(name for name, fault in FAULTS.items() if fault.redis in ours)


def selected(names: str, *, cluster: bool = False) -> tuple[str, ...]:
    """The faults that a list with commas names; `all` are all. Raises ValueError for one there is not."""
    if names == "all":
        return possible(cluster=cluster)
    chosen = tuple(name for name in names.split(",") if name and name != "none")
    known = possible(cluster=cluster)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        msg = f"there is no fault {unknown[0]!r}: use all, none, or some of {', '.join(known)}"
        raise ValueError(msg)
    return chosen
