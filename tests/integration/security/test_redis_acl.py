"""The user of Redis: with exactly its rules everything runs, outside of them nothing, without one not all.

All tests of the run use this user (`tests/conftest.py`); here is what only a user of its own shows.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

import kafkadur.sync
from kafkadur import LevelNotReached
from kafkadur.admin.changes import Admin
from kafkadur.cli.application import app
from kafkadur.settings import settings
from kafkadur.stack import Stack, Valkey, embedded
from kafkadur_coordinators.journal.rebuilding import Outcome
from kafkadur_coordinators.redis.access import (
    COMMANDS,
    COMMANDS_BEFORE,
    COMMANDS_OF_CLUSTERS,
    redis_rules,
    redis_user,
)
from kafkadur_coordinators.redis.coordinator import Call, RedisCoordinator
from kafkadur_sharing.errors import CoordinatorRefused, CoordinatorUnavailable, IllegalState, InvalidName
from tests.integration.coordinators.world import World, blob, report, rolled_back, settled

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 180.0


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    """Provide a server whose users these tests change."""
    with embedded(kafka=False, users=True) as stack:
        assert stack.valkey is not None
        yield stack.valkey


@pytest.fixture
def administrator(server: Valkey) -> Iterator[redis.Redis]:
    """Provide the administrator's client."""
    with redis.Redis.from_url(server.admin_url, decode_responses=True) as client:
        client.execute_command("ACL", "LOG", "RESET")
        yield client


def login(server: Valkey, administrator: redis.Redis, rules: list[str]) -> str:
    """A URL of a new user who has these rules."""
    user = f"u{uuid.uuid4().hex[:8]}"
    administrator.execute_command("ACL", "SETUSER", user, "on", ">secret", *rules)
    return f"redis://{user}:secret@{server.address}/0"


def refusals(administrator: redis.Redis) -> set[str]:
    """What was refused since the test began."""
    answer: Any = administrator.acl_log()
    return {str(entry["object"]) for entry in answer}


# -- a smoke run over every script path that a command is needed for


def smoke(url: str) -> None:
    """Do everything that a command is needed for; raises if one of them is refused."""
    world, cut = World(url), World(url)
    world.coordinator._clock = None  # noqa: SLF001 - the server's clock, as in applications
    try:
        drive(world)
        cut_bitmap(cut)
    finally:
        cut.close()
        world.close()


def drive(world: World) -> None:
    """Take the scripts through attaching, settling in ranges and bitmaps, roll backs, waking and leaving.

    And what is done without a script.
    """
    coordinator, channel = world.coordinator, world.address.channel("listener")
    world.run("peek")
    world.ears.listen(channel)
    assert coordinator.heard([channel]) == {channel: True}
    world.ears.forget(channel)
    index = "kafkadur:test:nondurable"
    coordinator.command("ZADD", index, 1, "one")
    coordinator.command("ZRANGE", index, 0, 2, "BYSCORE", "LIMIT", 0, 10)
    coordinator.command("ZREM", index, "one")
    world.create()
    one, two = world.attach(), world.attach()
    one.say(report(readable_end=4_000), credit=3_000)
    two.say(credit=500, ask=True)
    token = next(iter(one.grants))
    one.say(report(settled=[settled(token, 100, 900)]), credit=0)
    one.say(report(settled=[blob(token, [2, 3, 7, 950, 1_203])]), credit=0)
    one.say(report(returned=[rolled_back(token, 20, 25)]), credit=0)
    one.say(report(settled=[settled(token, 0, 20)]), credit=0)
    one.say(report(settled=[settled(token, 25, 100)]), credit=10)
    world.inspect()
    two.say(report(readable_end=5_000), credit=500)
    assert world.ears.heard()
    world.run("pause", 1)
    world.run("pause", 0)
    one.detach(0)
    two.detach(0)
    several: list[Call] = [("peek", world.address.fixed(), coordinator.common())] * 2
    assert [reply.code for reply in coordinator.run_many(several)] == ["OK", "OK"]
    coordinator.command("SET", "kafkadur:test:replicated", "1", "PX", 60_000)
    coordinator.command("WAIT", 0, 10)
    world.run("rebuild", "token", 1_000)
    coordinator.command("UNLINK", *world.keys(0))
    index = "kafkadur:test:nondurable"
    coordinator.command("ZADD", index, 1, "one")
    coordinator.command("ZRANGE", index, 0, 1, "BYSCORE")
    coordinator.command("ZREM", index, "one")


