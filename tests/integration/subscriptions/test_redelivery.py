"""Redelivery: back-off, attempts that end, dead letters, poison messages, time limits, strict order."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import confluent_kafka
import pytest

import kafkadur
from kafkadur import LeaseLost, Redelivery, Reject
from kafkadur.handlers.failures import FailureDetail
from kafkadur.runtime.dead_letters import ATTEMPTS, CAUSE, ORIGIN, REASON, SUBSCRIPTION
from kafkadur_sharing.definition import SubscriptionType, TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    PRIORITY_TOO,
    SERIAL_TOO,
    Place,
    ack_all,
    dead_letters,
    next_of,
    nothing,
    number,
    numbers,
    take,
    wait_until,
)
from tests.integration.subscriptions.workers import Worker

TYPES = ("shared", "exclusive", PRIORITY_TOO, SERIAL_TOO)
each_type = pytest.mark.parametrize("kind", TYPES)
lanes = pytest.mark.parametrize("kind", ["exclusive", PRIORITY_TOO, "serial"])


def headers(message: confluent_kafka.Message) -> dict[str, str]:
    """Headers as text."""
    found: Any = message.headers() or ()
    return {name: value.decode() for name, value in found if isinstance(value, bytes)}


@each_type
async def test_rejected_message_is_a_dead_letter_and_settled(place: Place, kind: TypeName) -> None:
    topic = place.make_topic(1)
    place.raw.produce(topic, b"1", key=b"k", headers={"color": b"red"})
    place.publish(topic, [2])
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest"
        ) as subscription:
            first, second = await take(subscription, 2)
            await first.reject("no such account")
            assert first.settled
            await second.ack()
            await nothing(subscription)
        (letter,) = dead_letters(place, topic, 1)
        assert (letter.value(), letter.key()) == (b"1", b"k")
        told = headers(letter)
        assert told["color"] == "red"
        assert told[CAUSE] == "rejected"
        assert told[REASON] == "no such account"
        assert told[ATTEMPTS] == "1"
        assert told[ORIGIN] == f"{topic}[0]@0"
        assert "d" in told[SUBSCRIPTION]
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            await nothing(subscription)


@each_type
async def test_attempts_that_are_used_up_end_in_a_dead_letter(place: Place, kind: TypeName) -> None:
    topic = place.topic([1, 2])
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", redelivery=Redelivery(max_attempts=3), window=1
        ) as subscription,
    ):
        for attempt in range(1, 4):
            delivery = await next_of(subscription)
            assert (number(delivery), delivery.attempt) == (1, attempt)
            await delivery.rollback()
        delivery = await next_of(subscription)
        assert (number(delivery), delivery.attempt) == (2, 1)
        await delivery.ack()
        await nothing(subscription)
    (letter,) = dead_letters(place, topic, 1)
    assert (headers(letter)[CAUSE], headers(letter)[ATTEMPTS]) == ("attempts", "3")


@each_type
async def test_the_policy_is_part_of_the_subscription(place: Place, kind: TypeName) -> None:
    topic = place.topic([1])
    policy = Redelivery(max_attempts=2, dead_letter_topic=f"{topic}-elsewhere.dead")
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", redelivery=policy
        ):
            pass
        async with await connection.subscribe(topic, durable="d", type=kind) as subscription:
            assert subscription.definition.definition.redelivery == policy
            for _ in range(2):
                await (await next_of(subscription)).rollback()
            await nothing(subscription)
    assert len(dead_letters(place, f"{topic}-elsewhere", 1)) == 1


async def bill(delivery: kafkadur.Delivery) -> None:
    """A handler that fails, with a part of the payload in its message."""
    raise ValueError(f"no account {delivery.value!r}")


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ("class", r"ValueError \(in handler bill\)"),
        ("message", r"ValueError: no account b'1' \(in handler bill\)"),
        ("stack", r"ValueError: no account b'1' \(in handler bill\); .*test_redelivery\.py:\d+ in bill"),
    ],
)
async def test_a_dead_letter_says_which_exception_its_handler_raised(
    place: Place, detail: FailureDetail, expected: str
) -> None:
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", start="earliest", redelivery=Redelivery(max_attempts=2)
        ) as subscription,
    ):
        run = asyncio.create_task(subscription.run(bill, retry_delay=0, failure_detail=detail))
        (letter,) = await asyncio.to_thread(dead_letters, place, topic, 1)
        subscription.stop()
        await run
    told = headers(letter)
    assert (told[CAUSE], told[ATTEMPTS]) == ("attempts", "2")
    assert re.fullmatch(expected, told[REASON])


async def test_a_handler_that_always_fails_is_called_ten_times_with_one_line_each(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """No redelivery policy was set: the message is not retried for ever, and the log stays readable."""
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        run = asyncio.create_task(subscription.run(bill, retry_delay=0))
        (letter,) = await asyncio.to_thread(dead_letters, place, topic, 1)
        subscription.stop()
        await run
    told = headers(letter)
    assert (told[CAUSE], told[ATTEMPTS]) == ("attempts", "10")
    failures = [each for each in caplog.records if "handler failed" in each.getMessage()]
    assert [each.levelname for each in failures] == ["WARNING"] * 9 + ["ERROR"]
    assert [each.exc_info is not None for each in failures] == [False] * 9 + [True]
    assert re.fullmatch(
        rf"handler failed for <Delivery {topic}\[0\]@0 attempt 3> of 10; it is delivered again after 0 s: "
        r"ValueError: no account b'1' \(in handler bill\)",
        failures[2].getMessage(),
    )


async def test_run_retries_and_rejects_by_exception(place: Place) -> None:
    topic = place.topic(range(1, 5))
    calls: Counter[int] = Counter()
    errors = {1: KeyError("no such customer"), 2: TimeoutError("slow"), 3: ValueError("odd")}

    async def handle(delivery: kafkadur.Delivery) -> None:
        value = number(delivery)
        calls[value] += 1
        if value in errors and delivery.attempt < 4:
            raise errors[value]

    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        run = asyncio.create_task(
            subscription.run(
                handle, retry_delay={OSError: 0}, retry_on=(OSError, KeyError), reject_on=LookupError
            )
        )
        letters = await asyncio.to_thread(dead_letters, place, topic, 2)
        await asyncio.to_thread(wait_until, lambda: calls[2] == 4, "the attempts at the second message")
        subscription.stop()
        await run
    assert calls == Counter({1: 1, 2: 4, 3: 1, 4: 1})
    assert {headers(each)[CAUSE] for each in letters} == {"rejected"}
    assert sorted(headers(each)[REASON].partition(" (")[0] for each in letters) == [
        "KeyError: 'no such customer'",
        "ValueError: odd",
    ]


async def test_attempts_that_the_policy_overrules_are_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    topic = place.topic([1])
    policy = Redelivery(max_attempts=2)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", redelivery=policy) as subscription,
    ):
        run = asyncio.create_task(subscription.run(bill, attempts=5, retry_delay=0))
        (letter,) = await asyncio.to_thread(dead_letters, place, topic, 1)
        subscription.stop()
        await run
    assert headers(letter)[ATTEMPTS] == "2"
    (told,) = [each for each in caplog.messages if "has no effect" in each]
    assert told.endswith("attempts=5 has no effect, because its redelivery policy has max_attempts=2")


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_run_rejects_and_backs_off(place: Place, concurrency: int) -> None:
    topic = place.topic(range(1, 7))
    calls: Counter[int] = Counter()
    done = asyncio.Semaphore(0)

    async def handle(delivery: kafkadur.Delivery) -> None:
        value = number(delivery)
        calls[value] += 1
        if value == 2:
            done.release()
            raise Reject("two is no good")
        if value == 4 and delivery.attempt < 3:
            raise ValueError(value)
        done.release()

    policy = Redelivery(backoff=timedelta(seconds=0.2))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", redelivery=policy) as subscription,
    ):
        began = time.monotonic()
        running = asyncio.create_task(subscription.run(handle, concurrency=concurrency))
        async with asyncio.timeout(LIMIT_S):
            for _ in range(6):
                await done.acquire()
        took = time.monotonic() - began
        subscription.stop()
        await running
    assert calls == Counter({1: 1, 2: 1, 3: 1, 4: 3, 5: 1, 6: 1})
    assert took >= 0.1 + 0.2, "0.1 to 0.2 s, then 0.2 to 0.4 s"
    assert headers(dead_letters(place, topic, 1)[0])[REASON] == "two is no good"


@each_type
async def test_dead_letters_are_not_lost_while_they_cannot_be_written(place: Place, kind: TypeName) -> None:
    """A topic whose records are limited to less than the dead letter needs: the message stays unsettled."""
    topic = place.topic([1])
    place.make_topic(1)
    policy = Redelivery(dead_letter_topic=place.topic((), **{"max.message.bytes": 10}))
    async with place.connect() as connection:
        subscription = await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", redelivery=policy
        )
        delivery = await next_of(subscription)
        delivery.reject_nowait("too big")
        await nothing(subscription)
        await connection.close()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind) as subscription,
    ):
        again = await next_of(subscription)
        assert (number(again), again.attempt, again.redelivered) == (1, 1, True)


@each_type
def test_poison_takes_no_innocent_with_it(
    place: Place, start_worker: Callable[..., Worker], kind: TypeName, capfd: pytest.CaptureFixture[str]
) -> None:
    """A message that kills its process, among 1,000 others in the window (`max_attempts` 3)."""
    count, poison = 1_000, 517
    topic = place.topic(range(1, count + 1))
    deaths = 0
    while True:
        worker = start_worker(topic, durable="d", type=kind, window=count, start="earliest", max_attempts=3)
        if not worker.poison(poison):
            break
        worker.kill()
        deaths += 1
        assert deaths <= 6, "it is never found"
    assert deaths == 3, "as many as its attempts"
    worker.end()
    said = f"{topic}[0]@{poison - 1} becomes a dead letter after 3 attempts: the processes that received"
    assert said in capfd.readouterr().err
    (letter,) = dead_letters(place, topic, 1)
    assert letter.value() == str(poison).encode()
    assert (headers(letter)[CAUSE], headers(letter)[ATTEMPTS]) == ("attempts", "3")
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type=kind) as subscription,
    ):
        assert subscription.receive(timeout=0.3) is None, "all are settled"


@each_type
async def test_held_too_long_is_rolled_back(place: Place, kind: TypeName) -> None:
    topic = place.topic([1, 2])
    policy = Redelivery(max_hold=timedelta(seconds=0.3))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", redelivery=policy, window=2
        ) as subscription,
    ):
        first = await next_of(subscription)
        second = await next_of(subscription)
        await second.ack()
        again = await next_of(subscription)
        assert (number(again), again.attempt) == (1, 2)
        with pytest.raises(LeaseLost, match="longer than"):
            await first.ack()
        await again.ack()


async def test_extending_begins_the_time_anew(place: Place) -> None:
    topic = place.topic([1])
    policy = Redelivery(max_hold=timedelta(seconds=0.5))
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest", redelivery=policy) as subscription,
    ):
        delivery = await next_of(subscription)
        for _ in range(4):
            assert await subscription.receive(timeout=0.3) is None
            await delivery.extend()
        await delivery.ack()
        await nothing(subscription)


@lanes
async def test_strict_order_withholds_what_is_later(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 7))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=SubscriptionType(kind), start="earliest", window=6, strict_order=True
        ) as subscription,
    ):
        one, two, three = await take(subscription, 3)
        await two.rollback(delay=1.0)
        await one.ack()
        await nothing(subscription)
        again = await next_of(subscription)
        assert (number(again), again.attempt) == (2, 2)
        await nothing(subscription)
        await ack_all([again, three])
        rest = await take(subscription, 3)
        assert numbers(rest) == [4, 5, 6]
        assert [delivery.redelivered for delivery in rest] == [False] * 3
        await ack_all(rest)


@lanes
async def test_strict_order_holds_for_the_next_holder(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(1, 5))
    async with place.connect() as first:
        subscription = await first.subscribe(
            topic, durable="d", type=SubscriptionType(kind), window=4, start="earliest", strict_order=True
        )
        await (await next_of(subscription)).rollback(delay=0.5)
    async with (
        place.connect() as second,
        await second.subscribe(topic, durable="d", type=kind, window=4) as subscription,
    ):
        assert numbers(await take(subscription, 1)) == [1]
        await nothing(subscription)


async def test_a_dead_letter_may_be_as_large_as_its_message(place: Place) -> None:
    """The topic of the dead letters takes what the message's own topic takes, and the headers of a letter."""
    config: dict[str, Any] = {"max.message.bytes": 3_000_000}
    topic = place.topic(**config)
    value = b"x" * 2_990_000
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": place.stack.kafka, "message.max.bytes": 4_000_000, "compression.type": "none"}
    )
    producer.produce(topic, value)
    assert producer.flush(LIMIT_S) == 0
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        await (await next_of(subscription)).reject("too large for us")
    (letter,) = dead_letters(place, topic, 1)
    assert letter.value() == value


async def test_strict_order_among_what_was_rolled_back(place: Place) -> None:
    topic = place.topic(range(1, 6))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="exclusive", window=5, start="earliest", strict_order=True
        ) as sub,
    ):
        one, two, three = await take(sub, 3)
        await two.rollback(delay=0.3)
        await one.rollback(delay=0.6)
        await three.rollback(delay=0.6)
        got: list[int] = []
        while (delivery := await sub.receive(timeout=1.5)) is not None:
            got.append(number(delivery))
            await delivery.ack()
        assert got == [1, 2, 3, 4, 5]
