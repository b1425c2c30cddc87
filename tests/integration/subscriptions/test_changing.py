"""Subscribing to what exists with another definition: `on_change` says what becomes of it (U4, S3, P8)."""

import asyncio
import itertools
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

import kafkadur
from kafkadur import Redelivery, SubscriptionActive, SubscriptionDiffers
from kafkadur.admin.changes import Admin
from kafkadur.settings import settings
from kafkadur_sharing.definition import TypeName
from tests.integration.faults.crew import SESSION
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    TYPES,
    Place,
    ack_all,
    both_types,
    nothing,
    numbers,
    speaks,
    take,
    wait_until,
)
from tests.integration.subscriptions.workers import Worker

LOGGER = "kafkadur"


async def leave_five(place: Place, kind: TypeName, **options: Any) -> str:
    """A subscription `d` in which 3 to 7 wait, each with a property `n`; returns the topic."""
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", **options
        ) as subscription,
    ):
        with connection.producer() as producer:
            for n in range(1, 8):
                producer.publish(topic, str(n).encode(), properties={"n": n})
        await ack_all(await take(subscription, 2))
    return topic


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == LOGGER and r.levelno == logging.WARNING]


#: Types with other details; an empty topic stands for another one. For shared types no_local is none (D4).
OTHER_DETAILS: list[tuple[str, dict[str, Any]]] = [
    *((kind, other) for kind in TYPES for other in ({"selector": "n > 5"}, {"topic": ""})),
    ("exclusive", {"no_local": True}),
]


@pytest.mark.parametrize("on_change", [None, "refuse"])
@pytest.mark.parametrize(("kind", "other"), OTHER_DETAILS)
async def test_u4_s3_other_details_are_refused_and_nothing_is_lost(
    place: Place, kind: TypeName, on_change: Any, other: dict[str, Any]
) -> None:
    topic = await leave_five(place, kind)
    asked: dict[str, Any] = {"topic": topic, "on_change": on_change, **other}
    if not asked["topic"]:
        asked["topic"] = place.topic()
    async with place.connect() as connection:
        with pytest.raises(SubscriptionDiffers, match="5 messages wait") as caught:
            await connection.subscribe(durable="d", type=kind, **asked)
        speaks(caught.value, next(iter(other)), "d")
        assert caught.value.waiting == 5
        assert [difference[0] for difference in caught.value.differences] == [*other]
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            assert numbers(await take(subscription, 5)) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("on_change", ["alter", "replace"])
def test_no_other_consumer_comes_between_a_change_and_its_consumer(place: Place, on_change: Any) -> None:
    """Else a call that is refused would have changed the subscription, or deleted what waits in it."""
    topic = asyncio.run(leave_five(place, "exclusive"))
    looked, looks = threading.Event(), itertools.count()
    refused: list[Exception] = []

    def note_of_other(name: str, *_: object) -> None:
        if name == "attach" or (name == "peek" and next(looks)):
            looked.set()  # it has attached, or was told to wait and looks again

    def come_between() -> None:
        with place.connect_sync(recorder=note_of_other) as connection:
            try:
                connection.subscribe(topic, durable="d", type="exclusive", selector="n > 5").close()
            except SubscriptionActive as error:
                refused.append(error)

    other = threading.Thread(target=come_between)

    def note(name: str, *_: object) -> None:
        if name == "install" and not other.ident:
            other.start()
            assert looked.wait(LIMIT_S)

    with (
        place.connect_sync(recorder=note) as connection,
        connection.subscribe(
            topic, durable="d", type="exclusive", selector="n > 5", on_change=on_change
        ) as subscription,
    ):
        other.join(LIMIT_S)
        assert subscription.definition.definition.selector == "n > 5"
    assert [type(error) for error in refused] == [SubscriptionActive]


@both_types
async def test_u4_s3_the_selector_is_altered_and_what_waits_is_kept(
    place: Place, kind: TypeName, caplog: pytest.LogCaptureFixture
) -> None:
    """As far as the new selector takes it: the others are skipped, which a warning says."""
    topic = await leave_five(place, kind)
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, selector="n > 5", on_change="alter"
        ) as subscription:
            found = await take(subscription, 2)
            assert numbers(found) == [6, 7]
            (told,) = warnings(caplog)
            assert "it was None, it is n > 5" in told
            assert "--retroactive" in told
            await found[0].ack()
            await nothing(subscription)
        with pytest.raises(SubscriptionDiffers, match="1 message waits"):
            await connection.subscribe(topic, durable="d", type=kind)


