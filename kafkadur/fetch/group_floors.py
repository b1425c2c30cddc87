"""Mirrors the floors of members that share a reader: each subscription has a group of its own in Kafka.

A consumer commits under its own group only, so each commit takes a client of its own for a moment, in one
thread for all members. With many members it takes some time until a floor is mirrored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.errors import KafkadurError, KafkaUnavailable

_log = logging.getLogger("kafkadur.readers")

#: Seconds between two commits, unless a caller waits for one.
_APART = 0.2
#: Seconds until a commit that failed is tried again.
_RETRY = 5.0


@dataclass
class _Waiting:
    """Floors of a group that are to be committed."""

    topic: str
    floors: dict[int, int]
    metadata: str
    #: its subscription is being closed
    urgent: bool = False


class GroupFloors:
    """Commits floors under any group. The thread runs only while there is something to commit."""

    def __init__(self, topics: Callable[[], Topics]) -> None:
        """`topics` makes the client that commits, when one is needed."""
        self._topics = topics
        self._changed = threading.Condition()
        #: by group
        self._waiting: dict[str, _Waiting] = {}
        #: the group that is being committed, and its floors
        self._current = ""
        self._committing: _Waiting | None = None
        self._runs = False

    def mirror(self, group: str, topic: str, floors: Mapping[int, int], metadata: str) -> None:
        """Commit floors soon; they are a best effort, and never ahead of the truth."""
        with self._changed:
            waiting = self._waiting.get(group)
            if waiting is None or waiting.metadata != metadata:  # the subscription may have been made anew
                waiting = self._waiting[group] = _Waiting(topic, {}, metadata)
            waiting.floors.update(floors)
            if self._runs:
                return
            try:
                threading.Thread(target=self._main, name="kafkadur-floors", daemon=True).start()
            except RuntimeError as error:  # the system allows no further thread
                _log.info("mirroring floors of group %s: %s", group, error)
            else:
                self._runs = True

    def flush(self, group: str, timeout: float) -> bool:
        """Commit the floors of a group now; returns whether that was done within `timeout` seconds.

        After that they are tried once at most.
        """

        def done() -> bool:
            return group not in self._waiting and self._current != group

        with self._changed:
            if group in self._waiting:
                self._waiting[group].urgent = True
                self._changed.notify_all()
            if self._current == group and self._committing is not None:
                self._committing.urgent = True
            return self._changed.wait_for(done, max(timeout, 0.0))

    def _main(self) -> None:
        try:
            with closing(self._topics()) as topics:
                while (found := self._next()) is not None:
                    self._commit_one(topics, found)
        except BaseException:
            with self._changed:
                self._runs, self._current, self._committing = False, "", None
                self._changed.notify_all()
            raise

    def _commit_one(self, topics: Topics, found: _Waiting) -> None:
        """Commit floors to the group `_current`, and wait until the next ones are due."""
        pause = _APART
        try:
            topics.commit(self._current, found.topic, found.floors, metadata=found.metadata)
        except KafkadurError as error:
            _log.info("mirroring floors of group %s: %s", self._current, error)
            pause = _RETRY
            if isinstance(error, KafkaUnavailable):
                self._put_back(found)
        with self._changed:
            self._current, self._committing = "", None
            self._changed.notify_all()
            until = time.monotonic() + pause
            while self._waiting and not self._is_urgent() and time.monotonic() < until:
                self._changed.wait(until - time.monotonic())

    def _put_back(self, failed: _Waiting) -> None:
        """Commit floors later, unless the subscription is being closed, or later ones wait."""
        with self._changed:
            waiting = self._waiting.get(self._current)
            if waiting is not None and waiting.metadata == failed.metadata:
                waiting.floors = failed.floors | waiting.floors
            elif waiting is None and not failed.urgent:
                self._waiting[self._current] = failed

    def _next(self) -> _Waiting | None:
        """Return what is to be committed next, to the group `_current`; None: nothing, the thread ends."""
        with self._changed:
            urgent = (group for group, waiting in self._waiting.items() if waiting.urgent)
            group = next(urgent, None) or next(iter(self._waiting), None)
            if group is None:
                self._runs = False  # with the lock: what comes from now on starts another thread
                return None
            self._current, self._committing = group, self._waiting.pop(group)
            return self._committing

    def _is_urgent(self) -> bool:
        return any(waiting.urgent for waiting in self._waiting.values())
