"""Tokens of the service: each has a name and a role, and is kept in a file as a digest.

The token of a proxy has no role: the proxy authenticates people, and names each of them with their groups.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kafkadur.service.line_files import append_line, parse_lines, read_lines
from kafkadur_sharing.errors import InvalidName
from kafkadur_sharing.names import validate_name
from kafkadur_sharing.readable_text import plain

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
#: The word that stands in place of a role in the line of a proxy.
PROXY: Final = "proxy"
#: Groups that have a role: `kafkadur-viewer` and so on.
_GROUPS: Final = {f"kafkadur-{role.word}": role for role in Role}
#: Characters of the longest name of a person.
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated person or program."""

    name: str
    role: Role


#: The caller of a service that has no tokens and listens on the loopback address alone.
LOCAL: Final = Caller("local", Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that authenticates people, such as one for OpenID Connect."""

    name: str

    def caller(self, user: str, groups: str) -> Caller | None:
        """Return a person whom the proxy names, with the highest role of their groups; None: they have none.

        `groups` has commas between the names. The name of the caller begins with that of the proxy, so that
        no holder of a token has it.
        """
        names = {name.strip() for name in groups.split(",")}
        roles = [_GROUPS[name] for name in names & _GROUPS.keys()]
        shown = plain(user.strip())[:_LONGEST]
        return Caller(f"{self.name}:{shown}", max(roles)) if roles and shown else None


class Tokens:
    """The callers and proxies by the digests of their tokens."""

    def __init__(self, holders: Mapping[str, Caller | Proxy]) -> None:
        """Take the holders by the SHA-256 of their tokens, in hexadecimal digits."""
        self._holders = dict(holders)

    def caller(self, token: str) -> Caller | None:
        """Return the caller that a token belongs to; None for an unknown token, and that of a proxy."""
        holder = self._holders.get(_digest(token))
        return holder if isinstance(holder, Caller) else None

    def proxy(self, token: str) -> Proxy | None:
        """Return the proxy that a token belongs to; None for any other token."""
        holder = self._holders.get(_digest(token))
        return holder if isinstance(holder, Proxy) else None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def parse_tokens(lines: Iterable[str], *, owner: str) -> Tokens:
    """Read lines of `NAME ROLE sha256:DIGEST`; `#` begins a comment line.

    Raises `IllegalState` that names the wrong line; `owner` says where the lines are.
    """
    remedy = (
        f"write NAME ROLE {_DIGEST}DIGEST, with a role of {', '.join(ROLES)}, or {PROXY}; "
        "`kafkadur token` writes such lines"
    )
    return Tokens(dict(parse_lines(lines, _parsed, things="tokens", owner=owner, remedy=remedy)))


def _parsed(line: str) -> tuple[str, Caller | Proxy] | None:
    """Read one line; None for a wrong one."""
    try:
        name, role, digest = line.split()
        raw = bytes.fromhex(digest.removeprefix(_DIGEST))
        validate_name("name of a caller", name)
        holder = Proxy(name) if role == PROXY else Caller(name, Role[role.upper()])
    except (ValueError, KeyError, InvalidName):
        return None
    whole = digest.startswith(_DIGEST) and len(raw) == hashlib.sha256().digest_size
    return (raw.hex(), holder) if whole else None


def read_tokens(path: Path) -> Tokens:
    """Read a file of tokens. Raises `IllegalState` for one that cannot be read, or a wrong line."""
    lines = read_lines(path, things="tokens", remedy="make the file with `kafkadur token`")
    return parse_tokens(lines, owner=f"file {path}")


def add_token(path: Path, name: str, role: Role | None) -> str:
    """Make a token and append its line to a file, which only its owner can read; returns the token.

    `role` None: it is the token of a proxy.
    Raises `InvalidName`, and `IllegalState` for a file that cannot be written or has a wrong line.
    """
    validate_name("name of a caller", name)
    if path.exists():
        read_tokens(path)
    token = secrets.token_urlsafe(_CHANCE)
    word = PROXY if role is None else role.word
    append_line(path, f"{name} {word} {_DIGEST}{_digest(token)}", thing="token")
    return token


def in_url(host: str) -> str:
    """Return a host as a URL has it: an address of IPv6 is in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine by its own name."""
    try:
        return urlsplit(f"//{host}").hostname in _LOOPBACK
    except ValueError:
        return False
