"""Servers that fail in the middle, lose state, or cannot be used: nothing is lost, errors say what to do.

These tests break servers, so they have a stack of their own.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import timedelta

import pytest
import redis

import kafkadur
import kafkadur.sync
from kafkadur import CoordinatorRefused, CoordinatorUnavailable, KafkadurError
from kafkadur.admin.changes import Admin
from kafkadur.settings import settings
from kafkadur.stack import Stack, TcpProxy, embedded
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    both_types,
    duplicates,
    next_of,
    number,
    place_on,
    speaks,
    wait_until,
)
from tests.relaying import relay

COUNT = 400
#: Seconds in which an acknowledgement must have its answer, and delivery go on, whatever the fault.
HEALED_S = 60.0
#: Seconds of silence after the fault is over that mean that nothing comes any more.
QUIET_S = 5.0
#: After a loss of state nothing is granted for one session: a short one keeps the tests short.
SESSION = timedelta(seconds=1)


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    """Provide a stack that may be broken."""
    with embedded(users=True) as stack:
        yield stack


@pytest.fixture
def fragile(own_stack: Stack) -> Iterator[Place]:
    """Provide a place on the stack that may be broken."""
    with place_on(own_stack) as place:
        yield place


async def drain_through(
    place: Place, topic: str, kind: TypeName, fault: Callable[[], Coroutine[None, None, None]]
) -> list[int]:
    """Consume COUNT messages, with a fault after a quarter of them; the numbers in the order of delivery.

    Every message is delivered; and one whose acknowledgement was refused ("it is delivered again") is.
    """
    seen: list[int] = []
    confirmed: set[int] = set()
    refused: dict[int, str] = {}
    async with (
        place.connect(redis_timeout=timedelta(seconds=2), session_timeout=SESSION) as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, window=20, start="earliest"
        ) as subscription,
    ):
        healed = asyncio.Event()

        async def happen() -> None:
            await fault()
            healed.set()

        happening: asyncio.Task[None] | None = None
        while len(confirmed) < COUNT:
            was_healed = healed.is_set()
            delivery = await subscription.receive(timeout=QUIET_S)
            if delivery is None:
                if was_healed:
                    break
                continue
            seen.append(number(delivery))
            if len(seen) == COUNT // 4:
                happening = asyncio.create_task(happen())
                await asyncio.sleep(0)  # lets it begin
            try:
                async with asyncio.timeout(HEALED_S):
                    await delivery.ack()
            except kafkadur.LeaseLost as error:
                refused[number(delivery)] = str(error)
            else:
                confirmed.add(number(delivery))
        assert happening is not None
        await happening
        statistics = subscription.statistics()
    assert set(seen) == set(range(COUNT)), (sorted(set(range(COUNT)) - set(seen)), statistics)
    # Of an exchange that was never answered it is not known whether it was applied; the error says so.
    promised = {n: text for n, text in refused.items() if "It is not known" not in text}
    broken_promises = {n: text for n, text in promised.items() if n not in confirmed}
    assert broken_promises == {}, "refused, but not delivered again"
    assert confirmed | (refused.keys() - promised.keys()) == set(range(COUNT))
    return seen


@both_types
async def test_redis_restarts_in_the_middle(fragile: Place, kind: TypeName) -> None:
    valkey = fragile.stack.valkey
    assert valkey is not None

    async def restart() -> None:
        await asyncio.to_thread(valkey.stop)
        await asyncio.to_thread(valkey.start)

    seen = await drain_through(fragile, fragile.topic(range(COUNT)), kind, restart)
    # Its data are kept: what was confirmed stays settled, only what was in hands may be repeated.
    assert len(duplicates(seen)) <= 40


async def test_a_non_durable_subscription_is_not_ended_before_its_members_are_back(fragile: Place) -> None:
    """Somebody looks for abandoned ones as the first thing after Redis has come back."""
    topic = fragile.topic()
    valkey = fragile.stack.valkey
    assert valkey is not None
    async with (
        fragile.connect(session_timeout=timedelta(seconds=10)) as connection,
        await connection.subscribe(topic, shared="readers") as subscription,
    ):
        fragile.publish(topic, range(1))
        delivery = await subscription.receive(LIMIT_S)
        assert delivery is not None
        await delivery.ack()

        def restart_and_sweep() -> None:
            valkey.stop()
            valkey.start()
            with Admin(settings(fragile.settings())) as admin:
                for _ in range(3):
                    admin._lifecycle.end(subscription.definition.key)  # noqa: SLF001 - as a sweep does, at once

        await asyncio.to_thread(restart_and_sweep)
        fragile.publish(topic, range(1, 2))
        delivery = await subscription.receive(LIMIT_S)
        assert delivery is not None
        assert number(delivery) == 1


@pytest.mark.parametrize("shared", ["readers", None], ids=["shared", "alone"])
async def test_a_non_durable_subscription_goes_on_after_a_restart_of_redis(
    fragile: Place, shared: str | None
) -> None:
    """Neither is it begun anew at the end of the topic, nor do its consumers lose it to each other."""
    topic = fragile.topic()
    valkey = fragile.stack.valkey
    assert valkey is not None
    async with fragile.connect(session_timeout=SESSION) as connection, contextlib.AsyncExitStack() as opened:
        members = [
            await opened.enter_async_context(await connection.subscribe(topic, shared=shared))
            for _ in range(1 if shared is None else 2)
        ]
        await asyncio.to_thread(valkey.stop)
        await asyncio.to_thread(valkey.start)
        fragile.publish(topic, range(20))
        found: set[int] = set()
        async with asyncio.timeout(HEALED_S):
            while len(found) < 20:
                for member in members:
                    while (delivery := await member.receive(0.2)) is not None:
                        await delivery.ack()
                        found.add(number(delivery))
    assert found == set(range(20))


@both_types
async def test_redis_is_killed_in_the_middle(fragile: Place, kind: TypeName) -> None:
    valkey = fragile.stack.valkey
    assert valkey is not None

    async def restart() -> None:
        await asyncio.to_thread(valkey.kill)
        await asyncio.to_thread(valkey.start)

    await drain_through(fragile, fragile.topic(range(COUNT)), kind, restart)


@both_types
async def test_redis_loses_everything_in_the_middle(fragile: Place, kind: TypeName) -> None:
    async def flush() -> None:
        with redis.Redis.from_url(fragile.stack.admin_redis) as client:
            client.flushall()

    seen = await drain_through(fragile, fragile.topic(range(COUNT)), kind, flush)
    assert set(seen) == set(range(COUNT))


@both_types
async def test_flushed_while_nobody_is_attached(fragile: Place, kind: TypeName) -> None:
    """The journal knows the subscription: `latest` at its creation stays where it was."""
    topic = fragile.topic(range(3))
    async with fragile.connect(session_timeout=SESSION) as connection:
        await (await connection.subscribe(topic, durable="d", type=kind)).close()
    fragile.publish(topic, range(3, 6))
    with redis.Redis.from_url(fragile.stack.admin_redis) as client:
        client.flushall()
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type=kind) as subscription,
    ):
        got: list[int] = []
        while len(got) < 3:
            delivery = await subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            got.append(number(delivery))
        assert got == [3, 4, 5]


@both_types
async def test_flushed_after_all_was_settled_and_closed(fragile: Place, kind: TypeName) -> None:
    """Closing mirrors the floor, so nothing comes again."""
    topic = fragile.topic(range(10))
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        for _ in range(10):
            delivery = await subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            await delivery.ack()
    with redis.Redis.from_url(fragile.stack.admin_redis) as client:
        client.flushall()
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        fragile.publish(topic, [10])
        delivery = await subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        assert number(delivery) == 10


async def test_acknowledgements_without_waiting_that_a_wipe_refused_are_told(fragile: Place) -> None:
    """The wipe is noticed by the exchange with the acknowledgement; of keys nothing can be claimed."""
    topic = fragile.topic([1])
    async with fragile.connect(session_timeout=SESSION) as connection:
        subscription = await connection.subscribe(topic, durable="d", type="key-ordered", start="earliest")
        one = await subscription.receive(timeout=LIMIT_S)
        assert one is not None
        with redis.Redis.from_url(fragile.stack.admin_redis) as client:
            client.flushall()
        one.ack_nowait()
        again = await subscription.receive(timeout=LIMIT_S)
        assert again is not None
        await again.ack()
        with pytest.raises(kafkadur.LeaseLost):
            await subscription.close()


async def test_late_verdict_after_the_state_was_lost(fragile: Place) -> None:
    topic = fragile.topic([1])
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type="key-ordered", start="earliest") as subscription,
    ):
        old = await subscription.receive(timeout=LIMIT_S)
        assert old is not None
        token = old.fencing_token
        with redis.Redis.from_url(fragile.stack.admin_redis) as client:
            client.flushall()
        with pytest.raises(kafkadur.LeaseLost):
            await old.ack()
        new = await subscription.receive(timeout=LIMIT_S)
        assert new is not None
        assert new.redelivered
        assert new.fencing_token > token
        # A handler that still holds the old delivery must not come by the token of the new one.
        assert old.fencing_token == token
        await new.ack()


@both_types
async def test_what_an_old_holder_hands_out_after_a_loss_is_marked(fragile: Place, kind: TypeName) -> None:
    """It has not noticed the loss, so its lease brings it what is written while another member recovers."""
    topic = fragile.topic([1])
    valkey = fragile.stack.valkey
    assert valkey is not None
    session = timedelta(seconds=8)  # on a busy machine subscribing takes seconds
    with TcpProxy(("127.0.0.1", valkey.port)) as link:
        async with (
            fragile.connect(redis=valkey.url_at(link.address), session_timeout=session) as connection,
            await connection.subscribe(topic, durable="d", type=kind, start="earliest") as old,
            fragile.connect(session_timeout=session) as beside,
        ):
            await (await next_of(old)).ack()
            # a lane reaches beyond the end of its own accord, once its holder has reported the readable end
            warm = old._member._state.fetch.warm  # noqa: SLF001 - nothing shows outside that it was reported
            await asyncio.to_thread(
                wait_until,
                lambda: bool(warm) if kind == "exclusive" else old.statistics()["promised"] > 0,
                "records beyond the end are granted",
            )
            old._member.gate._heard_since = lambda: 0.0  # noqa: SLF001 - as if its pings were answered all the time
            link.pause()
            with redis.Redis.from_url(fragile.stack.admin_redis) as client:
                client.flushall()
            async with await beside.subscribe(topic, durable="d", type=kind) as new:
                fragile.publish(topic, [2])
                held = await next_of(old)
                assert (number(held), held.redelivered) == (2, False)
                seen = {number(one): one.redelivered for one in [await next_of(new)]}
                while 2 not in seen:
                    one = await next_of(new)
                    seen[number(one)] = one.redelivered
                assert seen[2], "it was delivered before"
                fragile.publish(topic, [3])
                fresh = await next_of(new)
                assert (number(fresh), fresh.redelivered) == (3, False)
            link.resume()


@both_types
async def test_kafka_restarts_in_the_middle(fragile: Place, kind: TypeName) -> None:
    (broker,) = fragile.stack.brokers

    async def restart() -> None:
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)

    seen = await drain_through(fragile, fragile.topic(range(COUNT)), kind, restart)
    assert duplicates(seen) == set()  # Redis has forgotten nothing


async def test_servers_that_stay_away_are_told_of_again(
    fragile: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who looks at the end of a log finds why nothing comes."""
    monkeypatch.setattr("kafkadur.runtime.coordinator_thread._TOLD_EVERY", 0.3)
    monkeypatch.setattr("kafkadur.fetch.kafka_thread._TOLD_EVERY", 0.3)
    topic = fragile.topic([1])
    valkey = fragile.stack.valkey
    assert valkey is not None

    def told(logger: str) -> int:
        return sum(
            record.name == logger and "does not answer" in record.getMessage() for record in caplog.records
        )

    def told_twice(logger: str) -> None:
        wait_until(lambda: told(logger) >= 2, f"two warnings of {logger}")

    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        await (await next_of(subscription)).ack()
        for server, logger in (
            (fragile.stack.brokers[0], "kafkadur.readers"), (valkey, "kafkadur.coordinator")
        ):  # fmt: skip
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(told_twice, logger)
            await asyncio.to_thread(server.start)
        await asyncio.to_thread(fragile.publish, topic, [2])
        assert number(await next_of(subscription)) == 2