def cut_bitmap(world: World) -> None:
    """Settle so much that the bitmap is cut below base."""
    world.create()
    member = world.attach()
    member.say(report(readable_end=60_000), credit=60_000)
    member.say(report(settled=[settled(1, 1, 50_000, 50_001, 50_002)]), credit=0)
    member.say(report(settled=[settled(1, 0, 1)]), credit=0)


def test_the_rules_are_enough(server: Valkey, administrator: redis.Redis) -> None:
    smoke(login(server, administrator, redis_rules()))
    assert refusals(administrator) == set()


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {*COMMANDS_BEFORE, *COMMANDS_OF_CLUSTERS}))
def test_without_any_one_command_something_is_refused(
    server: Valkey, administrator: redis.Redis, command: str
) -> None:
    administrator.script_flush()
    rules = [rule for rule in redis_rules() if rule != f"+{command}"]
    url = login(server, administrator, rules)
    if command == "client|setinfo":  # redis-py does without it
        smoke(url)
    else:
        with pytest.raises((CoordinatorRefused, CoordinatorUnavailable, redis.RedisError)):
            smoke(url)
    assert command in refusals(administrator)


@pytest.mark.parametrize("rule", ["~kafkadur:*", "&kafkadur:*"])
def test_without_keys_or_channels_something_is_refused(
    server: Valkey, administrator: redis.Redis, rule: str
) -> None:
    rules = [other for other in redis_rules() if other != rule]
    with pytest.raises((CoordinatorRefused, CoordinatorUnavailable, redis.RedisError)):
        smoke(login(server, administrator, rules))


OUTSIDE: list[tuple[str, ...]] = [
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "ID", "1"),
    ("ACL", "LIST"),
    ("ACL", "WHOAMI"),
    ("SCRIPT", "FLUSH"),
    ("SHUTDOWN",),
    ("SAVE",),
    ("REPLICAOF", "NO", "ONE"),
    ("MONITOR",),
    ("PUBSUB", "CHANNELS"),
    ("PUBLISH", "kafkadur:x", "x"),
    ("SUBSCRIBE", "kafkadur:x"),
    ("FUNCTION", "LIST"),
    ("EXPIRE", "kafkadur:x", "1"),
    ("COPY", "kafkadur:x", "kafkadur:y"),
    ("MIGRATE", "127.0.0.1", "1", "kafkadur:x", "0", "1"),
    ("SELECT", "1"),
]
ELSEWHERE: list[tuple[str, ...]] = [
    ("GET", "other:x"),
    ("SET", "kafkadurx", "x"),
    ("HGETALL", "kafkadu"),
    ("DEL", "other:x"),
    ("RENAME", "kafkadur:x", "other:y"),
    ("SPUBLISH", "other:x", "x"),
    ("SSUBSCRIBE", "other:x"),
    ("EVAL", "return redis.call('GET', KEYS[1])", "1", "other:x"),
    ("EVAL", "return redis.call('GET', 'other:x')", "0"),
    ("EVAL", "return redis.call('SPUBLISH', 'other:x', 'x')", "0"),
    ("EVAL", "return redis.call('KEYS', '*')", "0"),
    ("EVAL", "return redis.call('FLUSHALL')", "0"),
]


@pytest.mark.parametrize("command", [*OUTSIDE, *ELSEWHERE], ids=" ".join)
def test_outside_of_the_rules_everything_is_refused(
    server: Valkey, administrator: redis.Redis, command: tuple[str, ...]
) -> None:
    client: Any = redis.Redis.from_url(login(server, administrator, redis_rules()))
    with client, pytest.raises(redis.ResponseError, match=r"(?i)no permission|NOPERM|can't be accessed|ACL"):
        client.execute_command(*command)


def test_a_namespace_is_closed_to_the_others(server: Valkey, administrator: redis.Redis) -> None:
    """The world of these tests lives in the namespace `test`."""
    smoke(login(server, administrator, redis_rules(namespace="test")))
    assert refusals(administrator) == set()
    with pytest.raises(CoordinatorRefused, match="kafkadur acl redis"):
        smoke(login(server, administrator, redis_rules(namespace="tes")))
    with pytest.raises(CoordinatorRefused, match="kafkadur acl redis"):
        smoke(login(server, administrator, redis_rules(prefix="kafkadur2")))


# -- the whole, with a user of one namespace


