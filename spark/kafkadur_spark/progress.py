"""Settling what Spark has committed: for queries whose sink is not this driver's, such as files or tables."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur.spark")


class Progress(StreamingQueryListener):
    """Tells of each batch of one query that Spark has committed."""

    def __init__(self, query: str, committed: Callable[[int], object]) -> None:
        """`query` is its id; `committed` is called with the batch's number, in Spark's listener thread."""
        super().__init__()
        self._query = query
        self._committed = committed
        self._told = -1

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is committed yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """A batch was committed, before this is told."""
        batch = event.progress.batchId
        if str(event.progress.id) != self._query or batch <= self._told:
            return
        try:
            self._committed(batch)
        except KafkadurError as error:
            # the next batch tries again; what never is settled comes again
            _log.warning("batch %d is not settled: %s", batch, error)
            return
        self._told = batch

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing came."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """What was committed last is settled when the query is read the next time."""
