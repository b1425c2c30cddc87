"""`run` on real servers: keys in order within a consumer, rate limit, circuit breaker."""

import asyncio
import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest

import kafkadur
import kafkadur.sync
from kafkadur import CircuitBreaker, Event, IllegalState, RateLimit, Redelivery
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import (
    LIMIT_S,
    PRIORITY_TOO,
    Place,
    next_of,
    nothing,
    number,
    numbers,
    ready,
    speaks,
    take,
)

ORDERED = ["exclusive", "priority", "serial"]


def publish(place: Place, topic: str, messages: Iterable[tuple[str | None, int]]) -> None:
    """Publish (key, number) to partition 0."""
    for index, (key, n) in enumerate(messages):
        place.raw.produce(topic, str(n), key=key, partition=0)
        if index == 0:  # as in `Place.publish_values`
            assert place.raw.flush(LIMIT_S) == 0
    assert place.raw.flush(LIMIT_S) == 0


class Book:
    """What handlers did, by key; one handler of a key at a time, and each key in order."""

    def __init__(self) -> None:
        self.done: dict[bytes | None, list[int]] = defaultdict(list)
        self.attempts: dict[int, list[int]] = defaultdict(list)
        self.hands: set[bytes] = set()
        self.most = 0

    def begin(self, delivery: kafkadur.Delivery | kafkadur.sync.Delivery) -> None:
        self.attempts[number(delivery)].append(delivery.attempt)
        if delivery.key is not None:
            assert delivery.key not in self.hands, "two handlers of a key"
            self.hands.add(delivery.key)
        self.most = max(self.most, len(self.hands))

    def end(self, delivery: kafkadur.Delivery | kafkadur.sync.Delivery, *, done: bool) -> None:
        if delivery.key is not None:
            self.hands.remove(delivery.key)
        if done:
            self.done[delivery.key].append(number(delivery))

    @property
    def count(self) -> int:
        return sum(map(len, self.done.values()))


@pytest.mark.parametrize("kind", ORDERED)
@pytest.mark.parametrize("backoff", [None, 0.02])
async def test_each_key_in_order_through_rollbacks(
    place: Place, kind: TypeName, backoff: float | None
) -> None:
    topic = place.topic()
    keys = ["a", "b", "c", "d", "e"]
    publish(place, topic, ((keys[n % 5], n) for n in range(200)))
    chance = random.Random(3)
    book = Book()
    rolled_back: set[int] = set()
    policy = Redelivery() if backoff is None else Redelivery(backoff=timedelta(seconds=backoff))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", window=50, redelivery=policy
        ) as subscription,
    ):

        async def handle(delivery: kafkadur.Delivery) -> None:
            book.begin(delivery)
            await asyncio.sleep(0)
            fails = chance.random() < 0.1 and delivery.attempt < 3
            book.end(delivery, done=not fails)
            if fails:
                rolled_back.add(number(delivery))
                raise ValueError(number(delivery))
            if book.count == 200:
                subscription.stop()

        delay = None if backoff is not None else 0.02
        async with asyncio.timeout(3 * LIMIT_S):
            await subscription.run(handle, concurrency=4, ordered_by_key=True, retry_delay=delay)
    assert rolled_back
    assert book.most > 1, "keys beside one another"
    for index, key in enumerate(keys):
        assert book.done[key.encode()] == list(range(index, 200, 5))
    for n, attempts in book.attempts.items():
        assert attempts == list(range(1, len(attempts) + 1)), "what was released is not counted"
        assert (len(attempts) > 1) == (n in rolled_back)


