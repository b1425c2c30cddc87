"""Lanes that pass from member to member together, and the turn that a member has on them.

`policy/serial.py` decides when a turn is over, the coordinator (`lane.lua`) which member is next.
"""

from __future__ import annotations

from typing import Protocol

from kafkadur_coordinators.interface import Standing


class _Handed(Protocol):
    """A chunk, as a turn counts it."""

    handed: int


class Turn:
    """Counts what was handed out since a turn began."""

    def __init__(self) -> None:
        """A turn begins."""
        self._before = 0
        self._run: tuple[_Handed, int] | None = None

    @property
    def handed(self) -> int:
        """Records handed out in this turn."""
        if self._run is None:
            return self._before
        chunk, first = self._run
        return self._before + max(chunk.handed - first, 0)

    def hand_out(self, records: int) -> None:
        """So many were handed out at once."""
        self._before += records

    def run(self, chunk: _Handed) -> None:
        """From here on the records of `chunk` are handed out one by one."""
        self._before, self._run = self.handed, (chunk, chunk.handed)


class LaneGroup:
    """Lanes that pass as one: all of a subscription, or of one partition (serial, scope `partition`)."""

    __slots__ = ("frozen", "seen", "standing", "turn", "withheld")

    def __init__(self) -> None:
        """Another member holds them."""
        self.standing = Standing.STANDBY
        #: nothing of it may be handed out: it is offered, or asked for. Read without the member's lock by
        #: `chunk.one_by_one`, which marks a record before it looks; the member sets this before it
        #: looks at the marks.
        self.frozen = False
        #: new messages wait for one that was rolled back; read without the lock, as `frozen`
        self.withheld = False
        self.turn = Turn()
        #: partitions of which the holder was told since it has these lanes: an exchange touches a few of many
        self.seen: set[int] = set()
