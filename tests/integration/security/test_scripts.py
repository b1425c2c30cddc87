"""What a member says travels in ARGV alone: whatever it says, no script touches what is not in its KEYS.

Who may run scripts on a namespace may spoil that namespace's state: that is the boundary of trust. It must
not reach beyond, nor hold the server up for long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import redis
from hypothesis import given

from kafkadur.stack import Valkey, as_administrator
from tests.integration.coordinators.world import World, blob, report, rolled_back, settled
from tests.integration.security.any_values import ITEMS, many, temporary_world
from tests.integration.security.requests import changed

FEW, MANY = 75, 3_000
#: Seconds one call may hold the server up, on a busy machine.
SOON_S = 1.0
SCRIPTS = (
    "attach",
    "change",
    "confirm",
    "detach",
    "exchange",
    "inspect",
    "install",
    "partitions",
    "pause",
    "peek",
    "rebuild",
    "renew",
)
CHANGING = ("change", "install", "partitions")
FIXED = ("detach", "exchange", "inspect", "partitions")


@pytest.fixture
def neighbour(server: Valkey) -> Iterator[World]:
    """Provide a subscription that nobody must touch."""
    world = World(server.url, partitions=2).create()
    member = world.attach()
    member.say(report(readable_end=10), credit=5)
    member.say(report(settled=[settled(1, 0, 2)]), credit=0)
    yield world
    world.close()


def keys_of(client: Any, root: str) -> set[bytes]:
    """All keys outside of a subscription."""
    return {key for key in client.scan_iter(count=1_000) if not key.startswith(root.encode())}


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_a_hostile_member_stays_within_its_keys(server: Valkey, neighbour: World, examples: int) -> None:
    before = neighbour.dump()
    client: Any = redis.Redis.from_url(as_administrator(server.url))

    @many(examples)
    @given(
        name=st.sampled_from(SCRIPTS),
        request=st.lists(ITEMS, max_size=12),
        usual=st.booleans(),
        at=st.integers(0, 10_000),
        item=ITEMS,
    )
    def attack(name: str, request: list[Any], usual: bool, at: int, item: Any) -> None:
        with temporary_world(server, client) as world:
            member = prepared(world, name)
            kept = keys_of(client, world.address.root)
            keys = keys_for(world, name)
            if usual:
                request = changed(list(usual_request(world, member, name)), at, item)
            stored = world.dump()
            started = time.monotonic()
            code = world.coordinator.run(name, keys, request).code
            assert time.monotonic() - started < SOON_S, (name, request)
            assert code != "INVALID" or world.dump() == stored, (name, request)
            assert keys_of(client, world.address.root) == kept, (name, request)

    with client:
        attack()
        assert client.ping()
    assert neighbour.dump() == before


def keys_for(world: World, name: str) -> list[str]:
    """The keys that a script takes, for two partitions."""
    if name in {"confirm", "renew"}:
        return world.address.fixed()[:2]
    return [*world.address.fixed(), *(world.keys(0) + world.keys(1) if name in FIXED else [])]


def prepared(world: World, name: str) -> str:
    """Bring a subscription where a script has something to do; returns the member's id."""
    member = world.attach()
    member.say(report(readable_end=50), credit=20)
    if name in CHANGING:
        member.detach(0, 1)
    if name in {"install", "partitions"}:
        world.run("change", 1, "token", 20_000)
    return member.id


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_spoilt_was_good(server: Valkey, name: str) -> None:
    world = World(server.url, partitions=2).create()
    try:
        member = prepared(world, name)
        keys = keys_for(world, name)
        code = world.coordinator.run(name, keys, usual_request(world, member, name)).code
        assert code == ("INTACT" if name == "rebuild" else "OK")
    finally:
        world.close()


def sequence_of(world: World) -> int:
    """Number of the last change of a subscription."""
    return int(world.field("sequence"))


def usual_request(world: World, member: str, name: str) -> Sequence[object]:
    """A request as members make it."""
    common = world.coordinator.common(subscription_id=world.id, incarnation=1, member=member)
    parts = [
        report(
            readable_end=60,
            settled=[settled(1, 0, 3), blob(1, [9, 11])],
            returned=[rolled_back(1, 5, 8, 100)],
        ),
        report(1, readable_end=50),
    ]
    return {
        "attach": [*common, "name", 10_000, 1, 0, "", 0, 0, 0, ""],
        "change": [*common, 1, "token", 20_000],
        "confirm": [*common, 2, 1, 0, 1, 10, 0, 60, -1, -1, 1, 0, 3, 0, 0],
        "detach": [*common, [0, 1], 0],
        "exchange": [*common, 2, 10, 1, 1, 10, parts, 0, 0, 1],
        "inspect": [*common, [0, 1], 1, ""],
        "install": [*common, world.id, 2, "{}", "shared", 2, 1, "token", 0, [0, 0, 0, 0, 1, 0], 0, 0, 0],
        "partitions": [*common, [[0, 1, 0, b"", -1], [1, 1, 0, b"", -1]], "token", 2, 0],
        "pause": [*common, 1],
        "peek": common,
        "rebuild": [*common, "token", 1_000],
        "renew": [*common, 1, sequence_of(world)],
    }[name]
