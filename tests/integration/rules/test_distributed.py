"""Rules M1 to M3, X6 and X7: members of a distributed topic, one of them on a Kafka cluster of its own."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.cimpl import NewTopic

import kafkadur.sync
from kafkadur import (
    DeliveryFailed,
    DistributedTopic,
    IllegalState,
    InvalidDestination,
    InvalidName,
    StateLost,
    Subscription,
    SubscriptionActive,
    TopicMember,
    Unreached,
)
from kafkadur.admin.changes import Admin
from kafkadur.producer.distributed import DistributedProducer
from kafkadur.stack import embedded
from kafkadur.stack.kafka import quiet_admin
from kafkadur_sharing.decisions import Refuse
from kafkadur_sharing.distributed import Forwarding
from kafkadur_sharing.keys import ClientIdPolicy, SubscriptionKey
from tests.integration.subscriptions.helpers import LIMIT_S, Place, nothing, number, speaks
from tests.integration.subscriptions.workers import Worker

#: What of the other cluster is given up soon.
IMPATIENT = {"delivery.timeout.ms": 1_500, "request.timeout.ms": 1_000, "linger.ms": 0}


class Elsewhere:
    """A Kafka cluster of its own that can be taken down and brought back with its data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = ExitStack()
        self._port: int | None = None
        self.kafka = ""
        self.up()

    def up(self) -> None:
        """Start it, at the same address."""
        stack = self._running.enter_context(embedded(valkey=False, data=self._folder, kafka_port=self._port))
        self.kafka = stack.kafka
        self._port = int(self.kafka.rpartition(":")[2])

    def down(self) -> None:
        """Stop it."""
        self._running.close()

    def topic(self) -> str:
        """A new topic on it, with one partition."""
        name = f"elsewhere-{uuid.uuid4().hex}"
        admin = quiet_admin(self.kafka)  # kept until it has answered
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(LIMIT_S)
        return name


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """Provide a second Kafka cluster."""
    cluster = Elsewhere(tmp_path_factory.mktemp("elsewhere"))
    yield cluster
    cluster.down()


def here(
    place: Place, forwarding: Forwarding = "partitioned", names: tuple[str, ...] = ("north", "south")
) -> DistributedTopic:
    """A distributed topic whose members all lie on the run's cluster."""
    members = tuple(TopicMember(name=name, topic=place.topic()) for name in names)
    return DistributedTopic(name="orders", members=members, forwarding=forwarding)


def spread(place: Place, elsewhere: Elsewhere, forwarding: Forwarding = "partitioned") -> DistributedTopic:
    """A distributed topic with the member `north` here and `south` on the other cluster."""
    kafka = {"bootstrap.servers": elsewhere.kafka}
    return DistributedTopic(
        name="orders",
        members=(
            TopicMember(name="north", topic=place.topic()),
            TopicMember(name="south", topic=elsewhere.topic(), kafka=kafka),
        ),
        forwarding=forwarding,
    )


async def taken(subscription: Subscription, count: int) -> list[str]:
    """The values of so many messages, acknowledged."""
    found: list[str] = []
    for _ in range(count):
        delivery = await subscription.receive(timeout=LIMIT_S)
        assert delivery is not None, f"{len(found)} of {count} came"
        await delivery.ack()
        found.append((delivery.value or b"").decode())
    return found


# -- what is decided


def test_m_where_a_message_goes() -> None:
    members = tuple(TopicMember(name=name, topic=name) for name in ("a", "b", "c"))
    topic = DistributedTopic(name="t", members=members)
    assert [topic.targets(None, n)[0].name for n in range(6)] == ["a", "b", "c", "a", "b", "c"]
    assert [topic.targets(None, n, {"b"})[0].name for n in range(4)] == ["a", "c", "a", "c"]
    assert topic.targets(None, 1, {"a", "b", "c"})[0].name == "b"
    assert {topic.targets(None, n, {"a", "b", "c"}, {"a", "c"})[0].name for n in range(4)} == {"b"}
    keyed = {key: topic.targets(key, 0)[0].name for key in (b"x", b"y", b"z", b"1", b"2", b"3")}
    assert set(keyed.values()) == {"a", "b", "c"}
    for key, name in keyed.items():
        assert topic.targets(key, 7, {name}) == topic.targets(key, 0)
    replicated = DistributedTopic(name="t", members=members, forwarding="replicated")
    assert replicated.targets(b"x", 0, {"a"}) == members


