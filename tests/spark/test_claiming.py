"""Jobs that share one subscription: each reads what it has claimed, beside others and ordinary consumers."""

import contextlib
import threading
from collections.abc import Generator

import pytest
from pyspark.sql import SparkSession

import kafkadur_spark
from kafkadur_sharing.errors import IllegalState, LeaseLost
from tests.spark.helpers import At, forget_state, freeze, in_partition, records
from tests.subscriptions.helpers import LIMIT_S, Place

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]


@contextlib.contextmanager
def share(place: Place, topic: str, **settings: object) -> Generator[kafkadur_spark.Claimer]:
    with (
        place.connect_sync(**settings) as connection,
        kafkadur_spark.share(connection, topic, durable="d", start="earliest") as claimer,
    ):
        yield claimer


def claimed(claimer: kafkadur_spark.Claimer, most: int = 1_000) -> kafkadur_spark.Claim:
    claim = claimer.claim(most, timeout=LIMIT_S)
    assert claim is not None
    return claim


def held(claim: kafkadur_spark.Claim) -> list[At]:
    return [
        (hull.partition, offset)
        for hull in claim.hulls
        for _, start, end in hull.leases
        for offset in range(start, end)
    ]


def test_two_jobs_read_each_a_part(place: Place, spark: SparkSession) -> None:
    topic = place.topic(range(60), partitions=2)
    place.publish(topic, range(40), partition=1)
    read: list[At] = []
    with share(place, topic) as one, share(place, topic) as other:
        first, second = claimed(one, 50), claimed(other, 50)
        assert (first.records, second.records) == (50, 50)
        for claimer, claim in ((one, first), (other, second)):
            found = records(claimer.read(spark, claim))
            assert found == held(claim)
            read += found
            claimer.ack(claim)
        assert one.claim() is None
    assert sorted(read) == [*in_partition(0, *range(60)), *in_partition(1, *range(40))]


def test_what_others_have_lies_in_between(place: Place, spark: SparkSession) -> None:
    topic = place.topic(range(30))
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest", window=20) as subscription,
    ):
        deliveries = [subscription.receive(timeout=LIMIT_S) for _ in range(20)]
        for delivery in deliveries:
            assert delivery is not None
            if delivery.offset % 5 == 0:
                delivery.rollback(delay=0)
        with share(place, topic) as claimer:
            claim = claimed(claimer)
            found = records(claimer.read(spark, claim))
            assert found == held(claim)
            assert not {at for at in found if at[1] < 20 and at[1] % 5}
            claimer.ack(claim)


def test_what_is_rolled_back_or_released_comes_again(place: Place) -> None:
    topic = place.topic(range(10))
    with share(place, topic) as claimer:
        claim = claimed(claimer)
        with pytest.raises(IllegalState, match="is not in the claim"):
            claimer.ack(claim, rolled_back=[(0, 10)])
        claimer.ack(claim, rolled_back=[(0, 3), (0, 7)])
        again = claimed(claimer)
        assert held(again) == in_partition(0, 3, 7)
        claimer.release(again)
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        found = [subscription.receive(timeout=LIMIT_S) for _ in range(2)]
        assert sorted((d.offset, d.attempt) for d in found if d is not None) == [(3, 2), (7, 2)]


def test_a_claim_that_is_over_settles_nothing(place: Place) -> None:
    """A driver that stood still; another one has claimed since."""
    topic = place.topic(range(10))
    go_on = threading.Event()
    with share(place, topic, session_timeout=1.0) as slow, share(place, topic) as other:
        claim = claimed(slow)
        assert claim.records == 10
        freeze(slow, go_on)
        taken = claimed(other)
        assert taken.records == 10
        go_on.set()
        with pytest.raises(LeaseLost):
            slow.ack(claim)
        other.ack(taken)
        assert other.claim() is None


def test_a_claim_ends_with_the_shared_state(place: Place) -> None:
    topic = place.topic(range(10))
    with share(place, topic, session_timeout=1.0) as claimer:
        claim = claimed(claimer)
        forget_state(place)
        with pytest.raises(LeaseLost, match="claim is over"):
            claimer.ack(claim)
        again = claimed(claimer)
        assert again.records == 10
        claimer.ack(again)
        assert claimer.claim() is None


def test_a_claim_of_nothing_is_refused(place: Place) -> None:
    topic = place.topic()
    with share(place, topic) as claimer:
        assert claimer.claim() is None
        with pytest.raises(IllegalState, match="holds nothing"):
            claimer.claim(0)
