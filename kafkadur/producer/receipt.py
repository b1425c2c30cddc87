"""The result of sending a message: a receipt, or an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import confluent_kafka

from kafkadur_sharing.errors import DeliveryFailed, KafkadurError

#: Most topics and errors that the error for several messages lists.
_MOST_LISTED: Final = 5
#: Names of Kafka's errors about a topic that does not exist.
_NO_TOPIC: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """The position of a message in Kafka."""

    #: The topic that it was sent to.
    topic: str
    #: Its partition.
    partition: int
    #: Its offset.
    offset: int
    #: Timestamp of the record in milliseconds since 1970; None if it has none.
    timestamp: int | None
    #: The message id that it was sent with; None if it was sent without one.
    message_id: str | None


def result_of(
    error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message, message_id: str | None
) -> Receipt | DeliveryFailed:
    """Return the result that a delivery report tells; the message was sent with `message_id`."""
    if error is not None:
        return not_delivered(error, message.topic())
    timestamp_type, timestamp = message.timestamp()
    return Receipt(
        topic=cast("str", message.topic()),
        partition=cast("int", message.partition()),
        offset=cast("int", message.offset()),
        timestamp=None if timestamp_type == confluent_kafka.TIMESTAMP_NOT_AVAILABLE else timestamp,
        message_id=message_id,
    )


def not_delivered(error: confluent_kafka.KafkaError, topic: str | None) -> DeliveryFailed:
    """Return the error for a message that Kafka or its client refused."""
    what = (
        "create the topic"
        if error.name() in _NO_TOPIC
        else "check the brokers, the topic and the message's size"
    )
    return DeliveryFailed(
        f"A message was not delivered to topic {topic}: {error.str()} ({error.name()}).",
        failed=1,
        reasons={error.name(): 1},
        owner="Kafka",
        remedy=f"{what}, then send it again",
    )


def several_not_delivered(
    failures: Mapping[tuple[str, str], int], pending: int, refusal: KafkadurError | None
) -> DeliveryFailed:
    """Return the error for messages that failed, and for `pending` ones that Kafka has not answered.

    `failures`: their numbers by topic and name of Kafka's error; `refusal`: what Kafka refuses the client.
    """
    reasons: Counter[str] = Counter()
    for (_, reason), count in failures.items():
        reasons[reason] += count
    parts: list[str] = []
    if failures:
        listed = [f"topic {topic}: {reason} {count}" for (topic, reason), count in sorted(failures.items())]
        more = [f"{len(listed) - _MOST_LISTED} more"] if len(listed) > _MOST_LISTED else []
        told = "; ".join(listed[:_MOST_LISTED] + more)
        parts.append(f"{reasons.total()} published messages were not delivered to Kafka ({told}).")
    if pending:
        parts.append(f"{pending} published messages had no answer of Kafka when the time was up.")
    missing = sorted({topic for topic, reason in failures if reason in _NO_TOPIC})
    remedy = "check the brokers and the topics" if refusal is None else refusal.remedy
    if missing:
        remedy = f"create the topics that do not exist ({', '.join(missing[:_MOST_LISTED])})"
    return DeliveryFailed(
        " ".join(parts),
        failed=reasons.total(),
        pending=pending,
        reasons=dict(reasons),
        state=None if refusal is None else refusal.state,
        owner="Kafka",
        remedy=f"{remedy}, then publish what is missing again",
    )


def describe(error: confluent_kafka.KafkaException) -> str:
    """Return the text of librdkafka's error, which never contains a payload."""
    inner = error.args[0]
    return inner.str() if isinstance(inner, confluent_kafka.KafkaError) else str(inner)