def test_x6_x7_on_which_members_one_is_deleted() -> None:
    members = tuple(TopicMember(name=name, topic=name) for name in ("a", "b"))
    topic = DistributedTopic(name="t", members=members)
    restricted, unrestricted = ClientIdPolicy.RESTRICTED, ClientIdPolicy.UNRESTRICTED
    assert topic.to_unsubscribe(unrestricted, "b") == topic.to_unsubscribe(restricted, "b") == members[1:]
    assert topic.to_unsubscribe(restricted, None) == members
    refused = topic.to_unsubscribe(unrestricted, None)
    assert isinstance(refused, Refuse)
    assert (refused.rule, type(refused.error)) == ("X7", InvalidDestination)
    with pytest.raises(InvalidDestination, match="it has a, b"):
        topic.to_unsubscribe(restricted, "c")


def test_m_what_a_distributed_topic_can_be() -> None:
    member = TopicMember(name="a", topic="t", kafka={"sasl.password": "secret"})
    assert "secret" not in repr(DistributedTopic(name="t", members=(member,)))
    for wrong in ((), (member, member)):
        with pytest.raises(IllegalState, match="told apart"):
            DistributedTopic(name="t", members=wrong)
    with pytest.raises(IllegalState, match="forwarding"):
        DistributedTopic(name="t", members=(member,), forwarding="shuffled")  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        TopicMember(name="a@b", topic="t")
    with pytest.raises(InvalidDestination):
        TopicMember(name="a", topic="^t.*")


def test_m2_the_member_is_part_of_the_key() -> None:
    plain = SubscriptionKey(namespace="n", client_id="c", name="d")
    member = SubscriptionKey(namespace="n", client_id="c", name="d", topic_member="south")
    assert plain.tag != member.tag
    assert plain.tag == "280a58ecc9cdd5c6", "what is stored under it stays where it is"
    assert (member.display, member.group) == ("c/d@south", "kafkadur:n:c:d:@south")
    assert SubscriptionKey.from_record(member.to_record()) == member
    assert "topic_member" not in plain.to_record()
    with pytest.raises(InvalidName):
        SubscriptionKey(namespace="n", name="d", topic_member="a b")


# -- subscribing


async def test_m1_consumers_share_within_one_member(
    place: Place, start_worker: Callable[..., Worker]
) -> None:
    topic = here(place)
    north = topic.member("north").topic
    worker = start_worker(north, durable="d", type="shared", topic_member="north", window=1)
    async with place.connect() as connection, connection.distributed(topic) as orders:
        same = await orders.subscribe("north", durable="d", type="shared", window=1)
        other = await orders.subscribe("south", durable="d", type="shared", window=1)
        place.publish(north, [1, 2])
        mine = await same.receive(timeout=LIMIT_S)
        assert mine is not None
        ((theirs, _),) = worker.receive(1)
        assert {number(mine), theirs} == {1, 2}
        await nothing(other)


async def test_m2_the_same_key_on_several_members(place: Place) -> None:
    topic = here(place)
    async with place.connect() as connection, connection.distributed(topic) as orders:
        both = [await orders.subscribe(name, durable="d", type="exclusive") for name in ("north", "south")]
        for name in ("north", "south"):
            with pytest.raises(SubscriptionActive):
                await orders.subscribe(name, durable="d", type="exclusive")
        plain = await connection.subscribe(topic.members[0].topic, durable="d", type="exclusive")
        for n, member in enumerate(topic.members):
            place.publish(member.topic, [n])
        assert [await taken(subscription, 1) for subscription in both] == [["0"], ["1"]]
        assert await taken(plain, 1) == ["0"]
        with Admin(connection.settings) as admin:
            names = {str(info.key) for info in admin.list()}
            assert names == {f"c1/d{at} (unrestricted)" for at in ("", "@north", "@south")}
            key = admin.key("c1/d@south (unrestricted)")
            assert admin.info(key).definition.topic == topic.members[1].topic


