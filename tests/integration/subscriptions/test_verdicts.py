"""Verdicts and what follows from them: K4, K6, K7, W10, delays, second and late verdicts, fencing tokens."""

import asyncio
import time
from datetime import timedelta
from typing import Any, cast

import pytest

from kafkadur import AlreadySettled, IllegalState, LeaseLost
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    SOON_S,
    Place,
    ack_all,
    both_types,
    next_of,
    nothing,
    number,
    numbers,
    take,
)


@both_types
async def test_k4_attempts_are_counted(place: Place, kind: TypeName) -> None:
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        for attempt in range(1, 6):
            delivery = await next_of(subscription)
            assert (delivery.attempt, delivery.redelivered) == (attempt, attempt > 1)
            await delivery.rollback()


@both_types
async def test_k4_attempts_outlive_the_subscriber(place: Place, kind: TypeName) -> None:
    topic = place.topic([1])
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest"
        ) as subscription:
            for _ in range(2):
                await (await next_of(subscription)).rollback()
            await (await next_of(subscription)).release()
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            delivery = await next_of(subscription)
            assert (delivery.attempt, delivery.redelivered) == (3, True)


@both_types
async def test_k6_closing_the_connection_gives_back(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 4))
    async with place.connect() as first:
        subscription = await first.subscribe(topic, durable="d", type=kind, start="earliest")
        await (await take(subscription, 3))[1].ack()
    async with (
        place.connect() as second,
        await second.subscribe(topic, durable="d", type=kind) as subscription,
    ):
        assert numbers(await take(subscription, 2)) == [1, 3]
        await nothing(subscription)


@both_types
async def test_k7_acknowledged_never_again(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 101))
    async with place.connect() as connection:
        for round_ in range(4):
            async with await connection.subscribe(
                topic, durable="d", type=kind, start="earliest"
            ) as subscription:
                held = await take(subscription, 100 - 25 * round_)
                left = [n for n in range(1, 101) if n % 4 >= round_]
                assert numbers(held) == left
                await ack_all(delivery for delivery in held if number(delivery) % 4 == round_)
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            await nothing(subscription)


@both_types
@pytest.mark.parametrize("confirmed", [True, False])
async def test_every_second_one_acknowledged(place: Place, kind: TypeName, *, confirmed: bool) -> None:
    """Half of a window of 200 is acknowledged; the other half comes again, all of it into one window."""
    topic = place.topic(range(1, 201))
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, window=200, start="earliest"
        ) as subscription:
            held = await take(subscription, 200)
            if confirmed:
                await ack_all(held[1::2])
            else:
                for delivery in held[1::2]:
                    delivery.ack_nowait()
        async with await connection.subscribe(topic, durable="d", type=kind, window=200) as subscription:
            again: list[int] = []
            while len(again) < 100:
                returned = await subscription.receive(timeout=5)
                assert returned is not None, (len(again), subscription.statistics())
                assert returned.attempt == 1
                again.append(number(returned))
            assert again == list(range(1, 201, 2))
            await nothing(subscription)


@both_types
async def test_every_second_one_rolled_back(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 101))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, window=50, start="earliest"
        ) as subscription,
    ):
        acked: list[int] = []
        while len(acked) < 100:
            delivery = await next_of(subscription)
            if delivery.attempt == 1 and number(delivery) % 2:
                delivery.rollback_nowait()
            else:
                acked.append(number(delivery))
                delivery.ack_nowait()
        assert sorted(acked) == list(range(1, 101))
        await nothing(subscription)


@both_types
@pytest.mark.parametrize("delay", [0.4, timedelta(milliseconds=400)])
async def test_rollback_with_delay(place: Place, kind: TypeName, delay: timedelta | float) -> None:
    """Not before the delay, and soon after it; others come meanwhile."""
    topic = place.topic(range(1, 4))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        first = await next_of(subscription)
        given_back = time.monotonic()
        await first.rollback(delay=delay)
        confirmed = time.monotonic()
        assert numbers(await take(subscription, 2)) == [2, 3]
        again = await next_of(subscription)
        came = time.monotonic()
        assert (number(again), again.attempt) == (1, 2)
        assert came - given_back >= 0.4
        assert came - confirmed < SOON_S


async def test_rollback_with_delay_holds_a_lane_of_window_1(place: Place) -> None:
    topic = place.topic(range(1, 3))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="exclusive", window=1, start="earliest"
        ) as subscription,
    ):
        await (await next_of(subscription)).rollback(delay=0.3)
        again = await next_of(subscription)
        assert (number(again), again.attempt) == (1, 2)
        await again.ack()
        assert number(await next_of(subscription)) == 2


