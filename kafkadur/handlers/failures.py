"""How the failure of a handler is described in dead letters: exception, handler, and the last frames."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final, Literal, get_args

from kafkadur_sharing.errors import IllegalState, KafkadurError

#: What a dead letter says of the exception after which it was written: its class; also its message, which may
#: contain parts of the payload; also where it was raised.
FailureDetail = Literal["class", "message", "stack"]

#: Characters of an exception's message, and frames, that are described.
_LONGEST_MESSAGE: Final = 300
_MOST_FRAMES: Final = 5


def check_detail(value: str, owner: str) -> None:
    """Raise `IllegalState` unless this is a detail of failures."""
    if value not in get_args(FailureDetail):
        raise IllegalState(
            f"failure_detail cannot be {value!r}.",
            state=f"failure_detail={value!r}",
            owner=owner,
            remedy=f"use one of {', '.join(get_args(FailureDetail))}",
        )


def describe(error: BaseException, handler: Callable[..., Any], detail: FailureDetail) -> str:
    """Return a line about an exception that a handler raised, with its last frames if these are wanted."""
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    message = "" if detail == "class" else _message(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    text += f" (in handler {name})"
    if detail == "stack":
        frames = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
        text += "".join(f"; {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    return text


def _message(error: BaseException) -> str:
    """Return the beginning of an exception's message; empty if the exception cannot be made a text."""
    if isinstance(error, KafkadurError):  # its owner and remedy are for a log
        told = [error.message, *((f"State: {error.state}.",) if error.state else ())]
        return " ".join(told)[:_LONGEST_MESSAGE]
    try:
        return str(error)[:_LONGEST_MESSAGE]
    except Exception:  # noqa: BLE001 - it is the application's code, and its message must be rolled back
        return ""
