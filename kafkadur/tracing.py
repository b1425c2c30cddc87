"""Spans of OpenTelemetry for what is sent, received, processed and settled, in its messaging conventions.

Only its API is used: whoever runs the program decides with the SDK what becomes of spans. The context of a
message travels in its Kafka headers, as the program's propagator writes it (`traceparent`). OpenTelemetry is
imported only when the setting `tracing` is on. No keys and no payloads are written to spans.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, Message

from kafkadur_sharing.errors import IllegalState

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

#: Headers as librdkafka takes and gives them.
Headers = list[tuple[str, bytes | None]]
Report = Callable[[KafkaError | None, Message], None]

_SYSTEM: Final = "kafka"
#: Most links of one span: of a large batch the first ones are linked.
_LINKS: Final = 128


class Sending:
    """The report of a message that is under way: its span ends with it."""

    def __init__(self, span: Span, report: Report) -> None:
        """`report` is what is told of the delivery besides."""
        self._span = span
        self._report = report

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Kafka has it, or not."""
        if error is None:
            self._span.set_attributes(
                {
                    "messaging.destination.partition.id": str(message.partition()),
                    "messaging.kafka.offset": message.offset() or 0,
                }
            )
        else:
            self._fail(error.name(), error.str())
        self._span.end()
        self._report(error, message)

    def refused(self, error: Exception) -> None:
        """It never got under way."""
        self._fail(type(error).__name__, str(error))
        self._span.end()

    def _fail(self, kind: str, text: str) -> None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - of the extra

        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, text))


class Tracing:
    """Makes the spans of one connection."""

    def __init__(self, client_id: str | None) -> None:
        """Raises `IllegalState` where OpenTelemetry is not installed."""
        try:
            from opentelemetry import trace  # noqa: PLC0415 - of the extra
        except ImportError as error:
            raise IllegalState(
                "Tracing needs OpenTelemetry.",
                state=str(error),
                owner="this Python",
                remedy="pip install 'kafkadur[tracing]', or leave the setting tracing out",
            ) from error
        self._tracer = trace.get_tracer("kafkadur")
        self._client = {} if client_id is None else {"messaging.client.id": client_id}

    # -- sent

    def sending(self, topic: str, headers: Headers, report: Report) -> Sending:
        """Begin the span of a message to be sent, and put its context into the headers."""
        from opentelemetry import propagate, trace  # noqa: PLC0415 - of the extra

        span = self._tracer.start_span(
            f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=self._about(topic, "send", "send")
        )
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        headers.extend((name, value.encode()) for name, value in carrier.items())
        return Sending(span, report)

    # -- received

    def received(self, topic: str, subscription: str, messages: Sequence[Message], begun_ns: int) -> None:
        """Tell of messages that were received by one call, begun at `begun_ns` (ns since 1970)."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        about = self._about(topic, "receive", "receive", subscription)
        span = self._tracer.start_span(
            f"receive {topic}",
            kind=trace.SpanKind.CLIENT,
            attributes=about | {"messaging.batch.message_count": len(messages)},
            links=self._links(messages[:_LINKS]),
            start_time=begun_ns,
        )
        span.end(time.time_ns())

    @contextlib.contextmanager
    def processing(self, message: Message, subscription: str, attempt: int) -> Generator[None]:
        """Around the call of a handler; what it raises is recorded and passes through.

        It belongs to the trace of who sent the message.
        """
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        topic = message.topic() or ""
        about = self._about(topic, "process", "process", subscription) | _place(message)
        with self._tracer.start_as_current_span(
            f"process {topic}",
            context=_creation(message),
            kind=trace.SpanKind.CONSUMER,
            attributes=about | {"kafkadur.attempt": attempt},
        ) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                raise

    @contextlib.contextmanager
    def settling(self, verdict: str, messages: Sequence[Message], subscription: str) -> Generator[None]:
        """Around a verdict (`ack`, `rollback`, `reject`, `release`) on one message, or on a batch."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        first = messages[0]
        topic = first.topic() or ""
        about = self._about(topic, verdict, "settle", subscription)
        about |= _place(first) if len(messages) == 1 else {"messaging.batch.message_count": len(messages)}
        # in a handler it is part of what that does; else it belongs to who sent the message
        inside = trace.get_current_span().get_span_context().is_valid
        context = None if inside or len(messages) > 1 else _creation(first)
        with self._tracer.start_as_current_span(
            f"{verdict} {topic}",
            context=context,
            kind=trace.SpanKind.CLIENT,
            attributes=about,
            links=self._links(messages[:_LINKS]) if context is None else (),
        ):
            yield

    def _about(self, topic: str, name: str, kind: str, subscription: str | None = None) -> dict[str, Any]:
        about: dict[str, Any] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.destination.name": topic,
            **self._client,
        }
        if subscription is not None:
            about["messaging.destination.subscription.name"] = subscription
        return about

    def _links(self, messages: Iterable[Message]) -> list[Any]:
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        contexts = (trace.get_current_span(_creation(each)).get_span_context() for each in messages)
        return [trace.Link(context) for context in contexts if context.is_valid]


def _place(message: Message) -> dict[str, Any]:
    return {
        "messaging.destination.partition.id": str(message.partition()),
        "messaging.kafka.offset": message.offset() or 0,
    }


def _creation(message: Message) -> Context:
    """The context in which a message was sent."""
    from opentelemetry import propagate  # noqa: PLC0415 - of the extra
    from opentelemetry.context import Context  # noqa: PLC0415

    found: Any = message.headers() or ()
    carrier = {name: value.decode("ascii", "replace") for name, value in found if isinstance(value, bytes)}
    return propagate.extract(carrier, Context())