def test_a_subscription_runs_in_its_namespace(
    kafkadur_stack: Stack, kafkadur_topic: Callable[..., str]
) -> None:
    topic, namespace = kafkadur_topic(), f"n{uuid.uuid4().hex[:8]}"
    assert kafkadur_stack.valkey is not None
    with redis.Redis.from_url(kafkadur_stack.admin_redis, decode_responses=True) as administrator:
        url = login(kafkadur_stack.valkey, administrator, redis_rules(namespace=namespace))
        given: dict[str, Any] = {
            "kafka": kafkadur_stack.kafka,
            "redis": url,
            "client_id": "c",
            "journal_partitions": 2,
            "level_timeout": timedelta(seconds=1),
        }
        with (
            kafkadur.sync.connect(**given, namespace=namespace) as connection,
            connection.producer() as producer,
            connection.subscribe(topic, durable="d", type="exclusive", start="earliest") as subscription,
            connection.subscribe(topic) as other,
        ):
            producer.publish(topic, "1")
            producer.flush(LIMIT_S)
            for one in (subscription, other):
                delivery = one.receive(timeout=LIMIT_S)
                assert delivery is not None
                with pytest.raises(LevelNotReached) as caught:  # there is no replica
                    delivery.ack(level="replicated")
                assert "CoordinatorRefused" not in str(caught.value)
            producer.publish(topic, "2")
            producer.flush(LIMIT_S)
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            delivery.ack(level="journal")
            with Admin(settings({**given, "namespace": namespace})) as admin:
                assert admin.rebuild().count(Outcome.INTACT) == 1
            for key in administrator.scan_iter(match=f"kafkadur:{namespace}:*", count=1_000):
                administrator.delete(key)
            with Admin(settings({**given, "namespace": namespace})) as admin:
                assert admin.rebuild().count(Outcome.REBUILT) == 1
                assert len(admin.recoveries()) == 1
        nobody = {name: value for name, value in given.items() if name != "client_id"}
        with (
            kafkadur.sync.connect(**nobody, namespace=f"{namespace}2") as connection,
            pytest.raises(CoordinatorRefused, match="acl redis"),
        ):
            connection.subscribe(topic, durable="d")
        with pytest.raises(CoordinatorRefused, match="acl redis"):
            kafkadur.sync.connect(**given, namespace=f"{namespace}2").open()


# -- the file and the command


def test_the_file_is_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKADUR_NAMESPACE", "KAFKADUR_PREFIX", "KAFKADUR_ACL_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    printed = CliRunner().invoke(app, ["acl", "redis"])
    assert printed.exit_code == 0
    assert (ROOT / "docs" / "operations" / "security" / "redis-users.acl").read_text() == printed.stdout


def test_the_command_prints_a_user_that_can_log_in(
    server: Valkey, administrator: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKADUR_ACL_PASSWORD", "very secret")
    printed = CliRunner().invoke(app, ["acl", "redis", "--namespace", "test", "--user", "shop"])
    assert "very secret" not in printed.stdout
    assert "~kafkadur:test:* " in printed.stdout
    administrator.execute_command("ACL", "SETUSER", *printed.stdout.split()[1:])
    smoke(f"redis://shop:very%20secret@{server.address}/0")


def test_without_a_password_the_user_is_off(server: Valkey, administrator: redis.Redis) -> None:
    administrator.execute_command("ACL", "SETUSER", *redis_user("nobody", password=None).split()[1:])
    with pytest.raises(CoordinatorRefused, match="user or password"):
        RedisCoordinator(f"redis://nobody:@{server.address}/0").connect()


@pytest.mark.parametrize("wrong", ["a b", "", "a\n", "a>b", "*"])
def test_what_an_acl_file_cannot_hold_is_refused(wrong: str) -> None:
    with pytest.raises(IllegalState, match="user"):
        redis_user(wrong, password=None)
    with pytest.raises(InvalidName):
        redis_rules(prefix=wrong)
    with pytest.raises(InvalidName):
        redis_rules(namespace=wrong)


def test_scripts_call_nothing_that_is_not_in_the_list() -> None:
    """Paths that the smoke run does not take included."""
    folder = ROOT / "coordinators" / "kafkadur_coordinators" / "redis" / "lua"
    called: set[str] = set()
    for file in folder.rglob("*.lua"):
        found = re.findall(r"redis\.p?call\(\s*'(\w+)'(?:,\s*'([A-Z]+)')?", file.read_text())
        called |= {f"{name}|{more}".lower() if name == "PUBSUB" else name.lower() for name, more in found}
    assert called
    assert called <= set(COMMANDS)
