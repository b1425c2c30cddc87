"""How a Redis URL becomes a connection: time-outs, TLS, and the address as it may be shown.

All connections of kafkadur to Redis are made here, so all take the same credentials and the same TLS. A URL
holds passwords: it is never shown, its address is.
"""

from __future__ import annotations

import ssl
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_SCHEMES: Final = ("redis", "rediss", "unix")
_CHECKS: Final = "ssl_check_hostname"
#: What OpenSSL says when a certificate is good, but for another host or address.
_WRONG_NAME: Final = (62, 64)


def open_server(url: str, *, timeout: float) -> Redis:
    """Return a client of the server; nothing is connected yet, and nothing is tried twice.

    `timeout` in seconds bounds connecting and every answer. `rediss://` demands a certificate that a known
    authority signed for the name in the URL, unless the URL's query says otherwise.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    parts = urlsplit(url)
    if parts.scheme == "unix":
        del options["socket_keepalive"]
    if parts.scheme == "rediss" and _CHECKS not in parse_qs(parts.query):
        options[_CHECKS] = True  # older versions of redis-py leave it out by default
    return Redis.from_url(url, **options)


def shown(url: str) -> str:
    """The address in a URL, as it may be shown: without user, password and query. Never raises."""
    scheme, found, rest = url.partition("://")
    if not found or scheme not in _SCHEMES:
        return "Redis"
    place, _, more = rest.partition("?")
    login, _, host = place.rpartition("@")
    if "@" in more or "#" in place or "/" in login:
        # A password that is not percent-encoded: what of this is the address, nobody can say for sure.
        return f"{scheme}://..."
    return f"{scheme}://{host}"


class TlsRefusal(NamedTuple):
    """Why TLS did not come about, and what to do."""

    state: str
    remedy: str


def what_to_check(url: str) -> str:
    """What may be wrong when a server does not answer: the one side's words on TLS need not arrive."""
    if url.startswith("rediss:"):
        return (
            "check that Redis runs and can be reached, that its port speaks TLS, and whether it asks for a "
            "certificate (ssl_certfile in the URL)"
        )
    return "check that Redis runs and can be reached, and that its port does not ask for TLS (rediss://)"


def refused_by_tls(url: str, error: BaseException | None) -> TlsRefusal | None:
    """Say what about TLS ended a connection to `url`, None if it was something else."""
    if not url.startswith("rediss:"):
        return None
    while error is not None and not isinstance(error, (ssl.SSLError, FileNotFoundError)):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    if isinstance(error, FileNotFoundError):
        return TlsRefusal(
            "a file that the URL names is not there", "correct ssl_ca_certs, ssl_certfile or ssl_keyfile"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        hostname = error.verify_code in _WRONG_NAME
        return TlsRefusal(
            f"its certificate is not accepted: {error.verify_message}",
            "connect by a name that stands in the certificate"
            if hostname
            else "name the authority that signed it: ?ssl_ca_certs=FILE in the Redis URL",
        )
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in reason:
        return TlsRefusal(
            f"the server refused: {reason}",
            "give the certificate that it asks for: ?ssl_certfile=FILE&ssl_keyfile=FILE in the Redis URL",
        )
    return TlsRefusal(reason, "use rediss:// for a port that speaks TLS, and redis:// for one that does not")