async def test_p1_non_durable_ones_are_of_a_member_too(place: Place) -> None:
    topic = here(place)
    async with place.connect() as connection, connection.distributed(topic) as orders:
        north = await orders.subscribe("north", shared="s")
        south = await orders.subscribe("south", shared="s", selector="n > 1")  # other details: no matter (N3)
        place.publish(topic.members[0].topic, [1])
        assert await taken(north, 1) == ["1"]
        await nothing(south)


async def test_m_a_member_that_it_has_not(place: Place) -> None:
    async with place.connect() as connection, connection.distributed(here(place)) as orders:
        with pytest.raises(InvalidDestination) as refused:
            await orders.subscribe("west", durable="d")
        speaks(refused.value, "north, south")


# -- sending


async def test_m_partitioned_each_message_goes_to_one_member(place: Place) -> None:
    topic = here(place)
    async with place.connect() as connection, connection.distributed(topic) as orders:
        both = [await orders.subscribe(name, durable="d") for name in ("north", "south")]
        with await orders.producer() as producer:
            for n in range(6):
                producer.publish(str(n))
            producer.flush(LIMIT_S)
            assert [await taken(subscription, 3) for subscription in both] == [
                ["0", "2", "4"],
                ["1", "3", "5"],
            ]
            home = topic.targets(b"k", 0)[0]
            for n in range(4):
                receipts = await producer.send(str(n), key="k", properties={"n": n})
                assert list(receipts) == [home.name]
        assert await taken(both[topic.members.index(home)], 4) == ["0", "1", "2", "3"]


async def test_m_replicated_each_message_goes_to_every_member(place: Place) -> None:
    topic = here(place, "replicated", ("a", "b", "c"))
    async with place.connect() as connection, connection.distributed(topic) as orders:
        all_of_them = [await orders.subscribe(name, durable="d") for name in ("a", "b", "c")]
        with await orders.producer() as producer:
            producer.publish("1", key="k")
            producer.flush(LIMIT_S)
            receipts = await producer.send("2")
        assert set(receipts) == {"a", "b", "c"}
        ids: set[str | None] = set()
        for subscription in all_of_them:
            first = await subscription.receive(timeout=LIMIT_S)
            assert first is not None
            ids.add(first.fields.message_id)
            await first.ack()
            assert await taken(subscription, 1) == ["2"]
        assert len(ids) == 1, "copies have one message id"


def test_m_synchronously(place: Place) -> None:
    topic = here(place)
    with place.connect_sync() as connection, connection.distributed(topic) as orders:
        subscription = orders.subscribe("south", durable="d", type="exclusive")
        with orders.producer() as producer:
            producer.publish("0")
            producer.publish("1")
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        assert delivery.value == b"1"
        subscription.close()
        assert orders.unsubscribe("d", "south") == ("south",)
        assert isinstance(orders, kafkadur.sync.Distributed)


# -- unsubscribing


async def test_x6_on_that_member_only(place: Place) -> None:
    topic = here(place)
    async with place.connect() as connection, connection.distributed(topic) as orders:
        for name in ("north", "south"):
            await (await orders.subscribe(name, durable="d")).close()
        assert await orders.unsubscribe("d", "north") == ("north",)
        assert await orders.known("d", "north") is None
        assert await orders.known("d", "south") is not None
        with pytest.raises(InvalidDestination):
            await orders.unsubscribe("d", "north")


async def test_x7_an_unrestricted_client_id_has_to_say_where(place: Place) -> None:
    topic = here(place)
    async with place.connect() as connection, connection.distributed(topic) as orders:
        await (await orders.subscribe("north", durable="d")).close()
        with pytest.raises(InvalidDestination, match="north, south"):
            await orders.unsubscribe("d")
        assert await orders.known("d", "north") is not None


