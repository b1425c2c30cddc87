"""Many messages through many members, and what an idle member costs."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, both_types, nothing, take
from tests.integration.subscriptions.workers import Worker

COUNT = 20_000
MEMBERS = 4


def test_shared_by_threads_each_message_is_acknowledged_once(place: Place) -> None:
    """2 % are rolled back once; each thread writes its ledger before it acknowledges."""
    topic = place.topic(partitions=4)
    for partition in range(4):
        place.publish(topic, range(partition, COUNT, 4), partition=partition)
    ledgers: list[list[int]] = [[] for _ in range(MEMBERS)]
    rolled_back: list[list[int]] = [[] for _ in range(MEMBERS)]
    failures: list[BaseException] = []
    left = COUNT
    lock = threading.Lock()
    finished = threading.Event()
    attached = threading.Barrier(MEMBERS)

    def consume(me: int) -> None:
        nonlocal left
        try:
            with (
                place.connect_sync() as connection,
                connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
            ):
                attached.wait(LIMIT_S)
                while not finished.is_set():
                    delivery = subscription.receive(timeout=0.1)
                    if delivery is None:
                        continue
                    number = int(delivery.value or b"")
                    if number % 50 == 0 and delivery.attempt == 1:
                        rolled_back[me].append(number)
                        delivery.rollback_nowait()
                        continue
                    ledgers[me].append(number)
                    delivery.ack_nowait()
                    with lock:
                        left -= 1
                        if left == 0:
                            finished.set()
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            failures.append(error)
            finished.set()

    threads = [threading.Thread(target=consume, args=(me,)) for me in range(MEMBERS)]
    for thread in threads:
        thread.start()
    in_time = finished.wait(60)
    finished.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert failures == []
    assert in_time, f"{left} of {COUNT} are missing"
    counted = Counter(number for ledger in ledgers for number in ledger)
    assert sorted(counted) == list(range(COUNT))
    assert set(counted.values()) == {1}
    assert sorted(number for ledger in rolled_back for number in ledger) == list(range(0, COUNT, 50))
    assert sum(1 for ledger in ledgers if ledger) == MEMBERS


def test_shared_by_processes_each_message_is_acknowledged_once(
    place: Place, start_worker: Callable[..., Worker]
) -> None:
    topic = place.topic(partitions=4)
    workers = [start_worker(topic, durable="d", type="shared") for _ in range(MEMBERS)]
    for worker in workers:
        worker.work()
    for partition in range(4):
        place.publish(topic, range(partition, COUNT, 4), partition=partition)
    counted = Counter(number for worker in workers for number in worker.answer())
    assert sorted(counted) == list(range(COUNT))
    assert set(counted.values()) == {1}


@both_types
async def test_full_window_waits_without_exchanges(place: Place, kind: TypeName) -> None:
    """Messages that could come at once, but for which there is no room, are no reason to ask and ask."""
    topic = place.topic(range(20))
    async with place.connect() as connection:
        async with await connection.subscribe(
            topic, durable="d", type=kind, window=20, start="earliest"
        ) as subscription:
            await take(subscription, 20)
        async with await connection.subscribe(topic, durable="d", type=kind, window=5) as subscription:
            await take(subscription, 5)
            await nothing(subscription)
            before = subscription.statistics()["exchanges"]
            assert await subscription.receive(timeout=1) is None
            assert subscription.statistics()["exchanges"] - before <= 5


@pytest.mark.long
async def test_idle_members_cost_two_exchanges_in_five_seconds(place: Place) -> None:
    topic = place.topic([1], partitions=3)
    calls: Counter[tuple[str, str]] = Counter()

    def record(script: str, request: Sequence[object], _: Sequence[object]) -> None:
        calls[script, str(request[4])] += 1

    async with (
        place.connect(recorder=record) as connection,
        await connection.subscribe(topic, durable="s", type="shared", start="earliest") as shared,
        await connection.subscribe(topic, durable="s", type="shared", start="earliest") as other,
        await connection.subscribe(topic, durable="e", type="exclusive", start="earliest") as exclusive,
    ):
        for subscription in (shared, other, exclusive):
            delivery = await subscription.receive(timeout=0.5)
            if delivery is not None:
                await delivery.ack()
            await nothing(subscription)
        calls.clear()
        assert await exclusive.receive(timeout=5) is None
        for member in (shared, other, exclusive):
            made = Counter({name: count for (name, by), count in calls.items() if by == member.member_id})
            assert made["exchange"] <= 2, calls
            assert made.total() <= 2 or made["renew"] == 1, "one renewal may not suffice"