@both_types
async def test_rollback_without_a_verdict_elsewhere_wakes_the_waiting(place: Place, kind: TypeName) -> None:
    """A consumer that waits gets what another task of it gives back, at once."""
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        delivery = await next_of(subscription)
        waiting = asyncio.create_task(next_of(subscription))
        await nothing_done(waiting)
        await delivery.rollback()
        started = time.monotonic()
        assert (await waiting).attempt == 2
        assert time.monotonic() - started < SOON_S


async def nothing_done(task: "asyncio.Task[object]") -> None:
    """Let the task run until it waits."""
    await asyncio.wait([task], timeout=0.05)
    assert not task.done()


@both_types
async def test_release_is_not_counted(place: Place, kind: TypeName) -> None:
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        for _ in range(3):
            delivery = await next_of(subscription)
            assert delivery.attempt == 1
            await delivery.release()
        assert (await next_of(subscription)).redelivered


@both_types
@pytest.mark.parametrize("first", ["ack", "rollback", "release"])
@pytest.mark.parametrize("second", ["ack", "rollback", "release", "extend"])
async def test_second_verdict_is_refused(place: Place, kind: TypeName, first: str, second: str) -> None:
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        delivery = await next_of(subscription)
        await getattr(delivery, first)()
        # a message that was released is in flight no more, and has no verdict
        refusal = LeaseLost if first == "release" else AlreadySettled
        with pytest.raises(refusal) as caught:
            await getattr(delivery, second)()
        assert delivery.settled is (first != "release")
        assert f"{topic}[0]@0" in str(caught.value)
        assert caught.value.remedy


async def test_second_verdict_for_a_batch_is_refused_whole(place: Place) -> None:
    topic = place.topic(range(1, 5))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        batch = await subscription.receive_batch(4, timeout=LIMIT_S)
        assert batch is not None
        batch[0].ack_nowait()
        with pytest.raises(AlreadySettled):
            batch.ack_nowait()


async def test_unknown_ack_level_changes_nothing(place: Place) -> None:
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        delivery = await next_of(subscription)
        with pytest.raises(IllegalState, match="never"):
            await delivery.ack(level=cast("Any", "never"))
        await delivery.ack()


@both_types
async def test_extend_confirms_the_lease(place: Place, kind: TypeName) -> None:
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        delivery = await next_of(subscription)
        await delivery.extend()
        await delivery.ack()


@both_types
async def test_verdict_after_close_is_refused_and_the_message_comes_again(
    place: Place, kind: TypeName
) -> None:
    topic = place.topic([1])
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest"
        ) as subscription:
            delivery = await next_of(subscription)
        with pytest.raises(LeaseLost):
            await delivery.ack()
        assert not delivery.settled
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            assert (await next_of(subscription)).attempt == 1


@both_types
async def test_fencing_tokens_rise(place: Place, kind: TypeName) -> None:
    topic = place.topic([1])
    tokens: list[tuple[int, int]] = []
    async with place.connect() as connection:
        for _ in range(3):
            async with await connection.subscribe(
                topic, durable="d", type=kind, start="earliest"
            ) as subscription:
                for _ in range(3):
                    delivery = await next_of(subscription)
                    tokens.append(delivery.fencing_token)
                    await delivery.rollback()
    assert tokens == sorted(set(tokens))


async def test_w10_rolled_back_may_go_to_another_member(place: Place) -> None:
    topic = place.topic([1])
    async with place.connect() as connection:
        one = await connection.subscribe(topic, durable="d", type="shared", start="earliest")
        two = await connection.subscribe(topic, durable="d", type="shared")
        held = await next_of(one)
        await held.rollback()
        waiting = [asyncio.create_task(member.receive(timeout=LIMIT_S)) for member in (one, two)]
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        (again,) = [task.result() for task in done]
        assert again is not None
        assert again.attempt == 2
        await again.ack()


async def test_closing_raises_what_could_not_be_confirmed_never_silently(place: Place) -> None:
    """Acknowledgements without waiting are confirmed by closing."""
    topic = place.topic(range(1, 51))
    async with place.connect() as connection:
        kinds: tuple[tuple[TypeName, str], ...] = (("shared", "s"), ("exclusive", "e"))
        for kind, durable in kinds:
            subscription = await connection.subscribe(topic, durable=durable, type=kind, start="earliest")
            for delivery in await take(subscription, 50):
                delivery.ack_nowait()
            await subscription.close()
            async with await connection.subscribe(topic, durable=durable, type=kind) as again:
                await nothing(again)
