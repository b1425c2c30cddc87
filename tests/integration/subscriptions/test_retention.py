"""What Kafka removes before it is settled: counted and told of, warned about before, rescued where wanted."""

import asyncio
import logging
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kafkadur import Connection, Event, Redelivery
from kafkadur.admin.changes import Admin
from kafkadur.admin.subscription_info import SubscriptionInfo
from kafkadur.runtime import retention_watch
from kafkadur.runtime.dead_letters import CAUSE
from kafkadur.settings import settings
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.definition import SubscriptionType, TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    Place,
    dead_letters,
    number,
    numbers,
    take,
    wait_until,
)

HOUR: dict[str, Any] = {"retention.ms": 3_600_000}
ALL = ("shared", "exclusive", "priority", "serial", "key-ordered")


def info(place: Place) -> SubscriptionInfo:
    with Admin(settings(place.settings())) as admin:
        return admin.info(admin.key("d"))


def remove(admin: AdminClient, topic: str, before: int) -> None:
    """Have Kafka remove the records of partition 0 before an offset."""
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(LIMIT_S)


@pytest.mark.parametrize("kind", ALL)
async def test_what_was_removed_while_nobody_was_there(
    place: Place, kind: TypeName, kafkadur_admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    topic = place.topic(range(10))
    async with place.connect() as connection:
        async with await connection.subscribe(topic, durable="d", type=kind, start="earliest") as first:
            for delivery in await take(first, 2):
                await delivery.ack()
            # every lane of keys knows by now that these two are none of its own, or are settled
            wait_until(lambda: info(place).partitions[0].floor == 2, "two that are settled")
        remove(kafkadur_admin, topic, 6)
        events: list[Event] = []
        with caplog.at_level(logging.ERROR, "kafkadur"):
            async with await connection.subscribe(
                topic, durable="d", type=kind, on_event=events.append
            ) as second:
                rest = await take(second, 4)
                assert numbers(rest) == [6, 7, 8, 9]
                for delivery in rest:
                    await delivery.ack()
                wait_until(lambda: Event.EXPIRED in events, "a word about what expires")
        assert "removed unsettled messages" in caplog.text
    found = info(place)
    assert (found.expired, found.backlog) == (4, 0)


async def test_removed_messages_of_keys_that_were_read_are_counted_exactly(
    place: Place, kafkadur_admin: AdminClient
) -> None:
    """Each lane of keys has lost its own: the joined number is their sum."""
    topic = place.topic()
    for n in range(40):
        place.raw.produce(topic, str(n).encode(), f"key-{n % 20}".encode(), partition=0)
    assert place.raw.flush(LIMIT_S) == 0
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type="key-ordered", start="earliest"
        ) as first:
            for delivery in await take(first, 20):  # the first one of each key; the others wait behind it
                await delivery.rollback()
        remove(kafkadur_admin, topic, 40)
        place.publish(topic, [40])
        async with await connection.subscribe(topic, durable="d", type="key-ordered") as second:
            assert numbers(await take(second, 1)) == [40]
            wait_until(lambda: info(place).partitions[0].floor == 40, "all others are settled")
    assert info(place).expired == 40


async def test_a_delayed_message_that_is_removed_does_not_come_again(
    place: Place, kafkadur_admin: AdminClient
) -> None:
    topic = place.topic(range(3))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        first, *others = await take(subscription, 3)
        for delivery in others:
            await delivery.ack()
        await first.rollback(delay=0.3)
        remove(kafkadur_admin, topic, 1)
        place.publish(topic, [3])
        assert numbers(await take(subscription, 1)) == [3]
        wait_until(lambda: info(place).expired == 1, "a word about what expires")
        assert await subscription.receive(timeout=0.3) is None


def publish_old(place: Place, topic: str, values: range, age_s: float, key: bytes | None = None) -> None:
    """Publish numbers whose time lies so many seconds back."""
    then = round((time.time() - age_s) * 1000)
    for n in values:
        place.raw.produce(topic, str(n).encode(), key, partition=0, timestamp=then)
    assert place.raw.flush(LIMIT_S) == 0


