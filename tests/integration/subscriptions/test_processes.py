"""Processes that are killed, frozen or closed while they hold messages: S8, and the promises of presence.

A killed process is noticed within a second, a stopped one after the session time-out; a clean close hands
over at once.
"""

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from kafkadur import SubscriptionActive
from kafkadur.sync import Subscription
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, both_types
from tests.integration.subscriptions.workers import Worker

#: A generous bound on what is promised within a second: far below the session time-out of 10 s.
NOTICED_S = 5.0


def receive(subscription: Subscription, count: int) -> list[tuple[int, int]]:
    """Receive and acknowledge so many messages: (number, attempt) of each."""
    got: list[tuple[int, int]] = []
    while len(got) < count:
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None, (got, subscription.statistics())
        got.append((int(delivery.value or b"0"), delivery.attempt))
        delivery.ack()
    return got


def test_s8_killed_member_of_a_shared_subscription(
    place: Place, start_worker: Callable[..., Worker], record_property: Callable[[str, object], None]
) -> None:
    topic = place.topic(range(1, 6))
    worker = start_worker(topic, durable="d", type="shared", window=5, start="earliest")
    assert worker.receive(5) == [(n, 1) for n in range(1, 6)]
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="shared") as survivor,
    ):
        assert survivor.receive(timeout=0.3) is None
        killed = time.monotonic()
        worker.kill()
        first = receive(survivor, 1)
        noticed = time.monotonic() - killed
        assert sorted(first + receive(survivor, 4)) == [(n, 2) for n in range(1, 6)]
    record_property("noticed_s", noticed)
    print(f"killed member noticed after {noticed:.3f} s")  # noqa: T201 - the figure is what one wants to see
    assert noticed < NOTICED_S


def test_w8_killed_holder_of_a_lane(
    place: Place, start_worker: Callable[..., Worker], record_property: Callable[[str, object], None]
) -> None:
    topic = place.topic(range(1, 6))
    worker = start_worker(topic, durable="d", type="exclusive", window=2, start="earliest")
    assert worker.receive(1) == [(1, 1)]
    assert worker.ack() == "acked"
    assert worker.receive(1) == [(2, 1)]
    killed = time.monotonic()
    worker.kill()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="exclusive", window=2) as successor,
    ):
        got = receive(successor, 1)
        noticed = time.monotonic() - killed
        assert got == [(2, 2)]
        rest = receive(successor, 3)
        assert [n for n, _ in rest] == [3, 4, 5]
    record_property("noticed_s", noticed)
    print(f"killed holder replaced after {noticed:.3f} s")  # noqa: T201 - the figure is what one wants to see
    assert noticed < NOTICED_S


@both_types
def test_k4_killed_before_it_settled_anything_counts(
    place: Place, start_worker: Callable[..., Worker], kind: str
) -> None:
    """A message that kills its process at once must not come as a first attempt for ever."""
    topic = place.topic([1])
    for attempt in range(1, 4):
        worker = start_worker(topic, durable="d", type=kind, start="earliest")
        assert worker.receive(1) == [(1, attempt)]
        worker.kill()


def test_w7_holder_in_another_process_is_named(place: Place, start_worker: Callable[..., Worker]) -> None:
    topic = place.topic()
    worker = start_worker(topic, durable="d", type="exclusive")
    with place.connect_sync() as connection, pytest.raises(SubscriptionActive) as caught:
        connection.subscribe(topic, durable="d", type="exclusive")
    assert str(worker.pid) in str(caught.value.holder)


@both_types
def test_frozen_process_is_replaced_after_its_session_and_fenced(
    place: Place, start_worker: Callable[..., Worker], kind: TypeName
) -> None:
    session = 1.5
    topic = place.topic(range(1, 4))
    worker = start_worker(topic, durable="d", type=kind, window=3, start="earliest", session_timeout=session)
    assert worker.receive(3) == [(1, 1), (2, 1), (3, 1)]
    with place.connect_sync(session_timeout=timedelta(seconds=session)) as connection:
        frozen = time.monotonic()
        worker.freeze()
        subscription: Subscription | None = None
        while subscription is None:
            try:
                subscription = connection.subscribe(topic, durable="d", type=kind)
            except SubscriptionActive:
                assert time.monotonic() - frozen < LIMIT_S, "the frozen holder is never given up"
        with subscription:
            assert sorted(receive(subscription, 3)) == [(1, 2), (2, 2), (3, 2)]
            taken = time.monotonic() - frozen
            # The last sign of life was at most half a session before.
            assert session / 2 - 0.1 <= taken < session + 5
            worker.thaw()
            assert worker.ack() in {"LeaseLost", "Fenced"}
            assert subscription.receive(timeout=0.3) is None


@both_types
def test_clean_close_hands_over_at_once(
    place: Place, start_worker: Callable[..., Worker], kind: TypeName
) -> None:
    topic = place.topic(range(1, 4))
    worker = start_worker(topic, durable="d", type=kind, start="earliest")
    assert worker.receive(3) == [(1, 1), (2, 1), (3, 1)]
    assert worker.close() == "closed"
    closed = time.monotonic()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type=kind) as successor,
    ):
        assert receive(successor, 3) == [(1, 1), (2, 1), (3, 1)]
    assert time.monotonic() - closed < NOTICED_S


def test_clean_close_wakes_a_waiting_member(place: Place, start_worker: Callable[..., Worker]) -> None:
    topic = place.topic(range(1, 4))
    worker = start_worker(topic, durable="d", type="shared", start="earliest")
    assert len(worker.receive(3)) == 3
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="shared") as survivor,
    ):
        assert survivor.receive(timeout=0.2) is None
        worker.close()
        closed = time.monotonic()
        assert sorted(receive(survivor, 3)) == [(1, 1), (2, 1), (3, 1)]
        assert time.monotonic() - closed < NOTICED_S


def test_killed_members_one_after_another_lose_nothing(
    place: Place, start_worker: Callable[..., Worker]
) -> None:
    """Three workers hold windows on three partitions and are killed; the rest gets every message."""
    topic = place.topic(partitions=3)
    for partition in range(3):
        place.publish(topic, range(partition * 20, partition * 20 + 20), partition=partition)
    held = []
    for _ in range(3):
        worker = start_worker(topic, durable="d", type="shared", window=10, start="earliest")
        held += [n for n, _ in worker.receive(10)]
        worker.kill()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="shared") as survivor,
    ):
        got = dict(receive(survivor, 60))
    assert sorted(got) == list(range(60))
    assert all(got[n] > 1 for n in held)
