"""The checks of Kafka: brokers, the journal, topics, rights, latency. They create nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType

from kafkadur.doctor.finding import Finding, counted, good, problem, timed, unknown, warning
from kafkadur.settings import Settings
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.journal.topic import journal_topic
from kafkadur_coordinators.journal.topic_config import weaknesses

#: Requests that measure the latency, and the most that the median may be, ms: subscribing sends several.
_CALLS: Final = 20
_SLOW_MS: Final = 100.0
_TESTED: Final = "4.3"
#: Only brokers before 4.0 have this setting.
_OLD_PROTOCOL: Final = "inter.broker.protocol.version"

Config = Mapping[str, str]


def look_at_kafka(settings: Settings, topics: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield the finding of every check; only the first if Kafka refuses the connection."""
    seconds = settings.kafka_timeout.total_seconds()
    # Errors become findings.
    quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _error: None}
    try:
        admin = AdminClient({**quiet, **settings.kafka}, logger=client_log)
    except (KafkaException, TypeError, ValueError) as error:
        yield problem("kafka connection", _said(error), "correct the settings of Kafka")
        return
    asked = _Asked(admin, seconds)
    where = str(settings.kafka.get("bootstrap.servers", ""))
    try:
        brokers = asked.brokers()
    except KafkaException as error:
        yield problem(
            "kafka connection",
            f"{where}: {_said(error)}",
            "check that Kafka runs, and that TLS and SASL match its settings (docs/operations/security.md)",
        )
        return
    yield good("kafka connection", f"{where}, {counted(len(brokers), 'broker')}")
    yield from _brokers(asked, brokers)
    yield from _journal(asked, settings, len(brokers))
    for topic in topics:
        yield _topic(asked, topic)
    yield _latency(asked)


class _Asked:
    """Requests to Kafka; each raises `KafkaException` when it gets no answer."""

    def __init__(self, admin: AdminClient, seconds: float) -> None:
        self._admin = admin
        self._seconds = seconds

    def brokers(self) -> list[int]:
        """Return the ids of the brokers, the controller's first."""
        cluster = self._admin.list_topics(timeout=self._seconds)
        return sorted(cluster.brokers, key=lambda number: number != cluster.controller_id)

    def config(self, kind: ResourceType, name: str) -> Config:
        """Return the configuration of a broker or topic."""
        resource = ConfigResource(kind, name)
        found = self._answer(self._admin.describe_configs([resource])[resource])
        return {key: str(entry.value) for key, entry in found.items()}

    def topic(self, name: str) -> Any:  # noqa: ANN401 - confluent_kafka's description of a topic
        """Return a topic with its allowed operations; None if it does not exist."""
        names = TopicCollection([name])
        future = self._admin.describe_topics(names, include_authorized_operations=True)[name]
        try:
            return self._answer(future)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise

    def _answer(self, future: Any) -> Any:  # noqa: ANN401 - a future of any answer
        try:
            return future.result(self._seconds)
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001 - has no other name


