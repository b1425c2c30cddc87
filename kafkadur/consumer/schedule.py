"""When a member makes its next exchange, and which partitions that is to touch: the one list of reasons.

A reason is either a wish (`request`, `request_exchange`) or a time. The composer (`composer.py`) takes the
reasons when it makes an exchange; what it cannot carry stays here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

#: An acknowledgement waits for its exchange at most so long, seconds.
CONFIRM_WITHIN = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """What other parts of a member wait for."""

    #: a confirmation, or the answer to an exchange
    answer: bool
    #: when a record of a key becomes due, and when a record is held too long (monotonic seconds)
    key_due: float | None
    hold_over: float | None
    #: whether records are in flight: their verdicts are looked for
    in_flight: bool


class Schedule:
    """The reasons of one member. All but `request_exchange` are called with the member's lock held."""

    def __init__(self, partitions: int, wake: Callable[[], None]) -> None:
        """`wake` asks the coordinator thread to look at this member soon. It takes no lock."""
        self._partitions = partitions
        self._wake = wake
        self.clear()

    def clear(self) -> None:
        """Nothing was said; everything is to be."""
        self._requested = True
        #: the same, said by any thread without the lock
        self._exchange_requested = False
        #: the next exchange asks for the presence of all
        self._ask_presence = False
        #: partitions with news
        self.touched: set[int] = set(range(self._partitions))
        #: partitions with leases of members that are gone
        self.orphaned: set[int] = set()
        #: partition -> when the next message that was rolled back is due (monotonic seconds)
        self.due: dict[int, float] = {}
        #: partitions with messages that are due, for which no member had room: asked for again in the next
        #: exchange
        self.unserved: set[int] = set()
        #: when something is to be looked at again: a silent member, the end of a session, the grace period
        self.wake_at: float | None = None
        #: when the session is to be renewed
        self.renew_at = float("-inf")
        self._look_at: float | None = None

    # -- reasons

    def request(self, *, when: bool = True) -> None:
        """Ask for an exchange now, if `when`."""
        self._requested = self._requested or when

    def touch(self, partitions: Iterable[int]) -> None:
        """The next exchange touches these partitions."""
        self.touched.update(partitions)

    def touch_all(self) -> None:
        """The next exchange touches every partition (at most 16 at a time)."""
        self.touched.update(range(self._partitions))

    def request_exchange(self) -> None:
        """Have an exchange made soon. Any thread, no lock."""
        self._exchange_requested = True
        self._wake()

    def wake(self) -> None:
        """Have the coordinator thread look at this member. Any thread, no lock."""
        self._wake()

    def ask_presence(self) -> None:
        """The next exchange asks which members are heard."""
        self._ask_presence = True

    def take_ask_presence(self) -> bool:
        """Whether the exchange that is being made asks which members are heard."""
        ask, self._ask_presence = self._ask_presence, False
        return ask

    # -- times

    def next_due(self, now: float, waits: Waits) -> float:
        """When the next exchange is to be made (monotonic seconds; in the past: now)."""
        if self._requested or self._exchange_requested or waits.answer:
            return now
        at = self.renew_at
        if self.wake_at is not None:
            at = min(at, self.wake_at)
        if self.due:
            at = min(at, *self.due.values())
        if waits.key_due is not None:
            at = min(at, waits.key_due)
        if waits.hold_over is not None:
            at = min(at, waits.hold_over)
        if waits.in_flight:
            if self._look_at is None:
                self._look_at = now + CONFIRM_WITHIN
            at = min(at, self._look_at)
        return at

    def looked(self) -> None:
        """An exchange is about to be made: verdicts are looked for now."""
        self._look_at = None

    def is_quiet(self, now: float) -> bool:
        """Whether nothing here asks for an exchange."""
        return (
            not (self._requested or self._exchange_requested)
            and now < self.renew_at
            and (self.wake_at is None or now < self.wake_at)
            and all(now < at for at in self.due.values())
        )

    def begin(self) -> None:
        """An exchange is being made: what is asked for from now on is for the next one."""
        self._requested = self._exchange_requested = False

    def takes_wake(self, now: float) -> bool:
        """Whether the time to look again has come; it is forgotten then."""
        due = self.wake_at is not None and now >= self.wake_at
        if due:
            self.wake_at = None
        return due

    def due_partitions(self, now: float) -> set[int]:
        """Partitions with messages that are due."""
        return {partition for partition, at in self.due.items() if now >= at}

    def carry(self, chosen: Iterable[int], left: Iterable[int]) -> None:
        """An exchange touches the partitions `chosen`, and not those that are `left`."""
        self.touched = set(left)
        self.orphaned.difference_update(chosen)
        # what no member had room for is asked for again with the others, not at once
        self.request(when=bool(self.touched - self.unserved))
