"""What the tests of subscriptions share and is no fixture: a place to work in, taking deliveries, waiting.

Values are the texts of numbers from 1 on, which the window tables call e1, e2, ...
"""

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.cimpl import NewTopic

import kafkadur
import kafkadur.sync
from kafkadur.fetch.fetchers import Fetchers
from kafkadur.fetch.key_router import KeyRouter
from kafkadur.fetch.tail_fetcher import TailFetcher
from kafkadur.stack import Stack
from kafkadur.stack.kafka import quiet_admin
from kafkadur.testing.pytest_plugin import TopicFactory, takes_messages

#: Seconds within which anything that is to happen must have happened.
LIMIT_S = 180.0
#: What comes sooner, seconds, was told at once: who is not woken asks by itself after half a session, 5 s.
SOON_S = 3.0
#: Seconds of silence that show that nothing comes.
SILENCE_S = 0.3

#: A lane of type priority without a second member shows what an exclusive one shows.
PRIORITY_TOO = pytest.param("priority", marks=pytest.mark.long)
#: As one of type serial does where nobody takes turns.
SERIAL_TOO = pytest.param("serial", marks=pytest.mark.long)

V = TypeVar("V")
K = TypeVar("K")

TYPES = ("shared", "exclusive")
both_types = pytest.mark.parametrize("kind", TYPES)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A running stack, and a namespace and topics of one test's own."""

    stack: Stack
    make_topic: TopicFactory
    namespace: str
    raw: confluent_kafka.Producer

    def settings(self, **more: Any) -> dict[str, Any]:
        """Settings of a connection to this place."""
        usual = {
            "kafka": self.stack.kafka,
            "redis": self.stack.redis,
            "client_id": "c1",
            "client_id_policy": "unrestricted",  # tests open several connections, and kill some
            "namespace": self.namespace,
            "journal_partitions": 2,
        }
        return usual | more

    def connect(self, **more: Any) -> kafkadur.Connection:
        """An asynchronous connection; settings as `kafkadur.connect` takes them."""
        return kafkadur.connect(**self.settings(**more))

    def connect_sync(self, **more: Any) -> kafkadur.sync.Connection:
        """A synchronous connection; settings as `kafkadur.connect` takes them."""
        return kafkadur.sync.connect(**self.settings(**more))

    def publish(self, topic: str, numbers: Iterable[int], *, partition: int = 0) -> None:
        """Publish numbers as text to one partition and wait until Kafka has them."""
        self.publish_values(topic, [str(number).encode() for number in numbers], partition=partition)

    def publish_values(self, topic: str, values: Iterable[bytes], *, partition: int = 0) -> None:
        """Publish values to one partition and wait until Kafka has them."""
        errors: list[object] = []

        def report(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
            if error is not None:
                errors.append(error)

        for index, value in enumerate(values):
            self.raw.produce(topic, value, partition=partition, on_delivery=report)
            if index == 0:  # a new topic may refuse the first request: nothing follows before it is in
                assert self.raw.flush(LIMIT_S) == 0
        assert self.raw.flush(LIMIT_S) == 0
        assert errors == []

    def topic(self, numbers: Iterable[int] = (), *, partitions: int = 1, **config: object) -> str:
        """A new topic, with these numbers in partition 0."""
        name = self.make_topic(partitions, **config)
        self.publish(name, numbers)
        return name


def ordered_producer(kafka: str) -> confluent_kafka.Producer:
    """A plain producer whose messages lie in Kafka as they were sent, after the first of a new topic.

    A new topic may refuse the first request, which is then sent again. If a second request is queued, its
    messages lie before those of the first; so who publishes waits for the first message. With idempotence
    messages would be lost: the broker accepts the second request of a producer it does not know, and takes
    the repeated first one for a duplicate. It logs nothing: it may exist for longer than its broker.
    """
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": kafka,
            "linger.ms": 0,
            "max.in.flight.requests.per.connection": 1,
            "log_level": 0,
        }
    )


def topic_id(admin: Any, topic: str) -> str:
    """The id of a topic as the broker knows it; empty: it knows none."""
    try:
        return str(admin.describe_topics(TopicCollection([topic]))[topic].result(LIMIT_S).topic_id)
    except KafkaException:
        return ""


def remove(admin: Any, topic: str) -> None:
    """Delete a topic, and wait until the broker knows that: it learns of it from the controller."""
    admin.delete_topics([topic])[topic].result(LIMIT_S)
    wait_until(lambda: topic_id(admin, topic) == "", "the topic gone")


def make_anew(admin: Any, topic: str) -> None:
    """Delete a topic and create it again, with one partition; it takes messages then.

    The broker learns of both from the controller, and until then answers for the old one.
    """
    old = topic_id(admin, topic)
    admin.delete_topics([topic])[topic].result(LIMIT_S)

    def made() -> bool:
        return admin.create_topics([NewTopic(topic, 1, 1)])[topic].exception(LIMIT_S) is None

    wait_until(made, "the topic created again")
    wait_until(lambda: topic_id(admin, topic) not in ("", old), "the new topic known to the broker")
    wait_until(lambda: takes_messages(admin, topic, 1), "a topic that takes messages")


