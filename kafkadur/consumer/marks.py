"""The marks of a member that are looked at before every delivery.

`Marks` is compiled where `kafkadur/native/_native.pyx` is, and does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkadur.native.choice import compiled


class PureMarks:
    """The marks of one member. Reading one takes no lock."""

    def __init__(self) -> None:
        """Deliveries may be handed out."""
        #: nothing more is dispatched
        self.closing = False
        #: how often leases were lost: deliveries that were taken before may be stale
        self.losses = 0


if TYPE_CHECKING:
    Marks = PureMarks
else:
    Marks = compiled("Marks", PureMarks)