@both_types
async def test_u4_s3_a_replacement_is_a_warning_with_what_was_lost(
    place: Place, kind: TypeName, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await leave_five(place, kind)
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, selector="n > 5", on_change="replace"
        ) as subscription,
    ):
        await nothing(subscription)
    told = [text for text in warnings(caplog) if "deleted and created anew" in text]
    assert len(told) == 1
    assert "5 messages waited" in told[0]


POLICY = Redelivery(max_attempts=5)


@both_types
async def test_other_parts_stay_with_a_warning_unless_asked_otherwise(
    place: Place, kind: TypeName, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await leave_five(place, kind, redelivery=POLICY)
    more: dict[str, Any] = {"durable": "d", "type": kind}
    other: dict[str, Any] = more | {"redelivery": Redelivery(max_attempts=9), "ack_level": "journal"}
    async with place.connect() as connection:
        async with await connection.subscribe(topic, **more) as subscription:
            assert subscription.definition.definition.redelivery == POLICY
        assert not warnings(caplog), "what is not asked for is as it is"
        async with await connection.subscribe(topic, **other) as subscription:
            assert subscription.definition.definition.redelivery == POLICY
        (told,) = warnings(caplog)
        assert "max_attempts is 5, asked for is 9; ack_level is 'redis', asked for is 'journal'" in told
        with pytest.raises(SubscriptionDiffers, match="max_attempts is 5") as caught:
            await connection.subscribe(topic, **other, on_change="refuse")
        speaks(caught.value)
        async with await connection.subscribe(topic, **other, on_change="alter") as subscription:
            assert subscription.definition.definition.redelivery.max_attempts == 9
            assert subscription.definition.definition.ack_level == "journal"
            assert numbers(await take(subscription, 5)) == [3, 4, 5, 6, 7]
        assert len(warnings(caplog)) == 1


async def test_where_it_starts_is_never_altered_and_the_remedy_is_to_move_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    topic = place.topic(range(3))
    async with place.connect() as connection:
        await (await connection.subscribe(topic, durable="d", start="latest")).close()
        more: dict[str, Any] = {"durable": "d", "start": "earliest"}
        async with await connection.subscribe(topic, **more, on_change="alter") as subscription:
            assert subscription.definition.definition.start == "latest"
        (told,) = warnings(caplog)
        assert "start is 'latest', asked for is 'earliest'" in told
        assert told.endswith("Remedy: attach with the same, or move it: `kafkadur sub seek`.")
        changed: dict[str, Any] = more | {"max_consumers": 3, "on_change": "alter"}
        async with await connection.subscribe(topic, **changed) as subscription:
            assert subscription.definition.definition.max_consumers == 3
            assert subscription.definition.definition.start == "latest"
        assert len(warnings(caplog)) == 2
        with pytest.raises(SubscriptionDiffers) as caught:
            await connection.subscribe(topic, **more, on_change="refuse")
        assert caught.value.remedy == "attach with start='latest', or move it: `kafkadur sub seek`"


async def test_while_others_are_attached_other_parts_stay_with_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """So that processes with a new policy can be started one by one beside the old ones."""
    topic = await leave_five(place, "shared", redelivery=POLICY)
    more: dict[str, Any] = {"durable": "d", "redelivery": Redelivery(max_attempts=9), "on_change": "alter"}
    async with place.connect() as connection, await connection.subscribe(topic, durable="d"):
        async with await connection.subscribe(topic, **more) as subscription:
            assert subscription.definition.definition.redelivery == POLICY
        assert "max_attempts is 5" in warnings(caplog)[0]


async def test_a_policy_with_fractions_of_a_ms_is_altered_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await leave_five(place, "shared", redelivery=POLICY)
    more: dict[str, Any] = {"durable": "d", "redelivery": Redelivery(backoff=timedelta(microseconds=1_500))}
    async with place.connect() as connection, asyncio.timeout(LIMIT_S):
        await (await connection.subscribe(topic, **more, on_change="alter")).close()
        await (await connection.subscribe(topic, **more)).close()
    assert not warnings(caplog)


async def test_there_is_no_other_value(place: Place) -> None:
    wrong: Any = "keep"
    async with place.connect() as connection:
        with pytest.raises(kafkadur.IllegalState, match="on_change cannot be 'keep'"):
            await connection.subscribe(place.topic(), durable="d", on_change=wrong)


@pytest.mark.parametrize("on_change", ["alter", "replace"])
async def test_a_member_that_comes_back_does_not_undo_a_change(place: Place, on_change: str) -> None:
    """It was away for longer than its session, and an administrator set another selector meanwhile."""
    topic = place.topic([1])
    options = {"durable": "d", "start": "earliest", "selector": "n IS NULL", "on_change": on_change}
    worker = Worker(place.settings(), topic, {**options, "session_timeout": SESSION.total_seconds()})
    try:
        assert worker.receive(1) == [(1, 1)]
        assert worker.ack() == "acked"
        worker.freeze()
        with Admin(settings(place.settings())) as admin:
            wait_until(lambda: not admin.info(admin.key("d")).active, "the frozen member is gone")
            admin.alter(admin.key("d"), selector="n > 5")
            worker.thaw()
            assert worker.trouble() == "SubscriptionDiffers"
            assert admin.info(admin.key("d")).definition.selector == "n > 5"
    finally:
        worker.end()


async def test_a_subscription_is_created_without_a_consumer(place: Place) -> None:
    topic = place.topic()
    place.publish_values(topic, [b"0", b"1"])
    async with place.connect() as connection:
        created = await connection.create("d", topic, type="serial", start="earliest", max_attempts=3)
        place.publish_values(topic, [b"2", b"3"])
        with pytest.raises(kafkadur.IllegalState, match="already"):
            await connection.create("d", topic)
        with pytest.raises(kafkadur.InvalidDestination):
            await connection.create("e", f"{topic}.none")
        with pytest.raises(kafkadur.InvalidSelector):
            await connection.create("e", topic, selector="n >")
        async with await connection.subscribe(topic, durable="d", type="serial") as subscription:
            assert subscription.definition.definition == created
            assert numbers(await take(subscription, 4)) == [0, 1, 2, 3]


async def test_each_part_of_a_definition_can_be_altered(place: Place) -> None:
    """What is settled stays settled, what waits is kept, and the next consumer has the new definition."""
    topic = await leave_five(place, "shared")
    async with place.connect() as connection:
        after = await connection.alter(
            "d", type="serial", selector="n > 3", strict_order=True, scope="partition", ack_level="journal",
            max_consumers=3, header_types={"n": "int"}, max_attempts=4, backoff=0.25, max_backoff=60,
            max_hold=timedelta(seconds=30), dead_letter_topic="graves", rescue=True,
        )  # fmt: skip
        assert after.redelivery == Redelivery(
            max_attempts=4, backoff=0.25, max_backoff=60, max_hold=30, dead_letter_topic="graves", rescue=True
        )
        async with await connection.subscribe(
            topic, durable="d", type="serial", selector="n > 3", on_change="refuse"
        ) as subscription:
            assert subscription.definition.definition == after
            assert numbers(await take(subscription, 4)) == [4, 5, 6, 7]
            with pytest.raises(kafkadur.SubscriptionActive):
                await connection.alter("d", max_attempts=5)


async def test_what_cannot_be_altered_is_refused_and_nothing_changes(place: Place) -> None:
    await leave_five(place, "shared")
    wrong: dict[str, Any] = {"selektor": "n > 3"}
    async with place.connect() as connection:
        before = await connection.known("d")
        assert before is not None
        with pytest.raises(kafkadur.InvalidDestination):
            await connection.alter("e", max_attempts=5)
        with pytest.raises(kafkadur.IllegalState, match="no part 'selektor'"):
            await connection.alter("d", **wrong)
        with pytest.raises(kafkadur.IllegalState, match="max_attempts cannot be 0"):
            await connection.alter("d", max_attempts=0)
        with pytest.raises(kafkadur.InvalidSelector):
            await connection.alter("d", selector="n >")
        with pytest.raises(kafkadur.IllegalState, match="the type shared has no scope"):
            await connection.alter("d", scope="partition")
        after = await connection.known("d")
        assert after is not None
        assert (after.definition, after.version) == (before.definition, before.version)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("shared", {"priority": 3}),
        ("serial", {"preempt": True}),
        ("shared", {"key_lanes": 4}),
        ("key-ordered", {"scope": "partition"}),
        ("priority", {"no_local": True}),
        ("exclusive", {"max_consumers": 2}),
    ],
)
async def test_a_parameter_that_the_type_does_not_have_is_refused(
    place: Place, kind: TypeName, wrong: dict[str, Any]
) -> None:
    async with place.connect() as connection:
        with pytest.raises(kafkadur.IllegalState, match=f"the type {kind} has no {next(iter(wrong))}"):
            await connection.subscribe(place.topic(), durable="d", type=kind, **wrong)
        assert await connection.known("d") is None
