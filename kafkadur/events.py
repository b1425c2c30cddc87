"""Events of a subscription, and their delivery to the application in order.

The member decides when an event happens (`consumer/lag.py` and others).
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

    #: the member now holds the lane of a priority subscription
    BECAME_ACTIVE = "became-active"
    #: another member holds the lane, or it is not known any more whether this member does
    BECAME_STANDBY = "became-standby"
    #: The member is live: everything written to the partitions it reads has been granted, and everything
    #: granted to it has been handed out. A new member is not live, so this event comes first.
    CAUGHT_UP = "caught-up"
    #: It is no longer live: more messages wait for it than its buffer holds, or it lost its leases.
    FELL_BEHIND = "fell-behind"
    #: Kafka removed unsettled messages: they are lost; the log names their offsets.
    EXPIRED = "expired"
    #: Kafka lost the end of a partition, because a broker that lacked records became its leader; messages
    #: written there now are delivered. The log names the offsets.
    TRUNCATED = "truncated"
    #: The subscription was paused: nothing is handed out until it is resumed. A member that attaches to a
    #: paused subscription gets this event, too.
    PAUSED = "paused"
    #: It goes on.
    RESUMED = "resumed"
    #: the handler failed so often that nothing is handed out for a while
    BREAKER_OPENED = "breaker-opened"
    #: after that time one message is tried
    BREAKER_HALF_OPENED = "breaker-half-opened"
    #: that message succeeded, and messages are handed out again
    BREAKER_CLOSED = "breaker-closed"


class Teller:
    """A queue of events to the application, which gets each once, in the order in which they happened.

    `note` may be called while locks are held, but `tell` must not: it calls the application.
    """

    def __init__(self, on_event: Callable[[Event], None] | None) -> None:
        """`on_event` is the application's function; None: it asked for no events."""
        self._on_event = on_event
        self._events: deque[Event] = deque()
        self._telling = threading.Lock()

    @property
    def waits(self) -> bool:
        """Whether events are in the queue."""
        return bool(self._events)

    def note(self, event: Event) -> None:
        """Queue an event. Any thread."""
        if self._on_event is not None:
            self._events.append(event)

    def tell(self) -> None:
        """Call the application with each queued event, unless another thread does: it empties the queue."""
        while self._events and self._telling.acquire(blocking=False):
            try:
                while self._events:
                    event = self._events.popleft()
                    try:
                        if self._on_event is not None:
                            self._on_event(event)
                    except Exception:  # noqa: BLE001 - the subscription must go on despite its application
                        _log.exception("on_event failed for %s", event)
            finally:
                self._telling.release()
