"""Interleavings that once went wrong: verdicts, lost leases, lanes of keys, dead letters at a bad moment."""

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest

import kafkadur
from kafkadur import AlreadySettled, LeaseLost, Redelivery
from kafkadur.consumer.chunk import Chunk
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, next_of, nothing, number, take, wait_until
from tests.integration.subscriptions.workers import Worker


def publish(place: Place, topic: str, messages: Iterable[tuple[str, int]], *, partition: int = 0) -> None:
    """Publish (key, number)."""
    for key, n in messages:
        place.raw.produce(topic, str(n), key=key, partition=partition)
    assert place.raw.flush(LIMIT_S) == 0


@pytest.mark.parametrize("kind", ["key-ordered", "exclusive"])
def test_crash_then_orderly_restart_of_a_last_attempt(
    place: Place, start_worker: Callable[..., Worker], kind: TypeName
) -> None:
    """What was released is no suspect any more, and lies before one that has to be alone."""
    topic = place.make_topic(1)
    publish(place, topic, [("k", 0), ("k", 1), ("k", 2)])
    worker = start_worker(topic, durable="d", type=kind, window=10, start="earliest", max_attempts=2)
    worker.receive(1 if kind == "key-ordered" else 2)
    worker.kill()
    with place.connect_sync() as connection:
        with connection.subscribe(topic, durable="d", type=kind, window=10) as subscription:
            assert subscription.receive(timeout=LIMIT_S) is not None
        with connection.subscribe(topic, durable="d", type=kind, window=10) as subscription:
            for n in range(3):
                delivery = subscription.receive(timeout=LIMIT_S)
                assert delivery is not None
                assert int(delivery.value or b"-1") == n
                delivery.ack()


async def test_lane_that_was_asked_for_and_comes_back(place: Place) -> None:
    """A second member comes and goes while a lane is drained: its keeper gets it again, to be read anew."""
    topic = place.make_topic(2)
    publish(place, topic, ((f"k{n % 3}", n) for n in range(200)), partition=1)
    async with place.connect() as connection:
        first = await connection.subscribe(
            topic, durable="d", type="key-ordered", window=10, start="earliest", key_lanes=1
        )
        held = await take(first, 3)
        second = await connection.subscribe(topic, durable="d", type="key-ordered", window=10)
        await nothing(first)
        await second.close()
        await nothing(first)
        for delivery in held:
            await delivery.ack()
        seen = [number(delivery) for delivery in held]
        rolled_back = False
        while len(seen) < 200:
            delivery = await next_of(first)
            if len(seen) == 100 and not rolled_back:
                rolled_back = True
                await delivery.rollback()
                continue
            seen.append(number(delivery))
            await delivery.ack()
        for key in range(3):
            of_key = [n for n in seen if n % 3 == key]
            assert of_key == sorted(of_key)
        assert sorted(seen) == list(range(200))


async def test_reason_that_is_no_text_to_others(place: Place) -> None:
    """A reason with half a character in it, as file names may have, stops no other dead letter."""
    topic = place.topic(range(1, 3))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        first, second = await take(subscription, 2)
        async with asyncio.timeout(LIMIT_S):
            await first.reject("bad file name " + b"\xff".decode(errors="surrogateescape"))
            await second.reject("plain")


@pytest.mark.parametrize("kind", ["shared", "key-ordered", "exclusive"])
async def test_nothing_stale_is_handed_out_after_a_loss(place: Place, kind: TypeName) -> None:
    topic = place.make_topic(1)
    publish(place, topic, [(f"k{n}", n) for n in range(50)])
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", window=400
        ) as subscription,
    ):
        first = await next_of(subscription)
        subscription._member.lose("a test says so")  # noqa: SLF001 - no way to lose leases from outside in time
        with pytest.raises(LeaseLost):
            first.ack_nowait()
        assert await subscription.receive(timeout=0.0) is None


