"""Check whether a client of Kafka still finds it; the caller replaces one that does not.

A broker that shuts down in order answers, for a moment, that there are no brokers at all. A librdkafka client
that hears it forgets the ones it knows, and may never look for them again: it stays silent until it is made
anew (see docs/internals/reliability.md). From outside that looks as if Kafka were away, so another client is
asked, too.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

#: Seconds of silence after which a thread that waits for Kafka asks whether its client still finds it.
SILENT_S: Final = 5.0
#: Seconds a client may take to answer.
ASK_S: Final = 2.0


def answers(
    client: Consumer | Producer | AdminClient, topic: str | None = None, timeout: float = ASK_S
) -> bool:
    """Whether a client gets an answer about a topic (None: about all) in `timeout` seconds. Blocks."""
    try:
        if topic is None:
            client.list_topics(timeout=timeout)
        else:
            client.list_topics(topic, timeout=timeout)
    except KafkaException:
        return False
    return True