@pytest.mark.parametrize("delay", [0.0, 0.3])
async def test_what_was_received_behind_a_rollback_is_released(place: Place, delay: float) -> None:
    """The handler rolls back by itself, with a delay of its own; the other key does not wait."""
    topic = place.topic()
    publish(place, topic, [("a", 1), ("a", 2), ("a", 3), ("b", 4), (None, 5)])
    seen: list[tuple[int, int, bool]] = []
    others = asyncio.Event()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="exclusive", start="earliest") as subscription,
    ):

        async def handle(delivery: kafkadur.Delivery) -> None:
            seen.append((number(delivery), delivery.attempt, delivery.redelivered))
            if number(delivery) == 5:
                others.set()
            if seen[-1][:2] == (1, 1):
                await others.wait()  # so that 2 and 3 are received behind it
                await delivery.rollback(delay=delay)
            if len(seen) == 6:
                subscription.stop()

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, concurrency=3, ordered_by_key=True)
    assert sorted(seen[:3]) == [(1, 1, False), (4, 1, False), (5, 1, False)]
    assert seen[3:] == [(1, 2, True), (2, 1, True), (3, 1, True)]


def test_each_key_in_order_in_threads(place: Place) -> None:
    topic = place.topic()
    publish(place, topic, (("abcde"[n % 5], n) for n in range(100)))
    book, lock = Book(), threading.Lock()
    failed: set[int] = set()
    together = threading.Barrier(2, timeout=LIMIT_S)
    met = threading.Event()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="exclusive", start="earliest") as subscription,
    ):

        def handle(delivery: kafkadur.sync.Delivery) -> None:
            with lock:
                book.begin(delivery)
            if number(delivery) in (0, 1) and not met.is_set():
                together.wait()  # two keys at once
                met.set()
            with lock:
                fails = number(delivery) % 17 == 3 and delivery.attempt == 1
                book.end(delivery, done=not fails)
                if fails:
                    failed.add(number(delivery))
                    raise ValueError(number(delivery))
                if book.count == 100:
                    subscription.stop()

        subscription.run(handle, concurrency=4, ordered_by_key=True, retry_delay=0.02)
    assert failed == set(range(3, 100, 17))
    for index, key in enumerate("abcde"):
        assert book.done[key.encode()] == list(range(index, 100, 5))


async def test_on_a_shared_subscription_handlers_of_a_key_do_not_overlap(place: Place) -> None:
    topic = place.topic()
    publish(place, topic, (("abc"[n % 3], n) for n in range(60)))
    book = Book()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):

        async def handle(delivery: kafkadur.Delivery) -> None:
            book.begin(delivery)
            await asyncio.sleep(0)
            book.end(delivery, done=True)
            if book.count == 60:
                subscription.stop()

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, concurrency=5, ordered_by_key=True)
    assert book.most == 3
    for index, key in enumerate("abc"):
        assert book.done[key.encode()] == list(range(index, 60, 3))


@pytest.mark.parametrize("kind", ["exclusive", "key-ordered"])
async def test_a_key_whose_message_is_given_up_goes_on(place: Place, kind: TypeName) -> None:
    topic = place.topic()
    publish(place, topic, [("a", 1), ("a", 2)])
    seen: list[tuple[int, int]] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type=kind, start="earliest", redelivery=Redelivery(max_attempts=2)
        ) as subscription,
    ):

        def handle(delivery: kafkadur.Delivery) -> None:
            seen.append((number(delivery), delivery.attempt))
            if number(delivery) == 1:
                raise ValueError(1)
            subscription.stop()

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, concurrency=2, ordered_by_key=True, retry_delay=0)
    assert seen == [(1, 1), (1, 2), (2, 1)]


async def test_what_waits_in_line_when_it_stops_goes_back(place: Place) -> None:
    topic = place.topic()
    publish(place, topic, [("a", 1), ("a", 2), ("a", 3), ("b", 4)])
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type="exclusive", start="earliest"
        ) as subscription:
            others = asyncio.Event()

            async def handle(delivery: kafkadur.Delivery) -> None:
                if number(delivery) == 4:
                    others.set()
                else:
                    await others.wait()  # so that 2 and 3 are in line
                    subscription.stop()

            async with asyncio.timeout(LIMIT_S):
                await subscription.run(handle, concurrency=2, ordered_by_key=True)
        async with await connection.subscribe(topic, durable="d", type="exclusive") as subscription:
            left = await take(subscription, 2)
            assert [(n, d.attempt) for n, d in zip(numbers(left), left, strict=True)] == [(2, 1), (3, 1)]