async def test_what_is_about_to_expire_is_warned_about_and_shown(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    topic = place.topic(**HOUR)
    publish_old(place, topic, range(5), 3_400)  # in less than a tenth of its hour
    publish_old(place, topic, range(5, 8), 60)
    with caplog.at_level(logging.WARNING, "kafkadur"):
        async with (
            place.connect(retention_check=0.05) as connection,
            await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
        ):
            held = await take(subscription, 8)
            wait_until(lambda: "about to remove" in caplog.text, "a word about what expires")
            assert info(place).expiring == 5
            for delivery in held:
                await delivery.ack()
            assert info(place).expiring == 0


async def test_many_subscriptions_to_a_topic_cost_one_question_a_check(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    retention = Topics.retention

    def watched(topics: Topics, topic: str) -> int | None:
        asked.append(topic)
        return retention(topics, topic)

    monkeypatch.setattr(Topics, "retention", watched)
    monkeypatch.setattr(retention_watch, "_FIRST_LOOK", 0.5)
    names = [place.topic(), place.topic()]
    async with place.connect(retention_check=3_600) as connection, AsyncExitStack() as open_until_the_end:
        for number in range(6):
            subscription = await connection.subscribe(names[number % 2], durable=f"d{number}", type="shared")
            await open_until_the_end.enter_async_context(subscription)
        watch = connection._opened._watch  # type: ignore[union-attr]  # noqa: SLF001 - nothing else says when it has looked
        wait_until(
            lambda: watch._due_at > time.monotonic() + 60 and not watch.is_checking and watch.looks > 0,  # noqa: SLF001 - as above
            "the end of the checks of new members",
        )
        checks = watch.looks
    assert set(asked) == set(names)
    assert max(Counter(asked).values()) <= checks <= 2


def looked_again(connection: Connection) -> None:
    """Wait until the connection has looked at the retention once more from now on."""
    watch = connection._opened._watch  # type: ignore[union-attr]  # noqa: SLF001 - nothing else says when it has looked
    looks = watch.looks
    wait_until(lambda: watch.looks >= looks + 2, "a word about what expires")


def keep_for(admin: AdminClient, topic: str, ms: int) -> None:
    """Change a topic's retention."""
    entry = ConfigEntry("retention.ms", str(ms), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(LIMIT_S)


@pytest.mark.parametrize("kind", ALL)
async def test_what_is_about_to_expire_is_rescued(
    place: Place, kind: TypeName, kafkadur_admin: AdminClient
) -> None:
    topic = place.topic(**HOUR)
    publish_old(place, topic, range(50), 3_000, b"a")
    publish_old(place, topic, range(50, 53), 30, b"a")
    async with (
        place.connect(retention_check=0.05) as connection,
        await connection.subscribe(
            topic,
            durable="d",
            type=SubscriptionType(kind),
            start="earliest",
            window=2,
            unconfirmed=1,
            key_lanes=1 if kind == "key-ordered" else None,
            redelivery=Redelivery(rescue=True),
        ) as subscription,
    ):
        held = await take(subscription, 1 if kind == "key-ordered" else 2)
        keep_for(kafkadur_admin, topic, 3_100_000)
        wait_until(lambda: info(place).expiring == 50, "the end of the retention to come near")
        looked_again(connection)
        found = numbers(held)
        for delivery in held:
            await delivery.ack()
        while found[-1] < 52:
            delivery = await asyncio.wait_for(anext(aiter(subscription)), LIMIT_S)
            found.append(number(delivery))
            await delivery.ack()
    letters = dead_letters(place, topic, 53 - len(found))
    assert sorted([*found, *(int(letter.value() or b"-1") for letter in letters)]) == list(range(53))
    assert {50, 51, 52} <= set(found)
    assert len(letters) > 20, "what was not in hands or read already is rescued"
    headers: list[Any] = [header for letter in letters for header in letter.headers() or ()]
    causes = {value for name, value in headers if name == CAUSE}
    assert causes == {b"expiring"}
    assert info(place).backlog == 0
