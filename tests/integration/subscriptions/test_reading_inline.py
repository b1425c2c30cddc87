"""A thread that waits for a message reads it from Kafka itself, where the compiled client is in use."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import pytest

import kafkadur.sync
from kafkadur import InternalError
from kafkadur.fetch import tail_fetcher
from kafkadur.native.choice import is_native
from kafkadur.runtime.stages import Stage
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, Place, tail_of, wait_until

pytestmark = pytest.mark.skipif(not is_native(), reason="the compiled client was not built")

TYPES = ("shared", "exclusive", "key-ordered")


class Readers:
    """A probe that notes which threads read records."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, stage: Stage) -> None:
        if stage is Stage.READ:
            self.names.append(threading.current_thread().name)


def receive(subscription: kafkadur.sync.Subscription) -> kafkadur.sync.Delivery:
    delivery = subscription.receive(timeout=LIMIT_S)
    assert delivery is not None
    return delivery


def wait_for_waiting(
    connection: kafkadur.sync.Connection,
    subscription: kafkadur.sync.Subscription,
    received: Future[kafkadur.sync.Delivery],
) -> None:
    """Wait until a thread of the application waits in Kafka's client, or has received something."""
    tail = tail_of(cast("Any", connection), cast("Any", subscription))
    wait_until(lambda: tail._waits_inline or received.done(), "the thread waits for Kafka")  # noqa: SLF001 - nothing else shows it


@pytest.mark.parametrize("kind", TYPES)
def test_a_thread_that_waits_reads(place: Place, kind: TypeName) -> None:
    topic, readers, count = place.topic([]), Readers(), 20
    with (
        place.connect_sync(probe=readers) as connection,
        connection.subscribe(topic, durable="d", type=kind) as subscription,
        ThreadPoolExecutor(1, "application") as pool,
    ):
        for number in range(count):
            received = pool.submit(receive, subscription)
            wait_for_waiting(connection, subscription, received)
            place.publish(topic, [number])
            delivery = received.result(LIMIT_S)
            assert int(delivery.value or b"") == number
            delivery.ack_nowait()
    own = sum(name.startswith("application") for name in readers.names)
    assert own > count / 2, readers.names


def test_an_iterator_reads_too(place: Place) -> None:
    topic, readers = place.topic(range(10)), Readers()
    with (
        place.connect_sync(probe=readers) as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        found = []
        for delivery in subscription:
            found.append(int(delivery.value or b""))
            delivery.ack_nowait()
            if len(found) == 20:
                break
            if len(found) == 10:
                place.publish(topic, range(10, 20))
    assert found == list(range(20))


@pytest.mark.parametrize("kind", TYPES)
def test_the_readers_thread_reads_while_the_application_works(place: Place, kind: TypeName) -> None:
    topic = place.topic([0])
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        receive(subscription).ack_nowait()
        place.publish(topic, range(1, 6))
        # nobody waits for a message meanwhile
        wait_until(lambda: subscription.statistics()["records_read"] == 6, "the others are read ahead")
        for number in range(1, 6):
            delivery = receive(subscription)
            assert int(delivery.value or b"") == number
            delivery.ack_nowait()


def test_stopping_ends_the_wait(place: Place) -> None:
    with (
        place.connect_sync() as connection,
        connection.subscribe(place.topic([]), durable="d") as subscription,
        ThreadPoolExecutor(1) as pool,
    ):
        waits: Any = pool.submit(subscription.receive)
        wait_for_waiting(connection, subscription, waits)
        subscription.stop()
        assert waits.result(LIMIT_S) is None


def test_a_rolled_back_message_ends_the_wait(place: Place) -> None:
    """It comes by a grant of the coordinator, and is read by another thread."""
    topic = place.topic([1])
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
        ThreadPoolExecutor(1) as pool,
    ):
        first = receive(subscription)
        waits = pool.submit(receive, subscription)
        wait_for_waiting(connection, subscription, waits)
        first.rollback()
        again = waits.result(LIMIT_S)
        assert (again.offset, again.attempt) == (0, 2)
        again.ack()


def test_a_time_out_is_kept(place: Place) -> None:
    with (
        place.connect_sync() as connection,
        connection.subscribe(place.topic([]), durable="d") as subscription,
    ):
        began = time.monotonic()
        assert subscription.receive(timeout=0.3) is None
        assert time.monotonic() - began >= 0.3
        assert subscription.statistics()["compiled"] == 1


def test_a_command_ends_the_wait_of_a_reader(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the reader would wait for records longer than this test may take."""
    monkeypatch.setattr(tail_fetcher, "WAIT", 10 * LIMIT_S)
    with place.connect_sync() as connection:
        subscription = connection.subscribe(place.topic([1]), durable="d", start="earliest")
        receive(subscription).ack()
        assert subscription.receive(timeout=0.2) is None  # at the end of the log: nothing more comes
        tail = tail_of(cast("Any", connection), cast("Any", subscription))
        wait_until(lambda: tail._waits, "the reader waits for records")  # noqa: SLF001 - nothing else shows it
        subscription.close()
        assert tail.join(0)


def test_a_defect_in_the_thread_of_the_application_ends_the_member_not_the_message(place: Place) -> None:
    topic, armed = place.topic([]), threading.Event()

    def defect(stage: Stage) -> None:
        if stage is Stage.READ and armed.is_set():
            raise ZeroDivisionError(str(stage))

    with place.connect_sync(probe=defect) as connection:
        subscription = connection.subscribe(topic, durable="d")
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(receive, subscription)
            wait_for_waiting(connection, subscription, waits)
            armed.set()
            place.publish(topic, [1])
            with pytest.raises(InternalError):
                waits.result(LIMIT_S)
        armed.clear()
        subscription.close()
        with connection.subscribe(topic, durable="d") as anew:
            delivery = receive(anew)
            assert delivery.value == b"1"
            delivery.ack()
