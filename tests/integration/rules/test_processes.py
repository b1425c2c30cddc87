"""Rules that involve more than one process, through a real connection in each of two."""

from collections.abc import Callable
from typing import Any

import pytest

import kafkadur.sync
from kafkadur import (
    InvalidSubscriptionSharing,
    KafkadurError,
    SubscriptionActive,
)
from kafkadur_sharing.definition import TypeName
from tests.integration.subscriptions.helpers import LIMIT_S, SILENCE_S, Place, speaks, wait_until
from tests.integration.subscriptions.workers import Worker

Start = Callable[..., Worker]

EXCLUSIVE, SHARED = {"type": "exclusive"}, {"type": "shared"}


def values(subscription: kafkadur.sync.Subscription, count: int) -> list[int]:
    """Receive so many messages and acknowledge them; their numbers."""
    found: list[int] = []
    for _ in range(count):
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None, found
        found.append(int(delivery.value or b"0"))
        delivery.ack()
    return found


@pytest.mark.parametrize(
    ("held", "wanted", "error"),
    [
        pytest.param(EXCLUSIVE, EXCLUSIVE, SubscriptionActive, id="U5-equal"),
        pytest.param(EXCLUSIVE, EXCLUSIVE | {"selector": "n > 1"}, SubscriptionActive, id="U5-selector"),
        pytest.param(EXCLUSIVE, EXCLUSIVE | {"no_local": True}, SubscriptionActive, id="U5-no-local"),
        pytest.param(SHARED, EXCLUSIVE, InvalidSubscriptionSharing, id="U6"),
        pytest.param(SHARED, SHARED | {"selector": "n > 1"}, SubscriptionActive, id="S4"),
        pytest.param(EXCLUSIVE, SHARED, InvalidSubscriptionSharing, id="S5"),
    ],
)
def test_what_another_process_has_is_refused(
    place: Place,
    start_worker: Start,
    held: dict[str, Any],
    wanted: dict[str, Any],
    error: type[KafkadurError],
) -> None:
    """The newcomer is told; who is attached loses nothing, and neither does the subscription."""
    topic = place.topic(range(1, 6))
    worker = start_worker(topic, durable="d", start="earliest", **held)
    with place.connect_sync() as connection:
        before = connection.known("d")
        with pytest.raises(error) as caught:
            connection.subscribe(topic, durable="d", **wanted)
        speaks(caught.value)
        after = connection.known("d")
        assert before is not None
        assert after is not None
        assert (after.id, after.version) == (before.id, before.version)
    assert sorted(number for number, _ in worker.receive(5)) == [1, 2, 3, 4, 5]
    assert worker.ack() == "acked"


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_u6_s5_a_closed_one_of_another_process_keeps_its_kind(
    place: Place, start_worker: Start, kind: TypeName
) -> None:
    """Also without a consumer."""
    topic = place.topic([1])
    start_worker(topic, durable="d", start="earliest", type=kind).close()
    with place.connect_sync() as connection:
        with pytest.raises(InvalidSubscriptionSharing):
            connection.subscribe(topic, durable="d", type="shared" if kind == "exclusive" else "exclusive")
        with connection.subscribe(topic, durable="d", type=kind) as subscription:
            assert values(subscription, 1) == [1]


def test_d5_u5_the_holder_is_named_and_stays(place: Place, start_worker: Start) -> None:
    """Nobody takes the place of somebody who lives, however often it asks."""
    topic = place.topic([1])
    worker = start_worker(topic, durable="d", start="earliest", type="exclusive", name="the holder")
    with place.connect_sync() as connection:
        for _ in range(3):
            with pytest.raises(SubscriptionActive) as caught:
                connection.subscribe(topic, durable="d", type="exclusive")
            assert caught.value.holders == ("the holder",)
        assert worker.receive(1) == [(1, 1)]
        assert worker.ack() == "acked"


def test_u3_u9_who_comes_after_a_process_that_closed_gets_what_waits(
    place: Place, start_worker: Start
) -> None:
    topic = place.topic()
    start_worker(topic, durable="d", type="exclusive").close()
    place.publish(topic, [1, 2, 3])
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="exclusive") as subscription,
    ):
        assert values(subscription, 3) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_u4_s3_who_wants_other_details_replaces_what_a_process_left(
    place: Place, start_worker: Start, kind: TypeName
) -> None:
    """What waited is dropped; the process that comes back finds another subscription."""
    topic = place.topic()
    start_worker(topic, durable="d", type=kind).close()
    place.publish(topic, [1, 2])
    with place.connect_sync() as connection:
        connection.subscribe(topic, durable="d", type=kind, selector="n IS NULL", on_change="replace").close()
        place.publish(topic, [3])
        with connection.subscribe(topic, durable="d", type=kind, selector="n IS NULL") as subscription:
            assert values(subscription, 1) == [3]
            assert subscription.receive(timeout=SILENCE_S) is None


def test_u7_messages_of_another_process_with_the_same_client_id_stay_out(
    place: Place, start_worker: Start
) -> None:
    topic = place.topic()
    worker = start_worker(topic, durable="d", type="exclusive", no_local=True)
    with place.connect_sync() as same, place.connect_sync(client_id="other") as other:
        for number, connection in ((1, same), (2, other), (3, same), (4, other)):
            with connection.producer() as producer:
                producer.publish(topic, str(number))
    assert worker.receive(2) == [(2, 1), (4, 1)]


