"""What the users of a gateway may do, in a file: Kafka sees the gateway alone, so the gateway decides."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from kafkadur.gateway.conditions import UNAUTHORIZED, Refused
from kafkadur.gateway.destinations import Destination
from kafkadur_sharing.errors import IllegalState

#: In the place of a user: every client, also one that has not said its name.
_EVERYBODY: Final = "*"


class Action(StrEnum):
    """An action that a user has a permission for."""

    #: send messages
    PUBLISH = "publish"
    #: receive messages and browse
    CONSUME = "consume"
    #: create, change and delete durable subscriptions and queues
    CREATE = "create"


class Rule(NamedTuple):
    """One line of permissions."""

    user: str
    actions: frozenset[Action]
    #: of names of topics and queues, with `*` and `?`
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
        """Whether the user may do this with a topic or queue."""
        return self.allows_all or any(
            action in rule.actions and fnmatchcase(topic, rule.pattern) for rule in self.rules or ()
        )

    def check(self, action: Action, destination: Destination) -> None:
        """Raise `Refused` unless the user may do this; a temporary destination needs no permission."""
        if not destination.is_temporary:
            self.check_topic(action, destination.name)

    def check_topic(self, action: Action, topic: str) -> None:
        """Raise `Refused` unless the user may do this with a topic or queue."""
        if not self.allows(action, topic):
            name = "A client without a name" if self.user is None else f"The user {self.user!r}"
            raise Refused(UNAUTHORIZED, f"{name} has no permission to {action} at {topic!r}.")


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
    """Read lines of `USER ACTION[,ACTION...] PATTERN`; `#` begins a comment, quotes surround a blank.

    Raises `IllegalState` that names the wrong line; `owner` says where the lines are.
    """
    found: list[Rule] = []
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                user, actions, pattern = words
                found.append(Rule(user, frozenset(map(Action, actions.split(","))), pattern))
        except ValueError:
            raise IllegalState(
                f"Line {number} of the permissions is wrong.",
                owner=owner,
                remedy=f"write USER ACTIONS PATTERN; actions are {', '.join(Action)}, with commas between",
            ) from None
    return Permissions(found)


def read_permissions(path: Path) -> Permissions:
    """Read a file of permissions. Raises `IllegalState` for one that cannot be read, or a wrong line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise IllegalState(
            "The permissions cannot be read.",
            state=str(error.strerror if isinstance(error, OSError) else "it is not a text file"),
            owner=f"file {path}",
            remedy="name a text file with lines of USER ACTIONS PATTERN",
        ) from error
    return parse_permissions(lines, owner=f"file {path}")
