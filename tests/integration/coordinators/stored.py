"""Reading and changing single values of the packed records in Redis, as their owners never would."""

from collections.abc import Callable
from typing import Any

import msgpack

from kafkadur_coordinators.redis.rows import SubscriptionRow

#: Sends a command to the server and returns its answer.
Command = Callable[..., Any]


def read(command: Command, key: str, field: str = "s", row: Any = SubscriptionRow) -> Any:
    """Read a packed record: one of the classes of `rows.py`."""
    return row._make(msgpack.unpackb(command("HGET", key, field), raw=True))


def change(command: Command, key: str, field: str = "s", row: Any = SubscriptionRow, **changed: Any) -> None:
    """Change values of a packed record."""
    values = read(command, key, field, row)._replace(**changed)
    command("HSET", key, field, msgpack.packb(list(values), use_bin_type=False))
