"""Which node of a cluster serves which slots, as its reply says; addresses of clusters."""

from typing import Any

import pytest

from kafkadur_coordinators.redis.cluster import SLOTS, SlotMap, slot_of
from kafkadur_coordinators.redis.server import address_of, check_url, first_nodes, open_server, shown

A, B, C = ("10.0.0.1", 6379), ("10.0.0.2", 6379), ("10.0.0.3", 6380)
REPLY: list[Any] = [
    [10923, 16383, [b"10.0.0.3", 6380, b"id3"], [b"10.0.0.6", 6379, b"id6"]],
    [0, 5460, [b"10.0.0.1", 6379, b"id1", []]],
    [5461, 10000, [b"10.0.0.2", 6379, b"id2"]],
]


def test_each_slot_has_the_primary_of_its_range() -> None:
    slots = SlotMap.of_reply(REPLY, A)
    assert [slots.node(slot) for slot in (0, 5460, 5461, 10_000, 10_923, SLOTS - 1)] == [A, A, B, B, C, C]
    assert slots.node(10_001) is None, "no node serves it"
    assert slots.nodes() == [A, B, C]
    assert slots.served() == SLOTS - 922


def test_a_cluster_without_slots() -> None:
    slots = SlotMap.of_reply([], A)
    assert slots.node(0) is None
    assert slots.nodes() == []
    assert slots.served() == 0


@pytest.mark.parametrize("host", [b"", None])
def test_a_node_that_does_not_know_its_host_is_the_one_that_was_asked(host: bytes | None) -> None:
    slots = SlotMap.of_reply([[0, 5, [host, 7000, b"id"]]], A)
    assert slots.node(3) == ("10.0.0.1", 7000)


def test_a_moved_slot_is_at_the_other_node_and_its_neighbours_are_not() -> None:
    before = SlotMap.of_reply(REPLY, A)
    moved = before.moved(7, B)
    assert [moved.node(slot) for slot in (6, 7, 8)] == [A, B, A]
    assert before.node(7) == A
    new = ("10.0.0.9", 6379)
    assert new in moved.moved(8, new).nodes()
    assert moved.moved(8, new).node(7) == B


def test_all_that_belongs_to_a_subscription_has_one_slot() -> None:
    tag = "{0123456789abcdef}"
    keys = [f"kafkadur:shop:{tag}:{end}" for end in ("def", "seal", "c:member", "p:topic:0:state")]
    assert len({slot_of(key) for key in keys}) == 1
    assert slot_of("kafkadur:shop:{0123456789abcdee}:def") != slot_of(keys[0])


def test_what_a_url_of_a_cluster_says() -> None:
    url = "rediss+cluster://u:p%40x@a:1,[::1],b?ssl_ca_certs=/c"
    check_url(url)
    assert shown(url) == "rediss+cluster://a:1,[::1],b"
    assert first_nodes(url) == (("a", 1), ("::1", 6379), ("b", 6379))
    with open_server(url, timeout=1.0, node=("c", 2)) as client:
        told = client.connection_pool.connection_kwargs
    assert {name: told[name] for name in ("host", "port", "username", "password", "ssl_ca_certs")} == {
        "host": "c",
        "port": 2,
        "username": "u",
        "password": "p@x",
        "ssl_ca_certs": "/c",
    }
    assert told["ssl_check_hostname"] is True


@pytest.mark.parametrize(
    ("url", "place"), [("redis://u:p@a:1/0", "c:2"), ("rediss://a?ssl_check_hostname=false", "c:2")]
)
def test_other_nodes_of_a_cluster_take_the_login_of_the_first(url: str, place: str) -> None:
    with open_server(url, timeout=1.0, node=("c", 2)) as client:
        told = client.connection_pool.connection_kwargs
    assert f"{told['host']}:{told['port']}" == place
    assert told.get("username") == ("u" if "@" in url else None)
    assert told.get("ssl_check_hostname", False) is False


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://a:1/0", ("a", 1)),
        ("rediss://u:p@a", ("a", 6379)),
        ("redis://", ("localhost", 6379)),
        ("unix:///run/redis.sock", None),
        ("redis+cluster://a:1", None),
    ],
)
def test_the_address_of_one_server(url: str, address: tuple[str, int] | None) -> None:
    assert address_of(url) == address
