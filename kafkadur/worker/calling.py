"""Calls the handlers of an app: coroutine functions in the worker's loop, all others in threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kafkadur.handlers.results import check_result, is_coroutine_function

#: Raised outside of a handler, these end the process.
_ENDINGS = (SystemExit, KeyboardInterrupt)


def callable_in_loop(
    handler: Callable[..., Any], threads: ThreadPoolExecutor
) -> Callable[..., Awaitable[None]]:
    """Return a coroutine function that calls the handler with its arguments, and checks that it ran.

    What the handler raises passes through; only `SystemExit` and `KeyboardInterrupt` become `RuntimeError`,
    because a handler must not end the worker. Called in the event loop.
    """
    loop = asyncio.get_running_loop()
    plain = not is_coroutine_function(handler)

    async def call(*arguments: object) -> None:
        if plain:  # the context holds the current span, among others
            context = contextvars.copy_context()
            result = await loop.run_in_executor(threads, _called, context, handler, arguments)
        else:
            result = handler(*arguments)
        if inspect.isawaitable(result):  # a callable object can return one, too
            try:
                result = await result
            except _ENDINGS as error:
                raise _no_end(error) from error
        check_result(result, handler)

    call.__qualname__ = getattr(handler, "__qualname__", type(handler).__qualname__)  # for its failures
    return call


def _called(
    context: contextvars.Context, handler: Callable[..., Any], arguments: tuple[object, ...]
) -> object:
    """Call a handler in a thread; a future cannot hold a `StopIteration`."""
    try:
        return context.run(handler, *arguments)
    except (*_ENDINGS, StopIteration) as error:
        raise _no_end(error) from error


def _no_end(error: BaseException) -> RuntimeError:
    """Return an error that fails only this call: a handler must not end the whole worker."""
    return RuntimeError(f"the handler raised {type(error).__name__}")
