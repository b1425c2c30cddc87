"""Jobs that share one subscription: each reads what it has claimed, beside others and ordinary consumers."""

import contextlib
import threading
from collections.abc import Generator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import TopicPartition
from pyspark.sql import SparkSession

import kafkadur_spark
from kafkadur.admin.changes import Admin
from kafkadur.settings import settings
from kafkadur_sharing.errors import IllegalState, LeaseLost, SubscriptionActive
from tests.end_to_end.spark.helpers import (
    At,
    add_partition,
    forget_state,
    freeze,
    in_partition,
    letters,
    records,
)
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]


@contextlib.contextmanager
def share(place: Place, topic: str, **more: object) -> Generator[kafkadur_spark.Claimer]:
    with (
        place.connect_sync(**more) as connection,
        kafkadur_spark.share(connection, topic, durable="d", start="earliest") as claimer,
    ):
        yield claimer


def claimed(claimer: kafkadur_spark.Claimer, most: int = 1_000) -> kafkadur_spark.Claim:
    claim = claimer.claim(most, timeout=LIMIT_S)
    assert claim is not None
    return claim


def held(claim: kafkadur_spark.Claim) -> list[At]:
    return [(p, offset) for p, some in claim.ranges.items() for a, b in some for offset in range(a, b)]


@pytest.mark.long
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
        assert {p: place.floor for p, place in one.whereabouts().settlements.items()} == {0: 60, 1: 40}
    assert sorted(read) == [*in_partition(0, *range(60)), *in_partition(1, *range(40))]


@pytest.mark.long
def test_what_others_have_lies_in_between(place: Place, spark: SparkSession) -> None:
    topic = place.topic(range(30))
    with share(place, topic) as one, share(place, topic) as other:
        first, middle, last = claimed(one, 10), claimed(other, 10), claimed(one, 10)
        one.release(first)
        one.release(last)
        both = claimed(one)
        assert held(both) == in_partition(0, *range(10), *range(20, 30))
        assert records(one.read(spark, both)) == held(both)
        one.ack(both)
        other.release(middle)
        assert held(claimed(one)) == held(middle)


def test_what_is_rolled_back_or_released_comes_again(place: Place) -> None:
    topic = place.topic(range(10))
    with share(place, topic) as claimer:
        claim = claimed(claimer)
        with pytest.raises(IllegalState, match="is not in the claim"):
            claimer.ack(claim, rolled_back=[(0, 10)])
        claimer.ack(claim, rolled_back=[(0, 3), (0, 7), (0, 3)])
        again = claimed(claimer)
        assert held(again) == in_partition(0, 3, 7)
        claimer.release(again)
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        found = [subscription.receive(timeout=LIMIT_S) for _ in range(2)]
        assert sorted((d.offset, d.attempt) for d in found if d is not None) == [(3, 2), (7, 2)]


def test_what_is_rejected_is_a_dead_letter(place: Place) -> None:
    topic = place.topic(range(10))
    with share(place, topic) as claimer:
        claimer.ack(claimed(claimer), rejected=[(0, 4, "no flight")])
        assert claimer.claim() is None
    assert [value for value, _ in letters(place, topic)] == [b"4"]


