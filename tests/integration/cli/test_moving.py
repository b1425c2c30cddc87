"""Moving a subscription (`sub seek`) and changing it in place, with what is delivered afterwards."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import redis

import kafkadur.sync
from kafkadur import Event, InvalidSelector, Redelivery, SubscriptionActive
from kafkadur.admin.changes import Admin
from kafkadur.settings import settings
from kafkadur.stack import as_administrator
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_sharing.definition import Scope, SubscriptionType, TypeName
from tests.integration.cli.conftest import Run
from tests.integration.subscriptions.helpers import wait_until

LIMIT_S = 180.0
TYPES = ("shared", "serial", "key-ordered")
KINDS: tuple[tuple[str, Scope], ...] = (
    ("shared", "subscription"),
    ("exclusive", "subscription"),
    ("priority", "subscription"),
    ("serial", "subscription"),
    ("serial", "partition"),
    ("key-ordered", "subscription"),
)


def received(
    topic: str, *, kind: TypeName = "shared", most: int = 100, silence: float = 0.8
) -> list[tuple[int, bool]]:
    """Receive and acknowledge what there is: number and whether it was redelivered, sorted."""
    found: list[tuple[int, bool]] = []
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        while len(found) < most and (delivery := subscription.receive(timeout=silence)) is not None:
            found.append((int(delivery.value or b"-1"), delivery.redelivered))
            delivery.ack()
    return sorted(found)


@pytest.fixture
def topic(here: Path, kafkadur_topic: TopicFactory) -> str:
    """Provide a topic of two partitions with ten messages: even numbers in partition 0."""
    del here
    name = kafkadur_topic(2)
    with kafkadur.sync.Connection(settings({})) as connection, connection.producer() as producer:
        for n in range(10):
            producer.publish(name, str(n), key=f"k{n}", partition=n % 2, properties={"n": n})
    return name


def test_older_state_is_stored_anew_on_demand(run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKADUR_STATE_VERSION", "1")
    first = {number for number, _ in received(topic, most=4)}
    monkeypatch.delenv("KAFKADUR_STATE_VERSION")
    before = run("sub", "info", "d", "--json").data
    assert "as by the version before" in run("sub", "info", "d").out
    assert "sub alter --upgrade" in str(run("doctor", "--json").data)
    assert run("sub", "alter", "d", "--upgrade").code == 0
    after = run("sub", "info", "d", "--json").data
    assert (before["state_version"], after["state_version"]) == (1, 3)
    assert "as by the version before" not in run("sub", "info", "d").out
    assert "--upgrade" not in str(run("doctor", "--json").data)
    assert [p["floor"] for p in after["partitions"]] == [p["floor"] for p in before["partitions"]]
    assert {number for number, _ in received(topic)} == set(range(10)) - first


@pytest.mark.parametrize("kind", TYPES)
def test_back_to_the_beginning_and_on_to_the_end(run: Run, topic: str, kind: TypeName) -> None:
    assert received(topic, kind=kind) == [(n, False) for n in range(10)]
    looked = run("sub", "seek", "d", "earliest", "--json").data
    assert looked["moved"] is False
    assert [(m["before"], m["after"]) for m in looked["partitions"]] == [(5, 0), (5, 0)]
    assert [(m["again"], m["skipped"]) for m in looked["partitions"]] == [(5, 0), (5, 0)]
    assert "at most 10 settled messages would be delivered again" in run("sub", "seek", "d", "earliest").err
    assert received(topic, kind=kind) == [], "a dry run moves nothing"
    assert run("sub", "seek", "d", "earliest", "--yes").code == 0
    assert received(topic, kind=kind) == [(n, True) for n in range(10)]
    assert run("sub", "seek", "d", "0:3", "--yes").code == 0
    assert received(topic, kind=kind) == [(6, True), (8, True)], "the other partition stays"
    assert run("sub", "seek", "d", "earliest", "--yes").code == 0
    skipping = run("sub", "seek", "d", "latest", "--yes", "--json").data["partitions"]
    assert [(m["again"], m["skipped"]) for m in skipping] == [(0, 5), (0, 5)]
    assert received(topic, kind=kind) == []


def test_to_a_time(run: Run, topic: str) -> None:
    received(topic)
    then = datetime.now(UTC)
    with kafkadur.sync.Connection(settings({})) as connection, connection.producer() as producer:
        producer.publish(topic, "10", partition=0)
    assert received(topic) == [(10, False)]
    assert run("sub", "seek", "d", then.isoformat(), "--yes").code == 0
    assert received(topic) == [(10, True)]


def test_a_place_that_is_none(run: Run, topic: str) -> None:
    received(topic, most=1)
    for place, words in (("0:99", "no offset 99"), ("7:0", "Partition 7"), ("yesterday", "no place")):
        ended = run("sub", "seek", "d", place, "--yes")
        assert ended.code == 1
        assert words in ended.err


def test_who_is_attached_is_not_moved(run: Run, topic: str) -> None:
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(topic, durable="d", name="Ada"),
    ):
        ended = run("sub", "seek", "d", "earliest", "--yes")
    assert ended.code == 1
    assert "Ada" in ended.err


def test_the_place_outlives_a_loss_of_redis(run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Floors that were mirrored before the move mean nothing after it."""
    monkeypatch.setenv("KAFKADUR_SESSION_TIMEOUT", "1")  # after a loss nothing is granted for so long
    received(topic)
    assert run("sub", "seek", "d", "0:2", "--yes").code == 0
    chosen = settings({})
    with redis.Redis.from_url(as_administrator(chosen.redis)) as client:
        client.delete(*client.scan_iter(match=f"kafkadur:{chosen.namespace}:*", count=1_000))
    assert {n for n, _ in received(topic, most=3, silence=LIMIT_S)} >= {4, 6, 8}


