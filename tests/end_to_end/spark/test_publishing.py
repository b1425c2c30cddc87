"""A frame published with properties is what kafkadur's consumers receive."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import kafkadur.sync
import kafkadur_spark
from kafkadur_sharing.errors import InvalidProperty
from tests.integration.subscriptions.helpers import LIMIT_S, Place

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]

SCHEMA = (
    "id string, body string, name string, small short, whole long, price double, part float, good boolean, "
    "raw binary, kind string"
)
ROWS: list[tuple[Any, ...]] = [
    ("m1", "a", "x=1;y", 7, -(2**63), 1e300, 0.5, True, bytearray(b"\xff\x00"), "sale"),
    ("m2", "b", "ü", -1, 2**63 - 1, 0.1, 0.1, False, bytearray(), None),
    ("m3", "c", None, None, None, None, None, None, None, None),
    ("m4", "d", "", 0, 0, math.inf, -math.inf, True, bytearray(b"x"), ""),
]
PROPERTIES = ("name", "small", "whole", "price", "part", "good", "raw")


@pytest.fixture
def received(place: Place, spark: SparkSession) -> Iterator[dict[str, kafkadur.sync.Delivery]]:
    topic = place.topic()
    frame = spark.createDataFrame(ROWS, SCHEMA)
    with place.connect_sync() as connection:
        subscription = connection.subscribe(
            topic, durable="d", start="earliest", selector="small IS NOT NULL"
        )
        sent = kafkadur_spark.messages(
            frame, value="body", key="id", properties=PROPERTIES, type="kind", message_id="id", priority=7
        )
        options = kafkadur_spark.kafka_options(connection)
        sent.write.format("kafka").options(**options).option("topic", topic).save()
        with subscription:
            found: dict[str, kafkadur.sync.Delivery] = {}
            for _ in range(3):
                delivery = subscription.receive(timeout=LIMIT_S)
                assert delivery is not None
                found[str(delivery.fields.message_id)] = delivery
                delivery.ack()
            yield found


def test_properties_and_fields_arrive_as_they_were(
    received: dict[str, kafkadur.sync.Delivery],
) -> None:
    assert sorted(received) == ["m1", "m2", "m4"], "the selector left out the one without a small"
    for row in ROWS:
        if row[0] == "m3":
            continue
        delivery = received[str(row[0])]
        assert (delivery.key, delivery.value) == (str(row[0]).encode(), str(row[1]).encode())
        properties = dict(delivery.properties)
        part = properties.pop("part")
        assert isinstance(part, float)
        assert math.isclose(part, row[6], rel_tol=1e-6) or part == row[6]
        assert properties == {
            "name": row[2], "small": row[3], "whole": row[4], "price": row[5], "good": row[7],
            "raw": bytes(row[8]),
        }  # fmt: skip
        assert [type(properties[name]) for name in ("small", "price", "good")] == [int, float, bool]
        assert (delivery.fields.type, delivery.fields.priority) == (row[9], 7)


def test_a_property_without_a_value(place: Place, spark: SparkSession) -> None:
    topic = place.topic()
    frame = spark.createDataFrame(ROWS, SCHEMA).where("id = 'm3'")
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        options = kafkadur_spark.kafka_options(connection)
        sent = kafkadur_spark.messages(frame, value="body", properties=PROPERTIES, type="kind")
        sent.write.format("kafka").options(**options).option("topic", topic).save()
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        assert dict(delivery.properties) == dict.fromkeys(PROPERTIES)
        assert (delivery.fields.type, delivery.fields.message_id, delivery.key) == (None, None, None)


@pytest.mark.parametrize(
    ("properties", "told"),
    [(["JMSType"], "JMSType"), (["missing"], "There is no column 'missing'"), (["at"], "has type timestamp")],
)
def test_a_property_that_cannot_be_is_refused(spark: SparkSession, properties: list[str], told: str) -> None:
    frame = spark.sql("select 'v' as value, 'x' as JMSType, current_timestamp() as at")
    with pytest.raises(InvalidProperty, match=told):
        kafkadur_spark.messages(frame, properties=properties)


def test_a_priority_there_is_not_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidProperty, match="priority 10"):
        kafkadur_spark.messages(spark.sql("select 'v' as value"), priority=10)
