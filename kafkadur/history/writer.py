"""The history thread of a connection: it writes what members noted to the topics of their histories.

It takes the notes once a second, so that deliveries never wait for it. A history is no part of a
subscription's state: while Kafka does not take it, notes are kept up to a bound, messages beyond it are left
out, and the next entry says how many. Nothing else depends on it.

Notes of a member are written only after its earlier ones, so its entries are in order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Protocol

from kafkadur.history.entries import Entry, Written, encoded, topic_of
from kafkadur_coordinators.lifecycle import Subscription
from kafkadur_sharing.errors import KafkadurError

_log = logging.getLogger("kafkadur.history")

#: Seconds between two rounds, and between two while a last entry is under way.
EVERY, _SOON = 1.0, 0.05
#: Seconds until a topic that cannot be written is tried again: at first, and at most.
_WAIT_S = (1.0, 60.0)
#: Seconds in which the entries of a member that has left must be written, and those of a closed connection.
_LEFT_S, _LAST_S = 60.0, 5.0


class Noting(Protocol):
    """A member, or another object that settles messages."""

    def take_notes(self, *, leaves: bool) -> tuple[list[Entry], int]:
        """Return the entries since the last call, and how many messages are missing in them."""
        ...


class HistoryLog(Protocol):
    """Where histories are written. Used by one thread."""

    def prepare(self, topic: str, kept: timedelta) -> None:
        """Create a topic that keeps messages so long, or set that. Raises a `KafkadurError`."""

    def write(self, topic: str, value: bytes, done: Callable[[str | None, bool], None]) -> None:
        """Write a message.

        `done` is called with None, or with the reason why it is not written and whether another try may help.
        """

    def serve(self, timeout: float) -> None:
        """Call `done` of the messages that are done, waiting so many seconds for one."""


@dataclass(kw_only=True, eq=False)
class _Member:
    noting: Noting
    id: str
    name: str
    subscription: Subscription
    #: messages for the topic that wait, in their order, each with the number of messages that it is about
    waiting: deque[tuple[bytes, int]] = field(default_factory=deque[tuple[bytes, int]])
    #: number of messages for the topic that are under way, and of the next one
    under_way: int = 0
    number: int = 1
    #: messages whose entries were given up, and about which no entry says so
    missing: int = 0
    #: when it has left, monotonic seconds; None: it is attached
    left_at: float | None = None
    #: whether its last notes were taken
    is_taken: bool = False

    @property
    def is_written(self) -> bool:
        """Whether nothing is left to be written."""
        return self.is_taken and not (self.waiting or self.under_way)


@dataclass(kw_only=True)
class _Topic:
    """What is known of a topic."""

    #: the retention that it was prepared with; None: it has to be prepared
    kept: timedelta | None = None
    #: why it could not be written the last time; empty: it could
    trouble: str = ""
    #: when it is tried again, monotonic seconds, and how long that is to wait
    retry_at: float = 0.0
    wait: float = _WAIT_S[0]


class HistoryThread:
    """The history thread of one connection; it starts with the first member that has a history."""

    def __init__(self, make: Callable[[], HistoryLog]) -> None:
        """`make` makes what writes, in the thread."""
        self._make = make
        self._target: HistoryLog | None = None
        self._members: list[_Member] = []
        self._topics: dict[str, _Topic] = {}
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._closing = False
        #: whether the last question about a topic failed
        self._stuck = False
        self._thread: threading.Thread | None = None

    def add(self, noting: Noting, subscription: Subscription, *, member: str, name: str) -> None:
        """Write the history of this member from now on; its subscription has one.

        `member` is its id, `name` its name for people.
        """
        with self._lock:
            self._members.append(_Member(noting=noting, id=member, name=name, subscription=subscription))
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="kafkadur-history", daemon=True)
                self._thread.start()

    def remove(self, noting: Noting | None) -> None:
        """Write the last entries of a member that has left."""
        with self._lock:
            for member in self._members:
                if member.noting is noting:
                    member.left_at = time.monotonic()
        self._bell.set()

    def close(self) -> None:
        """Write the last entries, and end the thread; all members must have left before."""
        self._closing = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join()

    # -- the thread

    def _main(self) -> None:
        deadline: float | None = None
        while deadline is None or time.monotonic() < deadline:
            try:
                left = self._round()
            except Exception as error:  # noqa: BLE001 - the next round may succeed
                _log.warning("writing delivery histories failed, and is tried again: %r", error)
                left = True
            if self._closing and deadline is None:
                deadline = time.monotonic() + _LAST_S
            elif self._closing and not left:
                return
            if not self._closing:
                self._bell.wait(_SOON if left else EVERY)
                self._bell.clear()
        lost = sum(number for member in self._members for _, number in member.waiting)
        _log.warning("the connection was closed while delivery histories could not be written: %d lost", lost)

    def _round(self) -> bool:
        """Write what is there; return whether last entries are not written yet."""
        if self._target is None:
            self._target = self._make()
        self._target.serve(_SOON if self._closing else 0.0)
        with self._lock:
            members = list(self._members)
        for member in members:
            self._write(self._target, member)
        self._target.serve(0.0)
        now = time.monotonic()
        with self._lock:
            self._members = [each for each in self._members if not self._is_over(each, now)]
            if self._closing:
                return any(not each.is_written for each in self._members)
            return any(each.left_at is not None for each in self._members)

    def _is_over(self, member: _Member, now: float) -> bool:
        """Say whether nothing more is written for a member."""
        if member.left_at is None:
            return False
        if member.is_written:
            return True
        if self._closing or now - member.left_at < _LEFT_S:
            return False
        lost = sum(number for _, number in member.waiting)
        _log.warning(
            "%s: the last entries of its delivery history could not be written; they are about %d messages",
            member.subscription.key,
            lost,
        )
        return True

    def _write(self, log: HistoryLog, member: _Member) -> None:
        """Write what a member noted, unless what it noted before is under way."""
        name = topic_of(member.subscription.key)
        topic = self._topics.setdefault(name, _Topic())
        leaves = self._closing or member.left_at is not None
        if member.under_way or (topic.trouble and time.monotonic() < topic.retry_at):
            return
        kept = member.subscription.definition.history
        if kept is not None and topic.kept != kept:
            if self._closing and self._stuck:
                return  # each question takes seconds
            try:
                log.prepare(name, kept)
            except KafkadurError as error:
                self._stuck = True
                self._failed(topic, member, str(error))
                return  # the member keeps its notes
            topic.kept, self._stuck = kept, False
        if not member.waiting:
            self._take(member, leaves=leaves)
        waiting, member.waiting = list(member.waiting), deque()
        for place, message in enumerate(waiting):
            member.under_way += 1
            try:
                log.write(name, message[0], partial(self._done, topic, member, message))
            except Exception:
                member.under_way -= 1
                member.waiting.extend(waiting[place:])
                raise

    @staticmethod
    def _take(member: _Member, *, leaves: bool) -> None:
        """Take the notes of a member."""
        entries, missing = member.noting.take_notes(leaves=leaves)
        member.is_taken = leaves
        missing, member.missing = missing + member.missing, 0
        if entries or missing:
            written = Written(
                subscription=member.subscription.id, member=member.id, name=member.name,
                number=member.number, entries=entries, missing=missing,
            )  # fmt: skip
            member.waiting.extend(encoded(written))
            member.number += len(member.waiting)

    def _done(
        self,
        topic: _Topic,
        member: _Member,
        message: tuple[bytes, int],
        trouble: str | None,
        again: bool,  # noqa: FBT001 - the log calls it
    ) -> None:
        """A message for the topic is written, or is not."""
        member.under_way -= 1
        if trouble is None:
            topic.trouble, topic.wait = "", _WAIT_S[0]
            return
        if again:
            member.waiting.append(message)
        else:
            member.missing += message[1]
        topic.kept = None  # it may have been deleted
        self._failed(topic, member, trouble)

    @staticmethod
    def _failed(topic: _Topic, member: _Member, trouble: str) -> None:
        now = time.monotonic()
        if now >= topic.retry_at:  # several messages may fail at once
            topic.retry_at = now + topic.wait
            topic.wait = min(2 * topic.wait, _WAIT_S[1])
        if not topic.trouble:
            _log.warning(
                "The delivery history of subscription %s cannot be written; it is tried again, and "
                "deliveries go on. Remedy: see that topic %s can be created and written. %s",
                member.subscription.key,
                topic_of(member.subscription.key),
                trouble,
            )
        topic.trouble = trouble