def _said(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(first)


def _brokers(asked: _Asked, brokers: Sequence[int]) -> Iterator[Finding]:
    try:
        config = asked.config(ResourceType.BROKER, str(brokers[0]))
    except KafkaException as error:
        remedy = "allow DescribeConfigs on the cluster to the user of the doctor; applications do not need it"
        yield unknown("kafka version", _said(error), remedy)
    else:
        yield from judge_broker(config)


def judge_broker(config: Config) -> Iterator[Finding]:
    """Yield the findings about the configuration of a broker."""
    protocol = config.get(_OLD_PROTOCOL)
    if protocol is None:
        yield good("kafka version", "4.0 or newer")
    else:
        yield warning(
            "kafka version", f"protocol {protocol}", f"update it: kafkadur is tested with Kafka {_TESTED}"
        )
    if config.get("unclean.leader.election.enable") == "true":
        yield warning(
            "kafka elections",
            "unclean.leader.election.enable=true: a broker that lacks records may become leader",
            "set it to false: such an election loses messages of every subscription",
        )
    else:
        yield good("kafka elections", "clean only")
    if config.get("auto.create.topics.enable", "false") == "true":
        yield warning(
            "kafka topics",
            "auto.create.topics.enable=true: writing to a deleted or mistyped topic creates it",
            "set it to false: a journal that is created like this could lose records, and is refused",
        )
    else:
        yield good("kafka topics", "created on request only")


def _journal(asked: _Asked, settings: Settings, brokers: int) -> Iterator[Finding]:
    name = journal_topic(settings.namespace)
    check = "journal"
    try:
        found = asked.topic(name)
        if found is None:
            yield _no_journal(settings, brokers)
            return
        config = asked.config(ResourceType.TOPIC, name)
    except KafkaException as error:
        yield _unseen(check, name, error)
        return
    replicas = max(len(partition.replicas) for partition in found.partitions)
    state = f"{name}, {counted(len(found.partitions), 'partition')}, replicas: {replicas}"
    if problems := weaknesses(config, replicas):
        yield problem(check, f"{state}: {'; '.join(problems)}", "correct the topic's configuration")
    elif replicas == 1 and brokers > 1:
        yield warning(
            check,
            state,
            "replicate it (kafka-reassign-partitions): it is unavailable while its one broker is",
        )
    else:
        yield good(check, state)
    yield _rights(check, found, (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE))


def _unseen(check: str, name: str, error: KafkaException) -> Finding:
    """Return the finding of a topic that could not be described; without that right it cannot be used."""
    forbidden = error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    found = problem if forbidden else unknown
    return found(check, f"{name}: {_said(error)}", "set the rights: kafkadur acl kafka")


def _no_journal(settings: Settings, brokers: int) -> Finding:
    state = f"{journal_topic(settings.namespace)} is not there yet: the first subscription creates it"
    if settings.journal_replication == 1 and brokers > 1:
        return warning(
            "journal",
            state,
            "omit journal_replication, or set 3: subscriptions are restored from the journal",
        )
    return good("journal", state)


def _topic(asked: _Asked, name: str) -> Finding:
    check = f"topic {name}"
    try:
        found = asked.topic(name)
        if found is None:
            return problem(
                check, "it does not exist, or is not visible", "create it, or set rights: kafkadur acl kafka"
            )
        config = asked.config(ResourceType.TOPIC, name)
    except KafkaException as error:
        return _unseen(check, name, error)
    rights = _rights(check, found, (AclOperation.READ, AclOperation.DESCRIBE))
    if rights.remedy:
        return rights
    hours = int(config.get("retention.ms", -1)) / 3_600_000
    kept = "forever" if hours < 0 else f"{hours:g} hours"
    return good(check, f"{counted(len(found.partitions), 'partition')}, kept {kept}")


def _rights(check: str, found: Any, needed: Iterable[AclOperation]) -> Finding:  # noqa: ANN401 - as above
    check = f"{check} rights"
    allowed: list[AclOperation] | None = found.authorized_operations
    if allowed is None:
        return unknown(check, "the broker does not report allowed operations")
    missing = [operation.name for operation in needed if operation not in allowed]
    if missing:
        return problem(check, f"may not {', '.join(missing)}", "set the rights: kafkadur acl kafka")
    return good(check, ", ".join(operation.name for operation in needed))


def _latency(asked: _Asked) -> Finding:
    try:
        took = [timed(asked.brokers) for _ in range(_CALLS)]
    except KafkaException as error:
        return unknown("kafka latency", _said(error))
    middle = statistics.median(took)
    state = f"{middle:.1f} ms to list all topics, {max(took):.1f} ms at most"
    if middle > _SLOW_MS:
        return warning("kafka latency", state, "run consumers near Kafka: subscribing takes several requests")
    return good("kafka latency", state)
