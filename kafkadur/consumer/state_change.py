"""Notices that a change of a member's state was broken off half-way.

A signal handler, such as that of Ctrl-C, may raise an exception in the main thread between any two steps.
Where the main thread reads, or makes an exchange, itself, records may then be left that no lease has: later
ones would show a gap, and the gap would be settled. So each change says when it begins and when it ends.
"""

from __future__ import annotations

from kafkadur_sharing.errors import LeaseLost


class StateChange:
    """A change of the state of a member, while it is under way. Used with the member's lock held."""

    def __init__(self, display: str) -> None:
        """None is under way; `display` is the subscription's name for people."""
        self._display = display
        #: whether a change is under way, or was broken off
        self.changing = False

    def begin(self) -> None:
        """Begin a change; raises `LeaseLost` if an earlier one was broken off."""
        if self.changing:
            raise self.error()
        self.changing = True

    def end(self) -> None:
        """The change is complete."""
        self.changing = False

    def error(self) -> LeaseLost:
        """Return the error with which a member ends whose change was broken off."""
        return LeaseLost(
            "The subscription was interrupted in the middle of a change, and cannot go on.",
            state="an exception, such as that of a signal handler, ended a call of it",
            owner=f"subscription {self._display}",
            remedy="subscribe again: unsettled messages are redelivered; to end a program in order, have the "
            "signal handler call stop()",
        )