async def test_x6_x7_in_weblogic_mode_of_an_ordinary_topic(place: Place) -> None:
    topic, other = place.topic(), place.topic()
    async with place.connect(mode="weblogic") as connection:
        await (await connection.subscribe(topic, durable="d")).close()
        with pytest.raises(InvalidDestination, match="topic has to be named"):
            await connection.unsubscribe("d")
        with pytest.raises(InvalidDestination, match="it is on topic"):
            await connection.unsubscribe("d", topic=other)
        await connection.unsubscribe("d", topic=topic)
        assert await connection.known("d") is None


async def test_x1_a_restricted_client_id_deletes_on_all_members(place: Place) -> None:
    topic = here(place, names=("a", "b", "c"))
    async with (
        place.connect(client_id="me", client_id_policy="restricted") as connection,
        connection.distributed(topic) as orders,
    ):
        for name in ("a", "c"):
            await (await orders.subscribe(name, durable="d", type="exclusive")).close()
        assert await orders.unsubscribe("d") == ("a", "c")
        with pytest.raises(InvalidDestination):
            await orders.unsubscribe("d")


async def test_x3_an_active_one_is_not_deleted(place: Place) -> None:
    topic = here(place)
    async with place.connect() as connection, connection.distributed(topic) as orders:
        await orders.subscribe("south", durable="d")
        with pytest.raises(SubscriptionActive):
            await orders.unsubscribe("d", "south")


# -- a member on a cluster of its own


async def test_m3_a_member_that_is_down(place: Place, elsewhere: Elsewhere) -> None:
    """Its subscription cannot be used and is left behind by who unsubscribes; it is found when it is back."""
    topic = spread(place, elsewhere)
    given: dict[str, Any] = {
        "client_id": "me",
        "client_id_policy": "restricted",
        "kafka_timeout": timedelta(seconds=2),
    }
    async with place.connect(**given) as connection, connection.distributed(topic) as orders:
        for name in ("north", "south"):
            subscription = await orders.subscribe(name, durable="d", type="exclusive", start="earliest")
            # a patient one: on a busy machine an impatient one may take a member for down that is slow
            producer = await orders.producer()
            for n in range(4):
                producer.publish(f"{name} {n}")
            producer.close(LIMIT_S)
            assert len(await taken(subscription, 2)) == 2
            await subscription.close()
    elsewhere.down()
    try:
        async with place.connect(**given) as connection, connection.distributed(topic) as orders:
            north = await orders.subscribe("north", durable="d", type="exclusive")
            assert await taken(north, 2) == ["south 0", "south 2"]
            await north.close()
            with pytest.raises((StateLost, kafkadur.KafkaRefused)):
                await orders.subscribe("south", durable="d", type="exclusive")
            with pytest.raises(Unreached) as unreached:
                await orders.unsubscribe("d")
            assert (unreached.value.members, unreached.value.done) == (("south",), ("north",))
            speaks(unreached.value, "south")
    finally:
        elsewhere.up()
    async with place.connect(**given) as connection, connection.distributed(topic) as orders:
        there = connection.settings.model_copy(update={"kafka": {"bootstrap.servers": elsewhere.kafka}})
        with Admin(there) as admin:
            (left,) = admin.abandoned(timedelta(0))
            assert (str(left.key), left.backlog) == ("me/d@south", 2)
        with Admin(connection.settings) as admin:
            assert admin.abandoned(timedelta(0)) == ()
        assert await orders.unsubscribe("d") == ("south",)
        with Admin(there) as admin:
            assert admin.list() == ()


@pytest.fixture
def down(place: Place, elsewhere: Elsewhere) -> Iterator[Callable[[Forwarding], DistributedTopic]]:
    """Provide a distributed topic whose member `south` is down."""

    def make(forwarding: Forwarding) -> DistributedTopic:
        topic = spread(place, elsewhere, forwarding)
        elsewhere.down()
        return topic

    yield make
    elsewhere.up()