STRICT: dict[str, dict[str, Any]] = {
    "exclusive": {"type": "exclusive"},
    "priority": {"type": "priority"},
    "serial": {"type": "serial"},
    "serial of each partition": {"type": "serial", "scope": "partition"},
}
strict_kinds = pytest.mark.parametrize(
    "kind", [PRIORITY_TOO, *(kind for kind in STRICT if kind != "priority")]
)


@strict_kinds
@pytest.mark.parametrize("delay", [0.0, 0.5])
async def test_strict_order_holds_back_what_was_not_received(place: Place, kind: str, delay: float) -> None:
    """Other keys that are in hands end; nothing new begins, of any key, before the first one is settled."""
    topic = place.topic()
    publish(place, topic, [("a", 1), ("a", 2), ("b", 3), ("c", 4), ("a", 5)])
    seen: list[tuple[int, int]] = []
    settled: list[int] = []
    ended: list[int] = []
    third, given_back = asyncio.Event(), asyncio.Event()
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", window=3, start="earliest", strict_order=True, **STRICT[kind]
        ) as subscription,
    ):

        async def handle(delivery: kafkadur.Delivery) -> None:
            seen.append((number(delivery), delivery.attempt))
            if seen[-1] == (1, 1):
                await third.wait()  # so that 2 and 3 are received behind it
                delivery.rollback_nowait(delay)
                given_back.set()
                return
            if number(delivery) == 3:
                third.set()
                await given_back.wait()  # else its acknowledgement makes room for 4 before
            if number(delivery) in (4, 5):
                assert 1 in settled, "it is new, and what was rolled back is not settled"
            settled.append(number(delivery))  # the next handler may begin before this one learns of it
            await delivery.ack()
            ended.append(number(delivery))
            if len(ended) == 5:
                subscription.stop()

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, concurrency=3, ordered_by_key=True)
    assert seen[:3] == [(1, 1), (3, 1), (1, 2)]
    assert [n for n in ended if n in (1, 2, 5)] == [1, 2, 5]
    assert sorted(seen) == [(1, 1), (1, 2), (2, 1), (3, 1), (4, 1), (5, 1)], (
        "what was released is not counted"
    )


@strict_kinds
@pytest.mark.parametrize("backoff", [None, 0.1])
async def test_strict_order_through_rollbacks(place: Place, kind: str, backoff: float | None) -> None:
    """By chance: each key in order, and nothing gets further ahead of what was rolled back than a window."""
    topic = place.topic()
    count, window = 120, 8
    publish(place, topic, (("abcde"[n % 5], n) for n in range(count)))
    chance = random.Random(5)
    book = Book()
    #: what was rolled back and is not settled: the offset up to which messages may have been handed out then
    holding: dict[int, int] = {}
    held = False
    policy = Redelivery() if backoff is None else Redelivery(backoff=timedelta(seconds=backoff))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic,
            durable="d",
            window=window,
            start="earliest",
            strict_order=True,
            redelivery=policy,
            **STRICT[kind],
        ) as subscription,
    ):

        async def handle(delivery: kafkadur.Delivery) -> None:
            nonlocal held
            book.begin(delivery)
            n = number(delivery)
            assert all(n <= most for other, most in holding.items() if other < n), (n, holding)
            await asyncio.sleep(0)
            fails = chance.random() < 0.1 and delivery.attempt < 3
            book.end(delivery, done=not fails)
            if fails:
                held = held or max(book.attempts) + window < count
                holding.setdefault(n, max(book.attempts) + window)
                raise ValueError(n)
            holding.pop(n, None)
            if book.count == count:
                subscription.stop()

        delay = None if backoff is not None else 0.1
        async with asyncio.timeout(3 * LIMIT_S):
            await subscription.run(handle, concurrency=4, ordered_by_key=True, retry_delay=delay)
    assert held, "something was to be held back"
    assert book.most > 1, "keys beside one another"
    for index, key in enumerate("abcde"):
        assert book.done[key.encode()] == list(range(index, count, 5))
    for attempts in book.attempts.values():
        assert attempts == list(range(1, len(attempts) + 1)), "what was released is not counted"


