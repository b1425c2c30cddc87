"""`Reject` for handlers, and checks that a handler is a function that a call runs to its end."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any

from kafkadur_sharing.errors import IllegalState

#: Characters of a handler that is none, in an error.
_LONGEST_SHOWN = 80


class Reject(Exception):
    """Raised by a handler to send its message to dead letters."""

    def __init__(self, reason: str = "") -> None:
        """The first 1,000 characters of `reason` are written with the dead letter."""
        super().__init__(reason)
        self.reason = reason


def check_handler(handler: Callable[..., Any], *, awaits: bool = True) -> None:
    """Raise `IllegalState` for what is no function, or whose body a call does not run.

    That is a generator function and, unless the caller `awaits` results, a coroutine function.
    """
    if not callable(handler):
        raise IllegalState(
            "The handler is no function.",
            state=f"it is {handler!r}"[:_LONGEST_SHOWN],
            owner="the caller",
            remedy="pass a function, or an object that can be called",
        )
    if not awaits and is_coroutine_function(handler):
        raise _unrun("a coroutine function, and nothing awaits it here", handler)
    called = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004 - its code
    if any(
        test(each)
        for test in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        for each in (handler, called)
    ):
        raise _unrun("a generator function", handler)


def is_coroutine_function(handler: Callable[..., Any]) -> bool:
    """Whether a call of the handler gives a coroutine: of a function, or of an object with such a call."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its code
    )


def check_result(result: object, handler: Callable[..., Any]) -> None:
    """Raise `IllegalState` for a result that shows that the body was not run."""
    if isinstance(result, Coroutine):
        result.close()  # else Python warns that it was never awaited
    if inspect.isawaitable(result):
        raise _unrun("a function whose result has to be awaited, called where nothing does that", handler)
    if isinstance(result, Generator | AsyncGenerator):
        raise _unrun("a generator function", handler)


def _unrun(what: str, handler: Callable[..., Any]) -> IllegalState:
    return IllegalState(
        "Calling the handler would run nothing of it, and acknowledge every message.",
        state=f"it is {what}",
        owner=f"handler {getattr(handler, '__qualname__', handler)}",
        remedy="use a plain function that returns; async def is for the asynchronous surface and for apps",
    )
