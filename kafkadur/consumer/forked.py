"""Members in a forked child process: they stay the parent's, and refuse every verdict.

The child has copies of the parent's sockets. Redis would take an exchange of the child for one of the parent,
and answer the parent's next one as a repeat.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from kafkadur_sharing.errors import ForkedConnection


class _Attached(Protocol):
    def note_fork(self) -> None: ...


#: The members of this process.
_members: WeakSet[_Attached] = WeakSet()


def refuse_forks_of(member: _Attached) -> None:
    """Have the copies of a member refuse everything in child processes that are forked from now on."""
    _members.add(member)


def forked(owner: str | None = None) -> ForkedConnection:
    """Return the error for a call in a forked child."""
    return ForkedConnection(
        state="this process is a fork of the one that connected",
        owner=owner,
        remedy="connect anew in the child process",
    )


def _note_fork() -> None:
    for member in list(_members):
        member.note_fork()


# The interpreter reports forks: comparing the process id for every verdict would cost a system call.
os.register_at_fork(after_in_child=_note_fork)