async def test_closing_does_not_wait_for_a_kafka_that_is_away(
    fragile: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing waits neither for the answers to commits nor for those to records of the journal."""
    monkeypatch.setattr("kafkadur.runtime.members._LAST_READING", 1.0)
    monkeypatch.setattr("kafkadur.runtime.checkpoint_thread._LAST_ROUND", 1.0)
    topic = fragile.topic(range(4))
    (broker,) = fragile.stack.brokers
    connection = fragile.connect(session_timeout=SESSION)
    await connection.open()
    subscription = await connection.subscribe(topic, durable="a", start="earliest", window=4)
    settled, late = await next_of(subscription), await next_of(subscription)
    await settled.ack()
    topics, group = Topics({"bootstrap.servers": fragile.stack.kafka}), connection.key("a").group
    await asyncio.to_thread(
        wait_until, lambda: topics.committed(group, topic, 1) == {0: 1}, "the floor as offset of the group"
    )
    await asyncio.to_thread(broker.kill)
    await late.ack()
    await asyncio.wait_for(subscription.close(), LIMIT_S)
    await connection.close()
    assert "not in the journal" in caplog.text
    await asyncio.to_thread(broker.start)
    async with (
        fragile.connect() as again,
        await again.subscribe(topic, durable="a", start="earliest") as rest,
    ):
        assert [number(await next_of(rest)) for _ in range(2)] == [2, 3]


@both_types
async def test_messages_published_after_kafka_came_back(
    fragile: Place, kind: TypeName, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer that waits through the restart goes on by itself, and says so."""
    topic = fragile.topic([1])
    (broker,) = fragile.stack.brokers
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        delivery = await subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        await delivery.ack()
        waiting = asyncio.create_task(subscription.receive(timeout=HEALED_S))
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(fragile.publish, topic, [2])
        delivery = await waiting
        assert delivery is not None
        assert number(delivery) == 2
    told = [record.message for record in caplog.records if record.name == "kafkadur.readers"]
    assert "does not answer" in told[0]
    assert f"Kafka answers again: topic {topic}" in told[1:], "perhaps with a new client of Kafka"
    refused = [line for line in caplog.messages if "Connection refused" in line]
    assert len(refused) <= 8, "repeats are left out"


@both_types
async def test_i13_redis_evicts_the_state_of_an_attached_member(fragile: Place, kind: TypeName) -> None:
    """An administrator has changed the policy of a server that members use, and others fill its memory."""
    topic = fragile.topic(range(40))
    async with fragile.connect(session_timeout=SESSION) as connection:
        subscription = await connection.subscribe(topic, durable="d", type=kind, start="earliest", window=10)
        acked: set[int] = set()
        for _ in range(10):
            delivery = await next_of(subscription)
            if number(delivery) % 2:
                await delivery.rollback(delay=1.0)
            else:
                await delivery.ack()
                acked.add(number(delivery))
        root = f"kafkadur:{fragile.namespace}:{{{connection.key('d').tag}}}:"
        await asyncio.to_thread(evict, fragile.stack.admin_redis, [f"{root}def", f"{root}seal"])
        while acked != set(range(40)):
            delivery = await next_of(subscription)
            with contextlib.suppress(KafkadurError):  # it comes again then
                await delivery.ack()
                acked.add(number(delivery))


def evict(url: str, keys: Sequence[str]) -> None:
    """Let the server evict one of these keys at least."""
    with redis.Redis.from_url(url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
        try:
            for at in range(50_000):
                client.set(f"foreign:{at}", b"x" * 1_000)
                if client.exists(*keys) < len(keys):
                    return
            pytest.fail("nothing was evicted")
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")
            for key in client.scan_iter(match="foreign:*", count=1_000):
                client.unlink(key)


async def test_evicting_redis_is_refused() -> None:
    with embedded(kafka=False, users=True, valkey_settings={"maxmemory-policy": "allkeys-lru"}) as stack:
        with pytest.raises(CoordinatorRefused, match="allkeys-lru") as caught:
            async with kafkadur.connect(kafka="127.0.0.1:1", redis=stack.redis):
                pass
        speaks(caught.value, "noeviction")


async def test_old_redis_is_refused(kafkadur_stack: Stack) -> None:
    """A real server behind a relay that changes one thing: the version it reports."""
    assert kafkadur_stack.valkey is not None
    with relay(kafkadur_stack.valkey.port, b"redis_version:7.2.4", b"redis_version:7.0.9") as port:
        url = kafkadur_stack.valkey.url_at(f"127.0.0.1:{port}")
        with pytest.raises(CoordinatorRefused, match=r"7\.0\.9") as caught:
            async with kafkadur.connect(kafka=kafkadur_stack.kafka, redis=url):
                pass
        speaks(caught.value, "7.2")


async def test_replica_is_refused() -> None:
    with embedded(kafka=False, users=True, replica=True) as stack:
        with pytest.raises(CoordinatorRefused, match="replica") as caught:
            async with kafkadur.connect(kafka="127.0.0.1:1", redis=stack.replica_redis):
                pass
        speaks(caught.value, "master")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Provide a port that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.fixture
def closed_port() -> int:
    """Provide a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def test_unreachable_redis_is_said_at_once(closed_port: int) -> None:
    started = time.monotonic()
    with pytest.raises(CoordinatorUnavailable) as caught:
        async with kafkadur.connect(kafka="127.0.0.1:1", redis=f"redis://127.0.0.1:{closed_port}"):
            pass
    assert time.monotonic() - started < 2
    speaks(caught.value, str(closed_port), "refused")


async def test_silent_redis_is_said_within_its_time_out(silent_port: int) -> None:
    started = time.monotonic()
    with pytest.raises(CoordinatorUnavailable) as caught:
        async with kafkadur.connect(
            kafka="127.0.0.1:1",
            redis=f"redis://127.0.0.1:{silent_port}",
            redis_timeout=timedelta(seconds=1),
        ):
            pass
    # closing waits for the presence connection, which is bounded by a fixed 5 s
    assert time.monotonic() - started < 8
    speaks(caught.value, str(silent_port))


def test_sync_unreachable_redis_is_said_at_once(closed_port: int) -> None:
    with (
        pytest.raises(CoordinatorUnavailable) as caught,
        kafkadur.sync.connect(kafka="127.0.0.1:1", redis=f"redis://127.0.0.1:{closed_port}"),
    ):
        pass
    speaks(caught.value, str(closed_port))


async def test_unreachable_kafka_is_said_within_its_time_out(
    kafkadur_stack: Stack, kafkadur_namespace: str, closed_port: int
) -> None:
    started = time.monotonic()
    async with kafkadur.connect(
        kafka=f"127.0.0.1:{closed_port}",
        redis=kafkadur_stack.redis,
        namespace=kafkadur_namespace,
        kafka_timeout=timedelta(seconds=2),
    ) as connection:
        with pytest.raises(KafkadurError) as caught:
            await connection.subscribe("t", durable="d", type="shared")
        assert time.monotonic() - started < 10
        speaks(caught.value, "Kafka")
