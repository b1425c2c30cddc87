"""OpenTelemetry spans for sending, receiving, processing and settling, in its messaging conventions.

Only the API of OpenTelemetry is used: the program configures the SDK. The context of a message is in its
Kafka headers, as the program's propagator writes it (`traceparent`). OpenTelemetry is imported only when the
setting `tracing` is on. Spans contain no keys and no payloads.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, Message

from kafkadur_sharing.errors import IllegalState, KafkadurError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

#: Headers as librdkafka takes and gives them.
Headers = list[tuple[str, bytes | None]]
Report = Callable[[KafkaError | None, Message], None]

_log = logging.getLogger(__name__)

_SYSTEM: Final = "kafka"
#: Most links of one span: for a large batch, those to the first messages.
_LINKS: Final = 128


class Sending:
    """The delivery report of a message, which ends its span."""

    def __init__(self, span: Span, report: Report) -> None:
        """`report` is the next function to call with the delivery report."""
        self._span = span
        self._report = report

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Serve the delivery report."""
        try:
            if error is None:
                self._span.set_attributes(_place(message))
            else:
                _fail(self._span, error.name(), error.str())
            with _harmless():
                self._span.end()
        finally:
            self._report(error, message)

    def refused(self, error: BaseException) -> None:
        """End the span of a message that was not sent."""
        _fail(self._span, type(error).__name__, str(error))
        with _harmless():
            self._span.end()


#: Called with the error that a handler raised.
Failed = Callable[[BaseException], None]


def processing(
    tracing: Tracing | None, message: Message, subscription: str, attempt: int
) -> contextlib.AbstractContextManager[Failed]:
    """Surround the processing of a message with a span, if `tracing` is not None."""
    if tracing is None:
        return contextlib.nullcontext(lambda _: None)
    return tracing.processing(message, subscription, attempt)


@contextlib.contextmanager
def _harmless() -> Generator[None]:
    """Log errors of the program's SDK: messages are more important than spans."""
    try:
        yield
    except Exception:  # noqa: BLE001 - any error of the program's SDK
        _log_lost()


def _log_lost() -> None:
    _log.warning("a span is lost: what the program hands spans to has failed", exc_info=True)


