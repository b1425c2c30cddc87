"""Members and producers in a forked child process: they stay the parent's, and refuse every call.

The child has copies of the parent's sockets. Redis would take an exchange of the child for one of the parent,
and answer the parent's next one as a repeat.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from kafkadur_sharing.errors import ForkedConnection


class _OfOneProcess(Protocol):
    def note_fork(self) -> None:
        """This process is a forked child. Must not raise, nor take a lock, which may be held for ever."""


#: The members and producers of this process.
_known: WeakSet[_OfOneProcess] = WeakSet()


def refuse_forks_of(thing: _OfOneProcess) -> None:
    """Call `note_fork` of the copy of a member or producer in each child that is forked from now on."""
    _known.add(thing)


def forked(owner: str | None = None) -> ForkedConnection:
    """Return the error for a call in a forked child."""
    return ForkedConnection(
        state="this process is a fork of the one that connected",
        owner=owner,
        remedy="connect anew in the child process",
    )


def _note_fork() -> None:
    for thing in list(_known):
        thing.note_fork()


# The interpreter reports forks: comparing process ids for every verdict or message would cost a system call.
os.register_at_fork(after_in_child=_note_fork)