@contextlib.contextmanager
def place_on(stack: Stack) -> Generator[Place]:
    """A place on a stack of the test's own: a namespace, topics (removed by nobody) and a producer."""
    raw = ordered_producer(stack.kafka)
    admin = quiet_admin(stack.kafka)

    def make(partitions: int = 1, **config: object) -> str:
        assert not config
        name = f"t-{uuid.uuid4().hex}"
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(LIMIT_S)
        wait_until(lambda: takes_messages(admin, name, partitions), "a topic that takes messages")
        return name

    yield Place(stack=stack, make_topic=make, namespace=f"n-{uuid.uuid4().hex}", raw=raw)
    assert raw.flush(LIMIT_S) == 0


def number(delivery: kafkadur.Delivery | kafkadur.sync.Delivery) -> int:
    """The number that a delivery carries."""
    assert delivery.value is not None
    return int(delivery.value)


def numbers(deliveries: Iterable[kafkadur.Delivery | kafkadur.sync.Delivery]) -> list[int]:
    """The numbers that deliveries carry."""
    return [number(delivery) for delivery in deliveries]


async def next_of(subscription: kafkadur.Subscription[V, K]) -> kafkadur.Delivery[V, K]:
    """The next delivery; fails the test when none comes."""
    delivery = await subscription.receive(timeout=LIMIT_S)
    if delivery is None:
        pytest.fail(f"no delivery within {LIMIT_S:g} s: {subscription.statistics()}")
    return delivery


async def take(subscription: kafkadur.Subscription, count: int) -> list[kafkadur.Delivery]:
    """The next `count` deliveries."""
    return [await next_of(subscription) for _ in range(count)]


async def nothing(subscription: kafkadur.Subscription[object, object]) -> None:
    """Fail the test when a delivery comes within `SILENCE_S`."""
    delivery = await subscription.receive(timeout=SILENCE_S)
    assert delivery is None, delivery


async def ack_all(deliveries: Iterable[kafkadur.Delivery]) -> None:
    """Acknowledge each and wait until all are confirmed."""
    await asyncio.gather(*(delivery.ack() for delivery in deliveries))


async def ready(connection: kafkadur.Connection, durable: str, members: int) -> None:
    """Wait until so many attached members have told the coordinator that they have room."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        known = await connection.known(durable)
        if known is not None and sum(member.credit > 0 for member in known.members) == members:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"{members} members with room: not within {LIMIT_S:g} s; {known}")
        await asyncio.sleep(0.005)


def tail_of(connection: kafkadur.Connection, subscription: kafkadur.Subscription[V, K]) -> TailFetcher:
    """Return what reads Kafka for a subscription, to disturb it."""
    readers = connection._opened.members._reading  # type: ignore[union-attr]  # noqa: SLF001 - no public way
    readers_of_member = readers[subscription.member_id]
    if isinstance(readers_of_member, KeyRouter):
        readers_of_member = readers_of_member._readers  # noqa: SLF001 - as above
    assert isinstance(readers_of_member, Fetchers)
    tail = readers_of_member._tail  # noqa: SLF001 - as above
    assert tail is not None, "it shares one with others"
    return tail


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll a real condition; fail the test with `what` when it does not come true in time."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {LIMIT_S:g} s")
        time.sleep(0.005)


def speaks(error: kafkadur.KafkadurError, *words: str) -> None:
    """Check that an error says state, owner and remedy, and these words."""
    assert error.state, str(error)
    assert error.owner, str(error)
    assert error.remedy, str(error)
    for word in (*words, error.owner, error.remedy):
        assert word in str(error)


def duplicates(values: Sequence[int]) -> set[int]:
    """The values that are there more than once."""
    return {value for value, count in Counter(values).items() if count > 1}


def dead_letters(place: Place, topic: str, count: int) -> list[confluent_kafka.Message]:
    """The first dead letters of a topic; fails when there are not so many in time, or more."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": place.stack.kafka,
            "group.id": f"{place.namespace}-dead",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partition = confluent_kafka.TopicPartition(f"{topic}.dead", 0, 0)
        consumer.assign([partition])
        found: list[confluent_kafka.Message] = []
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is None:
                found.append(message)
            elif len(found) >= count:
                break
        assert len(found) == count, [message.value() for message in found]
        return found
    finally:
        consumer.close()


async def promised(subscription: kafkadur.Subscription, count: int) -> None:
    """Wait until so many offsets are promised to a member."""
    await asyncio.to_thread(
        wait_until, lambda: subscription.statistics()["promised"] == count, f"{count} promised"
    )
