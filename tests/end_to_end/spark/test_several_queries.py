"""Several queries on one holder: each reads all messages; what all have settled is settled."""

import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import kafkadur_spark
from kafkadur_sharing.errors import IllegalState, InvalidName, LeaseLost, SubscriptionActive
from kafkadur_sharing.redelivery_policy import Redelivery
from kafkadur_spark.generations import Acking
from tests.end_to_end.spark.helpers import At, Lab, freeze, in_partition, records
from tests.integration.cli.conftest import Run
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]


@pytest.fixture
def lab(place: Place, spark: SparkSession, tmp_path: Path) -> Lab:
    return Lab(place, spark, tmp_path)


@contextmanager
def hold(
    lab: Lab, topic: str, *queries: str, redelivery: Redelivery | None = None, **settings: object
) -> Generator[kafkadur_spark.Holder]:
    with (
        lab.place.connect_sync(**settings) as connection,
        kafkadur_spark.hold(
            connection, topic, durable="d", start="earliest", queries=queries, redelivery=redelivery
        ) as holder,
    ):
        yield holder


def read(
    lab: Lab, holder: kafkadur_spark.Holder, query: str, acking: Acking = "batch"
) -> kafkadur_spark.Reading:
    return kafkadur_spark.read_stream(
        lab.spark, holder, str(lab.root), query=query, acking=acking, options={"maxOffsetsPerTrigger": "10"}
    )


def go(reading: kafkadur_spark.Reading, *, rolled_back: Sequence[At] = ()) -> list[At]:
    """Run a query to the end of what is there; return what it read."""
    found: list[At] = []

    def work(frame: DataFrame, batch: int) -> None:
        there = records(frame)
        found.extend(there)
        reading.ack_batch(batch, rolled_back=[at for at in rolled_back if at in there])

    reading.start(reading.frame.writeStream.foreachBatch(work).trigger(availableNow=True)).awaitTermination()
    return sorted(found)


def floor(holder: kafkadur_spark.Holder) -> int:
    return holder.whereabouts().settlements[0].floor


@pytest.mark.long
def test_what_all_have_settled_is_settled(lab: Lab) -> None:
    topic = lab.place.topic(range(25))
    with hold(lab, topic, "totals", "archive") as holder:
        totals, archive = read(lab, holder, "totals"), read(lab, holder, "archive")
        assert go(totals) == in_partition(0, *range(25))
        assert floor(holder) == 0
        assert go(archive) == in_partition(0, *range(25))
        assert floor(holder) == 25


def test_after_a_restart_each_continues_where_it_was(lab: Lab) -> None:
    """The one that is ahead reads nothing twice, the other one all that it has not read."""
    topic = lab.place.topic(range(25))
    with hold(lab, topic, "totals", "archive") as holder:
        totals = read(lab, holder, "totals")
        read(lab, holder, "archive")
        assert go(totals, rolled_back=in_partition(0, 4)) == in_partition(0, *range(25))
        assert floor(holder) == 0
    lab.place.publish(topic, range(25, 30))
    with hold(lab, topic, "totals", "archive") as holder:
        totals = read(lab, holder, "totals")
        assert totals.generation == 2  # for the message that was rolled back
        assert go(totals) == in_partition(0, 4, *range(25, 30))
        archive = read(lab, holder, "archive")
        assert go(archive) == in_partition(0, *range(30))
        assert floor(holder) == 30


def test_what_spark_commits_is_settled_when_all_have_committed_it(lab: Lab, tmp_path: Path) -> None:
    topic = lab.place.topic(range(25))

    def copy(reading: kafkadur_spark.Reading, to: str) -> int:
        writer = reading.frame.select("offset").writeStream.format("json").option("path", str(tmp_path / to))
        reading.start(writer.trigger(availableNow=True)).awaitTermination()
        return lab.spark.read.schema("offset long").json(str(tmp_path / to)).count()

    with hold(lab, topic, "a", "b") as holder:
        assert copy(read(lab, holder, "a", "progress"), "a") == 25
        read(lab, holder, "b", "progress")
    with hold(lab, topic, "a", "b") as holder:
        again = read(lab, holder, "a", "progress")
        assert (again.generation, floor(holder)) == (1, 0)
        assert copy(again, "a") == 25
        assert copy(read(lab, holder, "b", "progress"), "b") == 25
        wait_until(lambda: floor(holder) == 25, "what both have committed is settled")


