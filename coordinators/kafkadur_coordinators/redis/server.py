"""How a Redis URL becomes a connection: servers, Sentinels, clusters, time-outs, TLS, the address shown.

`redis+sentinel://[user:password@]host:port,host:port.../service[/db][?option=value&...]` names Sentinels and
the service they watch; `rediss+sentinel://` is the same with TLS to them and to the server. User, password
and options (those that redis-py takes in a URL) are the Redis server's, those that begin with `ssl_` the
Sentinels' as well; the options `sentinel_username` and `sentinel_password` are the Sentinels' own. Every new
connection asks them for the master of this moment.

`redis+cluster://[user:password@]host:port,host:port...[?option=value&...]` names some nodes of a cluster;
`rediss+cluster://` is the same with TLS to all of them. The URL of one node will do as well, because a server
says whether it is one; `cluster.py` finds the others. All other URLs are redis-py's.

All connections of kafkadur to Redis are made here, so all take the same credentials and the same TLS. A URL
holds passwords: it is never shown, its address is.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

#: Port of a Sentinel that is named without one.
SENTINEL_PORT: Final = 26379
#: Port of a node of a cluster that is named without one.
NODE_PORT: Final = 6379
#: Longest time one Sentinel may take, seconds: the others are asked after it.
_ASK_S: Final = 1.0
_PORTS: Final = 65_536
_WATCHED: Final = ("redis+sentinel", "rediss+sentinel")
_CLUSTERED: Final = ("redis+cluster", "rediss+cluster")
_SCHEMES: Final = ("redis", "rediss", "unix", *_WATCHED, *_CLUSTERED)
_CHECKS: Final = "ssl_check_hostname"
#: What OpenSSL says when a certificate is good, but for another host or address.
_WRONG_NAME: Final = (62, 64)

_EXAMPLE: Final = (
    "write redis+sentinel://host:port,host:port/service/db, and percent-encode what is special in a password"
)
_NODES: Final = "write redis+cluster://host:port,host:port, and percent-encode what is special in a password"
_NO_URL: Final = (
    "is no URL of Redis: write redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://, and "
    "percent-encode what is special in a password"
)

E = TypeVar("E", bound=BaseException)

#: Host and port of a server.
Address = tuple[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Watched:
    """A service and the Sentinels that watch it."""

    sentinels: tuple[Address, ...]
    service: str
    #: arguments of connections to Sentinels
    asking: dict[str, Any] = field(default_factory=dict[str, Any])
    #: arguments of connections to the server
    serving: dict[str, Any] = field(default_factory=dict[str, Any])


def check_url(url: str) -> None:
    """Raise `ValueError` with the reason unless `url` names a server, Sentinels or nodes of a cluster.

    The error does not show the URL: the wrong part may belong to the password.
    """
    if is_watched(url):
        _watched(url)
    elif is_clustered(url):
        _clustered(url)
    else:
        try:
            parse_url(url)
        except ValueError:
            raise ValueError(_NO_URL) from None
    try:  # options are looked at only when a connection is made; this one is never opened
        with open_server(url, timeout=1.0) as client:
            client.connection_pool.make_connection()
    except (TypeError, ValueError, RedisError):
        raise ValueError(
            "has an option that does not fit: write those of redis-py, ssl_... with rediss:// only"
        ) from None


def is_watched(url: str) -> bool:
    """Whether it names Sentinels."""
    return _scheme(url) in _WATCHED


def is_clustered(url: str) -> bool:
    """Whether it names nodes of a cluster."""
    return _scheme(url) in _CLUSTERED


def first_nodes(url: str) -> tuple[Address, ...]:
    """Return the nodes of a cluster that a URL names; none if it is no URL of a cluster."""
    return _clustered(url) if is_clustered(url) else ()


def address_of(url: str) -> Address | None:
    """Return the address of the one server that a URL names; None: it names a socket file or several."""
    if _scheme(url) not in ("redis", "rediss"):
        return None
    found = parse_url(url)
    return str(found.get("host", "localhost")), int(found.get("port", NODE_PORT))


def open_server(url: str, *, timeout: float, node: Address | None = None) -> Redis:
    """Return a client of the server; nothing is connected yet, and nothing is tried twice.

    `timeout` in seconds bounds connecting and every answer. `node`: the node of a cluster; None: the first
    that the URL names. `rediss://` demands a certificate that a known
    authority signed for the name in the URL, unless the URL's query says otherwise; of a server that
    Sentinels know, for the name or address that they tell.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if is_watched(url):
        return _through_sentinels(_watched(url), options)
    if is_clustered(url):
        node = node or _clustered(url)[0]
    if node is not None:
        url = _at(url, node)
    if _scheme(url) == "unix":
        del options["socket_keepalive"]
    if _speaks_tls(url) and _CHECKS not in parse_qs(urlsplit(url).query):
        options[_CHECKS] = True  # older versions of redis-py leave it out by default
    return Redis.from_url(url, **options)


