"""Running a query over a held subscription to the end of what is there, and what it read."""

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame, SparkSession

import kafkadur_spark
from kafkadur.admin.browse import records_of
from kafkadur.stack import as_administrator
from kafkadur.testing.pytest_plugin import takes_messages
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.definition import TypeName
from kafkadur_spark.attachment import Attachment
from kafkadur_spark.generations import Acking, OnAhead
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until

#: Spark on this machine alone, and small.
LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
#: Of one record: (partition, offset).
At = tuple[int, int]
#: What is done with a batch: told the reading, its number and its records.
Work = Callable[[kafkadur_spark.Reading, int, list[At]], object]


def records(frame: DataFrame) -> list[At]:
    """Where the records of a batch lie, in order."""
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def ack(reading: kafkadur_spark.Reading, batch: int, _found: list[At]) -> None:
    """Settle all of it."""
    reading.ack_batch(batch)


@dataclass
class Run:
    """What one run of a query read."""

    generation: int
    batches: list[tuple[int, list[At]]] = field(default_factory=list[tuple[int, list[At]]])

    @property
    def records(self) -> list[At]:
        """All of them, in order."""
        return sorted(at for _, found in self.batches for at in found)


@dataclass(frozen=True)
class Lab:
    """A place, a Spark session and a folder for checkpoints."""

    place: Place
    spark: SparkSession
    root: Path

    @contextlib.contextmanager
    def hold(
        self, topic: str, *, kind: TypeName = "shared", selector: str | None = None, **settings: object
    ) -> Generator[kafkadur_spark.Holder]:
        """Hold the subscription `d` on a topic, on a connection of its own."""
        with (
            self.place.connect_sync(**settings) as connection,
            kafkadur_spark.hold(
                connection, topic, durable="d", type=kind, start="earliest", selector=selector
            ) as holder,
        ):
            yield holder

    def read(
        self,
        holder: kafkadur_spark.Holder,
        *,
        acking: Acking = "batch",
        on_ahead: OnAhead | None = None,
        wake: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> kafkadur_spark.Reading:
        """Read what is held."""
        return kafkadur_spark.read_stream(
            self.spark, holder, str(self.root), acking=acking, on_ahead=on_ahead, wake=wake, options=options
        )

    def go(self, holder: kafkadur_spark.Holder, work: Work = ack, **options: str) -> Run:
        """Run a query to the end of what is there; raises what it ends with."""
        reading = self.read(holder, options=options)
        run = Run(reading.generation)

        def each(frame: DataFrame, batch: int) -> None:
            found = records(frame)
            run.batches.append((batch, found))
            work(reading, batch, found)

        writer = reading.frame.writeStream.foreachBatch(each).trigger(availableNow=True)
        reading.start(writer).awaitTermination()
        return run

    def run(self, topic: str, work: Work = ack, **options: str) -> Run:
        """Hold, run to the end, leave."""
        with self.hold(topic) as holder:
            return self.go(holder, work, **options)

    def receive(self, topic: str, count: int) -> list[At]:
        """As an ordinary member, receive and acknowledge so many."""
        with (
            self.place.connect_sync() as connection,
            connection.subscribe(topic, durable="d", start="earliest") as subscription,
        ):
            found: list[At] = []
            for _ in range(count):
                delivery = subscription.receive(timeout=60)
                assert delivery is not None
                found.append((delivery.partition, delivery.offset))
                delivery.ack()
            return sorted(found)


def in_partition(partition: int, *offsets: int) -> list[At]:
    """Records of one partition."""
    return [(partition, offset) for offset in offsets]


def letters(place: Place, topic: str) -> list[tuple[bytes | None, dict[str, bytes]]]:
    """The dead letters of a topic of one partition: values and headers."""
    return letters_of({"bootstrap.servers": place.stack.kafka}, topic)


def letters_of(kafka: Mapping[str, Any], topic: str) -> list[tuple[bytes | None, dict[str, bytes]]]:
    """As `letters`, for a Kafka with these settings."""
    dead = f"{topic}.dead"
    ends = Topics(kafka).offsets(dead, 1, "latest")
    found = records_of(kafka, dead, [(0, 0, ends[0])], namespace="looks", timeout=LIMIT_S)
    return [(message.value(), dict(message.headers() or [])) for message in found]  # type: ignore[arg-type]


def forget_state(place: Place) -> int:
    """Have Redis lose all that it knows of a place; returns how many keys."""
    lost = 0
    with redis.Redis.from_url(as_administrator(place.stack.redis)) as client:
        for key in client.scan_iter(match=f"kafkadur:{place.namespace}:*", count=1000):
            lost += client.delete(key)
    return lost


def freeze(attachment: Attachment, until: threading.Event) -> None:
    """Have the thread that keeps a subscription stand still, from now on until an event."""
    stands = threading.Event()

    def stand_still() -> None:
        stands.set()
        until.wait(LIMIT_S)

    attachment._jobs.put(stand_still)  # noqa: SLF001 - its thread and nothing else stands still
    assert stands.wait(LIMIT_S)


def add_partition(place: Place, topic: str) -> None:
    """Give a topic of one partition a second one, and have the place's producer know it."""
    admin = AdminClient({"bootstrap.servers": place.stack.kafka})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(LIMIT_S)
    wait_until(lambda: takes_messages(admin, topic, 2), "two partitions")
    wait_until(lambda: len(place.raw.list_topics(topic).topics[topic].partitions) == 2, "two partitions")
