"""Rules A1 to A5: what is shown of a subscription, how abandoned ones are found and deleted."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis
from typer.testing import CliRunner

from kafkadur.admin.changes import Admin
from kafkadur.cli.application import app
from kafkadur_sharing.keys import SubscriptionKey
from tests.integration.coordinators import stored
from tests.integration.subscriptions.helpers import LIMIT_S, Place, wait_until
from tests.integration.subscriptions.workers import Worker

WEEK_MS = 7 * 86_400_000


@pytest.fixture
def admin(place: Place) -> Iterator[Admin]:
    """Provide who looks."""
    with Admin(place.connect_sync().settings) as admin:
        yield admin


def environment(place: Place) -> dict[str, str]:
    """What tells a command where it is."""
    return {
        "KAFKADUR_KAFKA": place.stack.kafka,
        "KAFKADUR_REDIS": place.stack.redis,
        "KAFKADUR_NAMESPACE": place.namespace,
        "KAFKADUR_JOURNAL_PARTITIONS": "2",
    }


def kafkadur_command(place: Place, *arguments: str, code: int = 0) -> Any:
    """Run a command at this place; returns what it printed as JSON."""
    done = CliRunner().invoke(app, ["--json", *arguments], env=environment(place))
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def left_long_ago(place: Place, key: SubscriptionKey, ms: int) -> None:
    """Have a subscription look as if nobody had come by for so long."""
    with Redis.from_url(place.stack.admin_redis) as redis:
        where = f"kafkadur:{place.namespace}:{{{key.tag}}}:def"
        known = stored.read(redis.execute_command, where)
        stored.change(redis.execute_command, where, begun=known.begun - ms, left=known.left - ms)


def test_a1_last_verdict_and_what_waits_tell_of_abandoned_ones(place: Place, admin: Admin) -> None:
    topic = place.topic(range(1, 6))
    with place.connect_sync() as connection:
        before = time.time() * 1000 - 5_000
        with connection.subscribe(topic, durable="d", start="earliest") as subscription:
            info = admin.info(connection.key("d"))
            assert (info.active, info.unattended_since, info.last_verdict) == (True, None, None)
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            delivery.ack()
            verdict = admin.info(connection.key("d")).last_verdict
            assert verdict is not None
            assert verdict > before
        info = admin.info(connection.key("d"))
        assert info.last_verdict is not None
        assert info.unattended_since is not None
        assert info.unattended_since >= verdict
        assert (info.active, info.backlog) == (False, 4)
        assert [found.key for found in admin.abandoned(timedelta(0))] == [info.key]
        assert admin.abandoned(timedelta(days=7)) == ()
        with connection.subscribe(topic, durable="d"):
            assert admin.abandoned(timedelta(0)) == ()


def test_a1_one_that_nobody_ever_came_back_to(place: Place, admin: Admin) -> None:
    topic = place.topic()
    with place.connect_sync() as connection:
        for name in ("old", "older", "new"):
            connection.subscribe(topic, durable=name).close()
        left_long_ago(place, connection.key("old"), WEEK_MS)
        left_long_ago(place, connection.key("older"), 2 * WEEK_MS)
        assert [found.key.name for found in admin.abandoned(timedelta(days=6))] == ["older", "old"]
        connection.subscribe(topic, durable="older").close()
        assert [found.key.name for found in admin.abandoned(timedelta(days=6))] == ["old"]


def test_a1_a_killed_process_is_not_there_any_more(
    place: Place, admin: Admin, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker(place.topic(), durable="d", type="shared")
    assert admin.abandoned(timedelta(0)) == ()
    worker.kill()
    wait_until(lambda: len(admin.abandoned(timedelta(0))) == 1, "the killed worker is not heard")
    (info,) = admin.abandoned(timedelta(0))
    assert info.unattended_since is not None
    assert info.unattended_since <= info.now


def test_a1_what_a_killed_process_had_is_not_in_flight_when_its_session_has_ended(
    place: Place, admin: Admin, start_worker: Callable[..., Worker]
) -> None:
    """Draining waits for nobody then; until another member comes, the leases stay."""
    worker = start_worker(place.topic([1, 2, 3]), durable="d", start="earliest", session_timeout=1.0)
    assert len(worker.receive(2)) == 2
    (info,) = admin.list()
    assert info.in_flight >= 2
    worker.kill()
    drained = admin.drain(info.key, timeout=LIMIT_S)
    assert (drained.held, drained.in_flight, drained.backlog) == ((), 0, 3)


def test_a1_what_is_known_begins_anew_after_a_loss_of_redis(place: Place, admin: Admin) -> None:
    topic = place.topic()
    with place.connect_sync() as connection:
        connection.subscribe(topic, durable="d").close()
        key = connection.key("d")
        left_long_ago(place, key, WEEK_MS)
        since = admin.info(key).unattended_since
        with Redis.from_url(place.stack.admin_redis) as redis:
            redis.delete(*redis.keys(f"kafkadur:{place.namespace}:*"))
        again = admin.info(key).unattended_since
        assert since is not None
        assert again is not None
        assert again >= since + WEEK_MS


def test_a1_altering_it_is_not_attending_it(place: Place, admin: Admin) -> None:
    topic = place.topic()
    with place.connect_sync() as connection:
        connection.subscribe(topic, durable="d").close()
        key = connection.key("d")
        left_long_ago(place, key, WEEK_MS)
        since = admin.info(key).unattended_since
        admin.alter(key, type="serial")
        admin.seek(key, "latest")
        assert admin.info(key).unattended_since == since


def test_a2_abandoned_ones_are_deleted_on_request(
    place: Place, admin: Admin, start_worker: Callable[..., Worker]
) -> None:
    topic = place.topic(range(1, 4))
    with place.connect_sync() as connection:
        for name in ("old", "new"):
            connection.subscribe(topic, durable=name, start="earliest").close()
        left_long_ago(place, connection.key("old"), WEEK_MS)
    start_worker(topic, durable="used", type="shared")
    command = "sub", "abandoned", "--older-than", "6d"
    (listed,) = kafkadur_command(place, *command)
    assert (listed["name"], listed["backlog"], listed["last_verdict"]) == ("old", 3, None)
    assert not kafkadur_command(place, *command, "--delete")[0]["deleting"]
    assert len(admin.list()) == 3
    assert kafkadur_command(place, *command, "--delete", "--yes")[0]["deleting"]
    assert {info.key.name for info in admin.list()} == {"new", "used"}
    assert kafkadur_command(place, *command) == []
    assert kafkadur_command(place, "sub", "abandoned", "--older-than", "0s")[0]["name"] == "new"


def test_a2_for_people(place: Place) -> None:
    with place.connect_sync() as connection:
        connection.subscribe(place.topic(), durable="old").close()
    where = environment(place)
    run = CliRunner()
    shown = run.invoke(app, ["sub", "abandoned", "--older-than", "0s", "--delete"], env=where)
    assert "c1/old (unrestricted)" in shown.stdout
    assert "add --yes" in shown.stderr
    done = run.invoke(app, ["sub", "abandoned", "--older-than", "0s", "--delete", "--yes"], env=where)
    assert "Deleted 1" in done.stderr
    none = run.invoke(app, ["sub", "abandoned"], env=where)
    assert (none.exit_code, none.stdout) == (0, "")
    assert "No durable subscription" in none.stderr


@pytest.mark.parametrize("wrong", ["7", "d", "7 d", "-1d", "99999999999w"])
def test_a2_an_age_that_is_none_is_refused(wrong: str) -> None:
    refused = CliRunner().invoke(app, ["sub", "abandoned", f"--older-than={wrong}"])
    assert refused.exit_code == 2
    assert "is no age" in refused.stderr


@pytest.mark.parametrize(
    ("policy", "name"), [("restricted", "c9_d"), ("unrestricted", "c9_d@{topic}@{namespace}")]
)
def test_d7_a3_names(place: Place, admin: Admin, policy: str, name: str) -> None:
    topic = place.topic()
    with place.connect_sync(client_id="c9", client_id_policy=policy) as connection:
        connection.subscribe(topic, durable="d").close()
        found = admin.info(connection.key("d")).runtime_name
    assert found == name.format(topic=topic, namespace=place.namespace)


def test_a4_non_durable_ones_are_not_listed(place: Place, admin: Admin) -> None:
    topic = place.topic([1])
    with (
        place.connect_sync() as connection,
        connection.subscribe(topic, durable="d"),
        connection.subscribe(topic, shared="s") as shared,
    ):
        assert [info.key.name for info in admin.list()] == ["d"]
        assert shared.statistics()["in_hands"] == 0  # that is where to look


def test_a5_attributes(place: Place, admin: Admin) -> None:
    """Current and pending, in messages and bytes: pending is what nobody else can see now."""
    topic = place.topic()
    with place.connect_sync() as connection, connection.producer() as producer:
        subscription = connection.subscribe(
            topic, durable="d", type="exclusive", selector="n > 1", no_local=False, window=3
        )
        for number in range(8):
            producer.publish(topic, b"x" * 10, key=b"key", properties={"n": number})
        producer.flush(LIMIT_S)
        held = [subscription.receive(timeout=LIMIT_S) for _ in range(3)]
        assert all(held)
        assert held[0] is not None
        held[0].ack()
        key = connection.key("d")
        told: list[int] = []
        found = admin.sizes(key, told.append)
        assert (
            found.messages_current + found.messages_pending,
            found.bytes_current + found.bytes_pending,
        ) == (
            5,
            65,
        )
        assert found.messages_pending >= 2
        assert told[-1] >= 5
        subscription.close()
        found = admin.sizes(key)
        assert (found.messages_current, found.messages_pending) == (5, 0)
        with connection.subscribe(topic, durable="d", type="exclusive", selector="n > 1") as again:
            delivery = again.receive(timeout=LIMIT_S)
            assert delivery is not None
            delivery.rollback(delay=60)
        found = admin.sizes(key)
        assert (found.messages_pending, found.bytes_pending, found.messages_current) == (1, 13, 4)
        shown = kafkadur_command(place, "sub", "info", "c1/d (unrestricted)", "--sizes")
        assert shown["sizes"]["bytes_current"] == 52
        assert {
            name: shown[name] for name in ("client_id", "policy", "name", "selector", "no_local", "active")
        } == {
            "client_id": "c1",
            "policy": "unrestricted",
            "name": "d",
            "selector": "n > 1",
            "no_local": False,
            "active": False,
        }


def test_a5_of_lanes_of_keys(place: Place, admin: Admin) -> None:
    topic = place.topic(partitions=2)
    with place.connect_sync() as connection, connection.producer() as producer:
        subscription = connection.subscribe(
            topic, durable="d", type="key-ordered", key_lanes=4, start="earliest", window=4
        )
        for number in range(40):
            producer.publish(topic, b"12345", key=f"k{number % 10}".encode(), partition=number % 2)
        producer.flush(LIMIT_S)
        for _ in range(10):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            delivery.ack()
        subscription.close()
        found = admin.sizes(connection.key("d"))
        assert (found.messages_current, found.bytes_current, found.messages_pending) == (30, 210, 0)


def test_a5_in_the_list(place: Place) -> None:
    topic = place.topic([1, 2])
    with place.connect_sync() as connection:
        connection.subscribe(topic, durable="d", start="earliest").close()
    (listed,) = kafkadur_command(place, "sub", "ls")
    assert (listed["active"], listed["last_verdict"], listed["backlog"]) == (False, None, 2)
    assert listed["unattended_since"]


def test_a1_what_an_older_version_left_is_not_taken_for_abandoned(place: Place, admin: Admin) -> None:
    with place.connect_sync() as connection:
        connection.subscribe(place.topic(), durable="d").close()
        key = connection.key("d")
    with Redis.from_url(place.stack.admin_redis) as redis:
        where = f"kafkadur:{place.namespace}:{{{key.tag}}}:def"
        stored.change(redis.execute_command, where, begun=0, left=0, verdict=0)
    info = admin.info(key)
    assert (info.unattended_since, info.last_verdict) == (info.now, None)
    assert admin.abandoned(timedelta(seconds=1)) == ()


def test_a1_who_was_there_before_a_restart_of_redis_attended_it(
    place: Place, admin: Admin, start_worker: Callable[..., Worker]
) -> None:
    """The restart is noticed by who looks, and the members are gone with it: that was just now."""
    topic = place.topic([1])
    worker = start_worker(topic, durable="d", type="shared")
    with place.connect_sync() as connection:
        key = connection.key("d")
    left_long_ago(place, key, WEEK_MS)
    worker.kill()
    with Redis.from_url(place.stack.admin_redis) as redis:
        where = f"kafkadur:{place.namespace}:{{{key.tag}}}:def"
        stored.change(redis.execute_command, where, server="before")
    assert admin.abandoned(timedelta(days=1)) == ()
    assert admin.info(key).members == ()


def test_a2_what_is_in_use_again_is_left_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody came by, and went, between the list and the deletion."""
    topic = place.topic()
    with place.connect_sync() as connection:
        connection.subscribe(topic, durable="d").close()
        key = connection.key("d")
        left_long_ago(place, key, WEEK_MS)
        listed = Admin.abandoned

        def abandoned(self: Admin, older_than: timedelta) -> Any:
            found = listed(self, older_than)
            connection.subscribe(topic, durable="d").close()
            return found

        monkeypatch.setattr(Admin, "abandoned", abandoned)
        kafkadur_command(place, "sub", "abandoned", "--older-than", "1d", "--delete", "--yes", code=1)
        with Admin(connection.settings) as admin:
            assert [info.key for info in admin.list()] == [key]
