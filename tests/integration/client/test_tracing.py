"""Spans of what is sent, received, processed and settled, as OpenTelemetry's own SDK exports them."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import kafkadur
from kafkadur.stack import Stack
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_sharing.errors import DeliveryFailed, IllegalState
from tests.integration.subscriptions.helpers import LIMIT_S, Place, ordered_producer, take
from tests.spans import about, context, named, one, parent, spans

__all__ = ["spans"]


@pytest.fixture
def place(kafkadur_stack: Stack, kafkadur_topic: TopicFactory, kafkadur_namespace: str) -> Place:
    raw = ordered_producer(kafkadur_stack.kafka)
    return Place(stack=kafkadur_stack, make_topic=kafkadur_topic, namespace=kafkadur_namespace, raw=raw)


async def test_a_handled_message_is_one_trace(place: Place, spans: InMemorySpanExporter) -> None:
    topic = place.topic()
    inside: list[tuple[int, int]] = []
    async with place.connect(tracing=True) as connection:
        subscription = await connection.subscribe(topic, durable="d", start="earliest")

        async def handle(message: kafkadur.Delivery) -> None:
            here = trace.get_current_span().get_span_context()
            inside.append((here.trace_id, here.span_id))
            assert "traceparent" in dict(message.headers)
            subscription.stop()

        with (
            connection.producer() as producer,
            trace.get_tracer("test").start_as_current_span("ours") as ours,
        ):
            await producer.send(topic, b"secret", key=b"secret")
        async with subscription:
            await asyncio.wait_for(subscription.run(handle), LIMIT_S)
    sent, processed, settled = (one(spans, name) for name in ("send", "process", "ack"))
    own = ours.get_span_context()
    assert parent(sent) == (own.trace_id, own.span_id)
    assert parent(processed) == context(sent)
    assert parent(settled) == context(processed)
    assert inside == [context(processed)]
    assert (sent.kind, processed.kind, settled.kind) == (
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
        SpanKind.CLIENT,
    )
    place_of = {"destination.partition.id": "0", "kafka.offset": 0}
    every = {"system": "kafka", "destination.name": topic, "client.id": "c1"} | place_of
    assert about(sent) == every | {"operation.name": "send", "operation.type": "send"}
    name = {"destination.subscription.name": "c1/d (unrestricted)"}
    assert about(processed) == every | name | {
        "operation.name": "process",
        "operation.type": "process",
        "kafkadur.attempt": 1,
    }
    assert about(settled) == every | name | {"operation.name": "ack", "operation.type": "settle"}
    assert named(spans, "receive") == [], "a handler is called, it does not receive"
    assert "secret" not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_a_handler_that_raises_is_an_error_and_rolls_back(
    place: Place, spans: InMemorySpanExporter
) -> None:
    topic = place.topic([1])
    async with place.connect(tracing=True) as connection:
        subscription = await connection.subscribe(topic, durable="d", start="earliest")

        def handle(message: kafkadur.Delivery) -> None:
            if message.attempt == 1:
                raise ValueError("no")
            subscription.stop()

        async with subscription:
            await asyncio.wait_for(subscription.run(handle, retry_delay=0), LIMIT_S)
    first, second = named(spans, "process")
    assert (first.status.status_code, about(first)["error.type"]) == (StatusCode.ERROR, "ValueError")
    assert (second.status.status_code, about(second)["kafkadur.attempt"]) == (StatusCode.UNSET, 2)
    assert about(one(spans, "rollback"))["operation.type"] == "settle"
    assert parent(first) is None, "nobody traced the sender"


async def test_what_is_received_is_linked_to_what_was_sent(place: Place, spans: InMemorySpanExporter) -> None:
    topic = place.topic()
    async with (
        place.connect(tracing=True) as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        with connection.producer() as producer:
            for number in range(5):
                producer.publish(topic, str(number))
        sent = [context(span) for span in named(spans, "send")]
        first = await subscription.receive(LIMIT_S)
        assert first is not None
        await first.rollback(delay=100)
        second = await subscription.receive(LIMIT_S)
        assert second is not None
        await second.reject("bad")
        third = await subscription.receive(LIMIT_S)
        assert third is not None
        await third.release()
        received = named(spans, "receive")
        links = [[(x.context.trace_id, x.context.span_id) for x in span.links] for span in received]
        assert links == [[each] for each in sent[:3]]
        for verdict, number in (("rollback", 0), ("reject", 1), ("release", 2)):
            assert parent(one(spans, verdict)) == sent[number]
        spans.clear()
        seen = 0
        while seen < 3:
            batch = await subscription.receive_batch(10, LIMIT_S)
            assert batch is not None
            seen += len(batch)
            batch.ack_nowait()
    counts = [about(span).get("batch.message_count", 1) for span in named(spans, "receive")]
    assert sum(counts) == 3
    acked = named(spans, "ack")
    assert sum(about(span).get("batch.message_count", 1) for span in acked) == 3
    assert sum(len(span.links) or 1 for span in acked) == 3


def test_the_synchronous_surface_makes_the_same(place: Place, spans: InMemorySpanExporter) -> None:
    topic = place.topic([1, 2])
    with (
        place.connect_sync(tracing=True) as connection,
        connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        message = subscription.receive(LIMIT_S)
        assert message is not None
        message.ack()
        batch = subscription.receive_batch(1, LIMIT_S)
        assert batch is not None
        batch[0].ack_nowait()
    assert len(named(spans, "receive")) == 2
    assert [about(span)["kafka.offset"] for span in named(spans, "ack")] == [0, 1]


async def test_what_kafka_does_not_take_is_an_error(place: Place, spans: InMemorySpanExporter) -> None:
    topic = place.topic()
    async with place.connect(tracing=True) as connection:
        with connection.producer({"message.max.bytes": 1_000}) as producer:
            with pytest.raises(DeliveryFailed):
                await producer.send(topic, b"x" * 5_000)
            with pytest.raises(DeliveryFailed):
                producer.publish(topic, b"x" * 5_000)
    assert [span.status.status_code for span in named(spans, "send")] == [StatusCode.ERROR] * 2
    assert [about(span)["error.type"] for span in named(spans, "send")] == ["DeliveryFailed"] * 2


async def test_a_message_that_never_gets_under_way_ends_its_span(
    place: Place, spans: InMemorySpanExporter
) -> None:
    topic = place.topic()
    wrong: Any = 123
    async with place.connect(tracing=True) as connection:
        with connection.producer() as producer, pytest.raises(IllegalState):
            producer.publish(topic, wrong)
    assert about(one(spans, "send"))["error.type"] == "IllegalState"


@pytest.mark.usefixtures("spans")
@pytest.mark.parametrize("when", ["begins", "ends"])
async def test_what_spans_are_handed_to_may_fail(
    place: Place, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """Messages are sent, handled and settled all the same."""

    class Failing(SpanProcessor):
        on = True

        def on_start(self, span: Span, parent_context: Context | None = None) -> None:
            del parent_context
            self._fail(span, "begins")

        def on_end(self, span: ReadableSpan) -> None:
            self._fail(span, "ends")

        def _fail(self, span: ReadableSpan, what: str) -> None:
            if self.on and what == when and span.name.startswith(("send", "receive", "process", "ack")):
                raise OSError("no room")

    failing = Failing()
    provider: Any = trace.get_tracer_provider()
    provider.add_span_processor(failing)
    topic = place.topic()
    try:
        async with place.connect(tracing=True) as connection:
            with connection.producer() as producer:
                for value in (b"1", b"2"):
                    await asyncio.wait_for(producer.send(topic, value), LIMIT_S)
            async with await connection.subscribe(topic, durable="d", start="earliest") as subscription:
                message = await subscription.receive(LIMIT_S)
                assert message is not None
                await message.ack()

                def handle(message: kafkadur.Delivery) -> None:
                    assert (message.value, message.attempt) == (b"2", 1)
                    subscription.stop()

                await asyncio.wait_for(subscription.run(handle), LIMIT_S)
    finally:
        failing.on = False
    assert caplog.text.count("a span is lost") == 6


async def test_a_transacted_session_gives_no_verdicts(place: Place) -> None:
    topic = place.topic([1, 2])
    async with (
        place.connect(tracing=True) as connection,
        connection.session(transacted=True) as session,
        await connection.subscribe(topic, durable="d", start="earliest", session=session) as subscription,
    ):
        batch = await subscription.receive_batch(2, LIMIT_S)
        assert batch is not None
        for delivery in batch:
            with pytest.raises(IllegalState, match="no verdict of its own"):
                delivery.ack_nowait()


async def test_a_transaction_is_one_span_linked_to_what_it_settles(
    place: Place, spans: InMemorySpanExporter
) -> None:
    topic, out = place.topic(), place.topic()
    async with (
        place.connect(tracing=True) as connection,
        connection.session(transacted=True) as session,
        await connection.subscribe(topic, durable="d", start="earliest", session=session) as subscription,
    ):
        with connection.producer() as producer:
            for number in range(2):
                await producer.send(topic, str(number))
        first = named(spans, "send")
        assert len(await take(subscription, 2)) == 2
        await session.rollback()
        rolled_back = one(spans, "rollback")
        assert about(rolled_back)["operation.type"] == "settle"
        assert len(await take(subscription, 2)) == 2
        with trace.get_tracer("test").start_as_current_span("ours") as ours:
            await session.producer().send(out, b"secret")
            await session.commit()
    committed, sent = one(spans, "commit"), named(spans, "send")[-1]
    here = ours.get_span_context()
    assert parent(committed) == parent(sent) == (here.trace_id, here.span_id)
    assert about(sent)["destination.name"] == out
    assert about(committed) == {
        "system": "kafka",
        "operation.name": "commit",
        "operation.type": "settle",
        "batch.message_count": 2,
        "client.id": "c1",
    }
    links = [(link.context.trace_id, link.context.span_id) for link in committed.links]
    assert sorted(links) == sorted(map(context, first))
    assert "secret" not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_a_commit_that_is_rolled_back_is_an_error(place: Place, spans: InMemorySpanExporter) -> None:
    topic = place.topic([1])
    async with (
        place.connect(tracing=True) as connection,
        connection.session(transacted=True) as session,
        await connection.subscribe(topic, durable="d", start="earliest", session=session) as subscription,
    ):
        await take(subscription, 1)
        await subscription.close()
        with pytest.raises(kafkadur.TransactionRolledBack):
            await session.commit()
    committed = one(spans, "commit")
    assert committed.status.status_code is StatusCode.ERROR
    assert about(committed)["error.type"] == "TransactionRolledBack"


async def test_a_dead_letter_is_sent_in_the_trace_of_its_message(
    place: Place, spans: InMemorySpanExporter
) -> None:
    """Whether the application rejects the message, or its attempts are used up."""
    topic = place.topic()
    async with (
        place.connect(tracing=True) as connection,
        await connection.subscribe(
            topic, durable="d", start="earliest", redelivery=kafkadur.Redelivery(max_attempts=1)
        ) as subscription,
    ):
        with connection.producer() as producer:
            for number in range(2):
                await producer.send(topic, str(number))
        sent = named(spans, "send")
        rejected, used_up = await take(subscription, 2)
        await rejected.reject("bad")
        await used_up.rollback()
    letters = [span for span in named(spans, "send") if span.name == f"send {topic}.dead"]
    causes = {about(span)["kafkadur.dead_letter.cause"]: span for span in letters}
    assert causes.keys() == {"rejected", "attempts"}
    assert parent(causes["rejected"]) == context(sent[0])
    assert parent(causes["attempts"]) == context(sent[1])
    for span in letters:
        assert span.kind is SpanKind.PRODUCER
        assert about(span)["destination.subscription.name"] == "c1/d (unrestricted)"
        assert span.status.status_code is StatusCode.UNSET


async def test_without_the_setting_there_is_nothing(place: Place, spans: InMemorySpanExporter) -> None:
    topic = place.topic()
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", start="earliest") as subscription,
    ):
        with connection.producer() as producer:
            await producer.send(topic, b"1")
        message = await subscription.receive(LIMIT_S)
        assert message is not None
        assert "traceparent" not in dict(message.headers)
        await message.ack()
    assert spans.get_finished_spans() == ()


def test_without_opentelemetry_that_is_said() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import kafkadur\n"
        "kafkadur.connect(kafka='127.0.0.1:1')\n"
        "try: kafkadur.connect(kafka='127.0.0.1:1', tracing=True)\n"
        "except kafkadur.IllegalState as error: print(error.remedy)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    assert done.stdout == "pip install 'kafkadur[tracing]', or leave the setting tracing out\n"
