"""The delivery history with Spark: what drivers settle is recorded, and the history is read as a frame."""

import time

import pytest
from pyspark.sql import SparkSession

import kafkadur_spark
from kafkadur_coordinators.exclusive_settlement import Verdicts
from tests.integration.subscriptions.helpers import LIMIT_S, Place

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]
HOUR_S = 3_600


def test_deliveries_of_drivers_and_consumers_are_one_frame(place: Place, spark: SparkSession) -> None:
    topic, began = place.topic(range(10)), time.time()
    with (
        place.connect_sync() as connection,
        kafkadur_spark.share(
            connection, topic, durable="d", start="earliest", history=HOUR_S, name="job"
        ) as claimer,
    ):
        first = claimer.claim(3, timeout=LIMIT_S)
        assert first is not None
        claimer.release(first)
        claim = claimer.claim(8, timeout=LIMIT_S)
        assert claim is not None
        claimer.ack(claim, rolled_back=[(0, 4)], rejected=[(0, 5, "no good"), (0, 7, "nor this")])
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", name="ann", type="shared") as subscription,
    ):
        for _ in range(3):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            delivery.ack()
    with place.connect_sync() as connection:
        frame = kafkadur_spark.history(spark, connection, "d")
        assert frame.columns == [
            "subscription", "partition", "start", "end", "attempt", "member", "name", "handed", "outcome",
            "at", "delay_ms", "cause",
        ]  # fmt: skip
        rows = frame.where("outcome <> 'handed out'").collect()
    job = [row for row in rows if row.name == "job"]
    assert sorted((row.outcome, row.start, row.end, row.attempt, row.cause) for row in job) == [
        ("acknowledged", 0, 4, None, None),
        ("acknowledged", 6, 7, None, None),
        ("dead letter", 5, 6, None, "rejected"),
        ("dead letter", 7, 8, None, "rejected"),
        ("released", 0, 3, None, None),
        ("rolled back", 4, 5, None, None),
    ]
    offsets = {
        (offset, row.attempt)
        for row in rows
        if (row.name, row.outcome) == ("ann", "acknowledged")
        for offset in range(row.start, row.end)
    }
    assert offsets == {(4, 2), (8, 1), (9, 1)}
    for row in rows:
        assert began - 1 <= row.handed.timestamp() <= row["at"].timestamp() <= time.time() + 1
        assert row.partition == 0


@pytest.mark.long
def test_a_holder_records_what_it_settles(place: Place, spark: SparkSession) -> None:
    topic = place.topic(range(6))
    with (
        place.connect_sync() as connection,
        kafkadur_spark.hold(
            connection, topic, durable="d", start="earliest", history=HOUR_S, name="job"
        ) as holder,
    ):
        holder.settle({0: Verdicts(settled=[(0, 2), (3, 6)], rolled_back=[(2, 3)])})
    with place.connect_sync() as connection:
        rows = kafkadur_spark.history(spark, connection, "d").collect()
    assert sorted((row.start, row.end, row.outcome, row.handed) for row in rows) == [
        (0, 2, "acknowledged", None),
        (2, 3, "rolled back", None),
        (3, 6, "acknowledged", None),
    ]
