"""Transacted sessions whose processes die, freeze and lose Redis: each message is processed exactly once.

What a session sends is read by a consumer that reads what is committed: nothing may be there twice, nothing
may be missing, wherever a process ended.
"""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
import redis

import kafkadur.sync
from kafkadur.stack import as_administrator
from kafkadur_sharing.definition import TypeName
from kafkadur_sharing.errors import SubscriptionActive, TransactionRolledBack
from tests.integration.subscriptions.helpers import LIMIT_S, SILENCE_S, Place, number, wait_until
from tests.integration.transactions.helpers import committed
from tests.integration.transactions.workers import Transacting

Start = Callable[..., Transacting]

#: How long Kafka leaves a transaction open that nobody ends (transaction.timeout.ms), seconds.
OPEN_S = 60.0

every_type = pytest.mark.parametrize("kind", ["shared", "exclusive", "serial", "key-ordered"])


def rest(
    place: Place, topic: str, kind: TypeName, out: str, count: int, **settings: object
) -> list[tuple[int, int]]:
    """Process so many messages in a transacted session, and see that no more come: (number, attempt)."""

    attached: list[kafkadur.sync.Subscription] = []

    def attach(connection: kafkadur.sync.Connection, session: kafkadur.sync.Session) -> bool:
        with contextlib.suppress(SubscriptionActive):
            attached.append(
                connection.subscribe(topic, durable="d", type=kind, start="earliest", session=session)
            )
        return bool(attached)

    with (
        place.connect_sync(**settings) as connection,
        connection.session(transacted=True) as session,
    ):
        wait_until(lambda: attach(connection, session), "attached")
        (subscription,) = attached
        found: list[tuple[int, int]] = []
        for _ in range(count):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None, f"{len(found)} of {count}: {subscription.statistics()}"
            session.producer().publish(out, delivery.value)
            found.append((number(delivery), delivery.attempt))
        assert subscription.receive(timeout=SILENCE_S) is None
        session.commit()
        return found


@every_type
def test_who_dies_before_kafka_commits_has_done_nothing(
    place: Place, start: Start, kind: TypeName, caplog: pytest.LogCaptureFixture
) -> None:
    topic, out = place.topic(range(10)), place.topic()
    worker = start(place, topic, out, type=kind)
    assert [number for number, _ in worker.receive(4)] == [0, 1, 2, 3]
    worker.die("before")
    found = rest(place, topic, kind, out, 10)
    assert sorted(number for number, _ in found) == list(range(10))
    assert [attempt for number, attempt in found if number < 4] == [2, 2, 2, 2]
    assert sorted(committed(place, out)) == list(range(10))
    assert "a transacted member has gone" in caplog.text, "else a first empty receive would be a riddle"


def test_the_first_message_after_a_crash_comes_before_the_first_commit(place: Place, start: Start) -> None:
    """The one that died had an open transaction on the topic that it received from."""
    topic = place.topic(range(10))
    worker = start(place, topic, topic)
    worker.receive(4)
    worker.die("before")
    with (
        place.connect_sync() as connection,
        connection.session(transacted=True) as session,
        connection.subscribe(topic, durable="d", session=session) as subscription,
    ):
        found = [subscription.receive(timeout=LIMIT_S) for _ in range(10)]
        assert sorted(number(delivery) for delivery in found if delivery) == list(range(10))


@every_type
def test_who_dies_between_kafka_and_redis_has_done_all(place: Place, start: Start, kind: TypeName) -> None:
    topic, out = place.topic(range(10)), place.topic()
    worker = start(place, topic, out, type=kind)
    worker.receive(4)
    worker.die("between")
    found = rest(place, topic, kind, out, 6)
    assert sorted(number for number, _ in found) == [4, 5, 6, 7, 8, 9]
    assert sorted(committed(place, out)) == list(range(10))


@every_type
def test_a_loss_of_redis_between_kafka_and_redis(own_place: Place, start: Start, kind: TypeName) -> None:
    place = own_place
    topic, out = place.topic(range(10)), place.topic()
    worker = start(place, topic, out, type=kind)
    worker.receive(3)
    assert worker.commit() == "committed"
    worker.receive(3)
    worker.die("between")
    with redis.Redis.from_url(as_administrator(place.stack.redis)) as client:
        client.flushall()
    found = rest(place, topic, kind, out, 4)
    assert sorted(number for number, _ in found) == [6, 7, 8, 9]
    assert sorted(committed(place, out)) == list(range(10))


