"""Sentinels over TLS, with users of their own, and what is said when one of them refuses.

Valkey of the wheel knows no TLS: the kit's proxies end it before the Sentinel and before the server, and a
relay lets the Sentinel tell the port of the server's. What follows a failover is `tests/integration/faults`.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from kafkadur.stack import Stack, TcpProxy, embedded
from kafkadur.stack.valkey import APPLICATION, SERVICE, ask
from kafkadur_coordinators.redis.coordinator import RedisCoordinator
from kafkadur_coordinators.redis.presence import Presence
from kafkadur_sharing.errors import CoordinatorRefused, CoordinatorUnavailable, KafkadurError
from tests.integration.security.secured import HOST, SECRET, Certificates, server_tls
from tests.relaying import relay

#: What a user of a Sentinel needs.
RIGHTS = ("-@all", "+sentinel|masters")
TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A server and a Sentinel, and TLS before both."""

    stack: Stack
    certificates: Certificates
    sentinel: TcpProxy
    server: TcpProxy

    def url(
        self,
        *,
        scheme: str = "rediss+sentinel",
        login: str = APPLICATION,
        host: str = HOST,
        user: str = "watcher",
        password: str = SECRET,
        ca: Path | None = None,
    ) -> str:
        """The Sentinel behind TLS; `login` is the server's, `user` and `password` are the Sentinel's."""
        query: dict[str, Any] = {"sentinel_username": user, "sentinel_password": password}
        if scheme.startswith("rediss"):
            query["ssl_ca_certs"] = ca or self.certificates.ca
        return f"{scheme}://{login}@{host}:{self.sentinel.port}/{SERVICE}/0?{urlencode(query)}"


@pytest.fixture(scope="module")
def watched(certificates: Certificates) -> Iterator[Watched]:
    """Provide a server and its Sentinel, which knows `watcher`, and `blind`, who may not ask."""
    tls = server_tls(certificates, certificates.server)
    with embedded(kafka=False, replica=True, sentinels=1, users=True) as stack:
        assert stack.valkey is not None
        (sentinel,) = stack.sentinels
        for user, rights in (("watcher", RIGHTS), ("blind", RIGHTS[:1])):
            assert ask(sentinel.url, "ACL", "SETUSER", user, "on", f">{SECRET}", *rights)
        with TcpProxy((HOST, stack.valkey.port), tls=tls) as server:
            there, told = (b"\r\n%d\r\n" % port for port in (stack.valkey.port, server.port))
            with (
                relay(sentinel.port, there, told) as port,
                TcpProxy((HOST, port), tls=tls) as before,
            ):
                yield Watched(stack=stack, certificates=certificates, sentinel=before, server=server)


def refused(url: str) -> KafkadurError:
    """What connecting raises; the error says state, owner and remedy, and no secret."""
    coordinator = RedisCoordinator(url, timeout=TIMEOUT_S)
    with pytest.raises(KafkadurError) as caught:
        coordinator.connect()
    coordinator.close()
    for part in (caught.value.state, caught.value.owner, caught.value.remedy):
        assert part
    told = "".join(traceback.format_exception(caught.value))
    for form in (SECRET, quote(SECRET, safe=""), repr(SECRET)[1:-1], SECRET[:6]):
        assert form not in told
    return caught.value


def test_sentinels_over_tls(watched: Watched) -> None:
    coordinator = RedisCoordinator(watched.url(), timeout=TIMEOUT_S)
    presence = Presence(watched.url(), timeout=TIMEOUT_S)
    try:
        channel = "kafkadur:test:{x}:c:m"
        presence.listen(channel, lambda _: None)
        assert coordinator.heard([channel]) == {channel: True}
        assert watched.sentinel.connections >= 2, "both asked the Sentinel over TLS"
        assert watched.server.connections == 2, "and came to the server over TLS"
    finally:
        presence.close()
        coordinator.close()


def test_an_unknown_authority_is_said(watched: Watched) -> None:
    error = refused(watched.url(ca=watched.certificates.other_ca))
    assert isinstance(error, CoordinatorRefused)
    assert "ssl_ca_certs" in str(error)
    assert f"rediss+sentinel://{HOST}:{watched.sentinel.port}/{SERVICE}" in str(error)


def test_another_name_is_said(watched: Watched) -> None:
    error = refused(watched.url(host="localhost"))
    assert isinstance(error, CoordinatorRefused)
    assert "name that stands in the certificate" in str(error)


def test_a_missing_file_is_said(watched: Watched) -> None:
    error = refused(watched.url(ca=Path("/nowhere.pem")))
    assert isinstance(error, CoordinatorRefused)
    assert "ssl_ca_certs" in str(error)


def test_no_tls_where_a_sentinel_speaks_it_is_said(watched: Watched) -> None:
    error = refused(watched.url(scheme="redis+sentinel"))
    assert isinstance(error, CoordinatorUnavailable)
    assert "rediss+sentinel://" in str(error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"password": f"{SECRET}!"},
        {"user": "nobody"},
        {"login": f"application:{quote(SECRET, safe='')}"},
    ],
    ids=["the Sentinel's password", "the Sentinel's user", "the server's password"],
)
def test_a_wrong_login_is_said(watched: Watched, wrong: dict[str, Any]) -> None:
    error = refused(watched.url(**wrong))
    assert isinstance(error, CoordinatorRefused)
    assert "user or password" in str(error)


def test_who_may_not_ask_a_sentinel_is_told(watched: Watched) -> None:
    error = refused(watched.url(user="blind"))
    assert isinstance(error, CoordinatorUnavailable)
    assert "no permissions" in str(error)
    assert "sentinel|masters" in str(error)
