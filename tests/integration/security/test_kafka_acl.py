"""The access control list of Kafka: with it everything runs, and without any part of it something not.

The broker allows nothing by itself, and clients log in with SCRAM over TLS.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from typer.testing import CliRunner

import kafkadur
import kafkadur.sync
from kafkadur.admin.changes import Admin
from kafkadur.admin.dead_letters import DeadLetterAdmin
from kafkadur.admin.history import HistoryAdmin
from kafkadur.admin.kafka_access import Role, Rule, kafka_commands, kafka_rules, temporary_topic
from kafkadur.cli.application import app
from kafkadur.history.entries import history_prefix, topic_of
from kafkadur.settings import settings
from kafkadur_coordinators.topics import Topics
from kafkadur_sharing.definition import TypeName
from kafkadur_sharing.errors import IllegalState, KafkaRefused
from tests.integration.security.secured import LIMIT_S, Secured

TYPES: tuple[TypeName, ...] = ("shared", "exclusive", "priority", "serial", "key-ordered")
KAFKA_TIMEOUT = timedelta(seconds=15)
#: Seconds within which a dead letter is written, if it may be: it waits for four clients of Kafka.
LETTER_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Shop:
    """A principal, and what it works with."""

    secured: Secured
    user: str
    principal: str
    namespace: str
    topic: str

    @property
    def given(self) -> dict[str, Any]:
        """Settings of its connections."""
        return {
            "kafka": {**self.secured.kafka(self.user), "log_level": 0},
            "redis": self.secured.redis(),
            "client_id": "c",
            "namespace": self.namespace,
            "journal_partitions": 2,
            "kafka_timeout": KAFKA_TIMEOUT,
        }

    @property
    def of_operators(self) -> dict[str, Any]:
        """Settings of who may do everything in Kafka."""
        return {"bootstrap.servers": self.secured.stack.brokers[0].internal_address}

    @property
    def group(self) -> str:
        """A group of somebody else."""
        return f"old-{self.topic}"

    @property
    def rules(self) -> list[Rule]:
        """Everything that somebody needs who does everything."""
        return kafka_rules(
            list(Role),
            namespace=self.namespace,
            topics=[self.topic],
            transactional_ids=[f"tx-{self.topic}"],
            groups=[self.group],
            transacted=True,
            history=True,
        )

    def connect(self) -> kafkadur.sync.Connection:
        """A connection of the principal."""
        return kafkadur.sync.connect(**self.given)

    def admin(self) -> Admin:
        """The administrator's tools, as the principal."""
        return Admin(settings(self.given))


@pytest.fixture
def shop(guarded_stack: Secured) -> Iterator[Shop]:
    """Provide a user who may do nothing yet, and a topic."""
    name = f"shop-{uuid.uuid4().hex[:8]}"
    guarded_stack.make_topic(name)
    principal = guarded_stack.add_user(name)
    yield Shop(secured=guarded_stack, user=name, principal=principal, namespace=name, topic=name)
    guarded_stack.forbid(principal)


# -- what is done; each part raises, or asserts, where it does not work


def publish(shop: Shop) -> None:
    with shop.connect() as connection, connection.producer() as producer:
        producer.publish(shop.topic, "1")
        producer.flush(LIMIT_S)


def publish_in_transactions(shop: Shop) -> None:
    producer = confluent_kafka.Producer(
        {**shop.given["kafka"], "transactional.id": f"tx-{shop.topic}", "transaction.timeout.ms": 10_000}
    )
    producer.init_transactions(KAFKA_TIMEOUT.total_seconds())
    producer.begin_transaction()
    producer.produce(shop.topic, b"1")
    producer.commit_transaction(LIMIT_S)


def receive(shop: Shop, kind: TypeName = "shared") -> None:
    with (
        shop.connect() as connection,
        connection.subscribe(shop.topic, durable=f"d-{kind}", type=kind, start="earliest") as subscription,
    ):
        first = subscription.receive(timeout=LIMIT_S)
        assert first is not None
        first.rollback()
        again = subscription.receive(timeout=LIMIT_S)
        while again is not None and again.attempt == 1:
            again = subscription.receive(timeout=LIMIT_S)
        assert again is not None
        assert again.offset == first.offset
        again.ack(level="journal")


def transact(shop: Shop) -> None:
    with (
        shop.connect() as connection,
        connection.session(transacted=True) as session,
        connection.subscribe(shop.topic, durable="d-tx", start="earliest", session=session) as subscription,
    ):
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        session.producer().publish(shop.topic, "9")
        session.commit()


def floors(shop: Shop) -> None:
    """What lag tools see: the floor that closing mirrors."""
    receive(shop)
    watched = Topics(shop.of_operators)
    assert watched.committed(f"kafkadur:{shop.namespace}:c:d-shared", shop.topic, 1)[0] > 0


