"""What the users of a gateway may do, in a file: Kafka sees the gateway alone, so the gateway decides."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from kafkadur.gateway.conditions import UNAUTHORIZED, Refused
from kafkadur.gateway.destinations import Destination
from kafkadur.service.line_files import parse_lines, read_lines

#: In the place of a user: every client, also one that has not said its name.
_EVERYBODY: Final = "*"
#: What a pattern must not have: the beginning of an address, and sets of characters.
_NO_PATTERN: Final = re.compile(r"://|[\[\]]")


class Action(StrEnum):
    """An action that a user has a permission for."""

    #: send messages
    PUBLISH = "publish"
    #: receive messages and browse
    CONSUME = "consume"
    #: create, change and delete durable subscriptions and queues
    CREATE = "create"
    #: connect with a client id: the pattern is one of client ids
    CLIENT_ID = "client-id"


class Rule(NamedTuple):
    """One line of permissions."""

    user: str
    actions: frozenset[Action]
    #: of names of topics and queues, or of client ids, with `*` and `?`
    pattern: str


@dataclass(frozen=True)
class Allowed:
    """What one user may do."""

    #: None: the client has not said its name
    user: str | None
    #: None: everything
    rules: Sequence[Rule] | None

    @property
    def allows_all(self) -> bool:
        """Whether there are no rules."""
        return self.rules is None

    def allows(self, action: Action, topic: str) -> bool:
        """Whether the user may do this with a topic, queue or client id of this name."""
        return self.allows_all or any(
            action in rule.actions and fnmatchcase(topic, rule.pattern) for rule in self.rules or ()
        )

    def check(self, action: Action, destination: Destination) -> None:
        """Raise `Refused` unless the user may do this; a temporary destination needs no permission."""
        if not (destination.is_temporary or self.allows(action, destination.name)):
            raise self.refusal(f"to {action} at {destination.name!r}")

    def check_connection(self, client_id: str | None) -> None:
        """Raise `Refused` unless the user may connect with this client id; None: without one."""
        if self.rules is not None and not self.rules:
            raise self.refusal("at all")
        if client_id is not None and not self.allows(Action.CLIENT_ID, client_id):
            raise self.refusal(f"to use the client id {client_id!r}")

    def refusal(self, what: str) -> Refused:
        """Return the refusal of `what`, which completes the sentence that begins `has no permission`."""
        name = "A client without a name" if self.user is None else f"The user {self.user!r}"
        return Refused(UNAUTHORIZED, f"{name} has no permission {what}.")


class Permissions:
    """The rules of all users. Everything that no rule allows is refused."""

    def __init__(self, rules: Sequence[Rule] | None) -> None:
        """None: every user may do everything."""
        self._rules = rules

    def of(self, user: str | None) -> Allowed:
        """Return what a user may do; None: the client has not said its name."""
        if self._rules is None:
            return Allowed(user, None)
        return Allowed(user, [rule for rule in self._rules if rule.user in {_EVERYBODY, user}])


#: No rules: every user may do everything.
EVERYTHING: Final = Permissions(None)


def parse_permissions(lines: Iterable[str], *, owner: str) -> Permissions:
    """Read lines of `USER ACTION[,ACTION...] PATTERN`; `#` begins a comment.

    A name with a blank or `#` is put in quotes.

    Raises `IllegalState` that names the wrong line; `owner` says where the lines are.
    """
    remedy = (
        f"write USER ACTIONS PATTERN; actions are {', '.join(Action)}, with commas between; a pattern is a "
        "name without topic:// or queue://, with * and ?"
    )
    return Permissions(parse_lines(lines, _parsed, things="permissions", owner=owner, remedy=remedy))


def _parsed(line: str) -> Rule | None:
    """Read one line; None for a wrong one."""
    try:
        user, actions, pattern = shlex.split(line, comments=True)
        rule = Rule(user, frozenset(map(Action, actions.split(","))), pattern)
    except ValueError:
        return None
    return None if _NO_PATTERN.search(pattern) else rule


def read_permissions(path: Path) -> Permissions:
    """Read a file of permissions. Raises `IllegalState` for one that cannot be read, or a wrong line."""
    remedy = "name a text file with lines of USER ACTIONS PATTERN"
    lines = read_lines(path, things="permissions", remedy=remedy)
    return parse_permissions(lines, owner=f"file {path}")
