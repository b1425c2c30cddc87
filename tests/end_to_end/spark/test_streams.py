"""Streams that read through a subscription: what they read, what they settle, and what comes again."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import kafkadur_spark
from kafkadur.admin.changes import Admin
from kafkadur.settings import settings
from kafkadur_coordinators.exclusive_settlement import Verdicts
from kafkadur_sharing.definition import TypeName
from kafkadur_sharing.errors import IllegalState, LeaseLost, SubscriptionActive, SubscriptionDiffers
from tests.end_to_end.spark.drivers import Driver, written
from tests.end_to_end.spark.helpers import At, Lab, add_partition, forget_state, freeze, in_partition, records
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]


class Broken(Exception):
    """The driver dies here."""


@pytest.fixture
def lab(place: Place, spark: SparkSession, tmp_path: Path) -> Lab:
    return Lab(place, spark, tmp_path)


def floors(holder: kafkadur_spark.Holder) -> dict[int, int]:
    return {partition: place.floor for partition, place in holder.whereabouts().settlements.items()}


def unsettled(holder: kafkadur_spark.Holder) -> int:
    return sum(place.unsettled for place in holder.whereabouts().settlements.values())


def test_a_stream_reads_what_is_not_settled_and_settles_it(lab: Lab) -> None:
    topic = lab.place.topic(range(200), partitions=2)
    lab.place.publish(topic, range(5), partition=1)
    settled = lab.receive(topic, 70)
    with lab.hold(topic) as holder:
        run = lab.go(holder)
        assert floors(holder) == {0: 200, 1: 5}
        assert unsettled(holder) == 0
    everything = [*in_partition(0, *range(200)), *in_partition(1, *range(5))]
    assert run.records == sorted(set(everything) - set(settled))
    with lab.place.connect_sync() as connection, connection.subscribe(topic, durable="d") as subscription:
        assert subscription.receive(timeout=1) is None


@pytest.mark.long
def test_nothing_is_read_twice_by_who_goes_on(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    assert lab.run(topic).records == in_partition(0, *range(10))
    lab.place.publish(topic, range(10, 15))
    second = lab.run(topic)
    assert (second.generation, second.records) == (1, in_partition(0, *range(10, 15)))


@pytest.mark.long
def test_what_others_did_meanwhile_is_left_out(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    lab.run(topic)
    lab.place.publish(topic, range(10, 30))
    settled = lab.receive(topic, 5)
    second = lab.run(topic)
    assert second.generation == 1
    assert second.records == sorted(set(in_partition(0, *range(10, 30))) - set(settled))


def test_much_that_is_settled_is_left_out(lab: Lab) -> None:
    topic = lab.place.topic(range(6_000))
    with lab.hold(topic) as holder:
        assert holder.settle({0: Verdicts([(100, 5_100), (5_200, 5_300)])}) == 5_100
        found = lab.go(holder).records
    assert found == in_partition(0, *range(100), *range(5_100, 5_200), *range(5_300, 6_000))


@pytest.mark.long
def test_a_batch_that_was_settled_but_not_committed_is_replayed_as_it_was(lab: Lab) -> None:
    """The driver dies between the two: the batch has the same records, none of them settled twice."""
    topic = lab.place.topic(range(100))
    settled = lab.receive(topic, 10)
    expected = sorted(set(in_partition(0, *range(100))) - set(settled))
    died: list[list[At]] = []

    def die(reading: kafkadur_spark.Reading, batch: int, found: list[At]) -> None:
        assert reading.ack_batch(batch) == len(expected)
        died.append(found)
        raise Broken

    counts: list[int] = []
    with pytest.raises(StreamingQueryException):
        lab.run(topic, die)
    again = lab.run(topic, lambda reading, batch, _: counts.append(reading.ack_batch(batch)))
    assert died == [expected]
    assert again.batches == [(0, expected)]
    assert counts == [0]
    assert again.generation == 1


def test_what_waits_for_its_time_is_neither_read_nor_settled(lab: Lab) -> None:
    """It lies in the middle of a batch, and comes when it is due."""
    topic = lab.place.topic(range(10))
    with (
        lab.place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        for _ in range(3):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            if delivery.offset == 1:
                delivery.rollback(delay=3600)
    expected = in_partition(0, 0, *range(2, 10))
    with lab.hold(topic) as holder:
        assert lab.go(holder).records == expected
        assert [(w.start, w.end) for w in holder.whereabouts().settlements[0].waiting] == [(1, 2)]
        assert lab.go(holder).records == []


@pytest.mark.long
def test_what_becomes_due_while_a_batch_is_worked_on_is_not_settled_with_it(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    with (
        lab.place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        assert subscription.receive(timeout=LIMIT_S) is not None
        second = subscription.receive(timeout=LIMIT_S)
        assert second is not None
        second.rollback(delay=15)
    with lab.hold(topic) as holder:

        def work(reading: kafkadur_spark.Reading, batch: int, _found: list[At]) -> None:
            (item,) = [w for w in holder.whereabouts().settlements[0].waiting if (w.start, w.end) == (1, 2)]
            wait_until(lambda: time.time() * 1000 > item.due + 1_000, "it is due")
            reading.ack_batch(batch)

        assert lab.go(holder, work).records == in_partition(0, 0, *range(2, 10))
        assert lab.go(holder).records == in_partition(0, 1)


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_that_is_killed_at_a_batch(lab: Lab, moment: str) -> None:
    """Before its batch is settled, or between that and Spark's commit: the next one writes all, each once."""
    topic = lab.place.topic(range(30))
    for die in (moment, ""):
        driver = Driver(lab.place.settings(), topic, lab.root, die=die)
        try:
            assert driver.ended() == (-signal.SIGKILL if die else 0)
        finally:
            driver.end()
    assert written(lab.root) == in_partition(0, *range(30))
    assert {path.name.split("-")[0] for path in lab.root.glob("*.json")} == {"1"}
    with lab.hold(topic) as holder:
        assert floors(holder) == {0: 30}


