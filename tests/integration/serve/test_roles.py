"""Who may do what: each route with each role; and what pages of other sites cannot do."""

import socket
from pathlib import Path
from typing import Any

import pytest

import kafkadur.sync
from kafkadur.service.access import Role, add_token, read_tokens
from kafkadur.settings import Settings
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.serve.test_reading import prepared
from tests.serving import WRITE, Api, served

#: The lowest role of each route; None: everybody, also without a token.
LOWEST = {
    ("get", "/livez"): None,
    ("get", "/readyz"): None,
    ("get", "/metrics"): "viewer",
    ("get", "/api/v1/events"): "viewer",
    ("get", "/api/v1/me"): "viewer",
    ("get", "/api/v1/audit"): "viewer",
    ("get", "/api/v1/subscriptions"): "viewer",
    ("get", "/api/v1/subscriptions/{id}"): "viewer",
    ("get", "/api/v1/subscriptions/{id}/holes"): "viewer",
    ("get", "/api/v1/subscriptions/{id}/samples"): "viewer",
    ("get", "/api/v1/subscriptions/{id}/why"): "viewer",
    ("get", "/api/v1/subscriptions/{id}/explain"): "viewer",
    ("get", "/api/v1/subscriptions/{id}/history"): "viewer",
    ("get", "/api/v1/subscriptions/{id}/messages"): "viewer",
    ("get", "/api/v1/subscriptions/{id}/dead"): "viewer",
    ("get", "/api/v1/subscriptions/{id}/dead/{letter}"): "operator",
    ("get", "/api/v1/subscriptions/{id}/snapshot"): "operator",
    ("post", "/api/v1/subscriptions/{id}/pause"): "operator",
    ("post", "/api/v1/subscriptions/{id}/resume"): "operator",
    ("post", "/api/v1/subscriptions/{id}/drain"): "operator",
    ("post", "/api/v1/subscriptions/{id}/dead/redrive"): "operator",
    ("post", "/api/v1/subscriptions/{id}/dead/purge"): "admin",
    ("post", "/api/v1/subscriptions/{id}/evict"): "admin",
    ("post", "/api/v1/subscriptions/{id}/seek"): "admin",
    ("post", "/api/v1/subscriptions/{id}/restore"): "admin",
    ("post", "/api/v1/subscriptions/{id}/fork"): "admin",
    ("post", "/api/v1/subscriptions/{id}/alter"): "admin",
    ("post", "/api/v1/subscriptions/{id}/unsubscribe"): "admin",
}
RANK = ("nobody", "viewer", "operator", "admin")
QUERIES = {"explain": {"partition": 0, "offset": 0}}


def orders(snapshot: Any) -> dict[str, dict[str, Any]]:
    """An order that a route takes; none of them skips or deletes anything."""
    return {
        "seek": {"to": "latest"}, "restore": {"snapshot": snapshot}, "fork": {"new": "invoices"},
        "alter": {"changes": {}}, "drain": {"timeout": 0}, "evict": {"member": "nobody"}, "unsubscribe": {},
        "redrive": {}, "purge": {},
    }  # fmt: skip


def test_each_route_has_a_lowest_role_in_the_table(callers: dict[str, Api]) -> None:
    described = callers["nobody"].client.get("/openapi.json").json()["paths"]
    assert {(method, path) for path, methods in described.items() for method in methods} == LOWEST.keys()


