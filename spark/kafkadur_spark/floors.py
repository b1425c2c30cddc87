"""Mirrors the floors of a subscription, its lowest unsettled offsets, to its consumer group every second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from confluent_kafka import KafkaException

from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_coordinators.settlement_states import SettlementState
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur.spark")

#: Seconds between two commits.
_EVERY = 1.0


class FloorMirror:
    """Commits floors in a thread of its own, because a commit may take longer than a session lasts."""

    def __init__(self, topics: Topics) -> None:
        """No partition is noted yet."""
        self._topics = topics
        self._thread = ThreadPoolExecutor(1, "kafkadur-floors")
        self._committing: Future[None] | None = None
        self._committed: dict[int, int] = {}
        self._partitions: set[int] = set()
        self._at = 0.0

    def note(self, partitions: Iterable[int]) -> None:
        """Note partitions on which something was settled."""
        self._partitions |= set(partitions)

    @property
    def due(self) -> float:
        """The time of the next call of `mirror` (monotonic seconds)."""
        return self._at if self._partitions else float("inf")

    def mirror(
        self, held: Subscription, settlements: Callable[[list[int]], Mapping[int, SettlementState]]
    ) -> None:
        """Commit the floors of the noted partitions, if that is due; `settlements` reads their states."""
        if time.monotonic() < self.due:
            return
        self._at = time.monotonic() + _EVERY
        if self._committing is not None and not self._committing.done():
            return
        try:
            found = settlements(sorted(self._partitions))
        except KafkadurError as error:
            _log.info("floors of %s: %s", held.key, error)
            return
        self._partitions = set()
        floors = {partition: settlement.floor for partition, settlement in found.items()}
        self._committing = self._thread.submit(self._commit, held, floors)

    def mirror_last(
        self, held: Subscription, settlements: Callable[[list[int]], Mapping[int, SettlementState]]
    ) -> None:
        """Commit the floors of the noted partitions at once; `close` waits for it."""
        self._at, self._committing = 0.0, None
        self.mirror(held, settlements)

    def close(self) -> None:
        """Wait for the last commit."""
        self._thread.shutdown()

    def _commit(self, held: Subscription, floors: Mapping[int, int]) -> None:
        moved = {p: floor for p, floor in floors.items() if self._committed.get(p) != floor}
        try:
            if moved:
                self._topics.commit(held.key.group, held.topic.name, moved, metadata=held.floor_metadata)
        except (KafkadurError, KafkaException) as error:
            _log.info("floors of %s: %s", held.key, error)  # a floor that moves later is committed then
        else:
            self._committed |= moved
