"""What a handler can say besides returning (acknowledge) and raising (roll back)."""

from __future__ import annotations


class Reject(Exception):
    """Raised by a handler: give the message up and write it to the dead-letter topic."""

    def __init__(self, reason: str = "") -> None:
        """`reason` is written with the dead letter, at most 1,000 characters of it."""
        super().__init__(reason)
        self.reason = reason
