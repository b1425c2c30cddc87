"""Redelivery into a running query, and into one that goes on with its checkpoint."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

import kafkadur_spark
from kafkadur_sharing.errors import LeaseLost
from kafkadur_sharing.redelivery_policy import Redelivery
from kafkadur_spark.generations import OnAhead
from kafkadur_spark.redelivering import Due
from kafkadur_spark.waking import keep_awake
from tests.end_to_end.spark.helpers import At, Lab, Run, in_partition, records
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]

#: Settles a batch.
Settles = Callable[[kafkadur_spark.Reading, int], object]


class Broken(Exception):
    """The driver dies here."""


@pytest.fixture
def lab(place: Place, spark: SparkSession, tmp_path: Path) -> Lab:
    return Lab(place, spark, tmp_path)


def go(
    lab: Lab, topic: str, settles: Settles, *, on_ahead: OnAhead | None = None, **options: str
) -> tuple[Run, list[Row]]:
    """Read in batches of ten, to the end of what is there; also the rows, as the source has them."""
    rows: list[Row] = []
    with lab.hold(topic) as holder:
        reading = lab.read(holder, on_ahead=on_ahead, options={"maxOffsetsPerTrigger": "10"} | options)
        run = Run(reading.generation)

        def work(frame: DataFrame, batch: int) -> None:
            run.batches.append((batch, records(frame)))
            rows.extend(frame.collect())
            settles(reading, batch)

        writer = reading.frame.writeStream.foreachBatch(reading.redelivering(work))
        reading.start(writer.trigger(availableNow=True)).awaitTermination()
    return run, rows


def rolls_back(*which: int, at: int = 0) -> Settles:
    """Settles all but some of a batch."""
    return lambda reading, batch: reading.ack_batch(
        batch, rolled_back=[(0, offset) for offset in which] if batch == at else ()
    )


def dies(reading: kafkadur_spark.Reading, batch: int) -> None:
    """Settle a batch, all but offset 4 of the first one, and die behind the second one's settling."""
    rolls_back(4)(reading, batch)
    if batch == 1:
        raise Broken


def unsettled(lab: Lab, topic: str) -> int:
    with lab.hold(topic) as holder:
        return sum(place.unsettled for place in holder.whereabouts().settlements.values())


def test_what_was_rolled_back_comes_with_the_next_batch(lab: Lab) -> None:
    topic = lab.place.topic(range(25))
    run, _ = go(lab, topic, rolls_back(4, 7))
    assert run.batches == [
        (0, in_partition(0, *range(10))),
        (1, in_partition(0, 4, 7, *range(10, 20))),
        (2, in_partition(0, *range(20, 25))),
    ]
    assert unsettled(lab, topic) == 0


@pytest.mark.long
def test_what_kafka_removed_meanwhile_is_not_settled_as_if_it_had_come(lab: Lab) -> None:
    """It is left to the next start, which counts it."""
    topic = lab.place.topic(range(25))
    admin = AdminClient({"bootstrap.servers": lab.place.stack.kafka})

    def settles(reading: kafkadur_spark.Reading, batch: int) -> None:
        rolls_back(4, 7)(reading, batch)
        if batch == 0:
            admin.delete_records([TopicPartition(topic, 0, 6)])[TopicPartition(topic, 0)].result(LIMIT_S)

    run, _ = go(lab, topic, settles)
    assert run.batches[1] == (1, in_partition(0, 7, *range(10, 20)))
    assert unsettled(lab, topic) == 1


def test_it_is_the_record_that_the_source_has(lab: Lab) -> None:
    topic = lab.place.topic(retention_ms=-1)
    lab.place.raw.produce(topic, b"v", b"k", headers=[("a", b"1"), ("b", None)], timestamp=1_700_000_000_123)
    lab.place.raw.produce(topic, None, None)
    lab.place.publish(topic, range(9))
    _, rows = go(lab, topic, rolls_back(0, 1), includeHeaders="true")
    assert len(rows) == 13
    for offset in (0, 1):
        first, again = [row for row in rows if row.offset == offset]
        assert first == again


