"""Spans of OpenTelemetry for what is sent, received, processed and settled, in its messaging conventions.

Only its API is used: the program chooses with the SDK what becomes of spans. The context of a
message travels in its Kafka headers, as the program's propagator writes it (`traceparent`). OpenTelemetry is
imported only when the setting `tracing` is on. No keys and no payloads are written to spans.
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
        """It never got under way."""
        _fail(self._span, type(error).__name__, str(error))
        with _harmless():
            self._span.end()


class Processing:
    """A message that is processed: what its handler, and `run` for it, does is part of its span."""

    def __init__(self, span: Span) -> None:
        """The span is ended by its maker."""
        self._span = span

    def failed(self, error: BaseException) -> None:
        """The handler raised this."""
        with _harmless():
            self._span.record_exception(error)
            _fail(self._span, type(error).__name__, str(error))


class Untraced:
    """A message that is processed where no spans are made."""

    def failed(self, error: BaseException) -> None:
        """Do nothing."""


_UNTRACED: Final = Untraced()


def processing(
    tracing: Tracing | None, message: Message, subscription: str, attempt: int
) -> contextlib.AbstractContextManager[Processing | Untraced]:
    """Around the processing of a message, with a span where there are any."""
    if tracing is None:
        return contextlib.nullcontext(_UNTRACED)
    return tracing.processing(message, subscription, attempt)


@contextlib.contextmanager
def _harmless() -> Generator[None]:
    """What spans are handed to may fail: messages are more important."""
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever the program's SDK raises
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
        """Begin the span of a message to be sent, and put its context into the headers."""
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
        """Tell of messages that were received by one call, begun at `begun_ns` (ns since 1970)."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        about = self._about(topic, "receive", "receive", subscription)
        about |= _count(messages)
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
    def processing(self, message: Message, subscription: str, attempt: int) -> Generator[Processing]:
        """Around the call of a handler and the verdict; it belongs to the trace of who sent the message."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        topic = message.topic() or ""
        about = self._about(topic, "process", "process", subscription) | _place(message)
        span = self._begin(
            f"process {topic}",
            context=_creation(message),
            kind=trace.SpanKind.CONSUMER,
            attributes=about | {"kafkadur.attempt": attempt},
        )
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield Processing(span)
        finally:
            with _harmless():
                span.end()

    @contextlib.contextmanager
    def settling(self, verdict: str, messages: Sequence[Message], subscription: str) -> Generator[None]:
        """Around a verdict (`ack`, `rollback`, `reject`, `release`) on one message, or on a batch."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        first = messages[0]
        topic = first.topic() or ""
        about = self._about(topic, verdict, "settle", subscription)
        about |= _count(messages)
        # in a handler it is part of what that does; else it belongs to who sent the message
        inside = trace.get_current_span().get_span_context().is_valid
        context = None if inside or len(messages) > 1 else _creation(first)
        span = self._begin(
            f"{verdict} {topic}",
            context=context,
            kind=trace.SpanKind.CLIENT,
            attributes=about,
            links=self._links(messages[:_LINKS]) if context is None else (),
        )
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
        """Begin a span; one that nobody sees where what spans are handed to has failed."""
        from opentelemetry import trace  # noqa: PLC0415 - of the extra

        try:
            return self._tracer.start_span(name, **details)
        except Exception:  # noqa: BLE001 - whatever the program's SDK raises
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
    """Where a single message is, or how many there are."""
    return _place(messages[0]) if len(messages) == 1 else {"messaging.batch.message_count": len(messages)}


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