def test_s2_processes_share(place: Place, start_worker: Start) -> None:
    """Each message goes to exactly one."""
    topic = place.topic()
    worker = start_worker(topic, durable="d", type="shared", window=5)
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="shared", window=5) as subscription,
    ):
        place.publish(topic, range(1, 11))
        mine = [subscription.receive(timeout=LIMIT_S) for _ in range(5)]
        theirs = [number for number, _ in worker.receive(5)]
        assert sorted([*(int(d.value or b"0") for d in mine if d), *theirs]) == list(range(1, 11))


def test_s8_what_a_killed_process_had_comes_again(place: Place, start_worker: Start) -> None:
    topic = place.topic(range(1, 4))
    worker = start_worker(topic, durable="d", type="shared", start="earliest")
    worker.receive(3)
    worker.kill()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", type="shared") as subscription,
    ):
        found = [subscription.receive(timeout=LIMIT_S) for _ in range(3)]
        assert sorted((int(d.value or b"0"), d.attempt) for d in found if d) == [(1, 2), (2, 2), (3, 2)]


def test_n2_n4_n5_shared_non_durable_of_two_processes(place: Place, start_worker: Start) -> None:
    topic = place.topic()
    worker = start_worker(topic, shared="s", window=1)
    with place.connect_sync() as connection:
        durable = connection.subscribe(topic, durable="s", type="shared")  # of the same name
        with connection.subscribe(topic, shared="s", window=1) as subscription:
            place.publish(topic, [1, 2])
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            ((theirs, _),) = worker.receive(1)
            assert {int(delivery.value or b"0"), theirs} == {1, 2}
        assert sorted(values(durable, 2)) == [1, 2]
        worker.close()
        place.publish(topic, [3])
        with connection.subscribe(topic, shared="s") as anew:
            place.publish(topic, [4])
            assert values(anew, 1) == [4]


def test_n3_other_details_while_another_process_is_attached(place: Place, start_worker: Start) -> None:
    topic = place.topic()
    worker = start_worker(topic, shared="s")
    with place.connect_sync() as connection:
        with pytest.raises(SubscriptionActive):
            connection.subscribe(topic, shared="s", selector="n > 1")
        worker.close()
        connection.subscribe(topic, shared="s", selector="n > 1").close()


@pytest.mark.parametrize("kind", ["exclusive", "shared", "serial"])
def test_x1_x3_unsubscribing_what_another_process_uses(place: Place, start_worker: Start, kind: str) -> None:
    topic = place.topic([1])
    worker = start_worker(topic, durable="d", type=kind, start="earliest", name="the holder")
    with place.connect_sync() as connection:
        for received in (False, True):
            if received:
                assert worker.receive(1) == [(1, 1)]
            with pytest.raises(SubscriptionActive) as caught:
                connection.unsubscribe("d")
            assert caught.value.holders == ("the holder",)
        assert worker.ack() == "acked"
        worker.close()
        connection.unsubscribe("d")
        assert connection.known("d") is None


def test_x3_a_frozen_process_is_attached_until_its_session_ends(place: Place, start_worker: Start) -> None:
    topic = place.topic([1])
    worker = start_worker(
        topic, durable="d", type="exclusive", start="earliest", session_timeout=2.0, name="the holder"
    )
    worker.receive(1)
    worker.freeze()
    with place.connect_sync() as connection:
        with pytest.raises(SubscriptionActive):
            connection.unsubscribe("d")

        def gone() -> bool:
            try:
                connection.unsubscribe("d")
            except SubscriptionActive:
                return False
            return True

        wait_until(gone, "unsubscribed")
    worker.thaw()
    assert worker.ack() in {"Fenced", "LeaseLost"}


def test_s7_processes_are_served_in_turn(place: Place, start_worker: Start) -> None:
    """The next message goes to whoever has room and is next, beginning with who attached first."""
    topic = place.topic()
    first = start_worker(topic, durable="d", type="shared", window=1)
    second = start_worker(topic, durable="d", type="shared", window=1)
    with place.connect_sync() as connection:

        def ready() -> bool:
            known = connection.known("d")
            return known is not None and [member.credit > 0 for member in known.members] == [True, True]

        for round_ in range(3):
            wait_until(ready, "both have room")
            place.publish(topic, [2 * round_ + 1, 2 * round_ + 2])
            assert [number for number, _ in first.receive(1)] == [2 * round_ + 1]
            assert [number for number, _ in second.receive(1)] == [2 * round_ + 2]
            assert [first.ack(), second.ack()] == ["acked", "acked"]


def test_s9_a_full_process_leaves_messages_to_another_one(place: Place, start_worker: Start) -> None:
    topic = place.topic()
    full = start_worker(topic, durable="d", type="shared", window=1)
    place.publish(topic, [1])
    assert full.receive(1) == [(1, 1)]
    other = start_worker(topic, durable="d", type="shared", window=10)
    place.publish(topic, [2, 3, 4])
    assert [number for number, _ in other.receive(3)] == [2, 3, 4]
    assert full.ack() == "acked"