@pytest.mark.long
def test_a_batch_is_replayed_with_what_it_had_besides(lab: Lab) -> None:
    topic = lab.place.topic(range(25))
    with pytest.raises(StreamingQueryException):
        go(lab, topic, dies)
    run, _ = go(lab, topic, rolls_back())
    assert run.generation == 1
    assert run.batches == [(1, in_partition(0, 4, *range(10, 20))), (2, in_partition(0, *range(20, 25)))]


@pytest.mark.long
def test_that_a_batch_had_nothing_besides_is_written_down_too(lab: Lab) -> None:
    """So what becomes due before it is replayed does not come with it: its output may be there already."""
    topic = lab.place.topic(range(15))
    with lab.hold(topic) as holder:
        reading = lab.read(holder)
        reading.start(
            reading.frame.writeStream.foreachBatch(
                reading.redelivering(lambda _, batch: reading.ack_batch(batch))
            ).trigger(availableNow=True)
        ).awaitTermination()
        folder = Path(reading.checkpoint.removeprefix("file:")).parent
        assert (folder / "g1.besides" / "0.json").read_text() == "{}"


def test_a_batch_that_had_something_besides_is_not_settled_without(lab: Lab) -> None:
    topic = lab.place.topic(range(25))
    with pytest.raises(StreamingQueryException):
        go(lab, topic, dies)
    with pytest.raises(StreamingQueryException, match="worked on with messages that came again"):
        lab.run(topic, maxOffsetsPerTrigger="10")
    run, _ = go(lab, topic, rolls_back())
    assert run.records == in_partition(0, 4, *range(10, 25))


@pytest.mark.long
def test_a_query_goes_on_with_its_checkpoint_and_has_it_brought(lab: Lab) -> None:
    topic = lab.place.topic(range(10))
    go(lab, topic, rolls_back(4))
    lab.place.publish(topic, range(10, 12))
    run, _ = go(lab, topic, rolls_back(), on_ahead="redeliver")
    assert (run.generation, run.batches) == (1, [(1, in_partition(0, 4, 10, 11))])
    assert unsettled(lab, topic) == 0


@pytest.mark.long
def test_what_is_rolled_back_again_comes_again(lab: Lab) -> None:
    topic = lab.place.topic(range(25))

    def settles(reading: kafkadur_spark.Reading, batch: int) -> None:
        reading.ack_batch(batch, rolled_back=[(0, 4)] if batch < 2 else ())

    run, _ = go(lab, topic, settles)
    assert [found[0] for _, found in run.batches] == in_partition(0, 0, 4, 4)


def test_what_waits_for_its_time_does_not_come(lab: Lab) -> None:
    topic = lab.place.topic(range(20))
    policy = Redelivery(backoff=timedelta(hours=1), max_backoff=timedelta(hours=1))
    with (
        lab.place.connect_sync() as connection,
        kafkadur_spark.hold(connection, topic, durable="d", start="earliest", redelivery=policy) as holder,
    ):
        reading = lab.read(holder, options={"maxOffsetsPerTrigger": "10"})
        found: list[int] = []

        def work(frame: DataFrame, batch: int) -> None:
            found.append(frame.count())
            rolls_back(4)(reading, batch)

        writer = reading.frame.writeStream.foreachBatch(reading.redelivering(work))
        reading.start(writer.trigger(availableNow=True)).awaitTermination()
        assert found == [10, 10]
        assert [(w.start, w.end) for w in holder.whereabouts().settlements[0].waiting] == [(4, 5)]


@pytest.mark.long
def test_more_than_fits_besides_one_batch_comes_with_further_ones(lab: Lab) -> None:
    topic = lab.place.topic(range(1_520))
    missed = range(1_100)
    run, _ = go(lab, topic, rolls_back(*missed), maxOffsetsPerTrigger="1500")
    assert [len(found) for _, found in run.batches] == [1_500, 1_020]
    assert unsettled(lab, topic) == 100


