"""Looking every now and then whether retention is about to remove unsettled messages.

One thread a connection. What is found goes to the members, who rescue such messages where the redelivery
policy says so (`consumer/router.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kafkadur.fetch.retention import expiring
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur")

#: How often the same subscription is warned about, seconds.
_WARN_EVERY = 600.0
#: Before the first look, seconds.
_FIRST_LOOK = 5.0


class Watched(Protocol):
    """A member, as the watch sees it."""

    @property
    def display(self) -> str:
        """Name of the subscription for people."""
        ...

    def floors(self) -> Mapping[int, int]:
        """Lowest unsettled offset of partitions, as far as they are known."""
        ...

    def expiring(self, until: Mapping[int, int]) -> None:
        """Messages before these offsets of partitions expire soon."""


@dataclass(slots=True)
class _Entry:
    member: Watched
    topic: str
    partitions: int
    warned: float = float("-inf")


class RetentionWatch:
    """Looks at the topics of a connection's durable subscriptions."""

    def __init__(
        self,
        topics: Callable[[], Topics],
        *,
        every: float,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`topics` is called in the watch's thread, which looks `every` so many seconds."""
        self._topics = topics
        self._every = every
        self._clock = clock
        self._monotonic = monotonic
        self._entries: list[_Entry] = []
        #: how often it has looked at all of them
        self.looks = 0
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._main, name="kafkadur-retention", daemon=True)

    def add(self, member: Watched, topic: str, partitions: int) -> None:
        """Look at a member's topic from now on."""
        self._entries.append(_Entry(member, topic, partitions))
        if not self._thread.is_alive() and not self._closed.is_set():
            self._thread.start()
        self._wake.set()

    def remove(self, member: Watched) -> None:
        """Look at it no more."""
        self._entries = [entry for entry in self._entries if entry.member is not member]

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _main(self) -> None:
        self._closed.wait(min(self._every, _FIRST_LOOK))  # a new subscriber has other things to do
        topics = self._topics()
        try:
            while not self._closed.is_set():
                self._wake.clear()
                if self._closed.is_set():  # just before
                    break
                for entry in list(self._entries):
                    try:
                        self._look(topics, entry)
                    except Exception:  # noqa: BLE001 - a defect comes to a warning too few
                        _log.exception("looking at the retention of topic %s", entry.topic)
                self.looks += 1
                self._wake.wait(self._every)
        finally:
            topics.close()

    def _look(self, topics: Topics, entry: _Entry) -> None:
        try:
            until = expiring(topics, entry.topic, entry.partitions, round(self._clock() * 1000))
        except KafkadurError as error:
            _log.info("looking at the retention of topic %s: %s", entry.topic, error)
            return
        entry.member.expiring(until)
        floors = entry.member.floors()
        soon = sum(max(until.get(partition, 0) - floor, 0) for partition, floor in floors.items())
        if soon and self._monotonic() >= entry.warned + _WARN_EVERY:
            entry.warned = self._monotonic()
            _log.warning(
                "Kafka is about to remove unsettled messages. State: up to %d of topic %s come to the end of "
                "its retention. Owner: subscription %s. Remedy: let more consumers work on it, keep messages "
                "longer (retention.ms), or have them rescued (Redelivery(rescue=True)).",
                soon,
                entry.topic,
                entry.member.display,
            )
