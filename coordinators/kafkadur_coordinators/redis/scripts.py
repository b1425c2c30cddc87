"""Loads the Lua scripts of `lua/`: finds them, joins their includes, knows their keys.

A script's file name says how many keys it takes: `exchange-7+3.lua` takes 7 keys of the subscription and 3
more for each touched partition; `attach-7.lua` takes 7. All but three of them exist only where the state is
still that of the version before (`lua/include/context.lua`). A line `--- @include "name"` is replaced by
`lua/include/name.lua`, once per script; `--- @shape AttachRequest` by a function that reads the request
(`shapes.py`); `--- @rows` and `--- @names MemberRow` by what packs and unpacks records (`rows.py`);
the name of a field (`wire.py`, `rows.py`), such as `AttachRequest.most`, by its position. All of it is
the body of a function, which `lua/include/guard.lua` calls. Each script describes itself at its top.
`coordinator.py` sends scripts to the server.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from kafkadur_coordinators.redis import rows, shapes
from kafkadur_coordinators.redis.wire import POSITIONS

_FOLDER = files("kafkadur_coordinators.redis") / "lua"
_NAME = re.compile(r"^(?P<name>[a-z]+)-(?P<fixed>\d+)(\+(?P<each>\d+))?\.lua$")
_PLACES = {**POSITIONS, **rows.POSITIONS}
_FIELD = re.compile(rf"\b(?P<fields>{'|'.join(_PLACES)})\.(?P<name>[a-z_]+)\b")
#: A line that stands for something else; its end belongs to it.
_DIRECTIVE = re.compile(r'^--- @(?P<what>include|shape|names|rows)(?: "?(?P<name>\w+)"?)?$\n?', re.MULTILINE)
#: What `load` replaces for a client with a clock of its own.
_CLOCK = "local TRUSTS_CLOCK = "


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """One script, ready to be sent."""

    #: name without key count, for example "exchange"
    name: str
    #: keys of the subscription
    fixed_keys: int
    #: keys for each touched partition
    partition_keys: int
    #: source with its includes
    text: str
    #: SHA-1 of the source in hex, as EVALSHA takes it
    sha: str


def _expand(script: str, seen: set[str]) -> str:
    """Replace the lines that stand for something else; `seen` are the includes that the script has by now."""

    def replacement(line: re.Match[str]) -> str:
        name = line["name"] or ""
        match line["what"]:
            case "include" if name in seen:
                return ""
            case "include":
                seen.add(name)
                return _expand(_read("include", f"{name}.lua"), seen)
            case "shape":
                return _expand(_shape(name), seen)
            case "names":
                return rows.names(vars(rows)[name]) + "\n"
            case _:
                return _rows()

    return _DIRECTIVE.sub(replacement, script)


# Each part is read once for all scripts that have it.


@cache
def _read(*place: str) -> str:
    return _with_positions("\n".join(_sources()[place].splitlines()) + "\n")


@cache
def _sources() -> dict[tuple[str, ...], str]:
    """Texts of all files, read at the first use: later the process may be short of file descriptors."""
    return {
        (*folder, entry.name): entry.read_text(encoding="utf-8")
        for folder in ((), ("include",))
        for entry in _FOLDER.joinpath(*folder).iterdir()
        if entry.name.endswith(".lua")
    }


@cache
def _shape(name: str) -> str:
    return _with_positions(shapes.lua(name) + "\n")


@cache
def _rows() -> str:
    return _with_positions(rows.lua() + "\n")


def _with_positions(text: str) -> str:
    return _FIELD.sub(_position, text)


def _position(match: re.Match[str]) -> str:
    return str(_PLACES[match["fields"]][match["name"]])


def _files() -> dict[str, re.Match[str]]:
    matches = (_NAME.match(place[0]) for place in _sources() if len(place) == 1)
    return {match["name"]: match for match in matches if match is not None}


@cache
def names() -> list[str]:
    """Names of all scripts, sorted."""
    return sorted(_files())


@cache
def load(name: str, *, trusts_clock: bool = False) -> Script:
    """The script of this name; `KeyError` if there is none, or it names a field that there is not.

    With `trusts_clock` the time that a request says is taken instead of the server's: for tests.
    """
    match = _files()[name]
    body = _expand(_read(match.string), set())
    text = f"local function script()\n{body}end\n{_read('include', 'guard.lua')}"
    if trusts_clock:
        text = text.replace(f"{_CLOCK}false", f"{_CLOCK}true")
    return Script(
        name=name,
        fixed_keys=int(match["fixed"]),
        partition_keys=int(match["each"] or 0),
        text=text,
        sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),
    )


def assemble(name: str) -> str:
    """Source of a script with its includes, as the server gets it; `KeyError` if there is none."""
    return load(name).text
