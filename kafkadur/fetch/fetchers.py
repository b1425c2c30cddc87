"""The two threads that read Kafka for one member, as the member calls them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kafkadur.fetch.kafka_thread import Receiver
from kafkadur.fetch.range_fetcher import RangeFetcher
from kafkadur.fetch.tail_fetcher import TailFetcher
from kafkadur.runtime.stages import Probe


class Fetchers:
    """The tail fetcher and the range fetcher of a member."""

    def __init__(
        self,
        receiver: Receiver,
        *,
        kafka: Mapping[str, Any],
        topic: str,
        topic_id: str,
        group: str,
        floor_metadata: str,
        probe: Probe,
    ) -> None:
        """The parameters are those of the two fetchers; `receiver` gets the records."""
        self._tail = tail = TailFetcher(
            member=receiver,
            kafka=kafka,
            topic=topic,
            topic_id=topic_id,
            group=group,
            floor_metadata=floor_metadata,
            probe=probe,
        )
        self._point = point = RangeFetcher(
            member=receiver, kafka=kafka, topic=topic, topic_id=topic_id, group=group
        )
        self.follow = tail.follow
        self.compare = tail.compare
        self.unfollow = tail.unfollow
        self.find_end, self.note_room = tail.find_end, tail.note_room
        self.read_inline, self.interrupt = tail.read_inline, tail.interrupt
        self.read_range = point.read_range

    @property
    def compiled(self) -> bool:
        """Whether the compiled client reads."""
        return self._tail.compiled

    def start(self) -> None:
        """Start reading."""
        self._tail.start()

    def stop(self) -> None:
        """Mirror the last floors and stop; returns at once."""
        self._point.stop()
        self._tail.stop()

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the end of both threads; returns whether they ended."""
        deadline = time.monotonic() + timeout
        ended = [each.join(deadline - time.monotonic()) for each in (self._point, self._tail)]
        return all(ended)
