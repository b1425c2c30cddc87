"""Sessions: everything delivered by several subscriptions is acknowledged or recovered together (K1, K3)."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

import kafkadur
import kafkadur.sync
from kafkadur import AlreadySettled, ConnectionClosed, LeaseLost
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_coordinators.redis.wire import DetachRequest
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    PRIORITY_TOO,
    SILENCE_S,
    Place,
    both_types,
    next_of,
    nothing,
    number,
    numbers,
    take,
)

Counts = Callable[[kafkadur.Subscription | kafkadur.sync.Subscription], int]

every_type = pytest.mark.parametrize("kind", ["shared", "exclusive", PRIORITY_TOO, "serial"])

#: A window of which the iterator takes ten records at once.
WINDOW = 40
#: After a loss of state nothing is granted for one session: a short one keeps the tests short.
SESSION = timedelta(seconds=1)

#: Seconds after which an iteration that stands still is given up.
STANDSTILL_S = 3.0


@pytest.fixture
def settled(place: Place) -> Iterator[Counts]:
    """Provide a look into the shared state: how many messages of a subscription are settled now."""
    coordinator = RedisCoordinator(place.stack.redis)

    def count(subscription: kafkadur.Subscription | kafkadur.sync.Subscription) -> int:
        known = subscription.definition
        partitions = range(known.topic.partitions)
        return sum(
            view.next - view.unsettled
            for first in range(0, len(partitions), 16)
            for view in coordinator.inspect(
                known.address, known.id, known.topic.id, partitions[first : first + 16]
            ).partitions
        )

    yield count
    coordinator.close()


def end_leases(place: Place, subscription: kafkadur.Subscription | kafkadur.sync.Subscription) -> None:
    """Have a member taken off the list, as somebody does who finds that its session is over."""
    found = subscription.definition
    coordinator = RedisCoordinator(place.stack.redis)
    common = coordinator.common(subscription_id=found.id, member=subscription.member_id)
    coordinator.call("detach", found.address.fixed(), [*common, *DetachRequest([], 0)])
    coordinator.close()


# -- acknowledging


@every_type
async def test_k1_acknowledges_everything_received(place: Place, settled: Counts, kind: TypeName) -> None:
    topic = place.topic(range(1, 21))
    async with place.connect() as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", session=session
        ) as subscription:
            held = await take(subscription, 12)
            batch = await subscription.receive_batch(3, timeout=LIMIT_S)
            assert batch is not None
            await session.acknowledge()
            received = 12 + len(batch)
            assert settled(subscription) == received, "confirmed before acknowledge returns"
            assert all(delivery.settled for delivery in [*held, *batch])
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            rest = await take(subscription, 20 - received)
            assert numbers(rest) == list(range(received + 1, 21))
            assert {delivery.attempt for delivery in rest} == {1}
            await nothing(subscription)


@both_types
async def test_k1_what_waits_for_the_iterator_is_not_acknowledged(
    place: Place, settled: Counts, kind: TypeName
) -> None:
    """The iterator takes ten records at once, of which three were received."""
    topic = place.topic(range(1, 31))
    async with place.connect() as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type=kind, window=WINDOW, start="earliest", session=session
        ) as subscription:
            assert numbers(await take(subscription, 3)) == [1, 2, 3]
            assert subscription.statistics()["in_hands"] > 3, "the iterator has taken more"
            await session.acknowledge()
            assert settled(subscription) == 3
            assert numbers(await take(subscription, 4)) == [4, 5, 6, 7]
            await session.acknowledge()
            assert settled(subscription) == 7
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            rest = await take(subscription, 23)
            assert sorted(numbers(rest)) == list(range(8, 31))
            assert {delivery.attempt for delivery in rest} == {1}


@every_type
async def test_k1_acknowledging_on_many_partitions(place: Place, settled: Counts, kind: TypeName) -> None:
    """More of them than one exchange touches."""
    topic = place.topic(partitions=20)
    for partition in range(20):
        place.publish(topic, range(partition * 3, partition * 3 + 3), partition=partition)
    async with place.connect() as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", session=session
        ) as subscription:
            assert sorted(numbers(await take(subscription, 60))) == list(range(60))
            await session.acknowledge()
            assert settled(subscription) == 60
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            await nothing(subscription)


@every_type
async def test_k1_acknowledging_within_the_iteration(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 51))
    seen: list[int] = []
    async with place.connect() as connection:
        session = connection.session()
        async with (
            await connection.subscribe(
                topic, durable="d", type=kind, window=WINDOW, start="earliest", session=session
            ) as subscription,
            asyncio.timeout(STANDSTILL_S),
        ):
            async for delivery in subscription:
                seen.append(number(delivery))
                if len(seen) % 7 == 0 or len(seen) == 50:
                    await session.acknowledge()
                if len(seen) == 50:
                    break
        assert seen == list(range(1, 51))


async def test_k1_acknowledging_within_a_handler(place: Place) -> None:
    topic = place.topic(range(1, 51))
    seen: list[int] = []
    async with place.connect() as connection:
        session = connection.session()
        async with (
            await connection.subscribe(
                topic, durable="d", window=WINDOW, start="earliest", session=session
            ) as subscription,
            asyncio.timeout(STANDSTILL_S),
        ):

            async def handle(delivery: kafkadur.Delivery) -> None:
                seen.append(number(delivery))
                if len(seen) % 7 == 0:
                    await session.acknowledge()
                if len(seen) == 50:
                    subscription.stop()

            await subscription.run(handle)
        assert seen == list(range(1, 51))


@every_type
async def test_k1_a_window_of_one_goes_on_after_it(place: Place, kind: TypeName) -> None:
    topic = place.topic([1, 2, 3])
    async with place.connect() as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type=kind, window=1, start="earliest", session=session
        ) as subscription:
            for expected in (1, 2, 3):
                assert number(await next_of(subscription)) == expected
                assert await subscription.receive(timeout=0.05) is None, "one is in hands"
                await session.acknowledge()
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            await nothing(subscription)


# -- recovering


@every_type
async def test_k3_everything_received_and_unsettled_comes_again(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 11))
    async with place.connect() as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", session=session
        ) as subscription:
            held = await take(subscription, 10)
            await held[2].ack()
            held[5].ack_nowait()
            await session.recover()
            again = await take(subscription, 8)
            assert sorted(numbers(again)) == [1, 2, 4, 5, 7, 8, 9, 10]
            assert {(delivery.attempt, delivery.redelivered) for delivery in again} == {(2, True)}
            await session.recover()
            again = await take(subscription, 8)
            assert {delivery.attempt for delivery in again} == {3}
            await session.acknowledge()
            await nothing(subscription)


@every_type
async def test_k3_what_waits_for_the_iterator_is_no_attempt(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 31))
    async with place.connect() as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type=kind, window=WINDOW, start="earliest", session=session
        ) as subscription:
            await take(subscription, 3)
            await session.recover()
            attempts = {number(delivery): delivery.attempt for delivery in await take(subscription, 30)}
            assert attempts == dict.fromkeys(range(4, 31), 1) | dict.fromkeys((1, 2, 3), 2)
            await nothing(subscription)


@every_type
async def test_k3_recovering_within_the_iteration(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 31))
    attempts: dict[int, int] = {}
    async with place.connect() as connection:
        session = connection.session()
        async with (
            await connection.subscribe(
                topic, durable="d", type=kind, window=WINDOW, start="earliest", session=session
            ) as subscription,
            asyncio.timeout(STANDSTILL_S),
        ):
            async for delivery in subscription:
                attempts[number(delivery)] = delivery.attempt
                if len(attempts) == 3 and delivery.attempt == 1:
                    await session.recover()
                if len(attempts) == 30 and sum(attempts.values()) == 33:
                    break
            await session.acknowledge()


async def test_k3_a_lane_of_window_one_repeats_before_it_goes_on(place: Place) -> None:
    topic = place.topic([1, 2])
    async with place.connect() as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type="exclusive", window=1, start="earliest", session=session
        ) as subscription:
            assert number(await next_of(subscription)) == 1
            await session.recover()
            again = await next_of(subscription)
            assert (number(again), again.attempt) == (1, 2)
            await session.acknowledge()
            assert number(await next_of(subscription)) == 2


# -- several subscriptions


async def test_several_subscriptions_are_settled_together_and_others_are_not(
    place: Place, settled: Counts
) -> None:
    """Of one topic and of another, of two types, on two connections."""
    one, two = place.topic(range(1, 6)), place.topic(range(11, 16))
    async with place.connect() as connection, place.connect(client_id="c2") as other:
        session = connection.session()
        members = [
            await connection.subscribe(one, durable="a", start="earliest", session=session),
            await connection.subscribe(two, durable="b", type="exclusive", start="earliest", session=session),
            await other.subscribe(one, durable="c", start="earliest", session=session),
        ]
        alone = await connection.subscribe(one, durable="alone", start="earliest")
        grouped = await connection.subscribe(
            one, durable="other", start="earliest", session=connection.session()
        )
        for subscription in (*members, alone, grouped):
            await take(subscription, 4)
        await session.acknowledge()
        assert [settled(subscription) for subscription in members] == [4, 4, 4]
        assert [settled(subscription) for subscription in (alone, grouped)] == [0, 0]
        for subscription in members:
            await take(subscription, 1)
        await session.recover()
        for subscription in members:
            again = await next_of(subscription)
            assert (number(again) % 10, again.attempt) == (5, 2)
        for subscription in (alone, grouped):
            assert (await next_of(subscription)).attempt == 1


async def test_a_closed_subscription_does_not_hinder_the_others(place: Place, settled: Counts) -> None:
    topic = place.topic([1, 2])
    async with place.connect() as connection:
        session = connection.session()
        closed, still = [
            await connection.subscribe(topic, durable=durable, start="earliest", session=session)
            for durable in ("closed", "open")
        ]
        await take(closed, 2)
        await take(still, 2)
        await closed.close()
        await session.acknowledge()
        await session.recover()
        assert settled(still) == 2
        await nothing(still)


# -- errors


@every_type
async def test_an_error_on_the_way_gives_back_what_was_not_acknowledged(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 7))
    async with place.connect() as connection:
        session = connection.session()

        async def fail() -> None:
            async with await connection.subscribe(
                topic, durable="d", type=kind, start="earliest", session=session
            ) as subscription:
                await take(subscription, 2)
                await session.acknowledge()
                await take(subscription, 2)
                message = "in the middle"
                raise ValueError(message)

        with pytest.raises(ValueError, match="in the middle"):
            await fail()
        async with await connection.subscribe(topic, durable="d", type=kind, session=session) as subscription:
            again = await take(subscription, 4)
            assert sorted(numbers(again)) == [3, 4, 5, 6]
            assert {delivery.attempt for delivery in again} == {1}
            await session.acknowledge()
            await nothing(subscription)


async def test_a_cancelled_acknowledgement_is_made_good_by_the_next(place: Place, settled: Counts) -> None:
    topic = place.topic([1, 2, 3])
    async with place.connect() as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", start="earliest", session=session
        ) as subscription:
            await take(subscription, 2)
            cancelled = asyncio.create_task(session.acknowledge())
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            await take(subscription, 1)
            await session.acknowledge()
            assert settled(subscription) == 3
            await nothing(subscription)


@every_type
async def test_lost_leases_are_told(place: Place, kind: TypeName) -> None:
    topic = place.topic([1, 2])
    async with place.connect(session_timeout=SESSION) as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", session=session
        ) as subscription:
            held = await take(subscription, 2)
            end_leases(place, subscription)
            with pytest.raises(LeaseLost):
                await held[0].extend()
            with pytest.raises(LeaseLost):
                await session.acknowledge()
            await session.recover()  # what is lost comes again anyway


@every_type
async def test_what_was_lost_comes_again_and_can_be_acknowledged(place: Place, kind: TypeName) -> None:
    """The state is lost before the acknowledgement is sent: whether that is told or not, nothing is lost."""
    topic = place.topic([1, 2])
    async with place.connect(session_timeout=SESSION) as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", session=session
        ) as subscription:
            await take(subscription, 2)
            end_leases(place, subscription)
            with contextlib.suppress(LeaseLost):
                await session.acknowledge()
            again = await take(subscription, 2)
            assert numbers(again) == [1, 2]
            assert all(delivery.redelivered for delivery in again)
            await session.acknowledge()
            await nothing(subscription)


@both_types
async def test_lost_leases_are_told_once(place: Place, kind: TypeName) -> None:
    """Of the ten records that the iterator took three were received; nothing is received after the loss."""
    topic = place.topic(range(1, 31))
    async with place.connect(session_timeout=SESSION) as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type=kind, window=WINDOW, start="earliest", session=session
        ) as subscription:
            await take(subscription, 3)
            end_leases(place, subscription)
            with contextlib.suppress(LeaseLost):
                await session.acknowledge()
            await session.acknowledge()


async def test_lost_leases_of_one_do_not_hinder_the_others(place: Place, settled: Counts) -> None:
    topic = place.topic([1, 2])
    async with place.connect(session_timeout=SESSION) as connection:
        session = connection.session()
        first, second = [
            await connection.subscribe(topic, durable=durable, start="earliest", session=session)
            for durable in ("first", "second")
        ]
        await take(first, 2)
        await take(second, 2)
        end_leases(place, first)
        with pytest.raises(LeaseLost):
            await session.acknowledge()
        assert settled(second) == 2


# -- using it twice


@every_type
async def test_acknowledging_twice_and_recovering_what_is_settled_does_nothing(
    place: Place, kind: TypeName
) -> None:
    topic = place.topic([1, 2])
    async with place.connect() as connection:
        session = connection.session()
        await session.acknowledge()
        await session.recover()
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", session=session
        ) as subscription:
            await session.acknowledge()
            await session.recover()
            held = await take(subscription, 2)
            await session.acknowledge()
            await session.acknowledge()
            await session.recover()
            await nothing(subscription)
            for delivery in held:
                with pytest.raises(AlreadySettled):
                    await delivery.ack()


@every_type
async def test_verdicts_given_one_by_one_stay(place: Place, settled: Counts, kind: TypeName) -> None:
    topic = place.topic(range(1, 6))
    async with place.connect() as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", session=session
        ) as subscription:
            held = await take(subscription, 5)
            await held[0].ack()
            held[1].rollback_nowait(0.2)
            await held[2].release()
            held[3].ack_nowait()
            await session.acknowledge()
            again = await take(subscription, 2)
            assert sorted((number(d), d.attempt) for d in again) == [(2, 2), (3, 1)]
            await session.acknowledge()
            assert settled(subscription) == 5


@every_type
async def test_tasks_that_acknowledge_at_once(place: Place, settled: Counts, kind: TypeName) -> None:
    topic = place.topic(range(1, 51))
    async with place.connect() as connection:
        session = connection.session()
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", session=session
        ) as subscription:
            await take(subscription, 50)
            await asyncio.gather(*(session.acknowledge() for _ in range(4)))
            assert settled(subscription) == 50


async def test_no_session_of_a_closed_connection(place: Place) -> None:
    async with place.connect() as connection:
        pass
    with pytest.raises(ConnectionClosed):
        connection.session()


# -- the synchronous twin


def sync_take(subscription: kafkadur.sync.Subscription, count: int) -> list[kafkadur.sync.Delivery]:
    """The next `count` deliveries."""
    taken: list[kafkadur.sync.Delivery] = []
    while len(taken) < count:
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None, (numbers(taken), subscription.statistics())
        taken.append(delivery)
    return taken


@both_types
def test_sync_k1_k3_several_subscriptions_together(place: Place, settled: Counts, kind: TypeName) -> None:
    topic = place.topic(range(1, 31))
    with place.connect_sync() as connection:
        session = connection.session()
        members = [
            connection.subscribe(
                topic, durable=durable, type=kind, window=WINDOW, start="earliest", session=session
            )
            for durable in ("a", "b")
        ]
        for subscription in members:
            assert numbers(sync_take(subscription, 3)) == [1, 2, 3]
        session.acknowledge()
        session.acknowledge()
        assert [settled(subscription) for subscription in members] == [3, 3], "not what the iterator took"
        for subscription in members:
            assert numbers(sync_take(subscription, 2)) == [4, 5]
        session.recover()
        for subscription in members:
            attempts = {number(delivery): delivery.attempt for delivery in sync_take(subscription, 27)}
            assert attempts == dict.fromkeys(range(6, 31), 1) | {4: 2, 5: 2}
        session.acknowledge()
        for subscription in members:
            assert subscription.receive(timeout=SILENCE_S) is None
            subscription.close()


@both_types
def test_sync_an_error_gives_back_what_was_not_acknowledged(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 5))
    with place.connect_sync() as connection:
        session = connection.session()

        def fail() -> None:
            with connection.subscribe(
                topic, durable="d", type=kind, start="earliest", session=session
            ) as subscription:
                sync_take(subscription, 1)
                session.acknowledge()
                sync_take(subscription, 2)
                message = "in the middle"
                raise ValueError(message)

        with pytest.raises(ValueError, match="in the middle"):
            fail()
        session.acknowledge()
        with connection.subscribe(topic, durable="d", type=kind) as subscription:
            again = sync_take(subscription, 3)
            assert sorted((number(d), d.attempt) for d in again) == [(2, 1), (3, 1), (4, 1)]


def test_sync_k1_acknowledging_within_the_iteration(place: Place) -> None:
    topic = place.topic(range(1, 31))
    seen: list[int] = []
    with place.connect_sync() as connection:
        session = connection.session()
        with connection.subscribe(
            topic, durable="d", window=WINDOW, start="earliest", session=session
        ) as subscription:
            standstill = threading.Timer(STANDSTILL_S, subscription.stop)
            standstill.start()
            for delivery in subscription:
                seen.append(number(delivery))
                session.acknowledge()
                if seen[-1] == 30:
                    break
            standstill.cancel()
    assert seen == list(range(1, 31))


def test_sync_what_was_lost_comes_again_and_can_be_acknowledged(place: Place) -> None:
    topic = place.topic([1, 2])
    with place.connect_sync(session_timeout=SESSION) as connection:
        session = connection.session()
        with connection.subscribe(topic, durable="d", start="earliest", session=session) as subscription:
            sync_take(subscription, 2)
            end_leases(place, subscription)
            with contextlib.suppress(LeaseLost):
                session.acknowledge()
            assert sorted(numbers(sync_take(subscription, 2))) == [1, 2]
            session.acknowledge()
            assert subscription.receive(timeout=SILENCE_S) is None
