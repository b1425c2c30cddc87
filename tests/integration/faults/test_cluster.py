"""A Redis Cluster: subscriptions lie on all nodes; nodes are killed or wiped, and slots are moved."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from operator import is_

import pytest

import kafkadur
import kafkadur.sync
from kafkadur.admin.changes import Admin
from kafkadur.doctor.finding import Level
from kafkadur.doctor.of_redis import look_at_redis
from kafkadur.settings import settings
from kafkadur.stack import Stack, Valkey, embedded
from kafkadur.stack.valkey_cluster import ValkeyCluster
from kafkadur_coordinators.redis.cluster import slot_of
from kafkadur_coordinators.redis.coordinator import RedisCoordinator, Refusal, SubscriptionAddress
from kafkadur_coordinators.redis.presence import Presence
from kafkadur_sharing.definition import AckLevel, TypeName
from kafkadur_sharing.errors import CoordinatorRefused, CoordinatorUnavailable
from kafkadur_sharing.keys import ClientIdPolicy, SubscriptionKey, client_id_tag
from tests.integration.faults.crew import CALL, SESSION, Crew, work_through
from tests.integration.subscriptions.helpers import Place, numbers, take, wait_until

COUNT = 300
PRIMARIES = 3
LEVELS: list[AckLevel] = ["journal", "replicated"]


@pytest.fixture(scope="module")
def clustered() -> Iterator[Stack]:
    """Provide a stack with a cluster of three primaries and their replicas."""
    with embedded(valkey_primaries=PRIMARIES, users=True) as stack:
        yield stack


@pytest.fixture
def cluster(clustered: Stack) -> ValkeyCluster:
    """Provide the cluster, whole."""
    assert clustered.valkey_cluster is not None
    for node in clustered.valkey_cluster.nodes:
        node.start()
    clustered.valkey_cluster.settle()
    return clustered.valkey_cluster


@pytest.fixture
def place(cluster: ValkeyCluster, clustered: Stack, place_on: Callable[[Stack], Place]) -> Place:
    """Provide a place on the cluster, which is whole."""
    assert cluster is clustered.valkey_cluster
    return place_on(clustered)


def address(place: Place, name: str = "d") -> SubscriptionAddress:
    """Where a durable subscription of this place is."""
    key = SubscriptionKey(
        namespace=place.namespace, client_id="c1", policy=ClientIdPolicy.UNRESTRICTED, name=name
    )
    return SubscriptionAddress(prefix="kafkadur", namespace=place.namespace, tag=key.tag)


def slot(place: Place, name: str = "d") -> int:
    """The slot of a durable subscription of this place."""
    return slot_of(address(place, name).root)


def name_on(place: Place, cluster: ValkeyCluster, wanted: Callable[[Valkey], bool]) -> str:
    """A name of a subscription that lies on a node that fits."""
    names = (f"s{number}" for number in range(1_000))
    return next(name for name in names if wanted(cluster.owner(slot(place, name))))


def incarnation(place: Place, name: str) -> int:
    with Admin(settings(place.settings())) as admin:
        info = admin.info(admin.key(name))
        assert info is not None
        return info.incarnation


async def test_subscriptions_lie_on_all_nodes(place: Place, cluster: ValkeyCluster) -> None:
    topic = place.topic(range(5))
    names = [name_on(place, cluster, partial(is_, at)) for at in cluster.primaries()]
    assert len(set(names)) == PRIMARIES
    async with place.connect() as connection:
        for name in names:
            subscription = await connection.subscribe(topic, durable=name, start="earliest")
            taken = await take(subscription, 5)
            assert numbers(taken) == list(range(5))
            for delivery in taken:
                await delivery.ack(level="replicated")
        with Admin(settings(place.settings())) as admin:
            assert {found.key.name for found in await asyncio.to_thread(admin.list)} == set(names)
    for at in cluster.primaries():
        assert at.ask("DBSIZE"), "each node has something"


async def test_one_node_of_the_cluster_will_do(place: Place, cluster: ValkeyCluster) -> None:
    """The server says that it is a node of a cluster, and names the others."""
    topic = place.topic(range(3))
    first = cluster.primaries()[0]
    name = name_on(place, cluster, lambda node: node is not first)
    async with place.connect(redis=first.url.removesuffix("/0")) as connection:
        subscription = await connection.subscribe(topic, durable=name, start="earliest")
        assert numbers(await take(subscription, 3)) == [0, 1, 2]
        nondurable = await connection.subscribe(topic, start="earliest")
        assert numbers(await take(nondurable, 3)) == [0, 1, 2]


async def test_a_client_id_is_held_in_a_cluster(place: Place) -> None:
    name = f"client-{uuid.uuid4().hex}"
    more = {"client_id": name, "client_id_policy": "restricted"}
    async with place.connect(**more):
        with pytest.raises(kafkadur.InvalidClientId):
            async with place.connect(**more):
                pass
    async with place.connect(**more):
        pass


@pytest.mark.parametrize("kind", ["shared", pytest.param("exclusive", marks=pytest.mark.long)])
async def test_a_primary_is_killed(place: Place, cluster: ValkeyCluster, kind: TypeName) -> None:
    """A replica takes over; subscriptions on other nodes do not notice."""
    victim = cluster.owner(slot(place))
    topic = place.topic(range(COUNT))
    other = name_on(place, cluster, lambda node: node is not victim)
    async with place.connect() as connection:
        await connection.subscribe(topic, durable=other, start="earliest")
    before = incarnation(place, other)

    async def fault() -> None:
        await asyncio.to_thread(victim.kill)

    crew = Crew(place, topic, kind, COUNT)
    info = await work_through(crew, fault, members=2 if kind == "shared" else 1)
    assert cluster.owner(slot(place)) is not victim
    assert info.incarnation > 1
    assert sum(crew.given.values()) - COUNT <= COUNT // 2, "what the replica had is settled"
    assert incarnation(place, other) == before


@pytest.mark.parametrize("kind", ["shared", pytest.param("exclusive", marks=pytest.mark.long)])
async def test_a_slot_is_moved(place: Place, cluster: ValkeyCluster, kind: TypeName) -> None:
    """Its subscriptions go on at the other node, where they have all of their state."""
    source = cluster.owner(slot(place))
    target = next(node for node in cluster.primaries() if node is not source)

    async def fault() -> None:
        await asyncio.to_thread(cluster.move, slot(place), target)

    crew = Crew(place, place.topic(range(COUNT)), kind, COUNT)
    await work_through(crew, fault, members=2 if kind == "shared" else 1)
    assert cluster.owner(slot(place)) is target
    assert sum(crew.given.values()) - COUNT <= COUNT // 2, "nothing that was settled came again"
    await asyncio.to_thread(cluster.move, slot(place), source)


async def test_a_node_is_wiped(place: Place, cluster: ValkeyCluster) -> None:
    """The next call notices, and only subscriptions of this node are rebuilt."""
    victim = cluster.owner(slot(place))
    topic = place.topic(range(COUNT))
    other = name_on(place, cluster, lambda node: node is not victim)
    async with place.connect() as connection:
        await connection.subscribe(topic, durable=other, start="earliest")
    before = incarnation(place, other)

    async def fault() -> None:
        assert await asyncio.to_thread(victim.ask, "FLUSHALL")

    info = await work_through(Crew(place, topic, "shared", COUNT), fault)
    assert info.incarnation > 1
    assert incarnation(place, other) == before


async def test_a_subscription_recovers_while_another_node_is_away(
    place: Place, cluster: ValkeyCluster
) -> None:
    """Both belong to one connection; one node is wiped, the other and its replica are gone."""
    wiped = cluster.owner(slot(place))
    other = name_on(place, cluster, lambda node: node is not wiped)
    gone = cluster.owner(slot(place, other))
    topic = place.topic(range(3))
    async with place.connect(redis_timeout=CALL, session_timeout=SESSION) as connection:
        subscription = await connection.subscribe(topic, durable="d", start="earliest")
        beside = await connection.subscribe(topic, durable=other, start="earliest")
        for each in (subscription, beside):
            for delivery in await take(each, 3):
                await delivery.ack(level="journal")
        for node in (cluster.replica_of(gone), gone):
            await asyncio.to_thread(node.kill)
        assert await asyncio.to_thread(wiped.ask, "FLUSHALL")
        place.publish(topic, [3])
        assert numbers(await take(subscription, 1)) == [3]
        assert beside.statistics()["in_hands"] == 0
        await asyncio.to_thread(restart, cluster)
        assert numbers(await take(beside, 1)) == [3]


async def test_acknowledgements_reach_their_levels_while_another_node_is_away(
    place: Place, cluster: ValkeyCluster
) -> None:
    """One thread asks for the levels of both subscriptions, and cannot ask for one of them."""
    gone = cluster.owner(slot(place))
    other = name_on(place, cluster, lambda node: node is not gone)
    topic = place.topic(range(6))
    async with place.connect(redis_timeout=CALL, session_timeout=SESSION) as connection:
        lost = await connection.subscribe(topic, durable="d", start="earliest")
        beside = await connection.subscribe(topic, durable=other, start="earliest")
        waiting, taken = await take(lost, 6), await take(beside, 6)
        await asyncio.to_thread(cluster.replica_of(gone).kill)
        replicated = asyncio.ensure_future(waiting[0].ack(level="replicated"))
        await waiting[1].ack()  # Redis has confirmed both; the second one is not in the journal yet
        await asyncio.to_thread(gone.kill)
        for delivery, level in zip(taken, LEVELS * 3, strict=True):
            await delivery.ack(level=level)
        assert not replicated.done()
        await asyncio.to_thread(restart, cluster)
        with pytest.raises(kafkadur.KafkadurError):  # Redis may have lost it
            await replicated


def restart(cluster: ValkeyCluster) -> None:
    """Start the nodes that were killed."""
    for node in cluster.nodes:
        node.start()
    cluster.settle()


@pytest.mark.long
async def test_a_primary_hangs_and_comes_back_as_a_replica(place: Place, cluster: ValkeyCluster) -> None:
    """Members are connected to a node that answers again, when another one has taken over."""
    victim = cluster.owner(slot(place))
    successor = cluster.replica_of(victim)

    async def fault() -> None:
        victim.freeze()
        await asyncio.to_thread(wait_until, lambda: successor.is_master, "a failover")
        victim.thaw()

    await work_through(Crew(place, place.topic(range(COUNT)), "shared", COUNT), fault)


async def test_a_client_id_is_held_while_its_slot_moves(place: Place, cluster: ValkeyCluster) -> None:
    """Its one key is at the other node already, which takes the calls that the first one sends there."""
    name = f"client-{uuid.uuid4().hex}"
    moving = slot_of(f"{{{client_id_tag(place.namespace, name)}}}")
    source = cluster.owner(moving)
    target = next(node for node in cluster.primaries() if node is not source)
    more = {"client_id": name, "client_id_policy": "restricted"}
    async with place.connect(**more) as connection:
        await asyncio.to_thread(cluster.migrate, moving, target)
        with pytest.raises(kafkadur.InvalidClientId):
            async with place.connect(**more):
                pass
        await asyncio.to_thread(cluster.assign, moving, target)
        with pytest.raises(kafkadur.InvalidClientId):
            async with place.connect(**more):
                pass
        subscription = await connection.subscribe(place.topic(range(3)), durable="d", start="earliest")
        assert numbers(await take(subscription, 3)) == [0, 1, 2]


def test_calls_are_refused_while_a_slot_is_between_two_nodes(place: Place, cluster: ValkeyCluster) -> None:
    """Redis refuses calls with several keys until the slot is at its new node; then they go there."""
    topic = place.topic(range(1))
    with place.connect_sync() as connection:
        connection.subscribe(topic, durable="d", start="earliest").close()
    source = cluster.owner(slot(place))
    target = next(node for node in cluster.primaries() if node is not source)
    coordinator = RedisCoordinator(place.stack.redis)
    try:
        coordinator.peek(address(place))
        cluster.migrate(slot(place), target)
        with pytest.raises(CoordinatorUnavailable, match="slot has moved"):
            coordinator.peek(address(place))
        cluster.assign(slot(place), target)
        with pytest.raises(Refusal, match="RESTARTED"):  # the state is that of another server
            coordinator.peek(address(place))
        calls = [("peek", address(place, name).fixed(), coordinator.common()) for name in "dxyz"]
        assert [reply.code for reply in coordinator.run_many(calls)] == ["RESTARTED", *["MISSING"] * 3]
    finally:
        coordinator.close()


def test_a_channel_is_not_heard_between_two_nodes(place: Place, cluster: ValkeyCluster) -> None:
    """Others could take over meanwhile: leases count from when the new node has confirmed it (I5)."""
    source = cluster.owner(slot(place))
    target = next(node for node in cluster.primaries() if node is not source)
    presence = Presence(place.stack.redis, timeout=5.0)
    coordinator = RedisCoordinator(place.stack.redis, listener=presence)
    channel, woken = address(place).channel("member"), list[bytes]()
    try:
        coordinator.connect()
        presence.listen(channel, woken.append)
        wait_until(lambda: presence.alive(channel), "the channel is heard")
        before = presence.heard_since(channel)
        cluster.move(slot(place), target)
        wait_until(lambda: woken == [b""], "the node says that it does not serve the channel any more")
        assert not presence.alive(channel)
        assert coordinator.heard([channel]) == {channel: False}, "that is asked where the channel was"
        coordinator.run("peek", address(place).fixed(), coordinator.common())
        wait_until(lambda: presence.alive(channel), "the channel is heard at the other node")
        assert presence.heard_since(channel) > before
        assert coordinator.heard([channel]) == {channel: True}
    finally:
        presence.close()
        coordinator.close()


def test_calls_that_were_sent_together_follow_a_slot(place: Place, cluster: ValkeyCluster) -> None:
    source = cluster.owner(slot(place))
    target = next(node for node in cluster.primaries() if node is not source)
    coordinator = RedisCoordinator(place.stack.redis)
    try:
        calls = [("peek", address(place, name).fixed(), coordinator.common()) for name in ["d", *"xyz"]]
        assert [reply.code for reply in coordinator.run_many(calls)] == ["MISSING"] * 4
        cluster.move(slot(place), target)
        assert [reply.code for reply in coordinator.run_many(calls)] == ["MISSING"] * 4
        assert coordinator.server_of(address(place).root).node == ("127.0.0.1", target.port)
    finally:
        coordinator.close()


def test_a_node_that_hangs_does_not_hold_up_calls_to_others(place: Place, cluster: ValkeyCluster) -> None:
    victim = cluster.owner(slot(place))
    other = address(place, name_on(place, cluster, lambda node: node is not victim))
    hanging = (victim, cluster.replica_of(victim))  # the replica could take over
    coordinator = RedisCoordinator(place.stack.redis, timeout=0.5)
    try:
        for where in (address(place), other):
            assert coordinator.run("peek", where.fixed(), coordinator.common()).code == "MISSING"
        for node in hanging:
            node.freeze()
        begun, waited = time.monotonic(), 0.0
        while time.monotonic() - begun < 2.0:
            before = time.monotonic()
            with pytest.raises(CoordinatorUnavailable):
                coordinator.peek(address(place))
            waited += time.monotonic() - before
            assert coordinator.run("peek", other.fixed(), coordinator.common()).code == "MISSING"
        assert waited < 1.9, "the calls to the other node had a share of the time"
    finally:
        for node in hanging:
            node.thaw()
        coordinator.close()


def test_a_single_server_is_no_cluster(kafkadur_stack: Stack) -> None:
    assert kafkadur_stack.valkey is not None
    url = f"redis+cluster://application:application@{kafkadur_stack.valkey.address}"
    with (
        pytest.raises(CoordinatorRefused, match="no node of a cluster"),
        kafkadur.sync.connect(kafka=kafkadur_stack.kafka, redis=url),
    ):
        pass


def test_the_doctor_looks_at_every_node(place: Place, cluster: ValkeyCluster) -> None:
    found = {each.check: each for each in look_at_redis(settings(place.settings()))}
    assert {each.level for each in found.values()} == {Level.GOOD}, found
    assert found["redis cluster"].state == "3 nodes, all slots are served"
    assert found["redis role"].state == "each node: primary in a cluster, 1 replica"
    assert found["redis latency"].state.count("127.0.0.1:") == PRIMARIES
    deaf = cluster.primaries()[1]
    deaf.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        found = {each.check: each for each in look_at_redis(settings(place.settings()))}
    finally:
        deaf.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert found["redis eviction"].level is Level.PROBLEM
    assert found["redis eviction"].state == f"{deaf.address}: allkeys-lru"
