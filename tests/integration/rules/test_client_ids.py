"""Rules C1 to C4: one live connection holds a restricted client id, any number an unrestricted one."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from redis import Redis

import kafkadur.sync
from kafkadur import (
    ClientIdPolicy,
    DeliveryFailed,
    DistributedTopic,
    IllegalState,
    InvalidClientId,
    InvalidDestination,
    InvalidName,
    SubscriptionActive,
    TopicMember,
)
from kafkadur.admin.changes import Admin
from kafkadur_coordinators.client_ids import LEAST_MS
from tests.integration.subscriptions.helpers import LIMIT_S, Place, nothing, number, speaks, wait_until
from tests.integration.subscriptions.workers import Worker

ALONE = {"client_id": "me", "client_id_policy": "restricted"}
#: Well below what is waited for a host that is gone.
SOON_S = LEAST_MS / 2_000


@pytest.fixture
def start_holder(place: Place) -> Iterator[Callable[..., Worker]]:
    """Provide a starter of processes whose connection holds the restricted client id `me`."""
    with ExitStack() as ending:

        def start(topic: str, **options: Any) -> Worker:
            worker = Worker(place.settings(**ALONE), topic, options)
            ending.callback(worker.end)
            return worker

        yield start


def test_d6_c1_a_connection_of_another_process_is_refused_at_once(
    place: Place, start_holder: Callable[..., Worker]
) -> None:
    topic = place.topic([1])
    holder = start_holder(topic, durable="d", type="exclusive", start="earliest")
    began = time.monotonic()
    with pytest.raises(InvalidClientId) as refused:
        place.connect_sync(**ALONE).open()
    assert time.monotonic() - began < SOON_S
    speaks(refused.value, f"/{holder.pid}", "me", "held since")
    assert holder.receive(1) == [(1, 1)]
    assert holder.ack() == "acked"


def test_c1_restricted_is_the_default(place: Place) -> None:
    with place.connect_sync(client_id="me", client_id_policy=None) as connection:
        assert connection.settings.client_id_policy == "restricted"
        with pytest.raises(InvalidClientId):
            place.connect_sync(client_id="me", client_id_policy=None).open()
        with place.connect_sync(client_id="other", client_id_policy=None):
            pass


async def test_c1_it_is_free_when_its_connection_is_closed(place: Place) -> None:
    for _ in range(3):
        async with place.connect(**ALONE):
            pass


def test_c1_it_is_free_soon_after_its_process_was_killed(
    place: Place, start_holder: Callable[..., Worker]
) -> None:
    topic = place.topic([1])
    start_holder(topic, durable="d", type="exclusive", start="earliest").kill()
    began = time.monotonic()
    with place.connect_sync(**ALONE) as connection:
        assert time.monotonic() - began < SOON_S
        with connection.subscribe(topic, durable="d", type="exclusive") as subscription:
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            delivery.ack()


def test_c1_who_does_not_show_itself_loses_it_and_is_told(
    place: Place, start_holder: Callable[..., Worker]
) -> None:
    """A stopped process is heard as long as its host answers: one time-out is waited, then it is over."""
    topic = place.topic([1])
    holder = start_holder(topic, durable="d", type="shared", start="earliest")
    assert holder.receive(1) == [(1, 1)]
    holder.freeze()
    with place.connect_sync(**ALONE) as connection:
        holder.thaw()
        with connection.subscribe(topic, durable="d", type="shared") as subscription:
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            delivery.ack()
        assert holder.ack() in ("LeaseLost", "Fenced")
        with pytest.raises(InvalidClientId):
            place.connect_sync(**ALONE).open()


def test_c1_a_connection_that_lost_it_does_nothing_more(place: Place) -> None:
    topic = place.topic([1])
    with place.connect_sync(**ALONE) as connection:
        subscription = connection.subscribe(topic, durable="d", start="earliest")
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        with Redis.from_url(place.stack.admin_redis) as redis:
            (key,) = redis.keys(f"kafkadur:{place.namespace}:*:client")
            redis.hset(key, mapping={"holder": "somebody", "name": "elsewhere"})
        with pytest.raises(InvalidClientId, match="elsewhere"):
            subscription.receive(timeout=LIMIT_S)
        with pytest.raises(InvalidClientId, match="elsewhere"):
            connection.subscribe(topic, durable="e")
        with pytest.raises(InvalidClientId, match="elsewhere"):
            connection.producer()


def test_c1_it_is_taken_again_after_a_loss_of_redis(place: Place) -> None:
    with place.connect_sync(**ALONE), Redis.from_url(place.stack.admin_redis) as redis:
        (key,) = redis.keys(f"kafkadur:{place.namespace}:*:client")
        redis.delete(key)
        wait_until(lambda: bool(redis.exists(key)), "the client id is held again")
        with pytest.raises(InvalidClientId):
            place.connect_sync(**ALONE).open()


async def test_c2_many_connections_hold_an_unrestricted_one(place: Place) -> None:
    topic = place.topic()
    given = {"client_id": "me", "client_id_policy": "unrestricted"}
    async with place.connect(**given) as one, place.connect(**given) as other:
        async with (
            await one.subscribe(topic, durable="d", type="shared", window=1),
            await other.subscribe(topic, durable="d", type="shared", window=1),
        ):
            known = await one.known("d")
            assert known is not None
            assert len(known.members) == 2
        async with await one.subscribe(topic, durable="e", type="exclusive"):
            with pytest.raises(SubscriptionActive):
                await other.subscribe(topic, durable="e", type="exclusive")


async def test_c3_each_policy_has_subscriptions_of_its_own(place: Place) -> None:
    topic = place.topic()
    async with (
        place.connect(**ALONE) as restricted,
        place.connect(client_id="me", client_id_policy="unrestricted") as unrestricted,
    ):
        one = await restricted.subscribe(topic, durable="d", type="exclusive")
        other = await unrestricted.subscribe(topic, durable="d", type="exclusive")
        place.publish(topic, [1])
        for subscription in (one, other):
            delivery = await subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            assert number(delivery) == 1
            await delivery.ack()
            await nothing(subscription)
        await one.close()
        await other.close()
        await restricted.unsubscribe("d")
        with pytest.raises(InvalidDestination):
            await restricted.unsubscribe("d")
        assert await unrestricted.known("d") is not None
        with Admin(restricted.settings) as admin:
            assert [str(info.key) for info in admin.list()] == ["me/d (unrestricted)"]
            assert admin.info(admin.key("me/d (unrestricted)")).key == unrestricted.key("d")
            with pytest.raises(InvalidDestination):
                admin.info(admin.key("me/d"))


async def test_c4_it_is_set_before_anything_else_is_done(place: Place) -> None:
    topic = place.topic()
    async with place.connect(client_id=None) as connection:
        await connection.set_client_id("me", "restricted")
        assert connection.settings.client_id == "me"
        async with await connection.subscribe(topic, durable="d", type="exclusive"):
            assert await connection.known("d") is not None
        with pytest.raises(InvalidClientId):
            await place.connect(**ALONE).open()


@pytest.mark.parametrize("used", ["subscribe", "producer", "session", "known"])
async def test_c4_not_after_any_other_action(place: Place, used: str) -> None:
    topic = place.topic()
    async with place.connect(client_id=None) as connection:
        if used == "subscribe":
            await (await connection.subscribe(topic, durable="d")).close()
        elif used == "producer":
            connection.producer()
        elif used == "session":
            connection.session()
        else:
            await connection.known("d")
        with pytest.raises(IllegalState) as refused:
            await connection.set_client_id("me")
        speaks(refused.value, "in use")
        assert connection.settings.client_id is None


async def test_c4_not_where_it_was_given_when_connecting(place: Place) -> None:
    async with place.connect(client_id="me") as connection:
        with pytest.raises(IllegalState, match="me"):
            await connection.set_client_id("other")
        assert connection.settings.client_id == "me"


async def test_c4_one_that_is_refused_can_be_set_to_another(place: Place) -> None:
    wrong: Any = "shy"
    async with place.connect(**ALONE), place.connect(client_id=None) as connection:
        with pytest.raises(InvalidName):
            await connection.set_client_id("no name")
        with pytest.raises(IllegalState, match="policy"):
            await connection.set_client_id("me", wrong)
        with pytest.raises(InvalidClientId):
            await connection.set_client_id("me", "restricted")
        await connection.set_client_id("me", ClientIdPolicy.UNRESTRICTED)
        assert connection.key("d").policy == "unrestricted"


def test_c1_tools_do_not_hold_it(place: Place, start_holder: Callable[..., Worker]) -> None:
    holder = start_holder(place.topic(), durable="d", type="exclusive")
    chosen = place.connect_sync(**ALONE).settings
    with kafkadur.sync.Connection(chosen, guest=True) as guest, Admin(chosen) as admin:
        known = guest.known("d")
        assert known is not None
        (member,) = admin.info(guest.key("d")).members
        assert member.name.endswith(f"/{holder.pid}")
    with pytest.raises(InvalidClientId):
        place.connect_sync(**ALONE).open()


def test_c1_a_busy_connection_keeps_it(place: Place) -> None:
    """Its coordinator's thread waits for something: that it lives is shown by another one."""
    released = threading.Event()
    with place.connect_sync(**ALONE) as connection:
        coordinator_thread = connection._opened.thread  # type: ignore[union-attr]  # noqa: SLF001 - to keep it busy
        assert coordinator_thread is not None
        busy = coordinator_thread.submit(lambda: released.wait(LIMIT_S))
        try:
            began = time.monotonic()
            with pytest.raises(InvalidClientId):
                place.connect_sync(**ALONE).open()
            assert time.monotonic() - began < SOON_S
        finally:
            released.set()
        assert busy.result(LIMIT_S)


