"""Levels of acknowledgement: what is confirmed at a level survives what the level says.

These tests wipe Redis and stop its replica, so they have a stack of their own.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

import pytest
import redis

from kafkadur import IllegalState, LeaseLost, LevelNotReached
from kafkadur.stack import Stack, as_administrator, embedded
from kafkadur_coordinators.journal.rebuilding import Rebuilder
from kafkadur_coordinators.journal.topic import Journal
from kafkadur_coordinators.redis.rows import PartitionRow
from kafkadur_sharing.definition import AckLevel, TypeName
from kafkadur_sharing.keys import SubscriptionKey
from tests.integration.coordinators import stored
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    PRIORITY_TOO,
    SERIAL_TOO,
    Place,
    next_of,
    number,
    place_on,
)

SESSION = timedelta(seconds=1)
COUNT = 30
KINDS = ("shared", "exclusive", PRIORITY_TOO, SERIAL_TOO, "key-ordered")


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    """Provide a stack with a replica of Valkey that may be broken."""
    with embedded(replica=True, users=True) as stack:
        yield stack


@pytest.fixture
def fragile(own_stack: Stack) -> Iterator[Place]:
    """Provide a place on it."""
    with place_on(own_stack) as place:
        yield place


def wipe(stack: Stack) -> None:
    with redis.Redis.from_url(stack.admin_redis) as server:
        server.flushall()


async def rest_of(place: Place, topic: str, kind: TypeName) -> set[int]:
    """What is delivered from now on until all that was not settled was."""
    found: set[int] = set()
    async with (
        place.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        while (delivery := await subscription.receive(timeout=3)) is not None:
            found.add(number(delivery))
            await delivery.ack()
    return found


@pytest.mark.parametrize("kind", KINDS)
async def test_what_the_journal_confirmed_survives_the_loss_of_redis(fragile: Place, kind: TypeName) -> None:
    """Every second one is confirmed by the journal, in the moment before Redis is wiped."""
    topic = fragile.topic(range(1, COUNT + 1))
    confirmed: set[int] = set()
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", window=COUNT
        ) as subscription,
    ):
        for turn in range(COUNT):
            delivery = await next_of(subscription)
            if turn % 2 == 0:
                await delivery.ack(level="journal")
                confirmed.add(number(delivery))
        wipe(fragile.stack)
    assert await rest_of(fragile, topic, kind) == set(range(1, COUNT + 1)) - confirmed


async def test_many_that_wait_share_rounds(fragile: Place) -> None:
    topic = fragile.topic(range(1, 201))
    calls: list[str] = []
    async with (
        fragile.connect(recorder=lambda name, _request, _reply: calls.append(name)) as connection,
        await connection.subscribe(
            topic, durable="d", type="shared", start="earliest", window=200, ack_level="journal"
        ) as subscription,
    ):
        deliveries = [await next_of(subscription) for _ in range(200)]
        calls.clear()
        await asyncio.gather(*(delivery.ack() for delivery in deliveries))
        assert calls.count("inspect") < 50


async def test_a_subscription_has_a_level_of_its_own(fragile: Place) -> None:
    topic = fragile.topic(range(1, 4))
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(
            topic, durable="d", type="shared", start="earliest", ack_level="journal"
        ) as subscription,
    ):
        await (await next_of(subscription)).ack()
        wipe(fragile.stack)
    assert await rest_of(fragile, topic, "shared") == {2, 3}


async def test_checkpoints_are_written_without_anybody_waiting(fragile: Place) -> None:
    """What was settled above a message that nobody settles is not delivered again after a loss."""
    topic = fragile.topic(range(1, COUNT + 1))
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        deliveries = [await next_of(subscription) for _ in range(COUNT)]
        for delivery in deliveries[1:]:
            delivery.ack_nowait()
    wipe(fragile.stack)  # closing has written the last one
    assert await rest_of(fragile, topic, "shared") == {number(deliveries[0])}


async def test_replicated_means_that_a_replica_has_it(fragile: Place) -> None:
    topic = fragile.topic(range(1, 3))
    replica = fragile.stack.replica
    assert replica is not None
    async with (
        fragile.connect(level_timeout=timedelta(seconds=2)) as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        first, second = [await next_of(subscription) for _ in range(2)]
        await first.ack(level="replicated")
        with redis.Redis.from_url(as_administrator(fragile.stack.replica_redis)) as copy:
            (state,) = copy.scan_iter(match=f"kafkadur:{fragile.namespace}:*:def", count=1000)
            partition = stored.read(copy.execute_command, state.decode(), "p:0", PartitionRow)
            assert partition.base == 1
        replica.freeze()
        try:
            with pytest.raises(LevelNotReached, match="replicated"):
                await second.ack(level="replicated")
            assert second.settled
        finally:
            replica.thaw()
    assert await rest_of(fragile, topic, "shared") == set(), "it is settled, though not at that level"


async def test_who_waits_for_the_journal_is_told_when_kafka_does_not_answer(fragile: Place) -> None:
    """In the time of the setting, though the journal is waited for longer; replicas are asked meanwhile."""
    topic = fragile.topic(range(1, 3))
    async with (
        fragile.connect(session_timeout=SESSION, level_timeout=timedelta(seconds=2)) as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        first, second = [await next_of(subscription) for _ in range(2)]
        broker = fragile.stack.brokers[0]
        broker.freeze()
        try:
            journalled = asyncio.create_task(first.ack(level="journal"))
            await second.ack(level="replicated")
            with pytest.raises(LevelNotReached, match="journal"):
                await asyncio.wait_for(journalled, connection.settings.kafka_timeout.total_seconds() / 2)
        finally:
            broker.thaw()


@pytest.mark.parametrize("level", ["journal"])
async def test_what_is_not_durable_is_not_in_the_journal(fragile: Place, level: AckLevel) -> None:
    topic = fragile.topic([])
    async with fragile.connect() as connection:
        with pytest.raises(IllegalState, match="non-durable"):
            await connection.subscribe(topic, type="shared", ack_level=level)
        async with await connection.subscribe(topic, type="shared") as subscription:
            fragile.publish(topic, [1])
            delivery = await next_of(subscription)
            with pytest.raises(IllegalState, match="non-durable"):
                await delivery.ack(level=level)
            await delivery.ack(level="replicated")


async def test_an_incarnation_that_nobody_installed_does_not_keep_the_level_away(fragile: Place) -> None:
    """A fence that came after another recovery: a newer incarnation is begun, and everybody goes on."""
    topic = fragile.topic(range(1, 4))
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        held = [await next_of(subscription) for _ in range(3)]
        await held[0].ack(level="journal")
        tag = connection.key("d").tag
        journal = Journal({"bootstrap.servers": fragile.stack.kafka}, fragile.namespace)
        number_ = journal.append_incarnations("late", {journal.shard(tag): [tag]})
        journal.close()
        with contextlib.suppress(LeaseLost):  # it is not known what becomes of the one that found out
            await held[1].ack(level="journal")
        await held[2].ack(level="journal")
        assert held[2].fencing_token[0] > max(number_.values())
    assert await rest_of(fragile, topic, "shared") <= {2}


async def test_a_new_incarnation_that_waits_for_kafka_keeps_no_exchange_waiting(
    fragile: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the session would end meanwhile, and the messages in flight count an attempt."""
    begun, answered = threading.Event(), threading.Event()
    rebuild = Rebuilder.rebuild

    def wait_and_rebuild(
        self: Rebuilder, keys: Sequence[SubscriptionKey], seen: Mapping[SubscriptionKey, int]
    ) -> object:
        begun.set()
        assert answered.wait(LIMIT_S)
        return rebuild(self, keys, seen)

    monkeypatch.setattr(Rebuilder, "rebuild", wait_and_rebuild)
    topic = fragile.topic(range(1, 4))
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        held = [await next_of(subscription) for _ in range(3)]
        tag = connection.key("d").tag
        journal = Journal({"bootstrap.servers": fragile.stack.kafka}, fragile.namespace)
        journal.append_incarnations("late", {journal.shard(tag): [tag]})
        journal.close()
        finding = asyncio.create_task(held[0].ack(level="journal"))
        try:
            assert await asyncio.to_thread(begun.wait, LIMIT_S)
            await asyncio.wait_for(held[1].ack(), LIMIT_S / 2)
        finally:
            answered.set()
        with contextlib.suppress(LeaseLost):  # as above
            await finding
        await held[2].ack(level="journal")