def test_a_loss_of_redis_after_a_session_that_ended_in_order(own_place: Place, start: Start) -> None:
    place = own_place
    topic, out = place.topic(range(10)), place.topic()
    worker = start(place, topic, out)
    worker.receive(6)
    assert worker.commit() == "committed"
    worker.close()
    with redis.Redis.from_url(as_administrator(place.stack.redis)) as client:
        client.flushall()
    assert sorted(number for number, _ in rest(place, topic, "shared", out, 4)) == [6, 7, 8, 9]
    assert sorted(committed(place, out)) == list(range(10))


@every_type
def test_who_comes_late_commits_nothing(place: Place, start: Start, kind: TypeName) -> None:
    """A process that was frozen while others took over finds its transaction rolled back."""
    topic, out = place.topic(range(6)), place.topic()
    worker = start(place, topic, out, type=kind, session_timeout=1.0)
    worker.receive(3)
    worker.freeze()
    found = rest(place, topic, kind, out, 6)
    assert sorted(number for number, _ in found) == list(range(6))
    worker.thaw()
    assert worker.commit() == TransactionRolledBack.__name__
    assert sorted(committed(place, out)) == list(range(6))
    place.publish(topic, [6])
    if kind in ("shared", "key-ordered"):  # the others have one holder: rest() was it
        assert [number for number, _ in worker.receive(1)] == [6]
        assert worker.commit() == "committed"
        assert sorted(committed(place, out)) == list(range(7))


def test_an_ordinary_consumer_takes_over_what_is_left(place: Place, start: Start) -> None:
    topic, out = place.topic(range(10)), place.topic()
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest", window=2) as ordinary,
    ):
        first = [ordinary.receive(timeout=LIMIT_S) for _ in range(2)]
        worker = start(place, topic, out)
        taken = {number for number, _ in worker.receive(4)}
        worker.die("between")
        got: list[int] = []
        for delivery in first:
            assert delivery is not None
            got.append(number(delivery))
            delivery.ack()  # it claimed what it had in hands
        while (delivery := ordinary.receive(timeout=LIMIT_S if len(got) < 6 else SILENCE_S)) is not None:
            got.append(number(delivery))
            delivery.ack()
        assert sorted(got) == sorted(set(range(10)) - taken)


@every_type
@pytest.mark.long
def test_processes_are_killed_again_and_again(place: Place, start: Start, kind: TypeName) -> None:
    """One or two processes; every now and then one is killed, wherever it is, and another one begins."""
    portion, kills, rng = 300, 4, random.Random(kind)
    count = portion * (kills + 1)
    topic, out = place.topic(), place.topic()
    together = 1 if kind == "exclusive" else 2
    workers: list[Transacting] = []
    deadline = time.monotonic() + 6 * LIMIT_S

    def fill() -> None:
        while len(workers) < together:
            workers.append(start(place, topic, out, type=kind, session_timeout=3.0, window=50))
            workers[-1].run(rng.randint(3, 9))

    for round_ in range(kills):  # the next portion only comes then: however fast they are, there is work
        place.publish(topic, range(round_ * portion, (round_ + 1) * portion))
        fill()
        victim = rng.choice(workers)
        for _ in range(rng.randint(0, 2)):
            victim.heard(1.0)
        victim.kill()
        workers.remove(victim)
    place.publish(topic, range(kills * portion, count))
    while (done := len(committed(place, out))) < count:
        assert time.monotonic() < deadline, f"{done} committed"
        fill()
        workers[0].heard(1.0)
    for worker in workers:
        worker.kill()
    rest(place, topic, kind, out, 0)
    counts = Counter(committed(place, out))
    assert {value: times for value, times in counts.items() if times != 1} == {}
    assert sorted(counts) == list(range(count))


def test_what_a_killed_session_left_open_is_ended_by_who_takes_over(place: Place, start: Start) -> None:
    """Not by time: until then nobody can read what others settle in the same shard of the topic."""
    topic, out = place.topic(range(6)), place.topic()
    worker = start(place, topic, out)
    worker.receive(3)
    began = time.monotonic()
    worker.die("before")
    assert len(rest(place, topic, "shared", out, 6)) == 6
    second = start(place, topic, out)
    second.close()
    with redis.Redis.from_url(as_administrator(place.stack.redis)) as client:
        for key in client.scan_iter(match=f"kafkadur:{place.namespace}:*", count=1000):
            client.delete(key)
    assert rest(place, topic, "shared", out, 0) == []
    assert time.monotonic() - began < OPEN_S
    assert sorted(committed(place, out)) == list(range(6))
