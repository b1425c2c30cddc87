"""Loads the Lua scripts of `lua/`: finds them, joins their includes, knows their keys.

A script's file name says how many keys it takes: `exchange-7+3.lua` takes 7 keys of the subscription and 3
more for each touched partition; `attach-7.lua` takes 7. A line `--- @include "name"` is replaced by
`lua/include/name.lua`, once a script; `--- @shape AttachRequest` by a function that reads the request
(`shapes.py`); `--- @rows` and `--- @names MemberRow` by what packs and unpacks records (`rows.py`);
the name of a field (`wire.py`), such as `AttachRequest.most`, by its position. All of it is
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
_FIELD = re.compile(rf"\b(?P<fields>{'|'.join(POSITIONS)})\.(?P<name>[a-z_]+)\b")
_INCLUDE = re.compile(r'^--- @include "(?P<name>[a-z_]+)"$')
_SHAPE = re.compile(r"^--- @shape (?P<name>[A-Za-z]+)$")
_ROWS = "--- @rows"
_NAMES = re.compile(r"^--- @names (?P<name>[A-Za-z]+)$")
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


def _expand(script: str, seen: set[str]) -> list[str]:
    lines: list[str] = []
    for line in script.splitlines():
        match, shape, of_names = (pattern.match(line) for pattern in (_INCLUDE, _SHAPE, _NAMES))
        if shape is not None:
            lines.extend(_expand(shapes.lua(shape["name"]), seen))
        elif line == _ROWS:
            lines.extend(rows.lua().splitlines())
        elif of_names is not None:
            lines.extend(rows.names(vars(rows)[of_names["name"]]).splitlines())
        elif match is None:
            lines.append(line)
        elif match["name"] not in seen:
            seen.add(match["name"])
            lines.extend(_expand("\n".join(_include(match["name"])), seen))
    return lines


def _include(name: str) -> list[str]:
    return (_FOLDER / "include" / f"{name}.lua").read_text(encoding="utf-8").splitlines()


def _position(match: re.Match[str]) -> str:
    return str(POSITIONS[match["fields"]][match["name"]])


def _files() -> dict[str, re.Match[str]]:
    matches = (_NAME.match(entry.name) for entry in _FOLDER.iterdir() if entry.name.endswith(".lua"))
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
    source = (_FOLDER / match.string).read_text(encoding="utf-8")
    lines = ["local function script()", *_expand(source, set()), "end", *_include("guard")]
    text = _FIELD.sub(_position, "\n".join(lines) + "\n")
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