def _at(url: str, node: Address) -> str:
    """Return the URL of a node of a cluster, with the login and options of `url`; it has one database."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    host, port = node
    place = f"[{host}]" if ":" in host else host
    scheme = "rediss" if _speaks_tls(url) else "redis"
    return parts._replace(scheme=scheme, netloc=f"{login}{at}{place}:{port}", path="").geturl()


def _through_sentinels(watched: _Watched, options: dict[str, Any]) -> Redis:
    patience = min(options["socket_timeout"], _ASK_S)
    asking = {**options, **watched.asking, "socket_timeout": patience, "socket_connect_timeout": patience}
    untyped: Any = _Sentinels  # its arguments are not annotated
    sentinels = untyped(watched.sentinels, sentinel_kwargs=asking)
    master: Redis = sentinels.master_for(watched.service, **{**options, **watched.serving})
    return master


class _Sentinels(Sentinel):
    """As in redis-py, but the error for a missing master has no arguments and names its cause."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Ask one after the other; raises `MasterNotFoundError`."""
        untyped: Any = self
        told: list[str] = []
        cause: RedisError | None = None
        for number, sentinel in enumerate(untyped.sentinels):
            try:
                state = sentinel.sentinel_masters().get(service_name)
            except RedisError as error:
                at = sentinel.get_connection_kwargs()
                told.append(f"{at['host']}:{at['port']} - {error}")
                cause = error
                continue
            if state and untyped.check_master_state(state, service_name):
                # this Sentinel is asked first the next time
                first = untyped.sentinels[0]
                untyped.sentinels[0], untyped.sentinels[number] = sentinel, first
                return cast("tuple[str, int]", (state["ip"], state["port"]))
        reason = f": {', '.join(told)}" if told else ""
        raise MasterNotFoundError(f"no Sentinel knows a master of {service_name!r}{reason}") from cause


class _Parts(NamedTuple):
    """The parts of a URL that names several addresses."""

    #: arguments of connections to the server
    serving: dict[str, Any]
    addresses: str
    path: str
    #: user and password of the Sentinels
    own: dict[str, Any]


def _parts(url: str) -> _Parts:
    try:
        parts = urlsplit(url)
        credentials, _, addresses = parts.netloc.rpartition("@")
        query = parse_qs(parts.query)
        own = {name: query.pop(f"sentinel_{name}", [None])[0] for name in ("username", "password")}
        # redis-py knows the types of its options only as a URL's
        user = f"{credentials}@" if credentials else ""
        server: dict[str, Any] = dict(parse_url(f"redis://{user}host/0?{urlencode(query, doseq=True)}"))
    except ValueError:
        raise ValueError(_NO_URL) from None
    if "@" in parts.path + parts.query or parts.fragment:  # of a password that is not percent-encoded
        raise ValueError(_NO_URL)
    del server["host"]
    given = {name: value for name, value in own.items() if value is not None}
    return _Parts(server, addresses, parts.path.lstrip("/"), given)


def _watched(url: str) -> _Watched:
    parts = _parts(url)
    service, _, database = parts.path.partition("/")
    if not service:
        raise ValueError(f"names no service: {_EXAMPLE}")
    if database and not (database.isdecimal() and len(database) < len(str(_PORTS))):
        raise ValueError(f"has a database that is no number: {_EXAMPLE}")
    sentinels = _addresses(parts.addresses, SENTINEL_PORT, f"a Sentinel that is not host:port: {_EXAMPLE}")
    server = parts.serving
    if database:
        server["db"] = int(database)
    tls: dict[str, Any] = {"ssl": True, _CHECKS: True} if _speaks_tls(url) else {}
    secured = {name: value for name, value in server.items() if name.startswith("ssl_")}
    return _Watched(
        sentinels=sentinels,
        service=unquote(service),
        asking={**tls, **secured, **parts.own},
        serving={**tls, **server},
    )


