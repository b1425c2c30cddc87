"""What is in an application's hands when Redis loses or restarts its state: it is claimed, not repeated.

These tests break Valkey, so they have a stack of their own.
"""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis

import kafkadur
from kafkadur.stack import Stack, TcpProxy, Valkey, embedded
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import PRIORITY_TOO, Place, next_of, number, place_on

#: A member that was not heard for a session claims nothing: longer than a restart of Valkey takes.
SESSION = timedelta(seconds=3)
COUNT, HELD = 60, 12
KINDS = ("shared", "exclusive", PRIORITY_TOO, "serial")


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    """Provide a stack that may be broken."""
    with embedded(users=True) as stack:
        yield stack


@pytest.fixture
def fragile(own_stack: Stack) -> Iterator[Place]:
    """Provide a place on it."""
    with place_on(own_stack) as place:
        yield place


def valkey(place: Place) -> Valkey:
    assert place.stack.valkey is not None
    return place.stack.valkey


async def wipe(place: Place) -> None:
    with redis.Redis.from_url(place.stack.admin_redis) as server:
        await asyncio.to_thread(server.flushall)


async def restart(place: Place) -> None:
    await asyncio.to_thread(valkey(place).kill)
    await asyncio.to_thread(valkey(place).start)


FAULTS = {"wiped": wipe, "restarted": restart}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_in_hands_is_settled_and_not_repeated(
    fragile: Place, kind: TypeName, fault: str
) -> None:
    topic = fragile.topic(range(1, COUNT + 1))
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", window=HELD
        ) as subscription,
    ):
        held = [await next_of(subscription) for _ in range(HELD)]
        tokens = [delivery.fencing_token for delivery in held]
        await FAULTS[fault](fragile)
        await asyncio.gather(*(delivery.ack() for delivery in held[: HELD // 2]))
        for delivery in held[HELD // 2 :]:
            delivery.ack_nowait()
        assert all(new > old for new, old in zip([d.fencing_token for d in held], tokens, strict=True))
        rest: list[kafkadur.Delivery] = []
        while len(rest) < COUNT - HELD:
            rest.append(await next_of(subscription))
            await rest[-1].ack()
        assert await subscription.receive(timeout=2) is None
    assert sorted(map(number, rest)) == list(range(HELD + 1, COUNT + 1))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_roll_back_that_nobody_had_confirmed_counts(
    fragile: Place, kind: TypeName, fault: str
) -> None:
    topic = fragile.topic([1, 2, 3])
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        first, second, third = [await next_of(subscription) for _ in range(3)]
        await FAULTS[fault](fragile)
        second.rollback_nowait()
        third.release_nowait()
        await first.rollback()
        again = {number(one): one for one in [await next_of(subscription) for _ in range(3)]}
        assert {which: one.attempt for which, one in again.items()} == {1: 2, 2: 2, 3: 1}
        assert all(one.redelivered for one in again.values())
        for one in again.values():
            await one.ack()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_dead_letter_that_waits_is_written_once(fragile: Place, fault: str) -> None:
    topic = fragile.topic([1, 2])
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        first, second = [await next_of(subscription) for _ in range(2)]
        await FAULTS[fault](fragile)
        await first.reject("no use")
        await second.rollback()
        again = await next_of(subscription)
        assert number(again) == 2
        await again.ack()
        assert await subscription.receive(timeout=2) is None


async def test_what_is_claimed_goes_to_nobody_else(fragile: Place) -> None:
    topic = fragile.topic(range(1, HELD + 1))
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        fragile.connect(session_timeout=SESSION) as others,
        await connection.subscribe(
            topic, durable="d", type="shared", start="earliest", window=HELD
        ) as subscription,
    ):
        held = [await next_of(subscription) for _ in range(HELD)]
        await wipe(fragile)
        await asyncio.gather(*(delivery.ack() for delivery in held[:3]))
        async with await others.subscribe(topic, durable="d", type="shared", window=HELD) as second:
            assert await second.receive(timeout=2) is None, "all the others are claimed"
            for delivery in held[3:]:
                await delivery.ack()
            assert await second.receive(timeout=1) is None


@pytest.mark.parametrize("kind", ["shared", PRIORITY_TOO, "serial"])
async def test_a_message_that_was_taken_over_before_a_wipe_is_not_confirmed_twice(
    fragile: Place, kind: TypeName
) -> None:
    """Its first holder was cut off for less than a session, and the wiped state knew of the second one."""
    topic = fragile.topic([1])
    server = valkey(fragile)
    with TcpProxy(("127.0.0.1", server.port)) as link:
        async with (
            fragile.connect(redis=server.url_at(link.address), session_timeout=SESSION) as connection,
            fragile.connect(session_timeout=SESSION) as beside,
            await connection.subscribe(topic, durable="d", type=kind, start="earliest") as old,
        ):
            first = await next_of(old)
            async with await beside.subscribe(topic, durable="d", type=kind) as new:
                link.cut(refuse=True)
                second = await next_of(new)
                await second.ack()
                await wipe(fragile)
                link.resume()
                with pytest.raises(kafkadur.LeaseLost):
                    await first.ack()


async def test_closing_in_the_middle_gives_back_what_is_in_hands(fragile: Place) -> None:
    topic = fragile.topic(range(1, HELD + 1))
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(
            topic, durable="d", type="shared", start="earliest", window=HELD
        ) as subscription,
    ):
        held = [await next_of(subscription) for _ in range(HELD)]
        # while a disk is busy, a server that is killed loses what it has confirmed in the last two seconds
        await asyncio.gather(*(delivery.ack(level="journal") for delivery in held[:4]))
        await restart(fragile)
    async with (
        fragile.connect(session_timeout=SESSION) as connection,
        await connection.subscribe(topic, durable="d", type="shared") as subscription,
    ):
        again = {number(await next_of(subscription)) for _ in range(HELD - 4)}
        assert again == {number(delivery) for delivery in held[4:]}