@pytest.mark.parametrize("kind", ["serial", "serial of each partition"])
async def test_strict_order_keeps_keys_in_order_over_turns(place: Place, kind: str) -> None:
    """A lane that passes to another member takes what was rolled back with it."""
    topic = place.topic()
    count, portion = 100, 20
    portion_done = asyncio.Event()
    chance = random.Random(11)
    book = Book()
    by_member = [0, 0]
    rolled_back = 0
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", window=5, start="earliest", strict_order=True, **STRICT[kind]
        ) as first,
        await connection.subscribe(
            topic, durable="d", window=5, start="earliest", strict_order=True, **STRICT[kind]
        ) as second,
    ):
        await ready(connection, "d", 2)

        async def work(me: int, subscription: kafkadur.Subscription) -> None:
            async def handle(delivery: kafkadur.Delivery) -> None:
                nonlocal rolled_back
                book.begin(delivery)
                await asyncio.sleep(0)
                fails = chance.random() < 0.15 and delivery.attempt < 3
                book.end(delivery, done=not fails)
                if fails:
                    rolled_back += 1
                    raise ValueError(number(delivery))
                by_member[me] += 1
                if book.count % portion == 0:
                    portion_done.set()
                if book.count == count:
                    first.stop()
                    second.stop()

            await subscription.run(handle, concurrency=3, ordered_by_key=True, retry_delay=0.02)

        async def publish_in_portions() -> None:
            """A turn goes on while something is in flight; what comes after that is the next member's."""
            for start in range(0, count, portion):
                portion_done.clear()
                numbers = range(start, start + portion)
                await asyncio.to_thread(publish, place, topic, [("abc"[n % 3], n) for n in numbers])
                await portion_done.wait()

        async with asyncio.timeout(3 * LIMIT_S):
            await asyncio.gather(work(0, first), work(1, second), publish_in_portions())
    assert rolled_back > 5
    assert min(by_member) > 0, "both had turns"
    for index, key in enumerate("abc"):
        assert book.done[key.encode()] == list(range(index, count, 3))


async def test_strict_order_goes_on_when_a_message_is_given_up(place: Place) -> None:
    topic = place.topic()
    publish(place, topic, [("a", 1), ("a", 2), ("b", 3), ("b", 4)])
    seen: list[tuple[int, int]] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic,
            durable="d",
            type="exclusive",
            window=2,
            start="earliest",
            strict_order=True,
            redelivery=Redelivery(max_attempts=2),
        ) as subscription,
    ):

        def handle(delivery: kafkadur.Delivery) -> None:
            seen.append((number(delivery), delivery.attempt))
            if len(seen) == 5:
                subscription.stop()
            if number(delivery) == 1:
                raise ValueError(1)

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, concurrency=2, ordered_by_key=True, retry_delay=0.05)
    assert seen[:2] == [(1, 1), (1, 2)]
    assert sorted(seen[2:]) == [(2, 1), (3, 1), (4, 1)]
    assert [n for n, _ in seen if n > 2] == [3, 4]


