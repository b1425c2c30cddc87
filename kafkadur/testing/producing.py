"""The part of confluent-kafka's Producer that kafkadur uses, over topics in memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, Message

from kafkadur.testing.log import Headers, Log

#: Seconds that `poll` waits at most: closing a producer waits for it.
_LONGEST_WAIT = 0.005

Report = Callable[[KafkaError | None, Message], None]


class MemoryProducer:
    """Appends messages at once; their reports are served by `poll` and `flush`, as confluent-kafka does."""

    def __init__(self, log: Log) -> None:
        """Write to the topics of `log`."""
        self._log = log
        self._reports: deque[Callable[[], None]] = deque()
        self._reported = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of reports that were not served yet."""
        return len(self._reports)

    def produce(  # noqa: PLR0917 - as confluent-kafka's
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: Report | None = None,
        on_delivery: Report | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Append a message. A topic or partition that does not exist is an error in the report."""
        written = self._log.append(
            topic, value, key, partition=partition, timestamp=timestamp, headers=headers or ()
        )
        error = None if written is not None else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        message = written if written is not None else Message(topic=topic, error=error)
        report = callback if callback is not None else on_delivery
        with self._reported:
            self._reports.append(partial(report, error, message) if report is not None else _nothing)
            self._reported.notify_all()

    def poll(self, timeout: float = 0.0) -> int:
        """Wait a moment for reports, at most `timeout` seconds, and serve them; returns how many."""
        with self._reported:
            self._reported.wait_for(lambda: self._closed or bool(self._reports), min(timeout, _LONGEST_WAIT))
        return self._serve()

    def flush(self, timeout: float = 0.0) -> int:  # noqa: ARG002 - nothing is under way
        """Serve all reports; returns how many are left."""
        self._serve()
        return 0

    def purge(self) -> None:
        """Do nothing: every message was written."""

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> None:
        """Answer at once."""

    def close(self) -> None:
        """Serve the last reports, and end waiting calls."""
        with self._reported:
            self._closed = True
            self._reported.notify_all()
        self._serve()

    def _serve(self) -> int:
        served = 0
        while True:
            with self._reported:
                if not self._reports:
                    return served
                report = self._reports.popleft()
            report()
            served += 1


def _nothing() -> None:
    pass
