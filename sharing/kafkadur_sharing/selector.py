"""Selectors: which messages a subscription takes, by their properties (Jakarta Messaging 3.1, section 3.8.1).

A selector is read and compiled once into nested closures (`selector_parse.py`, `selector_compile.py`);
evaluating them recurses at most as deep as `MAX_NESTING` allows.

A condition is true, false or unknown. A property that is missing or None is unknown, and so is what is
compared with it or computed from it. Values of unlike types compare false, under `=` and `<>` alike. Where
the specification leaves it open:

- Integers are Java's `long`: arithmetic wraps, division truncates toward zero, and dividing by an integer
  zero is unknown (Java would throw). Floats are doubles and follow IEEE 754, division by zero included. An
  integer that meets a float becomes one, in comparisons too.
- A bool is no number. Arithmetic on what is no number is unknown. A property that stands as a condition and
  is no bool is false, as in `property = TRUE`. Bytes are unlike everything, themselves included.
- `x NOT BETWEEN a AND b` is `x < a OR x > b`, so it is false of a text. `x NOT IN ('a', 'b')` is
  `x <> 'a' AND x <> 'b'`, so it is false of a number. `NOT LIKE` is the opposite of `LIKE`, so it is true of
  a number.
- Number literals are written as in Java: `123`, `0x7B`, `0173` (octal), `0b1111011` and `1_000` are integers,
  and the suffix `L` makes no difference; `D` and `F` make a double. An integer literal is an int64 with the
  value that it shows: `0xFFFFFFFF` is 4,294,967,295.
- In a LIKE pattern the escape character takes the meaning from any character behind it; `_` is one code
  point.
- An identifier is what a property may be called, plus the JMS names a selector may use (`JMS_HEADERS`).

This module does not fill the properties (the reader decodes the headers that a selector names), and does not
know which subscription has which selector (`definition.py`). The parser is imported with the first selector.
"""

from __future__ import annotations

from typing import Final, cast

from kafkadur_sharing.errors import InvalidSelector
from kafkadur_sharing.selector_operators import (
    JMS_HEADERS,
    MAX_LENGTH,
    MAX_NESTING,
    Properties,
    Value,
)

__all__ = [
    "JMS_HEADERS",
    "MAX_LENGTH",
    "MAX_NESTING",
    "Properties",
    "Selector",
    "Value",
    "parse_selector",
]


class Selector:
    """A selector, read and compiled; selectors are equal when their texts are.

    Raises `InvalidSelector` for a text that is no selector, is empty, or exceeds a limit (`MAX_LENGTH`
    characters, `MAX_NESTING` levels).
    """

    __slots__ = ("_evaluate", "names", "text")

    #: The selector as it was written.
    text: Final[str]
    #: The identifiers in it: it looks up no other property.
    names: Final[frozenset[str]]

    def __init__(self, text: str) -> None:
        """Read and compile `text`."""
        # not imported before: a program without selectors starts 40 ms sooner without the parser
        from kafkadur_sharing.selector_parse import compiled  # noqa: PLC0415 - as said above

        self.text = text
        self._evaluate, self.names = compiled(text)

    def matches(self, properties: Properties) -> bool | None:
        """Return whether the selector is true for these properties, None for unknown; only True is a match.

        Never raises for values of the types in `Value`.
        """
        truth = self._evaluate(properties)
        return None if truth is None else truth is True

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Selector) else NotImplemented

    def __hash__(self) -> int:
        return hash((Selector, self.text))


def parse_selector(text: str | None) -> Selector | None:
    """Return the selector in `text`; None if it is None, empty or blank, so that every message is taken.

    Raises `InvalidSelector` as `Selector` does.
    """
    if text is not None and not isinstance(cast("object", text), str):
        raise InvalidSelector(f"A selector is a text, not {type(text).__name__}.", owner="the caller")
    return None if text is None or not text.strip() else Selector(text)
