"""LIKE: whether a text matches a pattern of characters, `_` (any one character) and `%` (any number of them).

A matcher reads a text once, character by character, and never backtracks. This module does not define how a
pattern and its escape character are written in a selector (`selector.lark`), nor the result of LIKE for a
value that is not a text (`selector_operators.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Stand for `_` and `%` in the result of `parts`.
ANY_ONE: Final = object()
ANY_NUMBER: Final = object()


def like(pattern: str, escape: str | None = None) -> Callable[[str], bool]:
    """Return the test whether a whole text matches `pattern`; a character is one code point.

    After `escape`, which is one character, any character stands for itself. Raises `ValueError` if the
    pattern ends with its escape character.
    """
    # The parts that match one character each are numbered in order. Bit i of `anything` is set if part i is
    # `_`, bit i of `fits[char]` if it is that character or `_`, and bit i of `loops` if a `%` precedes it.
    anything = loops = length = 0
    fits: dict[str, int] = {}
    for part in parts(pattern, escape):
        bit = 1 << length
        if part is ANY_NUMBER:
            loops |= bit
            continue
        if isinstance(part, str):
            fits[part] = fits.get(part, 0) | bit
        else:
            anything |= bit
        length += 1
    fits = {char: bits | anything for char, bits in fits.items()}
    whole = 1 << length

    def matches(text: str) -> bool:
        # Bit i of the state is set if the first i parts can match the characters that were read.
        state = 1
        for char in text:
            state = (state & loops) | (state & fits.get(char, anything)) << 1
            if not state:
                return False
        return state & whole != 0

    return matches


def parts(pattern: str, escape: str | None = None) -> list[object]:
    """Return the characters of a pattern without escapes, and the two wildcards in it.

    Raises `ValueError` if the pattern ends with its escape character.
    """
    found: list[object] = []
    chars = iter(pattern)
    for char in chars:
        if char == escape:
            escaped = next(chars, None)
            if escaped is None:
                raise ValueError("the pattern ends with its escape character")
            found.append(escaped)
        else:
            found.append({"_": ANY_ONE, "%": ANY_NUMBER}.get(char, char))
    return found