def test_c1_it_is_free_when_closing_raises(place: Place) -> None:
    connection = place.connect_sync(**ALONE)
    connection.open()
    producer = connection.producer({"message.timeout.ms": 1_000})
    producer.publish("no-such-topic-anywhere", "x")
    with pytest.raises(DeliveryFailed):
        connection.close()
    with place.connect_sync(**ALONE):
        pass


async def test_c4_setting_it_is_given_up_when_cancelled(
    place: Place, start_holder: Callable[..., Worker]
) -> None:
    holder = start_holder(place.topic(), durable="d", type="exclusive")
    holder.freeze()
    async with place.connect(client_id=None) as connection:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.set_client_id("me", "restricted"), 0.3)
        assert connection.settings.client_id is None
        holder.thaw()
        assert holder.close() == "closed"
        await connection.set_client_id("other", "restricted")


async def test_c1_who_lost_it_stops_on_other_clusters_too(place: Place) -> None:
    topic = DistributedTopic(
        name="t",
        members=(
            TopicMember(
                name="a", topic=place.topic(), kafka={"bootstrap.servers": place.stack.kafka, "linger.ms": 1}
            ),
        ),
    )
    async with place.connect(**ALONE) as connection, connection.distributed(topic) as orders:
        subscription = await orders.subscribe("a", durable="d")
        with Redis.from_url(place.stack.admin_redis) as redis:
            (key,) = redis.keys(f"kafkadur:{place.namespace}:*:client")
            redis.hset(key, mapping={"holder": "somebody", "name": "elsewhere"})
        with pytest.raises(InvalidClientId, match="elsewhere"):
            await subscription.receive(timeout=LIMIT_S)
        with pytest.raises(InvalidClientId, match="elsewhere"):
            await orders.subscribe("a", durable="e")
