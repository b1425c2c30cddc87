"""Parallel handlers of one consumer with each key in order: which delivery may begin, and which has to wait.

For subscriptions whose coordinator does not separate keys; `kafkadur/consumer/key_queue.py` is the queue of
key-ordered subscriptions, whose coordinator does. No I/O; the clock is passed in. `aio/running.py` starts the
handlers.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

#: Seconds for which a message that overtook a due message is given back, as that one will be received soon.
_ON_ITS_WAY = 0.05
#: Longest time between two receipts of a message that counts as waiting, seconds.
_LONGEST_LOOK = 1.0


class _Ordered(Protocol):
    """The part of a delivery that the queue uses."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def raw_key(self) -> bytes | None: ...
    @property
    def attempt(self) -> int: ...
    @property
    def undecided(self) -> bool: ...
    @property
    def lost(self) -> bool: ...
    @property
    def comes_again(self) -> bool: ...
    def release_later(self, delay: float) -> None: ...


D = TypeVar("D", bound=_Ordered)
#: A key of one partition.
Place = tuple[int, bytes]


class _Line(Generic[D]):
    """The deliveries of one key."""

    __slots__ = ("begun", "due", "expected", "looked_at", "waited", "waiting", "witness")

    def __init__(self) -> None:
        #: whether a handler has one of them
        self.begun = False
        #: received deliveries that wait for that one, by offset
        self.waiting: list[D] = []
        #: offsets that were given back and not received again yet
        self.expected: set[int] = set()
        #: when all of those are due, monotonic seconds
        self.due = float("-inf")
        #: the lowest offset that was received though an earlier one is expected and due; when it was received
        #: last; for how long it has been received repeatedly, seconds
        self.witness: int | None = None
        self.looked_at = 0.0
        self.waited = 0.0

    def give_up_missing(self, offset: int, now: float, patience: float) -> None:
        """Note that `offset` was received before an earlier, expected one; after `patience`, give that up.

        Only the time in which the same message is received repeatedly counts: each time, the expected one
        could have been received. While a breaker is open, for example, no message is received.
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

    One delivery of each key is begun at a time. If the subscription has an order (`ordered`), no message
    overtakes a message of its key that was given back: it is given back as well, uncounted and for as long,
    and they are delivered again by offset. Without an order, a message that was given back may be delivered
    to any consumer, and no message waits for it.
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
        """Begin without lines.

        `back_off` gives the longest wait of the redelivery policy after an attempt, seconds. A message that
        was given back, and is not received within `patience` seconds of receiving after it was due, counts as
        gone (removed by retention, for example): no message waits for it any more. `handovers` gives a number
        that changes when other consumers may have got the expected messages.
        """
        self._ordered = ordered
        self._monotonic = monotonic
        self._back_off = back_off
        self._patience = patience
        self._handovers = handovers
        self._seen_handovers = handovers()
        self._lock = threading.Lock()
        self._lines: dict[Place, _Line[D]] = {}
        #: delays of rolled back records, ms; -1: as the policy says
        self._delays: dict[tuple[int, int], int] = {}
        self._closed = False

    def rolled_back(self, partition: int, offset: int, delay: int) -> None:
        """Note that a record is rolled back, to be delivered after `delay` ms (-1: as the policy says).

        Called before its handler has ended, with the member's lock held: takes no lock.
        """
        self._delays[partition, offset] = delay

    def enter(self, delivery: D) -> bool:
        """Add a received delivery; returns whether it may begin. If not, it waits here or was given back."""
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
        """Remove a delivery that has ended; returns the next one of its key, which begins now."""
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
                # it may have been taken before its lease ended
                if following.undecided and not following.lost:
                    return following
            line.begun = False
            if not line.expected:
                del self._lines[place]
        return None

    def give_back_waiting(self) -> None:
        """Give back the waiting deliveries of all lines, to be delivered again at once."""
        now = self._monotonic()
        with self._lock:
            for line in self._lines.values():
                self._give_back_waiting(line, now)

    def close(self) -> None:
        """Give back all waiting deliveries, and those that are received from now on."""
        self._closed = True
        self.give_back_waiting()

    def _give_back_waiting(self, line: _Line[D], now: float) -> None:
        for delivery in line.waiting:
            self._give_back(line, delivery, now)
        line.waiting.clear()

    def _give_back(self, line: _Line[D], delivery: D, now: float) -> None:
        """Give a delivery back, to be delivered after the earlier ones that were given back."""
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
