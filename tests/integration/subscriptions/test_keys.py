"""Key-ordered subscriptions: keys in order, members in parallel, handover, stuck keys."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

import confluent_kafka
import pytest

import kafkadur
import kafkadur.sync
from kafkadur import Redelivery
from kafkadur.consumer import key_queue
from kafkadur.consumer.key_queue import LOADED
from kafkadur.consumer.policy.keyed import KeyedPolicy
from kafkadur.fetch.range_fetcher import RangeFetcher
from tests.integration.subscriptions.helpers import LIMIT_S, Place, next_of, nothing, take, wait_until
from tests.integration.subscriptions.workers import Worker

KEYS = [f"key-{n}" for n in range(40)]


def publish(place: Place, topic: str, messages: Iterable[tuple[str | None, int]]) -> None:
    """Publish (key, number); where the broker's clients would put them."""
    for key, n in messages:
        place.raw.produce(topic, str(n), key=key)
    assert place.raw.flush(LIMIT_S) == 0


def of(delivery: kafkadur.Delivery) -> tuple[str | None, int]:
    """Key and number of a delivery."""
    return (None if delivery.key is None else delivery.key.decode(), int(delivery.value or b"-1"))


def in_order(numbers: Sequence[int]) -> bool:
    return list(numbers) == sorted(set(numbers))


class Work:
    """Consumers that note what they settled, and check that keys are in order and in one pair of hands."""

    def __init__(self) -> None:
        self.settled: dict[str, list[int]] = defaultdict(list)
        self.by_member: dict[str, int] = defaultdict(int)
        self.hands: set[str] = set()
        self.count = 0
        self.changed = asyncio.Event()
        self.random = random.Random(7)

    async def consume(
        self, name: str, subscription: kafkadur.Subscription, *, rollbacks: float = 0.0
    ) -> None:
        """Work until it is stopped, some handlers at a time."""

        async def handle(delivery: kafkadur.Delivery) -> None:
            key, n = of(delivery)
            assert key is not None
            assert key not in self.hands, "two messages of a key in hands"
            self.hands.add(key)
            await asyncio.sleep(0)
            self.hands.remove(key)
            if self.random.random() < rollbacks:
                delivery.rollback_nowait(self.random.choice((0.0, 0.0, 0.02)))
                return
            await delivery.ack()
            self.settled[key].append(n)
            self.by_member[name] += 1
            self.count += 1
            self.changed.set()

        await subscription.run(handle, concurrency=8)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(4 * LIMIT_S):
            while self.count < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.mark.parametrize(
    ("members", "partitions"),
    [
        (1, 3),
        (5, 1),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, 1), (2, 1), (2, 3), (5, 3))),
    ],
)
async def test_each_key_in_order_and_members_in_parallel(place: Place, partitions: int, members: int) -> None:
    topic = place.make_topic(partitions)
    work = Work()
    async with place.connect() as connection:
        subscriptions = [
            await connection.subscribe(topic, durable="d", type="key-ordered", window=20, start="earliest")
            for _ in range(members)
        ]
        running = [
            asyncio.create_task(work.consume(f"m{n}", subscription, rollbacks=0.1))
            for n, subscription in enumerate(subscriptions)
        ]
        count = 2_000
        publish(place, topic, ((KEYS[n % len(KEYS)], n) for n in range(count)))
        await work.until(count)
        for subscription in subscriptions:
            subscription.stop()
        await asyncio.gather(*running)
        assert all(map(in_order, work.settled.values()))
        assert sum(map(len, work.settled.values())) == count
        assert len(work.by_member) == members, "everybody had work"


