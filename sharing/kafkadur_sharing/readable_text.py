"""Texts for people: makes text from elsewhere safe for logs and terminals, finds names that were meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

#: Control characters, line ends, changes of the writing direction, and surrogates.
_ACTIVE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def plain(text: str, *, keep: str = "") -> str:
    r"""Return `text` with control and formatting characters replaced by escapes such as \u001b.

    Characters in `keep` stay. The escapes are those of JSON, so that JSON stays valid.
    """
    if text.isprintable():
        return text
    return _ACTIVE.sub(
        lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}",
        text,
    )


def meant(name: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: those of the known ones that are like it, else all."""
    names = [*known]
    alike = get_close_matches(name, names) or names
    return f"use {alike[0]}" if len(alike) == 1 else f"use one of {', '.join(alike)}"


def without_prefix(message: str) -> str:
    """Return a message of pydantic without the prefix that it gives to the text of a `ValueError`."""
    return message.removeprefix("Value error, ")
