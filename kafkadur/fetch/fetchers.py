"""The two readers of one member, as the member calls them."""

from __future__ import annotations

from kafkadur.fetch.range_fetcher import RangeFetcher
from kafkadur.fetch.tail_fetcher import TailFetcher


class Fetchers:
    """The two threads that read Kafka for a member."""

    def __init__(self, tail: TailFetcher, point: RangeFetcher) -> None:
        """Join two readers."""
        self._tail = tail
        self._point = point
        self.follow = tail.follow
        self.compare = tail.compare
        self.unfollow = tail.unfollow
        self.find_end = tail.find_end
        self.read_range = point.read_range

    def start(self) -> None:
        """Start reading."""
        self._tail.start()

    def close(self) -> None:
        """Mirror the last floors and stop."""
        self._point.close()
        self._tail.close()