async def test_m3_messages_without_a_key_go_around_a_member_that_is_down(
    place: Place, down: Callable[[Forwarding], DistributedTopic]
) -> None:
    async with place.connect() as connection, connection.distributed(down("partitioned")) as orders:
        north = await orders.subscribe("north", durable="d")
        producer = await orders.producer(IMPATIENT)
        for n in range(4):
            producer.publish(str(n))
        producer.flush(LIMIT_S)
        assert producer.avoided == {"south"}
        for n in (4, 5):
            assert list(await producer.send(str(n))) == ["north"]
        assert sorted(await taken(north, 6)) == ["0", "1", "2", "3", "4", "5"]
        keyed = next(
            str(k) for k in range(100) if orders.topic.targets(str(k).encode(), 0)[0].name == "south"
        )
        with pytest.raises(DeliveryFailed) as failed:
            await producer.send("6", key=keyed)
        assert all(reason.startswith("south: ") for reason in failed.value.reasons)
        producer.publish("7", key=keyed)
        with pytest.raises(DeliveryFailed):
            producer.flush(LIMIT_S)
        await nothing(north)
        producer.close()


async def test_m3_nothing_is_lost_when_the_producer_is_closed_at_once(
    place: Place, down: Callable[[Forwarding], DistributedTopic]
) -> None:
    async with place.connect() as connection, connection.distributed(down("partitioned")) as orders:
        north = await orders.subscribe("north", durable="d")
        async with await orders.producer(IMPATIENT) as producer:
            for n in range(20):
                producer.publish(str(n))
        producer.close()  # once more
        assert sorted(map(int, await taken(north, 20))) == list(range(20))
        await nothing(north)


async def test_m3_where_all_are_down_it_fails(place: Place, elsewhere: Elsewhere) -> None:
    """Each member is tried once for a message, and then it fails: what is tried again ends."""
    kafka = {"bootstrap.servers": elsewhere.kafka}
    members = tuple(TopicMember(name=n, topic=elsewhere.topic(), kafka=kafka) for n in ("a", "b"))
    elsewhere.down()
    try:
        async with (
            place.connect() as connection,
            connection.distributed(DistributedTopic(name="t", members=members)) as orders,
        ):
            producer = await orders.producer(IMPATIENT, avoided=0.1)
            for n in range(4):
                producer.publish(str(n))
            with pytest.raises(DeliveryFailed) as failed:
                producer.flush(4 * LIMIT_S)
            assert (failed.value.failed, failed.value.pending) == (4, 0)
            producer.close()
    finally:
        elsewhere.up()


async def test_m_what_one_member_refuses_at_once_goes_to_the_others(place: Place) -> None:
    """A message that is too large for one of them: all copies but that are there."""
    topic = here(place, "replicated")
    async with place.connect() as connection, connection.distributed(topic) as orders:
        south = await orders.subscribe("south", durable="d")
        small, large = (connection.producer(c) for c in ({"message.max.bytes": 1_000}, {}))
        producer = DistributedProducer(topic, {"north": small, "south": large})
        producer.publish(b"x" * 2_000)
        producer.publish(b"y")
        with pytest.raises(DeliveryFailed) as failed:
            producer.close()
        assert list(failed.value.reasons) == ["north: MSG_SIZE_TOO_LARGE"]
        assert [len(value) for value in await taken(south, 2)] == [2_000, 1]


async def test_m3_of_copies_the_one_that_is_missing_is_named(
    place: Place, down: Callable[[Forwarding], DistributedTopic]
) -> None:
    async with place.connect() as connection, connection.distributed(down("replicated")) as orders:
        north = await orders.subscribe("north", durable="d")
        producer = await orders.producer(IMPATIENT)
        producer.publish("0")
        with pytest.raises(DeliveryFailed) as failed:
            producer.flush(LIMIT_S)
        assert failed.value.failed == 1
        assert all(reason.startswith("south: ") for reason in failed.value.reasons)
        with pytest.raises(DeliveryFailed) as failed:
            await producer.send("1")
        speaks(failed.value, "south", "orders")
        assert await taken(north, 2) == ["0", "1"]
        assert isinstance(producer, DistributedProducer)
        with suppress(DeliveryFailed):
            producer.close()
