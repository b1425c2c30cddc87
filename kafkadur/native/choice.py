"""Whether the compiled client is used: it is a part of the package where a C compiler built it.

What is compiled has the methods of the Python class that it stands for. KAFKADUR_PURE=1 leaves it out.
"""

from __future__ import annotations

import os
from typing import Any

_native: Any
try:
    from kafkadur.native import _native
except ImportError:  # it was not built, or librdkafka lacks a function
    _native = None

_PURE = "KAFKADUR_PURE"


def is_native() -> bool:
    """Return whether the compiled client is used."""
    return _native is not None and os.environ.get(_PURE, "0") in {"", "0"}


def compiled(name: str, pure: object) -> object:
    """Return a part of the compiled module; `pure` if there is none."""
    return getattr(_native, name) if is_native() else pure


def module() -> Any:  # noqa: ANN401 - of `_native.pyi`, or None
    """Return the compiled module; None: it was not built."""
    return _native