async def test_members_come_and_go(place: Place) -> None:
    topic = place.make_topic(2)
    work = Work()
    published = 0

    def publish_more(count: int) -> None:
        nonlocal published
        numbers = range(published, published + count)
        publish(place, topic, ((KEYS[n % len(KEYS)], n) for n in numbers))
        published += count

    async with place.connect() as connection:
        first = await connection.subscribe(
            topic, durable="d", type="key-ordered", window=50, start="earliest"
        )
        tasks = [asyncio.create_task(work.consume("m0", first, rollbacks=0.05))]
        publish_more(6_000)
        later: list[kafkadur.Subscription] = []
        for n in range(1, 5):
            await work.until(n * 700)
            joined = await connection.subscribe(topic, durable="d", type="key-ordered", window=50)
            later.append(joined)
            tasks.append(asyncio.create_task(work.consume(f"m{n}", joined, rollbacks=0.05)))
            # Joining may have taken as long as the others needed for everything.
            async with asyncio.timeout(4 * LIMIT_S):
                while f"m{n}" not in work.by_member:
                    if work.count == published:
                        publish_more(100)
                    await work.until(work.count + 1)
        for n, leaving in enumerate(later[:3]):
            await work.until(3_500 + n * 500)
            leaving.stop()
            await tasks[n + 1]
            await leaving.close()
        await work.until(published)
        for subscription in (first, later[3]):
            subscription.stop()
        await asyncio.gather(*tasks)
    assert all(map(in_order, work.settled.values()))
    assert sum(map(len, work.settled.values())) == published
    assert len(work.by_member) == 5


async def test_a_key_waits_for_its_message_that_was_rolled_back(place: Place) -> None:
    topic = place.make_topic(1)
    publish(place, topic, [("a", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5)])
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="key-ordered", window=10, start="earliest"
        ) as subscription,
    ):
        first, third = sorted(await take(subscription, 2), key=of)
        assert [of(first), of(third)] == [("a", 1), ("b", 3)]
        await nothing(subscription)
        await first.rollback(delay=0.4)
        await third.ack()
        fifth = await next_of(subscription)
        assert of(fifth) == ("b", 5)
        await fifth.ack()
        again = await next_of(subscription)
        assert (of(again), again.attempt) == (("a", 1), 2)
        await again.ack()
        for expected in (2, 4):
            delivery = await next_of(subscription)
            assert of(delivery) == ("a", expected)
            await delivery.ack()
        await nothing(subscription)


async def test_messages_without_a_key_wait_for_nobody(place: Place) -> None:
    topic = place.make_topic(1)
    publish(place, topic, [(None, n) for n in range(20)])
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="key-ordered", window=20, start="earliest"
        ) as subscription,
    ):
        deliveries = await take(subscription, 20)
        assert sorted(of(delivery)[1] for delivery in deliveries) == list(range(20))


async def test_handover_is_drained_and_keeps_what_waits_for_its_time(place: Place) -> None:
    """A second member comes: it gets its keys only when the first has none of theirs in hands."""
    topic = place.make_topic(1)
    publish(place, topic, ((key, n) for n in range(3) for key in KEYS))
    async with place.connect() as connection:
        first = await connection.subscribe(
            topic, durable="d", type="key-ordered", window=len(KEYS), start="earliest"
        )
        held = await take(first, len(KEYS))
        assert {of(delivery)[0] for delivery in held} == set(KEYS), "one of each key"
        second = await connection.subscribe(topic, durable="d", type="key-ordered", window=len(KEYS))
        await nothing(second)
        delayed = held[::4]
        for delivery in held:
            if delivery in delayed:
                await delivery.rollback(delay=1.0)
            else:
                await delivery.ack()
        waiting = {of(delivery)[0] for delivery in delayed}
        seen: dict[str | None, list[tuple[int, int]]] = defaultdict(list)
        members = [first, second]
        who: dict[str | None, set[int]] = defaultdict(set)
        total = 3 * len(KEYS) - (len(KEYS) - len(delayed))
        async with asyncio.timeout(LIMIT_S):
            while sum(map(len, seen.values())) < total:
                for index, member in enumerate(members):
                    got = await member.receive(timeout=0.02)
                    if got is not None:
                        key, n = of(got)
                        seen[key].append((n, got.attempt))
                        who[key].add(index)
                        await got.ack()
        for key in KEYS:
            expected = [(1, 1), (2, 1)]
            assert seen[key] == ([(0, 2), *expected] if key in waiting else expected)
        assert any(who[key] == {1} for key in KEYS), "the second has keys of its own"
        assert any(who[key] == {0} for key in KEYS)
        await first.close()
        await second.close()


