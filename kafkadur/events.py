"""What a subscription tells an application about itself, beside its messages, and how it is told in order.

When something happens is decided by the machine of the member (`consumer/lag.py`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from enum import StrEnum

_log = logging.getLogger("kafkadur.events")


class Event(StrEnum):
    """Something that happened to a member."""

    #: it holds the lane of a priority subscription now
    BECAME_ACTIVE = "became-active"
    #: another member holds it, or it is not known any more whether this one does
    BECAME_STANDBY = "became-standby"
    #: It is live: everything that was written to the partitions it reads has been granted, and everything
    #: granted to it has been handed out. A member begins without being live, so this event comes first.
    CAUGHT_UP = "caught-up"
    #: It is live no more: what waits for it is more than its buffer holds, or it lost its leases.
    FELL_BEHIND = "fell-behind"
    #: Kafka removed messages that were not settled: they are lost; the log says which.
    EXPIRED = "expired"
    #: Kafka lost the end of a partition, because a broker that had not all became its leader; what is written
    #: there now is delivered. The log says which offsets.
    TRUNCATED = "truncated"
    #: its handler failed so often that nothing is handed out for a while
    BREAKER_OPENED = "breaker-opened"
    #: after that while one message is tried
    BREAKER_HALF_OPENED = "breaker-half-opened"
    #: that one succeeded, and messages come again
    BREAKER_CLOSED = "breaker-closed"


class Teller:
    """Events on their way to the application: each is told once, in the order in which they happened.

    `note` may be called while locks are held, `tell` must not be: the application is called from it.
    """

    def __init__(self) -> None:
        """No listener."""
        #: the application's function
        self.on_event: Callable[[Event], None] | None = None
        self._events: deque[Event] = deque()
        self._telling = threading.Lock()

    @property
    def waits(self) -> bool:
        """Whether something is to be told."""
        return bool(self._events)

    def note(self, event: Event) -> None:
        """Something happened. Any thread."""
        if self.on_event is not None:
            self._events.append(event)

    def tell(self) -> None:
        """Tell what is to be told, unless another thread does: that one takes all of it."""
        while self._events and self._telling.acquire(blocking=False):
            try:
                while self._events:
                    self._call(self._events.popleft())
            finally:
                self._telling.release()

    def _call(self, event: Event) -> None:
        if self.on_event is None:
            return
        try:
            self.on_event(event)
        except Exception:  # noqa: BLE001 - the subscription must go on, whatever its application does
            _log.exception("on_event failed for %s", event)
