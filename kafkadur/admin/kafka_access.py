"""The access control entries that applications need in Kafka, and no more.

`tests/integration/security` runs with exactly these on a broker that forbids everything else, and shows for
each entry what fails without it. The coordinators' `redis/access.py` lists what a user of Redis needs.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

from kafkadur.history.entries import history_prefix
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.journal.topic import journal_topic, transactions_topic
from kafkadur_coordinators.kafka_refusal import Refusals, refused
from kafkadur_sharing.errors import IllegalState, KafkaUnavailable
from kafkadur_sharing.keys import digest
from kafkadur_sharing.names import TEMPORARY_PREFIX, validate_namespace, validate_topic


class Role(StrEnum):
    """The role of a principal."""

    #: Publishes messages.
    PRODUCER = "producer"
    #: Opens subscriptions and receives their messages.
    CONSUMER = "consumer"
    #: Reads, changes and moves subscriptions, and publishes dead letters again.
    ADMINISTRATOR = "administrator"
    #: Serves clients of AMQP: publishes and receives for all of them.
    GATEWAY = "gateway"


@dataclass(frozen=True, kw_only=True, order=True)
class Rule:
    """One operation that a principal may do.

    READ and WRITE imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS, as they do in Kafka.
    """

    #: topic, group or transactional-id
    resource: str
    name: str
    #: Whether `name` is a prefix of names.
    prefixed: bool = False
    #: In the spelling of kafka-acls.sh.
    operation: str
    #: Why the principal needs it.
    purpose: str


_OPERATIONS: Final[Mapping[str, AclOperation]] = {
    "AlterConfigs": AclOperation.ALTER_CONFIGS,
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
    history: bool = False,
) -> list[Rule]:
    """Return the rules of a principal with these roles.

    `topics` are those it publishes to or subscribes to; `dead_letter_topics` those of its dead letters (None:
    each topic's name with `.dead`). `groups` are other consumer groups that an administrator copies offsets
    to or from (`sub export`, `sub seek NAME group:...`). `create`: it may create the journal and the topics
    of dead letters. `transacted`: there are transacted sessions in the namespace; then every consumer of the
    namespace looks up what a session that is gone has committed. `history`: subscriptions of the namespace
    have delivery histories. Raises `InvalidName` and `InvalidDestination`.
    """
    asked = set(roles)
    chosen = asked | ({Role.PRODUCER, Role.CONSUMER} if Role.GATEWAY in asked else set[Role]())
    topics = [validate_topic(topic) for topic in topics]
    letters = [f"{topic}.dead" for topic in topics] if dead_letter_topics is None else dead_letter_topics
    letters = [validate_topic(topic) for topic in letters]
    rules: list[Rule] = []
    if Role.PRODUCER in chosen:
        for topic in topics:
            rules += _rules("topic", topic, Write="publish")
        for name in transactional_ids if Role.PRODUCER in asked else ():
            rules += _rules("transactional-id", name, Write="publish in transactions")
    if chosen & {Role.CONSUMER, Role.ADMINISTRATOR}:
        rules += _receiving(validate_namespace(namespace), topics, letters, create=create)
        if transacted:
            rules += _committing(namespace, create=create)
        if history:
            rules += _recording(namespace, chosen, create=create)
    if Role.GATEWAY in chosen:
        rules += _rules(
            "topic",
            temporary_topic(namespace),
            Read="receive from temporary destinations",
            Write="send to temporary destinations",
            Create="create the topic of temporary destinations (first one)" if create else None,
        )
    if Role.ADMINISTRATOR in chosen:
        rules += _administering(topics, letters, groups)
    return list({(rule.resource, rule.name, rule.operation): rule for rule in rules}.values())


def _rules(resource: str, name: str, *, prefixed: bool = False, **purposes: str | None) -> Iterator[Rule]:
    """Yield the rules of one resource; `purposes` by operation, None: the operation is not needed."""
    for operation, purpose in purposes.items():
        if purpose is not None:
            yield Rule(resource=resource, name=name, prefixed=prefixed, operation=operation, purpose=purpose)


def temporary_topic(namespace: str) -> str:
    """Return the topic of the temporary destinations of AMQP clients."""
    return f"{TEMPORARY_PREFIX}{digest([namespace])}"


def _receiving(
    namespace: str, topics: Iterable[str], letters: Iterable[str], *, create: bool
) -> Iterator[Rule]:
    limits = "warn before retention removes unsettled messages; know how large a dead letter gets"
    for topic in topics:
        yield from _rules("topic", topic, Read="subscribe and receive", DescribeConfigs=limits)
    yield from _rules(
        "topic",
        journal_topic(namespace),
        Read="know subscriptions, and what is settled",
        Write="create, change and delete subscriptions; write what is settled",
        DescribeConfigs="see that the journal loses no record",
        Create="create the journal (first connection)" if create else None,
    )
    group = f"kafkadur:{namespace}:"
    yield from _rules("group", group, prefixed=True, Read="mirror floors, and go on from them")
    created = "create the topic of dead letters (first letter)" if create else None
    for topic in letters:
        yield from _rules("topic", topic, Write="write dead letters", Create=created)


def _committing(namespace: str, *, create: bool) -> Iterator[Rule]:
    yield from _rules(
        "transactional-id",
        f"kafkadur:{namespace}:",
        prefixed=True,
        Write="commit transacted sessions, and end those that were left behind",
    )
    yield from _rules(
        "topic",
        transactions_topic(namespace),
        Read="look up what transacted sessions have committed",
        Write="write what is settled, in its transaction",
        DescribeConfigs="see that what is committed is kept",
        Create="create the topic of transactions (first transacted session)" if create else None,
    )


def _recording(namespace: str, roles: Collection[Role], *, create: bool) -> Iterator[Rule]:
    yield from _rules(
        "topic",
        history_prefix(namespace),
        prefixed=True,
        Write="write delivery histories" if Role.CONSUMER in roles else None,
        AlterConfigs="see for how long a history is kept, and set that" if Role.CONSUMER in roles else None,
        Create="create the topic of a history" if create and Role.CONSUMER in roles else None,
        Read="read delivery histories" if Role.ADMINISTRATOR in roles else None,
    )


def _administering(topics: Iterable[str], letters: Iterable[str], groups: Iterable[str]) -> Iterator[Rule]:
    retention = "warn before retention removes dead letters that are sent again"
    for topic in letters:
        yield from _rules("topic", topic, Read="look at dead letters", DescribeConfigs=retention)
    for topic in topics:
        yield from _rules("topic", topic, Write="send dead letters again")
    for group in groups:
        yield from _rules("group", group, Read="take a place from it or give it one")


def kafka_commands(rules: Iterable[Rule], *, principal: str, bootstrap: str) -> list[str]:
    """Return the commands that add these rules: kafka-acls.sh of Kafka's distribution, one line each."""
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
    """Add these rules to the existing ones. `kafka` configures a client that may alter them.

    Raises `KafkaRefused`, and `KafkaUnavailable` when Kafka does not answer within `timeout` seconds.
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
        raise refusal or KafkaUnavailable(
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
