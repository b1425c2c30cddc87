"""The readers of a member of which the topics are in memory."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kafkadur.fetch.buffer import NOWHERE, Mark
from kafkadur.fetch.kafka_thread import AT_ONCE, WAIT, Receiver
from kafkadur.testing.log import Log
from kafkadur_sharing.errors import InternalError

_log = logging.getLogger("kafkadur.readers")


@dataclass
class _Followed:
    """A partition that is read to its end, and beyond as it grows."""

    #: of this start of following
    number: int
    position: int
    #: whether the member knows that there is nothing more at this position
    told_end: bool = False


@dataclass(frozen=True)
class _Range:
    """Offsets that a lease needs."""

    partition: int
    position: int
    end: int
    token: int


class MemoryReaders:
    """Reads a topic of a `Log` for one member, in a thread."""

    def __init__(self, receiver: Receiver, log: Log, topic: str) -> None:
        """`receiver` gets the records of `topic`."""
        self._receiver = receiver
        self._log = log
        self._topic = topic
        self._commands: deque[Callable[[], None]] = deque()
        self._followed: dict[int, _Followed] = {}
        self._ranges: list[_Range] = []
        #: whether the member has records enough
        self._held_back = False
        self._closing = False
        self._thread = threading.Thread(target=self._main, name=f"kafkadur-memory-{topic}", daemon=True)

    #: no client of Kafka reads
    compiled = False

    # -- calls of the member

    def start(self) -> None:
        """Begin to read; calls made before are obeyed then."""
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end."""
        with self._log.changed:
            self._closing = True
            self._log.changed.notify_all()

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the end of the thread; returns whether it ended."""
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def read_inline(self, timeout: float, is_over: Callable[[], bool]) -> bool:  # noqa: ARG002 - see below
        """Return False: the thread reads, and wakes the caller."""
        return False

    def interrupt(self) -> None:
        """Do nothing: no thread waits in `read_inline`."""

    def follow(self, partition: int, offset: int, number: int, mark: Mark = NOWHERE) -> None:  # noqa: ARG002 - a log in memory loses nothing
        """Read a partition from `offset` on."""
        self._put(partial(self._followed.__setitem__, partition, _Followed(number, offset)))

    def compare(self, partition: int, mark: Mark) -> None:
        """Do nothing: a log in memory loses nothing."""

    def unfollow(self, partition: int) -> None:
        """Stop reading a partition."""
        self._put(lambda: self._followed.pop(partition, None))

    def read_range(self, partition: int, start: int, end: int, token: int) -> None:
        """Read [start, end) for one lease."""
        self._put(partial(self._ranges.append, _Range(partition, start, end, token)))

    def find_end(self, partition: int, incarnation: int) -> None:
        """Say where a partition ends."""
        self._put(
            lambda: self._receiver.found_end(partition, self._log.end(self._topic, partition), incarnation)
        )

    def note_room(self) -> None:
        """The member may have room for more records: read on if it had none."""
        if self._held_back:
            with self._log.changed:
                self._log.changed.notify_all()

    def _put(self, command: Callable[[], object]) -> None:
        with self._log.changed:
            self._commands.append(lambda: (command(), None)[1])
            self._log.changed.notify_all()

    # -- the thread: the member is called without the lock of the log, because it calls with its own lock held

    def _main(self) -> None:
        try:
            while self._wait():
                while self._commands:
                    self._commands.popleft()()
                for partition, followed in list(self._followed.items()):
                    self._read(partition, followed)
                self._ranges = [left for each in self._ranges if (left := self._read_range(each))]
        except Exception as error:  # noqa: BLE001 - a thread must not end without notice
            _log.error("reading %s met a defect", self._topic, exc_info=error)
            self._receiver.fail(InternalError.by(error, f"the reader of topic {self._topic}"))

    def _wait(self) -> bool:
        """Wait until there is something to do; False: the thread is to end."""
        with self._log.changed:
            while not (self._closing or self._commands or self._has_news()):
                self._log.changed.wait(WAIT if self._is_held_back() else None)
            return not self._closing

    def _is_held_back(self) -> bool:
        self._held_back = True  # before the look: room that there is from now on ends the waiting
        self._held_back = self._receiver.has_enough
        return self._held_back

    def _has_news(self) -> bool:
        places = [(each.partition, each.position) for each in self._ranges]
        if not self._is_held_back():
            if any(not followed.told_end for followed in self._followed.values()):
                return True
            places += [(partition, followed.position) for partition, followed in self._followed.items()]
        return any(self._log.end(self._topic, partition) > position for partition, position in places)

    def _read(self, partition: int, followed: _Followed) -> None:
        if self._is_held_back():
            return
        receiver, end = self._receiver, self._log.end(self._topic, partition)
        messages = self._log.read(self._topic, partition, followed.position, followed.position + AT_ONCE)
        receiver.end_at(partition, end, followed.number)
        if messages:
            followed.position += len(messages)
            receiver.add_records(partition, messages, followed.number)
        followed.told_end = followed.position >= end
        if followed.told_end:
            receiver.reach(partition, followed.position, followed.number)

    def _read_range(self, wanted: _Range) -> _Range | None:
        """Read of a range what is there; returns what is left of it."""
        messages = self._log.read(self._topic, wanted.partition, wanted.position, wanted.end)
        if not messages:
            return wanted
        reached = wanted.position + len(messages)
        more = self._receiver.add_range_records(wanted.token, messages, reached)
        return _Range(wanted.partition, reached, wanted.end, wanted.token) if more else None