def test_an_ordinary_consumer_and_a_job_share_the_work(place: Place, spark: SparkSession) -> None:
    """Whoever asks gets what nobody has, wherever it lies, also while the other one does not ask."""
    topic = place.topic(range(50), partitions=2)
    place.publish(topic, range(50), partition=1)
    with (
        share(place, topic, session_timeout=60.0) as claimer,  # the machine may be busy
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        claim = claimed(claimer, 30)
        got = set[At]()
        while len(got) < 100 - claim.records:
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            got.add((delivery.partition, delivery.offset))
            delivery.ack()
        assert not got & set(held(claim))
        place.publish(topic, range(20), partition=0)
        place.publish(topic, range(20), partition=1)
        for _ in range(40):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            delivery.ack()
        assert records(claimer.read(spark, claim)) == held(claim)
        claimer.ack(claim)
        assert claimer.claim() is None


def test_a_claim_that_is_over_settles_nothing(place: Place) -> None:
    """A driver that stood still; another one has claimed since."""
    topic = place.topic(range(10))
    go_on = threading.Event()
    with share(place, topic, session_timeout=1.0) as slow, share(place, topic) as other:
        claim = claimed(slow)
        freeze(slow, go_on)
        taken = claimed(other)
        assert held(taken) == held(claim)
        go_on.set()
        with pytest.raises(LeaseLost):
            slow.ack(claim)
        other.ack(taken)
        assert other.claim() is None


def test_a_claim_ends_with_the_shared_state(place: Place) -> None:
    topic = place.topic(range(10))
    with share(place, topic, session_timeout=1.0) as claimer:
        claim = claimed(claimer)
        assert forget_state(place) > 0
        with pytest.raises(LeaseLost, match="claim is over"):
            claimer.ack(claim)
        again = claimed(claimer)
        assert again.records == 10
        claimer.ack(again)
        assert claimer.claim() is None


def test_what_kafka_removed_is_counted_and_not_claimed(place: Place) -> None:
    topic = place.topic(range(20))
    with share(place, topic) as claimer:
        claimer.release(claimed(claimer, 5))
        admin = AdminClient({"bootstrap.servers": place.stack.kafka})
        admin.delete_records([TopicPartition(topic, 0, 8)])[TopicPartition(topic, 0)].result(LIMIT_S)
        wait_until(lambda: claimer.earliest() == {0: 8}, "the records are gone")
        claim = claimed(claimer)
        assert held(claim) == in_partition(0, *range(8, 20))
        claimer.ack(claim)
        key = claimer.definition.key
    with Admin(settings(place.settings())) as admin_:
        info = admin_.info(key)
        assert [(one.floor, one.expired) for one in info.partitions] == [(20, 8)]


def test_partitions_that_were_added_are_claimed_when_no_claim_is_open(place: Place) -> None:
    topic = place.topic(range(5))
    with share(place, topic) as claimer:
        claim = claimed(claimer)
        add_partition(place, topic)
        place.publish(topic, range(3), partition=1)
        assert claimer.claim() is None
        claimer.ack(claim)
        assert held(claimed(claimer)) == in_partition(1, 0, 1, 2)


def test_a_claim_is_settled_by_who_claimed_it(place: Place, spark: SparkSession) -> None:
    topic = place.topic(range(10))
    with share(place, topic) as one, share(place, topic) as other:
        claim = claimed(one)
        with pytest.raises(IllegalState, match="another claimer's"):
            other.ack(claim)
        with pytest.raises(IllegalState, match="another claimer's"):
            other.read(spark, claim)
        with pytest.raises(IllegalState, match="said by the subscription"):
            one.read(spark, claim, options={"endingOffsets": "latest"})
        one.ack(claim)
        one.ack(claim)  # once more: it is settled
        assert other.claim() is None


def test_a_claim_of_nothing_is_refused(place: Place) -> None:
    topic = place.topic()
    with share(place, topic) as claimer:
        assert claimer.claim() is None
        for wrong in (0, -1, 2.5, 2**70, True, "many"):
            with pytest.raises(IllegalState, match="most"):
                claimer.claim(wrong)  # type: ignore[arg-type]


def test_who_holds_the_whole_and_who_claims_keep_each_other_out(place: Place) -> None:
    topic = place.topic(range(3))
    with place.connect_sync() as connection:
        whole = kafkadur_spark.hold(connection, topic, durable="d", start="earliest")
        with share(place, topic), pytest.raises(SubscriptionActive), whole:
            pass
        again = kafkadur_spark.hold(connection, topic, durable="d", start="earliest")
        with again, pytest.raises(SubscriptionActive), share(place, topic):
            pass
