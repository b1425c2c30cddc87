"""Asks Kafka where the partitions of topics end, for callers that want to know whether a message waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from kafkadur_coordinators.topics import TopicInfo, Topics
from kafkadur_sharing.errors import ConnectionClosed


class LogEnds:
    """The client that asks. It connects when it is asked first; one thread at a time asks."""

    def __init__(self, topics: Callable[[], Topics]) -> None:
        """`topics` makes the client."""
        self._make = topics
        self._lock = threading.Lock()
        self._topics: Topics | None = None
        self._closed = False

    def of(self, topic: TopicInfo) -> Mapping[int, int]:
        """Return the end of each partition for readers of committed messages. Blocks until Kafka answers.

        Raises `KafkaUnavailable`, `KafkaRefused`, and `ConnectionClosed` after it was closed.
        """
        with self._lock:
            if self._closed:
                raise ConnectionClosed
            if self._topics is None:
                self._topics = self._make()
            return self._topics.offsets(topic.name, topic.partitions, "latest")

    def close(self) -> None:
        """Close the client."""
        with self._lock:
            self._closed = True
            if self._topics is not None:
                self._topics.close()