def test_each_route_with_each_role(
    callers: dict[str, Api], connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    prepared(connection, kafkadur_topic(), "invoices")
    snapshot = callers["admin"].get("subscriptions/invoices/snapshot")
    callers["viewer"].listed()
    letter = callers["viewer"].get("subscriptions/invoices/dead")["entries"][0]["letter"]
    for (method, path), lowest in LOWEST.items():
        verb = path.rpartition("/")[2]
        for role in RANK:
            allowed = lowest is None or RANK.index(role) >= RANK.index(lowest)
            order = orders(snapshot).get(verb) if method == "post" else None
            request = callers[role].client.build_request(
                method,
                path.replace("{id}", "invoices").replace("{letter}", letter),
                params=QUERIES.get(verb),
                json=order,
                headers=WRITE if method == "post" else {},
            )
            answer = callers[role].client.send(request, stream=True)
            answer.close()
            refused = 401 if role == "nobody" else 403
            expected = {"fork": 409, "evict": 404}.get(verb, 200) if allowed else refused
            assert answer.status_code == expected, (method, path, role)


def test_a_viewer_sees_no_payloads(
    callers: dict[str, Api], connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    prepared(connection, kafkadur_topic(), "invoices")
    for each in callers["viewer"].get("subscriptions/invoices/messages")["entries"]:
        assert (each["hidden"], each["value"], each["key"], each["properties"]) == (True, None, None, {})
    (letter,) = callers["viewer"].get("subscriptions/invoices/dead")["entries"]
    assert (letter["cause"], letter["reason"]) == ("rejected", "")
    guess = callers["viewer"].client.get(
        "/api/v1/subscriptions/invoices/dead", params={"where": "amount = 2"}
    )
    assert guess.status_code == 403
    seen = callers["operator"].get("subscriptions/invoices/messages")["entries"]
    assert [each["hidden"] for each in seen] == [False] * 3
    (letter,) = callers["operator"].get("subscriptions/invoices/dead")["entries"]
    assert letter["reason"] == "not wanted"


def test_a_proxy_speaks_for_people(place: Settings, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    sso, viewer = add_token(file, "sso", None), add_token(file, "eve", Role.VIEWER)
    as_admin = {"X-Forwarded-User": "ada@example.org", "X-Forwarded-Groups": "staff,kafkadur-admin"}
    with served(place, read_tokens(file)) as address:
        with Api(address, sso).client as proxy:
            me = proxy.get("/api/v1/me", headers=as_admin).json()
            assert (me["name"], me["role"]) == ("sso:ada@example.org", "admin")
            umlaut = [
                (name.encode(), text.encode())
                for name, text in {**as_admin, "X-Forwarded-User": "Jürgen"}.items()
            ]
            assert proxy.get("/api/v1/me", headers=umlaut).json()["name"] == "sso:Jürgen"
            for name, of_the_browser in (
                ("X-Forwarded-Groups", "kafkadur-admin"),
                ("X-Forwarded-User", "eve"),
            ):
                twice = [*as_admin.items(), (name, of_the_browser)]
                assert proxy.get("/api/v1/me", headers=twice).status_code == 403, name
            nobody = proxy.get("/api/v1/me", headers={"X-Forwarded-User": "bob"})
            assert nobody.status_code == 403
            assert "names nobody with a role" in nobody.json()["detail"]
            assert proxy.get("/api/v1/me").status_code == 403
        with Api(address, viewer).client as other:
            me = other.get("/api/v1/me", headers=as_admin).json()
            assert (me["name"], me["role"]) == ("eve", "viewer")
    with served(place, None) as address, Api(address).client as local:
        assert local.get("/api/v1/me", headers=as_admin).status_code == 403, "a proxy asks for somebody else"


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YTpi"}])
def test_an_unknown_token_is_refused(callers: dict[str, Api], headers: dict[str, str]) -> None:
    answer = callers["nobody"].client.get("/api/v1/subscriptions", headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_a_page_of_another_site_can_do_nothing(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    """A form of it cannot send the header; a name of its own that leads here is refused."""
    prepared(connection, kafkadur_topic(), "invoices")
    form = api.client.post("/api/v1/subscriptions/invoices/pause", headers={"Content-Type": "text/plain"})
    assert form.status_code == 403
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "x-kafkadur-write"}  # fmt: skip
    preflight = api.client.options("/api/v1/subscriptions/invoices/pause", headers=asked)
    assert "access-control-allow-origin" not in preflight.headers
    assert api.client.get("/api/v1/subscriptions", headers={"Host": "evil.example"}).status_code == 403
    assert not api.get("subscriptions/invoices")["paused"]


def test_answers_have_headers_that_keep_browsers_from_harm(api: Api) -> None:
    for path in ("/", "/page.js", "/api/v1/me", "/api/v1/nothing"):
        headers = api.client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers or "uvicorn" in headers["server"]


@pytest.mark.parametrize(("verb", "size"), [("seek", 70_000), ("restore", 17 * 1024 * 1024)])
def test_a_body_that_is_too_large_is_refused(api: Api, verb: str, size: int) -> None:
    def much() -> Any:
        for _ in range(size // 1024):
            yield b"x" * 1024

    answer = api.client.post(f"/api/v1/subscriptions/invoices/{verb}", content=much(), headers=WRITE)
    assert answer.status_code == 413


def test_the_body_of_somebody_unknown_is_not_read(callers: dict[str, Api]) -> None:
    address = callers["nobody"].client.base_url
    with socket.create_connection((address.host, address.port or 0), timeout=60) as asking:
        asking.sendall(
            b"POST /api/v1/subscriptions/invoices/restore HTTP/1.1\r\nHost: localhost\r\n"
            b"X-Kafkadur-Write: yes\r\nContent-Length: 10000000000\r\n\r\n{"
        )
        answer = b"".join(iter(lambda: asking.recv(65_536), b""))  # until the service closes the connection
    assert answer.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": "cross-site"}, {"X-Forwarded-For": "10.0.0.1"}, {"Via": "1.1 proxy"}],
)
def test_without_tokens_neither_other_sites_nor_proxies_ask(api: Api, headers: dict[str, str]) -> None:
    assert api.client.get("/api/v1/subscriptions", headers=headers).status_code == 403