def test_a_frame_that_was_worked_on_cannot_be_joined(lab: Lab) -> None:
    topic = lab.place.topic(range(5))
    with lab.hold(topic) as holder:
        reading = lab.read(holder)
        frame = reading.frame.select("value")
        writer = frame.writeStream.foreachBatch(reading.redelivering(lambda *_: None))
        with pytest.raises(StreamingQueryException, match="Only the frame that is read"):
            reading.start(writer.trigger(availableNow=True)).awaitTermination()
        assert holder.whereabouts().settlements[0].floor == 0


def idle_until_redelivered(lab: Lab, topic: str, *, generation: int) -> list[tuple[int, list[At]]]:
    """Run a query that is woken, with a rollback in its first batch, until that message was redelivered."""
    batches: list[tuple[int, list[At]]] = []
    redelivered = threading.Event()
    with lab.hold(topic) as holder:
        reading = lab.read(holder, on_ahead="redeliver", wake=True)
        assert reading.generation == generation

        def work(frame: DataFrame, batch: int) -> None:
            found = records(frame)
            first = not batches
            batches.append((batch, found))
            reading.ack_batch(batch, rolled_back=found[:1] if first else ())
            if not first:
                redelivered.set()

        query = reading.start(reading.frame.writeStream.foreachBatch(reading.redelivering(work)))
        assert redelivered.wait(LIMIT_S), query.exception()
        commits = Path(reading.checkpoint.removeprefix("file:")) / "commits"
        wait_until((commits / str(batches[-1][0])).exists, "the commit of Spark")
    return batches


def test_an_idle_query_is_woken_for_what_was_rolled_back(lab: Lab) -> None:
    topic = lab.place.topic(range(5))
    batches = idle_until_redelivered(lab, topic, generation=1)
    assert [found for _, found in batches] == [in_partition(0, *range(5)), in_partition(0, 0)]
    assert unsettled(lab, topic) == 0
    # with its checkpoint, and the record that woke it, it goes on
    lab.place.publish(topic, range(5, 8))
    batches = idle_until_redelivered(lab, topic, generation=1)
    assert [found for _, found in batches] == [in_partition(0, 5, 6, 7), in_partition(0, 5)]
    run, _ = go(lab, topic, rolls_back())  # without wake: the checkpoint still has the topic that wakes
    assert (run.generation, run.batches) == (1, [])


@pytest.mark.long
def test_a_checkpoint_that_began_without_it_can_be_woken(lab: Lab) -> None:
    topic = lab.place.topic(range(5))
    go(lab, topic, rolls_back())
    lab.place.publish(topic, range(5, 8))
    batches = idle_until_redelivered(lab, topic, generation=1)
    assert [found for _, found in batches] == [in_partition(0, 5, 6, 7), in_partition(0, 5)]


def test_what_is_rolled_back_each_time_wakes_a_query_ever_less_often() -> None:
    """The pause doubles while the same messages stay due, and not for others."""
    waits: list[float] = []
    one = frozenset({(0, 4, 5)})
    dues: list[Due | None] = [
        one, one, None, one, frozenset({(0, 4, 6)}), frozenset(),
    ]  # fmt: skip
    written: list[int] = []

    class Ended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            return len(waits) > 6

    keep_awake(
        lambda: True,
        due=lambda: dues[len(waits) - 1],
        write=lambda: written.append(len(waits)),
        ended=Ended(),
    )
    assert waits == [1, 1, 2, 2, 4, 1, 1]
    assert written == [1, 2, 4, 5]


def test_an_error_of_a_server_does_not_end_the_waking() -> None:
    waits: list[float] = []
    calls: list[str] = []

    class Ended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            return False

    def due() -> Due:
        calls.append("due")
        if len(calls) < 3:
            raise OSError("the file system does not answer")
        raise LeaseLost

    keep_awake(lambda: True, due=due, write=lambda: None, ended=Ended())
    assert (len(calls), waits) == (3, [1, 2, 4])
