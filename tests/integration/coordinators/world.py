"""A subscription on a real Valkey under a clock of the test's own, and members that speak to scripts.

Nothing is asserted here. Kafka takes no part: offsets are numbers that the tests make up.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from kafkadur.stack import as_administrator
from kafkadur_coordinators.interface import (
    Attached,
    Exchange,
    ExchangeReply,
    Grant,
    How,
    Inspection,
    LeaseView,
    MemberKind,
    PartitionReport,
    PartitionView,
    Returned,
    Settled,
)
from kafkadur_coordinators.redis.coordinator import (
    STATE_VERSION,
    STATE_VERSION_BEFORE,
    RedisCoordinator,
    Refusal,
    SubscriptionAddress,
)
from kafkadur_coordinators.redis.member_session import MemberSession
from kafkadur_coordinators.redis.rows import PartitionRow
from kafkadur_coordinators.redis.wire import InstallRequest, Laid, Policy, Reply
from tests.integration.coordinators import stored

TOPIC_ID = "topic-1"
SESSION_MS = 10_000
#: Where the test clock begins, ms: a time of today's size, since sizes are what packing gets wrong.
BEGIN_MS = 1_790_000_000_000


class Clock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = BEGIN_MS

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        self.now += ms


class Ears:
    """One connection that listens on channels, as the process of some members does."""

    def __init__(self, url: str) -> None:
        client: Any = redis.Redis.from_url(url, protocol=2)
        self._client = client
        self._connection: Any = client.connection_pool.get_connection()
        self.channels: set[str] = set()

    def listen(self, channel: str) -> None:
        self._send("SSUBSCRIBE", channel)
        self.channels.add(channel)

    def forget(self, channel: str) -> None:
        self._send("SUNSUBSCRIBE", channel)
        self.channels.discard(channel)

    def _send(self, command: str, channel: str) -> None:
        self._connection.send_command(command, channel)
        while self._connection.read_response()[0] != command.lower().encode():
            pass  # what was published in the meantime

    def heard(self) -> list[str]:
        """What was published on the channels until now, as a list of channels."""
        return [channel for channel, _ in self.messages()]

    def messages(self) -> list[tuple[str, bytes]]:
        """What was published until now: channel and message."""
        self._connection.send_command("PING")
        found: list[tuple[str, bytes]] = []
        while True:
            answer = self._connection.read_response()
            if not isinstance(answer, list) or answer[0] == b"pong":
                return found
            if answer[0] == b"smessage":
                found.append((answer[1].decode(), answer[2]))

    def close(self) -> None:
        """Close the connection, as the death of its process does."""
        self._connection.disconnect()
        self._client.close()


@dataclass(repr=False)
class Member:
    """One member as its process sees it."""

    world: "World"
    id: str
    session: MemberSession
    attached: Attached
    number: int = 0
    have: int = 0
    #: token -> lease as it was granted
    grants: dict[int, Grant] = field(default_factory=dict[int, Grant])
    last: Exchange | None = None

    def __repr__(self) -> str:
        return self.id

    def build(
        self,
        *parts: PartitionReport,
        credit: int = 0,
        span: int = 10,
        ask: bool = False,
    ) -> Exchange:
        """The next exchange, numbered."""
        self.number += 1
        self.last = Exchange(
            number=self.number, credit=credit, have=self.have, ask_presence=ask, span=span, parts=parts
        )
        return self.last

    def say(
        self, *parts: PartitionReport, credit: int = 0, span: int = 10, ask: bool = False
    ) -> ExchangeReply:
        """Make the next exchange and remember what it brought."""
        return self.send(self.build(*parts, credit=credit, span=span, ask=ask))

    def send(self, exchange: Exchange) -> ExchangeReply:
        """Send an exchange, new or again, and remember what it brought."""
        reply = self.session.exchange(exchange)
        self.have = max(self.have, reply.token)
        self.grants |= {grant.token: grant for grant in reply.grants}
        for token in reply.refused:
            self.grants.pop(token, None)
        return reply

    def detach(self, *partitions: int) -> None:
        self.session.detach(partitions)

    @property
    def channel(self) -> str:
        return self.world.address.channel(self.id)


class World:
    """A subscription of its own."""

    def __init__(
        self, url: str, *, type_: str = "shared", partitions: int = 1, state_version: int = STATE_VERSION
    ) -> None:
        self.url = url
        self.is_before = state_version == STATE_VERSION_BEFORE
        self.clock = Clock()
        self.calls: list[tuple[str, Sequence[object], Sequence[object]]] = []
        self.coordinator = RedisCoordinator(
            url,
            clock=self.clock,
            state_version=state_version,
            recorder=lambda *call: self.calls.append(call),
        )
        self.address = SubscriptionAddress(prefix="kafkadur", namespace="test", tag=uuid.uuid4().hex[:16])
        self.id = f"0.{uuid.uuid4().hex[:6]}"
        self.type = type_
        self.partitions = partitions
        self.version = 0
        #: as `Policy`; its last fields may be left out
        self.policy: Sequence[int] = (0, 0, 0, 0, 1)
        self.ears = Ears(url)

    def close(self) -> None:
        self.ears.close()
        self.coordinator.close()

    @property
    def state(self) -> str:
        """The key of all that is stored of the subscription."""
        return self.address.fixed()[0]

    # -- the definition

    def run(self, name: str, *request: object, partitions: Sequence[int] = ()) -> Reply:
        """Run a script with the common part of a request before `request`; the reply whatever its code."""
        keys = self.address.fixed()
        for partition in partitions:
            keys += self.keys(partition)
        common = self.coordinator.common(subscription_id="" if self.version == 0 else self.id)
        return self.coordinator.run(name, keys, [*common, *request])

    def keys(self, partition: int) -> list[str]:
        """State, bits and runs of a partition."""
        return self.address.partition(self.id, TOPIC_ID, partition)

    def put(self, token: str, *, starts: Sequence[int] = (), seen: int = 0) -> Reply:
        """Give all partitions their first state."""
        replies = []
        for first in range(0, self.partitions, 16):
            group = range(first, min(first + 16, self.partitions))
            parts = [Laid(p, starts[p] if starts else 0, seen, runs=b"", due_at=-1) for p in group]
            replies.append(
                self.run("partitions", parts, token, self.partitions, int(token != ""), partitions=group)
            )
        return replies[-1]

    def install(self, token: str, *, version: int, incarnation: int = 1, grace: int = 0) -> Reply:
        return self.run(
            "install",
            *InstallRequest(
                id=self.id,
                version=version,
                definition='{"topic_id": "topic-1"}',
                type=self.type,
                partitions=self.partitions,
                incarnation=incarnation,
                token=token,
                quiet=grace,
                policy=Policy(*self.policy, *(0,) * (len(Policy._fields) - len(self.policy))),
                anew=0,
                unclaimed=0,
            ),
        )

    def create(self, *, starts: Sequence[int] = ()) -> "World":
        """Create the subscription as `lifecycle.py` does, without a journal."""
        assert self.run("change", 0, "first", 20_000).code == "OK"
        assert self.put("first", starts=starts).code == "OK"
        assert self.install("first", version=1).code == "OK"
        self.version = 1
        return self

    # -- members

    def session(self, member: str) -> MemberSession:
        return MemberSession(
            self.coordinator, self.address, subscription_id=self.id, state=TOPIC_ID, member=member
        )

    def attach(
        self,
        member: str | None = None,
        *,
        listening: bool = True,
        most: int | None = None,
        kind: MemberKind = "",
        session_ms: int = SESSION_MS,
        transacted: bool = False,
    ) -> Member:
        """Attach a member, heard on its channel unless told otherwise."""
        name = member or f"m-{uuid.uuid4().hex[:8]}"
        if listening:
            self.ears.listen(self.address.channel(name))
        session = self.session(name)
        limit = (1 if self.type == "exclusive" else 0) if most is None else most
        attached = session.attach(
            name=f"name of {name}",
            session_ms=session_ms,
            version=self.version,
            most=limit,
            kind=kind,
            transacted=transacted,
        )
        return Member(world=self, id=name, session=session, attached=attached)

    # -- looking

    def inspect(self) -> Inspection:
        """All partitions (at most 16) and all leases."""
        return self.coordinator.inspect(self.address, self.id, TOPIC_ID, range(min(self.partitions, 16)))

    def partition(self, partition: int = 0) -> PartitionView:
        return self.inspect().partitions[partition]

    def leases(self) -> dict[int, LeaseView]:
        return {lease.token: lease for lease in self.inspect().leases}

    def dump(self) -> dict[bytes, object]:
        """Everything that is stored for this subscription."""
        client: Any = redis.Redis.from_url(as_administrator(self.url), protocol=2)
        found: dict[bytes, object] = {}
        with client:
            for key in client.scan_iter(match=f"{self.address.root}*", count=1000):
                kind = client.type(key)
                if kind == b"hash":
                    found[key] = client.hgetall(key)
                elif kind == b"zset":
                    found[key] = client.zrange(key, 0, -1, withscores=True)
                else:
                    found[key] = client.get(key)
        return found

    def field(self, name: str) -> str:
        """A field of the subscription's own record; empty if it is not there."""
        command = self.coordinator.command
        if self.is_before:
            value = command("HGET", self.state, name) or b"0"
        else:
            value = getattr(stored.read(command, self.state), name)
        return value.decode() if isinstance(value, bytes) else str(value)

    def change(self, **changed: Any) -> None:
        """Change values of the subscription's own record."""
        if self.is_before:
            self._set(self.state, changed)
        else:
            stored.change(self.coordinator.command, self.state, **changed)

    def change_partition(self, partition: int, **changed: Any) -> None:
        """Change values of a partition, by their names in `rows.py`."""
        if self.is_before:
            self._set(self.keys(partition)[0], changed)
        else:
            stored.change(self.coordinator.command, self.state, f"p:{partition}", PartitionRow, **changed)

    def _set(self, key: str, changed: dict[str, Any]) -> None:
        for name, value in changed.items():
            self.coordinator.command("HSET", key, name, value)

    def change_runs(self, partition: int, first: int, change: Callable[[bytes], bytes]) -> None:
        """Change the block of exceptions that begins with this offset."""
        command = self.coordinator.command
        if self.is_before:
            runs = self.keys(partition)[2]
            command("SET", runs, change(command("GET", runs)))
        else:
            field = f"r:{partition}:{first}"
            command("HSET", self.state, field, change(command("HGET", self.state, field)))

    def watcher(self, partition: int) -> str:
        """Member that reports how far a partition is readable."""
        place = (
            (self.address.fixed()[6], str(partition)) if self.is_before else (self.state, f"w:{partition}")
        )
        found: bytes = self.coordinator.command("HGET", *place)
        return found.decode()