async def test_strict_order_holds_back_one_partition_where_each_has_its_turn(place: Place) -> None:
    topic = place.topic(partitions=2)
    publish(place, topic, [("a", 1), ("b", 2), ("c", 3)])
    place.publish(topic, range(1000, 1010), partition=1)
    ended: list[int] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic,
            durable="d",
            window=1,
            start="earliest",
            strict_order=True,
            **STRICT["serial of each partition"],
        ) as subscription,
    ):

        async def handle(delivery: kafkadur.Delivery) -> None:
            if number(delivery) == 1 and delivery.attempt == 1:
                await delivery.rollback(delay=timedelta(hours=1))
                return
            await delivery.ack()
            ended.append(number(delivery))
            if len(ended) == 10:
                subscription.stop()

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, concurrency=2, ordered_by_key=True)
    assert ended == list(range(1000, 1010))


@strict_kinds
async def test_stop_ends_the_wait_for_what_is_held_back(place: Place, kind: str) -> None:
    topic = place.topic()
    publish(place, topic, [("a", 1), ("b", 2)])
    seen: list[int] = []
    rolled_back = asyncio.Event()
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", window=1, start="earliest", strict_order=True, **STRICT[kind]
        ) as subscription:

            async def handle(delivery: kafkadur.Delivery) -> None:
                seen.append(number(delivery))
                await delivery.rollback(delay=timedelta(hours=1))
                rolled_back.set()

            async with asyncio.timeout(LIMIT_S):
                running = asyncio.create_task(subscription.run(handle, ordered_by_key=True))
                await rolled_back.wait()
                subscription.stop()
                await running
        async with await connection.subscribe(topic, durable="d", window=1, **STRICT[kind]) as subscription:
            await nothing(subscription)  # the next one waits, too
    assert seen == [1]


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_a_rate_limit_is_kept(place: Place, kind: TypeName) -> None:
    topic = place.topic(range(30))
    times: list[float] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):

        async def handle(_: kafkadur.Delivery) -> None:
            times.append(time.monotonic())
            if len(times) == 30:
                subscription.stop()

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, concurrency=8, rate_limit=RateLimit(per_second=50, burst=5))
    assert times[-1] - times[0] >= 25 / 50 - 0.05
    assert all(b - a >= 5 / 50 - 0.05 for a, b in zip(times, times[10:], strict=False)), "no second burst"


async def test_stop_ends_the_wait_for_the_rate(place: Place) -> None:
    topic = place.topic(range(3))
    began = asyncio.Event()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        running = asyncio.create_task(
            subscription.run(lambda _: began.set(), rate_limit=RateLimit(per_second=0.001, burst=1))
        )
        async with asyncio.timeout(LIMIT_S):
            await began.wait()
            subscription.stop()
            await running


def test_stop_ends_the_wait_for_the_rate_in_threads(place: Place) -> None:
    topic = place.topic(range(3))
    began = threading.Event()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        limit = RateLimit(per_second=0.001, burst=1)
        thread = threading.Thread(target=lambda: subscription.run(lambda _: began.set(), rate_limit=limit))
        thread.start()
        assert began.wait(LIMIT_S)
        subscription.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def breaker_only(tell: Callable[[Event], None]) -> Callable[[Event], None]:
    """Tell of circuit breakers alone: a member also says when it is live."""
    return lambda event: tell(event) if event.value.startswith("breaker") else None


class Downstream:
    """Something that handlers need, and that is down at first."""

    def __init__(self) -> None:
        self.up = False
        self.calls: list[tuple[int, int, bool]] = []

    def call(self, delivery: kafkadur.Delivery | kafkadur.sync.Delivery) -> None:
        self.calls.append((number(delivery), delivery.attempt, self.up))
        if not self.up:
            raise ConnectionError(number(delivery))


