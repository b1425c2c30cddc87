"""Damage of a state is noticed by the next script, whichever it is (I13)."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from kafkadur.stack import as_administrator
from kafkadur_coordinators.redis import scripts
from kafkadur_coordinators.redis.coordinator import STATE_VERSION, STATE_VERSION_BEFORE
from tests.integration.coordinators.world import Member, World, refusal, report, rolled_back, settled

Make = Callable[..., World]
#: What each script compares; without it damage stays unnoticed.
COMPARED = "answer_of('GET', KEYS[2]) == struct.pack(SEAL, ctx.sequence, ctx.fields)"


@pytest.fixture
def world(make: Make) -> World:
    """Provide a subscription with bits, an exception and a lease."""
    return make(version=STATE_VERSION)


@pytest.fixture
def member(world: World) -> Member:
    """Provide its member."""
    member = world.attach()
    member.say(report(readable_end=9), credit=20)
    return member


@pytest.fixture
def client(world: World) -> Iterator[Any]:
    """Provide a client that may do everything."""
    with redis.Redis.from_url(as_administrator(world.url)) as client:
        yield client


def use(member: Member) -> str:
    """Let a member settle and give back; returns the code."""
    number = member.number
    said = report(settled=[settled(1, 2, 4)], returned=[rolled_back(1, 6, 7)])
    refused = refusal(lambda: member.say(said, credit=0))
    member.number = number if refused else member.number
    return refused.code if refused else "OK"


def codes(world: World, member: Member) -> set[str]:
    """What scripts answer that read the state, and one that writes it."""
    common = world.coordinator.common(subscription_id=world.id)
    inspect = world.coordinator.inspecting(world.address, world.id, "topic-1", [0])
    return {
        use(member),
        world.coordinator.run("peek", world.address.fixed(), common).code,
        world.coordinator.run(*inspect).code,
        world.run("pause", 0).code,
    }


@pytest.mark.parametrize("name", ["def", "seal"])
@pytest.mark.parametrize("how", ["deleted", "overwritten", "older", "cut off"])
def test_i13_each_script_finds_no_state(
    world: World, member: Member, client: Any, name: str, how: str
) -> None:
    key = world.address.root + name
    copy = client.dump(key)
    assert use(member) == "OK"
    if how == "deleted":
        client.delete(key)
    elif how == "overwritten":
        client.set(key, "something else")
    elif how == "older":
        client.restore(key, 0, copy, replace=True)
    elif name == "def":
        client.hdel(key, "b:0")
    else:
        client.set(key, client.get(key)[:4])
    assert codes(world, member) == {"MISSING"}
    assert world.run("rebuild", "again", 20_000).code == "OK"
    assert world.put("again").code == "OK"
    assert world.install("again", version=1, incarnation=9).code == "OK"
    assert world.attach("other").say(report(readable_end=9), credit=9).grants


@pytest.mark.parametrize("begin", ["p:", "b:", "i:", "r:", "m:", "l:"])
def test_i13_a_record_that_cannot_be_read_is_found_by_the_call_that_reads_it(
    world: World, member: Member, client: Any, begin: str
) -> None:
    assert use(member) == "OK"
    fields = [name for name in client.hkeys(world.state) if name.startswith(begin.encode())]
    assert fields
    for name in fields:
        client.hset(world.state, name, b"\xc1")
    assert use(member) == "MISSING"
    assert codes(world, member) == {"MISSING"}, "from then on no call finds a state"


def test_a_record_of_the_version_before_that_cannot_be_read_is_rebuilt(make: Make) -> None:
    """Its loss is not noticed, but no call fails for ever."""
    world = make(version=STATE_VERSION_BEFORE)
    member = world.attach()
    member.say(report(readable_end=9), credit=20)
    world.coordinator.command("HSET", world.address.fixed()[3], member.id, b"\xc1")
    assert use(member) == "MISSING"
    assert codes(world, member) == {"MISSING"}
    assert world.run("rebuild", "again", 20_000).code == "OK"


def test_i13_a_definition_that_was_changed_by_hand_is_found(
    world: World, member: Member, client: Any
) -> None:
    assert use(member) == "OK"
    client.hset(world.state, "definition", '{"topic_id": "topic-2"}')
    peeked = refusal(lambda: world.coordinator.peek(world.address))
    assert peeked is not None
    assert peeked.code == "MISSING"
    assert codes(world, member) == {"MISSING"}


def test_scripts_that_do_not_compare_the_seal_work_with_an_older_copy(
    world: World, member: Member, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted defect: the tests above would find it."""
    copy = client.dump(world.state)
    assert use(member) == "OK"
    client.restore(world.state, 0, copy, replace=True)
    load = scripts.load

    def planted(name: str, *, trusts_clock: bool = False) -> scripts.Script:
        script = load(name, trusts_clock=trusts_clock)
        assert COMPARED in script.text
        text = script.text.replace(COMPARED, "true")
        return replace(script, text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    monkeypatch.setattr(scripts, "load", planted)
    assert "OK" in codes(world, member)
