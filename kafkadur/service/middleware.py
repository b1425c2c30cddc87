"""Middleware before all routes.

It authenticates a request that changes something before it reads the body, bounds the size of bodies, and
adds security headers to answers.
"""

from __future__ import annotations

from typing import Final

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kafkadur.service.dependencies import READING, caller_of

#: Bytes of the largest body that is read: of an order, and of one with a snapshot of very many messages.
_ORDER, _SNAPSHOT = 64 * 1024, 16 * 1024 * 1024
_TOO_LARGE: Final = 413

_HEADERS: Final = (
    # the page has scripts and styles of its own alone, and nobody may show it in a frame
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class TooLarge(Exception):
    """A body is larger than is read."""


class SecurityMiddleware:
    """Authenticates changes, bounds bodies, and adds security headers; ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand before an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on; answer 413 to one whose body is too large."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if request.method not in READING:
            try:
                await caller_of(request)
            except HTTPException as refused:
                closing = {"Connection": "close", **(refused.headers or {})}  # the body is not read
                answer = JSONResponse({"detail": refused.detail}, refused.status_code, closing)
                await answer(scope, receive, _with_headers(send))
                return
        largest = _SNAPSHOT if request.url.path.endswith("/restore") else _ORDER
        read, begun, answering = 0, False, _with_headers(send)

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > largest:
                raise TooLarge
            return message

        async def checked(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                # the application may take the exception for a body that it cannot read
                status = _TOO_LARGE if read > largest else message["status"]
                message = {**message, "status": status}
            await answering(message)

        try:
            await self._app(scope, bounded, checked)
        except TooLarge:
            if begun:
                raise
            await checked({"type": "http.response.start", "status": _TOO_LARGE, "headers": []})
            await checked({"type": "http.response.body", "body": b""})


def _with_headers(send: Send) -> Send:
    """Return what sends an answer with the headers."""

    async def answering(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return answering
