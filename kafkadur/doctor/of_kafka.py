"""What the doctor looks at in Kafka: brokers, the journal, topics, rights, latency. It creates nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType

from kafkadur.doctor.finding import Finding, counted, good, problem, unknown, warning
from kafkadur.settings import Settings
from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.journal.topic import journal_topic, weaknesses

#: Questions that latency is taken of, and what they may take, ms: subscribing asks several.
_CALLS: Final = 20
_SLOW_MS: Final = 100.0
_TESTED: Final = "4.3"
#: Of brokers of before 4.0 only.
_OLD_PROTOCOL: Final = "inter.broker.protocol.version"

Config = Mapping[str, str]


def look_at_kafka(
    settings: Settings, topics: Sequence[str] = (), *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Finding]:
    """Every check, one after the other; only the first where Kafka does not let us in.

    `topics` are looked at, too.
    """
    seconds = settings.kafka_timeout.total_seconds()
    quiet: dict[str, Any] = {"log_level": 0, "error_cb": _ignore}
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
        state = f"{where}: {_said(error)}"
        yield problem(
            "kafka connection",
            state,
            "check that Kafka runs, and what it asks for: TLS, SASL (docs/operations/security.md)",
        )
        return
    yield good("kafka connection", f"{where}, {counted(len(brokers), 'broker')}")
    yield from _brokers(asked, brokers)
    yield from _journal(asked, settings, len(brokers))
    for topic in topics:
        yield _topic(asked, topic)
    yield _latency(asked, clock)


def _ignore(_error: KafkaError) -> None:
    """What goes wrong is told as a finding."""


class _Asked:
    """Questions to Kafka; each raises `KafkaException` when it is not answered."""

    def __init__(self, admin: AdminClient, seconds: float) -> None:
        self._admin = admin
        self._seconds = seconds

    def brokers(self) -> list[int]:
        """Ids of the brokers, the controller's first."""
        cluster = self._admin.list_topics(timeout=self._seconds)
        return sorted(cluster.brokers, key=lambda number: number != cluster.controller_id)

    def config(self, kind: ResourceType, name: str) -> Config:
        """How a broker or topic is configured."""
        resource = ConfigResource(kind, name)
        found = self._answer(self._admin.describe_configs([resource])[resource])
        return {key: str(entry.value) for key, entry in found.items()}

    def topic(self, name: str) -> Any:  # noqa: ANN401 - confluent_kafka's description of a topic
        """A topic, with what may be done with it; None: there is none."""
        names = TopicCollection([name])
        future = self._admin.describe_topics(names, include_authorized_operations=True)[name]
        try:
            return self._answer(future)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise

    def _answer(self, future: Any) -> Any:  # noqa: ANN401 - a future of what was asked for
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
        remedy = (
            "allow DescribeConfigs on the cluster to whoever runs the doctor; applications do not need it"
        )
        yield unknown("kafka version", _said(error), remedy)
        return
    yield from judge_broker(config)


def judge_broker(config: Config) -> Iterator[Finding]:
    """How a broker is configured."""
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
            "unclean.leader.election.enable=true: a broker that has not all may become leader",
            "set it to false: what is lost then is lost to every subscription",
        )
    else:
        yield good("kafka elections", "clean only")
    if config.get("auto.create.topics.enable", "false") == "true":
        yield warning(
            "kafka topics",
            "auto.create.topics.enable=true: what is written to a deleted or mistyped topic creates it",
            "set it to false: a journal that comes back like that could lose records, and is refused",
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
            check, state, "replicate it (kafka-reassign-partitions): with one broker all of it is away"
        )
    else:
        yield good(check, state)
    yield _rights(check, found, (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE))


def _unseen(check: str, name: str, error: KafkaException) -> Finding:
    """A topic that could not be looked at; what may not be seen cannot be used either."""
    forbidden = error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    found = problem if forbidden else unknown
    return found(check, f"{name}: {_said(error)}", "set the rights: kafkadur acl kafka")


def _no_journal(settings: Settings, brokers: int) -> Finding:
    state = f"{journal_topic(settings.namespace)} is not there yet: the first subscription creates it"
    if settings.journal_replication == 1 and brokers > 1:
        return warning("journal", state, "leave journal_replication out, or set 3: it is the durable truth")
    return good("journal", state)


def _topic(asked: _Asked, name: str) -> Finding:
    check = f"topic {name}"
    try:
        found = asked.topic(name)
        if found is None:
            return problem(
                check, "it does not exist, or may not be seen", "create it, or set rights: kafkadur acl kafka"
            )
        config = asked.config(ResourceType.TOPIC, name)
    except KafkaException as error:
        return _unseen(check, name, error)
    wanting = _rights(check, found, (AclOperation.READ, AclOperation.DESCRIBE))
    if wanting.remedy:
        return wanting
    hours = int(config.get("retention.ms", -1)) / 3_600_000
    kept = "forever" if hours < 0 else f"{hours:g} hours"
    return good(check, f"{counted(len(found.partitions), 'partition')}, kept {kept}")


def _rights(check: str, found: Any, needed: Iterable[AclOperation]) -> Finding:  # noqa: ANN401 - as above
    check = f"{check} rights"
    allowed: list[AclOperation] | None = found.authorized_operations
    if allowed is None:
        return unknown(check, "the broker does not say what is allowed")
    missing = [operation.name for operation in needed if operation not in allowed]
    if missing:
        return problem(check, f"may not {', '.join(missing)}", "set the rights: kafkadur acl kafka")
    return good(check, ", ".join(operation.name for operation in needed))


def _latency(asked: _Asked, clock: Callable[[], float]) -> Finding:
    took: list[float] = []
    try:
        for _ in range(_CALLS):
            begun = clock()
            asked.brokers()
            took.append((clock() - begun) * 1000)
    except KafkaException as error:
        return unknown("kafka latency", _said(error))
    middle = statistics.median(took)
    state = f"{middle:.1f} ms to be told of all topics, {max(took):.1f} ms at most"
    if middle > _SLOW_MS:
        return warning(
            "kafka latency", state, "run what subscribes near Kafka: subscribing asks several times"
        )
    return good("kafka latency", state)
