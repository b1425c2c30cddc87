"""Spans that a test's process exports: the fixture `spans`, and what tests ask of one."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@functools.cache
def _exporter() -> InMemorySpanExporter:
    """The provider of a process can be set once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Provide what is exported from now on."""
    exporter = _exporter()
    exporter.clear()
    yield exporter
    exporter.clear()


def named(spans: InMemorySpanExporter, operation: str) -> list[ReadableSpan]:
    """Spans of an operation, in the order of their beginning."""
    found = [span for span in spans.get_finished_spans() if span.name.split(" ")[0] == operation]
    return sorted(found, key=lambda span: span.start_time or 0)


def one(spans: InMemorySpanExporter, operation: str) -> ReadableSpan:
    (span,) = named(spans, operation)
    return span


def about(span: ReadableSpan) -> dict[str, Any]:
    """Attributes without the prefix."""
    return {name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()}


def context(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)