def retention(shop: Shop) -> None:
    topics = Topics(shop.given["kafka"], timeout=KAFKA_TIMEOUT.total_seconds())
    assert topics.retention(shop.topic) == 7 * 24 * 3_600_000


def dead_letter(shop: Shop) -> None:
    """Rejecting returns when the letter is written."""

    async def reject() -> None:
        async with (
            kafkadur.connect(**shop.given) as connection,
            await connection.subscribe(shop.topic, durable="dead", start="earliest") as subscription,
        ):
            delivery = await subscription.receive(timeout=LIMIT_S)
            assert delivery is not None
            await asyncio.wait_for(delivery.reject(reason="not wanted"), LETTER_S)

    asyncio.run(reject())


def redrive(shop: Shop) -> None:
    with shop.admin() as admin:
        letters = DeadLetterAdmin(settings(shop.given), admin)
        assert [letter.reason for letter in letters.letters(admin.key("dead"))] == ["not wanted"]
        assert letters.redrive(admin.key("dead")) == 1


def retention_of_dead_letters(shop: Shop) -> None:
    topics = Topics(shop.given["kafka"], timeout=KAFKA_TIMEOUT.total_seconds())
    assert topics.retention(f"{shop.topic}.dead") is not None


def administer(shop: Shop) -> None:
    with shop.admin() as admin:
        key = admin.key("d-shared")
        assert admin.rebuild().failed == {}
        assert admin.recoveries() == []
        assert admin.info(key).definition.topic == shop.topic
        admin.alter(key, selector="n > 1")
        admin.seek(key, "earliest")
        admin.pause(key)
        admin.pause(key, paused=False)
        admin.unsubscribe(key)


def export(shop: Shop) -> None:
    with shop.admin() as admin:
        admin.export(admin.key("d-shared"), shop.group)


def read_history(shop: Shop, **kafka: Any) -> set[int]:
    """Read which offsets are in the history."""
    chosen = settings({**shop.given, **kafka}, environment={})
    with Admin(chosen) as admin:
        found = HistoryAdmin(chosen, admin).last(admin.key("recorded"), 100)
    return {offset for each in found.deliveries for offset in range(each.start, each.end)}


def record(shop: Shop) -> None:
    publish(shop)
    with (
        shop.connect() as connection,
        connection.subscribe(shop.topic, durable="recorded", start="earliest", history=3_600) as subscription,
    ):
        delivery = subscription.receive(timeout=LIMIT_S)
        assert delivery is not None
        delivery.ack()
    assert delivery.offset in read_history(shop, kafka=shop.of_operators)


def keep_longer(shop: Shop) -> None:
    with shop.admin() as admin:
        admin.alter(admin.key("recorded"), history=7_200)
    record(shop)
    found = Topics(shop.of_operators).retention(topic_of(admin.key("recorded")))
    assert found == 7_200_000


def reply(shop: Shop) -> None:
    """Receive from a temporary destination of a gateway."""
    pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")
    from proton import ProtonException

    from tests.integration.gateway import running

    limit = KAFKA_TIMEOUT.total_seconds()
    with running.running_with(shop.given) as port, running.client(port) as connection:
        try:
            replies = connection.create_receiver(None, dynamic=True, credit=1)
            sender = connection.create_sender(replies.link.remote_source.address)
            sender.send(running.Message(body="m"), timeout=limit)
            assert replies.receive(timeout=limit).body == "m"
        except ProtonException as error:
            raise AssertionError(str(error)) from error
        replies.accept()


def everything(shop: Shop) -> None:
    publish(shop)
    publish_in_transactions(shop)
    for kind in TYPES:
        receive(shop, kind)
    transact(shop)
    floors(shop)
    retention(shop)
    dead_letter(shop)
    redrive(shop)
    retention_of_dead_letters(shop)
    export(shop)
    record(shop)
    keep_longer(shop)
    assert read_history(shop)
    administer(shop)
    reply(shop)


# -- the tests


def test_with_exactly_the_list_everything_runs(shop: Shop) -> None:
    shop.secured.allow(shop.principal, shop.rules)
    everything(shop)


def test_a_gateway_has_the_rules_of_its_clients(shop: Shop) -> None:
    """A queue, a browser, a durable subscription, and a transaction of both."""
    pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")
    from tests.integration.gateway import running, test_transactions

    rules = kafka_rules([Role.GATEWAY], namespace=shop.namespace, topics=[shop.topic], transacted=True)
    shop.secured.allow(shop.principal, rules)
    queue = f"queue://{shop.topic}"
    with running.running_with(shop.given) as port, running.client(port, "app") as connection:
        transactions = test_transactions.Transactions(connection)
        durable = connection.create_receiver(
            shop.topic, name="dur", credit=2, options=running.Source(durable=True)
        )
        connection.create_sender(queue).send(running.Message(body="m"))
        assert running.bodies(durable, 1) == ["m"]
        waiting = connection.create_receiver(queue, credit=1)
        transactions.declare()
        assert test_transactions.received(waiting, transactions, 1) == ["m"]
        transactions.send(connection.create_sender(shop.topic), "next")
        assert transactions.end() is None
        assert running.bodies(durable, 1) == ["next"]
    reply(shop)


