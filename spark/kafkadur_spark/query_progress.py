"""The progress of a query: what Spark reports of its batches, for the holder to write down."""

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


class QueryProgress(StreamingQueryListener):
    """Hands on what one run of a query did last."""

    def __init__(
        self, run: str, topic: str, generation: int, tell: Callable[[HolderProgress | None], None]
    ) -> None:
        """`run`: its runId. `tell` is called in Spark's listener thread; None: it has ended."""
        super().__init__()
        self._run = run
        self._topic = topic
        self._generation = generation
        self._tell = tell

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is done yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """A batch was committed."""
        if str(event.progress.runId) == self._run:
            self._tell(progress_of(event.progress, self._topic, self._generation))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing came: what it did last stays."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """It has ended."""
        if str(event.runId) == self._run:
            self._tell(None)


def progress_of(progress: StreamingQueryProgress, topic: str, generation: int) -> HolderProgress:
    """What Spark says of a batch, of which `topic` is what is held."""
    return HolderProgress(
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
    """Offsets from where the batch ended to what there was when it was planned."""
    for source in progress.sources:
        ends, latest = (_offsets(text, topic) for text in (source.endOffset, source.latestOffset))
        if ends and latest:
            return sum(max(offset - ends.get(partition, 0), 0) for partition, offset in latest.items())
    return None


def _offsets(text: str | None, topic: str) -> dict[str, int]:
    """By partition; empty for a source of something else."""
    try:
        content: Any = json.loads(text or "null")
    except ValueError:
        return {}
    found: Any = content.get(topic) if isinstance(content, dict) else None
    return {str(p): int(offset) for p, offset in found.items()} if isinstance(found, dict) else {}
