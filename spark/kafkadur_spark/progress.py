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
    """Looks what is committed whenever a query of the session has got further, or ended."""

    def __init__(self, committed: Callable[[], object]) -> None:
        """`committed` settles what is; it is called in Spark's listener thread."""
        super().__init__()
        self._committed = committed

    def look(self) -> None:
        """Have it settled; what cannot be now is with the next batch, or comes again."""
        try:
            self._committed()
        except KafkadurError as error:
            _log.warning("what Spark has committed is not settled: %s", error)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is committed yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: ARG002, N802 - Spark's
        """A batch was committed, before this is told."""
        self.look()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing came."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: ARG002, N802 - Spark's
        """A query has come to its end."""
        self.look()
