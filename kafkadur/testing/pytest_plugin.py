"""pytest fixtures over real servers, for kafkadur's own tests and for those of applications.

One broker and one Valkey serve a whole test run: processes of the embedded stack (`kafkadur_stack`), or
containers of a container engine (`kafkadur_containers`). Each test gets its own topics and namespace. Tests
of handlers need no broker: `kafkadur_in_memory` has topics in memory, and starts a Valkey only. Nothing is
imported or started before the first test that asks for it.
"""

import re
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from kafkadur.containers import Containers
    from kafkadur.stack import Stack
    from kafkadur.testing.in_memory import InMemoryKafka

#: Seconds the creation or deletion of a topic may take.
TOPIC_LIMIT_S = 120.0

POLL_S = 0.01

#: Longest part of a test's name in the name of its topic; Kafka allows 249 characters in all.
NAME_LIMIT = 100


class TopicFactory(Protocol):
    """Creates topics for one test."""

    def __call__(self, partitions: int = 1, **config: object) -> str:
        """Create a topic and return its name; it is deleted after the test.

        ``config`` are topic settings with underscores for dots: ``cleanup_policy="compact"``.
        """
        ...


@pytest.fixture(scope="session")
def kafkadur_stack() -> "Iterator[Stack]":
    """Provide a running stack, one broker and one Valkey, for the whole test run."""
    from kafkadur.stack import embedded  # noqa: PLC0415 - nothing heavy at plugin load

    with embedded() as stack:
        yield stack


@pytest.fixture(scope="session")
def kafkadur_valkey() -> "Iterator[str]":
    """Provide the URL of a running Valkey for the whole test run, without a broker."""
    from kafkadur.stack import embedded  # noqa: PLC0415 - nothing heavy at plugin load

    with embedded(kafka=False) as stack:
        yield stack.redis


@pytest.fixture
def kafkadur_in_memory(kafkadur_valkey: str) -> "InMemoryKafka":
    """Provide a Kafka in memory without topics; see `kafkadur.testing.in_memory`."""
    from kafkadur.testing.in_memory import InMemoryKafka  # noqa: PLC0415 - nothing heavy at plugin load

    return InMemoryKafka(redis=kafkadur_valkey)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings of `kafkadur_containers`."""
    parser.addini("kafkadur_kafka_image", "image of the fixture kafkadur_containers", default="")
    parser.addini("kafkadur_valkey_image", "image of the fixture kafkadur_containers", default="")


@pytest.fixture(scope="session")
def kafkadur_containers(pytestconfig: pytest.Config) -> "Iterator[Containers]":
    """Provide Kafka and Valkey in containers for the whole test run.

    `.kafka` and `.redis` are their addresses. Needs a container engine, and the extra `test`. The settings
    `kafkadur_kafka_image` and `kafkadur_valkey_image` name other images.
    """
    from kafkadur import containers as made  # noqa: PLC0415 - nothing heavy at plugin load

    with made.containers(
        kafka_image=pytestconfig.getini("kafkadur_kafka_image") or made.KAFKA_IMAGE,
        valkey_image=pytestconfig.getini("kafkadur_valkey_image") or made.VALKEY_IMAGE,
    ) as started:
        yield started


@pytest.fixture(scope="session")
def kafkadur_admin(kafkadur_stack: "Stack") -> "AdminClient":
    """Provide an admin client for the stack's Kafka."""
    from kafkadur.stack.kafka import quiet_admin  # noqa: PLC0415 - nothing heavy at plugin load

    return quiet_admin(kafkadur_stack.kafka)


@pytest.fixture
def kafkadur_topic(kafkadur_admin: "AdminClient", request: pytest.FixtureRequest) -> Iterator[TopicFactory]:
    """Provide a factory for fresh topics: ``make(partitions=1, **config) -> name``."""
    from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 - nothing heavy at plugin load
    from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415

    made: list[str] = []
    # confluent-kafka types the futures of these calls in part only.
    admin: Any = kafkadur_admin

    def make(partitions: int = 1, **config: object) -> str:
        name = _unique(request.node.name)
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        topic = NewTopic(name, num_partitions=partitions, config=settings)
        admin.create_topics([topic])[name].result(TOPIC_LIMIT_S)
        made.append(name)
        deadline = time.monotonic() + TOPIC_LIMIT_S
        while not takes_messages(kafkadur_admin, name, partitions):
            if time.monotonic() > deadline:
                pytest.fail(f"topic {name} takes no messages after {TOPIC_LIMIT_S:g} s")
            time.sleep(POLL_S)
        return name

    yield make
    if made:
        for deleted in admin.delete_topics(made).values():
            try:
                deleted.result(TOPIC_LIMIT_S)
            except KafkaException as error:
                # The test may have deleted the topic itself.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise


@pytest.fixture
def kafkadur_namespace(request: pytest.FixtureRequest) -> str:
    """Provide a string that no other test uses, for what tests would otherwise share in Redis."""
    return _unique(request.node.name)


def _unique(test: str) -> str:
    return f"{re.sub('[^A-Za-z0-9_-]+', '-', test)[:NAME_LIMIT].strip('-')}-{uuid.uuid4().hex[:12]}"


def takes_messages(admin: "AdminClient", name: str, partitions: int) -> bool:
    """Say whether all partitions of a topic have a leader that takes messages.

    Else the first messages would be refused and sent again, and lie behind later ones.
    """
    from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415 - nothing heavy at plugin load
    from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415

    known = admin.list_topics(name, timeout=TOPIC_LIMIT_S).topics[name].partitions
    if len(known) < partitions or any(partition.leader < 0 for partition in known.values()):
        return False
    # librdkafka's defect in this request (docs/internals/reliability.md) needs a leader that is not known yet
    ends: Any = {TopicPartition(name, partition): OffsetSpec.latest() for partition in known}
    try:
        for future in admin.list_offsets(ends).values():
            future.result(TOPIC_LIMIT_S)
    except KafkaException:
        return False
    return True
