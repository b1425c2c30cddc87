"""The users of a gateway and their passwords, in a file: a password is kept as a salted digest."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kafkadur.service.line_files import append_line, parse_lines, read_lines
from kafkadur_sharing.errors import IllegalState, InvalidName
from kafkadur_sharing.names import validate_name

_SCHEME: Final = "scrypt"
#: Cost, block size and parallelism of scrypt: about 10 ms and 4 MiB for each client that connects.
_COST, _BLOCK, _PARALLEL = 2**12, 8, 1
_SALT_BYTES, _DIGEST_BYTES = 16, 32


class Users:
    """The digests of passwords by the names of users."""

    def __init__(self, digests: Mapping[str, tuple[bytes, bytes]]) -> None:
        """`digests` are pairs of salt and digest."""
        self._digests = dict(digests)
        self._nobody = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_DIGEST_BYTES)

    def has_password(self, name: str, password: str) -> bool:
        """Whether a user has this password; an unknown user takes as long as a wrong password."""
        salt, digest = self._digests.get(name, self._nobody)
        return hmac.compare_digest(_digest(password, salt), digest)


def _digest(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL, dklen=_DIGEST_BYTES)


def parse_users(lines: Iterable[str], *, owner: str) -> Users:
    """Read lines of `NAME scrypt:SALT:DIGEST`; `#` begins a comment line. A later line of a name counts.

    Raises `IllegalState` that names the wrong line; `owner` says where the lines are.
    """
    remedy = f"write NAME {_SCHEME}:SALT:DIGEST; `kafkadur gateway-user` writes such lines"
    return Users(dict(parse_lines(lines, _parsed, things="users", owner=owner, remedy=remedy)))


def _parsed(line: str) -> tuple[str, tuple[bytes, bytes]] | None:
    """Read one line; None for a wrong one."""
    try:
        name, secret = line.split()
        scheme, salt, digest = secret.split(":")
        validate_name("name of a user", name)
        pair = bytes.fromhex(salt), bytes.fromhex(digest)
    except (ValueError, InvalidName):
        return None
    whole = scheme == _SCHEME and len(pair[0]) == _SALT_BYTES and len(pair[1]) == _DIGEST_BYTES
    return (name, pair) if whole else None


def read_users(path: Path) -> Users:
    """Read a file of users. Raises `IllegalState` for one that cannot be read, or a wrong line."""
    lines = read_lines(path, things="users", remedy="make the file with `kafkadur gateway-user`")
    return parse_users(lines, owner=f"file {path}")


def add_user(path: Path, name: str, password: str) -> None:
    """Append the line of a user to a file, which only its owner can read; it replaces an earlier password.

    Raises `InvalidName`, and `IllegalState` for an empty password, a file that cannot be written, or a wrong
    line.
    """
    validate_name("name of a user", name)
    if not password:
        raise IllegalState(
            "A user needs a password.", owner=f"user {name}", remedy="give one that is not empty"
        )
    if path.exists():
        read_users(path)
    salt = secrets.token_bytes(_SALT_BYTES)
    append_line(path, f"{name} {_SCHEME}:{salt.hex()}:{_digest(password, salt).hex()}", thing="user")