def test_a_batch_that_fails_is_read_again(lab: Lab) -> None:
    topic = lab.place.topic(range(10))

    def fail(_reading: kafkadur_spark.Reading, _batch: int, _found: list[At]) -> None:
        raise Broken

    with pytest.raises(StreamingQueryException):
        lab.run(topic, fail)
    assert lab.run(topic).batches == [(0, in_partition(0, *range(10)))]


@pytest.mark.long
def test_what_is_rolled_back_comes_in_the_next_generation(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    first = lab.run(topic, lambda reading, batch, _: reading.ack_batch(batch, rolled_back=[(0, 3), (0, 7)]))
    assert first.records == in_partition(0, *range(10))
    second = lab.run(topic)
    assert (second.generation, second.records) == (2, in_partition(0, 3, 7))
    assert lab.run(topic).records == []


def test_what_is_no_offset_of_the_batch_is_refused_and_loses_nothing(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    refused: list[str] = []

    def work(reading: kafkadur_spark.Reading, batch: int, _found: list[At]) -> None:
        for offset in (-1, 10):
            with pytest.raises(IllegalState, match="is not in batch 0") as caught:
                reading.ack_batch(batch, rolled_back=[(0, offset)])
            refused.append(str(caught.value))
        with pytest.raises(IllegalState, match="Batch 7 is not in the checkpoint"):
            reading.ack_batch(7)

    with lab.hold(topic) as holder:
        lab.go(holder, work)
        assert floors(holder) == {0: 0}
    assert len(refused) == 2


@pytest.mark.long
def test_state_of_operators_is_not_counted_twice_unasked(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    with lab.hold(topic) as holder:
        reading = lab.read(holder)

        def work(frame: DataFrame, batch: int) -> None:
            assert frame.count() == 10  # newer versions want all of a batch with state evaluated
            reading.ack_batch(batch, rolled_back=[(0, 4)])

        writer = reading.frame.dropDuplicates(["value"]).writeStream.foreachBatch(work)
        reading.start(writer.trigger(availableNow=True)).awaitTermination()
    with lab.hold(topic) as holder:
        with pytest.raises(IllegalState, match="ahead of what is settled") as caught:
            lab.read(holder)
        assert 'on_ahead="new"' in str(caught.value)
        assert lab.read(holder, on_ahead="new").generation == 2


def test_what_spark_commits_is_settled_after_it(lab: Lab) -> None:
    topic = lab.place.topic(range(30))
    out = str(lab.root / "out")
    with lab.hold(topic) as holder:
        reading = lab.read(holder, acking="progress", options={"maxOffsetsPerTrigger": "10"})
        writer = reading.frame.selectExpr("partition", "offset").writeStream.format("parquet")
        query = reading.start(writer.option("path", out).trigger(availableNow=True))
        query.awaitTermination()
    with lab.hold(topic) as holder:
        assert floors(holder) == {0: 30}
    assert records(lab.spark.read.parquet(out)) == in_partition(0, *range(30))


def test_what_spark_committed_and_nobody_settled_is_settled_at_the_start(lab: Lab) -> None:
    """The driver died between the commit and the listener."""
    topic = lab.place.topic(range(10))
    with lab.hold(topic) as holder:
        without_listener(lab.read(holder, acking="progress"))
        assert floors(holder) == {0: 0}
        assert lab.read(holder, acking="progress").generation == 1
        assert floors(holder) == {0: 10}


def test_what_was_rolled_back_is_not_settled_by_who_acks_otherwise(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    lab.run(topic, lambda reading, batch, _: reading.ack_batch(batch, rolled_back=[(0, 3)]))
    with lab.hold(topic) as holder:
        with pytest.raises(IllegalState, match="ahead of what is settled"):
            lab.read(holder, acking="progress")
        assert lab.read(holder, acking="progress", on_ahead="new").generation == 2
        assert floors(holder) == {0: 3}


def without_listener(reading: kafkadur_spark.Reading) -> None:
    """Run a query to its end, and tell nobody of it."""
    writer = reading.frame.writeStream.format("noop").option("checkpointLocation", reading.checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.long
def test_another_life_of_the_subscription_has_checkpoints_of_its_own(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    lab.run(topic)
    with lab.place.connect_sync() as connection:
        connection.unsubscribe("d")
    with lab.hold(topic) as holder, pytest.raises(IllegalState, match="write to another place"):
        lab.read(holder, acking="progress")
    second = lab.run(topic)
    assert (second.generation, second.records) == (2, in_partition(0, *range(10)))


def test_what_kafka_removed_is_counted_and_the_query_goes_on(lab: Lab) -> None:
    topic = lab.place.topic(range(20))

    def only_the_first(reading: kafkadur_spark.Reading, batch: int, found: list[At]) -> None:
        if found[0] == (0, 0):
            reading.ack_batch(batch)
        else:
            raise Broken

    with pytest.raises(StreamingQueryException):
        lab.run(topic, only_the_first, maxOffsetsPerTrigger="5")
    admin = AdminClient({"bootstrap.servers": lab.place.stack.kafka})
    for future in admin.delete_records([TopicPartition(topic, 0, 12)]).values():
        future.result(LIMIT_S)
    assert lab.run(topic).records == in_partition(0, *range(12, 20))
    with lab.hold(topic) as holder:
        assert floors(holder) == {0: 20}


@pytest.mark.long
def test_partitions_that_are_added_are_read(lab: Lab) -> None:
    topic = lab.place.topic(range(5))
    with lab.hold(topic) as holder:
        lab.go(holder, lambda reading, batch, _: reading.ack_batch(batch, rolled_back=[(0, 3)]))
        add_partition(lab.place, topic)
        lab.place.publish(topic, range(4), partition=1)
        second = lab.go(holder)
        assert (second.generation, second.records) == (2, [(0, 3), *in_partition(1, *range(4))])
        assert floors(holder) == {0: 5, 1: 4}


def test_records_of_transactions(lab: Lab) -> None:
    """Marks of transactions and what was rolled back have offsets, too: they are settled with the batch."""
    topic = lab.place.topic()
    producer = Producer({"bootstrap.servers": lab.place.stack.kafka, "transactional.id": topic})
    producer.init_transactions(LIMIT_S)
    for committed in (True, False, True):
        producer.begin_transaction()
        for value in range(3):
            producer.produce(topic, str(value))
        assert producer.flush(LIMIT_S) == 0
        (producer.commit_transaction if committed else producer.abort_transaction)(LIMIT_S)
    with lab.hold(topic) as holder:
        assert lab.go(holder).records == in_partition(0, 0, 1, 2, 8, 9, 10)
        assert floors(holder) == {0: 12}


@pytest.mark.long
def test_more_partitions_than_one_exchange_carries(lab: Lab) -> None:
    topic = lab.place.topic(partitions=20)
    for partition in range(20):
        lab.place.publish(topic, range(partition), partition=partition)
    with lab.hold(topic) as holder:
        assert len(lab.go(holder).records) == sum(range(20))
        assert floors(holder) == {partition: partition for partition in range(20)}


@pytest.mark.parametrize("kind", ["exclusive", "serial", "priority"])
def test_other_types(lab: Lab, kind: TypeName) -> None:
    topic = lab.place.topic(range(10))
    with lab.hold(topic, kind=kind) as holder:
        assert lab.go(holder).records == in_partition(0, *range(10))
        assert floors(holder) == {0: 10}


def test_who_holds_all_is_alone(lab: Lab) -> None:
    topic = lab.place.topic(range(3))
    with lab.hold(topic), lab.place.connect_sync() as connection, pytest.raises(SubscriptionActive):
        connection.subscribe(topic, durable="d")
    with (
        lab.place.connect_sync() as connection,
        connection.subscribe(topic, durable="d"),
        pytest.raises(SubscriptionActive),
        lab.hold(topic),
    ):
        pass


def test_a_key_ordered_subscription_has_no_whole(lab: Lab) -> None:
    topic = lab.place.topic(range(3))
    wrong: Any = "queue"
    with pytest.raises(IllegalState, match="cannot be held as a whole"), lab.hold(topic, kind="key-ordered"):
        pass
    with pytest.raises(IllegalState, match="no subscription type 'queue'"), lab.hold(topic, kind=wrong):
        pass


def test_a_subscription_with_a_selector_is_refused_and_kept(lab: Lab) -> None:
    topic = lab.place.topic(range(3))
    with Admin(settings(lab.place.settings())) as admin:
        # without a consumer, which would settle what the selector does not match
        admin.create(admin.key("d"), topic, start="earliest", selector="colour = 'red'")
        with pytest.raises(SubscriptionDiffers, match="3 messages wait"), lab.hold(topic):
            pass
        assert admin.info(admin.key("d")).definition.selector == "colour = 'red'"


def test_options_that_say_what_is_read_are_refused(lab: Lab) -> None:
    topic = lab.place.topic(range(3))
    with lab.hold(topic) as holder, pytest.raises(IllegalState, match="option startingOffsets"):
        lab.read(holder, options={"startingOffsets": "earliest"})


def test_who_lost_the_subscription_settles_nothing_and_stops(lab: Lab) -> None:
    """A driver that stood still for longer than its session: another one has taken over."""
    topic = lab.place.topic(range(10))
    in_hand, go_on = threading.Event(), threading.Event()

    def work(reading: kafkadur_spark.Reading, batch: int, _found: list[At]) -> None:
        in_hand.set()
        assert go_on.wait(LIMIT_S)
        reading.ack_batch(batch)

    with lab.hold(topic, session_timeout=1.0) as first:
        reading = lab.read(first)
        query = reading.start(
            reading.frame.writeStream.foreachBatch(lambda frame, batch: work(reading, batch, records(frame)))
        )
        assert in_hand.wait(LIMIT_S)
        freeze(first, go_on)
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                with lab.hold(topic) as second:
                    assert floors(second) == {0: 0}
                    go_on.set()
                    wait_until(lambda: not query.isActive, "the query is stopped")
                    assert floors(second) == {0: 0}
                break
            except SubscriptionActive:
                assert time.monotonic() < until
        with pytest.raises(LeaseLost, match="start the query again"):
            reading.ack_batch(0)


def test_a_loss_of_the_shared_state_is_got_over(lab: Lab) -> None:
    topic = lab.place.topic(range(20))
    lost = 0

    def work(reading: kafkadur_spark.Reading, batch: int, _found: list[At]) -> None:
        nonlocal lost
        reading.ack_batch(batch)
        lost += forget_state(lab.place)

    with lab.hold(topic, session_timeout=1.0) as holder:
        assert lab.go(holder, work, maxOffsetsPerTrigger="5").records == in_partition(0, *range(20))
    assert lost > 0
    again = lab.run(topic).records  # batches that were settled within the last second before a loss
    batches = {offset // 5 for _, offset in again}
    assert again == in_partition(0, *(offset for offset in range(20) if offset // 5 in batches))
    with lab.hold(topic) as holder:
        assert floors(holder) == {0: 20}


def test_what_is_settled_is_in_the_journal_and_in_the_consumer_group(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    lab.run(topic)
    assert forget_state(lab.place) > 0
    assert lab.run(topic).records == []


def test_a_way_of_reading_there_is_not_is_refused(lab: Lab) -> None:
    with lab.hold(lab.place.topic()) as holder:
        for wrong in ({"acking": "Progress"}, {"on_ahead": "refus"}):
            with pytest.raises(IllegalState, match="no such way"):
                lab.read(holder, **wrong)  # type: ignore[arg-type]  # that is the test
        with pytest.raises(IllegalState, match="settled by progress"):
            lab.read(holder, acking="progress", on_ahead="redeliver")


def test_a_query_with_state_is_not_begun_anew_unasked_after_a_move(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    with lab.hold(topic) as holder:
        reading = lab.read(holder)

        def work(frame: DataFrame, batch: int) -> None:
            assert [row["count"] for row in frame.collect()] == [10]
            reading.ack_batch(batch)

        counted = reading.frame.groupBy("key").count().writeStream.outputMode("complete")
        reading.start(counted.foreachBatch(work).trigger(availableNow=True)).awaitTermination()
        key = holder.definition.key
    with Admin(settings(lab.place.settings())) as admin:
        admin.seek(key, {0: 3})
    with lab.hold(topic) as holder:
        with pytest.raises(IllegalState, match="earlier life"):
            lab.read(holder)
        assert lab.read(holder, on_ahead="new").generation == 2
