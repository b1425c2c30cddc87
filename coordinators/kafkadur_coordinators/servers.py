"""Where the coordination state is: the Redis of a URL, also one that Sentinels know.

`redis+sentinel://[user:password@]host:port,host:port.../service[/db][?option=value&...]` names Sentinels and
the service they watch; `rediss+sentinel://` is the same over TLS. User, password and options (those that
redis-py takes in a URL) are the Redis server's; the options `sentinel_username` and `sentinel_password` are
the Sentinels' own. Every new connection asks them for the master of this moment. All other URLs are
redis-py's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

#: Port of a Sentinel that is named without one.
SENTINEL_PORT = 26379
#: Longest time one Sentinel may take, seconds: the others are asked after it.
_ASK = 1.0
_SCHEMES = ("redis+sentinel", "rediss+sentinel")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Watched:
    """A service and the Sentinels that watch it."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    #: arguments of connections to Sentinels
    asking: dict[str, Any] = field(default_factory=dict[str, Any])
    #: arguments of connections to the server
    serving: dict[str, Any] = field(default_factory=dict[str, Any])


def check_url(url: str) -> None:
    """Raise `ValueError`, saying what is wrong, unless `url` names a server or Sentinels."""
    if is_watched(url):
        _watched(url)
    else:
        parse_url(url)


def where(url: str) -> str:
    """The address for people: the URL without credentials."""
    return re.sub(r"(?i)([?&]sentinel_(?:username|password)=)[^&]*", r"\1...", url.rsplit("@", 1)[-1])


def client(url: str, *, timeout: float, keepalive: bool = False) -> Redis:
    """A client of the server; connects when it is used, and repeats nothing.

    `timeout` in seconds bounds connecting and every call.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "socket_keepalive": keepalive,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if not is_watched(url):
        return Redis.from_url(url, **options)
    watched = _watched(url)
    patience = min(timeout, _ASK)
    asking = {**options, **watched.asking, "socket_timeout": patience, "socket_connect_timeout": patience}
    untyped: Any = Sentinel  # its arguments are not annotated
    sentinel = untyped(watched.sentinels, sentinel_kwargs=asking)
    master: Redis = sentinel.master_for(watched.service, **{**options, **watched.serving})
    return master


def is_watched(url: str) -> bool:
    """Whether it names Sentinels."""
    return url.partition("://")[0].lower() in _SCHEMES


def _watched(url: str) -> _Watched:
    parts = urlsplit(url)
    credentials, _, addresses = parts.netloc.rpartition("@")
    service, _, database = parts.path.lstrip("/").partition("/")
    if not service:
        raise ValueError("the Redis URL names no service: redis+sentinel://host:port,host:port/service/db")
    if database and not database.isdecimal():
        raise ValueError(f"the database of the Redis URL is no number: {database}")
    sentinels = tuple(_address(address) for address in addresses.split(","))
    query = parse_qs(parts.query)
    own = {name: query.pop(f"sentinel_{name}", [None])[0] for name in ("username", "password")}
    # redis-py knows the types of its options only as a URL's
    rest = urlencode(query, doseq=True)
    user = f"{credentials}@" if credentials else ""
    server: dict[str, Any] = dict(parse_url(f"redis://{user}host/{database or 0}?{rest}"))
    del server["host"]
    tls = {"ssl": True} if parts.scheme.lower().startswith("rediss") else {}
    secured = {name: value for name, value in server.items() if name.startswith("ssl_")}
    asking = {name: value for name, value in own.items() if value is not None}
    return _Watched(
        sentinels=sentinels,
        service=unquote(service),
        asking={**tls, **secured, **asking},
        serving={**tls, **server},
    )


def _address(text: str) -> tuple[str, int]:
    if text.endswith("]"):  # an IPv6 address without a port
        host, port = text, ""
    else:
        host, colon, port = text.rpartition(":")
        host, port = (host, port) if colon else (port, "")
    if not host.strip("[]") or (port and not port.isdecimal()):
        raise ValueError(f"the Redis URL names no Sentinel: {text!r} is not host:port")
    return host.strip("[]"), int(port or SENTINEL_PORT)