@pytest.mark.long
def test_people_see_the_progress_of_each(lab: Lab, run: Run) -> None:
    topic = lab.place.topic(range(25))
    with hold(lab, topic, "totals", "archive") as holder:
        running = [
            reading.start(reading.frame.writeStream.foreachBatch(partial(settle, reading)))
            for reading in (read(lab, holder, "totals"), read(lab, holder, "archive"))
        ]

        def shown() -> dict[str, int]:
            (member,) = run("sub", "info", "c1/d (unrestricted)", "--json").data["members"]
            return {each["query"]: each["batch"] for each in member["queries"]}

        wait_until(lambda: shown() == {"totals": 2, "archive": 2}, "both are shown")
        assert "archive" in run("sub", "info", "c1/d (unrestricted)").out.partition("Queries")[2]
        running[0].stop()
        wait_until(lambda: shown() == {"archive": 2}, "the one that runs is shown")


def settle(reading: kafkadur_spark.Reading, _frame: DataFrame, batch: int) -> None:
    reading.ack_batch(batch)


def test_a_message_that_another_query_rolled_back_with_a_delay_is_read_all_the_same(lab: Lab) -> None:
    topic = lab.place.topic(range(15))
    policy = Redelivery(backoff=timedelta(hours=1), max_backoff=timedelta(hours=1))
    with hold(lab, topic, "totals", "archive", redelivery=policy) as holder:
        totals = read(lab, holder, "totals")
        assert go(totals, rolled_back=in_partition(0, 12)) == in_partition(0, *range(15))
        archive = read(lab, holder, "archive")
        assert go(archive) == in_partition(0, *range(15))
        assert [(w.start, w.end) for w in holder.whereabouts().settlements[0].waiting] == [(12, 13)]


def test_a_query_that_is_not_named_any_more_is_not_left_out(lab: Lab) -> None:
    topic = lab.place.topic(range(5))
    with hold(lab, topic, "totals", "archive") as holder:
        assert go(read(lab, holder, "totals")) == in_partition(0, *range(5))
        read(lab, holder, "archive")
    with hold(lab, topic, "totals") as holder, pytest.raises(IllegalState, match="settled without it"):
        read(lab, holder, "totals")
    with hold(lab, topic) as holder, pytest.raises(IllegalState, match=r"query archive, totals"):
        kafkadur_spark.read_stream(lab.spark, holder, str(lab.root))


def test_a_driver_that_dies_between_its_record_and_redis_settles_at_the_next_start(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = lab.place.topic(range(5))
    with hold(lab, topic, "totals", "archive") as holder:
        totals, archive = read(lab, holder, "totals"), read(lab, holder, "archive")
        go(totals)
        monkeypatch.setattr(holder, "settle", lambda _: 1 // 0)  # the record of "archive" is written before
        with pytest.raises(StreamingQueryException):
            go(archive)
        assert floor(holder) == 0
    with hold(lab, topic, "totals", "archive") as holder:
        read(lab, holder, "totals")
        assert floor(holder) == 0
        read(lab, holder, "archive")
        assert floor(holder) == 5


def test_a_driver_that_has_lost_the_subscription_writes_no_record(lab: Lab) -> None:
    """It stood still for longer than its session, and does not know yet that another one has taken over."""
    topic = lab.place.topic(range(5))
    go_on = threading.Event()
    with hold(lab, topic, "totals", "archive", session_timeout=1.0) as first, ThreadPoolExecutor(1) as pool:
        totals = read(lab, first, "totals")
        go(totals)
        (record,) = lab.root.glob("*/query.totals/settled/*.json")
        freeze(first, go_on)
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                with hold(lab, topic, "totals", "archive") as second:
                    acked = pool.submit(totals.ack_batch, 0)
                    go_on.set()
                    with pytest.raises(LeaseLost):
                        acked.result(LIMIT_S)
                    assert floor(second) == 0
                break
            except SubscriptionActive:
                assert time.monotonic() < until
        assert list(lab.root.glob("*/query.totals/settled/*.json")) == [record]


@pytest.mark.parametrize("query", [None, "other"])
def test_a_query_that_the_holder_does_not_know_is_refused(lab: Lab, query: str | None) -> None:
    with (
        hold(lab, lab.place.topic(range(1)), "totals") as holder,
        pytest.raises(IllegalState, match="no such query"),
    ):
        kafkadur_spark.read_stream(lab.spark, holder, str(lab.root), query=query)


def test_a_query_is_named_as_a_subscription(lab: Lab) -> None:
    with pytest.raises(InvalidName, match="name of a query"), hold(lab, "t", "a/b"):
        pass
