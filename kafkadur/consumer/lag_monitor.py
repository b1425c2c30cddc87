"""Whether a member is live: it has caught up with the end of the log. A rule over numbers, no I/O.

What waits for a member is counted in `lag.py`, the end of the log is read in `tail_fetcher.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafkadur.events import Event


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """What separates a member from the live end."""

    #: records and offsets known to wait: read and not handed out, or written and not read
    lag: int
    #: whether nothing at all waits, the ends of all partitions it reads being known
    at_end: bool


class LagMonitor:
    """The state of one member: it begins behind, catches up, and may fall behind again.

    It becomes live when nothing waits, and stays live until more waits than a whole buffer: what lies
    between is the ordinary way of a message and changes nothing, so the state does not flap.
    """

    def __init__(self, *, buffer: int) -> None:
        """`buffer`: records that a reader may hold back before it pauses."""
        self._buffer = buffer
        self.live = False

    def judge(self, behind: Behind) -> Event | None:
        """Look at what separates the member from the end; what happened, if anything did."""
        if self.live and behind.lag >= self._buffer:
            return self.leave()
        if not self.live and behind.at_end:
            self.live = True
            return Event.CAUGHT_UP
        return None

    def leave(self) -> Event | None:
        """The member has to catch up anew."""
        was, self.live = self.live, False
        return Event.FELL_BEHIND if was else None
