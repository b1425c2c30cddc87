"""Attaching, sharing and unsubscribing through the public surface: rules U, S and X.

The decisions themselves are tables in tests/sharing; here they are carried out on real servers.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import kafkadur
from kafkadur import (
    IllegalState,
    InvalidDestination,
    InvalidSubscriptionSharing,
    SubscriptionActive,
)
from kafkadur_coordinators.journal.topic import journal_topic, transactions_topic
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    ack_all,
    both_types,
    next_of,
    nothing,
    number,
    numbers,
    promised,
    ready,
    speaks,
    take,
)


async def test_u1_exclusive_needs_a_client_id(place: Place) -> None:
    topic = place.topic()
    async with place.connect(client_id=None) as connection:
        with pytest.raises(IllegalState, match="client id") as caught:
            await connection.subscribe(topic, durable="d", type="exclusive")
        assert caught.value.remedy


@both_types
async def test_u2_s1_created_at_the_end_or_the_beginning(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 4))
    async with place.connect() as connection:
        async with await connection.subscribe(topic, durable="latest", type=kind) as subscription:
            await nothing(subscription)
            place.publish(topic, [4])
            assert number(await next_of(subscription)) == 4
        async with await connection.subscribe(
            topic, durable="earliest", type=kind, start="earliest"
        ) as subscription:
            assert numbers(await take(subscription, 4)) == [1, 2, 3, 4]


@both_types
async def test_u3_u9_s10_subscription_accumulates_while_closed(place: Place, kind: TypeName) -> None:
    topic = place.topic()
    async with place.connect() as first:
        await (await first.subscribe(topic, durable="d", type=kind)).close()
        place.publish(topic, range(1, 4))
    place.publish(topic, range(4, 6))
    async with (
        place.connect() as second,
        await second.subscribe(topic, durable="d", type=kind) as subscription,
    ):
        deliveries = await take(subscription, 5)
        assert [(number(d), d.attempt, d.redelivered) for d in deliveries] == [
            (n, 1, False) for n in range(1, 6)
        ]


@both_types
async def test_u4_s3_other_details_replace_and_drop(place: Place, kind: TypeName) -> None:
    one, other = place.topic(), place.topic()
    async with place.connect() as connection:
        async with await connection.subscribe(one, durable="d", type=kind) as subscription:
            before = subscription.definition.id
        place.publish(one, [1])
        place.publish(other, [2])
        async with await connection.subscribe(
            other, durable="d", type=kind, on_change="replace"
        ) as subscription:
            assert subscription.definition.id != before
            place.publish(one, [3])
            place.publish(other, [4])
            assert number(await next_of(subscription)) == 4
        async with await connection.subscribe(
            one, durable="d", type=kind, on_change="replace"
        ) as subscription:
            await nothing(subscription)
            place.publish(one, [5])
            assert number(await next_of(subscription)) == 5


@both_types
async def test_u5_s4_other_details_while_active_are_refused(place: Place, kind: TypeName) -> None:
    one, other = place.topic(), place.topic()
    async with (
        place.connect() as first,
        place.connect() as second,
        await first.subscribe(one, durable="d", type=kind, name="the-holder") as subscription,
    ):
        with pytest.raises(SubscriptionActive) as caught:
            await second.subscribe(other, durable="d", type=kind)
        speaks(caught.value, "the-holder")
        place.publish(one, [1])
        assert number(await next_of(subscription)) == 1


@pytest.mark.parametrize(("first", "second"), [("shared", "exclusive"), ("exclusive", "shared")])
@pytest.mark.parametrize("active", [True, False])
async def test_u6_s5_other_sharing_is_refused(
    place: Place, first: TypeName, second: TypeName, *, active: bool
) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        subscription = await connection.subscribe(topic, durable="d", type=first)
        if not active:
            await subscription.close()
        with pytest.raises(InvalidSubscriptionSharing) as caught:
            await connection.subscribe(topic, durable="d", type=second)
        assert caught.value.remedy
        known = await connection.known("d")
        assert known is not None
        assert known.id == subscription.definition.id


@pytest.mark.parametrize("own", [journal_topic, transactions_topic])
async def test_u8_own_topics(place: Place, own: Callable[[str], str]) -> None:
    """Kafkadur's own topics are no destinations, whether they exist or not."""
    async with place.connect() as connection:
        for topic in (own(place.namespace), own("other")):
            with pytest.raises(InvalidDestination, match="state of kafkadur") as caught:
                await connection.subscribe(topic, durable="d")
            speaks(caught.value)
        assert await connection.known("d") is None