def _fail(span: Span, kind: str, text: str) -> None:
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - of the extra

    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, text))


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
        """Begin the span of a message to send, and put its context into the headers."""
        from opentelemetry import propagate, trace  # noqa: PLC0415 - of the extra

        span = self._begin(
            f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=self._about(topic, "send", "send")
        )
        carrier: dict[str, str] = {}
        with _harmless():
            propagate.inject(carrier, trace.set_span_in_context(span))
        headers.extend((name, value.encode()) for name, value in carrier.items())
        return Sending(span, report)

    # -- received

    def received(self, topic: str, subscription: str, messages: Sequence[Message], begun_ns: int) -> None:
        """Make a span of messages that one call received, which began at `begun_ns` (ns since 1970)."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        about = self._about(topic, "receive", "receive", subscription) | _count(messages)
        with _harmless():
            span = self._begin(
                f"receive {topic}",
                kind=trace.SpanKind.CLIENT,
                attributes=about,
                links=self._links(messages[:_LINKS]),
                start_time=begun_ns,
            )
            span.end(time.time_ns())

    @contextlib.contextmanager
    def processing(self, message: Message, subscription: str, attempt: int) -> Generator[Failed]:
        """Surround the call of a handler and the verdict with a span, in the trace of the sender."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        topic = message.topic() or ""
        about = self._about(topic, "process", "process", subscription) | _place(message)
        span = self._begin(
            f"process {topic}",
            context=_creation(message),
            kind=trace.SpanKind.CONSUMER,
            attributes=about | {"kafkadur.attempt": attempt},
        )

        def failed(error: BaseException) -> None:
            with _harmless():
                span.record_exception(error)
                _fail(span, type(error).__name__, str(error))

        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield failed
        finally:
            with _harmless():
                span.end()

    @contextlib.contextmanager
    def settling(self, verdict: str, messages: Sequence[Message], subscription: str) -> Generator[None]:
        """Surround a verdict (`ack`, `rollback`, `reject`, `release`) on messages with a span."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        first = messages[0]
        topic = first.topic() or ""
        about = self._about(topic, verdict, "settle", subscription) | _count(messages)
        # part of the span of a handler if there is one, else of the trace of the sender
        inside = trace.get_current_span().get_span_context().is_valid
        context = None if inside or len(messages) > 1 else _creation(first)
        span = self._begin(
            f"{verdict} {topic}",
            context=context,
            kind=trace.SpanKind.CLIENT,
            attributes=about,
            links=self._links(messages[:_LINKS]) if context is None else (),
        )
        with self._surrounding(span):
            yield

    def claimed(self, topic: str, subscription: str, count: int, begun_ns: int) -> None:
        """As `received`, of `count` messages that are read elsewhere."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        about = self._about(topic, "receive", "receive", subscription)
        about["messaging.batch.message_count"] = count
        span = self._begin(
            f"receive {topic}", kind=trace.SpanKind.CLIENT, attributes=about, start_time=begun_ns
        )
        with _harmless():
            span.end(time.time_ns())

    @contextlib.contextmanager
    def settling_offsets(
        self, verdict: str, topic: str, subscription: str, count: int, **counts: int
    ) -> Generator[None]:
        """Surround a verdict on `count` offsets with a span; their messages were read elsewhere.

        `counts` are further attributes, `kafkadur.<name>`, where they are not 0.
        """
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        about = self._about(topic, verdict, "settle", subscription)
        about["messaging.batch.message_count"] = count
        about |= {f"kafkadur.{name}": number for name, number in counts.items() if number}
        span = self._begin(f"{verdict} {topic}", kind=trace.SpanKind.CLIENT, attributes=about)
        with self._surrounding(span):
            yield

    @contextlib.contextmanager
    def committing(self, name: str, messages: Sequence[Message] | None) -> Generator[None]:
        """Surround the commit or rollback of a transacted session with a span.

        `messages` are those that are settled with it; None: they are not known.
        """
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        about: dict[str, Any] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.name": name,
            "messaging.operation.type": "settle",
            **self._client,
        }
        links: list[Any] = []
        if messages is not None:
            about["messaging.batch.message_count"] = len(messages)
            links = self._links(messages[:_LINKS])
        span = self._begin(name, kind=trace.SpanKind.CLIENT, attributes=about, links=links)
        with self._surrounding(span):
            yield

    def writing(self, topic: str, message: Message, subscription: str, cause: str, report: Report) -> Sending:
        """Begin the span of a dead letter, in the trace of the sender of its message."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        about = self._about(topic, "send", "send", subscription) | {"kafkadur.dead_letter.cause": cause}
        span = self._begin(
            f"send {topic}", context=_creation(message), kind=trace.SpanKind.PRODUCER, attributes=about
        )
        return Sending(span, report)

    @staticmethod
    @contextlib.contextmanager
    def _surrounding(span: Span) -> Generator[None]:
        """Make a span the current one, and end it."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        try:
            with trace.use_span(span):
                yield
        except KafkadurError as error:
            span.set_attribute("error.type", type(error).__name__)
            raise
        finally:
            with _harmless():
                span.end()

    def _begin(self, name: str, **details: Any) -> Span:  # noqa: ANN401 - those of `start_span`
        """Begin a span, or return an invalid one if the program's SDK fails."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        try:
            return self._tracer.start_span(name, **details)
        except Exception:  # noqa: BLE001 - any error of the program's SDK
            _log_lost()
            return trace.INVALID_SPAN

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


def _count(messages: Sequence[Message]) -> dict[str, Any]:
    """Return the position of a single message, or the number of messages."""
    return _place(messages[0]) if len(messages) == 1 else {"messaging.batch.message_count": len(messages)}


def _place(message: Message) -> dict[str, Any]:
    return {
        "messaging.destination.partition.id": str(message.partition()),
        "messaging.kafka.offset": message.offset() or 0,
    }


def _creation(message: Message) -> Context:
    """Return the context in which a message was sent."""
    from opentelemetry import propagate  # noqa: PLC0415 - of the extra
    from opentelemetry.context import Context  # noqa: PLC0415

    found: Any = message.headers() or ()
    carrier = {name: value.decode("ascii", "replace") for name, value in found if isinstance(value, bytes)}
    return propagate.extract(carrier, Context())
