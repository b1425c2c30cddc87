"""Spark reads from a Kafka that asks for TLS and a password, with an ordinary consumer's rights."""

import uuid
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import DataFrame, SparkSession

import kafkadur.sync
import kafkadur_spark
from kafkadur.admin.kafka_access import Role, kafka_rules
from tests.end_to_end.spark.helpers import in_partition, letters_of, records
from tests.integration.security.conftest import certificates, guarded_stack
from tests.integration.security.secured import LIMIT_S, Secured

__all__ = ["certificates", "guarded_stack"]

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]


@pytest.mark.long
def test_a_secured_kafka_is_read_with_the_rights_of_a_consumer(
    guarded_stack: Secured, spark: SparkSession, tmp_path: Path
) -> None:
    name = f"spark-{uuid.uuid4().hex[:8]}"
    guarded_stack.make_topic(name)
    principal = guarded_stack.add_user(name)
    guarded_stack.allow(principal, kafka_rules([Role.CONSUMER], namespace=name, topics=[name]))
    inside = guarded_stack.stack.brokers[0].internal_address
    raw = confluent_kafka.Producer({"bootstrap.servers": inside, "max.in.flight": 1})
    for number in range(10):
        raw.produce(name, str(number).encode())
    assert raw.flush(LIMIT_S) == 0
    given: dict[str, Any] = {
        "kafka": {**guarded_stack.kafka(name), "log_level": 0},
        "redis": guarded_stack.redis(),
        "client_id": "c",
        "namespace": name,
        "journal_partitions": 2,
    }
    found: list[tuple[int, int]] = []
    with (
        kafkadur.sync.connect(**given) as connection,
        kafkadur_spark.hold(connection, name, durable="d", start="earliest") as holder,
    ):
        reading = kafkadur_spark.read_stream(spark, holder, str(tmp_path))

        def work(frame: DataFrame, batch: int) -> None:
            found.extend(records(frame))
            reading.ack_batch(batch, rejected=[(0, 3, "no")])

        writer = reading.frame.writeStream.foreachBatch(work).trigger(availableNow=True)
        reading.start(writer).awaitTermination()
        assert holder.whereabouts().settlements[0].floor == 10
    assert found == in_partition(0, *range(10))
    assert [value for value, _ in letters_of({"bootstrap.servers": inside}, name)] == [b"3"]
