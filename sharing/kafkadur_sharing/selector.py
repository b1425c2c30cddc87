"""Selectors: which messages a subscription takes, by their properties (Jakarta Messaging 3.1, section 3.8.1).

The grammar is `selector.lark`. A selector is compiled once into nested closures, while it is read; evaluating
them recurses at most as deep as `MAX_NESTING` allows.

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

This module does not compile (`selector_compile.py`), does not fill the properties (the reader decodes the
headers that a selector names), and does not know which subscription has which selector (`definition.py`).
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeVar, cast

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from kafkadur_sharing.errors import InvalidSelector
from kafkadur_sharing.selector_compile import (
    JMS_HEADERS,
    MAX_NESTING,
    Compiler,
    Fault,
    Node,
    evaluated,
    start,
)
from kafkadur_sharing.selector_operators import Evaluate, Properties, Value

__all__ = [
    "JMS_HEADERS",
    "MAX_LENGTH",
    "MAX_NESTING",
    "Properties",
    "Selector",
    "Value",
    "parse_selector",
    "translated",
]

T = TypeVar("T")

#: Longest selector, in characters.
MAX_LENGTH: Final = 4096
#: How many characters of the selector an error shows, from the position of the fault.
_SHOWN: Final = 30


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
        self.text = text
        self._evaluate, self.names = _compiled(text)

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


def translated(selector: Selector, transformer: Transformer[Token, T]) -> T:
    """Return what another transformer makes of a selector; it has a method for each rule of the grammar.

    The parser calls it as it calls the compiler, leaves first, so it does not recurse. Its input is checked.
    The transformer is cached for good: always pass the same one, without state. Raises what it raises.
    """
    # The type stub of the parser does not know that the transformer replaces the tree.
    return cast("T", _parser(transformer).parse(selector.text))


# --- reading ------------------------------------------------------------------------------------------------


def _compiled(text: str) -> tuple[Evaluate, frozenset[str]]:
    """Return the closure of a selector and the names in it. Raises `InvalidSelector`."""
    if len(text) > MAX_LENGTH:
        raise InvalidSelector(
            f"The selector has {len(text)} characters.",
            position=MAX_LENGTH,
            state=f"the limit is {MAX_LENGTH} characters",
            remedy="shorten the selector",
        )
    try:
        return _read(text)
    except Fault as fault:
        rest = text[fault.position :]
        shown = rest if len(rest) <= _SHOWN else f"{rest[:_SHOWN]}..."
        raise InvalidSelector(
            f"Column {fault.position + 1} of the selector: {fault.problem}.",
            position=fault.position,
            state=f"from there it reads {shown!r}" if rest else "that is its end",
            remedy=fault.remedy,
        ) from None


def _read(text: str) -> tuple[Evaluate, frozenset[str]]:
    """Return the same as `_compiled`. Raises `Fault`."""
    reading = _parser(_COMPILER).parse_interactive(text)
    try:
        names = frozenset(str(token) for token in reading.iter_parse() if token.type == "IDENTIFIER")
        node: Node = reading.feed_eof()
    except UnexpectedCharacters as error:
        position: Any = error.pos_in_stream  # annotated as None
        raise _stray(text, position) from None
    except UnexpectedToken as error:
        raise _misplaced(error.token, len(text), reading.accepts()) from None
    return evaluated(node, "a condition"), names


_COMPILER: Final = Compiler()


@cache
def _parser(transformer: Transformer[Token, Any]) -> Lark:
    # Made at the first selector, not at import: it takes some 40 ms.
    grammar = files("kafkadur_sharing").joinpath("selector.lark").read_text(encoding="utf-8")
    return Lark(
        grammar,
        parser="lalr",
        lexer="basic",
        maybe_placeholders=True,
        # Without it a Kelvin sign would be the K of LIKE; in a property's name it is none.
        g_regex_flags=re.ASCII,
        transformer=transformer,
    )


# --- explaining faults --------------------------------------------------------------------------------------

#: Names for error texts of terminals that are not words.
_TERMINALS: Final = {
    "$END": "the end",
    "ADDITIVE": "an operator",
    "COMMA": "','",
    "COMPARISON": "an operator",
    "LPAR": "'('",
    "MULTIPLICATIVE": "an operator",
    "RPAR": "')'",
    "STRING": "a text in quotes",
}
#: Characters of other languages, with the advice what to write in a selector.
_INSTEAD: Final = {
    '"': "write text in single quotes and names without any",
    "'": "end the text that begins here with ', and double a ' inside",
    "!": "write <> for unequal",
    "|": "write OR; texts are not joined",
    "&": "write AND",
    ".": "use a name without a point",
}


def _stray(text: str, position: int) -> Fault:
    """Return the fault of a character that begins no token."""
    char = text[position]
    return Fault(position, f"{char!r} is no part of a selector", _INSTEAD.get(char, "remove it"))


def _misplaced(token: Token, length: int, accepted: set[str]) -> Fault:
    """Return the fault of a token that is not accepted, in a text of `length` characters."""
    if "IDENTIFIER" in accepted:
        expected = "a name or a value"
    else:
        *most, last = sorted({_TERMINALS.get(terminal, terminal) for terminal in accepted})
        expected = f"{', '.join(most)} or {last}" if most else last
    position = length if token.type == "$END" else start(token)
    return Fault(position, f"expected {expected}", "correct the selector there")
