"""Tokens of the service: each has a name and a role, and is kept in a file as a digest."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kafkadur_sharing.errors import IllegalState, InvalidName
from kafkadur_sharing.names import validate_name

#: Names under which a machine calls itself.
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_DIGEST: Final = "sha256:"
#: Bytes of chance in a token: it cannot be found by trying, so that a plain digest is enough.
_CHANCE: Final = 32


class Role(IntEnum):
    """A role: a set of permissions. Each role includes the roles before it."""

    #: sees subscriptions, but no values and keys of messages
    VIEWER = 1
    #: sees messages, pauses, resumes, drains, takes snapshots, redrives dead letters
    OPERATOR = 2
    #: does everything else: what skips or repeats messages, or deletes
    ADMIN = 3

    @property
    def word(self) -> str:
        """Its name in files and answers."""
        return self.name.lower()


ROLES: Final = tuple(role.word for role in Role)


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated person or program."""

    name: str
    role: Role


#: The caller of a service that has no tokens and listens on the loopback address alone.
LOCAL: Final = Caller("local", Role.ADMIN)


class Tokens:
    """The callers by the digests of their tokens."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        """Take the callers by the SHA-256 of their tokens, in hexadecimal digits."""
        self._callers = dict(callers)

    def caller(self, token: str) -> Caller | None:
        """Return the caller that a token belongs to; None for an unknown token."""
        return self._callers.get(_digest(token))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def parse_tokens(lines: Iterable[str], *, owner: str) -> Tokens:
    """Read lines of `NAME ROLE sha256:DIGEST`; `#` begins a comment line.

    Raises `IllegalState` that names the wrong line; `owner` says where the lines are.
    """
    found: dict[str, Caller] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        parsed = _parsed(text)
        if parsed is None:
            raise IllegalState(
                f"Line {number} of the tokens is wrong.",
                owner=owner,
                remedy=f"write NAME ROLE {_DIGEST}DIGEST, with a role of {', '.join(ROLES)}; "
                "`kafkadur token` writes such lines",
            )
        digest, caller = parsed
        found[digest] = caller
    return Tokens(found)


def _parsed(line: str) -> tuple[str, Caller] | None:
    """Read one line; None for a wrong one."""
    try:
        name, role, digest = line.split()
        raw = bytes.fromhex(digest.removeprefix(_DIGEST))
        caller = Caller(validate_name("name of a caller", name), Role[role.upper()])
    except (ValueError, KeyError, InvalidName):
        return None
    whole = digest.startswith(_DIGEST) and len(raw) == hashlib.sha256().digest_size
    return (raw.hex(), caller) if whole else None


def read_tokens(path: Path) -> Tokens:
    """Read a file of tokens. Raises `IllegalState` for one that cannot be read, or a wrong line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise IllegalState(
            "The tokens cannot be read.",
            state=str(error.strerror if isinstance(error, OSError) else "it is not a text file"),
            owner=f"file {path}",
            remedy="make the file with `kafkadur token`",
        ) from error
    return parse_tokens(lines, owner=f"file {path}")


def add_token(path: Path, name: str, role: Role) -> str:
    """Make a token and append its line to a file, which only its owner can read; returns the token.

    Raises `InvalidName`, and `IllegalState` for a file that cannot be written or has a wrong line.
    """
    validate_name("name of a caller", name)
    before = ""
    if path.exists():
        read_tokens(path)
        before = path.read_text(encoding="utf-8")
    token = secrets.token_urlsafe(_CHANCE)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            if before and not before.endswith("\n"):  # somebody has edited it
                file.write("\n")
            file.write(f"{name} {role.word} {_DIGEST}{_digest(token)}\n")
    except OSError as error:
        raise IllegalState(
            "The token cannot be written.",
            state=str(error.strerror),
            owner=f"file {path}",
            remedy="name a file in a folder that you can write to",
        ) from error
    return token


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine by its own name."""
    try:
        return urlsplit(f"//{host}").hostname in _LOOPBACK
    except ValueError:
        return False