@pytest.mark.parametrize(
    ("kind", "concurrency", "ordered"),
    [
        ("shared", 1, False),
        ("shared", 4, False),
        ("exclusive", 1, False),
        ("exclusive", 4, True),
        ("key-ordered", 4, True),
        ("serial", 1, False),
    ],
)
async def test_the_breaker_opens_tries_one_and_closes(
    place: Place, caplog: pytest.LogCaptureFixture, kind: TypeName, concurrency: int, *, ordered: bool
) -> None:
    topic = place.topic()
    publish(place, topic, ((f"key-{n % 7}", n) for n in range(40)))
    below = Downstream()
    events: list[tuple[Event, int]] = []
    done: list[int] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic,
            durable="d",
            type=kind,
            start="earliest",
            on_event=breaker_only(lambda event: events.append((event, len(below.calls)))),
        ) as subscription,
    ):

        async def handle(delivery: kafkadur.Delivery) -> None:
            below.up = any(event is Event.BREAKER_HALF_OPENED for event, _ in events[3:])
            below.call(delivery)
            done.append(number(delivery))
            if len(done) == 40:
                subscription.stop()

        plan = CircuitBreaker(failures=3, pause=timedelta(milliseconds=300))
        with caplog.at_level(logging.WARNING, "kafkadur"):
            async with asyncio.timeout(LIMIT_S):
                await subscription.run(
                    handle, concurrency=concurrency, breaker=plan, ordered_by_key=ordered, retry_delay=0.05
                )
    assert [event for event, _ in events] == [
        Event.BREAKER_OPENED,
        Event.BREAKER_HALF_OPENED,
        Event.BREAKER_OPENED,
        Event.BREAKER_HALF_OPENED,
        Event.BREAKER_CLOSED,
    ]
    counts = [count for _, count in events]
    assert 3 <= counts[0] < 3 + concurrency
    assert counts[1] == counts[0] or concurrency > 1, "nothing was handed out while it was open"
    assert counts[2] == counts[1] + 1, "one was tried"
    assert counts[4] == counts[3] + 1
    assert sorted(done) == list(range(40))
    failed = [n for n, _, up in below.calls if not up]
    for n, attempt, up in below.calls:
        if up:
            assert attempt == failed.count(n) + 1, "what was released is not counted"
    if ordered:
        for key in range(7):
            mine = [n for n in done if n % 7 == key]
            assert mine == sorted(mine)
    assert sum("circuit breaker of its handlers is open" in text for text in caplog.messages) == 2


async def test_an_outage_makes_no_dead_letters(place: Place) -> None:
    """While the breaker is not closed, a message is tried more often than `attempts`, and is handled."""
    topic = place.topic([1])
    plan = CircuitBreaker(failures=2, pause=0.05)
    below = Downstream()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="exclusive", start="earliest") as subscription,
    ):

        def handle(delivery: kafkadur.Delivery) -> None:
            below.up = delivery.attempt == 9
            below.call(delivery)
            subscription.stop()

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, attempts=3, breaker=plan, retry_delay=0)
    assert [attempt for _, attempt, _ in below.calls] == list(range(1, 10))


async def test_while_it_is_open_others_get_the_messages(place: Place) -> None:
    """Of a shared subscription: what one consumer gives up for a while goes to another one."""
    topic = place.topic()
    opened = asyncio.Event()
    async with place.connect() as connection, place.connect() as elsewhere:
        broken = await connection.subscribe(
            topic, durable="d", start="earliest", on_event=breaker_only(lambda _: opened.set())
        )
        below = Downstream()
        plan = CircuitBreaker(failures=2, pause=timedelta(hours=1))
        running = asyncio.create_task(broken.run(below.call, breaker=plan, retry_delay=0))
        place.publish(topic, range(50))
        async with asyncio.timeout(LIMIT_S):
            await opened.wait()
            async with await elsewhere.subscribe(topic, durable="d") as healthy:
                deliveries = await take(healthy, 50)
                assert sorted(numbers(deliveries)) == list(range(50))
                failed = [n for n, _, _ in below.calls]
                assert {
                    n for n, d in zip(numbers(deliveries), deliveries, strict=True) if d.attempt > 1
                } == set(failed)
                for delivery in deliveries:
                    delivery.ack_nowait()
            broken.stop()
            await running
        await broken.close()


