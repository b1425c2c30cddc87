"""Sending in the names of Jakarta Messaging."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Self

import kafkadur
from kafkadur.message.headers import DEFAULT_DELIVERY_MODE, DEFAULT_PRIORITY, DeliveryMode, Property
from kafkadur_sharing.errors import IllegalState, InvalidDestination


class MessageProducer:
    """Sends to one topic, or to the topic given with each message."""

    def __init__(self, producer: kafkadur.Producer, topic: str | None, *, waits: bool = True) -> None:
        """Made by a session; `waits`: whether `send` waits for Kafka, else the commit of the session does."""
        self._waits = waits
        self._producer = producer
        self._topic = topic

    def send(
        self,
        body: str | bytes | None,
        *,
        topic: str | None = None,
        key: str | bytes | None = None,
        properties: Mapping[str, Property] | None = None,
        correlation_id: str | None = None,
        jms_type: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        delivery_mode: DeliveryMode = DEFAULT_DELIVERY_MODE,
        time_to_live: int = 0,
        delivery_delay: int = 0,
    ) -> None:
        """Send a message and wait until Kafka has it; in a transacted session the commit makes it visible.

        `time_to_live` and `delivery_delay` in ms from now on; 0: it never expires, it is delivered at once.

        Raises `DeliveryFailed` if Kafka does not take it, `InvalidProperty`, `InvalidDestination` without a
        topic, and `IllegalState` for a topic other than the producer's and for times out of range.
        """
        if topic is not None and self._topic is not None and topic != self._topic:
            raise IllegalState(
                "A producer that was made for a topic sends to that.",
                state=f"topic {topic}",
                owner=f"producer of topic {self._topic}",
                remedy="make a producer without a topic",
            )
        where = topic or self._topic
        if where is None:
            raise InvalidDestination(
                "The message has no topic.", remedy="name one here, or when the producer is made"
            )
        self._producer.publish(
            where,
            body,
            key=key,
            properties=properties,
            correlation_id=correlation_id,
            type=jms_type,
            priority=priority,
            delivery_mode=delivery_mode,
            time_to_live=timedelta(milliseconds=time_to_live) if time_to_live else None,
            delay=timedelta(milliseconds=delivery_delay) if delivery_delay else None,
        )
        if self._waits:
            self._producer.flush()

    def close(self) -> None:
        """Close; the producer of a transacted session is closed with the session."""
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