async def test_u8_no_such_topic(place: Place) -> None:
    async with place.connect() as connection:
        with pytest.raises(InvalidDestination) as caught:
            await connection.subscribe(f"{place.namespace}-none", durable="d", type="shared")
        speaks(caught.value)
        assert await connection.known("d") is None


@pytest.mark.parametrize("how", ["list", "tuple", "pattern", "commas"])
async def test_several_topics_are_refused_and_nothing_is_made(place: Place, how: str) -> None:
    first, second = place.topic(), place.topic()
    several: Any = {
        "list": [first, second],
        "tuple": (first,),
        "pattern": f"^{first}.*",
        "commas": f"{first},{second}",
    }[how]
    async with place.connect() as connection:
        with pytest.raises(InvalidDestination, match="has one topic") as caught:
            await connection.subscribe(several, durable="d")
        speaks(caught.value, "one subscription a topic", "for topic in topics")
        assert await connection.known("d") is None
        for topic in (first, second):  # the remedy
            async with await connection.subscribe(topic, durable=f"d-{topic}", start="earliest"):
                assert await connection.known(f"d-{topic}") is not None


def test_several_topics_are_refused_synchronously_too(place: Place) -> None:
    several: Any = [place.topic()]
    with place.connect_sync() as connection, pytest.raises(InvalidDestination, match="has one topic"):
        connection.subscribe(several, durable="d")


async def test_u10_long_names(place: Place) -> None:
    topic = place.topic([1])
    name = "Az09_.-" * 18 + "xx"
    assert len(name) == 128
    async with (
        place.connect(client_id=name) as connection,
        await connection.subscribe(topic, durable=name, type="exclusive", start="earliest") as subscription,
    ):
        await (await next_of(subscription)).ack()


async def test_s2_each_message_to_exactly_one_member(place: Place) -> None:
    topic = place.topic(partitions=3)
    async with place.connect() as one, place.connect() as two:
        members = [
            await connection.subscribe(topic, durable="d", type="shared") for connection in (one, two, two)
        ]
        seen: list[int] = []

        async def consume(member: kafkadur.Subscription) -> None:
            async for delivery in member:
                seen.append(number(delivery))
                await delivery.ack()
                if len(seen) == 90:
                    for other in members:
                        other.stop()

        for partition in range(3):
            place.publish(topic, range(partition * 30, partition * 30 + 30), partition=partition)
        await asyncio.wait_for(asyncio.gather(*map(consume, members)), LIMIT_S)
        assert sorted(seen) == list(range(90))


async def test_s6_client_id_or_none_are_two_subscriptions(place: Place) -> None:
    topic = place.topic([1])
    async with place.connect(client_id="x") as with_id, place.connect(client_id=None) as without:
        for connection in (with_id, without):
            async with await connection.subscribe(
                topic, durable="d", type="shared", start="earliest"
            ) as subscription:
                await (await next_of(subscription)).ack()


