"""Reads the text of a selector: the grammar is `selector.lark`, `selector_compile.py` compiles its rules."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeVar, cast

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from kafkadur_sharing.errors import InvalidSelector
from kafkadur_sharing.selector_compile import Compiler, Fault, Node, evaluated, start
from kafkadur_sharing.selector_operators import MAX_LENGTH, Evaluate

T = TypeVar("T")

#: How many characters of the selector an error shows, from the position of the fault.
_SHOWN: Final = 30


def compiled(text: str) -> tuple[Evaluate, frozenset[str]]:
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
    """Return the same as `compiled`. Raises `Fault`."""
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


def translated(text: str, transformer: Transformer[Token, T]) -> T:
    """Return what another transformer makes of a selector; it has a method for each rule of the grammar.

    `text` is that of a `Selector`, so it is right. The parser calls the transformer as it calls the compiler,
    leaves first, so it does not recurse.
    The transformer is cached for good: always pass the same one, without state. Raises what it raises.
    """
    # The type stub of the parser does not know that the transformer replaces the tree.
    return cast("T", _parser(transformer).parse(text))


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
