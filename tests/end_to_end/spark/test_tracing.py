"""Spans of what a Spark driver claims and settles, in the trace that is current there."""

from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import SparkSession

import kafkadur_spark
from tests.end_to_end.spark.helpers import At, Lab
from tests.integration.subscriptions.helpers import Place
from tests.spans import about, context, named, one, parent, spans

__all__ = ["spans"]

# py4j leaves it to the garbage collector to close its sockets
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("no_sockets_left"),
]


@pytest.fixture
def lab(place: Place, spark: SparkSession, tmp_path: Path) -> Lab:
    return Lab(place, spark, tmp_path)


def test_each_batch_that_is_settled_has_a_span(lab: Lab, spans: InMemorySpanExporter) -> None:
    topic = lab.place.topic(range(20))
    outer: list[tuple[int, int]] = []

    def work(reading: kafkadur_spark.Reading, batch: int, _found: list[At]) -> None:
        with trace.get_tracer("test").start_as_current_span("batch") as span:
            own = span.get_span_context()
            outer.append((own.trace_id, own.span_id))
            rejected, back = ([(0, 3, "bad")], [(0, 4)]) if batch == 0 else ([], [])
            reading.ack_batch(batch, rejected=rejected, rolled_back=back)

    with lab.hold(topic, tracing=True) as holder:
        lab.go(holder, work, maxOffsetsPerTrigger="10")
    first, second = named(spans, "ack")
    assert (parent(first), parent(second)) == tuple(outer)
    told = about(first)
    assert told["destination.name"] == topic
    assert told["destination.subscription.name"].startswith("c1/d")
    assert told["operation.type"] == "settle"
    assert (told["batch.message_count"], told["kafkadur.rolled_back"]) == (9, 1)
    assert about(second)["batch.message_count"] == 10
    assert "kafkadur.rolled_back" not in about(second)
    letter = one(spans, "send")
    assert letter.name == f"send {topic}.dead"
    assert about(letter)["kafkadur.dead_letter.cause"] == "rejected"


def test_claims_have_spans(lab: Lab, spans: InMemorySpanExporter) -> None:
    topic = lab.place.topic(range(10))
    with (
        lab.place.connect_sync(tracing=True) as connection,
        kafkadur_spark.share(connection, topic, durable="s", start="earliest") as claimer,
        trace.get_tracer("test").start_as_current_span("job") as job,
    ):
        claim = claimer.claim(6, timeout=30)
        assert claim is not None
        claimer.ack(claim, rolled_back=[(0, 1)])
        other = claimer.claim(4, timeout=30)
        assert other is not None
        claimer.release(other)
    claimed, acked, released = named(spans, "receive")[0], one(spans, "ack"), one(spans, "release")
    own = job.get_span_context()
    assert {parent(each) for each in (claimed, acked, released)} == {(own.trace_id, own.span_id)}
    assert about(claimed)["batch.message_count"] == 6
    assert (about(acked)["batch.message_count"], about(acked)["kafkadur.rolled_back"]) == (5, 1)
    assert about(released)["batch.message_count"] == 4
    assert context(acked) != context(released)
