"""Files with an entry on each line: the tokens of the service, the users and permissions of the gateway."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from kafkadur_sharing.errors import IllegalState

T = TypeVar("T")


def read_lines(path: Path, *, things: str, remedy: str) -> list[str]:
    """Return the lines of a file of `things`; raises `IllegalState` with the remedy if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise IllegalState(
            f"The {things} cannot be read.",
            state=str(error.strerror if isinstance(error, OSError) else "it is not a text file"),
            owner=f"file {path}",
            remedy=remedy,
        ) from error


def parse_lines(
    lines: Iterable[str], parse: Callable[[str], T | None], *, things: str, owner: str, remedy: str
) -> list[T]:
    """Return the entries of lines that are not empty and do not begin with `#`.

    `parse` returns None for a wrong line. Raises `IllegalState` that names that line; `owner` says where the
    lines are, `remedy` how one is written.
    """
    found: list[T] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        entry = parse(text)
        if entry is None:
            raise IllegalState(f"Line {number} of the {things} is wrong.", owner=owner, remedy=remedy)
        found.append(entry)
    return found


def append_line(path: Path, line: str, *, thing: str) -> None:
    """Append a line to a file that only its owner can read; raises `IllegalState` if that fails."""
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            if before and not before.endswith("\n"):  # an editor has written it
                file.write("\n")
            file.write(f"{line}\n")
    except OSError as error:
        raise IllegalState(
            f"The {thing} cannot be written.",
            state=str(error.strerror),
            owner=f"file {path}",
            remedy="name a file in a folder that you can write to",
        ) from error
