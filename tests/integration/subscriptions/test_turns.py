"""Lanes that change hands: serial (W1-W5b) and priority (W9), failover, preemption, events."""

import asyncio
import time
from collections.abc import Callable
from itertools import groupby, pairwise

import pytest

import kafkadur
from kafkadur import Event
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    SILENCE_S,
    Place,
    ack_all,
    next_of,
    nothing,
    number,
    numbers,
    ready,
    take,
)
from tests.integration.subscriptions.workers import Worker

#: A generous bound on what is promised within a second: far below the session time-out of 10 s.
NOTICED_S = 5.0


async def first_of(
    first: kafkadur.Subscription, second: kafkadur.Subscription
) -> tuple[kafkadur.Subscription, kafkadur.Delivery]:
    """Whoever gets a message first, and the message."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for subscription in (first, second):
            delivery = await subscription.receive(timeout=0.02)
            if delivery is not None:
                return subscription, delivery
    pytest.fail(f"no delivery: {first.statistics()} {second.statistics()}")


async def free(connection: kafkadur.Connection, durable: str) -> None:
    """Wait until no member holds a lease: the holder of an empty lane has heard that others wait."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        known = await connection.known(durable)
        if known is not None and not any(member.leases for member in known.members):
            return
        assert time.monotonic() < deadline, known
        await asyncio.sleep(0.005)


async def test_w1_serial_window_1(place: Place) -> None:
    topic = place.topic(range(1, 7))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="serial", window=1, start="earliest") as only,
    ):
        for expected in (1, 2, 3, 4):
            delivery = await next_of(only)
            assert number(delivery) == expected
            await delivery.ack()
        fifth = await next_of(only)
        await nothing(only)
        await fifth.rollback()
        again = await next_of(only)
        assert (number(again), again.attempt) == (5, 2)
        await nothing(only)  # e6 only after 5' is acknowledged
        await again.ack()
        assert number(await next_of(only)) == 6


async def test_w2_serial_window_6(place: Place) -> None:
    topic = place.topic(range(1, 7))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="serial", window=6, start="earliest") as only,
    ):
        sent = await take(only, 6)
        await ack_all(sent[:4])
        await sent[4].rollback()
        await sent[5].ack()
        again = await next_of(only)
        assert numbers([*sent, again]) == [1, 2, 3, 4, 5, 6, 5]
        await again.ack()
        await nothing(only)


async def test_w3b_serial_redelivers_only_the_unacknowledged(place: Place) -> None:
    topic = place.topic(range(1, 5))
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type="serial", window=6, start="earliest"
        ) as subscription:
            sent = await take(subscription, 4)
            await sent[3].ack()
        async with await connection.subscribe(topic, durable="d", type="serial", window=6) as subscription:
            assert numbers(await take(subscription, 3)) == [1, 2, 3]
            await nothing(subscription)


@pytest.mark.parametrize("backlog", [True, False])
async def test_w4_members_take_turns(place: Place, *, backlog: bool) -> None:
    topic = place.topic(range(1, 6) if backlog else ())
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="serial", window=1, start="earliest") as first,
        await connection.subscribe(topic, durable="d", type="serial", window=1) as second,
    ):
        await ready(connection, "d", 2)
        if not backlog:
            await free(connection, "d")
        seen: list[tuple[kafkadur.Subscription, int]] = []
        for n in range(1, 6):
            if not backlog:
                place.publish(topic, [n])
            who, delivery = await first_of(first, second)
            await nothing(second if who is first else first)  # one in flight among all
            seen.append((who, number(delivery)))
            await delivery.ack()
        assert [n for _, n in seen] == list(range(1, 6))
        turns = [who for who, _ in seen]
        assert all(a is not b for a, b in pairwise(turns)), "each turn is somebody else's"


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("window", [1, 5])
async def test_w4_a_turn_is_a_window_of_all_partitions_together(
    place: Place, window: int, *, confirmed: bool
) -> None:
    topic = place.topic(partitions=4)
    for partition in range(4):
        place.publish(topic, range(partition * 25, partition * 25 + 25), partition=partition)
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="serial", window=window, start="earliest"
        ) as first,
        await connection.subscribe(topic, durable="d", type="serial", window=window) as second,
    ):
        await ready(connection, "d", 2)
        seen: list[tuple[str, int]] = []

        async def work(subscription: kafkadur.Subscription, name: str) -> None:
            while len(seen) < 100:
                delivery = await subscription.receive(timeout=0.05)
                if delivery is None:
                    continue
                seen.append((name, number(delivery)))
                if confirmed:
                    await delivery.ack()
                else:
                    delivery.ack_nowait()

        await asyncio.wait_for(asyncio.gather(work(first, "one"), work(second, "two")), LIMIT_S)
    assert sorted(n for _, n in seen) == list(range(100))
    turns = [len(list(turn)) for _, turn in groupby(who for who, _ in seen)]
    assert max(turns[1:]) <= window, turns  # in the first one nobody else may have been ready


