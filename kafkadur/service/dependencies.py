"""The dependencies of the routes: authentication, authorization by role, and parameters that routes share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import Depends, HTTPException, Path, Request

from kafkadur.service.access import LOCAL, ROLES, Caller, Proxy, Role, Tokens, is_loopback
from kafkadur.service.backend import Backend
from kafkadur.service.ids import ID_PATTERN

#: A page of another site cannot send this header without being asked for leave, which is never given.
WRITE_HEADER: Final = "X-Kafkadur-Write"
_BEARER: Final = "bearer "
_ELSEWHERE: Final = frozenset({"cross-site", "same-site"})
#: Headers in which a proxy with a token names the person that it speaks for, and their groups.
_USER, _GROUPS = "x-forwarded-user", "x-forwarded-groups"
#: Headers of proxies.
_FORWARDED: Final = frozenset(
    {
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
        _USER,
        _GROUPS,
    }
)
#: Methods that change nothing.
READING: Final = frozenset({"GET", "HEAD"})


async def backend_of(request: Request) -> Backend:
    """Return the backend of the service."""
    backend: Backend = request.app.state.backend
    return backend


async def caller_of(request: Request) -> Caller:
    """Authenticate a request; return its caller.

    Raises HTTPException: 401 without a known token, 403 for the page of another site, for a proxy without a
    token, and for a person whom a proxy names and who has no role.
    """
    tokens: Tokens | None = request.app.state.tokens
    if request.headers.get("sec-fetch-site") in _ELSEWHERE:
        raise HTTPException(403, "The page of another site asks.")
    if tokens is None:
        # a page of another site could lead its own name to this machine; a proxy speaks for anybody
        if not is_loopback(request.headers.get("host", "")) or _FORWARDED & set(request.headers):
            raise HTTPException(403, "The service has no tokens: ask it as 127.0.0.1 or localhost, directly.")
        caller: Caller | None = LOCAL
    else:
        scheme = request.headers.get("authorization", "")
        token = scheme[len(_BEARER) :].strip() if scheme.lower().startswith(_BEARER) else ""
        proxy = tokens.proxy(token)
        caller = tokens.caller(token) if proxy is None else _named_by(proxy, request)
    if caller is None:
        challenge = {"WWW-Authenticate": "Bearer"}
        raise HTTPException(401, "Send a token of this service: Authorization: Bearer TOKEN.", challenge)
    if request.method not in READING and WRITE_HEADER.lower() not in request.headers:
        raise HTTPException(403, f"Send the header {WRITE_HEADER}: yes with what changes something.")
    return caller


def _named_by(proxy: Proxy, request: Request) -> Caller:
    """Return the person whom a proxy names. Raises HTTPException, 403, if it names none with a role."""
    users, groups = request.headers.getlist(_USER), request.headers.getlist(_GROUPS)
    # of two headers one may be of the browser
    once = len(users) == len(groups) == 1
    caller = proxy.caller(_utf8(users[0]), _utf8(groups[0])) if once else None
    if caller is None:
        raise HTTPException(
            403,
            f"The proxy {proxy.name} names nobody with a role: it has to send X-Forwarded-User, once, and "
            f"X-Forwarded-Groups, once, with one of {', '.join(f'kafkadur-{role}' for role in ROLES)}.",
        )
    return caller


def _utf8(header: str) -> str:
    """Return the text of a header in UTF-8, which was read as Latin-1."""
    return header.encode("latin-1").decode(errors="replace")


def needs(role: Role) -> Callable[[Caller], Awaitable[Caller]]:
    """Return a dependency that refuses callers of a lower role."""

    async def check(caller: Annotated[Caller, Depends(caller_of)]) -> Caller:
        if caller.role < role:
            text = f"This needs the role {role.word}; {caller.name} has {caller.role.word}."
            raise HTTPException(403, text)
        return caller

    return check


Viewer = Annotated[Caller, Depends(needs(Role.VIEWER))]
Operator = Annotated[Caller, Depends(needs(Role.OPERATOR))]
Administrator = Annotated[Caller, Depends(needs(Role.ADMIN))]
TheBackend = Annotated[Backend, Depends(backend_of)]
Id = Annotated[
    str,
    Path(
        description="[CLIENT_ID~]NAME[~unrestricted][@MEMBER]",
        examples=["invoices", "billing~invoices"],
        pattern=ID_PATTERN,
    ),
]
#: What routes can answer besides their own documents, for the OpenAPI description.
ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"description": "A value is not allowed."},
    401: {"description": "There is no token, or the service does not know it."},
    403: {"description": "The role of the caller is too low, or the page of another site asks."},
    404: {"description": "There is no such subscription, topic, partition or letter."},
    409: {"description": "The state of the subscription does not allow it."},
    503: {"description": "Redis or Kafka does not answer."},
}
