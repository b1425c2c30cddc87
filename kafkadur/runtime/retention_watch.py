"""Regular checks whether retention is about to remove unsettled messages.

A check reports such messages to the members, which rescue them if the redelivery policy says so
(`consumer/router.py`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kafkadur.fetch.retention import WARN_EVERY_S, expiring, warn_of_expiring
from kafkadur_coordinators.topics import TopicInfo, Topics
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur")

#: Seconds at most until the topic of a new member is checked.
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
    """Checks the topics of a connection's durable subscriptions, each check in a thread of its own."""

    def __init__(self, topics: Callable[[], Topics], *, every: float) -> None:
        """Check every `every` seconds; `topics` returns the client of one check, which closes it."""
        self._topics = topics
        self._every = every
        self._entries: list[_Entry] = []
        #: number of checks of all topics
        self.looks = 0
        #: when the next check is due (monotonic seconds)
        self._due_at = math.inf
        self._checking: threading.Thread | None = None
        self._closed = False
        #: held to begin a check, and to close
        self._lock = threading.Lock()

    @property
    def is_checking(self) -> bool:
        """Whether a check is being made."""
        return self._checking is not None and self._checking.is_alive()

    def add(self, member_id: str, member: _Watched, topic: Callable[[], TopicInfo]) -> None:
        """Check the topic of a member from now on; `topic` tells it, as its partitions may be added to."""
        self._entries.append(_Entry(member_id, member, topic))
        soon = min(self._every, _FIRST_LOOK)  # a new subscriber has more urgent work
        self._due_at = min(self._due_at, time.monotonic() + soon)

    def remove(self, member_id: str) -> None:
        """Stop checking the topic of a member."""
        self._entries = [entry for entry in self._entries if entry.member_id != member_id]

    def check_if_due(self) -> None:
        """Begin a check if one is due. The thread that adds and removes members calls it now and then."""
        now = time.monotonic()
        if now < self._due_at or self.is_checking:
            return
        if self._entries:
            self._begin()
        self._due_at = now + self._every if self._entries else math.inf

    def _begin(self) -> None:
        with self._lock:
            if self._closed:
                return
            thread = threading.Thread(target=self._check, name="kafkadur-retention", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system allows no further thread
                _log.info("looking at retention: %s", error)
            else:
                self._checking = thread

    def close(self) -> None:
        """Check no more; a thread that asks Kafka now ends by itself, with the answer."""
        with self._lock:
            self._closed = True
        if self._checking is not None:
            self._checking.join(_LAST_LOOK)

    def _check(self) -> None:
        topics = self._topics()
        try:
            #: name and partitions of a topic -> what expires soon; many members may have the same topic
            known: dict[tuple[str, int], Mapping[int, int] | None] = {}
            for entry in list(self._entries):
                if self._closed:
                    return
                try:
                    self._look(topics, entry, known)
                except Exception:  # noqa: BLE001 - a defect only costs a warning
                    _log.exception("looking at the retention of topic %s", entry.topic().name)
            self.looks += 1
        finally:
            topics.close()

    def _look(
        self, topics: Topics, entry: _Entry, known: dict[tuple[str, int], Mapping[int, int] | None]
    ) -> None:
        topic = entry.topic()
        of = (topic.name, topic.partitions)
        if of not in known:
            known[of] = _expiring(topics, topic)
        until = known[of]
        if until is None:
            return
        entry.member.expiring(until)
        floors = entry.member.floors()
        soon = sum(max(until.get(partition, 0) - floor, 0) for partition, floor in floors.items())
        if soon and time.monotonic() >= entry.warned + WARN_EVERY_S:
            entry.warned = time.monotonic()
            warn_of_expiring(_log, soon, topic=topic.name, subscription=entry.member.display)


def _expiring(topics: Topics, topic: TopicInfo) -> Mapping[int, int] | None:
    """Return the offset of each partition before which messages expire soon; None: Kafka does not say."""
    try:
        return expiring(topics, topic.name, topic.partitions, round(time.time() * 1000))
    except KafkadurError as error:
        _log.info("looking at the retention of topic %s: %s", topic.name, error)
        return None
