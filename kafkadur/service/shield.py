"""What every request and answer passes: a bound on bodies, and headers that keep browsers from doing harm."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Bytes of the largest body that is read: a snapshot of very many messages.
LARGEST: Final = 16 * 1024 * 1024
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


class Shield:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand before an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on; answer 413 to one whose body is too large."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        read, begun = 0, False

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > LARGEST:
                raise TooLarge
            return message

        async def shielded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                # the application may take the exception for a body that it cannot read
                status = _TOO_LARGE if read > LARGEST else message["status"]
                message = {**message, "status": status, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        try:
            await self._app(scope, bounded, shielded)
        except TooLarge:
            if begun:
                raise
            await shielded({"type": "http.response.start", "status": _TOO_LARGE, "headers": []})
            await shielded({"type": "http.response.body", "body": b""})
