"""Looking at a subscription from outside: what the coordinator says of it, against the end of the topic."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import kafkadur.sync
from examples.demo.crew import DemoError
from kafkadur.admin.explain import Log, backlog
from kafkadur_coordinators.interface import MemberInfo
from kafkadur_coordinators.redis.coordinator import RedisCoordinator, SubscriptionAddress


@dataclass(frozen=True, kw_only=True)
class MemberView:
    """A member at one moment."""

    name: str
    #: Whether its process is there.
    heard: bool
    #: Offsets leased to it.
    in_flight: int


@dataclass(frozen=True, kw_only=True)
class View:
    """A subscription at one moment."""

    #: When, monotonic seconds.
    at: float
    members: Sequence[MemberView]
    #: Partition -> lowest unsettled offset.
    floors: Mapping[int, int]
    #: Messages that are not settled, up to the end of the topic.
    backlog: int
    #: Messages in the lists of exceptions: rolled back, or left by a member that died.
    exceptions: int

    @property
    def in_flight(self) -> int:
        """Offsets leased to anybody."""
        return sum(member.in_flight for member in self.members)

    @property
    def floor(self) -> int:
        """All floors added up: messages below which nothing is open."""
        return sum(self.floors.values())


class Watch:
    """Reads the state of one subscription, over a connection of its own."""

    def __init__(self, connection: kafkadur.sync.Connection, durable: str, ends: Mapping[int, int]) -> None:
        """`ends`: partition -> end offset in Kafka; nothing is written to the topic any more."""
        key = connection.key(durable)
        self._name = durable
        self._ends = ends
        self._address = SubscriptionAddress(
            prefix=connection.settings.prefix, namespace=key.namespace, tag=key.tag
        )
        self._coordinator = RedisCoordinator(connection.settings.redis)

    def __enter__(self) -> Self:
        """Connect."""
        self._coordinator.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        self._coordinator.close()

    def members(self) -> Sequence[MemberInfo]:
        """Who is attached."""
        return self._coordinator.peek(self._address).members

    def view(self) -> View:
        """The state now; raises `DemoError` if the coordinator does not know all partitions."""
        known = self._coordinator.peek(self._address)
        topic_id = json.loads(known.definition)["topic_id"]
        found = self._coordinator.inspect(self._address, known.id, topic_id, sorted(self._ends))
        if {part.partition for part in found.partitions} != set(self._ends):
            raise DemoError(f"The coordinator does not know all partitions of {self._name}.")
        leased = {
            member.id: sum(
                min(lease.horizon, self._ends[lease.partition])
                - min(lease.start, self._ends[lease.partition])
                for lease in found.leases
                if lease.member == member.id
            )
            for member in known.members
        }
        return View(
            at=time.monotonic(),
            members=[
                MemberView(name=member.name, heard=member.heard, in_flight=leased[member.id])
                for member in known.members
            ],
            floors={part.partition: part.floor for part in found.partitions},
            backlog=sum(
                backlog(part, Log(start=0, end=self._ends[part.partition])) for part in found.partitions
            ),
            exceptions=sum(run.end - run.start for part in found.partitions for run in part.exceptions),
        )

    def drained(self, view: View) -> bool:
        """Whether everything up to the end of the topic is settled."""
        return not view.exceptions and dict(view.floors) == dict(self._ends)
