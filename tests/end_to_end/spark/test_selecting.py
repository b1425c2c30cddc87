"""Subscriptions with a selector or noLocal, read as streams: what they yield, and what is settled."""

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import kafkadur.sync
import kafkadur_spark
from kafkadur_sharing.errors import InvalidSelector, SubscriptionDiffers
from tests.end_to_end.spark.helpers import Lab, in_partition, records
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]

SELECTOR = "amount >= 10 AND region IN ('EU', 'US') OR JMSPriority > 7"


@pytest.fixture
def lab(place: Place, spark: SparkSession, tmp_path: Path) -> Lab:
    return Lab(place, spark, tmp_path)


def publish(connection: kafkadur.sync.Connection, topic: str, count: int) -> None:
    """Publish so many messages with amounts from 0 on; the first one is urgent."""
    with connection.producer() as producer:
        for amount in range(count):
            properties = {"amount": amount, "region": ("EU", "US", "AP")[amount % 3]}
            producer.publish(topic, b"x", properties=properties, priority=9 if amount == 0 else 4)


def unsettled(holder: kafkadur_spark.Holder) -> int:
    return sum(place.unsettled for place in holder.whereabouts().settlements.values())


def test_a_subscription_with_a_selector_is_read_by_it(lab: Lab) -> None:
    """It is the ordinary member's subscription: each takes what the other has left."""
    topic = lab.place.topic(partitions=1)
    with lab.place.connect_sync() as connection:
        publish(connection, topic, 30)
        with connection.subscribe(topic, durable="d", selector=SELECTOR, start="earliest") as subscription:
            for _ in range(3):
                delivery = subscription.receive(timeout=LIMIT_S)
                assert delivery is not None
                delivery.ack()
    lab.place.publish(topic, [1, 2])
    with pytest.raises(SubscriptionDiffers, match="messages wait"), lab.hold(topic):
        pass
    with lab.hold(topic, selector=SELECTOR) as holder:
        columns = lab.read(holder).frame.columns
        run = lab.go(holder)
        assert unsettled(holder) == 0
        assert "headers" not in columns
        assert "headers" in lab.read(holder, options={"includeHeaders": "true"}).frame.columns
    expected = [amount for amount in range(30) if amount == 0 or (amount >= 10 and amount % 3 != 2)]
    assert run.records == in_partition(0, *expected[3:])


def test_progress_settles_what_the_selector_left_out(lab: Lab) -> None:
    topic = lab.place.topic(partitions=1)
    with lab.place.connect_sync() as connection:
        publish(connection, topic, 20)
    found: list[list[tuple[int, int]]] = []
    with lab.hold(topic, selector="amount = 25 OR amount = 3") as holder:
        reading = lab.read(holder, acking="progress")
        writer = reading.frame.writeStream.foreachBatch(lambda frame, _: found.append(records(frame)))
        reading.start(writer.trigger(availableNow=True)).awaitTermination()
        wait_until(lambda: unsettled(holder) == 0, "all of it is settled")
    assert found == [[(0, 3)]]


@pytest.mark.long
def test_what_came_over_the_own_connection_is_left_out(lab: Lab) -> None:
    topic = lab.place.topic(range(2))
    client_id = f"c-{uuid.uuid4().hex}"
    with lab.place.connect_sync(client_id=client_id) as connection, lab.place.connect_sync() as other:
        publish(connection, topic, 3)
        publish(other, topic, 4)
        holding = kafkadur_spark.hold(
            connection, topic, durable="d", type="exclusive", start="earliest", no_local=True
        )
        with holding as holder:
            run = lab.go(holder)
            assert unsettled(holder) == 0
    assert run.records == in_partition(0, 0, 1, 5, 6, 7, 8)


def test_what_is_no_selector_is_refused_at_once(place: Place) -> None:
    with place.connect_sync() as connection, pytest.raises(InvalidSelector):
        kafkadur_spark.hold(connection, "t", durable="d", selector="a = ")
