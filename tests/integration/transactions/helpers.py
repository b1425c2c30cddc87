"""The functions that tests of transactions share: reading committed messages, and a Kafka that is silent."""

import asyncio

import confluent_kafka

from tests.integration.subscriptions.helpers import Place

#: The exception of Kafka's client when it gets no answer.
DOWN = confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))  # noqa: SLF001 - its name


async def seen(place: Place, topic: str) -> list[int]:
    """As `committed`, while the event loop goes on."""
    return await asyncio.to_thread(committed, place, topic)


def committed(place: Place, topic: str) -> list[int]:
    """The numbers in a topic that are committed, in order, up to the first transaction that is open."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": place.stack.kafka,
            "group.id": f"{place.namespace}-read",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found: list[int] = []
        while (message := consumer.poll(1.0)) is not None and message.error() is None:
            found.append(int(message.value() or b"0"))
        return found
    finally:
        consumer.close()