async def test_a_stuck_key_stops_nobody_else(place: Place) -> None:
    topic = place.make_topic(1)
    count = 5_000
    publish(place, topic, [("stuck", 0)])
    publish(place, topic, (("stuck" if n % 2 else f"k{n % 7}", n) for n in range(1, count)))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="key-ordered", window=5, start="earliest"
        ) as subscription,
    ):
        stuck: kafkadur.Delivery | None = None
        others = [n for n in range(1, count) if n % 2 == 0]
        seen: list[int] = []
        while len(seen) < len(others) or stuck is None:
            delivery = await next_of(subscription)
            if of(delivery)[0] == "stuck":
                assert stuck is None, "the next one of a key that is in hands"
                stuck = delivery
            else:
                seen.append(of(delivery)[1])
                delivery.ack_nowait()
        assert sorted(seen) == others
        assert of(stuck) == ("stuck", 0)
        await stuck.ack()
        rest: list[int] = []
        for _ in range(count - 1 - len(others)):
            delivery = await next_of(subscription)
            rest.append(of(delivery)[1])
            delivery.ack_nowait()
        assert rest == [n for n in range(1, count) if n % 2], "in order"


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep few records in memory."""
    monkeypatch.setattr(key_queue, "MOST_LOADED", 0)


@pytest.mark.parametrize(("limit", "most"), [("MOST_LOADED", 0), ("MOST_BYTES", 1_000)])
async def test_what_waits_behind_a_stuck_key_is_parked_and_resumed_in_order(
    place: Place, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """Of a thousand messages behind it a few stay in memory; the others are read again when it goes on."""
    monkeypatch.setattr(key_queue, limit, most)
    topic = place.topic()
    publish(place, topic, [("stuck", n) for n in range(1_000)])
    publish(place, topic, [("free", n) for n in range(10)])
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="key-ordered", start="earliest", key_lanes=1
        ) as subscription,
    ):
        first = await next_of(subscription)
        assert of(first) == ("stuck", 0)
        for n in range(10):
            delivery = await next_of(subscription)
            assert of(delivery) == ("free", n)
            await delivery.ack()
        assert 0 < subscription.statistics()["parked"] <= 999 - LOADED
        await first.ack()
        for n in range(1, 1_000):
            delivery = await next_of(subscription)
            assert (of(delivery), delivery.attempt, delivery.redelivered) == (("stuck", n), 1, False)
            delivery.ack_nowait()
        await nothing(subscription)
        assert subscription.statistics()["parked"] == 0
    async with place.connect() as connection:
        known = await connection.known("d")
        assert known is not None
        async with await connection.subscribe(topic, durable="d", type="key-ordered") as again:
            await nothing(again)


@pytest.mark.parametrize(("most", "bound"), [(0, 20_000), (150, 20_000), (1_000, 10_000)])
async def test_parked_messages_of_several_keys_are_read_again_together(
    place: Place, monkeypatch: pytest.MonkeyPatch, most: int, bound: int
) -> None:
    """Two keys wait behind their first messages, in two lanes of a partition: one reading serves both.

    Where each key is read by itself, 72,000, 28,000 and 11,000 offsets are read. How many are read together
    depends on when the application takes which message.
    """
    monkeypatch.setattr(key_queue, "MOST_LOADED", most)
    readings: list[tuple[int, int]] = []
    read_range = RangeFetcher.read_range

    def count(self: RangeFetcher, partition: int, start: int, end: int, token: int) -> None:
        readings.append((start, end))
        read_range(self, partition, start, end, token)

    monkeypatch.setattr(RangeFetcher, "read_range", count)
    topic = place.topic()
    publish(place, topic, [(key, n) for n in range(1_000) for key in ("a", "b", "c", "d")])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="key-ordered", start="earliest") as subscription,
    ):
        held = [await next_of(subscription) for _ in range(4)]
        await asyncio.to_thread(
            wait_until,
            lambda: subscription.statistics()["records_used"] == 4_000,
            "all wait behind these",
        )
        assert 0 < subscription.statistics()["parked"] <= 4 * (999 - LOADED)
        for delivery in held:
            delivery.ack_nowait()
        seen: dict[str | None, list[int]] = defaultdict(list)
        for _ in range(4 * 999):
            delivery = await next_of(subscription)
            key, n = of(delivery)
            seen[key].append(n)
            delivery.ack_nowait()
        assert dict(seen) == {key: list(range(1, 1_000)) for key in ("a", "b", "c", "d")}
        await nothing(subscription)
        assert subscription.statistics()["parked"] == 0
    assert sum(end - start for start, end in readings) <= bound, readings


@pytest.mark.usefixtures("little_memory")
async def test_parked_messages_go_to_another_member_with_their_lane(place: Place) -> None:
    topic = place.topic()
    publish(place, topic, [("stuck", n) for n in range(500)])
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type="key-ordered", start="earliest", key_lanes=1
        ) as first:
            held = await next_of(first)
            wait_until(lambda: first.statistics()["parked"] > 0, "some are parked")
            await held.rollback(delay=0)
        async with await connection.subscribe(topic, durable="d", type="key-ordered") as second:
            for n in range(500):
                delivery = await next_of(second)
                assert of(delivery) == ("stuck", n)
                await delivery.ack()
            await nothing(second)


def test_killed_member_hands_its_keys_over_in_order(
    place: Place, start_worker: Callable[..., Worker]
) -> None:
    topic = place.make_topic(1)
    count = 400
    publish(place, topic, ((KEYS[n % len(KEYS)], n) for n in range(count)))
    worker = start_worker(topic, durable="d", type="key-ordered", window=20, start="earliest")
    held = worker.receive(20)
    assert len(held) == 20
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="key-ordered", window=20) as subscription,
    ):
        worker.kill()
        seen: dict[bytes | None, list[int]] = defaultdict(list)
        attempts: dict[int, int] = {}
        for _ in range(count):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None, len(attempts)
            n = int(delivery.value or b"-1")
            seen[delivery.key].append(n)
            attempts[n] = delivery.attempt
            delivery.ack()
        assert subscription.receive(timeout=0.3) is None
    assert all(map(in_order, seen.values()))
    assert sorted(attempts) == list(range(count))
    assert all(attempts[n] == 2 for n, _ in held)


def test_poison_key_takes_no_innocent_with_it(place: Place, start_worker: Callable[..., Worker]) -> None:
    topic = place.make_topic(1)
    count, poison = 600, 301
    publish(place, topic, ((f"k{n}", n) for n in range(1, count + 1)))
    deaths = 0
    while True:
        worker = start_worker(
            topic, durable="d", type="key-ordered", window=200, start="earliest", max_attempts=3
        )
        if not worker.poison(poison):
            break
        worker.kill()
        deaths += 1
        assert deaths <= 6, "it is never found"
    assert deaths == 3
    consumer = confluent_kafka.Consumer({"bootstrap.servers": place.stack.kafka, "group.id": place.namespace})
    consumer.assign([confluent_kafka.TopicPartition(f"{topic}.dead", 0, 0)])
    letter = consumer.poll(LIMIT_S)
    assert letter is not None
    assert letter.value() == str(poison).encode()
    assert consumer.poll(0.5) is None
    consumer.close()


def test_a_last_attempt_that_waits_holds_up_no_other_key(
    place: Place, start_worker: Callable[..., Worker]
) -> None:
    topic = place.make_topic(1)
    publish(place, topic, [("a", 1)])
    worker = start_worker(
        topic, durable="d", type="key-ordered", start="earliest", max_attempts=2, backoff=3_600
    )
    assert worker.receive(1) == [(1, 1)]
    worker.kill()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="key-ordered") as subscription,
    ):
        wait_until(lambda: subscription.statistics()["leases"] > 0, "the lane")
        publish(place, topic, ((f"k{n}", n) for n in range(10, 20)))
        others = [subscription.receive(timeout=LIMIT_S) for _ in range(10)]
        assert sorted(int(other.value or b"") for other in others if other is not None) == list(range(10, 20))
        assert subscription.receive(timeout=0.2) is None, "what was in the hands of the dead waits, alone"


def receive(subscription: kafkadur.sync.Subscription) -> tuple[int, kafkadur.sync.Delivery]:
    """Return the next number and its delivery."""
    delivery = subscription.receive(timeout=LIMIT_S)
    assert delivery is not None
    return int(delivery.value or b""), delivery


def test_suspects_that_wait_for_another_one_hold_up_their_own_keys_only(
    place: Place, start_worker: Callable[..., Worker]
) -> None:
    topic = place.make_topic(1)
    publish(place, topic, [(f"k{n}", n) for n in range(1, 7)])
    worker = start_worker(topic, durable="d", type="key-ordered", start="earliest", max_attempts=3)
    assert sorted(n for n, _ in worker.receive(6)) == [1, 2, 3, 4, 5, 6]
    worker.kill()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="key-ordered") as subscription,
    ):
        n, first = receive(subscription)
        assert first.attempt == 2
        waiting = set(range(1, 7)) - {n}
        publish(
            place, topic, [*((f"k{n}", 10 + n) for n in waiting), *((f"new{n}", n) for n in range(20, 30))]
        )
        new: list[int] = []
        for _ in range(10):
            n, other = receive(subscription)
            new.append(n)
            other.ack()
        assert sorted(new) == list(range(20, 30))
        assert subscription.receive(timeout=0.2) is None, "the other suspects and their keys wait"
        first.ack()
        seen: list[int] = []
        for _ in range(2 * len(waiting)):
            n, again = receive(subscription)
            seen.append(n)
            assert again.attempt == (2 if n < 10 else 1)
            again.ack()
    assert sorted(seen) == sorted([*waiting, *(10 + n for n in waiting)])
    assert all(seen.index(n) < seen.index(10 + n) for n in waiting)


def test_a_last_attempt_behind_another_message_of_its_key_holds_up_no_other_key(
    place: Place, start_worker: Callable[..., Worker]
) -> None:
    topic = place.make_topic(1)
    publish(place, topic, [("a", 1), ("a", 2)])
    worker = start_worker(topic, durable="d", type="key-ordered", start="earliest", max_attempts=2)
    assert worker.receive(1) == [(1, 1)]
    worker.kill()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="key-ordered") as subscription,
    ):
        n, first = receive(subscription)
        assert n == 1
        publish(place, topic, [("a", 3), *((f"k{n}", n) for n in range(10, 20))])
        assert subscription.receive(timeout=0.2) is None, "its last attempt is alone"
        first.release()  # it is no suspect any more, and comes again behind the others
        seen: list[int] = []
        while len(seen) < 13:
            n, delivery = receive(subscription)
            seen.append(n)
            delivery.ack()
    assert sorted(seen) == [1, 2, 3, *range(10, 20)]
    assert [n for n in seen if n < 10] == [1, 2, 3]


async def test_redelivery_policy_and_time_limit_keep_the_order(place: Place) -> None:
    topic = place.make_topic(1)
    publish(place, topic, [("a", 1), ("a", 2), ("b", 3)])
    policy = Redelivery(max_attempts=2, max_hold=timedelta(seconds=0.3))
    async with (
        place.connect() as connection,
        await connection.subscribe(
            topic, durable="d", type="key-ordered", start="earliest", redelivery=policy
        ) as subscription,
    ):
        first, third = sorted(await take(subscription, 2), key=of)
        await third.ack()
        again = await next_of(subscription)
        assert (of(again), again.attempt) == (("a", 1), 2)
        await again.rollback()  # the last attempt: a dead letter
        second = await next_of(subscription)
        assert of(second) == ("a", 2)
        await second.ack()
        assert first.offset == 0
        await nothing(subscription)


async def test_two_subscriptions_of_other_types_beside_it(place: Place) -> None:
    """The lanes of keys are this subscription's alone."""
    topic = place.make_topic(2)
    publish(place, topic, ((key, n) for n in range(5) for key in KEYS))
    async with place.connect() as connection:
        for kind in ("key-ordered", "shared", "serial"):
            async with await connection.subscribe(
                topic, durable=kind, type=kind, start="earliest"
            ) as subscription:
                for _ in range(5 * len(KEYS)):
                    (await next_of(subscription)).ack_nowait()
                await nothing(subscription)


async def test_what_has_become_due_keeps_nobody_busy_until_it_is_asked_for(place: Place) -> None:
    """A handler is at work and asks for nothing: what was rolled back is made ready, then there is rest."""
    topic = place.topic()
    publish(place, topic, [("a", 0), ("b", 1)])
    async with place.connect() as connection:
        subscription = await connection.subscribe(topic, durable="d", type="key-ordered", start="earliest")
        first, second = await take(subscription, 2)
        await first.rollback(delay=0.1)
        member = subscription._member  # noqa: SLF001 - nothing shows outside what it does
        policy = member._policy  # noqa: SLF001 - as above
        assert isinstance(policy, KeyedPolicy)
        keys = policy.keys
        await asyncio.to_thread(wait_until, lambda: keys.next_at is None and keys.free == 1, "what is ready")
        assert of(await next_of(subscription)) == of(first)
        await second.ack()