def test_the_breaker_in_threads(place: Place) -> None:
    topic = place.topic(range(20))
    below = Downstream()
    events: list[Event] = []
    done: set[int] = set()
    lock = threading.Lock()
    with (
        place.connect_sync() as connection,
        connection.subscribe(
            topic, durable="d", start="earliest", on_event=breaker_only(events.append)
        ) as subscription,
    ):

        def handle(delivery: kafkadur.sync.Delivery) -> None:
            with lock:
                below.up = Event.BREAKER_HALF_OPENED in events
                below.call(delivery)
                done.add(number(delivery))
                if len(done) == 20:
                    subscription.stop()

        plan = CircuitBreaker(failures=3, pause=timedelta(milliseconds=200))
        subscription.run(handle, concurrency=3, breaker=plan, retry_delay=0.02)
    assert events == [Event.BREAKER_OPENED, Event.BREAKER_HALF_OPENED, Event.BREAKER_CLOSED]


async def test_rejections_and_ignored_exceptions_open_nothing(place: Place) -> None:
    topic = place.topic(range(12))
    events: list[Event] = []
    seen: list[int] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic,
            durable="d",
            start="earliest",
            on_event=breaker_only(events.append),
            redelivery=Redelivery(max_attempts=1),
        ) as subscription,
    ):

        def handle(delivery: kafkadur.Delivery) -> None:
            seen.append(number(delivery))
            if len(seen) == 12:
                subscription.stop()
            if number(delivery) % 2:
                raise kafkadur.Reject("odd")
            raise KeyError(number(delivery))

        async with asyncio.timeout(LIMIT_S):
            await subscription.run(handle, breaker=CircuitBreaker(failures=1, ignore=(LookupError,)))
    assert events == []


async def test_stop_ends_an_open_breaker(place: Place) -> None:
    topic = place.topic([1])
    opened = asyncio.Event()
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", start="earliest", on_event=breaker_only(lambda _: opened.set())
        ) as subscription:
            plan = CircuitBreaker(failures=1, pause=timedelta(hours=1))
            running = asyncio.create_task(subscription.run(Downstream().call, breaker=plan, retry_delay=0))
            async with asyncio.timeout(LIMIT_S):
                await opened.wait()
                subscription.stop()
                await running
        async with await connection.subscribe(topic, durable="d") as subscription:
            delivery = await next_of(subscription)
            assert delivery.attempt == 2
            await delivery.ack()
            await nothing(subscription)


async def test_a_function_that_is_no_coroutine_may_block(place: Place) -> None:
    """It runs in a thread, beside the others, and the event loop goes on."""
    topic = place.topic(range(6))
    together, released = threading.Barrier(4), threading.Event()
    seen: list[int] = []
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):

        def handle(delivery: kafkadur.Delivery) -> None:
            together.wait(LIMIT_S)  # three handlers, and the test
            assert released.wait(LIMIT_S)
            seen.append(number(delivery))
            if len(seen) == 6:
                subscription.stop()

        running = asyncio.create_task(subscription.run(handle, concurrency=3))
        async with asyncio.timeout(LIMIT_S):
            await asyncio.to_thread(together.wait, LIMIT_S)
            await asyncio.sleep(0)  # the loop is not blocked by the three that wait
            assert seen == []
            released.set()
            await asyncio.to_thread(together.wait, LIMIT_S)
            await running
        assert sorted(seen) == [*range(6)]


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"on_undecodable": "drop"}, {"failure_detail": "all"}])
async def test_wrong_parameters_are_refused(place: Place, wrong: dict[str, Any]) -> None:
    topic = place.topic()
    async with place.connect() as connection, await connection.subscribe(topic, durable="d") as subscription:
        with pytest.raises(IllegalState) as caught:
            await subscription.run(lambda _: None, **wrong)
        speaks(caught.value)
