"""A broker that creates what it is asked for: `auto.create.topics.enable`, which is Kafka's default."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from kafkadur import InvalidDestination
from kafkadur.stack import Stack, embedded
from kafkadur.stack.kafka import quiet_admin
from kafkadur_coordinators.journal.topic import journal_topic
from tests.integration.subscriptions.helpers import LIMIT_S, Place, take


@pytest.fixture(scope="module")
def creating() -> Iterator[Stack]:
    """Provide a stack whose broker creates topics, each with three partitions."""
    settings = {"auto.create.topics.enable": "true", "num.partitions": "3"}
    with embedded(kafka_settings=settings) as stack:
        yield stack


@pytest.fixture
def place(creating: Stack, place_on: Callable[[Stack], Place]) -> Place:
    """Provide a place on that stack."""
    return place_on(creating)


def topics(place: Place) -> dict[str, int]:
    """The partitions of all topics there are."""
    found = quiet_admin(place.stack.kafka).list_topics(timeout=LIMIT_S).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


async def test_the_journal_is_created_as_it_has_to_be(place: Place) -> None:
    topic = place.topic([1])
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        for delivery in await take(subscription, 1):
            await delivery.ack()
    name = journal_topic(place.namespace)
    assert topics(place)[name] == 2
    resource = ConfigResource(ResourceType.TOPIC, name)
    admin = quiet_admin(place.stack.kafka)
    found = admin.describe_configs([resource])[resource].result(LIMIT_S)
    assert found["cleanup.policy"].value == "compact"


async def test_nothing_is_created_by_asking_for_it(place: Place) -> None:
    before = topics(place)
    async with place.connect() as connection:
        for durable in ("d", None):
            with pytest.raises(InvalidDestination, match="does not exist"):
                await connection.subscribe("mistyped", durable=durable, type="shared")
    assert set(topics(place)) - set(before) <= {journal_topic(place.namespace)}


async def test_dead_letters_get_as_many_partitions_as_their_topic(place: Place) -> None:
    topic = place.topic([1], partitions=5)
    async with (
        place.connect() as connection,
        await connection.subscribe(topic, durable="d", type="shared", start="earliest") as subscription,
    ):
        for delivery in await take(subscription, 1):
            await delivery.reject()
    assert topics(place)[f"{topic}.dead"] == 5
