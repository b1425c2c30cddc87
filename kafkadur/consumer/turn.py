"""Lanes that pass from member to member together, and the turn that a member has on them.

`policy/serial.py` decides when a turn is over, the coordinator (`lane.lua`) which member is next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kafkadur_coordinators.interface import Standing


class _Handed(Protocol):
    """A chunk, as a turn counts it."""

    handed: int


class Turn:
    """Counts the records dispatched since a turn began."""

    def __init__(self) -> None:
        """A turn begins."""
        self._before = 0
        self._run: tuple[_Handed, int] | None = None

    @property
    def handed(self) -> int:
        """Records dispatched in this turn."""
        if self._run is None:
            return self._before
        chunk, first = self._run
        return self._before + max(chunk.handed - first, 0)

    def hand_out(self, records: int) -> None:
        """So many were dispatched at once."""
        self._before += records

    def run(self, chunk: _Handed) -> None:
        """From here on the records of `chunk` are dispatched one by one."""
        self._before, self._run = self.handed, (chunk, chunk.handed)


@dataclass(slots=True, eq=False)
class LaneGroup:
    """Lanes that pass as one: all of a subscription, or of one partition (serial, scope `partition`)."""

    standing: Standing = Standing.STANDBY
    #: nothing of it may be dispatched: it is offered, or asked for. `chunk.one_by_one` reads this without the
    #: member's lock, after it has marked a record; the member sets it before it looks at the marks.
    frozen: bool = False
    #: new messages wait for one that was rolled back; read without the lock, as `frozen`
    withheld: bool = False
    turn: Turn = field(default_factory=Turn)
    #: partitions whose state the holder learned since it has these lanes: an exchange touches a few of many
    seen: set[int] = field(default_factory=set[int])