async def test_the_wake_of_the_next_member_brings_its_turn(place: Place) -> None:
    topic = place.topic(range(40))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="serial", window=1, start="earliest") as first,
        await connection.subscribe(topic, durable="d", type="serial", window=1) as second,
    ):
        members = [first, second]
        waiting = {asyncio.create_task(next_of(member)): member for member in members}
        exchanges = [0]
        for expected in range(40):
            (done, *_), _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            member = waiting.pop(done)
            delivery = done.result()
            assert number(delivery) == expected
            await delivery.ack()
            exchanges.append(sum(member.statistics()["exchanges"] for member in members))
            if expected < 39:
                waiting[asyncio.create_task(next_of(member))] = member
        for left in waiting:
            left.cancel()
    assert exchanges[40] - exchanges[10] < 45, "one a message, and a few more"


async def test_w4b_what_was_rolled_back_comes_next_to_whom_it_may(place: Place) -> None:
    topic = place.topic(range(1, 5))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="serial", window=1, start="earliest") as first,
        await connection.subscribe(topic, durable="d", type="serial", window=1) as second,
    ):
        await ready(connection, "d", 2)
        _, delivery = await first_of(first, second)
        assert number(delivery) == 1
        await delivery.rollback()
        _, again = await first_of(first, second)
        assert (number(again), again.attempt) == (1, 2)
        await again.ack()
        _, following = await first_of(first, second)
        assert number(following) == 2


async def test_w5_a_free_seat_is_the_holders(place: Place) -> None:
    topic = place.topic(range(1, 7))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="serial", window=6, start="earliest") as first,
    ):
        sent = await take(first, 6)
        async with await connection.subscribe(topic, durable="d", type="serial", window=6) as second:
            await ready(connection, "d", 2)
            await sent[0].ack()
            place.publish(topic, [7])
            seventh = await next_of(first)
            assert number(seventh) == 7
            await nothing(second)
            # W5b: only now is the other one eligible
            await ack_all([*sent[1:], seventh])
            place.publish(topic, [8])
            eighth = await next_of(second)
            assert number(eighth) == 8
            await nothing(first)


async def test_i3_serial_in_order_and_alone_under_load(place: Place) -> None:
    """Three members, two partitions: in order a partition, and never two holders at a time."""
    topic = place.topic(range(150), partitions=2)
    place.publish(topic, range(1000, 1150), partition=1)
    in_hands: dict[int, int] = {}
    seen: list[int] = []

    async def work(subscription: kafkadur.Subscription, me: int) -> int:
        count = 0
        deadline = time.monotonic() + LIMIT_S
        while len(seen) < 300:
            assert time.monotonic() < deadline, (len(seen), subscription.statistics())
            delivery = await subscription.receive(timeout=0.1)
            if delivery is None:
                continue
            in_hands[me] = in_hands.get(me, 0) + 1
            assert [who for who, held in in_hands.items() if held] == [me]
            seen.append(number(delivery))
            count += 1
            await asyncio.sleep(0)
            in_hands[me] -= 1
            if count % 7 == 0:
                delivery.ack_nowait()
            else:
                await delivery.ack()
        return count

    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="serial", window=1, start="earliest") as first,
        await connection.subscribe(topic, durable="d", type="serial", window=1) as second,
        await connection.subscribe(topic, durable="d", type="serial", window=1) as third,
    ):
        await ready(connection, "d", 3)
        counts = await asyncio.gather(*(work(s, i) for i, s in enumerate((first, second, third))))
    assert sorted(seen) == [*range(150), *range(1000, 1150)]
    assert [n for n in seen if n < 1000] == list(range(150))
    assert [n for n in seen if n >= 1000] == list(range(1000, 1150))
    assert min(counts) > 60, "everybody had turns"