def report(partition: int = 0, **fields: Any) -> PartitionReport:
    """What a member says of one partition."""
    return PartitionReport(partition=partition, **fields)


def settled(token: int, *bounds: int) -> Settled:
    """Settled ranges: start, end, start, end, ..."""
    return Settled(token, bounds)


def blob(token: int, offsets: Sequence[int]) -> Settled:
    """Settled offsets as a bitmap."""
    first = min(offsets) - min(offsets) % 8
    bits = bytearray((max(offsets) - first) // 8 + 1)
    for offset in offsets:
        bits[(offset - first) // 8] |= 128 >> (offset - first) % 8
    return Settled(token, (), first, bytes(bits))


def unread(token: int, start: int, end: int) -> Returned:
    return Returned(token, start, end, int(How.UNREAD))


def released(token: int, start: int, end: int) -> Returned:
    return Returned(token, start, end, int(How.RELEASED))


def rolled_back(token: int, start: int, end: int, delay: int = 0) -> Returned:
    return Returned(token, start, end, int(How.ROLLED_BACK), delay)


def refusal(call: Callable[[], object]) -> Refusal | None:
    """The refusal that a call ends in; None if it does not."""
    try:
        call()
    except Refusal as refused:
        return refused
    return None


def views(world: World) -> list[PartitionView]:
    """All partitions, also where there are more than one call takes."""
    return [
        view
        for first in range(0, world.partitions, 16)
        for view in world.coordinator.inspect(
            world.address, world.id, TOPIC_ID, range(first, min(first + 16, world.partitions))
        ).partitions
    ]
