"""The systems that can be measured: a name, and the file and class behind it.

A system is imported only when it is asked for, so a missing client library stops nobody else.
"""

from __future__ import annotations

import importlib
import importlib.util

from benchmarks.systems.base import System

#: Name on the command line -> "module:class".
SYSTEMS: dict[str, str] = {
    "kafkadur": "benchmarks.systems.kafkadur_system:Kafkadur",
    "raw": "benchmarks.systems.raw:Raw",
    "share": "benchmarks.systems.share:Share",
    "redis": "benchmarks.systems.redis_streams:RedisStreams",
}


def available() -> list[str]:
    """Return the names whose file is there, in the order of the tables."""
    return [
        name for name, where in SYSTEMS.items() if importlib.util.find_spec(where.split(":")[0]) is not None
    ]


def load(name: str) -> type[System]:
    """Return the class of a system.

    Raises:
        KeyError: no system has this name.
        ImportError: its file or its client library is missing.
    """
    module, _, attribute = SYSTEMS[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, System)):
        message = f"{SYSTEMS[name]} is no benchmark system"
        raise ImportError(message)  # noqa: TRY004 - wrong file
    return found
