"""The users of a gateway and their passwords, in a file: a password is kept as a salted digest."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

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
    found: dict[str, tuple[bytes, bytes]] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        parsed = _parsed(text)
        if parsed is None:
            raise IllegalState(
                f"Line {number} of the users is wrong.",
                owner=owner,
                remedy=f"write NAME {_SCHEME}:SALT:DIGEST; `kafkadur gateway-user` writes such lines",
            )
        found[parsed[0]] = parsed[1]
    return Users(found)


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
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise IllegalState(
            "The users cannot be read.",
            state=str(error.strerror if isinstance(error, OSError) else "it is not a text file"),
            owner=f"file {path}",
            remedy="make the file with `kafkadur gateway-user`",
        ) from error
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
    before = ""
    if path.exists():
        read_users(path)
        before = path.read_text(encoding="utf-8")
    salt = secrets.token_bytes(_SALT_BYTES)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            if before and not before.endswith("\n"):  # an editor has written it
                file.write("\n")
            file.write(f"{name} {_SCHEME}:{salt.hex()}:{_digest(password, salt).hex()}\n")
    except OSError as error:
        raise IllegalState(
            "The user cannot be written.",
            state=str(error.strerror),
            owner=f"file {path}",
            remedy="name a file in a folder that you can write to",
        ) from error