def test_changed_in_place(here: Path, topic: str) -> None:
    del here
    with Admin(settings({})) as admin:
        key = admin.key("d")
        assert len(received(topic, most=4)) == 4
        waiting = sum(partition.backlog or 0 for partition in admin.info(key).partitions)
        assert waiting == 6
        changed = admin.alter(key, selector="n >= 8", redelivery=Redelivery(max_attempts=4))
        assert (changed.selector, changed.redelivery.max_attempts) == ("n >= 8", 4)
        assert admin.info(key).id == admin.info(key).id
        with pytest.raises(InvalidSelector):
            admin.alter(key, selector="n >")
        with (
            kafkadur.sync.Connection(settings({})) as connection,
            connection.subscribe(topic, durable="d", selector="n >= 8") as subscription,
        ):
            left: list[int] = []
            while (delivery := subscription.receive(timeout=0.8)) is not None:
                left.append(int(delivery.value or b"-1"))
                delivery.ack()
            with pytest.raises(SubscriptionActive):
                admin.alter(key, selector=None)
        assert set(left) <= {8, 9}
        assert admin.info(key).backlog == 0, "the rest is settled as filtered"


@pytest.fixture
def client_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have connections use a client id, which an exclusive durable subscription needs."""
    monkeypatch.setenv("KAFKADUR_CLIENT_ID", "ada")


CHANGES = [
    ("shared", "serial"),
    ("shared", "key-ordered"),
    ("key-ordered", "exclusive"),
    ("key-ordered", "shared"),
    ("exclusive", "key-ordered"),
]


@pytest.mark.usefixtures("client_id")
@pytest.mark.parametrize(("kind", "other"), CHANGES)
def test_another_type_in_place_keeps_what_is_settled(
    here: Path, topic: str, kind: TypeName, other: TypeName
) -> None:
    del here
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(topic, durable="d", type=kind, start="earliest") as subscription,
    ):
        for n in range(10):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            if n % 3:
                delivery.ack()
            elif n == 3:
                delivery.rollback(delay=0)
    with Admin(settings({})) as admin:
        key = admin.key("d")
        before = admin.snapshot(key)
        assert sum(place.unsettled for place in before.settlements.values()) == 4
        altered = admin.alter(key, type=other)
        assert altered.type == other
        after = admin.snapshot(key)
        assert after.partitions == before.partitions
        rest = received(topic, kind=other)
        assert len(rest) == 4
        assert all(again for _, again in rest)
        assert admin.info(key).backlog == 0
        state = f"{settings({}).prefix}:{settings({}).namespace}:{{{key.tag}}}:def"
        client: Any = redis.Redis.from_url(as_administrator(settings({}).redis))
        with client:
            laid = [name for name in client.hkeys(state) if name.startswith(b"p:")]
        assert len(laid) == 2 * altered.lanes, "the state of the old lanes is gone"


@pytest.mark.usefixtures("client_id")
def test_shared_then_key_ordered_then_exclusive(run: Run, topic: str) -> None:
    first = received(topic, most=3)
    assert run("sub", "alter", "d", "--type", "key-ordered").code == 0
    second = received(topic, kind="key-ordered", most=3)
    assert run("sub", "alter", "d", "--type", "exclusive", "--json").data["definition"]["type"] == "exclusive"
    third = received(topic, kind="exclusive")
    found = [n for n, _ in first + second + third]
    assert set(found) == set(range(10))
    assert len(found) <= 10 + 3, "only what one lane settled before another looked at it comes again"


@pytest.mark.parametrize("kind", TYPES)
def test_back_to_a_snapshot(run: Run, topic: str, tmp_path: Path, kind: TypeName) -> None:
    file = tmp_path / "d.json"
    first = received(topic, kind=kind, most=4)
    assert run("sub", "snapshot", "d", str(file)).code == 0
    rest = [n for n, _ in received(topic, kind=kind)]
    assert sorted([n for n, _ in first] + rest) == list(range(10))
    looked = run("sub", "restore", "d", str(file), "--json").data
    assert looked["moved"] is False
    assert received(topic, kind=kind) == [], "looking moves nothing"
    assert run("sub", "restore", "d", str(file), "--yes").code == 0
    assert received(topic, kind=kind) == [(n, True) for n in rest]


def test_a_snapshot_remembers_attempts(here: Path, topic: str) -> None:
    del here
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        where = (delivery.partition, delivery.offset)
        delivery.rollback(delay=0)
    with Admin(settings({})) as admin:
        key = admin.key("d")
        taken = admin.snapshot(key)
        admin.seek(key, "latest")
        admin.seek(key, taken)
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(topic, durable="d", type="shared") as subscription,
    ):
        attempts: dict[tuple[int, int], int] = {}
        while (again := subscription.receive(timeout=0.8)) is not None:
            attempts[again.partition, again.offset] = again.attempt
            again.ack()
    assert attempts.pop(where) == 2
    assert set(attempts.values()) == {1}
    assert len(attempts) == 9


def test_files_that_are_no_snapshot_of_this(
    run: Run, topic: str, tmp_path: Path, kafkadur_topic: TopicFactory
) -> None:
    received(topic, most=1)
    file = tmp_path / "d.json"
    for text in ("", "[]", '{"format": "kafkadur-snapshot-9"}'):
        file.write_text(text)
        ended = run("sub", "restore", "d", str(file), "--yes")
        assert (ended.code, "no snapshot" in ended.err) == (1, True), text
    assert "cannot be read" in run("sub", "restore", "d", str(tmp_path / "none"), "--yes").err
    assert run("sub", "snapshot", "d", str(file)).code == 0
    other = kafkadur_topic(2)
    with kafkadur.sync.Connection(settings({})) as connection, connection.subscribe(other, durable="e"):
        pass
    ended = run("sub", "restore", "e", str(file), "--yes")
    assert (ended.code, "another topic" in ended.err) == (1, True)


def test_a_snapshot_of_another_subscription_is_pointed_out(run: Run, topic: str, tmp_path: Path) -> None:
    """It may be meant: two subscriptions of one topic can have had the same position."""
    received(topic, most=1)
    file = tmp_path / "d.json"
    assert run("sub", "snapshot", "d", str(file)).code == 0
    assert run("sub", "fork", "d", "e").code == 0
    ended = run("sub", "restore", "e", str(file))
    assert (ended.code, "a snapshot of subscription d, not of e" in ended.err) == (0, True)
    assert "not of" not in run("sub", "restore", "d", str(file)).err


def test_a_fork_goes_its_own_way(run: Run, topic: str) -> None:
    first = [n for n, _ in received(topic, most=4)]
    assert run("sub", "fork", "d", "e").code == 0
    assert "already" in run("sub", "fork", "d", "e").err
    rest = [n for n, _ in received(topic)]
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(topic, durable="e", type="shared") as subscription,
    ):
        found: list[int] = []
        while (delivery := subscription.receive(timeout=0.8)) is not None:
            found.append(int(delivery.value or b"-1"))
            delivery.ack()
    assert sorted(found) == rest
    assert sorted(first + rest) == list(range(10))


def test_a_retroactive_selector_brings_back_what_the_old_one_skipped(run: Run, topic: str) -> None:
    def all_of(selector: str | None) -> list[int]:
        with (
            kafkadur.sync.Connection(settings({})) as connection,
            connection.subscribe(
                topic, durable="d", type="shared", start="earliest", selector=selector
            ) as subscription,
        ):
            found: list[int] = []
            while (delivery := subscription.receive(timeout=0.8)) is not None:
                assert not delivery.redelivered, "it was never delivered"
                found.append(int(delivery.value or b"-1"))
                delivery.ack()
        return sorted(found)

    assert all_of("n < 4") == [0, 1, 2, 3]
    assert run("sub", "alter", "d", "--selector", "n < 6").code == 0
    assert all_of("n < 6") == [], "not asked for"
    assert run("sub", "alter", "d", "--selector", "n BETWEEN 2 AND 7", "--retroactive").code == 0
    assert all_of("n BETWEEN 2 AND 7") == [6, 7]
    assert run("sub", "alter", "d", "--selector", "", "--retroactive").code == 0
    assert all_of(None) == [0, 1, 8, 9], "skipped by the one before"
    refused = run("sub", "alter", "d", "--selector", "", "--retroactive")
    assert refused.code == 1
    assert "The selector stays as it is, so nothing is retroactive." in refused.err
    assert "nothing to change" in run("sub", "alter", "d").err


def test_turns_get_another_scope(run: Run, topic: str) -> None:
    before = [n for n, _ in received(topic, kind="serial", most=3)]
    altered = run("sub", "alter", "d", "--scope", "partition")
    assert "on each partition by itself" in altered.out
    assert "on each partition by itself" in run("sub", "info", "d").out
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(topic, durable="d", type="serial", scope="partition") as subscription,
    ):
        seen: list[int] = []
        for _ in range(7):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            seen.append(int(delivery.value or b"-1"))
            delivery.ack()
    assert sorted([*before, *seen]) == list(range(10))
    assert run("sub", "alter", "d", "--type", "shared").code == 0, "what has no turns has no scope"
    assert "shared has no scope" in run("sub", "alter", "d", "--scope", "partition").err


@pytest.mark.parametrize(("kind", "scope"), KINDS)
def test_paused_subscription_hands_nothing_out(
    run: Run, topic: str, kind: TypeName, scope: Scope, caplog: pytest.LogCaptureFixture
) -> None:
    """Its members are told so, and it does not look like an idle one."""
    events: list[Event] = []
    with (
        kafkadur.sync.Connection(settings({"client_id": "c"})) as connection,
        connection.subscribe(
            topic,
            durable="d",
            type=SubscriptionType(kind),
            scope=scope,
            start="earliest",
            window=2,
            on_event=events.append,
        ) as subscription,
    ):
        first = subscription.receive(timeout=LIMIT_S)
        assert first is not None
        assert run("sub", "pause", "c/d", "--json").data["paused"] is True
        assert run("sub", "info", "c/d", "--json").data["paused"] is True
        first.ack()  # the exchange brings the news, if nothing has before
        assert subscription.receive(timeout=0.3) is None
        wait_until(lambda: Event.PAUSED in events, "the event of the pause")
        assert "c/d (unrestricted) is paused" in caplog.text or "c/d is paused" in caplog.text
        assert [row["state"] for row in run("sub", "ls", "--json").data] == ["paused"]
        assert "paused" in run("sub", "ls").out
        assert Event.RESUMED not in events
        assert run("sub", "resume", "c/d").code == 0
        seen = [int(first.value or b"-1")]
        for _ in range(9):
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            seen.append(int(delivery.value or b"-1"))
            delivery.ack()
        assert sorted(seen) == list(range(10))
        assert [event for event in events if event in (Event.PAUSED, Event.RESUMED)] == [
            Event.PAUSED,
            Event.RESUMED,
        ]
        assert [row["state"] for row in run("sub", "ls", "--json").data] == ["active"]
    wait_until(
        lambda: [row["state"] for row in run("sub", "ls", "--json").data] == ["inactive"], "nobody attached"
    )


def test_a_drained_subscription_says_that_it_stays_paused(run: Run, topic: str) -> None:
    received(topic, most=1)
    assert "stays paused" in run("sub", "drain", "d").err
    assert run("sub", "info", "d", "--json").data["paused"] is True
    assert "goes on" in run("sub", "drain", "d", "--resume").err
    assert run("sub", "info", "d", "--json").data["paused"] is False
    assert run("sub", "drain", "d", "--resume", "--json").data == {
        "subscription": "d", "drained": True, "in_flight": 0, "paused": False,
    }  # fmt: skip


def test_from_a_consumer_group_and_back(run: Run, topic: str) -> None:
    chosen = settings({})
    consumer = confluent_kafka.Consumer({**chosen.kafka, "group.id": f"{topic}-old"})
    consumer.commit(
        offsets=[confluent_kafka.TopicPartition(topic, p, o) for p, o in ((0, 2), (1, 4))], asynchronous=False
    )
    consumer.close()
    received(topic, most=1)
    assert run("sub", "seek", "d", f"group:{topic}-old", "--yes").code == 0
    assert [n for n, _ in received(topic)] == [4, 6, 8, 9]
    assert run("sub", "seek", "d", "group:nobody", "--yes").code == 1
    assert run("sub", "seek", "d", "0:1", "--yes").code == 0
    assert run("sub", "export", "d", f"{topic}-new", "--json").data["offsets"] == {"0": 1, "1": 5}
    group = confluent_kafka.Consumer({**chosen.kafka, "group.id": f"{topic}-new"})
    places = group.committed([confluent_kafka.TopicPartition(topic, p) for p in (0, 1)], timeout=LIMIT_S)
    group.close()
    assert [place.offset for place in places] == [1, 5]


@pytest.mark.usefixtures("client_id")
@pytest.mark.parametrize(("kind", "scope"), KINDS)
def test_drained_while_members_stay(run: Run, topic: str, kind: TypeName, scope: Scope) -> None:
    """What is not in hands is given back uncounted, what is can be settled; then everything goes on."""
    with (
        kafkadur.sync.Connection(settings({})) as connection,
        connection.subscribe(
            topic, durable="d", type=SubscriptionType(kind), scope=scope, start="earliest", name="Ada"
        ) as subscription,
    ):
        held = [subscription.receive(timeout=LIMIT_S) for _ in range(2)]
        ended = run("sub", "drain", "d", "--timeout", "0.3")
        assert ended.code == 1
        assert "Ada" in ended.err
        assert subscription.receive(timeout=0.2) is None
        found: list[tuple[int, int]] = []
        for delivery in held:
            assert delivery is not None
            found.append((int(delivery.value or b"-1"), delivery.attempt))
            delivery.ack()
        drained = run("sub", "drain", "d", "--json")
        assert (drained.code, drained.data["drained"], drained.data["in_flight"]) == (0, True, 0)
        assert subscription.receive(timeout=0.2) is None
        assert run("sub", "resume", "d").code == 0
        while len(found) < 10:
            delivery = subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            found.append((int(delivery.value or b"-1"), delivery.attempt))
            delivery.ack()
    assert sorted(found) == [(n, 1) for n in range(10)]
