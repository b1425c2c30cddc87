"""The least rights of a Redis user that runs kafkadur: commands, keys, channels, as a line of an ACL file.

The tests run as a user with exactly these rights, and check that each of them is needed. The rights in Kafka
are in `kafkadur/admin/kafka_access.py`, the login in `server.py`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.names import validate_namespace

#: Commands that connections send by themselves, or that scripts call for them; a script may do only what its
#: caller may. Sorted, with the subcommand behind a bar where only that is needed.
COMMANDS: Final = (
    "asking",
    "bitcount",
    "bitop",
    "bitpos",
    "client|setinfo",
    "cluster|slots",
    "del",
    "eval",
    "evalsha",
    "exists",
    "get",
    "getrange",
    "hdel",
    "hexists",
    "hget",
    "hgetall",
    "hlen",
    "hmget",
    "hset",
    "info",
    "ping",
    "pubsub|shardnumsub",
    "rename",
    "script|load",
    "set",
    "setbit",
    "setrange",
    "spublish",
    "ssubscribe",
    "strlen",
    "sunsubscribe",
    "time",
    "unlink",
    "wait",
    "zadd",
    "zrange",
    "zrem",
)

#: Those of them that are needed only in a cluster.
COMMANDS_OF_CLUSTERS: Final = ("asking", "cluster|slots")

#: Those of them that are needed only for state of the version before, and by processes of that version.
COMMANDS_BEFORE: Final = (
    "bitcount",
    "bitop",
    "bitpos",
    "del",
    "getrange",
    "hgetall",
    "setbit",
    "setrange",
    "strlen",
)

_USER: Final = re.compile(r"[A-Za-z0-9_.@-]+")


def redis_rules(*, prefix: str = "kafkadur", namespace: str | None = None) -> list[str]:
    """The rules of the user, as ACL SETUSER takes them: keys, channels, commands.

    `namespace` None: all namespaces of the prefix. Raises `InvalidName`.
    """
    validate_namespace(prefix)
    place = f"{prefix}:*" if namespace is None else f"{prefix}:{validate_namespace(namespace)}:*"
    return [
        "resetkeys",
        f"~{place}",
        "resetchannels",
        f"&{place}",
        "-@all",
        *(f"+{name}" for name in COMMANDS),
    ]


def redis_user(
    user: str, *, password: str | None, prefix: str = "kafkadur", namespace: str | None = None
) -> str:
    """The user as a line of an ACL file, without line end.

    The password stands there as its SHA-256, as ACL SAVE writes it; None: the user is off until one is set.
    Raises `InvalidName` for a namespace or prefix, `IllegalState` for a name that an ACL file can't hold.
    """
    if _USER.fullmatch(user) is None:
        raise IllegalState(
            "No Redis user is called so here.",
            state=f"user {user[:60]!r}",
            remedy="use letters A-Z a-z, digits, '_', '.', '@' and '-'",
        )
    login = "off" if password is None else f"on #{hashlib.sha256(password.encode()).hexdigest()}"
    return " ".join(["user", user, login, *redis_rules(prefix=prefix, namespace=namespace)])