def _clustered(url: str) -> tuple[Address, ...]:
    """Return the nodes that a URL names; raises `ValueError` for one that does not fit a cluster."""
    parts = _parts(url)
    if parts.path.strip("0") or parts.own:
        raise ValueError(f"has more than nodes and options, and a cluster has only database 0: {_NODES}")
    return _addresses(parts.addresses, NODE_PORT, f"a node that is not host:port: {_NODES}")


def _addresses(text: str, usual: int, otherwise: str) -> tuple[Address, ...]:
    """Read `host:port,host:port`; `usual` is the port of an address without one, `otherwise` the error."""
    return tuple(_address(each, usual, otherwise) for each in text.split(","))


def _address(text: str, usual: int, otherwise: str) -> Address:
    if text.endswith("]"):  # an IPv6 address without a port
        host, port = text, ""
    else:
        host, colon, port = text.rpartition(":")
        host, port = (host, port) if colon else (port, "")
    named = port.isdecimal() and len(port) <= len(str(_PORTS)) and int(port) < _PORTS
    if not host.strip("[]") or (port and not named):
        raise ValueError(f"names {otherwise}")
    return host.strip("[]"), int(port or usual)


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _speaks_tls(url: str) -> bool:
    return _scheme(url).startswith("rediss")


def shown(url: str) -> str:
    """The address in a URL, as it may be shown: without user, password and query. Never raises."""
    scheme, found, rest = url.partition("://")
    if not found or scheme.lower() not in _SCHEMES:
        return "Redis"
    place, _, more = rest.partition("?")
    login, _, host = place.rpartition("@")
    if "@" in more or "#" in place or "/" in login:
        # The password is not percent-encoded, so it is not certain which part is the address.
        return f"{scheme}://..."
    return f"{scheme}://{host}"


class TlsRefusal(NamedTuple):
    """Why TLS could not be established, and what to do."""

    state: str
    remedy: str


def what_to_check(url: str) -> str:
    """Say what to check when a server does not answer. A TLS mismatch need not be reported by either side."""
    runs = "the Sentinels and Redis run" if is_watched(url) else "Redis runs"
    if is_clustered(url):
        runs = "the nodes of the cluster run"
    if _speaks_tls(url):
        return (
            f"check that {runs} and can be reached, that the port speaks TLS, and whether it asks for a "
            "certificate (ssl_certfile in the URL)"
        )
    tls = f"rediss{_scheme(url).removeprefix('redis')}://" if "+" in _scheme(url) else "rediss://"
    return f"check that {runs} and can be reached, and that the port does not ask for TLS ({tls})"


def caused_by(error: BaseException | None, *kinds: type[E]) -> E | None:
    """The first of an error and its causes that is of one of these kinds; None if there is none."""
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__ or error.__context__
    return error


def refused_by_tls(url: str, error: BaseException | None) -> TlsRefusal | None:
    """Return the reason if TLS ended a connection to `url`, else None."""
    if not _speaks_tls(url):
        return None
    found: OSError | None = caused_by(error, ssl.SSLError, FileNotFoundError)
    if isinstance(found, FileNotFoundError):
        return TlsRefusal(
            "a file that the URL names is not there", "correct ssl_ca_certs, ssl_certfile or ssl_keyfile"
        )
    if not isinstance(found, ssl.SSLError):
        return None
    if isinstance(found, ssl.SSLCertVerificationError):
        hostname = found.verify_code in _WRONG_NAME
        return TlsRefusal(
            f"its certificate is not accepted: {found.verify_message}",
            "connect by a name that stands in the certificate"
            if hostname
            else "name the authority that signed it: ?ssl_ca_certs=FILE in the Redis URL",
        )
    reason = (found.reason or str(found)).lower().replace("_", " ")
    if "alert" in reason:
        return TlsRefusal(
            f"the server refused: {reason}",
            "give the certificate that it asks for: ?ssl_certfile=FILE&ssl_keyfile=FILE in the Redis URL",
        )
    return TlsRefusal(reason, "use rediss:// for a port that speaks TLS, and redis:// for one that does not")