async def test_w9_the_next_one_goes_on_where_the_holder_stopped(place: Place) -> None:
    topic = place.topic(range(1, 7))
    events: list[Event] = []
    async with place.connect() as connection:
        first = await connection.subscribe(
            topic, durable="d", type="priority", window=1, start="earliest", priority=2
        )
        async with await connection.subscribe(
            topic, durable="d", type="priority", window=1, priority=1, on_event=events.append
        ) as second:
            for expected in (1, 2):
                delivery = await next_of(first)
                assert number(delivery) == expected
                await delivery.ack()
            assert number(await next_of(first)) == 3
            await nothing(second)
            assert events == []
            closed = time.monotonic()
            await first.close()
            delivery = await next_of(second)
            assert (number(delivery), delivery.attempt, delivery.redelivered) == (3, 1, True)
            assert events == [Event.BECAME_ACTIVE]
            await delivery.ack()
            assert number(await next_of(second)) == 4
            print(f"clean close to the next holder's first message: {time.monotonic() - closed:.3f} s")  # noqa: T201 - see above


async def test_the_best_of_several_follows(place: Place) -> None:
    topic = place.topic(range(1, 3))
    async with place.connect() as connection:
        first = await connection.subscribe(topic, durable="d", type="priority", start="earliest", window=1)
        async with (
            await connection.subscribe(topic, durable="d", type="priority", window=1, priority=1) as low,
            await connection.subscribe(topic, durable="d", type="priority", window=1, priority=5) as high,
        ):
            assert number(await next_of(first)) == 1
            await nothing(high)  # it does not preempt
            await first.close()
            assert number(await next_of(high)) == 1
            await nothing(low)


@pytest.mark.parametrize("window", [1, 8])
async def test_preemption_drains_first(place: Place, window: int) -> None:
    topic = place.topic(range(1, 21))
    events: list[tuple[str, Event]] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic,
            durable="d",
            type="priority",
            start="earliest",
            window=window,
            on_event=lambda event: events.append(("low", event)),
        ) as low,
    ):
        held = await take(low, min(window, 3))
        async with await connection.subscribe(
            topic,
            durable="d",
            type="priority",
            window=window,
            priority=9,
            preempt=True,
            on_event=lambda event: events.append(("high", event)),
        ) as high:
            await nothing(high)  # the holder has not drained
            await nothing(low)  # and gets nothing more
            await ack_all(held)
            delivery = await next_of(high)
            assert (number(delivery), delivery.attempt, delivery.redelivered) == (len(held) + 1, 1, False)
            await nothing(low)
            await delivery.ack()
            assert events == [
                ("low", Event.BECAME_ACTIVE),
                ("low", Event.BECAME_STANDBY),
                ("high", Event.BECAME_ACTIVE),
            ]
        rest = [await next_of(low) for _ in range(min(window, 2))]
        assert numbers(rest) == list(range(len(held) + 2, len(held) + 2 + len(rest)))


@pytest.mark.parametrize("kind", ["serial", "priority"])
def test_w9_killed_holder(place: Place, start_worker: Callable[..., Worker], kind: TypeName) -> None:
    topic = place.topic(range(1, 6))
    worker = start_worker(topic, durable="d", type=kind, window=1, start="earliest")
    assert worker.receive(1) == [(1, 1)]
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type=kind, window=1) as next_one,
    ):
        assert next_one.receive(timeout=SILENCE_S) is None
        killed = time.monotonic()
        worker.kill()
        delivery = next_one.receive(timeout=LIMIT_S)
        noticed = time.monotonic() - killed
        assert delivery is not None
        assert (int(delivery.value or b"0"), delivery.attempt) == (1, 2)
        delivery.ack()
        got = []
        for _ in range(4):
            delivery = next_one.receive(timeout=LIMIT_S)
            assert delivery is not None
            got.append(
                int(delivery.value or b"0")
            )  # they may have been handed out: their attempts count, too
            delivery.ack()
        assert got == [2, 3, 4, 5]
    print(f"killed holder replaced after {noticed:.3f} s")  # noqa: T201 - the figure is what one wants to see
    assert noticed < NOTICED_S