def nothing(shop: Shop) -> None:
    """Need nothing before."""


def received(shop: Shop) -> None:
    """Have a message that was received once."""
    publish(shop)
    receive(shop)


def published(shop: Shop) -> None:
    """Have two messages."""
    publish(shop)
    publish(shop)


def died(shop: Shop) -> None:
    """Have a dead letter."""
    publish(shop)
    dead_letter(shop)


#: What each rule is needed for: resource, what stands behind the topic's name, operation; what is done before
#: it is taken away; what does not work then.
NEEDED: list[tuple[str, str, str, Callable[[Shop], object], Callable[[Shop], object]]] = [
    ("topic", "", "Write", nothing, publish),
    ("transactional-id", "tx-", "Write", nothing, publish_in_transactions),
    ("topic", "", "Read", published, receive),
    ("topic", "", "DescribeConfigs", nothing, retention),
    ("topic", "kafkadur.journal.", "Create", published, receive),
    ("topic", "kafkadur.journal.", "Read", published, receive),
    ("topic", "kafkadur.journal.", "Write", published, receive),
    ("topic", "kafkadur.journal.", "DescribeConfigs", published, receive),
    ("group", "kafkadur:", "Read", published, floors),
    ("transactional-id", "kafkadur:", "Write", published, transact),
    ("topic", "kafkadur.transactions.", "Create", published, transact),
    ("topic", "kafkadur.transactions.", "Read", published, transact),
    ("topic", "kafkadur.transactions.", "Write", published, transact),
    ("topic", "kafkadur.transactions.", "DescribeConfigs", published, transact),
    ("topic", ".dead", "Write", published, dead_letter),
    ("topic", ".dead", "Create", published, dead_letter),
    ("topic", ".dead", "Read", died, redrive),
    ("topic", ".dead", "DescribeConfigs", died, retention_of_dead_letters),
    ("group", "old-", "Read", received, export),
    ("topic", "kafkadur.history.", "Create", nothing, record),
    ("topic", "kafkadur.history.", "Write", nothing, record),
    ("topic", "kafkadur.history.", "AlterConfigs", record, keep_longer),
    ("topic", "kafkadur.history.", "Read", record, read_history),
    ("topic", "kafkadur.temporary.", "Create", nothing, reply),
    ("topic", "kafkadur.temporary.", "Write", reply, reply),
    ("topic", "kafkadur.temporary.", "Read", reply, reply),
]
#: Those that `make test` looks at.
QUICK = 6


def named(shop: Shop, resource: str, part: str, operation: str) -> Rule:
    """The rule that a row of the table means."""
    wanted = {
        "": shop.topic,
        ".dead": f"{shop.topic}.dead",
        "kafkadur:": f"kafkadur:{shop.namespace}:",
        "kafkadur.history.": history_prefix(shop.namespace),
        "kafkadur.temporary.": temporary_topic(shop.namespace),
    }.get(part, f"{part}{shop.topic}")
    found = [
        rule
        for rule in shop.rules
        if (rule.resource, rule.name, rule.operation) == (resource, wanted, operation)
    ]
    assert len(found) == 1, f"no such rule: {resource} {wanted} {operation}"
    return found[0]


@pytest.mark.parametrize(
    ("resource", "part", "operation", "before", "broken"),
    [
        pytest.param(*row, id=f"{row[0]}-{row[1]}{row[2]}", marks=() if n < QUICK else pytest.mark.long)
        for n, row in enumerate(NEEDED)
    ],
)
def test_without_any_one_something_does_not_work(
    shop: Shop,
    resource: str,
    part: str,
    operation: str,
    before: Callable[[Shop], object],
    broken: Callable[[Shop], object],
) -> None:
    rule = named(shop, resource, part, operation)
    rest = [other for other in shop.rules if other != rule]
    if operation == "Create" or (broken in (receive, transact) and before is published):
        shop.secured.allow(shop.principal, rest)
        before(shop)
    else:
        shop.secured.allow(shop.principal, shop.rules)
        before(shop)
        shop.secured.forbid(shop.principal)
        shop.secured.allow(shop.principal, rest)
    with pytest.raises(
        (kafkadur.KafkadurError, confluent_kafka.KafkaException, AssertionError, TimeoutError)
    ):
        broken(shop)
    shop.secured.allow(shop.principal, [rule])
    broken(shop)


