"""One process as the tests of lifecycles see it: its own clients, on a clock that waiting moves on."""

from typing import Any

import redis
from confluent_kafka import Producer

from kafkadur.stack import as_administrator
from kafkadur_coordinators.changes import CHANGE_MS
from kafkadur_coordinators.interface import Exchange, ExchangeReply, Known, PartitionReport, in_groups
from kafkadur_coordinators.journal.records import Change, in_force
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_coordinators.lifecycle import Lifecycle, Membership
from kafkadur_coordinators.redis.coordinator import STATE_VERSION, RedisCoordinator
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.decisions import Request
from kafkadur_sharing.definition import Definition, SubscriptionType
from kafkadur_sharing.keys import SubscriptionKey
from tests.integration.coordinators.world import Clock, Ears

SESSION_MS = 10_000


class Party:
    """One process: its own clients, on a clock that waiting moves on."""

    def __init__(
        self,
        url: str,
        kafka: str,
        namespace: str,
        clock: Clock | None,
        *,
        state_version: int = STATE_VERSION,
    ) -> None:
        self.url = url
        self.kafka = kafka
        self.clock = clock
        self.namespace = namespace
        self.coordinator = RedisCoordinator(url, clock=clock, state_version=state_version)
        self.journal = Journal({"bootstrap.servers": kafka}, namespace, shards=2)
        self.topics = Topics({"bootstrap.servers": kafka})
        times: dict[str, Any] = {}
        if clock is not None:
            times = {
                "monotonic": lambda: clock.now / 1000,
                "wait": lambda s: clock.advance(int(s * 1000) + 1),
            }
        self.lifecycle = Lifecycle(
            coordinator=self.coordinator,
            journal=self.journal,
            topics=self.topics,
            prefix="kafkadur",
            session_ms=SESSION_MS,
            **times,
        )
        self.ears = Ears(url)

    def key(self, name: str = "invoices") -> SubscriptionKey:
        return SubscriptionKey(namespace=self.namespace, client_id="c", name=name)

    def attach(
        self, topic: str, member: str = "m", *, type_: str = "shared", listening: bool = True, **details: Any
    ) -> Membership:
        definition = Definition(type=SubscriptionType(type_), topic=topic, **details)
        return self.lifecycle.attach(
            Request(key=self.key(), definition=definition, on_change="replace"),
            member=member,
            name=f"name of {member}",
            before=lambda address: self.ears.listen(address.channel(member)) if listening else None,
        )

    def subscribe(self, key: SubscriptionKey, topic: str) -> None:
        """Create a shared subscription from the beginning of a topic, and leave it."""
        definition = Definition(type=SubscriptionType.SHARED, topic=topic, start="earliest")
        request = Request(key=key, definition=definition)
        self.leave(self.lifecycle.attach(request, member="creator", name="creator"))

    def leave(self, membership: Membership) -> None:
        membership.session.detach(range(min(membership.attached.role.partitions, 16)))

    def known(self) -> Known | None:
        return self.lifecycle.known(self.key())

    def in_force(self) -> tuple[int, str, Change]:
        shard = self.journal.shard(self.key().tag)
        found = in_force(self.journal.read(shard), self.key().tag, shard)
        assert found is not None
        return found.version, found.id, found.change

    def stored(self, begin: str = "") -> set[str]:
        """Keys of the subscription without what they share, or fields of its state that begin so."""
        address = self.lifecycle.address(self.key())
        client: Any = redis.Redis.from_url(as_administrator(self.url))
        with client:
            if begin:
                fields = {field.decode() for field in client.hkeys(address.fixed()[0])}
                return {field for field in fields if field.startswith(begin)}
            keys = client.scan_iter(match=f"{address.root}*", count=1000)
            return {key.decode().removeprefix(address.root) for key in keys}

    def begin_change(self, version: int, token: str = "abandoned") -> None:
        """Begin a change, and never go on with it."""
        address = self.lifecycle.address(self.key())
        self.coordinator.call(
            "change", address.fixed(), [*self.coordinator.common(), version, token, CHANGE_MS]
        )

    def floors(self, membership: Membership) -> list[int]:
        subscription = membership.subscription
        partitions = range(membership.attached.role.partitions)
        address, topic_id = subscription.address, subscription.topic.id
        seen = (
            self.coordinator.inspect(address, subscription.id, topic_id, group)
            for group in in_groups(partitions)
        )
        return [view.floor for part in seen for view in part.partitions]

    def close(self) -> None:
        self.ears.close()
        self.journal.close()
        self.coordinator.close()
        self.topics.close()


def produce(kafka: str, topic: str, counts: list[int]) -> None:
    producer = Producer({"bootstrap.servers": kafka, "max.in.flight": 1})  # in order
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(topic, value=b"%d" % number, partition=partition)
    assert producer.flush(10) == 0


def say(membership: Membership, number: int, *parts: PartitionReport, credit: int = 10) -> ExchangeReply:
    return membership.session.exchange(
        Exchange(number=number, credit=credit, have=0, ask_presence=False, span=10, parts=parts)
    )


def wipe(url: str) -> None:
    client: Any = redis.Redis.from_url(as_administrator(url))
    with client:
        client.flushall()
