"""Reading and changing single values of the packed records in Redis, as their owners never would."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgpack

#: Sends a command to the server and returns its answer.
Command = Callable[..., Any]
_STORE = files("kafkadur_coordinators.redis") / "lua" / "include" / "store.lua"


@cache
def names(record: str) -> Sequence[str]:
    """Names of the values of a packed record, such as SUBSCRIPTION, in the order of `store.lua`."""
    found = re.search(rf"local {record} = {{(.*?)}}", _STORE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return re.findall(r"'(\w+)'", found[1])


def read(command: Command, key: str, field: str = "s", record: str = "SUBSCRIPTION") -> dict[str, Any]:
    """Values of a packed record, by name; what follows them is under ''."""
    values = msgpack.unpackb(command("HGET", key, field), raw=True)
    known = names(record)
    return dict(zip(known, values, strict=False)) | {"": values[len(known) :]}


def write(command: Command, key: str, field: str, record: str, values: dict[str, Any]) -> None:
    """Write a packed record again."""
    packed = msgpack.packb([*(values[name] for name in names(record)), *values[""]], use_bin_type=False)
    command("HSET", key, field, packed)


def change(
    command: Command, key: str, field: str = "s", record: str = "SUBSCRIPTION", **changed: Any
) -> None:
    """Change values of a packed record."""
    write(command, key, field, record, read(command, key, field, record) | changed)
