"""When a member makes its next exchange, and which partitions it touches: the one list of reasons.

A reason is either a request (`request`, `request_exchange`) or a time. The composer (`composer.py`) takes the
reasons when it makes an exchange; those that the exchange has no room for stay here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: An acknowledgement waits for its exchange at most so long, seconds.
CONFIRM_WITHIN = 0.05


class Schedule:
    """The reasons of one member.

    `request_exchange` and `ask_presence` take no lock; the member holds its lock for all others.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` asks the coordinator thread to look at this member soon. It takes no lock."""
        #: partitions, or lanes of keys, that the subscription has, as far as this member knows
        self.partitions = 0
        #: has the coordinator thread look at this member; any thread, no lock
        self.wake = wake
        self.clear()

    def clear(self) -> None:
        """No exchange was made: the next one is due at once, and touches every partition."""
        self._requested = True
        #: the same, set by any thread without the lock
        self._exchange_requested = False
        #: the next exchange asks for the presence of all
        self._ask_presence = False
        #: partitions to be touched by the next exchange
        self.touched: set[int] = set(range(self.partitions))
        #: partitions with leases of members that are gone
        self.orphaned: set[int] = set()
        #: partition -> when the next message that was rolled back is due (monotonic seconds)
        self.due: dict[int, float] = {}
        #: partitions with messages that are due, for which no member had room: the next exchange asks again
        self.unserved: set[int] = set()
        #: when to look again: at a silent member, the end of a session, the end of the grace period
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

    def learn_partitions(self, count: int) -> None:
        """The subscription has so many partitions by now: the next exchanges touch the new ones."""
        if count > self.partitions:
            self.touch(range(self.partitions, count))
            self.partitions = count
            self.request()

    def touch_all(self) -> None:
        """The next exchanges touch every partition."""
        self.touch(range(self.partitions))

    def request_exchange(self) -> None:
        """Have an exchange made soon. Any thread, no lock."""
        self._exchange_requested = True
        self.wake()

    def ask_presence(self) -> None:
        """The next exchange asks which members are heard."""
        self._ask_presence = True

    def take_ask_presence(self) -> bool:
        """Whether the exchange that is being made asks which members are heard."""
        ask, self._ask_presence = self._ask_presence, False
        return ask

    # -- times

    def next_due(self, now: float, *others: float | None, waits: bool, in_flight: bool) -> float:
        """When the next exchange is to be made (monotonic seconds; in the past: now).

        `others`: times at which other parts of the member need one. `waits`: whether an exchange is under
        way, or a caller waits for one. `in_flight`: whether records are, whose verdicts have to be collected.
        """
        if self._requested or self._exchange_requested or waits:
            return now
        if in_flight and self._look_at is None:
            self._look_at = now + CONFIRM_WITHIN
        look_at = self._look_at if in_flight else None
        times = (self.renew_at, self.wake_at, look_at, *others, *self.due.values())
        return min(at for at in times if at is not None)

    @property
    def will_look(self) -> bool:
        """Whether it is known when verdicts are collected next."""
        return self._look_at is not None

    def looked(self) -> None:
        """An exchange is about to be made: it collects verdicts."""
        self._look_at = None

    def is_quiet(self, now: float) -> bool:
        """Whether nothing here asks for an exchange."""
        return (
            not (self._requested or self._exchange_requested)
            and now < self.renew_at
            and (self.wake_at is None or now < self.wake_at)
            and all(now < at for at in self.due.values())
        )

    def only_renews(self, by: float) -> bool:
        """Whether nothing here asks for an exchange until then but the session that is to be renewed."""
        said = self._requested or self._exchange_requested or self._ask_presence
        return (
            not (said or self.touched or self.orphaned or self.unserved)
            and (self.wake_at is None or self.wake_at > by)
            and all(at > by for at in self.due.values())
        )

    def renewed(self, now: float, session: float) -> None:
        """The session was renewed at `now` (monotonic seconds); it lasts `session` seconds."""
        self.renew_at = now + session / 2

    def begin(self) -> None:
        """An exchange is being made: requests from now on are for the next one."""
        self._requested = self._exchange_requested = False

    def takes_wake(self, now: float) -> bool:
        """Whether `wake_at` has come; it is reset then."""
        due = self.wake_at is not None and now >= self.wake_at
        if due:
            self.wake_at = None
        return due

    def due_partitions(self, now: float) -> set[int]:
        """Partitions with messages that are due."""
        return {partition for partition, at in self.due.items() if now >= at}

    def carry(self, chosen: Iterable[int], left: Iterable[int]) -> None:
        """An exchange touches the partitions `chosen`; it has no room for those `left`."""
        self.touched = set(left)
        self.orphaned.difference_update(chosen)
        # messages that no member had room for are asked for together with others, not at once
        self.request(when=bool(self.touched - self.unserved))