async def test_rollback_that_waits_while_its_time_runs_out(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application's thread waits for the member's lock; meanwhile the message is taken back."""
    topic = place.topic(range(1, 4))
    policy = Redelivery(max_hold=timedelta(seconds=0.3))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="exclusive", window=1, start="earliest", redelivery=policy
        ) as subscription,
    ):
        delivery = await next_of(subscription)
        verdicts = subscription._member.verdicts  # noqa: SLF001 - stands before its lock
        real = verdicts.roll_back

        def late(chunk: Chunk, index: int, delay: int, reason: str) -> bool:
            deadline = time.monotonic() + LIMIT_S
            while index not in chunk.overdue and time.monotonic() < deadline:
                time.sleep(0.01)
            return real(chunk, index, delay, reason)

        monkeypatch.setattr(verdicts, "roll_back", late)
        with pytest.raises((LeaseLost, AlreadySettled)):
            await asyncio.to_thread(delivery.rollback_nowait)
        monkeypatch.undo()
        seen: list[tuple[int, int]] = []
        for _ in range(3):
            again = await next_of(subscription)
            seen.append((number(again), again.attempt))
            await again.ack()
        assert seen == [(1, 2), (2, 1), (3, 1)]


class Told:
    """Somebody who waits for a confirmation."""

    def __init__(self) -> None:
        self.error: object = "nothing yet"

    def resolve(self, error: kafkadur.KafkadurError | None) -> None:
        self.error = error


async def test_ack_in_the_moment_a_lane_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was confirmed does not come again, at the next keeper."""
    topic = place.make_topic(1)
    keys = [f"key-{n}" for n in range(40)]
    publish(place, topic, [(key, n) for n, key in enumerate(keys)])
    async with place.connect() as connection:
        first = await connection.subscribe(
            topic, durable="d", type="key-ordered", window=100, start="earliest"
        )
        held = await take(first, 40)
        second = await connection.subscribe(topic, durable="d", type="key-ordered", window=100)
        await nothing(second)
        member = first._member  # noqa: SLF001 - the moment is within it
        lane = next(iter(member._policy.draining))  # noqa: SLF001 - as above
        mine = [d for d in held if d._chunk.lease.partition == lane]  # noqa: SLF001 - as above
        policy = member._policy  # noqa: SLF001 - as above
        real = policy.gives_up
        told: list[tuple[kafkadur.Delivery, Told]] = []

        def gives_up(lane_: int) -> bool:
            if lane_ == lane and not told:
                for delivery in mine:
                    delivery.ack_nowait()
                    told.append((delivery, Told()))
            return real(lane_)

        monkeypatch.setattr(policy, "gives_up", gives_up)
        member._schedule.touch({lane})  # noqa: SLF001 - as above
        member.request_exchange()
        await asyncio.to_thread(wait_until, lambda: bool(told), "the moment")
        for delivery, waiting in told:
            member.verdicts.confirm(delivery._chunk, waiting)  # noqa: SLF001 - as above
        member.request_exchange()
        others = [d for d in held if d not in mine]
        for delivery in others:
            await delivery.ack()
        again: set[int] = set()
        while (delivery_ := await second.receive(timeout=1.0)) is not None:
            again.add(delivery_.offset)
            await delivery_.ack()
        confirmed = {delivery.offset for delivery, waiting in told if waiting.error is None}
        assert confirmed, [waiting.error for _, waiting in told]
        assert not confirmed & again


@pytest.mark.parametrize("window", [1, 5])
async def test_lanes_at_their_horizon_go_on_at_once(place: Place, window: int) -> None:
    """Many lanes, few free seats, hot keys: no lane waits for the renewal of the session."""
    topic = place.make_topic(1)
    count = 600
    chance = random.Random(3)
    names = [
        f"h{chance.randrange(200)}" if chance.random() < 0.2 else chance.choice("abc") for _ in range(count)
    ]
    publish(place, topic, list(zip(names, range(count), strict=True)))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="key-ordered", window=window, start="earliest", unconfirmed=0
        ) as subscription,
    ):
        for n in range(count):
            delivery = await subscription.receive(timeout=2.5)
            assert delivery is not None, f"a stall after {n}: {subscription.statistics()}"
            delivery.ack_nowait()


async def test_a_draining_lane_does_not_stop_the_others(place: Place) -> None:
    topic = place.make_topic(1)
    keys = [f"key-{n}" for n in range(40)]
    publish(place, topic, [(key, n) for n, key in enumerate(keys)])
    async with place.connect() as connection:
        first = await connection.subscribe(
            topic, durable="d", type="key-ordered", window=100, start="earliest"
        )
        held = await take(first, 40)
        second = await connection.subscribe(topic, durable="d", type="key-ordered", window=100)
        await nothing(second)
        draining = set(first._member._policy.draining)  # noqa: SLF001 - which lanes they are
        stuck = next(d for d in held if d._chunk.lease.partition in draining)  # noqa: SLF001 - as above
        keep = next(d for d in held if d._chunk.lease.partition not in draining)  # noqa: SLF001 - as above
        for delivery in held:
            if delivery is not stuck:
                await delivery.ack()
        publish(place, topic, [((stuck.key or b"").decode(), n) for n in range(12_000)])
        publish(place, topic, [((keep.key or b"").decode(), 77)])
        other = await next_of(first)
        assert other.key == keep.key
        await other.ack()
        await stuck.ack()
