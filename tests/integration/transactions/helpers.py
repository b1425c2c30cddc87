"""What the tests of transactions share and is no fixture: reading what is committed."""

import confluent_kafka

from tests.integration.subscriptions.helpers import Place


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