async def test_s7_round_robin_begins_with_the_first_attached(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as first, place.connect() as second:
        members = [
            await connection.subscribe(topic, durable="d", type="shared") for connection in (first, second)
        ]
        await ready(first, "d", 2)
        for member in members:  # they have come to the end, and were promised what comes
            await promised(member, 4)
        got: list[tuple[int, int]] = []
        for n in range(1, 7):
            waiting = [asyncio.create_task(member.receive(timeout=LIMIT_S)) for member in members]
            place.publish(topic, [n])
            done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for index, task in enumerate(waiting):
                if task in done:
                    delivery = task.result()
                    assert delivery is not None
                    got.append((index, number(delivery)))
                    await delivery.ack()
        assert got == [(0, 1), (1, 2), (0, 3), (1, 4), (0, 5), (1, 6)]


async def test_s9_a_full_member_leaves_messages_to_others(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as first, place.connect() as second:
        one = await first.subscribe(topic, durable="d", type="shared", window=1)
        two = await second.subscribe(topic, durable="d", type="shared", window=10)
        await ready(first, "d", 2)
        place.publish(topic, [1])
        held = await next_of(one)
        place.publish(topic, range(2, 8))
        assert sorted(numbers(await take(two, 6))) == list(range(2, 8))
        await held.ack()


@both_types
async def test_x1_unsubscribe_deletes_with_all_that_waits(place: Place, kind: TypeName) -> None:
    topic = place.topic()
    async with place.connect() as connection:
        await (await connection.subscribe(topic, durable="d", type=kind)).close()
        place.publish(topic, [1])
        await connection.unsubscribe("d")
        assert await connection.known("d") is None
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            await nothing(subscription)
            place.publish(topic, [2])
            assert number(await next_of(subscription)) == 2


async def test_x1_a_new_type_after_unsubscribing(place: Place) -> None:
    topic = place.topic([1])
    async with place.connect() as connection:
        for kind in ("shared", "exclusive", "shared"):
            async with await connection.subscribe(
                topic, durable="d", type=kind, start="earliest"
            ) as subscription:
                await (await next_of(subscription)).ack()
            await connection.unsubscribe("d")


async def test_x2_unknown_names_and_other_client_ids(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as connection, place.connect(client_id="c2") as other:
        await (await connection.subscribe(topic, durable="d", type="shared")).close()
        for wrong, name in ((connection, "unknown"), (other, "d")):
            with pytest.raises(InvalidDestination) as caught:
                await wrong.unsubscribe(name)
            assert name in str(caught.value)
        assert await connection.known("d") is not None
        await connection.unsubscribe("d")
        with pytest.raises(InvalidDestination):
            await connection.unsubscribe("d")


@both_types
async def test_x3_x4_active_subscription_is_not_deleted(place: Place, kind: TypeName) -> None:
    topic = place.topic([1, 2])
    async with (
        place.connect() as first,
        place.connect() as second,
        await first.subscribe(
            topic, durable="d", type=kind, start="earliest", name="the-holder"
        ) as subscription,
    ):
        held = await take(subscription, 1)
        with pytest.raises(SubscriptionActive) as caught:
            await second.unsubscribe("d")
        speaks(caught.value, "the-holder")
        await ack_all(held)
        assert number(await next_of(subscription)) == 2


async def test_d8_shared_queued_is_shared_by_another_name(place: Place) -> None:
    topic = place.topic()
    old: Any = "shared-queued"
    wrong: Any = "queue"
    async with place.connect() as connection:
        with pytest.warns(DeprecationWarning, match="called shared"):
            subscription = await connection.subscribe(topic, durable="d", type=old)
        assert subscription.definition.definition.type == "shared"
        with pytest.raises(IllegalState, match="no subscription type 'queue'") as caught:
            await connection.subscribe(topic, durable="d", type=wrong)
        assert "key-ordered" in str(caught.value)


async def test_two_subscriptions_on_a_topic_are_independent(place: Place) -> None:
    topic = place.topic(range(1, 4))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="a", type="shared", start="earliest") as shared,
        await connection.subscribe(topic, durable="b", type="exclusive", start="earliest") as exclusive,
    ):
        await ack_all(await take(shared, 3))
        held = await take(exclusive, 3)
        assert numbers(held) == [1, 2, 3]
        await held[0].rollback()
        assert (await next_of(exclusive)).attempt == 2
        await nothing(shared)


async def test_attaching_at_once_is_decided_once(place: Place) -> None:
    """Ten members create one subscription at the same time: one definition, each message once."""
    topic = place.topic(range(1, 11))
    async with place.connect() as one, place.connect() as two:
        members = await asyncio.gather(
            *(
                connection.subscribe(topic, durable="d", type="shared", window=1, start="earliest")
                for connection in (one, two)
                for _ in range(5)
            )
        )
        assert len({member.definition.id for member in members}) == 1
        held = await asyncio.gather(*map(next_of, members))
        assert sorted(numbers(held)) == list(range(1, 11))


async def test_exclusive_is_won_by_one(place: Place) -> None:
    topic = place.topic()
    async with place.connect() as one, place.connect() as two:
        results = await asyncio.gather(
            *(c.subscribe(topic, durable="d", type="exclusive") for c in (one, two, one, two)),
            return_exceptions=True,
        )
        assert (
            sorted(type(result).__name__ for result in results)
            == ["Subscription"] + ["SubscriptionActive"] * 3
        )
