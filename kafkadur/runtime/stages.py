"""The moments on the way to the live end at which something else may happen: for tests of such races.

A probe is called in the thread that is at work, which waits for it. Without one nothing is called.
"""

from collections.abc import Callable
from enum import StrEnum


class Stage(StrEnum):
    """A moment between two steps; docs/decisions/0011-to-the-live-end.md says which steps."""

    #: a reader is about to be told where to begin on a partition
    FOLLOW = "follow"
    #: records were read, the member does not have them yet
    READ = "read"
    #: the end of a partition was read, the member does not know yet
    END = "end"
    #: an exchange was composed and is not sent yet
    SEND = "send"
    #: it was answered, the answer is not applied yet
    ANSWERED = "answered"


#: Who is called at each stage.
Probe = Callable[[Stage], None]


def no_probe(_: Stage) -> None:
    """Do nothing."""
