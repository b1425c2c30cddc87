"""The progress of a query: a listener of Spark's, and the progress that the holder publishes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from kafkadur_coordinators.holder_progress import HolderProgress


class QueryListener(StreamingQueryListener):
    """Reports each committed batch and the end of each query of a Spark session."""

    def __init__(self, report: Callable[[str, StreamingQueryProgress | None], None]) -> None:
        """Spark's listener thread calls `report` with a runId and the progress; None: the query has ended."""
        super().__init__()
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: no batch is committed yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Report a batch; Spark has committed it before it calls this."""
        self._report(str(event.progress.runId), event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: no new messages arrived."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Report that the query has ended."""
        self._report(str(event.runId), None)


def progress_of(
    progress: StreamingQueryProgress, topic: str, generation: int, *, query: str | None = None
) -> HolderProgress:
    """Return the progress that Spark reports for a batch; `topic` is the topic of the subscription.

    `query` is the name of one of several.
    """
    return HolderProgress(
        query=query,
        generation=generation,
        batch=progress.batchId,
        rows=progress.numInputRows,
        input_rate=_finite(progress.inputRowsPerSecond),
        processed_rate=_finite(progress.processedRowsPerSecond),
        lag=_lag(progress, topic),
        at=round(time.time() * 1000),
    )


def _finite(rate: float) -> float | None:
    return round(rate, 1) if math.isfinite(rate) else None


def _lag(progress: StreamingQueryProgress, topic: str) -> int | None:
    """Return the number of offsets between the end of the batch and the end of the topic at its planning."""
    for source in progress.sources:
        ends, latest = (_offsets(text, topic) for text in (source.endOffset, source.latestOffset))
        if ends and latest:
            return sum(max(offset - ends.get(partition, 0), 0) for partition, offset in latest.items())
    return None


def _offsets(text: str | None, topic: str) -> dict[str, int]:
    """Return the offsets by partition; empty for a source of another kind or topic."""
    try:
        content: Any = json.loads(text or "null")
    except ValueError:
        return {}
    found: Any = content.get(topic) if isinstance(content, dict) else None
    return {str(p): int(offset) for p, offset in found.items()} if isinstance(found, dict) else {}