def test_the_table_names_every_rule(shop: Shop) -> None:
    assert sorted(named(shop, *row[:3]) for row in NEEDED) == sorted(shop.rules)


@pytest.mark.parametrize("other", ["topic", "journal", "group"])
def test_what_was_not_allowed_is_refused_in_words(shop: Shop, other: str) -> None:
    """Another topic, another namespace's journal, another namespace's groups."""
    shop.secured.allow(shop.principal, shop.rules)
    more: dict[str, Any] = {"namespace": f"other-{shop.namespace}"} if other != "topic" else {}
    if other == "group":
        topics = Topics(shop.given["kafka"], timeout=KAFKA_TIMEOUT.total_seconds())
        with pytest.raises(KafkaRefused, match="Group authorization failed") as caught:
            topics.committed("kafkadur:elsewhere:c:d", shop.topic, 1)
    else:
        topic = f"{shop.topic}-2" if other == "topic" else shop.topic
        shop.secured.make_topic(f"{shop.topic}-2")
        with (
            kafkadur.sync.connect(**{**shop.given, **more}) as connection,
            pytest.raises(KafkaRefused, match=r"(?i)authorization failed") as caught,
        ):
            connection.subscribe(topic, durable="d")
    assert "kafkadur acl kafka" in str(caught.value)


def test_the_documented_table_is_the_list() -> None:
    rules = [
        (role, rule)
        for role in Role
        for rule in kafka_rules(
            [role],
            namespace="shop",
            topics=["orders"],
            transactional_ids=["orders-1"],
            groups=["old-orders"],
            transacted=True,
            history=True,
        )
    ]
    text = (Path(__file__).resolve().parents[3] / "docs" / "operations" / "security.md").read_text()
    table = [
        line for line in text.splitlines() if re.match(r"\| (producer|consumer|administrator|gateway)", line)
    ]
    told = {
        (role, *(cell.strip() for cell in line.split("|")[2:5]))
        for line in table
        for role in line.split("|")[1].strip().split(", ")
    }
    assert told == {
        (
            role.value,
            f"{rule.resource} `{rule.name}`{' (prefixed)' if rule.prefixed else ''}",
            rule.operation,
            rule.purpose,
        )
        for role, rule in rules
    }


# -- the command


def test_the_command_prints_what_the_tests_run_with() -> None:
    rules = kafka_rules([Role.CONSUMER], namespace="shop", topics=["orders"])
    arguments = ["--namespace", "shop", "--principal", "User:app", "--topic", "orders", "--kafka", "k:1"]
    printed = CliRunner().invoke(app, ["acl", "kafka", *arguments])
    assert printed.stdout.splitlines() == kafka_commands(rules, principal="User:app", bootstrap="k:1")
    assert (
        "kafka-acls.sh --bootstrap-server k:1 --add --allow-principal User:app --operation Read "
        "--group kafkadur:shop: --resource-pattern-type prefixed" in printed.stdout
    )


@pytest.mark.long
def test_the_command_adds_the_rules_itself(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's file of settings; afterwards the application's own file does for the command line."""
    monkeypatch.setenv("KAFKADUR_REDIS", shop.secured.redis())
    monkeypatch.setenv("KAFKADUR_NAMESPACE", shop.namespace)
    file = tmp_path / "operator.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in shop.of_operators.items()))
    roles = [word for role in Role for word in ("--role", role.value)]
    run = CliRunner().invoke(
        app,
        [
            *("--kafka-config", str(file), "acl", "kafka", "--principal", shop.principal),
            *("--topic", shop.topic, "--transactional-id", f"tx-{shop.topic}", "--group", shop.group),
            *roles,
            "--transacted",
            "--history",
            "--apply",
        ],
    )
    assert run.exit_code == 0, run.stderr
    file.write_text(
        "# who works here\n"
        + "".join(f"{name} = {value}\n" for name, value in shop.secured.kafka(shop.user).items())
    )
    monkeypatch.setenv("KAFKADUR_KAFKA_CONFIG", str(file))
    for command in (
        ["publish", shop.topic, "1"],
        ["consume", shop.topic, "--durable", "d", "--start", "earliest", "--count", "1", "--timeout", "20"],
        ["sub", "info", "d"],
        ["sub", "ls", "--json"],
    ):
        run = CliRunner().invoke(app, command)
        assert run.exit_code == 0, run.stderr
    everything(shop)


@pytest.mark.parametrize("wrong", ["app", "User:", ":x", "User:a\nb"])
def test_what_is_no_principal_is_refused(wrong: str) -> None:
    with pytest.raises(IllegalState, match="User:NAME"):
        kafka_commands(
            kafka_rules([Role.PRODUCER], namespace="n", topics=["t"]), principal=wrong, bootstrap="k:1"
        )
