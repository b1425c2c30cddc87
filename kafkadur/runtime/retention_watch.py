"""Regular checks whether retention is about to remove unsettled messages.

One thread for each connection reports such messages to the members, which rescue them if the redelivery
policy says so (`consumer/router.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kafkadur.fetch.retention import WARN_EVERY_S, expiring, warn_of_expiring
from kafkadur_coordinators.topics import TopicInfo, Topics
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur")

#: Seconds before the first check.
_FIRST_LOOK = 5.0
#: Seconds that closing waits for the end of a check.
_LAST_LOOK = 1.0


class _Watched(Protocol):
    """The part of a member that the watch uses."""

    @property
    def display(self) -> str: ...
    def floors(self) -> Mapping[int, int]: ...
    def expiring(self, until: Mapping[int, int]) -> None: ...


@dataclass(slots=True)
class _Entry:
    member_id: str
    member: _Watched
    topic: Callable[[], TopicInfo]
    warned: float = float("-inf")


class RetentionWatch:
    """Checks the topics of a connection's durable subscriptions."""

    def __init__(
        self,
        topics: Callable[[], Topics],
        *,
        every: float,
    ) -> None:
        """`topics` makes the client of the thread, which checks every `every` seconds."""
        self._topics = topics
        self._every = every
        self._entries: list[_Entry] = []
        #: number of checks of all topics
        self.looks = 0
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._main, name="kafkadur-retention", daemon=True)

    def add(self, member_id: str, member: _Watched, topic: Callable[[], TopicInfo]) -> None:
        """Check the topic of a member from now on; `topic` tells it, as its partitions may be added to."""
        self._entries.append(_Entry(member_id, member, topic))
        if not self._thread.is_alive() and not self._closed.is_set():
            self._thread.start()
        self._wake.set()

    def remove(self, member_id: str) -> None:
        """Stop checking the topic of a member."""
        self._entries = [entry for entry in self._entries if entry.member_id != member_id]

    def close(self) -> None:
        """End the thread; one that asks Kafka now ends by itself, with the answer."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_LOOK)

    def _main(self) -> None:
        self._closed.wait(min(self._every, _FIRST_LOOK))  # a new subscriber has more urgent work
        topics = self._topics()
        try:
            while True:
                self._wake.clear()  # before the check, so that a later close() ends the wait
                if self._closed.is_set():
                    return
                for entry in list(self._entries):
                    try:
                        self._look(topics, entry)
                    except Exception:  # noqa: BLE001 - a defect only costs a warning
                        _log.exception("looking at the retention of topic %s", entry.topic().name)
                self.looks += 1
                self._wake.wait(self._every)
        finally:
            topics.close()

    def _look(self, topics: Topics, entry: _Entry) -> None:
        topic = entry.topic()
        try:
            until = expiring(topics, topic.name, topic.partitions, round(time.time() * 1000))
        except KafkadurError as error:
            _log.info("looking at the retention of topic %s: %s", topic.name, error)
            return
        entry.member.expiring(until)
        floors = entry.member.floors()
        soon = sum(max(until.get(partition, 0) - floor, 0) for partition, floor in floors.items())
        if soon and time.monotonic() >= entry.warned + WARN_EVERY_S:
            entry.warned = time.monotonic()
            warn_of_expiring(_log, soon, topic=topic.name, subscription=entry.member.display)
