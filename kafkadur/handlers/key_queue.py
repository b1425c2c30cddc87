"""One consumer's handlers in parallel, and each key in order: which delivery may begin, which waits in line.

For subscriptions whose coordinator keeps no keys apart (`keyed.py` is for those that do). No I/O; the clock
is handed in. Who starts handlers is `aio/running.py`.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

#: What overtakes a message that is due already is given back for so long, seconds: that one is on its way.
_ON_ITS_WAY = 0.05
#: Longest time between two looks that counts as waiting, seconds: nothing may have been received in between.
_LONGEST_LOOK = 1.0


class Ordered(Protocol):
    """What is known of a delivery here."""

    @property
    def partition(self) -> int:
        """Partition it lies in."""
        ...

    @property
    def offset(self) -> int:
        """Its offset."""
        ...

    @property
    def raw_key(self) -> bytes | None:
        """Its key."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        ...

    @property
    def settled(self) -> bool:
        """Whether it has its verdict."""
        ...

    @property
    def lost(self) -> bool:
        """Whether its lease went."""
        ...

    @property
    def comes_again(self) -> bool:
        """Whether it was given back."""
        ...

    def release_later(self, delay: float) -> None:
        """Give it back uncounted, to come again after `delay` seconds."""


D = TypeVar("D", bound=Ordered)
#: A key of one partition.
Place = tuple[int, bytes]


class _Line(Generic[D]):
    """Deliveries of one key."""

    __slots__ = ("begun", "due", "expected", "looked_at", "waited", "waiting", "witness")

    def __init__(self) -> None:
        #: a handler has one of them
        self.begun = False
        #: received, behind that one, by offset
        self.waiting: list[D] = []
        #: given back, not received again yet
        self.expected: set[int] = set()
        #: when all of those are due, monotonic seconds
        self.due = float("-inf")
        #: the lowest offset that came though it is behind one that is expected and due; when it came last;
        #: for how long it comes again and again, seconds
        self.witness: int | None = None
        self.looked_at = 0.0
        self.waited = 0.0

    def give_up_missing(self, offset: int, now: float, patience: float) -> None:
        """`offset` came instead of what is expected before it: that is not waited for without end.

        Only the time in which one and the same message is received again and again counts: each time, what
        is before it had its chance. No message is received while a breaker is open, for example.
        """
        if now < self.due:
            return
        if self.witness is None or offset < self.witness:
            self.witness, self.waited = offset, 0.0
        elif offset == self.witness:
            self.waited += min(now - self.looked_at, _LONGEST_LOOK)
        else:
            return
        self.looked_at = now
        if self.waited >= patience:
            self.expected = {other for other in self.expected if other >= offset}
            self.witness = None


class HandlerKeyQueue(Generic[D]):
    """The lines of all keys of one consumer. Any thread.

    Of each key one delivery is begun at a time. Where the subscription has an order (`ordered`), nothing of a
    key overtakes what was given back: it is given back as well, uncounted and for as long, and they come
    again by offset. Elsewhere what was given back may go to any consumer, and no message waits for it.
    """

    def __init__(
        self,
        *,
        ordered: bool,
        monotonic: Callable[[], float],
        back_off: Callable[[int], float],
        patience: float,
        handovers: Callable[[], int] = lambda: 0,
    ) -> None:
        """No line.

        `back_off` gives the longest wait of the redelivery policy after an attempt, seconds. What was given
        back and does not come within `patience` seconds of receiving after it was due is gone (removed by
        retention, say), and no message waits for it any more. `handovers` changes when other consumers may
        have got what was expected.
        """
        self._ordered = ordered
        self._monotonic = monotonic
        self._back_off = back_off
        self._patience = patience
        self._handovers = handovers
        self._seen_handovers = handovers()
        self._lock = threading.Lock()
        self._lines: dict[Place, _Line[D]] = {}
        #: delays of what was rolled back, ms; -1: as the policy says
        self._delays: dict[tuple[int, int], int] = {}
        self._closed = False

    def rolled_back(self, partition: int, offset: int, delay: int) -> None:
        """A record is rolled back, to come again after `delay` ms (-1: as the policy says).

        Called before its handler has ended, with the member's lock held: takes no lock.
        """
        self._delays[partition, offset] = delay

    def enter(self, delivery: D) -> bool:
        """A delivery was received; whether it may begin. If not, it waits here or was given back."""
        key = delivery.raw_key
        if key is None:
            return True
        now = self._monotonic()
        with self._lock:
            self._look_for_handovers()
            line = self._lines.setdefault((delivery.partition, key), _Line())
            if line.expected and delivery.offset > min(line.expected):
                line.give_up_missing(delivery.offset, now, self._patience)
            if self._closed or (line.expected and delivery.offset > min(line.expected)):
                self._give_back(line, delivery, now)
                return False
            line.expected.discard(delivery.offset)
            line.witness = None
            if line.begun:
                insort(line.waiting, delivery, key=lambda item: item.offset)
                return False
            line.begun = True
            return True

    def leave(self, delivery: D) -> D | None:
        """A delivery has ended; the next one of its key, which begins now."""
        key = delivery.raw_key
        delay = self._delays.pop((delivery.partition, delivery.offset), -1)
        if key is None:
            return None
        place = (delivery.partition, key)
        with self._lock:
            line = self._lines[place]
            if self._ordered and delivery.comes_again:
                now = self._monotonic()
                wait = self._back_off(delivery.attempt) if delay < 0 else delay / 1000
                line.expected.add(delivery.offset)
                line.due = max(line.due, now + wait)
                self._give_back_waiting(line, now)
            while line.waiting:
                following = line.waiting.pop(0)
                if not (following.settled or following.lost):  # it was taken before its lease went
                    return following
            line.begun = False
            if not line.expected:
                del self._lines[place]
        return None

    def give_back_waiting(self) -> None:
        """Give back what waits in any line, to come again at once."""
        now = self._monotonic()
        with self._lock:
            for line in self._lines.values():
                self._give_back_waiting(line, now)

    def close(self) -> None:
        """Give back what waits, and what is received from now on."""
        self._closed = True
        self.give_back_waiting()

    def _give_back_waiting(self, line: _Line[D], now: float) -> None:
        for delivery in line.waiting:
            self._give_back(line, delivery, now)
        line.waiting.clear()

    def _give_back(self, line: _Line[D], delivery: D, now: float) -> None:
        """Have it come again after what was given back before it."""
        wait = 0.0
        if line.expected:
            wait = line.due - now if line.due > now else _ON_ITS_WAY
        if self._ordered:
            line.expected.add(delivery.offset)
        delivery.release_later(wait)

    def _look_for_handovers(self) -> None:
        handovers = self._handovers()
        if handovers == self._seen_handovers:
            return
        self._seen_handovers = handovers
        for line in self._lines.values():
            line.expected.clear()
        for place in [place for place, line in self._lines.items() if not line.begun]:
            del self._lines[place]
