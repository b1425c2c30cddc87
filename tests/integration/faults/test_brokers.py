"""Three brokers: leaders change in the middle, the journal has too few of them, a log is cut off."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import kafkadur
from kafkadur import Event, KafkadurError
from kafkadur.admin.changes import Admin
from kafkadur.settings import settings
from kafkadur.stack import Broker, Stack, embedded
from kafkadur.stack.kafka import quiet_admin
from kafkadur_sharing.definition import TypeName
from tests.alerting import fired, scrape
from tests.integration.faults.crew import SESSION, Crew, work_through
from tests.integration.subscriptions.helpers import LIMIT_S, Place, number, speaks, wait_until

COUNT = 300
#: Seconds a new leader may take: a broker is given up after 3 s.
ELECTED_S = 60.0
ALL = ("shared", "exclusive", "key-ordered")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Stack]:
    """Provide three brokers, each in a JVM of its own."""
    with embedded(brokers=3, users=True) as stack:
        yield stack


@pytest.fixture
def place(cluster: Stack, place_on: Callable[[Stack], Place]) -> Place:
    """Provide a place on three running brokers that all have all."""
    start(cluster.brokers)
    return place_on(cluster)


def start(brokers: Sequence[Broker]) -> None:
    """Start those that do not run, side by side: one alone does not answer."""
    for broker in [broker for broker in brokers if not broker.running]:
        broker.launch()
    for broker in brokers:
        broker.wait_ready()


def leader(place: Place, topic: str) -> int:
    """Node id of the leader of partition 0 as the running brokers tell; -1: there is none."""
    found = partition_of(place, topic)
    return -1 if found is None else int(found.leader)


def in_sync(place: Place, topic: str) -> list[int]:
    """Node ids of the replicas of partition 0 that have all, as the running brokers tell."""
    found = partition_of(place, topic)
    return [] if found is None else list(found.isrs)


@cache
def asking(bootstrap: str) -> AdminClient:
    """One client for each set of brokers: a client is some threads."""
    return quiet_admin(bootstrap)


def partition_of(place: Place, topic: str) -> Any:
    """What they tell of partition 0; None: that broker does not know the topic yet."""
    running = ",".join(broker.address for broker in place.stack.brokers if broker.running)
    return asking(running).list_topics(topic, timeout=LIMIT_S).topics[topic].partitions.get(0)


def until(condition: Callable[[], bool], what: str) -> None:
    """As `wait_until`, for what takes a cluster long."""
    deadline = time.monotonic() + ELECTED_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def broker_of(place: Place, node: int) -> Broker:
    return next(broker for broker in place.stack.brokers if broker.node == node)


def replicated(place: Place, on: list[int], **config: str) -> str:
    """A topic of one partition on these brokers, the first of which leads it."""
    name = f"t-{time.monotonic_ns()}"
    admin: Any = asking(place.stack.kafka)
    given = {key.replace("_", "."): value for key, value in config.items()}
    topic = NewTopic(name, num_partitions=1, replica_assignment=[on], config=given)
    admin.create_topics([topic])[name].result(LIMIT_S)
    until(lambda: in_sync(place, name) == on and leader(place, name) == on[0], "a leader")
    return name


@pytest.mark.long
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_the_leader_is_killed(place: Place, kind: TypeName) -> None:
    topic = await asyncio.to_thread(replicated, place, [1, 2, 3])
    place.publish(topic, range(COUNT))

    async def fault() -> None:
        await asyncio.to_thread(broker_of(place, 1).kill)

    crew = Crew(place, topic, kind, COUNT)
    await work_through(crew, fault, members=2 if kind == "shared" else 1)
    assert max(crew.given.values()) == 1, "Redis has forgotten nothing"
    assert Event.TRUNCATED not in crew.events


@pytest.mark.long
async def test_every_broker_restarts_in_turn(place: Place) -> None:
    topic = await asyncio.to_thread(replicated, place, [1, 2, 3])
    place.publish(topic, range(COUNT))

    async def fault() -> None:
        for broker in place.stack.brokers:
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)

    crew = Crew(place, topic, "shared", COUNT)
    await work_through(crew, fault)
    assert max(crew.given.values()) == 1
    assert Event.TRUNCATED not in crew.events


@pytest.mark.long
async def test_the_journal_lacks_brokers(place: Place) -> None:
    """Two of three are dead: no change is taken, and the error says so; what is there goes on."""
    topic = await asyncio.to_thread(replicated, place, [1, 2, 3], min_insync_replicas="1")
    place.publish(topic, range(20))
    async with (
        place.connect(kafka_timeout=timedelta(seconds=3), session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        held = [await subscription.receive(timeout=LIMIT_S) for _ in range(20)]
        for node in (2, 3):
            await asyncio.to_thread(broker_of(place, node).kill)
        with pytest.raises(KafkadurError) as caught:
            await connection.subscribe(topic, durable="e", type="shared")
        speaks(caught.value)
        for delivery in held:
            assert delivery is not None
            await delivery.ack()
        await asyncio.to_thread(start, place.stack.brokers)
        deadline = time.monotonic() + ELECTED_S
        while True:
            try:
                await (await connection.subscribe(topic, durable="e", type="shared")).close()
                break
            except KafkadurError:
                assert time.monotonic() < deadline
        place.publish(topic, [20])
        delivery = await subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        assert number(delivery) == 20


# -- an election of a leader that has not all

KEPT, LOST = 60, 100


def cut_off(place: Place, topic: str) -> None:
    """Have the follower, which has not all, become the leader."""
    broker_of(place, 1).kill()
    broker_of(place, 2).start()
    until(lambda: leader(place, topic) == 2, "an unclean election")


def leave_behind(place: Place, topic: str) -> None:
    """Let only the leader have what is written next."""
    broker_of(place, 2).kill()
    until(lambda: in_sync(place, topic) == [1], "a follower that is out of sync")


def values(letter: str, start: int, end: int) -> list[bytes]:
    return [f"{letter}{n}".encode() for n in range(start, end)]


async def take_values(subscription: kafkadur.Subscription, count: int) -> list[bytes]:
    """Acknowledge so many messages and return their values."""
    found: list[bytes] = []
    deadline = time.monotonic() + ELECTED_S
    while len(found) < count:
        delivery = await subscription.receive(timeout=1)
        assert time.monotonic() < deadline, (found, subscription.statistics())
        if delivery is not None:
            assert delivery.value is not None
            try:
                await delivery.ack()
            except kafkadur.LeaseLost:
                continue
            found.append(delivery.value)
    return found


@pytest.fixture
def diverging(place: Place) -> str:
    """Provide a topic of whose records brokers 1 and 2 have the first 60, and which elects who is there."""
    topic = replicated(place, [1, 2], unclean_leader_election_enable="true", min_insync_replicas="1")
    place.publish_values(topic, values("a", 0, KEPT))
    return topic


LONG_BUT_SHARED = pytest.mark.parametrize(
    "kind", ["shared", *(pytest.param(kind, marks=pytest.mark.long) for kind in ALL[1:])]
)


@LONG_BUT_SHARED
@pytest.mark.parametrize("grown", [20, pytest.param(80, marks=pytest.mark.long)])
async def test_new_records_at_settled_offsets_are_delivered(
    place: Place,
    diverging: str,
    kind: TypeName,
    grown: int,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """A member is attached, and has settled 40 records that Kafka then loses; fewer or more come instead."""
    events: list[Event] = []
    await asyncio.to_thread(leave_behind, place, diverging)
    place.publish_values(diverging, values("a", KEPT, LOST))
    async with (
        place.connect(kafka_timeout=timedelta(seconds=20), session_timeout=SESSION) as connection,
        await connection.subscribe(
            diverging, durable="d", type=kind, start="earliest", on_event=events.append
        ) as subscription,
    ):
        assert set(await take_values(subscription, LOST)) == set(values("a", 0, LOST))
        before = scrape(place)
        await asyncio.to_thread(cut_off, place, diverging)
        place.publish_values(diverging, values("b", KEPT, KEPT + grown))
        assert sorted(await take_values(subscription, grown)) == sorted(values("b", KEPT, KEPT + grown))
        assert await subscription.receive(timeout=0.5) is None, "what was settled before stays settled"
        await asyncio.to_thread(wait_until, lambda: Event.TRUNCATED in events, "a word about what is lost")
    assert "lost the end of a partition" in caplog.text
    with Admin(settings(place.settings())) as admin:
        info = admin.info(admin.key("d"))
    assert (info.truncated, info.backlog) == (LOST - KEPT, 0)
    if shutil.which("promtool") is not None:  # else the tests of alerts are skipped, too
        assert fired(tmp_path, (5, before), (5, scrape(place))) == {"KafkadurMessagesTruncated"}


@pytest.mark.long
@pytest.mark.parametrize("kind", ALL)
async def test_cut_off_while_nobody_was_attached(place: Place, diverging: str, kind: TypeName) -> None:
    """The oldest unsettled record lies before the cut, so reading begins where both logs agree."""
    await asyncio.to_thread(leave_behind, place, diverging)
    place.publish_values(diverging, values("a", KEPT, LOST))
    async with place.connect(kafka_timeout=timedelta(seconds=20), session_timeout=SESSION) as connection:
        async with await connection.subscribe(
            diverging, durable="d", type=kind, start="earliest", window=LOST
        ) as first:
            deliveries = [await first.receive(timeout=LIMIT_S) for _ in range(LOST)]
            for delivery in deliveries:
                assert delivery is not None
                if delivery.offset not in {30, 40}:
                    await delivery.ack()
        await asyncio.to_thread(cut_off, place, diverging)
        new = values("b", KEPT, LOST + 20)
        place.publish_values(diverging, new)
        async with await connection.subscribe(diverging, durable="d", type=kind) as second:
            found = await take_values(second, len(new) + 2)
            assert set(found) == {b"a30", b"a40", *new}
            assert await second.receive(timeout=0.5) is None


@pytest.mark.long
async def test_cut_off_and_nothing_new_yet(place: Place, diverging: str) -> None:
    """The log ends before what was settled; records come later, and so does another member."""
    await asyncio.to_thread(leave_behind, place, diverging)
    place.publish_values(diverging, values("a", KEPT, LOST))
    async with place.connect(kafka_timeout=timedelta(seconds=20), session_timeout=SESSION) as connection:
        async with await connection.subscribe(
            diverging, durable="d", type="shared", start="earliest"
        ) as first:
            await take_values(first, LOST)
        await asyncio.to_thread(cut_off, place, diverging)
        async with (
            await connection.subscribe(diverging, durable="d", type="shared") as second,
            await connection.subscribe(diverging, durable="d", type="shared") as third,
        ):
            assert await second.receive(timeout=3) is None
            place.publish_values(diverging, values("b", KEPT, KEPT + 10))
            both = await asyncio.gather(*(collect(member) for member in (second, third)))
            assert sorted(value for found in both for value in found) == sorted(values("b", KEPT, KEPT + 10))


async def collect(subscription: kafkadur.Subscription) -> list[bytes]:
    """Acknowledge what comes until nothing does for a while."""
    found: list[bytes] = []
    while (delivery := await subscription.receive(timeout=3)) is not None:
        assert delivery.value is not None
        await delivery.ack()
        found.append(delivery.value)
    return found


@pytest.mark.long
def test_raw_client_sees_the_cut(place: Place, diverging: str) -> None:
    """What this is built on: librdkafka says that the log is another one, or goes to where it begins."""
    leave_behind(place, diverging)
    place.publish_values(diverging, values("a", KEPT, LOST))
    cut_off(place, diverging)
    place.publish_values(diverging, values("b", KEPT, LOST + 20))
    seen: dict[str, object] = {}
    for reset in ("error", "earliest"):
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": place.stack.kafka,
                "group.id": "g",
                "auto.offset.reset": reset,
                "log_level": 0,
            }
        )
        # two records before the cut of which both logs have the epoch
        consumer.assign([confluent_kafka.TopicPartition(diverging, 0, LOST, leader_epoch=0)])
        message = consumer.poll(LIMIT_S)
        assert message is not None
        error = message.error()
        seen[reset] = message.offset() if error is None else error.code()
        consumer.close()
    assert seen == {"error": confluent_kafka.KafkaError._AUTO_OFFSET_RESET, "earliest": KEPT}  # noqa: SLF001
