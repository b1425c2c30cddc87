"""Whether the compiled client is used: it is a part of the package where a C compiler built it.

What is compiled has the methods of the Python class that it stands for. KAFKADUR_PURE=1 leaves it out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

_native: Any
try:
    from kafkadur.native import _native
except ImportError:  # it was not built, or librdkafka lacks a function
    _native = None

_log = logging.getLogger("kafkadur.readers")

_PURE = "KAFKADUR_PURE"
#: Settings that were said to keep the compiled client from being used, each with what is done without it.
_told: set[tuple[str, str]] = set()


def is_native() -> bool:
    """Return whether the compiled client is used."""
    return _native is not None and os.environ.get(_PURE, "0") in {"", "0"}


def client_name() -> str:
    """Return what the client is called with which this process reads and writes Kafka."""
    return "the compiled client" if is_native() else "confluent-kafka's client"


def compiled(name: str, pure: object) -> object:
    """Return a part of the compiled module; `pure` if there is none."""
    return getattr(_native, name) if is_native() else pure


def client(config: Mapping[str, Any], make: Callable[[], Any], done: str) -> Any:  # noqa: ANN401 - as below
    """Return what `make` makes, a compiled client with this configuration.

    None: there is none, or it does not take a setting, which is logged once: Kafka is `done`, "read" or
    "written", by confluent-kafka then. Raises `KafkaException` for a setting that librdkafka refuses.
    """
    if not is_native():
        return None
    try:
        return make()
    except ValueError as error:
        setting = str(error)
    if (setting, done) not in _told:
        _told.add((setting, done))
        why = "is a Python function" if callable(config.get(setting)) else "is neither text nor number"
        _log.info("Kafka is %s by confluent-kafka, because %s %s", done, setting, why)
    return None


def module() -> Any:  # noqa: ANN401 - of `_native.pyi`, or None
    """Return the compiled module; None: it was not built."""
    return _native
