"""Hooks for tests: the moments on the way to the live end between which races are possible.

A probe is called in the working thread, which waits for it.
"""

from collections.abc import Callable
from enum import StrEnum


class Stage(StrEnum):
    """A moment between two steps; docs/decisions/0011-to-the-live-end.md describes the steps."""

    #: a reader is about to get its position on a partition
    FOLLOW = "follow"
    #: records were read, the member does not have them yet
    READ = "read"
    #: the end of a partition was read, the member does not have it yet
    END = "end"
    #: an exchange was composed, it is not sent yet
    SEND = "send"
    #: the reply was received, it is not applied yet
    ANSWERED = "answered"


#: A function that is called at each stage.
Probe = Callable[[Stage], None]


def no_probe(_: Stage) -> None:
    """Do nothing."""
