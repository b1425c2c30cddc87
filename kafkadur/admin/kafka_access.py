"""What applications may need to do in Kafka, and no more: access control entries, as a list.

`tests/integration/security` runs with exactly these under a broker that forbids everything else, and shows of
each one what does not work without it. What a user of Redis needs is the coordinators' `redis/access.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.journal.topic import journal_topic, transactions_topic
from kafkadur_coordinators.kafka_refusal import Refusals, refused
from kafkadur_sharing.errors import IllegalState, StateLost
from kafkadur_sharing.names import validate_namespace, validate_topic


class Role(StrEnum):
    """What a principal does."""

    #: Publishes messages.
    PRODUCER = "producer"
    #: Opens subscriptions and receives their messages.
    CONSUMER = "consumer"
    #: Looks at subscriptions, changes and moves them, and sends dead letters again.
    ADMINISTRATOR = "administrator"


@dataclass(frozen=True, kw_only=True, order=True)
class Rule:
    """One thing a principal may do. READ and WRITE imply DESCRIBE, as they do in Kafka."""

    #: topic, group or transactional-id
    resource: str
    name: str
    #: Whether `name` is the beginning of names.
    prefixed: bool = False
    #: As kafka-acls.sh spells it.
    operation: str
    #: What it is needed for.
    purpose: str


_OPERATIONS: Final[Mapping[str, AclOperation]] = {
    "Create": AclOperation.CREATE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
}
_RESOURCES: Final[Mapping[str, ResourceType]] = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}


def kafka_rules(
    roles: Iterable[Role],
    *,
    namespace: str,
    topics: Sequence[str] = (),
    dead_letter_topics: Sequence[str] | None = None,
    transactional_ids: Sequence[str] = (),
    groups: Sequence[str] = (),
    create: bool = True,
    transacted: bool = False,
) -> list[Rule]:
    """The rules of a principal with these roles.

    `topics` are those it publishes to or subscribes to; `dead_letter_topics` those of its dead letters (None:
    each topic's name with `.dead`). `groups` are consumer groups of others that an administrator copies a
    place to or from (`sub export`, `sub seek NAME group:...`). Without `create` somebody else makes the
    journal and the topics of dead letters. `transacted`: there are transacted sessions in the namespace;
    whoever consumes, also without, looks up what one that is gone has committed. Raises `InvalidName` and
    `InvalidDestination`.
    """
    chosen = set(roles)
    topics = [validate_topic(topic) for topic in topics]
    letters = [f"{topic}.dead" for topic in topics] if dead_letter_topics is None else dead_letter_topics
    letters = [validate_topic(topic) for topic in letters]
    rules: list[Rule] = []
    if Role.PRODUCER in chosen:
        rules += [
            Rule(resource="topic", name=topic, operation="Write", purpose="publish") for topic in topics
        ]
        rules += [
            Rule(resource="transactional-id", name=name, operation="Write", purpose="publish in transactions")
            for name in transactional_ids
        ]
    if chosen & {Role.CONSUMER, Role.ADMINISTRATOR}:
        rules += _receiving(validate_namespace(namespace), topics, letters, create=create)
        if transacted:
            rules += _committing(namespace, create=create)
    if Role.ADMINISTRATOR in chosen:
        rules += _administering(topics, letters, groups)
    return list({(rule.resource, rule.name, rule.operation): rule for rule in rules}.values())


def _receiving(
    namespace: str, topics: Iterable[str], letters: Iterable[str], *, create: bool
) -> Iterable[Rule]:
    for topic in topics:
        yield Rule(resource="topic", name=topic, operation="Read", purpose="subscribe and receive")
        yield Rule(
            resource="topic",
            name=topic,
            operation="DescribeConfigs",
            purpose="warn before retention removes unsettled messages; know how large a dead letter gets",
        )
    journal = journal_topic(namespace)
    yield Rule(
        resource="topic", name=journal, operation="Read", purpose="know subscriptions, and what is settled"
    )
    yield Rule(
        resource="topic",
        name=journal,
        operation="Write",
        purpose="create, change and delete subscriptions; write what is settled",
    )
    yield Rule(
        resource="topic",
        name=journal,
        operation="DescribeConfigs",
        purpose="see that the journal loses no record",
    )
    if create:
        yield Rule(
            resource="topic",
            name=journal,
            operation="Create",
            purpose="create the journal (first connection)",
        )
    yield Rule(
        resource="group",
        name=f"kafkadur:{namespace}:",
        prefixed=True,
        operation="Read",
        purpose="mirror floors, and go on from them",
    )
    for topic in letters:
        yield Rule(resource="topic", name=topic, operation="Write", purpose="write dead letters")
        if create:
            yield Rule(
                resource="topic",
                name=topic,
                operation="Create",
                purpose="create the topic of dead letters (first letter)",
            )


def _committing(namespace: str, *, create: bool) -> Iterable[Rule]:
    topic = transactions_topic(namespace)
    yield Rule(
        resource="transactional-id",
        name=f"kafkadur:{namespace}:",
        prefixed=True,
        operation="Write",
        purpose="commit transacted sessions, and end those that were left behind",
    )
    for operation, purpose in (
        ("Read", "look up what transacted sessions have committed"),
        ("Write", "write what is settled, in its transaction"),
        ("DescribeConfigs", "see that what is committed is kept"),
        *([("Create", "create the topic of transactions (first transacted session)")] if create else []),
    ):
        yield Rule(resource="topic", name=topic, operation=operation, purpose=purpose)


def _administering(topics: Iterable[str], letters: Iterable[str], groups: Iterable[str]) -> Iterable[Rule]:
    for topic in letters:
        yield Rule(resource="topic", name=topic, operation="Read", purpose="look at dead letters")
        yield Rule(
            resource="topic",
            name=topic,
            operation="DescribeConfigs",
            purpose="warn before retention removes dead letters that are sent again",
        )
    for topic in topics:
        yield Rule(resource="topic", name=topic, operation="Write", purpose="send dead letters again")
    for group in groups:
        yield Rule(
            resource="group", name=group, operation="Read", purpose="take a place from it or give it one"
        )


def kafka_commands(rules: Iterable[Rule], *, principal: str, bootstrap: str) -> list[str]:
    """The commands that add these rules: kafka-acls.sh of Kafka's distribution, one line each."""
    return [
        shlex.join(
            [
                "kafka-acls.sh", "--bootstrap-server", bootstrap,
                "--add", "--allow-principal", _principal(principal),
                "--operation", rule.operation, f"--{rule.resource}", rule.name,
                *(["--resource-pattern-type", "prefixed"] if rule.prefixed else []),
            ]
        )
        for rule in rules
    ]  # fmt: skip


def apply_rules(
    kafka: Mapping[str, Any], rules: Iterable[Rule], *, principal: str, timeout: float = 15.0
) -> None:
    """Add these rules; those that are there already stay. `kafka` is configuration of who may alter them.

    Raises `KafkaRefused`, and `StateLost` when Kafka does not answer within `timeout` seconds.
    """
    refusals = Refusals(kafka.get("error_cb"))
    config: dict[str, Any] = {**kafka, "error_cb": refusals}
    admin = AdminClient(config, logger=client_log)
    bindings = [
        AclBinding(
            _RESOURCES[rule.resource],
            rule.name,
            ResourcePatternType.PREFIXED if rule.prefixed else ResourcePatternType.LITERAL,
            _principal(principal),
            "*",
            _OPERATIONS[rule.operation],
            AclPermissionType.ALLOW,
        )
        for rule in rules
    ]
    try:
        for added in admin.create_acls(bindings, request_timeout=timeout).values():
            added.result(timeout)
    except KafkaException as error:
        admin.poll(0)
        refusal = refused(error.args[0], "the access control list") or refusals.error("Kafka")
        raise refusal or StateLost(
            "The access control list was not changed, or in part.",
            state=error.args[0].str(),
            owner="Kafka",
            remedy="check that Kafka runs with an authorizer, and do it again",
        ) from error


def _principal(text: str) -> str:
    kind, colon, name = text.partition(":")
    if not (kind and colon and name) or not text.isprintable():
        raise IllegalState(
            "This is no principal of Kafka.", state=f"{text[:60]!r}", remedy="write it as User:NAME"
        )
    return text
